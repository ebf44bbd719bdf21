"""Layers for statistics of rows: norms and deviations as results, rows of length 1, cosines.

S is the sum of a row's squares, less its mean if the statistic says so, and d eps; d is the divisor of
`moments.Statistic`. A division of the row by sqrt(S / d) is that of norms.py with another d. Where the root itself is
the result, one message opens the row, and only S is dealt for it (`rows.SumOfSquares`).

*Any S.* With u and the bits b_j of norms.py, S = u 2^30 / R^2 and 1 / R = Q 2^-J,

    Q = 1 + sum_j b_j 2^(j-1)        sqrt(S / d) = g sqrt(u) Q 2^(15 - J - e)        d^(-1/2) = g 2^-e, 1 <= g < 2

g sqrt(u) on [1/4, 1] is a table of u before it is truncated, or a linear spline; below 1/4 both go to 0 at u = 0.

*In a known range* of S / d, u is that of norms_in_range.py, and sqrt(S / d) = 2^e v with the table v = g sqrt(u), whose
results have so many bits of fraction that a root has F, where 2^-F is 2^-17 of the least root or less.

*Error.* Both roots err by less than 2^-14 + N 2^-15 of themselves, as norms do. Below the least S, which is 2^-24, or d
least in a range, the table continues as a cubic (the spline as a line) that is 0 at S = 0, so the error is less than a
quarter of the least root: 2^-14 d^(-1/2), or sqrt(least) / 4. S must be below 2^30, or d most in a range: beyond it the
result is noise. A variance is exact but for the rounding of the values and their mean to 2^-16.

*Cosines.* Both values' rows are stacked for one division. The rows of length 1 are then cut to G = 15 bits of fraction,
or 20 in a range, and a product of matrices gives one sum for each pair. Rounding by N/2 units changes a cosine by at
most N sqrt(n) 2^-G, and by N 2^-G on average over chance. A sum is right in 33 bits, or 56; with "gmw", whose layers
read the whole ring, it is lifted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.graph.ops import moments
from hummingbird.graph.ops.moments import Statistic
from hummingbird.mpc.functions import splines
from hummingbird.mpc.functions.polynomials import GAIN, ROOT_AT, WIDEST_OF_ROWS, PolynomialTable, choose
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.layer import MARGIN
from hummingbird.mpc.layers.norms import (
    FAINT,
    SUM,
    TABLE_BITS,
    TOP,
    Norm,
    centered,
    check_length,
    cut_mantissa,
    mantissa,
)
from hummingbird.mpc.layers.norms_in_range import (
    BELOW,
    NormSizes,
    RowOpenings,
    argument,
    mean_squares,
    row_openings,
    spread_out,
    under_root,
)
from hummingbird.mpc.protocols.beaver import Dots, Times
from hummingbird.mpc.protocols.division import DividedBy
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.rows import SumOfSquares
from hummingbird.ring import SCALE

# Roots as results -----------------------------------------------------------------------------------------------------

ROOT_SCALE = 37  # bits of fraction of a root of any S: |result| < 2^(TOP / 2) needs 52 bits then
_OPENED = TOP // 2 + SCALE + MARGIN  # values of a row whose S is below 2^TOP
_BITS = SCALE + 1 + MARGIN  # bits of the table's results, which are below 2
_PIECES = 2.0**-15  # relative error of the pieces of a table; of a spline twice as much
_LEAST = -17  # log2 of the last bit of a root in a range, in parts of the least root


def normal(divisor: int) -> tuple[float, int]:
    """Return g and e of divisor^(-1/2) = g 2^-e, 1 <= g < 2."""
    exponent = math.ceil(math.log2(divisor) / 2)
    return 2.0**exponent / math.sqrt(divisor), exponent


@functools.lru_cache(256)
def looked_up(gain: int) -> PolynomialTable:
    """Return the table of g sqrt(u) for u in [0, 1], for g = `gain` / GAIN; pieces err by 2^-15 from u = 1/4 on."""
    found = choose("square-root", 0.5 + 2.0**-6, 18, _BITS - SCALE, SCALE, _PIECES, 0.5, gain=gain, k=TABLE_BITS)
    assert found is not None, "as the table of inverse roots in norms.py"
    return found


@functools.lru_cache(256)
def spline(gain: float) -> splines.Fit:
    """Fit a spline to g sqrt(u) for u in [1/4, 1], with relative error 2^-14; it is a line to 0 on the left."""
    u = torch.linspace(-math.log(4.0), 0.0, 4001, dtype=torch.float64).exp()

    def function(u: Tensor) -> Tensor:
        return gain * u.sqrt()

    return splines.fit(function, u, (2 * gain, 0.0), 2 * _PIECES * function(u))


def rooted(n: Arithmetic, x: Tensor, statistic: Statistic, exact: Comparison) -> Tensor:
    """Compute the root of the statistic of each row of x, (..., length), for every S below 2^TOP: (..., 1).

    n: the kind of numbers; on shares the result has ROOT_SCALE bits of fraction. exact: an exact comparison of the
    net's protocol.
    """
    divisor = statistic.divisor(x.shape[-1])
    squares = n.apply(SumOfSquares(0, _OPENED, 64), centered(n, x, statistic.center))
    total = squares + n.constant(divisor * statistic.eps, SCALE)
    n.expects(total, 2.0**TOP, SUM)
    found = mantissa(n, total, max(FAINT, divisor * statistic.eps))
    down = found.powers(n, 1, [1 << j for j in range(found.steps)])
    gain, exponent = normal(divisor)
    if exact.has_tables:
        moved = found.u - n.constant(ROOT_AT, SCALE + TOP)
        table = looked_up(round(gain * GAIN))
        root = n.with_comparison(exact, 2 * SCALE + TOP).polynomial(moved, table, _BITS, whole=True)
        scale = SCALE
    else:
        root, scale = splines.evaluate(spline(gain), cut_mantissa(n, found.u), n), 2 * SCALE
    more = found.steps - TOP // 2 + exponent
    out = n.times(n.apply(Times(), root, down), 1, more)  # below 2^(1 + 32 + 26) in the ring
    up = ROOT_SCALE - scale - more
    return n.times(out, 1 << up, up) if up >= 0 else n.cut(-up, out)[0]


class RootSizes(NamedTuple):
    """Numbers of bits, and a table, by which the root of a row's statistic is found in a known range.

    opening: how rows are opened, and the table's argument.
    table: of v = g sqrt(u); a root is 2^exponent v.
    """

    opening: RowOpenings
    table: PolynomialTable
    exponent: int


def root_fraction(rows: Rows) -> int:
    """Return F, the bits of fraction that a root has in a range, before it is brought to 16 or more."""
    return math.ceil(-_LEAST - math.log2(rows.least) / 2)


def root_bits(rows: Rows) -> int:
    """Return how many low bits of a root's shares are right in a range, counted from 2^-F on."""
    return root_fraction(rows) + max(0, math.ceil(math.log2(rows.most) / 2)) + MARGIN + 1


