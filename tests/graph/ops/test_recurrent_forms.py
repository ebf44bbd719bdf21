"""Cells by hand, packed sequences, and the plans of recurrent nets: their rounds, their weights and their bounds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.convert import build
from hummingbird.errors import InputError
from hummingbird.graph import problems, run, trace
from hummingbird.graph.calls import shapes_for, unpacked
from hummingbird.graph.ops.recurrent import ERROR, gru_grows, lstm_grows, most_after
from hummingbird.graph.steps import Step
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.layers.products import Multiply
from tests.support.covering import every
from tests.support.operations import SMOOTH

CELLS = nn.LSTMCell, nn.GRUCell, nn.RNNCell
LAYERS = nn.LSTM, nn.GRU, nn.RNN


class ByHand(nn.Module):
    """A cell in a loop over time, and its first state: none, zeros or ones made in forward(), or a learned one."""

    def __init__(self, kind: type[nn.RNNCellBase], first: str, **options: Any) -> None:
        super().__init__()
        self.cell, self.first = kind(3, 4, **options), first
        self.learned = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        first: Any = {
            "none": lambda: None,
            "zeros": lambda: torch.zeros(batch, 4, dtype=x.dtype),
            "new": lambda: x.new_zeros(batch, 4),
            "ones": lambda: x.new_ones(batch, 4),
            "learned": lambda: self.learned.expand(batch, 4),
        }[self.first]()
        lstm = isinstance(self.cell, nn.LSTMCell)
        state: Any = (first, first) if lstm and first is not None else first
        found = []
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
            found.append(state[0] if lstm else state)
        return torch.stack(found, 1)


class Sequences(nn.Module):
    """A recurrent layer on packed sequences, which returns everything, with the batch in front."""

    def __init__(self, kind: type[nn.RNNBase], first: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.first = kind(3, 4, **options), first

    def forward(self, x: Tensor, lengths: Tensor) -> list[Tensor]:
        layer, front = self.layer, self.layer.batch_first
        count = layer.num_layers * (1 + layer.bidirectional)
        h = x.new_ones(count, x.shape[0], layer.proj_size or 4)
        given: Any = (h, x.new_ones(count, x.shape[0], 4)) if isinstance(layer, nn.LSTM) else h
        steps = x.shape[1]
        packed = pack_padded_sequence(x if front else x.transpose(0, 1), lengths, front, enforce_sorted=False)
        out, last = layer(packed, given) if self.first else layer(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=steps)
        return [padded, *(part.transpose(0, 1) for part in (last if isinstance(layer, nn.LSTM) else (last,)))]


def results(steps: list[Step], x: Tensor, *public: Tensor) -> Any:
    return unpacked(steps, run(steps, x, *public), shapes_for(steps, x.shape), lambda part: part)


def compare(got: Any, wanted: Any) -> None:
    for mine, torchs in zip(got, wanted, strict=True):
        assert mine.shape == torchs.shape and float((mine - torchs).abs().max()) < 1e-9


FIRST = "none", "zeros", "new", "ones", "learned"


@pytest.mark.parametrize(("first", "kind"), every(4, [*itertools.product(FIRST, CELLS)]))
def test_a_cell_by_hand_is_torch_s(kind: type[nn.RNNCellBase], first: str) -> None:
    torch.manual_seed(1)
    options: dict[str, Any] = {"bias": first != "new"}
    if kind is nn.RNNCell and first == "ones":
        options["nonlinearity"] = "relu"
    net = ByHand(kind, first, **options).eval().double().requires_grad_(False)
    steps = trace(net, example=torch.randn(2, 4, 3).double())
    x = torch.randn(5, 4, 3).double()
    compare([run(steps, x)], [net(x)])


class Written(nn.Module):
    """A first state into which the net writes after it was made, by a view or not; `kind` says how it is made."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.cell, self.linear = kind, nn.LSTMCell(3, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x[:, 0])
        h = torch.zeros_like(y) if self.kind == "like" else x.new_zeros(x.shape[0], 4)
        if self.kind == "cell":
            h, c = self.cell(x[:, 0])
            c.mul_(99)
        else:
            c = h
            (h.view(-1) if self.kind == "view" else h).add_(y.view(-1) if self.kind == "view" else y)
        state: Tensor = self.cell(x[:, 1], (h, c))[1]
        return state


@pytest.mark.parametrize("kind", ["new", "like", "cell"])
@pytest.mark.parametrize("mode", every(1, [torch.no_grad, torch.inference_mode]))
def test_a_first_state_that_is_written_into_is_not_what_it_was(kind: str, mode: Any) -> None:
    net = Written(kind).eval().double().requires_grad_(False)
    x = torch.randn(2, 2, 3).double()
    with mode():
        steps = trace(net, example=x)
    compare([run(steps, x)], [net(x)])
    assert all("most" not in step.attrs for step in steps[-6:]), "a bound of the old state"


