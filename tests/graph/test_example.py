"""Nets traced with an example: their shapes are known, their batch is free where it can be, and calls are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError
from hummingbird.graph import calls, problems, run, trace
from hummingbird.graph.example import Running, is_private
from hummingbird.simulation.simulate import simulate
from models import get_model
from models.bert import bert_tiny

torch.set_num_threads(1)
torch.manual_seed(0)


class Shapes(nn.Module):
    """Asks for shapes in every way, and walks over sizes; a token is repeated for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(16, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 4 and x.shape[1] == 3 and isinstance(x, torch.Tensor)
        batch, _, height, width = x.shape
        if height != width or x.numel() < batch:
            raise ValueError("expected square images")
        y = self.conv(x)
        for _ in range(x.size(1) - 1):
            y = F.relu(y)
        rows = y.float().flatten(2)
        assert len(rows[0]) == 4 and rows.shape[-1] == self.fc.in_features
        assert (batch, 4) == tuple(rows.shape[:2]) and rows.shape[0] > 0
        y = torch.cat([self.token.expand(batch, -1, -1), *rows.chunk(2, 1)], 1)
        return self.fc(y).view(batch, 5 * y.shape[1])


def test_a_net_that_asks_for_shapes_is_the_same_at_every_batch_size() -> None:
    made = Call(lambda x: x + torch.ones(x.size(0), 1) * torch.arange(x.size(0))[:, None])
    assert torch.equal(run(trace(made, example=torch.ones(2, 3)), torch.ones(4, 3)), made(torch.ones(4, 3)))
    net = Shapes().eval()
    assert any("convert_model(net, example=x)" in problem.hint for problem in problems(net))
    steps = trace(net, example=torch.randn(1, 3, 4, 4))
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 4, 4)
        assert torch.equal(run(steps, x), net(x))
    with pytest.raises(InputError, match=r"expected an input of shape \(batch, 3, 4, 4\), got \(2, 3, 6, 6\)"):
        run(steps, torch.randn(2, 3, 6, 6))


FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "a branch": lambda x: x.relu() if x.shape[0] == 2 else -x,
    "a branch whose error is caught": lambda x: caught(x),
    "a loop": lambda x: torch.stack([x[i] for i in range(x.shape[0])]) * x.shape[0],
    "a hidden loop": lambda x: x + sum(x[i : i + 1] for i in range(int(x.shape[0]))),
    "a constant repeated": lambda x: x * torch.tensor([[0.5, 2.0, 1.0]]).repeat(x.shape[0], 1),
    "a function of no known kind": lambda x: x + torch.linspace(0, 1, x.size(0))[:, None],
    "len": lambda x: x * (1.0 if len(x) > 1 else 3.0),
    "its root": lambda x: x * x.shape[0] ** 0.5,
    "rows": lambda x: torch.cat([row.unsqueeze(0) for row in x]),
}


def caught(x: Tensor) -> Tensor:
    """A branch on the batch's size, behind a handler."""
    try:
        return x * 2 if x.shape[0] > 1 else x
    except Exception:
        return x * 3


class Call(nn.Module):
    """A function as a net."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("function", FIXED.values(), ids=FIXED.keys())
def test_a_net_that_uses_the_batchs_size_runs_with_the_examples_alone(function: Callable[[Tensor], Tensor]) -> None:
    net, x = Call(function), torch.randn(2, 3)
    steps = trace(net, example=torch.zeros(2, 3))
    assert torch.allclose(run(steps, x), net(x))
    with pytest.raises(InputError, match=r"expected an input of shape \(2, 3\), got \(3, 3\)"):
        run(steps, torch.randn(3, 3))


def test_a_second_trace_computes_only_what_differs_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    value = Running._value
    monkeypatch.setattr(Running, "_value", lambda self, node, run: computed.append(node.name) or value(self, node, run))
    sides = iter(range(100))
    for function, adds, muls in [(lambda x: (x + 1) * 2, 2, 2), (lambda x: (x + 1) * (2 + next(sides)), 3, 5)]:
        computed.clear()
        steps = trace(Call(function), example=torch.zeros(2, 3))
        assert (computed.count("add"), computed.count("mul")) == (adds, muls)
        assert (steps[0].attrs["shape"][0] is None) == (muls == 2)  # the third trace is for the example's batch alone


VALUES: dict[str, Callable[[Tensor], Any]] = {
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a number": lambda x: x * x.max().item(),
    "a list": lambda x: x * x[0].tolist()[0],
    "a test of all": lambda x: x if torch.equal(x, x) else -x,
    "nonzero": lambda x: x[x > 0],
}


@pytest.mark.parametrize("function", VALUES.values(), ids=VALUES.keys())
def test_control_flow_on_private_values_is_refused(function: Callable[[Tensor], Any]) -> None:
    found = problems(Call(function), example=torch.ones(2, 3))
    assert found and found[0].hint


@dataclass
class Output:
    """As a Hugging Face net returns it."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


