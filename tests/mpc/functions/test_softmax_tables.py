"""A softmax by tables: e^x and 1/x within their bounds for every value, results for rows of every kind and length."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.bits import EXACT, BitWindow
from hummingbird.mpc.functions import softmax_tables
from hummingbird.mpc.functions.polynomials import EXP_AT, GUARD, PolynomialTable, evaluate, fit_error
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.softmax import Softmax
from hummingbird.mpc.protocols.masked import Masked
from hummingbird.mpc.protocols.registry import named
from hummingbird.ring import SCALE
from tests.support.covering import covering

LENGTHS = (1, 2, 3, 16, 17, 64, 65, 197, softmax_tables.LONGEST)
SHAPES = [Spec((4, length), SCALE) for length in LENGTHS[1:]]


def rounded(table: PolynomialTable, parties: int) -> float:
    """Bound of the parties' rounding of a result and that of coefficients."""
    return (parties / 2 + (table.degree + 1) / 2**GUARD) * 2.0**-table.scale


@pytest.mark.parametrize("missed", [0.0, 0.4])
@pytest.mark.parametrize("length", LENGTHS)
def test_both_tables_keep_their_bounds_for_every_value(length: int, missed: float) -> None:
    found = softmax_tables.tables(length, missed)
    assert found is not None
    least = 1 / length
    x = torch.arange(math.floor(softmax_tables.LOW * 2**12) - 2, 2**12 * 0.875, dtype=torch.float64) * 2.0**-12
    wanted = x.exp().clamp(min=least)
    error = (evaluate(found.exp, x + EXP_AT) - x.exp()).abs() / wanted
    for parties in (2, 3):
        half = parties / 2 * 2.0**-found.exp.fraction  # of x, and so of e^x
        assert float(error.max()) + half + rounded(found.exp, parties) * length <= 2.0**-9
        hidden = fit_error(found.exp, softmax_tables._MOST, least) * least + rounded(found.exp, parties)
        assert math.exp(softmax_tables.LOW) + hidden + half * math.exp(softmax_tables.LOW) <= 2.0**-9 * least
    most = length * (1 + 2.0**-9) * math.exp(missed)
    unit = 2.0**-found.reciprocal.fraction
    total = torch.arange(math.floor((1 - 2.0**-8) / unit), math.ceil(most / unit) + 1, dtype=torch.float64) * unit
    error = (evaluate(found.reciprocal, total - found.middle) * total - 1).abs()
    for parties in (2, 3):
        assert float(error.max()) + parties / 2 * unit + rounded(found.reciprocal, parties) * most <= 2.0**-9


def rows(length: int) -> Tensor:
    """Equal values, one far above, one far below, hidden places as a mask leaves them, and chance."""
    torch.manual_seed(length)
    x = torch.randn(12, length)
    x[0], x[1], x[2] = 0.25, -40.0, 3.0 * x[2]
    x[1, -1] = x[3, 0] = 90.0
    x[4, length // 2 :] = -(2.0**19)
    x[4, 0] = -3.0
    x[5] = torch.linspace(-20.0, 0.0, length)
    return x


@covering("length, parties", LENGTHS, [2, 3])
def test_results_are_right_to_2_to_the_minus_7_of_themselves(length: int, parties: int) -> None:
    x = rows(length)
    wanted = x.double().softmax(1)
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(nn.Softmax(1), EXACT, parties=parties, mode=mode, seed=1)(x).double()
        # exp is rounded to 2^-16 by every party, before it is divided by the sum, and the factors of 1/sum as well.
        own = parties * 2.0**-16
        assert bool(((got - wanted).abs() <= 2.0**-7 * wanted.clamp(min=1 / length) + own).all()), mode
        assert float(got[4, length // 2 + 1 :].abs().max()) <= own if length > 2 else True


@pytest.mark.parametrize("window", [BitWindow(20, 0), BitWindow(20, 8), BitWindow(24, 8), BitWindow(64, 10)], ids=str)
@pytest.mark.parametrize("parties", [2, 3])
def test_windows_that_hold_the_differences_give_the_same(window: BitWindow, parties: int) -> None:
    torch.manual_seed(0)
    x = 3.9 * (2 * torch.rand(50, 16) - 1)
    layer = Softmax(1, named("masked")(window))
    assert layer.tables(16) is not None
    got = hummingbird.simulate(nn.Softmax(1), window, parties=parties, mode="exact", seed=2)(x).double()
    wanted = x.double().softmax(1)
    # The maximum may be missed; what is left is the clamp's error where it is reached.
    assert bool(((got - wanted).abs() <= 2.0**-7 * wanted.clamp(min=1 / 16) + parties * 2.0**-16).all())


def test_where_splines_are_left() -> None:
    """Long rows, windows that round, and protocols without look-ups."""
    masked, gmw = named("masked"), named("gmw")
    assert Softmax(0, masked(EXACT)).tables(softmax_tables.LONGEST) is not None
    assert Softmax(0, masked(EXACT)).tables(softmax_tables.LONGEST + 1) is None
    assert Softmax(0, gmw(EXACT)).tables(16) is None
    assert Softmax(0, masked(BitWindow(24, 12, 8))).tables(16) is None


@covering(
    "net, protocol, aim, window",
    [nn.Softmax(1), nn.LogSoftmax(1)],
    [("masked", "latency"), ("masked", "pair"), ("gmw", "latency")],
    [BitWindow(20, 12), BitWindow(22, 8, 4)],
    ids=str,
)
def test_splines_are_right_in_any_window(net: nn.Module, protocol: str, aim: str, window: BitWindow) -> None:
    """A window holds the differences from the maximum; the spline of exp ends at -21, their sum is up to the length."""
    torch.manual_seed(0)
    x = torch.rand(2, softmax_tables.LONGEST + 1 if (protocol, aim) == ("masked", "latency") else 200) * 6 - 3
    wanted = net(x)
    for mode in ("exact", "fast"):
        got = hummingbird.simulate(net, window, protocol=protocol, aim=aim, mode=mode, seed=1)(x)
        assert (got - wanted).abs().max() <= 2.0**-6 * wanted.abs().max(), mode


@pytest.mark.parametrize("window", [EXACT, BitWindow(20, 8), BitWindow(24, 8)], ids=str)
def test_tables_are_cheaper_than_splines_for_every_length(window: BitWindow) -> None:
    for spec in SHAPES:
        tables = Softmax(1, named("masked")(window)).cost([spec], 2)
        splines = Softmax(1, _Splined(window)).cost([spec], 2)
        assert tables.rounds < splines.rounds and tables.bits < splines.bits
        assert 2 * tables.bits + tables.offline_bits < 2 * splines.bits + splines.offline_bits


class _Splined(Masked):
    """The protocol as if it had no look-ups."""

    looks_up = False
