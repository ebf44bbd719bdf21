"""Public inputs: other values in every call, computed with in the clear, and never a wrong answer for another call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.convert import build
from hummingbird.errors import InputError, ModelError
from hummingbird.graph import calls, run, trace
from hummingbird.graph.example import is_private
from hummingbird.simulation.simulate import simulate
from tests.support.covering import every

torch.set_num_threads(1)


class Call(nn.Module):
    """A function as a net, beside layers that it may use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.table, self.fc, self.row = nn.Embedding(9, 4), nn.Linear(4, 3), nn.Parameter(torch.randn(1, 1, 4))
        self.register_buffer("places", torch.arange(12)[None])

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def attention(net: Any, x: Tensor, ids: Tensor) -> Tensor:
    """Places with number 0 are hidden, as a mask of truth values or of numbers."""
    shown = (ids != 0)[:, None, None, :]
    y = F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=shown.expand(-1, 1, x.shape[1], -1)
    )
    added = (1.0 - shown.float()) * torch.finfo(torch.float32).min
    return y[:, 0] + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=added)[:, 0]


def places(net: Any, x: Tensor, ids: Tensor) -> Tensor:
    """Tables by made numbers: of the batch's size, from a buffer, and by the caller's."""
    made = torch.zeros(x.shape[:2], dtype=torch.long) + net.places[:, : x.shape[1]]
    first = torch.arange(x.shape[0])[:, None] * 0 + ids
    return x + net.table(made % 9) + F.embedding(first, net.table.weight) + net.row.expand(x.shape[0], -1, -1)


FREE: dict[str, Callable[..., Any]] = {
    "rows": lambda net, x, ids: x + net.table(ids),
    "places": places,
    "attention": attention,
    "product": lambda net, x, ids: x * (ids > 3).to(x.dtype).unsqueeze(-1),
    "choice": lambda net, x, ids: torch.where((ids > 3)[..., None], x, net.row),
    "filled": lambda net, x, ids: x.masked_fill((ids == 2).unsqueeze(-1), -3.0),
    "one hot": lambda net, x, ids: x + F.one_hot(ids, 9).float() @ net.table.weight,
    "a layer": lambda net, x, ids: net.fc(ids[..., None].float() * torch.ones(4)) + net.fc(x),
    "a weight": lambda net, x, ids: x + ids[..., None].float() * net.row,
    "several": lambda net, x, ids: {"a": x, "b": torch.cat([ids, ids.flip(1)], 1).cumsum(1).float()},
}


def numbers(batch: int) -> Tensor:
    return torch.randint(0, 9, (batch, 5))


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value.values())


@pytest.mark.parametrize("name", every(2, [*FREE]))
def test_public_inputs_differ_from_call_to_call(name: str) -> None:
    net = Call(FREE[name]).eval()
    example = (torch.randn(2, 5, 4), numbers(2))
    twin = simulate(net, example=example)
    for batch in (1, 3):
        x, ids = torch.randn(batch, 5, 4), numbers(batch)
        ids[:, 0] = 4  # a mask that hides a whole row is NaN in torch
        with torch.no_grad():
            for got, wanted in zip(flat(twin(x, ids)), flat(net(x, ids)), strict=True):
                # Weights of a softmax err by 2^-7 of themselves; a row of a table by 2^-17, and times a number below 9.
                bound = 2.0**-7 * float(wanted.abs().max()) if name == "attention" else 2.0**-10
                assert got.shape == wanted.shape and float((got - wanted).abs().max()) < bound
        got = flat(twin(x, ids))  # the net itself, with gradients
        assert all(torch.allclose(a, b, atol=0.1) for a, b in zip(got, flat(net(x, ids)), strict=True))


def test_random_numbers_of_the_batchs_size_are_refused() -> None:
    with pytest.raises(ModelError, match="random"):
        trace(Call(lambda net, x: x + torch.rand(x.shape[0], 3)).eval(), example=torch.ones(2, 3))


def test_no_weight_is_computed_with_in_public() -> None:
    """Weights may be one party's: what is computed of public values alone reads none of them."""
    for function in FREE.values():
        steps = trace(Call(function).eval(), example=(torch.randn(2, 5, 4), numbers(2)))
        made = {number for number, step in enumerate(steps) if step.op in ("public", "public_constant", "size", "int")}
        for number, step in enumerate(steps):
            if step.op == "public_call":
                assert all(ref.index in made for ref in step.inputs), step
                made.add(number)
        floats = [step for step in steps if step.op.startswith("public") and "float" in str(step.attrs.get("dtype"))]
        assert not floats


