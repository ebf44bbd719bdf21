"""Stacked recurrent layers taken step by step in time: the same values, in as many rounds as T + L - 1 steps take."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.graph import by_time, run, trace
from tests.support.covering import every


class Stacked(nn.Module):
    """A recurrent module of several layers, which returns all states of the last layer."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, **options: Any) -> None:
        super().__init__()
        self.layer = kind(3, 4, layers, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


class Apart(nn.Module):
    """Two recurrent modules with dropout between them, the second with time in front, of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout = nn.GRU(3, 5, batch_first=True), nn.Dropout(0.5)
        self.second = nn.LSTM(5, 4, proj_size=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.dropout(self.first(x)[0]).transpose(0, 1))[0]
        return out.transpose(0, 1)


class ByHand(nn.Module):
    """A cell in a loop, and a linear layer on the stack of its states along `dim`; every time step is read."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell, self.linear, self.dim = nn.GRUCell(3, 4), nn.Linear(4, 2), dim

    def forward(self, x: Tensor) -> Tensor:
        state, found = None, []
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
            found.append(state)
        parts = self.linear(torch.stack(found, self.dim)).unbind(self.dim)
        return parts[0] * parts[1] + parts[-1] - parts[2]


class Rows(ByHand):
    """States without a time: a stack of sums along the batch, whose product adds up time steps."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.cell(x[:, 0])
        g = self.cell(x[:, 1], h)
        parts = self.linear(torch.stack([h.sum(1), g.sum(1), h[:, 0], g[:, 0]], 1)).unbind(1)
        return parts[0] + parts[1]


NETS = {
    **{kind.__name__: lambda kind=kind: Stacked(kind, 3) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    "projection": lambda: Stacked(nn.LSTM, 2, proj_size=2, dropout=0.5),
    "modules": Apart,
    "cell": lambda: ByHand(1),
}


def traced(net: nn.Module, length: int = 5) -> tuple[Tensor, list[Any], list[Any]]:
    x = torch.randn(3, length, 3).double()
    before = trace(net.eval().double().requires_grad_(False), example=x)
    return x, before, by_time(before)


@pytest.mark.parametrize("name", every(2, [*NETS]))
def test_values_stay_and_no_product_waits_for_the_last_step(name: str) -> None:
    torch.manual_seed(1)
    x, before, after = traced(NETS[name]())
    assert torch.allclose(run(after, x), run(before, x), rtol=0, atol=1e-12)
    stacks = {number for number, step in enumerate(after) if step.op in ("stack", "transpose")}
    assert not any(step.op == "linear" and step.inputs[0].index in stacks for step in after)
    assert len({step.name for step in after}) == len(after)


@pytest.mark.parametrize(
    "net",
    [
        lambda: Stacked(nn.LSTM, 2, bidirectional=True),
        lambda: nn.Sequential(nn.LSTM(3, 4, batch_first=True, bidirectional=True)),
        lambda: ByHand(-2),
        lambda: Rows(1),
    ],
)
def test_other_products_stay_as_they_are(net: Any) -> None:
    """Layers in both directions wait for the last step; and a dimension that is counted from the end is not known."""
    torch.manual_seed(1)
    net = net()
    x = torch.randn(3, 5, 3).double()
    net = net if isinstance(net, (Stacked, ByHand)) else Only(net[0])
    before = trace(net.eval().double().requires_grad_(False), example=x)
    assert [str(step) for step in by_time(before)] == [str(step) for step in before]


class Only(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


class Independent(nn.Module):
    """A stack of values that do not depend on each other: one product for all is better."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.linear(torch.stack([torch.tanh(x[:, 0]), torch.tanh(x[:, 1])], 1)).unbind(1)
        return a + b


def test_a_stack_of_values_side_by_side_keeps_its_product() -> None:
    _, before, after = traced(Independent())
    assert [str(step) for step in after] == [str(step) for step in before]


# Rounds ---------------------------------------------------------------------------------------------------------------


def rounds(net: nn.Module, length: int, weights: Any = "public", **options: Any) -> int:
    x = torch.zeros(1, length, 3)
    private = build(net.eval(), BitWindow(20, 12), weights=weights, example=x, **options)
    return sum(step.cost.rounds for step in private.costs((1, length, 3), 2))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "a_step"), every(2, [(nn.RNN, 1), (nn.GRU, 4), (nn.LSTM, 4)]))
@pytest.mark.parametrize("weights", every(2, ["public", 0]))
def test_a_layer_more_costs_one_step_more(kind: Any, a_step: int, weights: Any) -> None:
    found = {layers: rounds(Stacked(kind, layers), 6, weights) for layers in (1, 2, 3)}
    longer = rounds(Stacked(kind, 3), 7, weights)
    a_step = longer - found[3] if weights == 0 else a_step
    assert longer - found[3] == a_step
    assert found[3] - found[2] == found[2] - found[1] == a_step, found


def test_an_onnx_file_of_two_layers_is_taken_by_time(tmp_path: Path) -> None:
    found = []
    for length in (6, 7):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Stacked(nn.LSTM, 2).eval(), (torch.zeros(1, length, 3),), tmp_path / "net.onnx", dynamo=False
            )
        found.append(rounds(hummingbird.load_program(tmp_path / "net.onnx"), length))
    assert found[1] - found[0] == 4, found
