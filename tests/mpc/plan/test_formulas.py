"""Formulas of activations on real numbers are torch's functions; on shapes they cost what is written out here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hummingbird import convert, cost, graph
from hummingbird.bits import EXACT, BitWindow
from hummingbird.cost import FREE, Cost
from hummingbird.graph import OPS, Step
from hummingbird.graph.steps import refs
from hummingbird.mpc.functions import smooth, splines
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers import softmax as places
from hummingbird.mpc.layers.activations import EvenSmooth, PReLU
from hummingbird.mpc.layers.arithmetic import REALS
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.layers.linear import WeightOwner
from hummingbird.mpc.layers.selecting import MaxPool
from hummingbird.mpc.plan import builders
from hummingbird.mpc.protocols import beaver, poly, thresholds, weight_mask
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.lift import lift_price
from hummingbird.mpc.protocols.registry import PROTOCOLS, named
from hummingbird.ring import SCALE
from tests.support.operations import SMOOTH, cases

UNIT = 2.0**-SCALE
# Errors of tables and splines, and of slopes and of a sixth that are rounded to 2^-20 and 2^-16, times values below 16.
BOUNDS = {
    **dict.fromkeys(("sigmoid", "tanh", "silu", "gelu"), SMOOTH),
    **dict.fromkeys(("leaky_relu", "prelu", "hardsigmoid"), 16 * UNIT),
    "hardswish": 18 * 2.0**-16 / 3,
    "softmax": 2.0**-7,
    "log_softmax": 2.0**-8 + 2.0**-11,
}


def layers() -> Iterator[tuple[str, Step, Comparing, list[Tensor]]]:
    """Every layer of the small nets that compares the net's own input, with its step, that input and constants."""
    for name, case in cases().items():
        steps = {step.name: step for step in graph.trace(case.net.eval())}
        plan = convert.build(case.net, EXACT).plan
        for step in plan:
            given = [plan[ref.index] for ref in refs(step.inputs)]
            if isinstance(step.layer, Comparing) and {source.op for source in given} <= {"input", "constant"}:
                values = [case.x if source.op == "input" else steps[source.name].attrs["value"] for source in given]
                yield name, steps[step.name], step.layer, [value.double() for value in values]


@pytest.mark.slow
def test_on_real_numbers_a_formula_is_the_function_of_torch() -> None:
    seen = set()
    for name, step, layer, given in layers():
        weight = [step.attrs["weight"]] if isinstance(layer, PReLU) else []
        got, wanted = layer.formula(REALS, *given, *weight), OPS[step.op](step.attrs, *given)
        assert got.shape == wanted.shape and got.dtype == torch.float64, name
        assert float((got - wanted).abs().max()) <= BOUNDS.get(step.op, 0) + 1e-12, name
        seen.add(step.op)
    assert seen == set(builders.COMPARING)


def test_a_window_of_no_bits_leaves_the_identity_or_the_first_place() -> None:
    x = torch.randn(2, 3, 6, 6)
    comparison = named("masked")(BitWindow(0, 0))
    assert torch.equal(EvenSmooth("silu", smooth.even("silu"), comparison).dropped(x), x)
    pool = MaxPool([2, 2], [2, 2], [0, 0], [1, 1], False, comparison)
    assert torch.equal(pool.dropped(x), x[..., ::2, ::2])
    assert pool.cost([Spec((2, 3, 6, 6), SCALE)], 2) == FREE


# Prices ---------------------------------------------------------------------------------------------------------------

N, LENGTH = 40, 7
SHAPE = (N, LENGTH)
ALL = N * LENGTH


