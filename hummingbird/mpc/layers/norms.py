"""Norms of rows (layer, group and instance norm): for every variance that fixed point holds, and in a known range.

Both take one inverse root per row. For a row of n values with 16 bits of fraction, c = x - mean(x), S = sum of c^2 +
n eps is exact, with 32 bits of fraction. The result is c sqrt(n / S). S lies anywhere between 2^-20 n and 2^30, so it
is first normalized, as the mantissa of a floating-point number: comparisons with T_j = T_0 4^j, 1 <= j <= J, where
T_0 4^(J + 1) = 2^30, find the bits b_j = [S >= T_j]. From these follow, in integers,

    R = 2^J - sum_j b_j 2^(J-j)        R^2 = 4^J - sum_j 3 b_j 4^(J-j)        u = S R^2 2^-30, 1/4 <= u < 1

Then sqrt(n / S) = sqrt(n / u) R 2^-15. Where the protocol has tables (polynomials.py), u^(-1/2) on [1/4, 1] is a table
of the product S R^2 before it is truncated, and sqrt(n) a public factor; otherwise sqrt(n / u) is a linear spline.

*Error.* Each of N parties rounds its share of u by 2^-17 at most: together an error of N 2^-15 relative to u. The root
errs by half of that, and by 2^-14 of the spline or table. R is exact; the rounding of the row's factor sqrt(n / S), by
which c is multiplied, changes it by less than N 2^-16 of itself. So the relative error of a result is below
2^-14 + N 2^-15, which is 2^-13 for two parties. For a table the 2^-14 consist of 2^-15 for its pieces, 2^-16 for its
coefficients and 2^-17 for sqrt(n); u has 18 bits of fraction there, and the table's results 16, so rounding adds
N 2^-18 and N 2^-17. In addition x and its mean are rounded to 2^-16 each, which changes a result by less than
2^-15 / sqrt(variance + eps).

*Range.* S = n (variance + eps) must be below 2^30: otherwise the row becomes noise, unnoticed. If eps is below 2^-20,
rows with a variance below about 2^-20 are divided by about 2^-10, and by no less: the rounding of their values to 2^-16
is a hundredth of the values' differences or more.
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
from hummingbird.graph.ops.norms import rows
from hummingbird.mpc.functions import splines
from hummingbird.mpc.functions.polynomials import GAIN, ROOT_AT, WIDEST_OF_ROWS, PolynomialTable, choose, root_at
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec
from hummingbird.mpc.protocols.beaver import SquaredRows, Times
from hummingbird.mpc.protocols.division import DividedBy
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.rows import LiftedSquaredRows, RowWidths
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE

# Rows in a known range ------------------------------------------------------------------------------------------------
#
# The variance + eps of every row is assumed to lie in this range: three rounds without a comparison.
#
# *Opening.* From its shares of a row of n values x, of any scale, every party computes q (n x - sum of x) 2^-L. This
# is kappa c exactly, for c = x - mean(x) and kappa = q n 2^-L, without a division by n; q is an integer of four bits.
# The opening cuts its fraction to f bits (protocols/rows.py): z is kappa c in units of 2^-f. f is such that 2^f kappa
# sqrt(variance + eps) is 2^16 or more. Since |c| <= sqrt(n most), k bits hold z, however large the mean is. The sum
# of squares and the last product use the same opening.
#
# *Look-up.* S = sum of z^2 + n eps (2^f kappa)^2 is below 0.96 2^P. u = S 2^-P, in [2^-D, 0.96], is S read with more
# bits of fraction; q is chosen so that the largest u is close to 0.96. v = g u^(-1/2) is the table "root-D"
# (polynomials.py) with the gain g = 2^E sqrt(n) 2^(-P/2), 1 <= g < 2.
#
# *Product.* A result is c sqrt(n / sum of (c^2 + eps)) = z v 2^-E. Only v is opened for it, in K bits. The same
# message cuts the product to 18 bits of fraction, and it is right in the whole ring.
#
# *Error.* The relative error of v is 2^-14 + N (2^-16 + 2^-17): 3 2^-16 for the table's pieces with their
# coefficients, 2^-17 as masks move these, 2^-17 for g, N 2^-16 for u, which is rounded by N/2 units of 2^-(D + 14), N
# 2^-15 of it, and N 2^-17 for v's 16 bits of fraction. z is rounded by N/2 units, which changes the root of S by N
# 2^-17 of it at most. So the relative error of a result is below 2^-14 + N 2^-15, as with comparisons. The rounding
# of its own z adds N 2^-17, and the last cut (N + 1) 2^-19.
#
# *Range.* If variance + eps exceeds `most`, the row becomes noise, unnoticed: S leaves the table, or z its k bits. If
# it is below `least`, v is too small, never too large, since the table continues below 2^-D.

WIDEST = 8  # log2 of the largest ratio of variances: a table of 2^12 pieces
FLATTEST, STEEPEST = -24, 16  # log2 of the least and the largest variance + eps that are served
_BELOW = 14  # bits of fraction of u beyond the D of its least value
_FULL = 0.96  # the largest u: tables of 2^5 pieces or more reach it
_SLACK = 2.0**-10  # of S: the parties' rounding changes S by N 2^-16 of it
FRACTION_IN_RANGE = 2  # a result has 16 + FRACTION_IN_RANGE bits of fraction
_UNITS = 16  # of z and of v: rounding by N/2 units, for up to 32 parties
_STEPS = 3  # bits of q after its first
_ABOVE = 2.34  # v at u = 0, divided by g 2^(D/2)


class NormSizes(NamedTuple):
    """Numbers of bits, and a table, by which a norm over rows of n values computes its results if a range is known.

    The layer computes a result as z v 2^-E. z is an input, less its row's mean, in other units. v is 2^E sqrt(n / S),
    where S is the sum of z^2 over the row, plus eps in the same units.
    factor, spread: q and L: an input x becomes y = q (n x - sum of x) 2^-L, or q x 2^-L if the mean is not subtracted.
    fraction, value: z is y with `fraction` bits of fraction, opened in `value` bits.
    top: P: S is below 0.96 2^P. The table's argument is u = S 2^-P.
    table: of v = g u^(-1/2), where its gain g is in [1, 2).
    root: D: the table is right for u in [2^-D, 0.96].
    opened: how many bits of v are opened.
    cut: how many bits of fraction are cut off the product z v: E - FRACTION_IN_RANGE.
    """

    factor: int
    spread: int
    fraction: int
    value: int
    top: int
    table: PolynomialTable
    root: int
    opened: int
    cut: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers of this record and of its table, which must be equal at all parties."""
        *sizes, table, root, opened, cut = self
        return (*sizes, table.k, table.w, table.degree, table.gain, root, opened, cut)


