"""Norms of rows in a known range: three rounds without a comparison.

The variance + eps of every row is assumed to lie in this range. If the sum of squares S is divided by d, and not by n
as for a variance, the range is that of S / d, and n least and n most below stand for d least and d most.

*Opening.* From its shares of a row of n values x, of any scale, every party computes q (n x - sum of x) 2^-L. This is
kappa c exactly, for c = x - mean(x) and kappa = q n 2^-L, without a division by n; q is an integer of four bits. The
opening cuts its fraction to f bits (protocols/rows.py): z is kappa c in units of 2^-f. f is such that 2^f kappa
sqrt(variance + eps) is 2^16 or more. Since |c| <= sqrt(n most), k bits hold z, however large the mean is. The sum of
squares and the last product use the same opening.

*Look-up.* S = sum of z^2 + n eps (2^f kappa)^2 is below 0.96 2^P. u = S 2^-P, in [2^-D, 0.96], is S read with more bits
of fraction; q is chosen so that the largest u is close to 0.96. v = g u^(-1/2) is the table "root-D" (polynomials.py)
with the gain g = 2^E sqrt(d) 2^(-P/2), 1 <= g < 2.

*Product.* A result is c sqrt(d / S) = z v 2^-E. Only v is opened for it, in K bits. The same message cuts the product
to 18 bits of fraction, or to 28 for rows of length 1, whose values are small; it is right in the whole ring.

*Error.* The relative error of v is 2^-14 + N (2^-16 + 2^-17): 3 2^-16 for the table's pieces with their coefficients,
2^-17 as masks move these, 2^-17 for g, N 2^-16 for u, which is rounded by N/2 units of 2^-(D + 14), N 2^-15 of it, and
N 2^-17 for v's 16 bits of fraction. z is rounded by N/2 units, which changes the root of S by N 2^-17 of it at most. So
the relative error of a result is below 2^-14 + N 2^-15, as with comparisons. The rounding of its own z adds N 2^-17 of
the row's root mean square, and the last cut (N + 1)/2 units.

*Range.* If variance + eps exceeds `most`, the row becomes noise, unnoticed: S leaves the table, or z its k bits. If it
is below `least`, v is too small, never too large, since the table continues below 2^-D.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.graph.ops.moments import Statistic
from hummingbird.mpc.functions.polynomials import GAIN, WIDEST_OF_ROWS, PolynomialTable, choose, root_at
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.layer import MARGIN
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.rows import LiftedSquaredRows, RowWidths
from hummingbird.ring import SCALE

WIDEST = 8  # log2 of the largest ratio of variances: a table of 2^12 pieces
FLATTEST, STEEPEST = -24, 18  # log2 of the least and the largest variance + eps that are served
LARGEST = 30  # log2 of the largest sum of squares that is served where the root is of the sum itself
BELOW = 14  # bits of fraction of u beyond the D of its least value
_FULL = 0.96  # the largest u: tables of 2^5 pieces or more reach it
_SLACK = 2.0**-10  # of S: the parties' rounding changes S by N 2^-16 of it
FRACTION_IN_RANGE = 2  # a result has 16 + FRACTION_IN_RANGE bits of fraction
FRACTION_OF_LENGTH_1 = 12  # the same for rows of length 1: 2^10 values of one size are below 2^-5
_UNITS = 16  # of z and of v: rounding by N/2 units, for up to 32 parties
_STEPS = 3  # bits of q after its first
_ABOVE = 2.34  # v at u = 0, divided by g 2^(D/2)


class RowOpenings(NamedTuple):
    """Numbers of bits by which rows in a known range are opened, and the argument of a table found: see `NormSizes`.

    factor, spread, fraction, value, top, root: as in `NormSizes`.
    scaled: 2^f kappa.
    least, most: the ends of u.
    """

    factor: int
    spread: int
    fraction: int
    value: int
    top: int
    root: int
    scaled: float
    least: float
    most: float

    @property
    def reach(self) -> float:
        """How far from 0 the table's argument u - `root_at(root)` may be."""
        at = root_at(self.root)
        return max(at - self.least, self.most - at)


