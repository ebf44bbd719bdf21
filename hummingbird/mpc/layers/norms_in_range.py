"""Norms of rows whose variance + eps is assumed to lie in a known range: three rounds without a comparison.

*Opening.* From its shares of a row of n values x, of any scale, every party computes q (n x - sum of x) 2^-L. This is
kappa c exactly, for c = x - mean(x) and kappa = q n 2^-L, without a division by n; q is an integer of four bits. The
opening cuts its fraction to f bits (protocols/rows.py): z is kappa c in units of 2^-f. f is such that 2^f kappa
sqrt(variance + eps) is 2^16 or more. Since |c| <= sqrt(n most), k bits hold z, however large the mean is. The sum of
squares and the last product use the same opening.

*Look-up.* S = sum of z^2 + n eps (2^f kappa)^2 is below 0.96 2^P. u = S 2^-P, in [2^-D, 0.96], is S read with more bits
of fraction; q is chosen so that the largest u is close to 0.96. v = g u^(-1/2) is the table "root-D" (polynomials.py)
with the gain g = 2^E sqrt(n) 2^(-P/2), 1 <= g < 2.

*Product.* A result is c sqrt(n / sum of (c^2 + eps)) = z v 2^-E. Only v is opened for it, in K bits. The same message
cuts the product to 18 bits of fraction, and it is right in the whole ring.

*Error.* The relative error of v is 2^-14 + N (2^-16 + 2^-17): 3 2^-16 for the table's pieces with their coefficients,
2^-17 as masks move these, 2^-17 for g, N 2^-16 for u, which is rounded by N/2 units of 2^-(D + 14), N 2^-15 of it, and
N 2^-17 for v's 16 bits of fraction. z is rounded by N/2 units, which changes the root of S by N 2^-17 of it at most. So
the relative error of a result is below 2^-14 + N 2^-15, as with comparisons. The rounding of its own z adds N 2^-17,
and the last cut (N + 1) 2^-19.

*Range.* If variance + eps exceeds `most`, the row becomes noise, unnoticed: S leaves the table, or z its k bits. If it
is below `least`, v is too small, never too large, since the table continues below 2^-D.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.mpc.functions.polynomials import GAIN, WIDEST_OF_ROWS, PolynomialTable, choose, root_at
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.layer import MARGIN
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.rows import LiftedSquaredRows, RowWidths
from hummingbird.ring import SCALE

WIDEST = 8  # log2 of the largest ratio of variances: a table of 2^12 pieces
FLATTEST, STEEPEST = -24, 16  # log2 of the least and the largest variance + eps that are served
_BELOW = 14  # bits of fraction of u beyond the D of its least value
_FULL = 0.96  # the largest u: tables of 2^5 pieces or more reach it
_SLACK = 2.0**-10  # of S: the parties' rounding changes S by N 2^-16 of it
FRACTION = 2  # a result has 16 + FRACTION bits of fraction
_UNITS = 16  # of z and of v: rounding by N/2 units, for up to 32 parties
_STEPS = 3  # bits of q after its first
_ABOVE = 2.34  # v at u = 0, divided by g 2^(D/2)


class NormSizes(NamedTuple):
    """The numbers of a norm over rows of one length n, from which the layer computes a result as z v 2^-E.

    factor, spread: q and L: an input x becomes y = q (n x - sum of x) 2^-L, or q x 2^-L if the mean is not subtracted.
    fraction, value: z is y with `fraction` bits of fraction, opened in `value` bits.
    top: P: S, the sum of z^2 over a row plus the term of eps, is below 0.96 2^P; u is S 2^-P.
    table: of v = g u^(-1/2), where its gain g is in [1, 2).
    root: D: the table is right for u in [2^-D, 0.96].
    opened: how many bits of v are opened.
    cut: how many bits of fraction are cut off the product z v: E - FRACTION.
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
        """The numbers of the norm that must be the same at all parties."""
        *sizes, table, root, opened, cut = self
        return (*sizes, table.k, table.w, table.degree, table.gain, root, opened, cut)


def serves(rows: Rows, length: int, eps: float) -> bool:
    """Whether `sizes` exist for rows of up to `length` values: whether the numbers fit the ring, and a table exists."""
    low, high = math.log2(rows.least), math.log2(rows.most)
    ends = FLATTEST <= low and high <= STEEPEST and high - low <= WIDEST and eps <= rows.most
    # P <= 62, and `needed` of values of scale 2^16 is at most 64.
    top = math.log2(length) + 2 * (SCALE + 1) + high - low + 0.3 <= 62
    values = 1.5 * math.log2(length) + high / 2 + SCALE + 3 + _STEPS + 1 + MARGIN <= 64
    return ends and top and values


@functools.lru_cache(1024)
def sizes(length: int, center: bool, rows: Rows) -> NormSizes:
    """Compute the numbers of a norm over rows of `length` values; `serves` must hold.

    center: whether the mean is subtracted.
    rows: the range in which variance + eps of every row lies.
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
    cut = exponent - FRACTION  # z v has 16 + E bits of fraction
    assert 0 <= cut <= min(value, opened) and value + opened <= 61 and top <= 62, "see `serves`"
    return NormSizes(-factor, spread, fine, value, top, table, depth, opened, cut)


def needed(found: NormSizes, scale: int) -> int:
    """How many low bits of the shares of a norm's inputs must be right. scale: bits of fraction of the inputs."""
    return found.value + max(0, scale + found.spread - found.fraction)


def normed(n: Arithmetic, x: Tensor, eps: float, center: bool, rows: Rows, exact: Comparison, read: int = 64) -> Tensor:
    """Normalize the rows of x, (..., length), to mean square 1.

    eps: added to the mean square before the root.
    center: whether the mean is subtracted first.
    rows: the range in which variance + eps of every row lies.
    exact: an exact comparison.
    read: how many low bits of the result's shares later layers read.
    On shares the result has 16 + FRACTION bits of fraction, and `read` right low bits.
    """
    length = x.shape[-1]
    found = sizes(length, center, rows)
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
    return n.times(times(v), 1, found.cut + FRACTION - found.fraction)


_WHAT = "the variance of a row, and eps, is"