def test_a_write_by_a_view_is_not_lost() -> None:
    assert problems(Written("view").eval(), example=torch.randn(2, 2, 3))


@pytest.mark.parametrize("seed", every(8, range(12)))
def test_packed_sequences_are_torch_s(seed: int) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    options: dict[str, Any] = {name: rng.random() < 0.5 for name in ("batch_first", "bias")}
    kind, options["bidirectional"], first = LAYERS[seed % 3], seed % 2 == 0, seed % 4 == 0
    options |= {"proj_size": 2} if kind is nn.LSTM and rng.random() < 0.5 else {}
    net = Sequences(kind, first, num_layers=rng.choice([1, 2]), **options)
    net = net.eval().double().requires_grad_(False)
    size = rng.choice([1, 4, 5])
    steps = trace(net, example=(torch.randn(2, size, 3).double(), torch.tensor([size, 1])))
    x, lengths = torch.randn(4, size, 3).double(), torch.randint(1, size + 1, (4,))
    compare(results(steps, x, lengths), net(x, lengths))


class Fixed(Sequences):
    """Lengths that are written in the code."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        out, _ = self.layer(pack_padded_sequence(x, [3, 2], batch_first=True))
        return pad_packed_sequence(out, batch_first=True)[0]


def test_lengths_in_the_code_cut_the_result_to_the_longest() -> None:
    net = Fixed(nn.GRU, batch_first=True).eval().double().requires_grad_(False)
    x = torch.randn(2, 5, 3).double()
    compare([run(trace(net, example=x), x)], [net(x)])
    assert net(x).shape == (2, 3, 4)


# In private -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", every(3, LAYERS[::-1]))
def test_packed_sequences_are_right_in_private(kind: type[nn.RNNBase]) -> None:
    """On shares, at all parties, with lengths of each call. Each of three steps errs as in test_recurrent.py."""
    torch.manual_seed(2)
    net = Sequences(kind, bidirectional=True, batch_first=True).eval().requires_grad_(False)
    example = torch.randn(2, 3, 3), torch.tensor([3, 1])
    private = hummingbird.simulate(net, mode="exact", seed=1, example=example)
    x, lengths = torch.randn(3, 3, 3), torch.tensor([1, 3, 2])
    for got, wanted in zip(private(x, lengths), net(x, lengths), strict=True):
        assert float((got - wanted).abs().max()) < 3 * 8 * SMOOTH


@pytest.mark.slow
def test_the_state_keeps_its_bound_where_all_gates_are_open() -> None:
    """|c| = t after t steps, the most that there is, and all errors of the gates add up."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(1, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            last: Tensor = self.layer(x)[1][1]
            return last.transpose(0, 1)

    steps = 20
    net = Counting().eval().requires_grad_(False)
    net.layer.bias_ih_l0.fill_(30.0)
    x = torch.randn(1, steps, 1)
    got = hummingbird.simulate(net, mode="exact", seed=1, example=x)(x)
    assert float(net(x).min()) > steps - 0.01
    # A step errs by f's error times |c| < 20, and those of i and of g, which is twice a sigmoid's.
    assert float((got - net(x)).abs().max()) < steps * (steps + 4) * SMOOTH


def test_bounds_of_states_cover_what_gates_with_errors_can_make() -> None:
    gate = 1 + ERROR
    c = h = 0.0
    for step in range(1, 200):
        c, h = gate * c + gate * gate, gate * max(h, gate) + ERROR * gate
        assert c <= (most_after(step, lstm_grows, ()) or 0) * (1 + 1e-12) < 1.6 * step + 1
        assert h <= (most_after(step, gru_grows, ()) or 0)
    assert most_after(9, None, ()) is None and most_after(10**9, lstm_grows, ()) > 2.0**20