class NormSizes(NamedTuple):
    """Numbers of bits, and a table, by which a norm over rows of n values computes its results if a range is known.

    The layer computes a result as z v 2^-E. z is an input, less its row's mean, in other units. v is 2^E sqrt(d / S),
    where S is the sum of z^2 over the row, plus eps in the same units.
    factor, spread: q and L: an input x becomes y = q (n x - sum of x) 2^-L, or q x 2^-L if the mean is not subtracted.
    fraction, value: z is y with `fraction` bits of fraction, opened in `value` bits.
    top: P: S is below 0.96 2^P. The table's argument is u = S 2^-P.
    table: of v = g u^(-1/2), where its gain g is in [1, 2).
    root: D: the table is right for u in [2^-D, 0.96].
    opened: how many bits of v are opened.
    cut: how many bits of fraction are cut off the product z v: E, less the result's beyond 16.
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


def range_serves(rows: Rows, length: int, found: Statistic) -> bool:
    """Return whether there are numbers for rows of up to `length` values: a table, and room in the ring.

    rows: the range in which the statistic `found` of every row lies, before its root is taken.
    """
    low, high, long = math.log2(rows.least), math.log2(rows.most), math.log2(length)
    steepest = STEEPEST if found.correction is not None else LARGEST
    ends = FLATTEST <= low and high <= steepest and high - low <= WIDEST and found.eps <= rows.most
    ends = ends and found.least**2 <= rows.least  # no row of the range is bounded
    # P <= 62, and `bits_needed` of values of scale 2^16 is at most 64.
    top = long + 2 * (SCALE + 1) + high - low + 0.3 <= 62
    largest = high / 2 + (long / 2 if found.correction is not None else 0)  # log2 of the root of a sum of squares
    values = largest + (long if found.center else 0) + SCALE + 3 + _STEPS + 1 + MARGIN <= 64
    return ends and top and values


@functools.lru_cache(1024)
def row_openings(length: int, center: bool, rows: Rows) -> RowOpenings:
    """Compute the numbers of bits in which rows of `length` values are opened, whose squares are in a known range.

    center: whether the mean is subtracted.
    rows: the range of S / length of every row; `range_serves` must hold.
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
    value = (math.ceil(math.sqrt(length * rows.most) * scaled) + _UNITS).bit_length() + MARGIN
    assert top <= 62, "see `range_serves`"
    return RowOpenings(-factor, spread, fine, value, top, depth, scaled, lowest, highest)


def mean_squares(rows: Rows, divisor: int, length: int) -> Rows:
    """Return the range of S / length for rows whose S / divisor is in the range `rows`."""
    return rows if divisor == length else Rows(rows.least * divisor / length, rows.most * divisor / length)


@functools.lru_cache(1024)
def norm_sizes(length: int, center: bool, rows: Rows, divisor: int, finer: int = FRACTION_IN_RANGE) -> NormSizes:
    """Compute the numbers of bits and the table of a norm over rows of `length` values in a known range (`NormSizes`).

    center: whether the mean is subtracted.
    rows: the range in which S / divisor of every row lies; `range_serves` must hold for it.
    divisor: d, the sum of squares of a result: `length` for a norm, 1 for rows of length 1.
    finer: a result has 16 + this many bits of fraction.
    """
    found = row_openings(length, center, mean_squares(rows, divisor, length))
    exponent = math.ceil(found.top / 2 - math.log2(divisor) / 2)
    gain = round(math.sqrt(divisor) * 2.0 ** (exponent - found.top / 2) * GAIN)
    opened = (math.ceil(_ABOVE * 2.0 ** (found.root / 2) * gain) + _UNITS).bit_length() + MARGIN  # GAIN is 2^16 as well
    name, allowed = f"root-{found.root}", 3 * 2.0**-16
    fraction = found.root + BELOW
    table = choose(name, found.reach, fraction, opened - SCALE, SCALE, allowed, 0.0, WIDEST_OF_ROWS, gain, k=fraction)
    assert table is not None, "see WIDEST: u fills the table"
    cut = exponent - finer  # z v has 16 + E bits of fraction
    assert 0 <= cut <= min(found.value, opened) and found.value + opened <= 61, "see `range_serves`"
    return NormSizes(*found[:5], table, found.root, opened, cut)