def tree(compare: Comparison, results: int, length: int, parties: int) -> Cost:
    """Pairs at a time; an odd one out waits."""
    total = FREE
    while length > 1:
        total += compare.cost(results * (length // 2), SCALE, parties)
        length -= length // 2
    return total


def tabulated(layer: Tabulated, scale: int, parties: int) -> Cost:
    """One look-up if the table spans the window; else two comparisons, and a lift where results are large."""
    found = layer.look_up(scale)
    table, bits, clamped = found.table, found.bits, found.clamped
    once = poly.price(ALL, table, bits, parties)
    assert clamped == (layer.comparison.window == EXACT)
    if not clamped:
        assert (once.rounds, once.bits) == (1, 8 * (parties - 1) * (cost.HEADER_BYTES + cost.packed(15 * ALL)))
        return once
    assert found.clamp is not None and found.clamp.window.k == 64  # a window of 64 bits is not widened
    ring = 64 if found.lifted else found.read + SCALE - table.fraction
    tails = layer.comparison.wider(found.clamp.window, 64, ring).cost(ALL, scale, parties, 2)
    assert found.lifted == (layer.text == "silu(x)")
    return tails + once + (lift_price(ALL, bits, 64, parties) if found.lifted else FREE)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("window", [EXACT, BitWindow(20, 12)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_price_of_a_formula_is_the_sum_written_out(protocol: str, window: BitWindow, parties: int) -> None:
    compare = named(protocol)(window, 64)

    def price(layer: Comparing, scale: int = SCALE) -> Cost:
        return layer.cost([Spec(SHAPE, scale)], parties)

    def made(op: str, **attrs: object) -> Comparing:
        layer = builders.BUILDERS[op](Step("", op, (), attrs), compare, None)
        assert isinstance(layer, Comparing)
        return layer

    for scale in (SCALE, SCALE + 4):
        once, twice = (compare.cost(ALL, scale, parties, thresholds) for thresholds in (1, 2))
        assert price(made("relu"), scale) == price(made("leaky_relu", slope=0.1), scale) == once
        assert price(made("hardtanh", low=-1.0, high=2.0), scale) == price(made("hardsigmoid"), scale) == twice
        after = beaver.square_price(ALL, parties) + lift_price(ALL, 24, 64, parties)
        squares = thresholds.squares_price(
            ALL, window.k - 4 if window.k < 64 else 64 - scale + 12, max(0, window.m - 4), parties, knots=2
        )
        assert price(made("hardswish"), scale) == (twice + after if protocol == "gmw" else squares)
        if protocol == "masked":
            for op in ("tanh", "silu"):
                layer = made(op)
                assert isinstance(layer, Tabulated)
                assert price(layer, scale) == tabulated(layer, scale, parties)
            continue
        knots, joined = len(smooth.squashing("tanh").knots), beaver.product_price(ALL, ALL, ALL, parties, 53)
        assert price(made("tanh"), scale) == (
            compare.cost(ALL, scale, parties, knots) + joined + lift_price(ALL, 21, 64, parties)
        )
        silu = made("silu")
        assert isinstance(silu, EvenSmooth)
        knots = len(silu.curve.knots)
        second = silu.again(scale).cost(ALL, SCALE, parties, knots)
        assert price(silu, scale) == once + second + joined + lift_price(ALL, 22, 64, parties)
    slopes = PReLU(torch.rand(LENGTH), compare, WeightOwner(0))
    assert price(slopes) == compare.cost(ALL, SCALE, parties) + weight_mask.product_price(ALL, ALL, parties)
    assert price(PReLU(torch.rand(LENGTH), compare, None)) == compare.cost(ALL, SCALE, parties)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_price_of_what_has_a_tree_of_maxima_is_the_sum_written_out(protocol: str, parties: int) -> None:
    compare = named(protocol)(BitWindow(20, 12), 64)
    softmax, argmax = places.Softmax(1, compare), places.Argmax(1, False, compare)
    spec = Spec(SHAPE, SCALE)
    log = len(splines.logarithm(LENGTH).knots)
    # Behind the maximum, windows of splines: for knots from -21 on, and for sums of 7 numbers of at most 1.25 (gmw: 3).
    windows = BitWindow(22, 8), BitWindow(21 if protocol == "masked" else 22, 0)
    exponents, sums = (named(protocol)(window, 64) for window in windows)
    after_log = sums.cost(N, SCALE, parties, log) + lift_price(N, 24, 64, parties)
    if (found := softmax.tables(LENGTH)) is not None:
        assert protocol == "masked"
        exp = poly.price(ALL, found.exp, found.bits, parties)
        assert softmax.cost([spec], parties) == (
            tree(compare, N, LENGTH, parties)
            + exp  # a window of 20 bits is looked up as it is
            + poly.price(N, found.reciprocal, found.lifted, parties)
            + lift_price(ALL + N, 20, 64, parties)
            + beaver.product_price(ALL, N, ALL, parties, 64 - (40 - found.reciprocal.scale))
        )
        wide, exact_sums = (named(protocol)(BitWindow(k, 0), 64) for k in (24, 20))
        clamp = named(protocol)(BitWindow(25, 0), 64).cost(ALL, SCALE, parties)
        opened = places.LogSoftmax(1, wide).tables(LENGTH)
        assert opened is not None
        exp = poly.price(ALL, opened.exp, opened.bits, parties)
        lifted = lift_price(N, opened.bits - (opened.exp.scale - SCALE), 64, parties)
        assert places.LogSoftmax(1, wide).cost([spec], parties) == (
            tree(wide, N, LENGTH, parties) + clamp + exp + lifted + exact_sums.cost(N, SCALE, parties, log)
        ) + lift_price(N, 24, 64, parties)
    else:
        assert protocol == "gmw"
        total = 23  # 7 numbers of at most 1, and their sum; comparisons leave up to 1/2 undecided, four times in a row
        knots, inverse = (len(curve(LENGTH).knots) for curve in (splines.exponential, splines.reciprocal))
        assert softmax.cost([spec], parties) == (
            tree(compare, N, LENGTH, parties)
            + exponents.cost(ALL, SCALE, parties, knots)
            + lift_price(ALL + N, total, 64, parties)
            + sums.cost(N, SCALE, parties, inverse)
            + lift_price(N, 48, 64, parties)
            + beaver.product_price(ALL, N, ALL, parties)
        )
        assert softmax.breadth([spec]) == max(knots * ALL, inverse * N)
        assert places.LogSoftmax(1, compare).cost([spec], parties) == (
            tree(compare, N, LENGTH, parties)
            + exponents.cost(ALL, SCALE, parties, knots)
            + lift_price(N, total, 64, parties)
            + after_log
        )
    wider = type(compare)(BitWindow(20 + 3 + 1, 0), 64)
    assert argmax.cost([spec], parties) == tree(wider, N, LENGTH, parties) + wider.cost(ALL, SCALE, parties)
    pool = MaxPool([3, 2], [3, 2], [0, 0], [1, 1], False, compare)
    rows, columns = tree(compare, 2 * 6 * 4, 2, parties), tree(compare, 2 * 2 * 4, 3, parties)
    assert pool.cost([Spec((1, 2, 6, 8), SCALE)], parties) == rows + columns


def test_another_formula_has_another_price() -> None:
    """The comparison above can fail: a square costs less than a product, and comparisons are counted."""
    compare = named("masked")(BitWindow(20, 12), 64)

    class Swish(Comparing):
        def formula(self, n: object, x: Tensor) -> Tensor:
            y, z = n.compare(x)  # type: ignore[attr-defined]
            return n.apply(beaver.Times(), y, z)  # type: ignore[attr-defined,no-any-return]

    spec = [Spec(SHAPE, SCALE)]
    once = compare.cost(ALL, SCALE, 2)
    product, square = beaver.product_price(ALL, ALL, ALL, 2), beaver.square_price(ALL, 2)
    assert Swish(compare).cost(spec, 2) == once + product != once + square
