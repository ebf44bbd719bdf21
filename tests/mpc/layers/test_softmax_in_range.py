"""Softmax of rows in a known range: within its derived bound for every row of it, three messages, and the price."""

from __future__ import annotations

import math
import random
import warnings
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import cost
from hummingbird.bits import EXACT, BitConfig, BitWindow, Rows
from hummingbird.channel import meter
from hummingbird.convert import build
from hummingbird.mpc.functions.polynomials import evaluate
from hummingbird.mpc.layers import softmax_in_range
from hummingbird.mpc.layers.comparing import Shares
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.softmax import Softmax
from hummingbird.mpc.layers.softmax_in_range import LONGEST, SoftmaxInRange
from hummingbird.mpc.protocols import poly
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE
from tests.support.covering import every
from tests.support.parties import sessions as make_sessions
from tests.support.parties import share, together

UNIT = 2.0**-SCALE
LENGTHS = (1, 3, 64, 100, LONGEST)
RANGES = (Rows(-0.5, 0.5), Rows(-4.0, 4.0, 2.5), Rows(-12.0, 5.0, 9.0), Rows(-2.0, 6.5, 40.0), Rows(-18.0, 2.0, 3.0))


def layer(rows: Rows) -> SoftmaxInRange:
    return SoftmaxInRange(-1, named("masked")(EXACT), rows)


