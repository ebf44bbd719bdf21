"""Tables for a softmax (polynomials.py), which replace splines: e^x for x <= 0, and 1/x on [1, length].

For a row of n values minus their maximum, e^x may err by 2^-9 max(e^x, 1/n). x is first clamped to [-13.98, 0] by one
comparison; e^-13.98 is below 2^-10 / n for up to 256 values. Undecided comparisons may miss the maximum, so that x
exceeds 0: the same opening then clamps x to at most 3/4. If the window holds only |x| < 8, no clamp is needed.

Errors, with rounding for two parties:

    e^x      pieces 0.6 2^-10; rounding 2^-12 e^x + 2^-11 / n, for 12 bits of fraction of x and s = 12 + log2(n) of the
             result; clamp 0.3 2^-10 / n
    1/x      relative: pieces 2^-10; rounding 2^-12, for 13 bits of fraction of x

The sum of n results of e^x is looked up without an opening before. Pieces of 1/x have width 1/4: at most 2,048 pieces
for lengths up to 256, and one look-up for a row. This takes one round, and 700 to 1,800 bits of the dealer for an
element. Normalizing the sum first, as norms do, would take one more comparison and two more products. Longer rows use
splines, which cost fewer bits than tables would.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from hummingbird.mpc.functions.polynomials import SPANS, WIDEST_OF_ROWS, PolynomialTable, choose, reciprocal_at
from hummingbird.mpc.layers.layer import MARGIN
from hummingbird.ring import SCALE

LONGEST = 256  # values in a row
LOW, HIGH = -14 + 2.0**-6, 0.75
CLAMP = 13  # a clamp errs by up to 2^(CLAMP - 16)
REACH = 3  # magnitudes below 2^REACH need no clamp
READ = 20  # how many low bits of shares with 16 bits of fraction a look-up reads
_MOST = 7.49  # largest |x + EXP_AT|: covers LOW to HIGH + 2^(CLAMP - 16)
_FRACTION, _SUM_FRACTION = 12, 13
_BITS = READ - SCALE + _FRACTION  # of x + EXP_AT as an integer
_INTERVALS = 2  # of 1/x that are compared
_GUARD, _SUM_GUARD = 12, 13  # bits of fraction of results beyond the log2 of n, and of the sum
_SIZE = 2  # e^x < 2^_SIZE


class Tables(NamedTuple):
    """The tables by which a softmax over rows of one length computes e^x and 1/sum, where `sum` is a row's sum of e^x.

    exp: the table of e^x.
    bits: how many low bits of the shares of e^x are right.
    reciprocal: the table of 1/sum.
    middle: the number that is subtracted from the sum before it is looked up in `reciprocal`.
    lifted: how many low bits of the shares of 1/sum are right. The product of e^x and 1/sum reads as many low bits of
        e^x, after e^x is cut to 16 bits of fraction.
    """

    exp: PolynomialTable
    bits: int
    reciprocal: PolynomialTable
    middle: float
    lifted: int


@functools.cache
def tables(length: int, missed: float, opened: bool = False) -> Tables | None:
    """Choose the tables of e^x and 1/sum for a softmax over rows of `length` values; None if none serve this length.

    missed: by how much the maximum that the softmax subtracts from a row may be too small.
    opened: whether the parties also open the row's sum of exponentials, to look up its logarithm. More bits of the sum
        must then be right.
    """
    if length > LONGEST:
        return None
    most = length * (1 + 2.0**-9) * math.exp(min(missed, HIGH + 2.0 ** (CLAMP - SCALE)))  # of the sum
    size = math.ceil(math.log2(most))
    scale, fine = max(SCALE, _GUARD + (length - 1).bit_length()), max(SCALE, _SUM_GUARD + size)
    lifted = max(SCALE + _SIZE, fine + 1) + MARGIN
    found = reciprocals(most, fine, lifted)
    if not found:
        return None
    inverse, span = found[0]
    bits = scale + max(lifted - SCALE, span, opened * (size + MARGIN))
    exp = choose("exp", _MOST, _FRACTION, bits - scale, scale, 0.6 * 2.0**-10, 1 / length, k=_BITS)
    return None if exp is None else Tables(exp, bits, inverse, reciprocal_at(span), lifted)


def reciprocals(most: float, scale: int, bits: int) -> list[tuple[PolynomialTable, int]]:
    """Find the tables of 1/x for x from 1 - 2^-8 to `most` with the two smallest intervals; fewer, or none, may fit.

    The larger interval may need fewer pieces, since their number is a power of two; but then more bits of x are read.
    scale: bits of fraction of the results. bits: how many low bits of the results' shares must be right.
    Returns each table, and the number SPAN in the name of its function, "reciprocal-SPAN".
    """
    found = list[tuple[PolynomialTable, int]]()
    for span in SPANS:
        middle = reciprocal_at(span)
        reach = max(middle - 1 + 2.0**-8, most - middle)
        if reach < 2.0 ** (span - 1) and len(found) < _INTERVALS:
            sizes = bits - scale, scale, 2.0**-10, 0.0, WIDEST_OF_ROWS
            table = choose(f"reciprocal-{span}", reach, _SUM_FRACTION, *sizes, k=span + _SUM_FRACTION)
            if table is not None:
                found.append((table, span))
    return found