def range_serves(rows: Rows, length: int, eps: float) -> bool:
    """Return whether `norm_sizes` finds numbers for rows of up to `length` values: a table, and room in the ring.

    rows: the range in which variance + eps of every row lies.
    eps: the number that the norm adds to the variance.
    """
    low, high = math.log2(rows.least), math.log2(rows.most)
    ends = FLATTEST <= low and high <= STEEPEST and high - low <= WIDEST and eps <= rows.most
    # P <= 62, and `bits_needed` of values of scale 2^16 is at most 64.
    top = math.log2(length) + 2 * (SCALE + 1) + high - low + 0.3 <= 62
    values = 1.5 * math.log2(length) + high / 2 + SCALE + 3 + _STEPS + 1 + MARGIN <= 64
    return ends and top and values


@functools.lru_cache(1024)
def norm_sizes(length: int, center: bool, rows: Rows) -> NormSizes:
    """Compute the numbers of bits and the table of a norm over rows of `length` values in a known range (`NormSizes`).

    center: whether the mean is subtracted.
    rows: the range in which variance + eps of every row lies; `range_serves` must hold for it.
    """
    number = length if center else 1
    spread = (number - 1).bit_length() + _STEPS
    choices = []
    for factor in range(1 << _STEPS, 2 << _STEPS):
        fine = math.ceil(SCALE + spread - math.log2(factor * number * math.sqrt(rows.least)))
        scaled = factor * number * 2.0 ** (fine - spread)  # 2^f kappa
        most = length * rows.most * scaled**2 * (1 + _SLACK)
        top = math.ceil(math.log2(most / _FULL))
        choices.append((most * 2.0**-top, -factor, fine, scaled, top))
    highest, factor, fine, scaled, top = max(choices)
    lowest = highest * rows.least / rows.most * (1 - 2 * _SLACK)
    depth = math.ceil(-math.log2(lowest))
    exponent = math.ceil(top / 2 - math.log2(length) / 2)
    gain = round(math.sqrt(length) * 2.0 ** (exponent - top / 2) * GAIN)
    opened = (math.ceil(_ABOVE * 2.0 ** (depth / 2) * gain) + _UNITS).bit_length() + MARGIN  # GAIN is 2^16 as well
    value = (math.ceil(math.sqrt(length * rows.most) * scaled) + _UNITS).bit_length() + MARGIN
    at = root_at(depth)
    reach = max(at - lowest, highest - at)
    allowed = 3 * 2.0**-16
    table = choose(f"root-{depth}", reach, depth + _BELOW, opened - SCALE, SCALE, allowed, 0.0, WIDEST_OF_ROWS, gain)
    assert table is not None and table.k == table.fraction, "see WIDEST: u fills the table"
    cut = exponent - FRACTION_IN_RANGE  # z v has 16 + E bits of fraction
    assert 0 <= cut <= min(value, opened) and value + opened <= 61 and top <= 62, "see `range_serves`"
    return NormSizes(-factor, spread, fine, value, top, table, depth, opened, cut)


