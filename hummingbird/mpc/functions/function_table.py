"""The table of a function on an interval, with the fewest bits that keep an error: how a layer looks a function up.

The function is an expression (graph/ops/functions.py). `of_error` and `sized` say how x and results are rounded, and
`table_of` chooses the number of pieces, their degree, and how x becomes an integer (polynomials.py).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.mpc.functions.polynomials import DEGREES, GAIN, WIDEST, PolynomialTable, fits, least_k, steepest
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.layer import held
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.ring import SCALE, exponent_of

FINEST, COARSEST = 14, 6  # most and fewest bits of fraction of inputs and results
WIDEST_IN_RANGE = 10  # at most 2^10 pieces for values in a known range
MOST_BYTES = 16 << 10  # of the largest table of a function's values; later layers may read more bits of them
INTEGERS = 28  # integer bits of a result: enough for 20 bits of weights, then a window of up to 24 bits
MOST_INTEGERS = 36  # the same where further bits spare a round
_DEARER = 3  # the most that a table of more than INTEGERS bits may cost, in parts of one of INTEGERS
_SCALES = (-1, 0, 1, 2, 3)  # bits of fraction of x beyond those that take a quarter of the error
_FRACTIONS = (-1, 0, 1)  # likewise of the result
_SENT = 16  # dealt bits that weigh as much as one bit of x that both parties send
TYPICAL = 22  # integer bits of results that most layers read


class Sizes(NamedTuple):
    """Numbers that choose a table: the interval of x, roundings, and how large results are.

    least, most: the interval.
    fraction, scale: bits of fraction of x as an integer, and of results.
    allowed: bound of the polynomials' error, if x is not multiplied to fill the table.
    integers: integer bits, with the sign, that hold the function's values.
    widest: log2 of the most pieces.
    rounding: how much of the error the rounding of x takes; less where x is multiplied, and `allowed` is more then.
    """

    least: float
    most: float
    fraction: int
    scale: int
    allowed: float
    integers: int
    widest: int
    rounding: float = 0.0

    @property
    def middle(self) -> float:
        """The middle of the interval, a multiple of 2^-14: the table's argument is x less this number."""
        return round((self.least + self.most) / 2 * 2.0**FINEST) * 2.0**-FINEST

    @property
    def reach(self) -> float:
        """The largest distance of a value of the interval from `middle`."""
        return max(self.most - self.middle, self.middle - self.least)


class Clamp(NamedTuple):
    """How values are clamped before a look-up: to which numbers, and by which comparison.

    low, high: values below `low` become `low`, and values above `high` become `high`. Those that the comparison leaves
        undecided, up to 2^(window.m - 16) above `low` or `high`, may become `low`, or stay as they are.
    window: of the comparison, which holds the distances of values from both numbers.
    error: by how much the function may differ from its tails, which are lines, from `low` and `high` on.
    """

    low: float
    high: float
    window: BitWindow
    error: float


