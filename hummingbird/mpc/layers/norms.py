"""Norms of rows (layer, group and instance norm): for every variance that fixed point holds, and in a known range.

Both take one inverse root per row; norms_in_range.py has the second. For a row of n values with 16 bits of fraction,
c = x - mean(x), S = sum of c^2 + d eps is exact, with 32 bits of fraction. The result is c sqrt(d / S). d is n for a
norm, and another number for other rows that are divided by a root: the divisor of `moments.Statistic`. S lies anywhere
between 2^-20 n and 2^30, so it is first normalized, as the mantissa of a floating-point number: comparisons with
T_j = T_0 4^j, 1 <= j <= J, where T_0 4^(J + 1) = 2^30, find the bits b_j = [S >= T_j]. From these follow, in integers,

    R = 2^J - sum_j b_j 2^(J-j)        R^2 = 4^J - sum_j 3 b_j 4^(J-j)        u = S R^2 2^-30, 1/4 <= u < 1

Then sqrt(d / S) = sqrt(d / u) R 2^-15. Where the protocol has tables (polynomials.py), u^(-1/2) on [1/4, 1] is a table
of the product S R^2 before it is truncated, and sqrt(d) a public factor; otherwise sqrt(d / u) is a linear spline.

*Error.* Each of N parties rounds its share of u by 2^-17 at most: together an error of N 2^-15 relative to u. The root
errs by half of that, and by 2^-14 of the spline or table. R is exact; the rounding of the row's factor sqrt(d / S), by
which c is multiplied, changes it by less than N 2^-16 of itself. So the relative error of a result is below
2^-14 + N 2^-15, which is 2^-13 for two parties. For a table the 2^-14 consist of 2^-15 for its pieces, 2^-16 for its
coefficients and 2^-17 for sqrt(d); u has 18 bits of fraction there, and the table's results 16, so rounding adds
N 2^-18 and N 2^-17. In addition x and its mean are rounded to 2^-16 each, which changes a result by less than
2^-15 / sqrt(variance + eps).

*Range.* S = n (variance + eps) must be below 2^30: otherwise the row becomes noise, unnoticed. If eps is below 2^-20,
rows with a variance below about 2^-20 are divided by about 2^-10, and by no less: the rounding of their values to 2^-16
is a hundredth of the values' differences or more. For rows of length 1 the least S is 2^-24, whatever n is.

*Bound.* A least number m of the root, as that of F.normalize, makes S max(S, d m^2): one more comparison in the same
message, and the thresholds start at d m^2. If this is below the least S, it is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.graph.ops.moments import Statistic
from hummingbird.graph.ops.norms import rows
from hummingbird.mpc.functions import splines
from hummingbird.mpc.functions.polynomials import ROOT_AT, PolynomialTable, choose
from hummingbird.mpc.layers.arithmetic import Arithmetic, Values
from hummingbird.mpc.layers.comparing import CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec
from hummingbird.mpc.layers.norms_in_range import (
    NormSizes,
    bits_needed,
    finer,
    norm_sizes,
    normed_in_range,
    range_serves,
)
from hummingbird.mpc.protocols.beaver import SquaredRows, Times
from hummingbird.mpc.protocols.division import DividedBy
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE

# Rows of any variance that fixed point holds --------------------------------------------------------------------------

TOP = 30  # sums of squares stay below 2^TOP: 2^62 in the ring
FLAT = 2.0**-20  # the least variance that thresholds distinguish
FAINT = 2.0**-24  # the least sum of squares that they distinguish where the root is of the sum itself
LONGEST = 1 << 20  # values in a row
FRACTION = 30  # a result has 16 + FRACTION bits of fraction
_TOLERANCE = 2.0**-14  # relative error of the spline or table
_BITS = SCALE + 3 + MARGIN  # bits of the table's results
TABLE_BITS = 19  # of u as an integer: so much of a number of scale 62 is right in the ring
_ROOT = 14  # a row's factor, below 2^11, has 16 + _ROOT bits of fraction


class Thresholds(NamedTuple):
    """The numbers T_j = least * 4^j, j = 1, ..., `steps`, with which a norm compares the sum of a row's squares."""

    least: float
    steps: int