def bits_needed(found: NormSizes | RowOpenings, scale: int) -> int:
    """Return how many low bits of the shares of a norm's inputs must be right.

    found: the norm's numbers.
    scale: bits of fraction of the inputs.
    """
    return found.value + max(0, scale + found.spread - found.fraction)


class InRange(NamedTuple):
    """Rows in a known range before they are opened.

    y: the rows, in other units than the layer's input.
    shift: how many bits of fraction the opening cuts off y; the rest is z.
    unit: kappa^2, the square of the factor between the units.
    """

    y: Tensor
    shift: int
    unit: float


def spread_out(n: Arithmetic, x: Tensor, center: bool, found: NormSizes | RowOpenings) -> InRange:
    """Return y = kappa c for the rows x, (..., length), less their means if `center` says so; nothing is sent."""
    number = found.factor * x.shape[-1] if center else found.factor
    x = n.precise(x, 2 * SCALE)  # n x and the sum of x may be much larger than their difference
    y = n.times(x, number, found.spread)
    if center:
        y = y - n.times(x.sum(-1, keepdim=True), found.factor, found.spread)
    shift = n.scale + found.spread - found.fraction
    if shift < 0:
        y = n.times(y, 1 << -shift, -shift)
    return InRange(y, max(0, shift), (number * 2.0**-found.spread) ** 2)


def argument(
    n: Arithmetic, squares: Tensor, found: NormSizes | RowOpenings, rows: Rows, eps: float, unit: float, what: str
) -> Tensor:
    """Return the argument of a table, u - `root_at`, for the sums of z^2 over rows.

    rows: the range of these sums plus eps, in multiples of `unit`, which a simulation checks.
    eps: is added to the sums in multiples of `unit`.
    unit: d kappa^2.
    what: the name of the sums in the simulation's warning.
    """
    total = squares + n.constant(unit * eps, 2 * found.fraction - SCALE)
    n.expects(total, rows.most * (1 + _SLACK), what, rows.least * (1 - _SLACK), unit)
    return n.times(total, 1, found.top - 2 * found.fraction) - n.constant(root_at(found.root), found.top - SCALE)


def normed_in_range(
    n: Arithmetic, x: Tensor, statistic: Statistic, rows: Rows, exact: Comparison, read: int = 64
) -> Tensor:
    """Divide the rows of x, (..., length), by their statistic, in the few rounds that a known range allows.

    Returns the rows. On shares they have 16 + `finer(statistic)` bits of fraction.
    n: the kind of numbers, such as shares.
    rows: the range in which the statistic of every row lies, before its root is taken.
    exact: an exact comparison of the net's protocol.
    read: how many low bits of the result's shares later layers read, and are made right.
    """
    length, more = x.shape[-1], finer(statistic)
    divisor = statistic.divisor(length)
    found = norm_sizes(length, statistic.center, rows, divisor, more)
    y, shift, unit = spread_out(n, x, statistic.center, found)
    product = max(read, found.value + 1 - found.cut, found.opened + 1 - found.cut)
    widths = RowWidths(found.value, found.opened, found.top, product, found.cut)
    squares, times = n.apply(LiftedSquaredRows(shift, widths), y)
    u = argument(n, squares, found, rows, statistic.eps, divisor * unit, f"{under_root(statistic)} is")
    v = n.with_comparison(exact, found.top).polynomial(u, found.table, found.opened)
    return n.times(times(v), 1, found.cut + more - found.fraction)


def finer(statistic: Statistic) -> int:
    """Return how many bits of fraction beyond 16 the rows have that a known range divides by this statistic."""
    return FRACTION_IN_RANGE if statistic.correction is not None else FRACTION_OF_LENGTH_1


def under_root(statistic: Statistic) -> str:
    """Return the name, in texts for users, of the number under the root."""
    return "the variance of a row, and eps," if statistic.correction is not None else "the sum of a row's squares"