def bits_needed(found: NormSizes, scale: int) -> int:
    """Return how many low bits of the shares of a norm's inputs must be right.

    found: the norm's numbers.
    scale: bits of fraction of the inputs.
    """
    return found.value + max(0, scale + found.spread - found.fraction)


def normed_in_range(
    n: Arithmetic, x: Tensor, eps: float, center: bool, rows: Rows, exact: Comparison, read: int = 64
) -> Tensor:
    """Normalize the rows of x, (..., length), to mean square 1, in the few rounds that a known range allows.

    Returns the rows. On shares they have 16 + FRACTION_IN_RANGE bits of fraction.
    n: the kind of numbers, such as shares.
    eps: added to the mean square before the root.
    center: whether the mean is subtracted first.
    rows: the range in which variance + eps of every row lies.
    exact: an exact comparison of the net's protocol.
    read: how many low bits of the result's shares later layers read, and are made right.
    """
    length = x.shape[-1]
    found = norm_sizes(length, center, rows)
    number = found.factor * length if center else found.factor
    x = n.precise(x, 2 * SCALE)  # n x and the sum of x may be much larger than their difference
    y = n.times(x, number, found.spread)
    if center:
        y = y - n.times(x.sum(-1, keepdim=True), found.factor, found.spread)
    shift = n.scale + found.spread - found.fraction
    if shift < 0:
        y = n.times(y, 1 << -shift, -shift)
    product = max(read, found.value + 1 - found.cut, found.opened + 1 - found.cut)
    widths = RowWidths(found.value, found.opened, found.top, product, found.cut)
    squares, times = n.apply(LiftedSquaredRows(max(0, shift), widths), y)
    unit = length * (number * 2.0**-found.spread) ** 2
    total = squares + n.constant(unit * eps, 2 * found.fraction - SCALE)
    n.expects(total, rows.most * (1 + _SLACK), _WHAT, rows.least * (1 - _SLACK), unit)
    u = n.times(total, 1, found.top - 2 * found.fraction) - n.constant(root_at(found.root), found.top - SCALE)
    v = n.with_comparison(exact, found.top).polynomial(u, found.table, found.opened)
    return n.times(times(v), 1, found.cut + FRACTION_IN_RANGE - found.fraction)


