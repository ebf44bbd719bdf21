"""Functions of one value as tables of polynomials (polynomials.py), looked up in one round (protocols/poly.py).

The function is an expression (graph/ops/functions.py), such as sigmoid(x). A table covers an interval of x. Where the
interval comes from decides the layer:

    Tabulated     the function has two tails: beyond +-e it is constant or linear. A window [k:m) promises that |x| <
                  2^(k - 17). If a table covers this, x is looked up directly: one opening. Wider windows, such as the
                  default one, first take two comparisons, for
                      f(x) = f(c) + s relu(x - b) + r min(x - a, 0),       c = clamp(x, a, b)
                  with the tails' slopes r, left of a, and s, right of b. So the result is right for every x in the
                  window. Values in a known range (`BitConfig.rows`) need no window: one opening.
    FunctionInRange       the function has a pole, or grows, such as log(x): the range of its values must be known.

The precision follows from the error in `BitConfig.rows`, if there is one. Otherwise m determines it: inputs and results
are rounded to 2^(m - 22), 1/64 of what comparisons leave undecided, or to 2^-14 if that is coarser. Pieces err by half
a unit; if a table covers a window that leaves 1/4 or more undecided, by two units, which are 1/32 of that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import BitWindow, Rows
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.mpc.functions.polynomials import DEGREES, GAIN, WIDEST, PolynomialTable, fit_error, least_k
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec, held
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, exponent_of

FINEST, COARSEST = 14, 6  # most and fewest bits of fraction of inputs and results
_COARSE = 8  # up to these bits of fraction pieces may err by two units
_BELOW = 22 - SCALE  # bits of fraction that a table has below the window's m
_INTEGERS = 28  # integer bits of a result: enough for 20 bits of weights, then a window of up to 24 bits
_TYPICAL = 22  # integer bits of results that most layers read
_UNDECIDED = 14  # a clamp errs by up to 2^(_UNDECIDED - 16)
_WIDEST_IN_RANGE = 10  # at most 2^10 pieces for values in a known range
MOST_BYTES = 16 << 10  # of the largest table of a function's values; later layers may read more bits of them
SMALLEST_ERROR = 2.0**-12  # of a table for values in a known range: values have 16 bits of fraction


class Sizes(NamedTuple):
    """Numbers that choose a table: the interval of x, roundings, and how large results are.

    least, most: the interval.
    fraction, scale: bits of fraction of x as an integer, and of results.
    allowed: bound of the polynomials' error.
    integers: integer bits, with the sign, that hold the function's values.
    widest: log2 of the most pieces.
    """

    least: float
    most: float
    fraction: int
    scale: int
    allowed: float
    integers: int
    widest: int

    @property
    def middle(self) -> float:
        """The middle of the interval, a multiple of 2^-14: the table's argument is x less this number."""
        return round((self.least + self.most) / 2 * 2.0**FINEST) * 2.0**-FINEST

    @property
    def reach(self) -> float:
        """The largest distance of a value of the interval from `middle`."""
        return max(self.most - self.middle, self.middle - self.least)