class Several(nn.Module):
    """Two private inputs, a public mask and a flag; a dataclass of results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None, double: bool = False) -> Output:
        if mask is not None:
            x = x * 0.5 + mask
        if double:
            y = y * 2
        joined = torch.cat([x, y.flatten(1)], 1)
        return Output(self.fc(joined), (joined, y.relu()))


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_several_inputs_and_results_keep_their_structure(mode: str) -> None:
    net, x, y = Several().eval(), torch.randn(3, 2), torch.randn(3, 2, 2)
    mask = torch.tensor([0, 1])
    example = {"x": x[:1], "y": y[:1], "mask": mask, "double": True}
    twin = simulate(net, mode=mode, example=example)
    with torch.no_grad():
        got, expected = twin(x=x, y=y, mask=mask, double=True), net(x, y, mask, True)
    assert got.loss is None and list(got) == ["logits", "hidden", "loss"] and isinstance(got.hidden, tuple)
    for a, b in zip([got.logits, *got["hidden"]], [expected.logits, *expected.hidden], strict=True):
        assert a.shape == b.shape and float((a - b).abs().max()) < 2.0**-12
    for wrong, words in {
        "public": ({"x": x, "y": y, "mask": mask, "double": False}, "same public arguments"),
        "type": ({"x": x, "y": y, "mask": mask.bool(), "double": True}, "'mask' is bool of shape"),
        "missing": ({"x": x, "mask": mask, "double": True}, "same public arguments"),
        "batch": ({"x": x[:2], "y": y, "mask": mask, "double": True}, "'y' is a batch of 3, and 'x' one of 2"),
        "shape": ({"x": x, "y": y[:, :1], "mask": mask, "double": True}, "'y' has shape"),
    }.values():
        with pytest.raises(InputError, match=words):
            twin(**wrong)


def test_structures_without_an_example() -> None:
    net = Call(lambda x: {"a": x.relu(), "b": [x.sum(1), None, "name"]})
    x = torch.randn(2, 3)
    steps = trace(net)
    out = calls.unpacked(steps, run(steps, x), calls.shapes_for(steps, x.shape), lambda part: part)
    assert torch.equal(out["a"], x.relu()) and torch.equal(out["b"][0], x.sum(1)) and out["b"][1:] == [None, "name"]
    assert calls.inputs(steps, (x,), {}, is_private).private[0] is x
    with pytest.raises(InputError, match="one input, got 2"):
        calls.inputs(steps, (x, x), {}, is_private)
    with pytest.raises(InputError, match="whose first dimension is the batch"):
        run(trace(Call(lambda x: (x, x.sum()))), x)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (3, "no tensor in int"),
        ((torch.ones(2, 2), torch.ones(2, 2), None, True, 3), "too many"),
        ({"x": torch.ones(2, 2), "z": 3}, "missing a required argument"),
        ((torch.ones(2, 2), torch.ones(3, 2, 2)), r"'y' has shape \(3, 2, 2\)"),
    ],
)
def test_an_example_that_does_not_fit_is_refused(example: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        trace(Several(), example=example)
    with pytest.raises(ModelError, match="reduction dim|cannot be multiplied"):
        trace(Several(), example=(torch.ones(2, 9), torch.ones(2, 2, 2)))


class Places(nn.Module):
    """A parameter's shape, type and rows, as forward() may ask for them of a tensor that everybody has the shape of."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.fc = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        p = self.places
        assert p.dim() == p.ndim == len(p.shape) == 2 and p.dtype == torch.float32 and p.is_floating_point()
        assert torch.numel(p) == p.numel() == len(p) * p.size(1) and p.stride() == (3, 1) and p.requires_grad
        for row in p:
            x = x + row
        return self.fc(F.relu(x))[:, len(p) // 2, : p.shape[-1] - 1]


@pytest.mark.parametrize("secret", [False, True])
def test_facts_about_parameters_are_no_values(secret: bool) -> None:
    net, x = Places().eval(), torch.randn(3, 4, 3)
    for example in (None, x):
        assert problems(net, example=example, secret=secret) == []
        assert torch.allclose(run(trace(net, example=example, secret=secret), x), net(x), atol=1e-6)

    class Branch(Places):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if self.places.sum() > 0 else x

    class Chosen(Places):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x)[:, int(self.places[0, 0])]

    for refused in (Branch(), Chosen()):
        assert problems(refused, secret=secret) and problems(refused, example=x, secret=secret)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        pytest.param(bert_tiny, (1, 32, 128), id="bert"),
        pytest.param(lambda: get_model("vit", 10), (1, 3, 32, 32), id="vit", marks=pytest.mark.slow),
    ],
)
def test_an_example_has_the_sizes_that_a_net_asks_for(net: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Without one the error says so: `q.shape[-1] ** -0.5` is a number once the sizes are known."""
    made = net().eval()
    found = problems(made)
    assert found and all("give an example of the inputs" in problem.hint for problem in found)
    assert not problems(made, example=torch.rand(shape))