@functools.lru_cache(1024)
def root_sizes(length: int, center: bool, rows: Rows, divisor: int) -> RootSizes:
    """Compute the numbers of bits and the table for roots of the statistic of rows of `length` values (`RootSizes`).

    center: whether the mean is subtracted. rows: the range of S / divisor; `range_serves` must hold for it.
    """
    found = row_openings(length, center, mean_squares(rows, divisor, length))
    ratio = found.top / 2 - math.log2(found.scaled) - math.log2(divisor) / 2
    exponent = math.floor(ratio)
    gain, scale = round(2.0 ** (ratio - exponent) * GAIN), root_fraction(rows) + exponent
    name, least, fraction = f"square-root-{found.root}", 2.0 ** (-found.root / 2), found.root + BELOW
    integers, allowed = root_bits(rows) - scale, 3 * 2.0**-16
    table = choose(name, found.reach, fraction, integers, scale, allowed, least, WIDEST_OF_ROWS, gain, k=fraction)
    assert table is not None, "as the table of inverse roots in norms_in_range.py"
    return RootSizes(found, table, exponent)


def rooted_in_range(n: Arithmetic, x: Tensor, statistic: Statistic, rows: Rows, exact: Comparison) -> Tensor:
    """Compute the root of the statistic of each row of x, (..., length), in two rounds: (..., 1).

    n: the kind of numbers; on shares the result has F bits of fraction, `root_fraction`, or 16 if that is more. rows:
    the range of the statistic before its root. exact: an exact comparison of the net's protocol.
    """
    divisor = statistic.divisor(x.shape[-1])
    found, table, exponent = root_sizes(x.shape[-1], statistic.center, rows, divisor)
    y, shift, unit = spread_out(n, x, statistic.center, found)
    squares = n.apply(SumOfSquares(shift, found.value, found.top), y)
    u = argument(n, squares, found, rows, statistic.eps, divisor * unit, f"{under_root(statistic)} is")
    root = n.times(n.with_comparison(exact, found.top).polynomial(u, table, root_bits(rows)), 1, -exponent)
    up = max(0, SCALE - root_fraction(rows))
    return n.times(root, 1 << up, up)


class OfRows(Norm):
    """Base of layers for the statistic of rows whose length is known with the rows: their input is lifted first."""

    @property
    def statistic(self) -> Statistic:
        return moments.statistic(self.attrs)

    @property
    def _sizes(self) -> NormSizes | None:
        return None

    def constants(self) -> tuple[int, ...]:
        return super().constants() if self.assumed is None else ()

    def label(self) -> str:
        return super().label() if self.assumed is None else f"{under_root(self.statistic)} in {self.assumed}"