class LayerTable(NamedTuple):
    """The table by which a layer computes its function, and how the layer uses it.

    middle: the number that is subtracted from x before the look-up.
    reach: the largest |x - middle| of the interval.
    bits: how many bits of the table's results must be right.
    clamps: the lower and the upper number to which x is clamped before; None where it is not.
    factor: x less `middle` is multiplied by this number, in units of 2^-3, before the look-up; 0: it is not.
    """

    table: PolynomialTable
    middle: float
    reach: float
    bits: int
    clamps: tuple[float | None, float | None] = (None, None)
    factor: int = 0

    @property
    def read(self) -> int:
        """How many bits of the value are opened, counted from the table's last bit of fraction."""
        return self.table.k + (_STEPS if self.factor else 0)

    @property
    def filled(self) -> float:
        """The largest argument of the table."""
        return _filled(self.reach, _Fit(self.table.k, self.factor))

    @property
    def clamped(self) -> bool:
        """Whether x is clamped before the look-up."""
        return self.clamps != (None, None)

    def error(self, parties: int) -> float:
        """Return a bound of the error of the look-up's results on the interval, if `parties` parties hold shares."""
        return self.table.error(parties, self.filled)

    def argument(self, n: Arithmetic, x: Tensor, comparison: Comparison) -> tuple[Arithmetic, Tensor]:
        """Return the arithmetic that looks the table up, and its argument for x with `n.scale` bits of fraction.

        comparison: the layer's.
        """
        more = _STEPS if self.factor else 0
        y = n.times(x, self.factor, more) if self.factor else x
        if self.middle:
            y = y - n.constant(self.middle * (self.factor / 2**_STEPS if self.factor else 1), n.scale + more - SCALE)
        return n.with_comparison(comparison, n.scale + more), y

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers of the table and of its use. Parties must have equal ones: their choice is by floating point."""
        at, ends = self.table, [round(end * 2.0**SCALE) for end in self.clamps if end is not None]
        middle = round(self.middle * 2.0**SCALE)
        return (at.k, at.fraction, at.w, at.degree, at.scale, middle, self.factor, self.bits, *ends)


@functools.lru_cache(1024)
def of_error(text: str, least: float, most: float, error: float) -> Sizes:
    """Return the numbers of a table whose results err by at most `error` for two parties, on [least, most].

    text: the function as an expression.
    The rounding of x, that of results and coefficients, and the polynomials share the error so that the table has few
    bits. An x has at most 16 bits of fraction: where the function is so steep that these are too few, it errs by more
    (`PolynomialTable.error`).
    """
    slope, _ = _extent(text, least, most)
    fine = min(SCALE, math.ceil(math.log2(4 / error)))
    close = min(SCALE, max(COARSEST, math.ceil(math.log2(4 * slope / error)) if slope else COARSEST))
    choices = []
    for scale in (fine, fine - 1):
        for fraction in (close, close - 1):
            # A coefficient of a cubic is rounded by a quarter of a unit at most, and there are four.
            left = error - min(slope * 2.0**-fraction, error / 4 if fraction == close else error) - 2 * 2.0**-scale
            if left >= error / 8 and fraction >= COARSEST:
                choices.append(_sized(text, least, most, fraction, scale, left, _WIDEST_IN_RANGE))
    found = [(table, sizes) for sizes in choices if (table := table_of(text, sizes, _TYPICAL)) is not None]
    return min(found, key=lambda pair: _bits(pair[0].table, pair[0].bits))[1] if found else choices[0]


def _sized(
    text: str, least: float, most: float, fraction: int, scale: int, allowed: float, widest: int = WIDEST
) -> Sizes:
    _, largest = _extent(text, least, most)
    return Sizes(least, most, fraction, scale, allowed, held(max(1, exponent_of(largest))), widest)


@functools.lru_cache(1024)
def _extent(text: str, least: float, most: float) -> tuple[float, float]:
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


_STEPS = 3  # bits of fraction of a factor of x, from 1 to 2


class _Fit(NamedTuple):
    """How x becomes an integer of a table: `k` bits, of x times `factor` 2^-_STEPS, or of x itself for factor 0."""

    k: int
    factor: int

    @property
    def stretch(self) -> int:
        """The table's factor of its argument, which undoes `factor`."""
        return round(GAIN * 2**_STEPS / self.factor) if self.factor else GAIN


@functools.lru_cache(1024)
def table_of(text: str, sizes: Sizes, integers: int) -> LayerTable | None:
    """Choose the table of a function with the fewest bits; None if no table below `MOST_BYTES` keeps the error.

    text: the function as an expression.
    integers: how many integer bits of results later layers read, with the sign. The table's results have as many, or
        as many as any table of its kind can have, at most `_INTEGERS`.
    x may be multiplied by a number from 1 to 2, so that it fills the table. How x becomes an integer depends on the
    function and its sizes only, not on what later layers read.
    """
    shift = sizes.middle
    name = functions.of(text, functions.spelled("add", "x", shift)) if shift else text

    def tables(fit: _Fit, least: int) -> list[PolynomialTable]:
        shape = name, fit.k, sizes.fraction
        pairs = ((w, degree) for w in range(least, sizes.widest + 1) for degree in DEGREES)
        made = (PolynomialTable(*shape, *pair, sizes.scale, stretch=fit.stretch) for pair in pairs)
        return [table for table in made if table.most >= _filled(sizes.reach, fit)]

    def best(some: list[tuple[PolynomialTable, _Fit]], integers: int) -> tuple[PolynomialTable, _Fit] | None:
        sizes_of = {pair: _bits(pair[0], integers + sizes.scale) + 8 * (pair[1].factor > 0) for pair in some}
        fitting = (pair for pair in sorted(some, key=sizes_of.__getitem__))
        fitting = (pair for pair in fitting if pair[0].widths(integers + sizes.scale)[-1] <= 64)
        return next((p for p in fitting if fit_error(p[0], _filled(sizes.reach, p[1])) <= sizes.allowed), None)

    fits = sorted({_fit(sizes, w, filled) for w in range(2, sizes.widest + 1) for filled in (False, True)})
    every = [(table, fit) for fit in fits for table in tables(fit, 2)]
    found = best(every, max(_TYPICAL, sizes.integers)) or best(every, sizes.integers)
    if found is None or _bits(found[0], sizes.integers + sizes.scale) > 8 * MOST_BYTES:
        return None
    alike = [(table, found[1]) for table in tables(found[1], 2)]
    most = next(bits for bits in range(_INTEGERS, sizes.integers - 1, -1) if best(alike, bits) is not None)
    bits = max(1, min(most, integers))
    chosen = best(alike, bits)
    assert chosen is not None, "fewer bits fit as well"
    return LayerTable(chosen[0], shift, sizes.reach, bits + sizes.scale, factor=chosen[1].factor)


