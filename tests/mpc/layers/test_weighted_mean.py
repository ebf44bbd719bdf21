"""Attention divided behind its sum: within its derived bound for every row of the range, three messages, the price."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.channel import meter
from hummingbird.convert import build
from hummingbird.mpc.layers import softmax_in_range, weighted_mean
from hummingbird.mpc.layers.layer import Given, Spec
from hummingbird.mpc.layers.products import MatMul
from hummingbird.mpc.layers.softmax_in_range import LONGEST
from hummingbird.mpc.layers.weighted_mean import WeightedMean
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from tests.mpc.layers.test_softmax_in_range import RANGES, sample, within
from tests.support.covering import every
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

WIDTH = 6


class Attention(nn.Module):
    """softmax(x) y, x and y from one input (rows, length + WIDTH, length): y is tanh of what follows x."""

    def __init__(self, bound: float = 1.0, dim: int = -1, again: bool = False) -> None:
        super().__init__()
        self.softmax, self.tanh, self.bound, self.again = nn.Softmax(dim), nn.Tanh(), bound, again

    def forward(self, x: Tensor) -> Tensor:
        weights = self.softmax(x[:, :1])
        out = weights @ (self.tanh(x[:, 1:]) * self.bound).transpose(1, 2)
        return out + weights[..., :WIDTH] if self.again else out


def given(length: int, rows: Rows) -> Tensor:
    """Rows from end to end of the range, and values that are 1, -1 or of chance beside them."""
    x = sample(length, rows).float()
    x = x[within(x, rows)].unsqueeze(1)
    values = torch.randn(len(x), WIDTH, length) * 3
    values[:, 0], values[:, 1] = 10.0, -10.0
    return torch.cat([x, values], 1)


def told(rows: Rows) -> BitConfig:
    return BitConfig(EXACT, rows={"softmax": rows})


def bound(x: Tensor, values: Tensor, parties: int) -> Tensor:
    """The bound that the docstrings of softmax_in_range and weighted_mean derive, and roundings of values, of which
    tanh errs by 2^-12 itself.
    """
    weights = x.softmax(-1)
    error = (4 + 1.25 * parties) * 2.0**-10 * weights.clamp(min=1 / x.shape[-1])
    rest = parties * (2.0**-13 + 2.0**-15) + (parties + 1) * 2.0**-19 + 2.0**-12
    return error @ values.abs() + rest


@pytest.mark.parametrize("length, rows, parties", every(25, [*product([8, 64, 100, LONGEST], RANGES, [2, 3])]), ids=str)
def test_rows_from_end_to_end_of_the_range_are_right_within_the_bound(length: int, rows: Rows, parties: int) -> None:
    x, net = given(length, rows).flip(0)[::6], Attention().eval()  # of every kind, from the farthest on
    (layer,) = (s.layer for s in build(net, told(rows), example=x).plan if s.op == "matmul")
    assert isinstance(layer, WeightedMean)
    values = x[:, 1:].double().tanh().transpose(1, 2)
    wanted = x[:, :1].double().softmax(-1) @ values
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(net, told(rows), parties=parties, mode=mode, seed=1, example=x)(x).double()
        assert float(((got - wanted).abs() / bound(x[:, :1].double(), values, parties)).max()) <= 1, mode


@pytest.mark.parametrize("narrow", every(2, ["value", "mean", "E", "w"]))
def test_a_few_bits_less_are_a_wrong_answer(narrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    rows, length = Rows(-2.0, 6.5, 40.0), 64
    x, net = given(length, rows)[::3], Attention().eval()
    values = x[:, 1:].double().tanh().transpose(1, 2)
    wanted = x[:, :1].double().softmax(-1) @ values
    original, numbers = weighted_mean.widths, weighted_mean.numbers
    if narrow in ("value", "mean"):
        monkeypatch.setattr(
            weighted_mean,
            "widths",
            lambda *a: original(*a)._replace(
                **{narrow: getattr(original(*a), narrow) - (3 if narrow == "value" else 9)}
            ),
        )
    else:
        field = {"E": "value", "w": "factor"}[narrow]
        monkeypatch.setattr(
            weighted_mean, "numbers", lambda *a: numbers(*a)._replace(**{field: getattr(numbers(*a), field) - 4})
        )
    got = hummingbird.simulate(net, told(rows), mode="exact", seed=1, example=x)(x).double()
    assert float(((got - wanted).abs() / bound(x[:, :1].double(), values, 2)).max()) > 10


def test_where_the_softmax_divides_itself() -> None:
    rows, x = Rows(-4.0, 4.0, 2.5), torch.randn(2, 1 + WIDTH, 8)

    def kind(net: nn.Module, config: BitConfig, protocol: str = "masked") -> type:
        steps = build(net.eval(), config, protocol=protocol, example=x).plan
        (layer,) = (step.layer for step in steps if step.op == "matmul")
        return type(layer)

    assert kind(Attention(), told(rows)) is WeightedMean
    assert kind(Attention(again=True), told(rows)) is MatMul  # read twice
    assert kind(Attention(bound=2.0**25), told(rows)) is MatMul  # values of which nothing is known
    assert kind(Attention(), BitConfig(EXACT)) is MatMul
    assert kind(Attention(), told(rows), "gmw") is MatMul
    steep = Rows(-12.0, 8.0, 1000.0)
    assert weighted_mean.serves(steep, 5) and kind(Attention(bound=2.0**4), told(steep)) is WeightedMean
    assert not weighted_mean.serves(steep, 19) and kind(Attention(bound=2.0**18), told(steep)) is MatMul


def test_bits_that_are_opened_fit_the_ring() -> None:
    for rows in RANGES:
        for size in range(20):
            if weighted_mean.serves(rows, size):
                for length in (1, 2, 3, 100, 257, LONGEST):
                    found = softmax_in_range.numbers(length, rows)
                    sizes = weighted_mean.widths(rows, size, found.spread)
                    assert found.value <= weighted_mean.most_bits(rows) and sizes.sums <= 64
                    # Sums of E y, with what parties round, in the bits that M is opened in.
                    top = softmax_in_range.most_sum(rows) * (1 + 2.0**-8) * 2.0**size * 2.0**14
                    assert top < 2.0 ** (sizes.mean - 2)


@pytest.mark.parametrize("parties", [2, 3])
def test_the_price_is_what_is_sent(parties: int) -> None:
    rows, length = Rows(-4.0, 4.0, 2.5), 12
    layer = WeightedMean(rows)
    layer.given = (Given(12, weighted_mean.most_bits(rows), 0, 6), Given(16, 64, 0, 1))
    specs = Spec((2, 3, 5, length), 12), Spec((2, 3, length, 4), 16)
    price = layer.cost(specs, parties)
    assert price.rounds == 2
    sessions = make_sessions(parties)
    exp = torch.full(specs[0].shape, round(2.0**12 * 16 / length))
    values = torch.full(specs[1].shape, 1 << 15)

    def party(session: Session, one: Tensor, other: Tensor) -> Tensor:
        return layer.forward(session, Shared(one, 12), Shared(other)).share

    given = zip(sessions, share(exp, parties), share(values, parties), strict=True)
    with meter.meter() as counted:
        parts = together([lambda s=s, x=x, y=y: party(s, x, y) for s, x, y in given])
    for session in sessions:
        session.channel.close()
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits
    assert float((sum(parts[1:], parts[0]).double() * 2.0**-18 - 0.5).abs().max()) < 2.0**-9