def places(floor: float) -> Thresholds:
    """Choose and return the thresholds with which a row's sum of squares is compared.

    floor: the least sum that they distinguish: the `least` of the thresholds is at most this number.
    Raises InputError if no thresholds fit.
    """
    count = math.ceil((TOP - math.log2(floor)) / 2) - 1
    if count < 1:
        what = f"rows whose sums of squares, with eps, are {floor:g} or more"
        raise InputError(what, hint=f"shorter rows, or a smaller eps: at most 2^{TOP - 4}")
    return Thresholds(2.0 ** (TOP - 2 * (count + 1)), count)


@functools.cache
def root(length: int) -> splines.Fit:
    """Fit a spline to sqrt(length / u) for u in [1/4, 1], with relative error 2^-14, and return it.

    length: how many values a row has. For u below 1/4 the spline is constant.
    """
    u = torch.linspace(-math.log(4.0), 0.0, 4001, dtype=torch.float64).exp()
    top = math.sqrt(length)

    def function(u: Tensor) -> Tensor:
        return top * u.rsqrt()

    return splines.fit(function, u, (0.0, -top / 2), _TOLERANCE * function(u))


@functools.cache
def looked_up() -> PolynomialTable:
    """Return the table of u^(-1/2) for u in [1/4, 1], with pieces of relative error 2^-15.

    For smaller u its results are smaller than u^(-1/2), and below 2^3.
    """
    found = choose("root", 0.5 + 2.0**-6, 18, _BITS - SCALE, SCALE, _TOLERANCE / 2, 0.0, k=TABLE_BITS)
    assert found is not None
    return found


class Mantissa(NamedTuple):
    """A row's sum of squares S as u 2^30 / R^2, with u in [1/4, 1).

    u: with 32 + TOP bits of fraction on shares.
    bits: b_j for the `steps` thresholds, integers without bits of fraction.
    """

    u: Tensor
    bits: Values
    steps: int

    def powers(self, n: Arithmetic, start: int, steps: Sequence[int]) -> Tensor:
        """Compute start + the sum over j of b_j steps[j - 1], an integer without bits of fraction."""
        return n.weighted(self.bits, steps, 0, _integer(n, self.u, start))


def _integer(n: Arithmetic, like: Tensor, number: int) -> Tensor:
    # Without bits of fraction: 16 bits fewer than a value of scale 2^16 has.
    return n.times(n.units(like.new_full((), number).long()), 1, -SCALE)


def mantissa(n: Arithmetic, total: Tensor, floor: float, bound: float = 0.0) -> Mantissa:
    """Normalize sums of squares to [1/4, 1), by the rounds of a comparison and one for a product.

    total: below 2^TOP, with 32 bits of fraction on shares.
    floor: the least sum that is distinguished; smaller ones stay below 1/4.
    bound: sums below it are replaced by it.
    """
    least, count = places(max(floor, bound))
    steps = range(1, count + 1)
    numbers = [least * 4.0**j for j in steps]
    if bound:
        found, above = n.at_least(total, [bound, *numbers], SCALE)
        bits, total = found[1:], above + n.constant(bound, SCALE)
    else:
        bits, _ = n.at_least(total, numbers, SCALE)
    squared = n.weighted(bits, [-3 << 2 * (count - j) for j in steps], 0, _integer(n, total, 1 << 2 * count))
    return Mantissa(n.times(n.apply(Times(), total, squared), 1, TOP), bits, count)  # below 2^62: see TOP