_WHAT = "the variance of a row, and eps, is"


# Rows of any variance that fixed point holds --------------------------------------------------------------------------

TOP = 30  # sums of squares stay below 2^TOP: 2^62 in the ring
FLAT = 2.0**-20  # the least variance that thresholds distinguish
LONGEST = 1 << 20  # values in a row
FRACTION = 30  # a result has 16 + FRACTION bits of fraction
_TOLERANCE = 2.0**-14  # relative error of the spline or table
_BITS = SCALE + 3 + MARGIN  # bits of the table's results
_ROOT = 14  # a row's factor, below 2^11, has 16 + _ROOT bits of fraction


class Thresholds(NamedTuple):
    """The numbers T_j = least * 4^j, j = 1, ..., `steps`, with which a norm compares the sum of a row's squares."""

    least: float
    steps: int


def places(length: int, eps: float) -> Thresholds:
    """Choose and return the thresholds with which a norm compares a row's sum of squares.

    length: how many values a row has.
    eps: the number that the norm adds to the mean square.
    The `least` of the thresholds is at most length * max(eps, 2^-20). So a sum can be smaller only in a row with
    variance + eps below 2^-20.
    Raises InputError if no thresholds fit.
    """
    count = math.ceil((TOP - math.log2(length * max(eps, FLAT))) / 2) - 1
    if count < 1:
        raise InputError(f"a norm over {length} values with eps={eps:g}", hint=f"their product is at most 2^{TOP - 4}")
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
    found = choose("root", 0.5 + 2.0**-6, 18, _BITS - SCALE, SCALE, _TOLERANCE / 2, 0.0)
    assert found is not None and found.k == 19, "so much of a number of scale 62 is right in the ring"
    return found