def test_the_batch_is_free_where_a_public_input_has_its_size_by_chance() -> None:
    net = Call(lambda net, x, mask: x * mask).eval()
    steps = trace(net, example=(torch.randn(2, 5, 2), torch.tensor([1, 0])))
    x, mask = torch.randn(3, 5, 2), torch.tensor([0, 1])
    assert torch.equal(run(steps, x, mask), x * mask)


def writes(net: Any, x: Tensor, ids: Tensor) -> Tensor:
    view, ids = ids[:, :2], ids + 0
    other = ids[:, :2]
    ids += 1
    return x[:, :2] + net.table((other + view).clamp(0, 8))


FIXED: dict[str, Callable[..., Any]] = {
    "a branch": lambda net, x, ids: x + net.table(ids) if ids.sum() > 3 else -x,
    "a number": lambda net, x, ids: x * int(ids.max()),
    "a function of no known kind": lambda net, x, ids: x + torch.bincount(ids.flatten(), minlength=9)[:4].float(),
    "in place": writes,
}


@pytest.mark.parametrize("name", FIXED)
def test_public_inputs_whose_values_are_asked_for_are_those_of_the_example(name: str) -> None:
    net, x, ids = Call(FIXED[name]).eval(), torch.randn(2, 5, 4), numbers(2) + torch.tensor([1, 0, 0, 0, 0])
    ids = ids.clamp(max=8)
    steps = trace(net, example=(x, ids))
    given = calls.inputs(steps, (x, ids), {}, is_private)
    with torch.no_grad():
        assert torch.allclose(run(steps, *given.private), net(x, ids), atol=1e-5)
    with pytest.raises(InputError, match="the same public arguments") as caught:
        calls.inputs(steps, (x, (ids + 1) % 9), {}, is_private)
    assert "convert it again" in caught.value.hint


def test_calls_unlike_the_examples_are_refused() -> None:
    net = Call(FREE["rows"]).eval()
    x, ids = torch.randn(2, 5, 4), numbers(2)
    twin = simulate(net, example=(x, ids))
    for wrong, words in {
        "type": (ids.int(), r"'args' is int32 of shape \(2, 5\), expected int64 of shape \(batch, 5\)"),
        "shape": (ids[:, :3], r"'args' is int64 of shape \(2, 3\)"),
        "batch": (numbers(3), "'args' is a batch of 3, and 'args' one of 2"),
        "private": (ids.float(), "in the positions of the example"),
        "row": (ids + 9, "row [0-9]* of a table of 9 rows"),
    }.values():
        with torch.no_grad(), pytest.raises(InputError, match=words):
            twin(x, wrong)
    with pytest.raises(InputError, match="takes 2 input") as caught:
        run(trace(net, example=(x, ids)), x)
    assert "1 of them are public" in caught.value.hint


def test_private_numbers_of_rows_are_refused_with_a_hint() -> None:
    for function in (
        lambda net, x: net.table(x.argmax(-1)),
        lambda net, x: F.embedding(x.argmax(-1), net.table.weight),
    ):
        with pytest.raises(ModelError, match="hummingbird.lookup gives a net its rows"):
            trace(Call(function).eval(), example=torch.randn(2, 5, 9))
    one_hot = Call(lambda net, x: x @ net.table.weight).eval()  # private one-hot rows are a product
    x = F.one_hot(numbers(3), 9).float()
    with torch.no_grad():
        assert float((simulate(one_hot, mode="exact")(x) - one_hot(x)).abs().max()) < 2.0**-15


def test_a_net_of_public_inputs_alone() -> None:
    net = Call(lambda net, ids: net.fc(net.table(ids)).relu().mean(1)).eval()
    private = build(net, example=(numbers(2),))
    assert private.rowwise((2, 0)) and sum(step.cost.bits for step in private.costs((2, 0), 2)) > 0
    twin, ids = simulate(net, mode="exact", example=(numbers(2),)), numbers(3)
    with torch.no_grad():
        assert float((twin(ids) - net(ids)).abs().max()) < 2.0**-14