def normed(n: Arithmetic, x: Tensor, statistic: Statistic, exact: Comparison, read: int = 64) -> Tensor:
    """Divide the rows of x, (..., length), by their statistic, and return them.

    n: the kind of numbers.
    exact: an exact comparison of the net's protocol.
    read: how many low bits of the result's shares later layers read, and are made right.
    On shares the result has 16 + FRACTION bits of fraction.
    """
    length = x.shape[-1]
    divisor = statistic.divisor(length)
    squares, times = n.apply(SquaredRows(read), centered(n, x, statistic.center))
    total = squares + n.constant(divisor * statistic.eps, SCALE)
    n.expects(total, 2.0**TOP, SUM)
    floor = length * FLAT if statistic.correction is not None else FAINT
    bound = divisor * statistic.least**2
    found = mantissa(n, total, max(floor, divisor * statistic.eps), bound if bound > floor else 0.0)
    up = found.powers(n, 1 << found.steps, [-(1 << found.steps - j) for j in range(1, found.steps + 1)])
    inverse = _root_of(n, found.u, divisor, exact)  # below 2^(13 + 32) for the longest rows, for which R is 2^14
    (inverse,) = n.cut(SCALE + TOP // 2 - _ROOT, n.times(n.apply(Times(), inverse, up), 1, TOP // 2))
    return times(inverse)  # below sqrt(length) 2^(16 + FRACTION)


def centered(n: Arithmetic, x: Tensor, center: bool) -> Tensor:
    """Return the rows of x, (..., length), less their means if `center` says so, which takes a round."""
    return x - n.apply(DividedBy(x.shape[-1]), x.sum(-1, keepdim=True)) if center else x


SUM = "the squares of a row, less its mean, add up to"


def _root_of(n: Arithmetic, u: Tensor, divisor: int, exact: Comparison) -> Tensor:
    """Compute sqrt(divisor / u) with 32 bits of fraction, for u from 1/4 to 1, and return it.

    n: the kind of numbers, such as shares.
    u: with 32 + TOP bits of fraction on shares.
    divisor: the sum of squares of a result.
    exact: an exact comparison of the net's protocol, used for the look-up. A protocol without tables evaluates a spline
        instead, with the comparison of `n`.
    """
    if not exact.has_tables:
        return splines.evaluate(root(divisor), cut_mantissa(n, u), n)
    moved = u - n.constant(ROOT_AT, SCALE + TOP)
    inverse = n.with_comparison(exact, 2 * SCALE + TOP).polynomial(moved, looked_up(), _BITS, whole=True)
    return n.times(inverse, round(math.sqrt(divisor) * 2.0**SCALE), SCALE)


def cut_mantissa(n: Arithmetic, u: Tensor) -> Tensor:
    """Return u, of a `Mantissa`, with 16 bits of fraction, as splines take it: one opening."""
    # `cut` takes values below 2^62, and u is below 1: without the 1/2, rounding would take u near 1 out of range.
    (moved,) = n.cut(SCALE + TOP, u - n.constant(0.5, SCALE + TOP))
    return moved + n.constant(0.5)


def check_length(values: Tensor) -> None:
    """Raise InputError unless rows (..., length) have between 1 and LONGEST values."""
    if not 0 < values.shape[-1] <= LONGEST:
        raise InputError(f"a norm over {values.shape[-1]} values", hint=f"at most {LONGEST}")


class Norm(Layer):
    """Layer that normalizes rows to mean square 1, and maybe to mean 0, as layer, group and instance norms do.

    attrs: the attributes of the graph's op "norm": sizes, eps, and whether the mean is subtracted.
    rows: the range in which variance + eps of every row lies (`BitConfig.rows`), or None.
    The layer takes three rounds if there is a range, `range_serves` holds for it, and the protocol has tables: every
    value is opened once, and each row takes a look-up and an opening.
    Otherwise it takes eight rounds, and those of a comparison. Every value is opened once, for its square and its
    product. Each row takes an opening for its mean, 2 J comparisons, where J is about 20, and a look-up. Without tables
    there are seven rounds instead of eight, and 56 more comparisons for each row.
    Raises InputError for rows of more than 2^20 values.
    """

    input_limit = SCALE
    whole_input = True

    def __init__(self, attrs: dict[str, Any], comparison: Comparison, rows: Rows | None = None) -> None:
        super().__init__()
        self.attrs, self.exact = attrs, comparison
        self.length = math.prod(attrs["sizes"]) if attrs.get("sizes") is not None else None
        longest = min(self.length or LONGEST, LONGEST)
        serves = comparison.has_tables and rows is not None and range_serves(rows, longest, self.statistic)
        self.assumed, self.told = rows if serves else None, rows
        if self.assumed is not None and self.length is not None:  # otherwise the bits that it needs are not known
            self.input_limit, self.whole_input = MAX_SCALE, False

    @property
    def comparisons(self) -> list[Comparison]:
        return [self.exact] if self.assumed is None else []

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        """Compute the layer's function of x with the operations of `n`, and return the result.

        n: the kind of numbers: real numbers, shares or prices.
        """
        values = self.rows(x)
        check_length(values)
        out = self.divided(n, values, self.read)
        return self.placed(out, x.shape).to(x.dtype)

    @property
    def statistic(self) -> Statistic:
        """The statistic by which a row is divided."""
        return Statistic(self.attrs["center"], 0, self.attrs["eps"])

    def rows(self, x: Tensor) -> Tensor:
        """Return x as (..., length), with each row in the last dimension."""
        return rows(self.attrs, x)

    def placed(self, out: Tensor, shape: Sequence[int]) -> Tensor:
        """Return rows, as `rows` makes them of a value of this shape, in their places."""
        return out.reshape(shape)

    def divided(self, n: Arithmetic, values: Tensor, read: int) -> Tensor:
        """Return rows (..., length), divided by their statistic, by a known range if there is one.

        read: how many low bits of the result's shares are made right.
        """
        if self.assumed is None:
            return normed(n, values, self.statistic, self.exact, read)
        return normed_in_range(n, values, self.statistic, self.assumed, self.exact, read)

    def forward(self, session: Session, *xs: Shared) -> Shared:
        n = Shares(session, self.exact, xs[0].scale)
        return Shared(self.formula(n, *(x.share for x in xs)), self.out_scale([x.scale for x in xs]))

    def weight_scale(self, later: int) -> int:
        return super().weight_scale(later) if self.assumed is None else SCALE

    def _prices(self, inputs: Sequence[Spec], parties: int) -> CostTensor:
        prices = CostTensor(self.exact, inputs[0].scale, parties)
        self.formula(prices, *(torch.empty(x.shape, dtype=torch.int64, device="meta") for x in inputs))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self._prices(inputs, parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return max(sum(x.numel for x in inputs), self._prices(inputs, 2).breadth)

    def out_scale(self, scales: Sequence[int]) -> int:
        return SCALE + (FRACTION if self.assumed is None else finer(self.statistic))

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return 64 if valid[0] >= self.needs(scales, 64) else 0  # no bit is right: the planner tries another form

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.whole_input or self._sizes is None:
            return 64
        return bits_needed(self._sizes, scales[0])

    def reads(self, later: int | None) -> int | None:
        # Only differences from the mean count, however large the mean is.
        if self.whole_input or self._sizes is None:
            return None
        return bits_needed(self._sizes, SCALE) - SCALE

    @property
    def _sizes(self) -> NormSizes | None:
        """The numbers of this norm for a known range of variance + eps; None if the layer uses no range.

        If the rows' length is not known yet, the numbers are those of the longest rows.
        """
        if self.assumed is None:
            return None
        length = self.length or LONGEST
        return norm_sizes(length, self.attrs["center"], self.assumed, length)

    def bound(self, bounds: Sequence[int]) -> int:
        return ((self.length or LONGEST) - 1).bit_length() // 2 + 1  # |result| <= sqrt(length of a row)

    def constants(self) -> tuple[int, ...]:
        if self._sizes is not None:
            return self._sizes.numbers
        if self.exact.has_tables:
            table = looked_up()
            return table.w, table.degree
        return () if self.length is None else root(self.length).numbers

    def label(self) -> str:
        if self.assumed is not None:
            assert self._sizes is not None
            return f"variance + eps of a row in {self.assumed}: {self._sizes.table.shown}"
        beyond = "" if self.told is None else f", no table for {self.told}"
        return f"squares of a row, less its mean, below 2^{TOP} together: comparisons{beyond}"