class LayerTable(NamedTuple):
    """The table by which a layer computes its function, and how the layer uses it.

    middle: the number that is subtracted from x before the look-up.
    reach: the largest |x - middle| of the interval.
    bits: how many bits of the table's results must be right.
    clamp: how x is clamped before; None where it is not.
    factor: x less `middle` is multiplied by this number, in units of 2^-3, before the look-up; 0: it is not.
    lifted: whether the results are lifted to 64 bits, in one more opening.
    """

    table: PolynomialTable
    middle: float
    reach: float
    bits: int
    clamp: Clamp | None = None
    factor: int = 0
    lifted: bool = False

    @property
    def read(self) -> int:
        """How many bits of the value are opened, counted from the table's last bit of fraction."""
        return self.table.k + (STEPS if self.factor else 0)

    @property
    def dealt(self) -> int:
        """How many bits are dealt for a value."""
        return self.table.dealt(self.bits)

    @property
    def filled(self) -> float:
        """The largest argument of the table."""
        return _filled(self.reach, _Fit(self.table.k, self.factor))

    @property
    def clamped(self) -> bool:
        """Whether x is clamped before the look-up."""
        return self.clamp is not None

    def error(self, parties: int) -> float:
        """Return a bound of the error of the look-up's results on the interval, if `parties` parties hold shares."""
        error = self.table.error(parties, self.filled)
        if self.clamp is None:
            return error
        # Each party rounds its share of x twice, first to a multiple of 2^q.
        unit = 2.0 ** (self.clamp.window.q - SCALE)
        slope = steepest(self.table.name, self.filled * self.table.stretch / GAIN)
        return error + self.clamp.error + (parties / 2 * max(1.0, slope) * unit if self.clamp.window.q else 0)

    def argument(self, n: Arithmetic, x: Tensor, comparison: Comparison) -> tuple[Arithmetic, Tensor]:
        """Return the arithmetic that looks the table up, and its argument for x with `n.scale` bits of fraction.

        comparison: the layer's.
        """
        more = STEPS if self.factor else 0
        y = n.times(x, self.factor, more) if self.factor else x
        if self.middle:
            y = y - n.constant(self.middle * (self.factor / 2**STEPS if self.factor else 1), n.scale + more - SCALE)
        return n.with_comparison(comparison, n.scale + more), y

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers of the table and of its use. Parties must have equal ones: their choice is by floating point."""
        at, clamp, middle = self.table, self.clamp, round(self.middle * 2.0**SCALE)
        ends = () if clamp is None else tuple(round(end * 2.0**SCALE) for end in (clamp.low, clamp.high))
        window = () if clamp is None else (clamp.window.k, clamp.window.m, clamp.window.q)
        return (
            at.k,
            at.fraction,
            at.w,
            at.degree,
            at.scale,
            middle,
            self.factor,
            self.bits,
            self.lifted,
            *ends,
            *window,
        )


@functools.lru_cache(1024)
def of_error(text: str, least: float, most: float, error: float) -> Sizes:
    """Return the numbers of a table whose results err by at most `error` for two parties, on [least, most].

    text: the function as an expression.
    The rounding of x, that of results and coefficients, and the polynomials share the error so that the table has the
    fewest bits: finer roundings cost a few bits, and leave more for the polynomials, of which fewer do. An x has at
    most 16 bits of fraction: where the function is so steep that these are too few, it errs by more
    (`PolynomialTable.error`).
    """
    slope, _ = extent(text, least, most)
    fine = min(SCALE, math.ceil(math.log2(4 / error)))
    close = min(SCALE, max(COARSEST, math.ceil(math.log2(4 * slope / error)) if slope else COARSEST))
    choices = []
    for scale in sorted({min(SCALE, fine + more) for more in _SCALES}):
        for fraction in sorted({max(COARSEST, min(SCALE, close + more)) for more in _FRACTIONS}):
            # A coefficient of a cubic is rounded by a quarter of a unit at most, and there are four.
            rounding = slope * 2.0**-fraction
            left = error - rounding - 2 * 2.0**-scale
            if left >= error / 8:
                made = sized(text, least, most, fraction, scale, left, WIDEST_IN_RANGE)
                choices.append(made._replace(rounding=rounding))
    found = [(table, sizes) for sizes in choices if (table := table_of(text, sizes, TYPICAL)) is not None]
    return (
        min(found, key=lambda pair: pair[0].dealt + _SENT * pair[0].table.k)[1]
        if found
        else sized(text, least, most, close, fine, error / 4, WIDEST_IN_RANGE)
    )


def sized(
    text: str, least: float, most: float, fraction: int, scale: int, allowed: float, widest: int = WIDEST
) -> Sizes:
    _, largest = extent(text, least, most)
    return Sizes(least, most, fraction, scale, allowed, held(max(1, exponent_of(largest))), widest)


@functools.lru_cache(1024)
def extent(text: str, least: float, most: float) -> tuple[float, float]:
    """Return the largest slope and the largest magnitude of an expression on [least, most].

    Raises ConfigError if the function has a pole there, or does not exist everywhere.
    """
    x = torch.linspace(least, most, (1 << 14) + 1, dtype=torch.float64)
    y = functions.value(text, x)
    if not bool(y.isfinite().all()):
        bad = float(x[~y.isfinite()][0])
        hint = "keep its argument away from there, for instance by adding a small number, and give the range: "
        hint += "BitConfig.with_rows(hummingbird.find_rows(net, inputs))"
        raise ConfigError(f"{text} has no finite value at {bad:g}, within the range [{least:g}, {most:g}]", hint=hint)
    return float((y.diff() / x.diff()).abs().max()), float(y.abs().max())


STEPS = 3  # bits of fraction of a factor of x, from 1 to 2


class _Fit(NamedTuple):
    """How x becomes an integer of a table: `k` bits, of x times `factor` 2^-STEPS, or of x itself for factor 0."""

    k: int
    factor: int

    @property
    def stretch(self) -> int:
        """The table's factor of its argument, which undoes `factor`."""
        return round(GAIN * 2**STEPS / self.factor) if self.factor else GAIN


