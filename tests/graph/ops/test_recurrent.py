"""Recurrent layers as the steps of their time, functions that torch.fx would keep whole, constants of traced shapes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import hummingbird
from hummingbird.errors import ModelError
from hummingbird.graph import problems, run, trace
from hummingbird.graph.calls import shapes_for, unpacked
from hummingbird.graph.rowwise import rowwise
from hummingbird.graph.steps import Step
from tests.support.covering import every
from tests.support.operations import SMOOTH


class Recurrent(nn.Module):
    """A recurrent layer, first states that are none, all 0 or all 1, and all results with the batch in front."""

    def __init__(self, kind: type[nn.RNNBase], first: str, **options: Any) -> None:
        super().__init__()
        self.layer, self.first = kind(**options), first

    def forward(self, x: Tensor) -> list[Tensor]:
        layer = self.layer
        states = layer.num_layers * (1 + layer.bidirectional), x.shape[0]
        x = x if layer.batch_first else x.transpose(0, 1)
        if self.first == "none":
            out, last = layer(x)
        else:
            made = x.new_zeros if self.first == "zeros" else x.new_ones
            h, c = made(*states, layer.proj_size or layer.hidden_size), made(*states, layer.hidden_size)
            out, last = layer(x, (h, c) if isinstance(layer, nn.LSTM) else h)
        last = last if isinstance(layer, nn.LSTM) else (last,)
        return [out if layer.batch_first else out.transpose(0, 1), *(part.transpose(0, 1) for part in last)]


def drawn(rng: random.Random) -> tuple[Recurrent, Tensor]:
    """A random layer, and an example of it."""
    kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
    options: dict[str, Any] = {name: rng.random() < 0.5 for name in ("bidirectional", "batch_first", "bias")}
    sizes = {"input_size": rng.choice([1, 3]), "hidden_size": rng.choice([1, 4]), "num_layers": rng.choice([1, 2])}
    if kind is nn.LSTM and sizes["hidden_size"] > 1:
        options["proj_size"] = rng.choice([0, 2])
    if kind is nn.RNN:
        options["nonlinearity"] = rng.choice(["tanh", "relu"])
    net = Recurrent(kind, rng.choice(["none", "zeros", "ones"]), **options, **sizes, dropout=0.1 * sizes["num_layers"])
    return net.eval().double(), torch.randn(2, rng.choice([1, 3]), sizes["input_size"]).double()


def results(steps: list[Step], x: Tensor) -> Any:
    return unpacked(steps, run(steps, x), shapes_for(steps, x.shape), lambda part: part)


@pytest.mark.filterwarnings("ignore:dropout option")
@pytest.mark.parametrize("seed", every(8, range(8)))
def test_the_unrolled_layer_is_torch_s_for_batches_of_any_size(seed: int) -> None:
    torch.manual_seed(seed)
    net, example = drawn(random.Random(seed))
    steps, x = trace(net, example=example), torch.randn(3, *example.shape[1:]).double()
    net.requires_grad_(False)
    for got, wanted in zip(results(steps, x), net(x), strict=True):
        assert got.shape == wanted.shape and float((got - wanted).abs().max()) < 1e-9
    assert rowwise(steps, x.shape)


class Head(nn.Module):
    """A linear layer on the last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


@pytest.mark.parametrize(
    ("kind", "mode"), every(4, [(nn.GRU, "fast"), (nn.GRU, "exact"), (nn.LSTM, "fast"), (nn.LSTM, "exact")])
)
def test_recurrent_layers_are_right_in_private(kind: type[nn.RNNBase], mode: str) -> None:
    torch.manual_seed(2)
    net, x = Head(kind).eval(), torch.randn(2, 3, 3)
    # Each of three steps errs by a few splines, twice one for the gate that is tanh as a sigmoid; the head's rows of
    # four weights below 1/2 double that at most.
    got = hummingbird.simulate(net, mode=mode, seed=1, example=x)(x)
    assert float((got - net(x)).detach().abs().max()) < 3 * 8 * SMOOTH


def test_what_is_no_sequence_of_a_batch_is_refused() -> None:
    (problem,) = problems(Head(nn.LSTM))
    assert problem.name == "layer" and "LSTM" in problem.what and "convert_model(net, example=x)" in problem.hint
    assert "without a batch" in problems(nn.Sequential(nn.GRU(3, 4)), example=torch.ones(2, 3))[0].what
    hooked = Head(nn.GRU)
    hooked.layer.register_forward_hook(lambda layer, given, out: out)
    assert "hook" in problems(hooked, example=torch.ones(2, 3, 3))[0].what

    class Packed(Head):
        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.PackedSequence(x.flatten(0, 1), torch.tensor([2, 2]))
            return self.head(self.layer(packed)[1][0])

    assert "padded tensor" in problems(Packed(nn.GRU), example=torch.ones(2, 2, 3))[0].hint


def windows(x: Tensor, size: int) -> Tensor:
    """Each window's mean, with a mask that is 2 in the first column: a function that torch.fx is told to keep whole."""
    batch, side = x.shape[0], x.shape[2]
    x = F.pad(x, (0, -side % size, 0, -side % size))
    mask = x.new_zeros((x.shape[2], x.shape[3]))
    for column in range(x.shape[3]):
        mask[:, column] = 2.0 if column == 0 else 1.0
    parts = (x * mask).view(batch, -1, x.shape[2] // size, size, x.shape[3] // size, size)
    return parts.mean((3, 5))


fx.wrap("windows")


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return windows(x, 3)


def test_a_function_that_fx_keeps_whole_is_traced_into_on_an_example() -> None:
    x = torch.randn(2, 3, 8, 8)
    steps = trace(Windows(), example=x)
    assert {"pad", "mul", "reshape", "mean"} <= {step.op for step in steps}
    more = torch.randn(5, 3, 8, 8)
    assert torch.allclose(run(steps, more), Windows()(more), atol=1e-6)
    assert torch.fx.symbolic_trace(Windows()).graph.find_nodes(op="call_function", target=windows)  # it is kept again
    with pytest.raises(ModelError, match=r"windows is not in the vocabulary.*example=x"):
        trace(Windows())


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.new_full((3, 1), 0.5),
        lambda x: x.new_full(fill_value=0.5, size=(3, 1)),
        lambda x: torch.ones_like(x),
        lambda x: torch.full_like(x[:, :1], 0.5),
        lambda x: x.new_full((x.shape[0], 1, 4), 2) + x.new_ones(3 * x.shape[0], 4).view(x.shape),
    ],
)
def test_constants_of_a_traced_shape_are_constants(made: Any) -> None:
    class Filled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.5 + made(x)

    x = torch.randn(2, 3, 4)
    assert torch.allclose(run(trace(Filled(), example=x), x), Filled()(x))