class Moment(OfRows):
    """Layer for a variance, a sum of squares, or the root of one, of each row: var, std and norms.

    attrs: the attributes of the graph's op "moment". rows: the range of the result, before its root, or None.
    A root takes two rounds if there is a range, `range_serves` holds, and the protocol has tables; otherwise nine, and
    those of a comparison, of 2 J thresholds for each row, J about 26. A variance takes three rounds. A row's values are
    opened once. Without a mean one round less. Raises InputError for rows of more than 2^20 values.
    """

    @property
    def comparisons(self) -> list[Comparison]:
        return super().comparisons if self.attrs["root"] else []

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        values, statistic = moments.rows(self.attrs["dims"], x), self.statistic
        check_length(values)
        if not self.attrs["root"]:
            out = self._moment(n, values)
        elif self.assumed is None:
            out = rooted(n, values, statistic, self.exact)
        else:
            out = rooted_in_range(n, values, statistic, self.assumed, self.exact)
        return moments.reduced(self.attrs, out, x.dim()).to(x.dtype)

    def _moment(self, n: Arithmetic, values: Tensor) -> Tensor:
        statistic = self.statistic
        divisor = statistic.divisor(values.shape[-1])
        squares = n.apply(SumOfSquares(0, _OPENED, 64), centered(n, values, statistic.center))
        n.expects(squares, 2.0**TOP, SUM)
        out = n.apply(DividedBy(divisor), squares) if divisor > 1 else squares
        return out + n.constant(statistic.eps, SCALE)

    def out_scale(self, scales: Sequence[int]) -> int:
        if not self.attrs["root"]:
            return 2 * SCALE
        return ROOT_SCALE if self.assumed is None else max(SCALE, root_fraction(self.assumed))

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if valid[0] < 64:
            return 0  # no bit is right: the planner tries another form
        if not self.attrs["root"] or self.assumed is None:
            return 64
        return root_bits(self.assumed) + self.grain()

    def grain(self) -> int:
        if self.assumed is None or not self.attrs["root"]:
            return 0
        return max(0, SCALE - root_fraction(self.assumed))

    def bound(self, bounds: Sequence[int]) -> int:
        if not self.attrs["root"]:
            return TOP
        return TOP // 2 if self.assumed is None else math.ceil(math.log2(self.assumed.most) / 2)

    def constants(self) -> tuple[int, ...]:
        if not self.attrs["root"] or self.assumed is not None:
            return ()
        table = looked_up(GAIN)
        return (table.w, table.degree) if self.exact.has_tables else spline(1.0).numbers

    def label(self) -> str:
        return super().label() if self.attrs["root"] else "squares of a row"


# Rows divided by a root, and cosines ----------------------------------------------------------------------------------


class Normalize(OfRows):
    """Layer that divides rows by the root of their statistic: F.normalize, and rows of variance 1 with a correction.

    attrs: the attributes of the graph's op "normalize". rows: the range of the number under the root, or None.
    Rounds and bits are those of `Norm`.
    """

    def rows(self, x: Tensor) -> Tensor:
        return moments.rows(self.attrs["dims"], x)

    def placed(self, out: Tensor, shape: Sequence[int]) -> Tensor:
        return moments.unrowed(self.attrs["dims"], out, shape)

    def bound(self, bounds: Sequence[int]) -> int:
        return 0 if self.attrs["correction"] is None else super().bound(bounds)


class Cosine(OfRows):
    """Layer for the cosines of two values' rows along a dimension, with broadcasting: a `Norm` of both, and a round.

    attrs: the attributes of the graph's op "cosine". rows: the range of the sums of squares, or None.
    """

    @property
    def statistic(self) -> Statistic:
        return Statistic(False, None, 0.0, self.attrs["eps"])

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        (y,) = others
        rank = max(x.dim(), y.dim())
        dim = self.attrs["dim"] % rank - rank
        both = [value.reshape((1,) * (rank - value.dim()) + tuple(value.shape)) for value in (x, y)]
        length = torch.broadcast_shapes(both[0].shape[dim : dim + 1 or None], both[1].shape[dim : dim + 1 or None])
        both = [value.expand(*value.shape[:dim], *length, *value.shape[rank + dim + 1 :]) for value in both]
        left, right = (value.movedim(dim, -1) for value in both)
        check_length(left)
        flat = [value.reshape(-1, *length) for value in (left, right)]
        out = self.divided(n, torch.cat(flat), 64)
        parts = out.split([len(part) for part in flat])
        units = (part.view(value.shape) for part, value in zip(parts, (left, right), strict=True))
        if self.exact.takes_rounded_shares:
            dots = n.apply(Dots(self._shift, min(self.read, self._right)), *units)
        else:  # its layers read the whole ring
            (dots,) = n.cut(0, n.apply(Dots(self._shift, self._right), *units), top=self._right - MARGIN)
        return dots.squeeze(-1).to(x.dtype)

    @property
    def _right(self) -> int:
        """How many low bits of a sum of products are right."""
        return 64 - self._shift

    @property
    def _shift(self) -> int:
        """How many bits of fraction are cut off a row of length 1."""
        return super().out_scale([]) - self.out_scale([]) // 2

    def out_scale(self, scales: Sequence[int]) -> int:
        return 30 if self.assumed is None else 40

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        whole = 64 if not self.exact.takes_rounded_shares else self._right
        return whole if min(valid) == 64 else 0

    def bound(self, bounds: Sequence[int]) -> int:
        return 0