@functools.lru_cache(1024)
def table_of(text: str, sizes: Sizes, integers: int, fill: bool = True, possible: int = INTEGERS) -> LayerTable | None:
    """Choose the table of a function with the fewest bits; None if no table below `MOST_BYTES` keeps the error.

    text: the function as an expression.
    integers: how many integer bits of results later layers read, with the sign. The table's results have as many, or
        as many as any table of its kind can have, at most `possible`.
    fill: whether x may be multiplied by a number from 1 to 2, so that it fills the table. How x becomes an integer
        depends on this, the function and its sizes only, not on what later layers read.
    possible: INTEGERS, or up to MOST_INTEGERS, of which results have those that cost up to `_DEARER` as much.
    """
    shift = sizes.middle
    name = functions.of(text, functions.spelled("add", "x", shift)) if shift else text

    def tables(fit: _Fit, least: int) -> list[PolynomialTable]:
        shape = name, fit.k, sizes.fraction
        pairs = ((w, degree) for w in range(least, min(sizes.widest, fit.k) + 1) for degree in DEGREES)
        made = (PolynomialTable(*shape, *pair, sizes.scale, stretch=fit.stretch) for pair in pairs)
        return [table for table in made if table.most >= _filled(sizes.reach, fit)]

    def best(some: list[tuple[PolynomialTable, _Fit]], integers: int) -> tuple[PolynomialTable, _Fit] | None:
        sizes_of = {pair: pair[0].dealt(integers + sizes.scale) + 8 * (pair[1].factor > 0) for pair in some}
        fitting = (pair for pair in sorted(some, key=sizes_of.__getitem__))
        fitting = (pair for pair in fitting if pair[0].widths(integers + sizes.scale)[-1] <= 64)
        return next((p for p in fitting if fits(p[0], _filled(sizes.reach, p[1]), _allowed(sizes, p[1]))), None)

    forms = sorted({_fit(sizes, w, filled) for w in range(2, sizes.widest + 1) for filled in {False, fill}})
    every = [(table, fit) for fit in forms for table in tables(fit, 2)]
    found = best(every, max(TYPICAL, sizes.integers)) or best(every, sizes.integers)
    if found is None or found[0].dealt(sizes.integers + sizes.scale) > 8 * MOST_BYTES:
        return None
    alike = [(table, found[1]) for table in tables(found[1], 2)]

    def dealt(bits: int) -> float:
        pair = best(alike, bits)
        return math.inf if pair is None else pair[0].dealt(bits + sizes.scale)

    usual = next(bits for bits in range(INTEGERS, sizes.integers - 1, -1) if dealt(bits) < math.inf)
    most = next(
        bits for bits in range(possible, usual - 1, -1) if bits <= usual or dealt(bits) <= _DEARER * dealt(usual)
    )
    bits = max(1, min(most, integers))
    chosen = best(alike, bits)
    assert chosen is not None, "fewer bits fit as well"
    return LayerTable(chosen[0], shift, sizes.reach, bits + sizes.scale, factor=chosen[1].factor)


def _allowed(sizes: Sizes, fit: _Fit) -> float:
    """Return the bound of the polynomials' error; the rounding of x takes less of the error where x is multiplied."""
    return sizes.allowed + (sizes.rounding * (1 - 2**STEPS / fit.factor) if fit.factor else 0.0)


def _filled(reach: float, fit: _Fit) -> float:
    """Return the largest argument of a table for values up to `reach`."""
    return reach * fit.factor / 2**STEPS if fit.factor else reach


def _fit(sizes: Sizes, w: int, filled: bool) -> _Fit:
    """Return how x becomes the integer of a table of 2^w pieces. filled: whether x is multiplied to fill the table."""
    k = least_k(sizes.reach, sizes.fraction, w)
    if not filled:
        return _Fit(k, 0)
    most = PolynomialTable("", k, sizes.fraction, w, 1, 0).most
    factor = math.floor(most / sizes.reach * 2**STEPS)
    return _Fit(k, factor if factor > 1 << STEPS else 0)