def normed(n: Arithmetic, x: Tensor, eps: float, center: bool, exact: Comparison, read: int = 64) -> Tensor:
    """Normalize the rows of x, (..., length), to mean square 1, and return them.

    n: the kind of numbers, such as shares.
    eps: added to the mean square before the root.
    center: whether the mean is subtracted first.
    exact: an exact comparison of the net's protocol.
    read: how many low bits of the result's shares later layers read, and are made right.
    On shares the result has 16 + FRACTION bits of fraction.
    """
    length = x.shape[-1]
    centered = x - n.apply(DividedBy(length), x.sum(-1, keepdim=True)) if center else x
    squares, times = n.apply(SquaredRows(read), centered)
    total = squares + n.constant(length * eps, SCALE)
    n.expects(total, 2.0**TOP, "the squares of a row, less its mean, add up to")
    least, count = places(length, eps)
    bits = n.at_least(total, [least * 4.0**j for j in range(1, count + 1)], SCALE)
    # Integers without bits of fraction: 16 bits fewer than a value of scale 2^16 has.
    most, most_squared = (n.times(n.units(total.new_full((), 1 << k * count).long()), 1, -SCALE) for k in (1, 2))
    up = n.weighted(bits, [-(1 << (count - j)) for j in range(1, count + 1)], 0, most)
    up_squared = n.weighted(bits, [-3 << 2 * (count - j) for j in range(1, count + 1)], 0, most_squared)
    u = n.times(n.apply(Times(), total, up_squared), 1, TOP)  # below 2^62: see TOP
    inverse = _root_of(n, u, length, exact)  # below 2^(13 + 32) for the longest rows, for which R is 2^14
    (inverse,) = n.cut(SCALE + TOP // 2 - _ROOT, n.times(n.apply(Times(), inverse, up), 1, TOP // 2))
    return times(inverse)  # below sqrt(length) 2^(16 + FRACTION)


def _root_of(n: Arithmetic, u: Tensor, length: int, exact: Comparison) -> Tensor:
    """Compute sqrt(length / u) with 32 bits of fraction, for u from 1/4 to 1, and return it.

    n: the kind of numbers, such as shares.
    u: with 32 + TOP bits of fraction on shares.
    length: how many values a row has.
    exact: an exact comparison of the net's protocol, used for the look-up. A protocol without tables evaluates a spline
        instead, with the comparison of `n`.
    """
    if not exact.looks_up:
        # `cut` takes values below 2^62, and u is below 1: without the 1/2, rounding would take u near 1 out of range.
        (moved,) = n.cut(SCALE + TOP, u - n.constant(0.5, SCALE + TOP))
        return splines.evaluate(root(length), moved + n.constant(0.5), n)
    found = looked_up()
    moved = u - n.constant(ROOT_AT, SCALE + TOP)
    inverse = n.with_comparison(exact, 2 * SCALE + TOP).polynomial(moved, found, _BITS, whole=True)
    return n.times(inverse, round(math.sqrt(length) * 2.0**SCALE), SCALE)


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
        self.length = math.prod(attrs["sizes"]) if attrs["sizes"] is not None else None
        longest = min(self.length or LONGEST, LONGEST)
        serves = comparison.looks_up and rows is not None and range_serves(rows, longest, attrs["eps"])
        self.assumed, self.told = rows if serves else None, rows
        if self.assumed is not None and self.length is not None:  # otherwise the bits that it needs are not known
            self.input_limit, self.whole_input = MAX_SCALE, False

    @property
    def comparisons(self) -> list[Comparison]:
        return [self.exact] if self.assumed is None else []

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        """Compute the layer's function of x with the operations of `n`, and return the result.

        n: the kind of numbers: real numbers, shares or prices.
        """
        values = rows(self.attrs, x)
        if not 0 < values.shape[-1] <= LONGEST:
            raise InputError(f"a norm over {values.shape[-1]} values", hint=f"at most {LONGEST}")
        eps, center = self.attrs["eps"], self.attrs["center"]
        if self.assumed is None:
            out = normed(n, values, eps, center, self.exact, self.read)
        else:
            out = normed_in_range(n, values, eps, center, self.assumed, self.exact, self.read)
        return out.reshape(x.shape).to(x.dtype)

    def forward(self, session: Session, x: Shared) -> Shared:
        n = Shares(session, self.exact, x.scale)
        return Shared(self.formula(n, x.share), self.out_scale([x.scale]))

    def weight_scale(self, later: int) -> int:
        return super().weight_scale(later) if self.assumed is None else SCALE

    def _prices(self, x: Spec, parties: int) -> CostTensor:
        prices = CostTensor(self.exact, x.scale, parties)
        self.formula(prices, torch.empty(x.shape, dtype=torch.int64, device="meta"))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self._prices(inputs[0], parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return max(inputs[0].numel, self._prices(inputs[0], 2).breadth)

    def out_scale(self, scales: Sequence[int]) -> int:
        return SCALE + (FRACTION if self.assumed is None else FRACTION_IN_RANGE)

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
        return norm_sizes(self.length or LONGEST, self.attrs["center"], self.assumed)

    def bound(self, bounds: Sequence[int]) -> int:
        return ((self.length or LONGEST) - 1).bit_length() // 2 + 1  # |result| <= sqrt(length of a row)

    def constants(self) -> tuple[int, ...]:
        if self._sizes is not None:
            return self._sizes.numbers
        if self.exact.looks_up:
            table = looked_up()
            return table.w, table.degree
        return () if self.length is None else root(self.length).numbers

    def label(self) -> str:
        if self.assumed is not None:
            assert self._sizes is not None
            return f"variance + eps of a row in {self.assumed}: {self._sizes.table.shown}"
        beyond = "" if self.told is None else f", no table for {self.told}"
        return f"squares of a row, less its mean, below 2^{TOP} together: comparisons{beyond}"
