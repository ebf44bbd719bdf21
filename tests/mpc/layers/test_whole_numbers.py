"""Comparisons as numbers: torch's integers are kept apart from reals, and public numbers from the values' grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hummingbird
from hummingbird.errors import InputError
from tests.support.covering import covering, every
from tests.support.operations import Function

torch.set_num_threads(1)

INTS, TRUTHS = torch.arange(4), torch.arange(4) > 1

# Each is right in private, or has a problem with these words.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "times an integer": (lambda x: (x > 0) * 2 + (x > 1) * 3, ""),
    "padded with a fraction": (lambda x: F.pad((x > 0) * 2, (1, 1), value=0.5), "torch rounds the result of pad"),
    "held by fractions": (lambda x: F.hardtanh((x > 0) * 2, -0.5, 1.5), "torch rounds the result of hardtanh"),
    "filled with a fraction": (lambda x: ((x > 0) * 2).masked_fill(x > 1, 0.5), "torch rounds 0.5"),
    "filled with an integer": (lambda x: ((x > 0) * 2).masked_fill(x > 1, 5), ""),
    "times integers, padded": (lambda x: F.pad((x > 0) * INTS, (1, 1), value=0.5), "torch rounds the result of pad"),
    "a choice of integers": (lambda x: torch.where(x > 0, 3, INTS), ""),
    "a choice of integers, padded": (lambda x: F.pad(torch.where(x > 0, 3, INTS), (1, 1), value=0.5), "torch rounds"),
    "a choice of a fraction, padded": (lambda x: F.pad(torch.where(x > 0, 3, 1.5), (1, 1), value=0.5), ""),
    "a choice of truths": (lambda x: torch.where(x > 0, True, TRUTHS), "where between True and False"),
    "an integer": (lambda x: (x > 0).long() * 3 + (x > 0).to(torch.int32), ""),
    "an integer, padded": (lambda x: F.pad((x > 0).int(), (1, 1), value=0.5), "torch rounds the result of pad"),
    "of an integer's type": (
        lambda x: F.pad((x > 0).type_as(x.argmax(1)), (1, 1), value=0.5),
        "torch rounds the result of pad",
    ),
    "a byte, which wraps": (lambda x: (x > 0).to(torch.uint8) * 200 + 100, "a comparison as uint8"),
    "a truth still": (lambda x: (x > 0).to(torch.bool) + (x > 1).type(torch.bool), "a comparison as bool"),
    "on another device": (lambda x: (x > 0).to("cpu") + (x > 1).to("cpu"), "another type or device"),
    "a real number, padded": (lambda x: F.pad((x > 0).float(), (1, 1), value=0.5), ""),
    "times a truth": (lambda x: (x > 0) * TRUTHS, "a product of two comparisons"),
    "times half of a complex number": (lambda x: (x > 0) * 0.5j, "the constant operand"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_torch_rounds_behind_a_comparison_is_refused_and_the_rest_is_right(case: str) -> None:
    function, words = CASES[case]
    net = Function(function).eval()
    found = hummingbird.validate_model(net)
    assert bool(found) == bool(words) and all(words in problem.what for problem in found), found
    if not words:
        x = torch.tensor([[0.0, 0.5, 1.5, -1.0], [2.0, -3.0, 1.0, 0.25]])
        got = hummingbird.simulate(net, mode="exact", seed=0)(x)
        assert torch.equal(got, net(x).float())


@covering("number, mode", [0.0, 0.5, 1e-6, -1e-6, 2.0**-17, -(2.0**-17), 1 / 3], ["fast", "exact"])
def test_a_public_number_between_the_values_of_the_grid_is_compared_as_it_is(number: float, mode: str) -> None:
    constant = torch.tensor(number)
    net = Function(
        lambda x: torch.stack(
            [y.float() for y in (x > number, x >= number, x < number, x <= number, number < x, x > constant)]
        )
    ).eval()
    around = round(number * 2.0**16)
    x = torch.arange(around - 2, around + 3).float()[None] * 2.0**-16
    assert torch.equal(hummingbird.simulate(net, mode=mode, seed=0)(x), net(x))


class Beside(nn.Module):
    """A function of a private input and a public one."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


@pytest.mark.parametrize("mode", every(2, ["exact", "fast"]))
def test_public_integers_truths_and_large_numbers_beside_private_values(mode: str) -> None:
    x, whole, truths = torch.randn(2, 4), INTS.expand(2, -1), TRUTHS.expand(2, -1)
    for function, y in ((lambda x, y: (x > 0) * y + x * y, whole), (lambda x, y: x * y, truths)):
        net = Beside(function).eval()
        got = hummingbird.simulate(net, mode=mode, seed=0, example=(x, y))(x, y)
        assert float((got - net(x, y)).abs().max()) < 2.0**-13
    rounded = Beside(lambda x, y: F.pad((x > 0) * y, (1, 1), value=0.5)).eval()
    assert any("torch rounds" in problem.what for problem in hummingbird.validate_model(rounded, (x, whole)))
    large = Beside(lambda x, y: (x + (1.0 - y.float()) * torch.finfo(torch.float32).min).softmax(-1)).eval()
    with torch.no_grad(), pytest.raises(InputError, match="a public value of"):
        hummingbird.simulate(large, mode=mode, seed=0, example=(x, whole))(x, whole)
