"""Norms that are written out, and short names of torch, by rewriting onto steps that are there: torch's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird import he, hybrid
from hummingbird.errors import ModelError
from hummingbird.graph import run, trace
from tests.graph.ops.test_vocabulary import Call
from tests.support.covering import covering

X, IMAGE = torch.randn(3, 5, 8) * 3 + 1, torch.randn(2, 4, 6, 6)


class OnnxNorm(nn.Module):
    """A LayerNorm as converters from ONNX write it: nine calls, numbers as buffers of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("two", torch.tensor(2.0))
        self.register_buffer("eps", torch.tensor(1e-5))
        self.weight, self.bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Any:
        less = torch.sub(x, torch.mean(x, dim=[-1], keepdim=True))
        deviation = torch.sqrt(torch.add(torch.mean(torch.pow(less, self.two), dim=[-1], keepdim=True), self.eps))
        return torch.add(torch.mul(torch.div(less, deviation), self.weight), self.bias)


class EpsNorm(nn.Module):
    """A norm whose numbers are tensors in one of the ways that nets have them."""

    def __init__(self, kind: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("eps", torch.tensor([eps] if kind == "one" else eps))
        self.register_buffer("power", torch.tensor(0.5))
        self.learned, self.two = nn.Parameter(torch.tensor(eps)), nn.Parameter(torch.tensor(2.0))
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: Tensor) -> Any:
        less = x if self.kind == "rms" else x - x.mean(-1, keepdim=True)
        square = (less ** (self.two if self.kind != "constant" else torch.tensor(2.0))).mean(-1, keepdim=True)
        eps: Any = self.learned if self.kind == "parameter" else self.eps
        eps = torch.tensor(1e-5) if self.kind == "constant" else eps.item() if self.kind == "item" else eps
        if self.kind == "first":
            return less / torch.pow(eps + square, self.power) * self.weight
        return less * torch.rsqrt(square + eps) * self.weight


EPS = ("buffer", "one", "parameter", "constant", "item", "first", "rms")


@covering("kind, asks", EPS, [False, True])
def test_the_eps_of_a_norm_may_be_a_tensor_with_private_weights_too(kind: str, asks: bool) -> None:
    net = EpsNorm(kind).eval()
    for secret in (False, True):
        steps = trace(net, secret=secret, example=X if asks else None)
        assert [step.op for step in steps] == ["input", "norm", "mul", "output"]
        assert steps[1].attrs["eps"] == pytest.approx(1e-5)
        with torch.no_grad():
            assert torch.allclose(run(steps, X), net(X), atol=2e-5)
    image = X[:, 0].clamp(-4, 4)
    with torch.no_grad():
        assert torch.allclose(he.convert_model(net, (8,))(image), net(image), atol=1e-3)
    with pytest.raises(ModelError, match="norm is not supported on garbled gates") as caught:
        hybrid.convert_model(net, (8,))
    assert "hummingbird.convert_model" in caught.value.problems[0].hint