def _bits(table: PolynomialTable, bits: int) -> int:
    """Return how many bits are dealt for a value, if `bits` bits of the table's results must be right."""
    return sum(table.widths(bits)) << table.w


def _filled(reach: float, fit: _Fit) -> float:
    """Return the largest argument of a table for values up to `reach`."""
    return reach * fit.factor / 2**_STEPS if fit.factor else reach


def _fit(sizes: Sizes, w: int, filled: bool) -> _Fit:
    """Return how x becomes the integer of a table of 2^w pieces. filled: whether x is multiplied to fill the table."""
    k = least_k(sizes.reach, sizes.fraction, w)
    if not filled:
        return _Fit(k, 0)
    most = PolynomialTable("", k, sizes.fraction, w, 1, 0).most
    factor = math.floor(most / sizes.reach * 2**_STEPS)
    return _Fit(k, factor if factor > 1 << _STEPS else 0)


class Tabulated(Comparing):
    """Layer that applies a function with two tails, such as sigmoid or GELU, to each value, by a look-up in a table.

    Where a table covers the layer's window [k:m), or the range of its values is known, the cost is 1 round, and k + 1
    bits for each value, less the bits of fraction cut. Otherwise the layer first clamps the values: two comparisons, in
    the rounds of one, then a look-up of 19 or 20 bits and an opening of about as many, in 1 round each. With "gmw" a
    look-up takes one more opening.
    text: the function as an expression.
    rises: whether the function is x itself for x above 0.
    rows: the range of the values (`BitConfig.rows`), or None.
    `LayerTable.error` bounds the error.
    """

    whole_ring = True  # results of comparisons are added to the result

    def __init__(self, text: str, comparison: Comparison, rows: Rows | None = None, rises: bool = False) -> None:
        super().__init__(comparison)
        self.text, self.rises, self.rows = text, rises, rows
        left, right = functions.tails(text, rises)
        assert left is not None and right is not None, "other functions are `FunctionInRange`"
        self.left, self.right = left, right

    @property
    def _whole(self) -> bool:
        """Whether the results' shares must be right in all bits, as they are with "gmw"."""
        return not self.comparison.looks_up

    @property
    def _tails(self) -> Comparison:
        """The comparison by which the layer clamps x to the interval that its table covers.

        It compares x with the interval's ends, so its window has one bit more than the layer's, or holds the distances
        of the known range.
        """
        known = self.comparison
        k, m = known.window.k, min(known.window.m, _UNDECIDED)
        if self.rows is not None:
            k = self._range_bits + SCALE
        return known.wider(BitWindow(min(64, k + 1), m), known.valid)

    def look_up(self, scale: int) -> LayerTable:
        """Choose this layer's table for an input with `scale` bits of fraction; return it as a `LayerTable`.

        That says also whether the input is clamped before. The planner must have set `comparison.valid`.
        """
        fraction = max(COARSEST, min(FINEST, SCALE + _BELOW - self.comparison.window.m))
        allowed = 2.0**-fraction * (2 if fraction <= _COARSE else 0.5)
        reach, read = self.comparison.range(scale), self.read - SCALE
        direct = None
        if self.rows is not None and not (self.rises and self.rows.most > 0):
            direct = self._in_range(self.rows, fraction, allowed)
        elif self.rows is None and reach < SCALE and not self.rises:
            direct = _sized(self.text, -(2.0**reach), 2.0**reach, fraction, fraction, allowed)
        if direct is not None and (found := table_of(self.text, direct, read)) is not None:
            if found.read + scale - found.table.fraction <= self.comparison.valid:
                return found
        low, high, room = self.left.at, self.right.at, 2.0 ** (_UNDECIDED - SCALE)
        if self.rows is not None and self.rows.error is not None:
            ends = of_error(self.text, low - room, high + room, self.rows.error)
        else:
            ends = _sized(self.text, low - room, high + room, fraction, fraction, 2.0 ** -(fraction + 1))
        integers = MARGIN + ends.integers
        found = table_of(self.text, ends, integers)
        found = found or table_of(self.text, ends._replace(widest=_WIDEST_IN_RANGE), integers)
        if found is None:
            what = f"no table below {MOST_BYTES >> 10} kB for a value serves {self.text} on [{low:g}, {high:g}]"
            raise ConfigError(
                what, hint="multiply its argument by a number in a step before, or give the values' range"
            )
        bits = MARGIN + exponent_of(_extent(self.text, low, high)[1] + 1) + found.table.scale
        return found._replace(bits=bits, clamps=(low, high))

    def _in_range(self, rows: Rows, fraction: int, allowed: float) -> Sizes:
        if rows.error is not None:
            return of_error(self.text, rows.least, rows.most, rows.error)
        return _sized(self.text, rows.least, rows.most, fraction, fraction, allowed, _WIDEST_IN_RANGE)

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        found = self.look_up(n.scale)
        if not found.clamped:
            m, y = found.argument(n, x, self.comparison)
            return m.polynomial(y, found.table, found.bits, whole=self._whole).to(x.dtype)
        low, high = found.clamps
        assert low is not None and high is not None
        tails = n.with_comparison(self._tails, n.scale)
        if self.left.slope:
            above, z = tails.above(x, (low, high))
        else:
            above = tails.relus(x, (low, high))
        clamped = above[0] - above[1] + n.constant(low)
        rest, y = found.argument(n.with_comparison(self.comparison), clamped, self.comparison)
        inside = rest.polynomial(y, found.table, found.bits, whole=True)
        if self.right.slope:
            inside = inside + self.right.slope * above[1]
        if self.left.slope:
            inside = inside + self.left.slope * (z - above[0])
        return inside.to(x.dtype)

    def reads(self, later: int | None) -> int | None:
        if self.comparison.drops:
            return super().reads(later)
        known = self._range_bits if self.rows is not None else self.comparison.reads
        return None if known is None else known + 1

    @property
    def _range_bits(self) -> int:
        """How many integer bits, with the sign, hold the distance of a value of the known range from a tail's end."""
        assert self.rows is not None
        least, most = min(self.rows.least, self.left.at), max(self.rows.most, self.right.at)
        return exponent_of(most - least) + 2

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.comparison.drops:
            return later
        found = self.look_up(scales[0])
        return self._tails.needs(scales[0]) if found.clamped else found.read + scales[0] - found.table.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            return valid[0]
        found = self.look_up(scales[0])
        return 64 if found.clamped or self._whole else found.bits - found.table.scale + SCALE

    def grain(self) -> int:
        if self.comparison.drops:
            return self.given[0].grain
        found = self.look_up(self.given[0].scale)
        return 0 if found.clamped else SCALE - found.table.scale

    def bound(self, bounds: Sequence[int]) -> int:
        if self.comparison.drops:
            return bounds[0]
        known = self.comparison.window.k - SCALE - 1  # a window of 64 bits gives no bound
        far = 2.0 ** min(bounds[0], max(1, known))
        least, most = (-far, far) if self.rows is None or self.rises else (self.rows.least, self.rows.most)
        ends = functions.value(self.text, torch.tensor([least, most], dtype=torch.float64)).abs().tolist()
        if self.rises and most > 0:
            ends[1] = most
        inside = min(most, max(least, self.left.at)), max(least, min(most, self.right.at))
        largest = max(*ends, _extent(self.text, *inside)[1] if inside[0] < inside[1] else 0)
        return max(1, exponent_of(largest))

    def constants(self) -> tuple[int, ...]:
        return () if self.comparison.drops else self.look_up(self.scales[0]).numbers

    def variant(self, scale: int, parties: int) -> str:
        """Return how many pieces of which degree the layer's table has, as a text: "2^6 cubics".

        scale: bits of fraction of the input.
        """
        if self.comparison.drops:
            return super().variant(scale, parties)
        return self.look_up(scale).table.shown

    def label(self) -> str:
        if self.comparison.drops:
            return super().label()
        found = self.look_up(self.scales[0] if self.scales else SCALE)
        where = f", clamped to [{found.clamps[0]:g}, {found.clamps[1]:g}]" if found.clamped else ""
        told = "" if self.rows is None else f" in {self.rows}"
        return f"{self.text}{told}, {found.table.shown}{where}, error {found.error(2):.1e}"