def sample(length: int, rows: Rows) -> Tensor:
    """Rows of the range, with a mean besides: of chance, equal values, one value that is far above or below all others,
    and two kinds of values; those whose sum is in the range.
    """
    torch.manual_seed(length)
    widths = torch.linspace(0, 1, 24, dtype=torch.float64).unsqueeze(1)
    chance = torch.randn(24, length, dtype=torch.float64)
    alone = (torch.arange(length) == length // 2).double().expand(24, -1)
    two = (torch.arange(length) % 2).double().expand(24, -1)
    out = []
    for kind in (chance, alone, -alone, two):
        centered = kind - kind.mean(1, keepdim=True)
        top, bottom = (centered.amax(1, keepdim=True) / rows.most, centered.amin(1, keepdim=True) / rows.least)
        out.append(centered / torch.maximum(top, bottom).clamp(min=1e-6) * widths + 3 * torch.randn(24, 1))
    x = (torch.cat(out) / UNIT).round() * UNIT
    return x[within(x, rows)]


def within(x: Tensor, rows: Rows) -> Tensor:
    """A mask of the rows that are in the range."""
    c = x.double() - x.double().mean(1, keepdim=True)
    mean = c.exp().mean(1)
    inside = (c >= rows.least - UNIT).all(1) & (c <= rows.most + UNIT).all(1)
    return inside & (mean <= (softmax_in_range.most_sum(rows)))


def bound(wanted: Tensor, parties: int) -> Tensor:
    """The bound that the docstring of softmax_in_range derives, and every party's rounding of a result to 2^-28."""
    return (4 + 1.25 * parties) * 2.0**-10 * wanted.clamp(min=1 / wanted.shape[1]) + parties * 2.0**-29


def net(dim: int = -1) -> nn.Module:
    return nn.Sequential(nn.Softmax(dim)).eval()


def told(rows: Rows) -> BitConfig:
    return BitConfig(rows={"0": rows})


@pytest.mark.parametrize("length, rows, parties", every(9, [*product(LENGTHS, RANGES, [2, 3])]), ids=str)
def test_rows_from_end_to_end_of_the_range_are_right_within_the_bound(length: int, rows: Rows, parties: int) -> None:
    x = sample(length, rows).float()
    x = x[within(x, rows)]
    assert len(x) >= 20
    wanted = x.double().softmax(1)
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(net(), told(rows), parties=parties, mode=mode, seed=1)(x).double()
        assert float(((got - wanted).abs() / bound(wanted, parties)).max()) <= 1, mode


@pytest.mark.parametrize("narrow", ["value", "bits", "factor"])
def test_a_few_bits_less_are_a_wrong_answer(narrow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: with fewer bits of exponentials, of what is right of them, or of 1 / u."""
    rows, length = Rows(-2.0, 6.5, 40.0), 128
    x = sample(length, rows).float()
    x = x[within(x, rows)]
    wanted = x.double().softmax(1)
    found = softmax_in_range.sizes(length, rows)
    assert found is not None
    other = found._replace(**{narrow: getattr(found, narrow) - 4})
    monkeypatch.setattr(softmax_in_range, "sizes", lambda *_: other)
    got = hummingbird.simulate(net(), told(rows), mode="exact", seed=1)(x).double()
    assert float(((got - wanted).abs() / bound(wanted, 2)).max()) > 100


def test_rows_beyond_the_range_are_announced() -> None:
    x = torch.zeros(2, 16)
    x[:, 0] = torch.tensor([1.0, 9.0])
    with pytest.warns(UserWarning, match="a value less the mean of all is 8.4.*noise"):
        hummingbird.simulate(net(), told(Rows(-1.0, 2.0)))(x)
    with pytest.warns(UserWarning, match="expects -1.0"):
        hummingbird.simulate(net(), told(Rows(-1.0, 2.0)))(-x)
    spread = torch.linspace(-2, 2, 16).expand(2, -1)
    with pytest.warns(UserWarning, match=r"the mean of exp\(x - mean\) is 1.9.*noise"):
        hummingbird.simulate(net(), told(Rows(-3.0, 3.0, 1.25)))(spread)


@pytest.mark.parametrize("most", [None, 1.2, 3.0])
@pytest.mark.parametrize("length", [97, 128])
def test_a_narrower_range_takes_no_more_bits_than_a_wider_one(length: int, most: float | None) -> None:
    """Ranges just below a power of two, too: there 2^4 cubics take one bit more of each value than 2^8 lines would."""
    before = 0
    for step in range(40):
        end = 0.25 * 1.09**step
        found = softmax_in_range.sizes(length, Rows(-end, end / 2, most))
        assert found is not None
        dealt = length * found.exp.dealt(found.bits) + found.reciprocal.dealt(found.factor)
        assert dealt >= before, end
        before = dealt


@pytest.mark.parametrize("end", [0.9, 1.7, 1.9, 1.98, 3.9])
def test_no_row_opens_more_bits_than_the_longest_for_which_the_planner_reserves_them(end: float) -> None:
    rows = Rows(-end, end)
    longest = softmax_in_range.sizes(LONGEST, rows)
    assert longest is not None
    for length in (1, 3, 65, 97, 128, 300, 500):
        found = softmax_in_range.sizes(length, rows)
        assert found is not None and found.exp.k <= longest.exp.k


def test_a_range_without_a_sum_has_the_largest_that_it_allows() -> None:
    """Rows of the two ends alone; no row of the range has a larger mean of exponentials."""
    rows = Rows(-1.5, 3.0)
    most = softmax_in_range.most_sum(rows)
    torch.manual_seed(0)
    for part in (1 / 3, 0.25, 0.5):
        x = torch.where(torch.rand(2000, 48) < part, rows.most, rows.least)
        x = torch.cat([x, torch.rand(2000, 48) * 4.5 - 1.5])
        c = x - x.mean(1, keepdim=True)
        inside = (c.amax(1) <= rows.most) & (c.amin(1) >= rows.least)
        assert float(c[inside].double().exp().mean(1).max()) <= most * (1 + 1e-6)
    ends = torch.tensor([rows.most] * 16 + [rows.least] * 32, dtype=torch.float64)
    assert abs(float(ends.mean())) < 1e-12 and float(ends.exp().mean()) == pytest.approx(most)


@pytest.mark.parametrize("dim", [1, -1, 2, 0])
def test_any_dimension_may_be_the_rows(dim: int) -> None:
    torch.manual_seed(3)
    x = torch.randn(5, 7, 3)
    wanted = x.double().softmax(dim)
    got = hummingbird.simulate(net(dim), told(Rows(-4.0, 4.0, 4.0)), mode="exact", seed=1)(x).double()
    assert float((got - wanted).abs().max()) <= 2.0**-7


def random_ranges(count: int) -> list[Rows]:
    """Ranges of all kinds that are served."""
    draw = random.Random(5)
    out: list[Rows] = []
    while len(out) < count:
        least, most = -draw.choice((2.0 ** draw.uniform(-8, 4.4), 1.0)), 2.0 ** draw.uniform(-8, 3.5)
        rows = Rows(least, most, draw.choice((None, 1.0 + 2.0 ** draw.uniform(-6, 9))))
        if softmax_in_range.serves(rows):
            out.append(rows)
    return out


@pytest.mark.parametrize("ranges", every(2, [15, 60]))
def test_numbers_of_all_lengths_and_ranges_fit_the_ring(ranges: int) -> None:
    """All that the layer relies on, for each length that it takes."""
    draw = random.Random(6)
    for rows in random_ranges(ranges):
        longest = softmax_in_range.sizes(LONGEST, rows)
        for length in (1, 2, 3, draw.randint(4, LONGEST), draw.randint(4, LONGEST), 257, 256):
            found = softmax_in_range.sizes(length, rows)
            assert found is not None and longest is not None and found.exp.k <= longest.exp.k
            assert found.exp.scale >= 1 and found.exp.shift + found.bits <= 64
            unit = length * 2.0**-found.spread
            for end in (rows.least, rows.most):
                assert abs(end * unit - found.middle) <= found.exp.most
            top = math.exp(rows.most) / unit * 2.0 ** (found.exp.scale - found.turn)
            assert top < 2.0 ** (found.value - 2) and found.value <= 62
            assert softmax_in_range.most_sum(rows) - found.below <= found.reciprocal.most
            assert found.below - 1 <= found.reciprocal.most
        assert layer(rows).out_scale([SCALE]) <= 48


@pytest.mark.parametrize("rows", RANGES, ids=str)
@pytest.mark.parametrize("length", [3, 128, 197])
def test_the_table_of_exponentials_keeps_its_part_of_the_bound_for_every_value(length: int, rows: Rows) -> None:
    found = softmax_in_range.sizes(length, rows)
    assert found is not None
    unit, step = length * 2.0**-found.spread, 2.0**-found.exp.fraction
    y = torch.arange(math.ceil(rows.least * unit / step), math.floor(rows.most * unit / step) + 1).double() * step
    wanted = (y / unit).exp() / unit * 2.0**-found.turn
    error = (evaluate(found.exp, y - found.middle) - wanted).abs() / torch.maximum(wanted, wanted / (y / unit).exp())
    assert float(error.max()) <= 0.6 * 2.0**-10 + 2.0**-13 + max(abs(rows.least), rows.most) * 2.0**-17


@pytest.mark.parametrize("parties", [2, 3])
def test_the_price_is_the_sum_written_out_and_what_is_sent(parties: int) -> None:
    n, length, rows = 6, 64, Rows(-4.0, 4.0, 2.5)
    softmax = layer(rows)
    found = softmax_in_range.sizes(length, rows)
    assert found is not None
    spec = Spec((n, length), 32)
    price = softmax.cost([spec], parties)
    assert price.rounds == 3
    sessions, x = make_sessions(parties), torch.randn(n, length).mul(2.0**32).long()

    def run(session: Session, given: Tensor) -> Tensor:
        return softmax.formula(Shares(session, softmax.comparison, 32), given)

    with meter.meter() as counted:
        together([lambda s=s, x=x: run(s, x) for s, x in zip(sessions, share(x, parties), strict=True)])
    for session in sessions:
        session.channel.close()
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits
    look_ups = poly.price(n * length, found.exp, found.bits, parties) + poly.price(
        n, found.reciprocal, found.factor, parties
    )
    rest = price.bits - look_ups.bits
    opened = (n * length * found.value + n * found.factor) * (parties - 1)
    assert opened <= rest <= opened + 8 * (parties - 1) * 64  # and headers, and what fills bytes


def test_where_the_maximum_stays() -> None:
    rows = Rows(-4.0, 4.0, 2.5)

    def built(protocol: str, config: BitConfig) -> object:
        (step,) = (step for step in build(net(), config, protocol=protocol).plan if step.op == "softmax")
        return step.layer

    assert isinstance(built("masked", told(rows)), SoftmaxInRange)
    assert isinstance(built("gmw", told(rows)), Softmax)
    assert isinstance(built("masked", BitConfig(BitWindow(0, 0), rows={"0": rows})), Softmax)
    wide = built("masked", told(Rows(-20.0, 20.0, 4.0)))
    assert isinstance(wide, Softmax) and "no table for rows in [-20, 20] sum=4" in wide.label()
    assert isinstance(built("masked", told(Rows(-9.0, 12.0))), Softmax)  # e^12 on average is beyond any table


def test_longer_rows_than_the_longest_are_refused() -> None:
    private = build(net(), told(Rows(-4.0, 4.0, 2.5)))
    with pytest.raises(hummingbird.errors.InputError, match="softmax over 513 places"):
        private.costs((2, LONGEST + 1), 2)
    assert private.costs((2, LONGEST), 2)


def test_parties_with_other_rows_have_other_plans() -> None:
    facts = [build(net(), told(rows)).facts for rows in (Rows(-2, 2), Rows(-2, 2), Rows(-2, 2.5))]
    assert facts[0] == facts[1] and facts[0]["bits"] != facts[2]["bits"] and facts[0]["plan"] != facts[2]["plan"]


def test_it_takes_a_fraction_of_what_a_maximum_does() -> None:
    """The same rows with a maximum and without."""
    spec = Spec((48, 16), SCALE)
    with_maximum = Softmax(-1, named("masked")(EXACT)).cost([spec], 2)
    without = layer(Rows(-4.0, 4.0, 2.5)).cost([spec], 2)
    assert without.rounds == 3 and 10 * without.rounds < with_maximum.rounds
    assert 3 * without.bits < with_maximum.bits
    assert isinstance(without, cost.Cost)


@pytest.mark.parametrize(
    ("window", "rows", "protocol", "warns"),
    [
        (BitWindow(20, 14), Rows(-70, 74, 1e30), "masked", True),  # too wide for look-ups, and for the window
        (BitWindow(20, 14), Rows(-7, 8, 20), "masked", False),  # looked up
        (BitWindow(20, 14), Rows(-7, 8), "gmw", True),  # compared
        (BitWindow(22, 14), Rows(-7, 8), "gmw", False),
        (BitWindow(64, 0), Rows(-70, 74, 1e30), "masked", False),
    ],
)
def test_a_window_below_the_range_of_rows_is_announced(
    window: BitWindow, rows: Rows, protocol: str, warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        build(nn.Sequential(nn.Softmax(-1)), BitConfig(window).with_rows({"0": rows}), protocol=protocol)
    shown = [str(warning.message) for warning in said]
    assert [text.startswith("0: values of a row may differ by") for text in shown] == [True] * warns, shown