def test_an_eps_that_was_learned_is_told_to_nobody() -> None:
    for kind in ("buffer", "parameter", "item"):
        net = EpsNorm(kind, 1.2345e-5).eval()
        assert trace(net)[1].attrs["eps"] == pytest.approx(1.2345e-5)
        with pytest.raises(ModelError, match="eps of a norm, .* is a number of a parameter or buffer") as caught:
            trace(net, secret=True)
        assert "write the number into the code" in caught.value.problems[0].hint
    net = EpsNorm("buffer").to("meta").eval()
    del net.two
    net.two = 2.0
    with pytest.raises(ModelError, match="the eps of a norm has no value"):
        trace(net)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: (x.abs() + t).sqrt(),
        lambda x, t: x * (x.exp() + t).rsqrt(),
        lambda x, t: x / (x.abs() + t),
        lambda x, t: x / (x.norm(dim=-1, keepdim=True) + t),
    ],
)
def test_a_learned_number_in_another_root_or_divisor_is_added_as_it_is(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t = nn.Parameter(torch.tensor(0.12345))

        def forward(self, x: Tensor) -> Any:
            return function(x, self.t)

    net = Net().eval()
    steps = trace(net, secret=True)
    assert "add" in [step.op for step in steps]
    with torch.no_grad():
        assert torch.allclose(run(steps, X), net(X), atol=1e-6)


def channels_first(x: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return (x - u) / torch.sqrt(s + 1e-6)


NORMS: dict[str, tuple[nn.Module, Tensor]] = {
    "as ONNX has it": (OnnxNorm(), X),
    "root mean square": (Call(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)), X),
    "a power of a half": (Call(lambda x: x / ((x * x).mean(-1, keepdim=True) + 1e-6) ** 0.5), X),
    "one over a root": (Call(lambda x: x * (1 / ((x * x).mean((-2, -1), keepdim=True) + 1e-6).sqrt())), X),
    "by torch's variance": (
        Call(lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()),
        X,
    ),
    "a deviation with a bound": (Call(lambda x: (x - x.mean(-1, True)) / x.std(-1, correction=0, keepdim=True)), X),
    "channels first, behind a layer": (nn.Sequential(nn.Conv2d(4, 6, 3), Call(channels_first)), IMAGE),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_is_written_out_is_one_step(name: str) -> None:
    net, x = NORMS[name]
    steps = trace(net)
    assert [step.op for step in steps].count("norm") == 1
    assert not {"square", "mean", "sub"} & {step.op for step in steps}
    with torch.no_grad():
        assert torch.allclose(run(steps, x), net(x), atol=2e-5)


UNITS: dict[str, Callable[[Tensor], Tensor]] = {
    "a norm": lambda x: x / x.norm(dim=1, keepdim=True),
    "of everything": lambda x: x / torch.linalg.vector_norm(x),
    "bounded": lambda x: x / x.norm(2, -1, keepdim=True).clamp(min=1e-6),
    "and a number": lambda x: x / (x.norm(dim=(1, 2), keepdim=True) + 1e-8),
    "bounded squares": lambda x: x / x.pow(2).sum(-1, keepdim=True).clamp(min=1e-8).sqrt(),
    "an inverse root first": lambda x: torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-8) * x,
    "one over a norm": lambda x: x * (1 / x.norm(dim=-1, keepdim=True)),
    "repeated": lambda x: x / x.norm(dim=-1, keepdim=True).expand(-1, -1, 8),
    "scaled": lambda x: x / (2 * x.norm(dim=-1, keepdim=True)),
    "a mean, scaled": lambda x: x / (x.square().sum(-1, keepdim=True) / 8).sqrt(),
    "a deviation": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-7),
}


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("plan", [False, True])
def test_a_division_by_a_norm_is_one_step(name: str, plan: bool) -> None:
    steps = trace(Call(UNITS[name]), example=X if plan else None)
    ops = [step.op for step in steps]
    assert ops.count("normalize") == 1 and not {"square", "sum", "moment", "maximum"} & set(ops)
    assert torch.allclose(run(steps, X), UNITS[name](X), atol=2e-6)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.flip(1)


COSINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "norms": lambda x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)),
    "from the front": lambda x, y: (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1)),
    "a number": lambda x, y: (
        (x * y).sum(-1, keepdim=True) / (y.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True) + 1e-8)
    ),
    "one root": lambda x, y: (x * y).sum(1) / ((x * x).sum(1) * (y * y).sum(1)).sqrt().clamp(min=1e-8),
}


def cosine_of_bounded_norms(x: Tensor, y: Tensor) -> Tensor:
    """Cosines, or less: where the product of the norms is below the bound, the bound divides."""
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)).clamp(min=80.0)


@pytest.mark.parametrize("name", COSINES)
def test_a_cosine_that_is_written_out_is_of_rows_of_length_1(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return COSINES[name](*turned(x))

    steps = trace(Call(function))
    assert [step.op for step in steps].count("normalize") == 2
    assert torch.allclose(run(steps, X), function(X), atol=2e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * ((x.roll(1, -1) * x).mean(-1, keepdim=True).abs() + 1e-5).rsqrt(),
        lambda x: x.relu() * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt(),
        lambda x: (2 * x) / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt(),
        lambda x: x.relu() / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt(),
        lambda x: (
            (x - x.mean(1, keepdim=True)) / ((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)).sqrt()
        ),
        lambda x: x / x.std(-1, keepdim=True),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3),
        lambda x: x / (x.norm(dim=-1, keepdim=True) / 1000 + 1e-6),
        lambda x: cosine_of_bounded_norms(x, x.flip(1)),
        lambda x: COSINES["from the front"](x[..., :5], x[0, :, :5]),
    ],
)
def test_a_division_that_is_no_norm_is_a_function_and_a_product(function: Callable[[Tensor], Tensor]) -> None:
    steps = trace(Call(function), example=X)
    assert "function" in {step.op for step in steps} and not {"norm", "normalize"} & {step.op for step in steps}
    assert torch.allclose(run(steps, X), function(X), rtol=1e-5, atol=1e-6)