class FunctionInRange(Layer):
    """Layer that applies a function without tails, such as log(x), to values in a known range: one round.

    text: the function as an expression.
    exact: an exact comparison of the net's protocol.
    rows: the range of the values (`BitConfig.rows`); None if it is not known, and nothing can run yet.
    Raises ConfigError if the function has a pole in the range, or no table below `MOST_BYTES` has the wanted error.
    """

    input_limit = MAX_SCALE

    def __init__(self, text: str, exact: Comparison, rows: Rows | None) -> None:
        super().__init__()
        self.text, self.exact, self.rows = text, exact, rows
        if rows is not None:
            self._sizes = of_error(text, rows.least, rows.most, rows.error or SMALLEST_ERROR)
            if table_of(text, self._sizes, 1) is None:
                hint = "a smaller range, or a larger error: Rows(least, most, error=2**-8)"
                what = f"no table below {MOST_BYTES >> 10} kB for a value serves {text}"
                span = f"on [{rows.least:g}, {rows.most:g}] with an error of {rows.error or SMALLEST_ERROR:g}"
                raise ConfigError(f"{what} {span}", hint=hint)

    @property
    def _table(self) -> LayerTable:
        if self.rows is None:
            raise ConfigError(f"the range of the values of {self.text} is not known", hint=RANGE_HINT)
        found = table_of(self.text, self._sizes, self.read - SCALE)
        assert found is not None, "see __init__"
        return found

    @property
    def _whole(self) -> bool:
        return not self.exact.looks_up

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        """Compute the layer's function of x with the operations of `n`, and return the result.

        n: the kind of numbers: real numbers, shares or prices.
        """
        found, rows = self._table, self.rows
        assert rows is not None
        n.expects(x, rows.most + self._slack, f"the argument of {self.text} is", rows.least - self._slack)
        m, y = found.argument(n, x, self.exact)
        return m.polynomial(y, found.table, found.bits, whole=self._whole).to(x.dtype)

    @property
    def _slack(self) -> float:
        """By how much values may leave the range, by rounding."""
        return 2.0**-10 * (self._sizes.most - self._sizes.least) + 2.0**-SCALE

    def forward(self, session: Session, x: Shared) -> Shared:
        return Shared(self.formula(Shares(session, self.exact, x.scale), x.share), SCALE)

    def _prices(self, x: Spec, parties: int) -> CostTensor:
        prices = CostTensor(self.exact, x.scale, parties)
        self.formula(prices, torch.empty(x.shape, dtype=torch.int64, device="meta"))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return FREE if self.rows is None else self._prices(inputs[0], parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return inputs[0].numel if self.rows is None else max(inputs[0].numel, self._prices(inputs[0], 2).breadth)

    def reads(self, later: int | None) -> int | None:
        return None if self.rows is None else self._table.read - self._table.table.fraction

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 64 if self.rows is None else self._table.read + scales[0] - self._table.table.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.rows is None or self._whole:
            return 64
        if valid[0] < self.needs(scales, 64):
            return 0  # no bit is right: the planner tries another form
        return self._table.bits - self._table.table.scale + SCALE

    def grain(self) -> int:
        return 0 if self.rows is None else SCALE - self._table.table.scale

    def bound(self, bounds: Sequence[int]) -> int:
        if self.rows is None:
            return super().bound(bounds)
        return max(1, exponent_of(_extent(self.text, self.rows.least, self.rows.most)[1]))

    def constants(self) -> tuple[int, ...]:
        return () if self.rows is None else self._table.numbers

    def label(self) -> str:
        if self.rows is None:
            return f"{self.text} of values whose range is not known"
        return f"{self.text} in {self.rows}, {self._table.table.shown}, error {self._table.error(2):.1e}"


RANGE_HINT = "give it: bits.with_rows(hummingbird.find_rows(net, inputs)), or Rows(least, most) by the step's name"