class Layer(nn.Module):
    """A recurrent layer without a first state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


NETS = [lambda kind=kind: Layer(kind) for kind in LAYERS] + [lambda kind=kind: ByHand(kind, "zeros") for kind in CELLS]


@pytest.mark.parametrize(("make", "rounds"), every(3, [*zip(NETS, (4, 4, 1) * 2, strict=True)]))
def test_rounds_of_a_step(make: Any, rounds: int) -> None:
    """A step more costs as many rounds, also where a bound that grew a bit with every step would have ended."""
    totals, net = [], make().eval()
    for steps in (13, 14):
        x = torch.zeros(2, steps, 3)
        private = build(net, BitWindow(20, 12), example=x)
        totals.append(sum(step.cost.rounds for step in private.costs((2, steps, 3), 2)))
        layers = [s.layer for s in private.plan if isinstance(s.layer, Linear) and s.layer.op == "matmul"]
        # All steps share their weights; those of the first and the last steps may be rounded otherwise.
        assert len(layers) > steps - 2 and len({id(layer.weight) for layer in layers}) <= 4
    assert totals[1] - totals[0] == rounds, totals


def test_a_state_is_opened_in_the_bits_that_its_bound_or_its_window_takes() -> None:
    """16 bits of fraction, a bound's bits, and `held`'s 3: c < 2^3 within [20:..), and < 2^4 after 14 steps."""
    for k, bits in ((20, 16 + 3 + 3), (30, 16 + 4 + 3)):
        private = build(Layer(nn.LSTM).eval(), BitWindow(k, 12), example=torch.zeros(2, 14, 3))
        opened = [layer._opened(layer._ring) for s in private.plan if isinstance(layer := s.layer, Multiply)]
        assert opened[-2][1][1] == bits, k  # the last step's product with the state; behind it is o tanh(c)


@pytest.mark.slow
def test_what_packing_is_refused_and_how() -> None:
    x, lengths = torch.randn(2, 3, 3), torch.tensor([3, 1])
    net = Sequences(nn.GRU, batch_first=True).eval()
    assert "fewer lengths" in problems(net, example=(x, lengths[:1]))[0].what
    assert "private lengths" in problems(net, example=(x, lengths.float()))[0].what

    class Longest(Sequences):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
            out, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
            return pad_packed_sequence(out, batch_first=True, padding_value=self.padding)[0]

        padding = 0.0

    longest = Longest(nn.GRU, batch_first=True).eval()
    ops = {step.op for step in trace(longest, example=(x, lengths))}
    assert "public" not in ops, "without total_length the example's lengths are part of the net"
    longest.padding = 1.0
    assert "padding_value" in problems(longest, example=(x, lengths))[0].what
    for wrong in ([3, 0], [4, 1]):
        with pytest.raises(InputError, match="a sequence of length"):
            run(trace(net, example=(x, lengths)), x, torch.tensor(wrong))
    assert pack_padded_sequence.__name__ == "pack_padded_sequence", "torch's own function is back"
    flat = problems(nn.Sequential(nn.GRUCell(3, 4)), example=torch.ones(3))
    assert flat and flat[0].hint


class Cut(Sequences):
    """A packed sequence, padded to another number of time steps than it had."""

    def __init__(self, total: int, lengths: list[int] | None = None, **options: Any) -> None:
        super().__init__(nn.GRU, **options)
        self.total, self.lengths = total, lengths

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        given, front = lengths if self.lengths is None else self.lengths, self.layer.batch_first
        out, _ = self.layer(pack_padded_sequence(x if front else x.transpose(0, 1), given, front, enforce_sorted=False))
        return pad_packed_sequence(out, batch_first=True, total_length=self.total)[0]


@pytest.mark.parametrize("front", [True, False])
def test_a_total_length_is_torch_s(front: bool) -> None:
    x, lengths = torch.randn(2, 4, 3).double(), torch.tensor([1, 2])
    for total in (2, 3, 6):
        net = Cut(total, batch_first=front).eval().double().requires_grad_(False)
        steps = trace(net, example=(x, lengths))
        compare([run(steps, x, lengths)], [net(x, lengths)])
        longer = torch.tensor([1, total + 1])
        with pytest.raises(InputError, match=f"a sequence of length {total + 1}"):
            run(steps, x, longer)
    assert "length 3" in problems(Cut(2, [3, 1], batch_first=front).eval(), example=(x.float(), lengths))[0].what


@pytest.mark.parametrize("kind", every(2, LAYERS + CELLS))
def test_a_first_state_of_another_shape_is_refused(kind: Any) -> None:
    class Given(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.layer, self.shape = kind(3, 4), shape

        def forward(self, x: Tensor) -> Any:
            h = x.new_ones(*self.shape)
            return self.layer(x.transpose(0, 1) if x.dim() == 3 else x, (h, h) if "LSTM" in kind.__name__ else h)[0]

    layer = issubclass(kind, nn.RNNBase)
    x = torch.randn(2, 5, 3) if layer else torch.randn(2, 3)
    wrong = ((2, 2, 4), (1, 1, 4), (1, 2, 1)) if layer else ((1, 4), (4,), (2, 1))
    for shape in wrong:
        found = problems(Given(*shape).eval(), example=x)
        assert any("first state of shape" in problem.what for problem in found), (shape, found)
