"""Norms whose means the weights before them take: the same function, and where nothing may change."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from hummingbird import graph

WIDTH = 6


class Net(nn.Module):
    """Blocks of sums and norms as drawn, with and without weights, constants and second readers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.first = nn.Linear(5, WIDTH) if draw.random() < 0.7 else None
        self.places = nn.Parameter(torch.randn(3, WIDTH)) if draw.random() < 0.5 else None
        self.norms, self.layers = nn.ModuleList(), nn.ModuleList()
        self.how = []
        for _ in range(draw.randint(1, 4)):
            norm = nn.LayerNorm(WIDTH, elementwise_affine=draw.random() < 0.8)
            for tensor in norm.parameters():
                nn.init.normal_(tensor)
            self.norms.append(norm)
            self.layers.append(nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, WIDTH, draw.random() < 0.7)))
            self.how.append((draw.choice(("post", "pre", "alone")), draw.choice((1, -1)), draw.random() < 0.15))
        self.last = draw.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first is None else self.first(x[..., :5])
        x = x if self.places is None else x + self.places
        read = x[..., :1] * 0
        for norm, layer, (how, sign, twice) in zip(self.norms, self.layers, self.how, strict=True):
            if how == "post":
                y = x + layer(x) if sign > 0 else x - layer(x)
                x = norm(y)
            elif how == "pre":
                y = x = x + layer(norm(x))
            else:
                y = x = norm(layer(x))
            read = read + torch.relu(y[..., :1]) if twice else read
        return (x if self.last else torch.relu(x)) + read


def norms(steps: list[graph.Step]) -> list[bool]:
    """Whether each norm takes a mean."""
    return [step.attrs["center"] for step in steps if step.op == "norm"]


@pytest.mark.slow
def test_random_nets_are_the_same_function() -> None:
    taken = []
    for seed in range(150):
        net, x = Net(seed).double().eval(), torch.randn(4, 3, WIDTH, dtype=torch.float64)
        steps = graph.trace(net)
        found = graph.centered(steps)
        assert [step.name for step in found] == [step.name for step in steps]
        with torch.no_grad():
            values = graph.run_all(found, x)
            assert torch.allclose(values[-1], net(x), atol=1e-9), seed
        for step in found:
            if step.attrs.get("centered"):
                assert float(values[step.inputs[0].index].mean(-1).abs().max()) < 1e-9, seed
        taken += norms(found)
    assert 100 < taken.count(False) < len(taken) - 100  # both kinds come up


class Block(nn.Module):
    """As BERT's: a sum of a norm and of a linear layer, normed; `other` reads something besides."""

    def __init__(self, other: str = "") -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc, self.out, self.other = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH), other
        for tensor in (*self.a.parameters(), *self.b.parameters()):
            nn.init.normal_(tensor)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.out(torch.relu(self.fc(x)))
        if self.other == "two rows":
            return self.b((x + y).flatten(1, 2).unflatten(1, (-1, WIDTH)))
        out = self.b(x + y)
        if self.other == "sum":
            return out + (x + y)
        if self.other == "layer":
            return out + torch.relu(y)
        return out + torch.relu(x) if self.other == "norm" else out


@pytest.mark.parametrize("other", ["", "sum", "layer", "norm", "two rows"])
def test_a_second_reader_leaves_the_mean_to_the_norm(other: str) -> None:
    torch.manual_seed(0)
    net, x = Block(other).eval(), torch.randn(4, 3, WIDTH)
    steps = graph.trace(net)
    found = graph.centered(steps)
    assert norms(found) == [True, bool(other)]
    assert [step.op for step in found].count("scale_last") == [step.op for step in steps].count("scale_last") - (
        not other
    )
    with torch.no_grad():
        assert torch.allclose(graph.run(found, x), net(x), atol=1e-5)


def test_norms_of_several_dimensions_and_of_no_mean_stay() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(4, WIDTH), nn.LayerNorm((3, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(x))

    assert norms(graph.centered(graph.trace(Several().eval()))) == [True]
    plain = nn.Sequential(nn.LayerNorm(WIDTH)).eval()
    assert norms(graph.centered(graph.trace(plain))) == [True]


def test_weights_of_equal_rows_leave_nothing() -> None:
    """Rounding is no weight: it would be too small for the fixed point, and a norm would make it large."""
    net = nn.Sequential(nn.Linear(4, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)).eval()
    nn.init.constant_(net[0].weight, 0.1)
    found = graph.centered(graph.trace(net))
    assert norms(found) == [False] and not found[1].attrs["weight"].any()
