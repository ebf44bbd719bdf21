"""Norms of rows whose variance is assumed to lie in a known range: three messages, and no comparison.

*Opening.* Of a row of n values x, with any number of bits of fraction, every party computes q (n x - sum of x) 2^-L,
which is kappa c, c = x - mean(x), exactly: no division by n; q is a number of four bits. Its fraction is cut to f
bits as it is opened (protocols/rows.py): z, kappa c in units of 2^-f, where 2^f kappa times a row's deviation, eps
with it, is 2^16 or more. As |c| <= sqrt(n most), k bits hold z, however large the mean. The same opening serves the
sum of squares and the last product.

*Look-up.* S = sum of z^2 + n eps (2^f kappa)^2 lies below 0.96 2^P, and u = S 2^-P, from 2^-D to 0.96, is S read with
more bits of fraction; q is such that the upper end is near. v = g u^(-1/2) is a table (polynomials.py), "root-D" with
the gain g = 2^E sqrt(n) 2^(-P/2), 1 <= g < 2.

*Product.* A result is c sqrt(n / sum of (c^2 + eps)) = z v 2^-E, of which v alone is opened, in K bits. It loses
all but 18 bits of fraction in the same message, and is right in the whole ring.

*Error.* Of v, 2^-14 and N (2^-16 + 2^-17) of itself: 3 2^-16 of pieces, with their coefficients; 2^-17 as masks move
these; 2^-17 of g; N 2^-16, for u is rounded by N/2 units of 2^-(D + 14), N 2^-15 of itself; N 2^-17, for v has 16
bits of fraction. z is rounded by N/2 units, which moves the root of S by N 2^-17 of itself at most. So a result errs
by less than 2^-14 + N 2^-15 of itself, as with comparisons, and besides, as its own z does, by N 2^-17, and by
(N + 1) 2^-19 as it is cut.

*Range.* Above `most` a row is noise, without notice: S leaves the table, or z its k bits. Below `least` v is too
small, never too large, as the table goes on below 2^-D.
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
FLATTEST, STEEPEST = -24, 16  # log2 of the variances that are served
_BELOW = 14  # bits of fraction of u below its least value
_FULL = 0.96  # of u: a table of 2^5 pieces or more reaches so far
_SLACK = 2.0**-10  # of S: what parties round takes N 2^-16 of it
FRACTION = 2  # bits of fraction of a result beside 16
_UNITS = 16  # of z and of v: what parties round, N/2 units, of up to 32 of them
_STEPS = 3  # bits of q after its first
_ABOVE = 2.34  # v at 0, over g 2^(D/2)


class NormSizes(NamedTuple):
    """The numbers of a norm over rows of one length: q, L, f, k, P, the table with D, K, and bits cut of z v."""

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
        """The numbers that parties must have alike."""
        *sizes, table, root, opened, cut = self
        return (*sizes, table.k, table.w, table.degree, table.gain, root, opened, cut)


def serves(rows: Rows, length: int, eps: float) -> bool:
    """Whether rows of so many values, or fewer, have their numbers: whether all fit the ring, and there is a table."""
    low, high = math.log2(rows.least), math.log2(rows.most)
    ends = FLATTEST <= low and high <= STEEPEST and high - low <= WIDEST and eps <= rows.most
    # P <= 62, and `needed` of values at rest is at most 64.
    top = math.log2(length) + 2 * (SCALE + 1) + high - low + 0.3 <= 62
    values = 1.5 * math.log2(length) + high / 2 + SCALE + 3 + _STEPS + 1 + MARGIN <= 64
    return ends and top and values


@functools.lru_cache(1024)
def sizes(length: int, center: bool, rows: Rows) -> NormSizes:
    """For rows that `serves` takes."""
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
    cut = exponent - FRACTION  # z v has E bits of fraction beside the 16 of v
    assert 0 <= cut <= min(value, opened) and value + opened <= 61 and top <= 62, "see `serves`"
    return NormSizes(-factor, spread, fine, value, top, table, depth, opened, cut)


def needed(found: NormSizes, scale: int) -> int:
    """Low bits of shares of values with this scale that count."""
    return found.value + max(0, scale + found.spread - found.fraction)


def normed(n: Arithmetic, x: Tensor, eps: float, center: bool, rows: Rows, exact: Comparison, read: int = 64) -> Tensor:
    """The rows of x, (..., length), normed; on shares with FRACTION bits of fraction beside 16, and right in `read` low
    bits.
    """
    length = x.shape[-1]
    found = sizes(length, center, rows)
    number = found.factor * length if center else found.factor
    x = n.precise(x, 2 * SCALE)  # n x and the sum of x may be much larger than what they differ by
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