def test_an_inverse_root_alone_is_refused_with_a_hint() -> None:
    with pytest.raises(ModelError) as caught:
        trace(Call(lambda x: ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt()))
    assert all(problem.hint for problem in caught.value.problems)


def test_powers_by_a_tensor() -> None:
    for exponent in (2.0, 3, 4):
        number = torch.tensor(exponent)
        net = Call(lambda x, number=number: x**number)
        assert torch.allclose(run(trace(net), X), X**exponent)
    with pytest.raises(ModelError, match="the exponent of a power"):
        trace(Call(lambda x: x ** torch.tensor(2.5)))


PLACES = torch.tensor([3, 0, 1])
SHORT: dict[str, tuple[nn.Module, Tensor]] = {
    "Unflatten": (nn.Unflatten(2, (2, 4)), X),
    "GLU": (nn.GLU(), X),
    "glu": (Call(lambda x: F.glu(x, 1)), IMAGE),
    "Threshold": (nn.Threshold(0.5, -2.0), X),
    "Threshold to 0": (nn.Threshold(0.5, 0.0), X),
    "Threshold that is a ReLU": (nn.Threshold(0.0, 0.0), X),
    "threshold that is a maximum": (Call(lambda x: F.threshold(x, 0.5, 0.5)), X),
    "Softmin": (nn.Softmin(-1), X),
    "softmin": (Call(lambda x: F.softmin(x, 1)), X),
    "narrow": (Call(lambda x: x.narrow(1, 1, 3)), X),
    "narrow from the end": (Call(lambda x: torch.narrow(x, -1, -3, 3)), X),
    "select": (Call(lambda x: x.select(1, -2)), X),
    **{f"rot90, {k}": (Call(lambda x, k=k: torch.rot90(x, k, (2, 3))), IMAGE) for k in (-1, 0, 1, 2, 3)},
    "a list of places": (Call(lambda x: x[:, [3, 0, 1]]), X),
    "a list, slices and None": (Call(lambda x: x[None, :, 1:, [0, 1, 5, -1]]), X),
    "a list behind an ellipsis": (Call(lambda x: x[..., [2, 1, 0]]), IMAGE),
    "a list before an ellipsis": (Call(lambda x: x[:, [2, 2], ..., 1:]), IMAGE),
    "a constant tensor of places": (Call(lambda x: x[:, PLACES]), X),
    "index_select": (Call(lambda x: torch.index_select(x, 2, PLACES)), X),
    **{
        f"Conv2d padded by {mode}": (nn.Conv2d(4, 3, 3, padding=(1, 2), padding_mode=mode), IMAGE)
        for mode in ("reflect", "replicate", "circular")
    },
    "Conv1d padded the same by reflection": (nn.Conv1d(5, 2, 4, padding="same", padding_mode="reflect"), X),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_names_are_steps_that_are_there(name: str) -> None:
    net, x = SHORT[name]
    with torch.no_grad():
        assert torch.allclose(run(trace(net), x), net(x), atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_public_numbers(mode: str) -> None:
    net, numbers = nn.EmbeddingBag(10, 4, mode=mode), torch.tensor([[1, 2, 3], [9, 9, 0]])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = net

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return x + self.bag(y)

    x = torch.randn(2, 4)
    steps = trace(Net(), example=(x, numbers))
    with torch.no_grad():
        assert torch.allclose(run(steps, x, numbers), x + net(numbers), atol=1e-6)


def test_the_place_in_the_users_code_is_named() -> None:
    with pytest.raises(ModelError) as caught:
        trace(Call(lambda x: x[x > 0]))
    (problem, *_) = caught.value.problems
    assert "test_written_out.py" in problem.what and "x[x > 0]" in problem.what
