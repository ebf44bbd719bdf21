"""The tables of a softmax (polynomials.py): e^x for x <= 0, and 1/x on [1, length], in place of splines.

Of a row of n places, x less its maximum, e^x is wanted within 2^-9 of itself or of 1/n, whichever is more. x is clamped
to [-13.98, 0], as e^-13.98 is below 2^-10 / n for up to 256 places: one comparison. Where comparisons leave values
undecided the maximum may be missed, and x be above 0; it is then clamped to 3/4 too, by the same opening. A window that
holds no |x| from 8 on needs neither.

    e^x      0.6 2^-10 of pieces, and of roundings 2^-12 of itself and 2^-11 / n for two parties: s = 12 + log2(n)
             bits of fraction of the result, 12 of x; besides, what is clamped: 0.3 2^-10 / n
    1/x      2^-10 of pieces, and 2^-12 of roundings for two parties, all of itself: 13 bits of fraction of x

A sum of n of the former needs no opening before it is looked up. Pieces of 1/x are a quarter wide, which is for
length up to 256 at most 2,048 of them, once for a row: one round, and 700 to 1,800 bits of the dealer for an element.
To bring the sum to a place first, as norms do, would take a comparison and two products more. Longer rows have
splines, which would cost fewer bits than the tables.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from hummingbird.mpc.functions.polynomials import SPANS, WIDEST_OF_ROWS, PolynomialTable, choose, reciprocal_at
from hummingbird.mpc.layers.layer import MARGIN
from hummingbird.ring import SCALE

LONGEST = 256  # places
LOW, HIGH = -14 + 2.0**-6, 0.75
CLAMP = 13  # a clamp is right to 2^(this - 16)
REACH = 3  # magnitudes below 2^this need no clamp
READ = 20  # low bits of shares with 16 bits of fraction that a look-up reads
_MOST = 7.49  # of x + EXP_AT: from below LOW to above HIGH + 2^(CLAMP - 16)
_FRACTION, _SUM_FRACTION = 12, 13
_GUARD, _SUM_GUARD = 12, 13  # bits of fraction of results below those of 1 / n, and of 1 / sum
_SIZE = 2  # e^x stays below 2^this


class Tables(NamedTuple):
    """How a softmax over so many places computes e^x and 1/sum.

    bits: of the results of `exp` that are right. middle: less this the sum is looked up. lifted: bits of the results of
    `reciprocal` that are right, and of those of `exp` with 16 bits of fraction that count.
    """

    exp: PolynomialTable
    bits: int
    reciprocal: PolynomialTable
    middle: float
    lifted: int


@functools.cache
def tables(length: int, missed: float, opened: bool = False) -> Tables | None:
    """For a row of `length` places, whose maximum may be missed by `missed`; None where there are none.

    opened: whether the sum is, as for its logarithm, which takes a margin.
    """
    if length > LONGEST:
        return None
    most = length * (1 + 2.0**-9) * math.exp(min(missed, HIGH + 2.0 ** (CLAMP - SCALE)))  # of the sum
    size = math.ceil(math.log2(most))
    scale, fine = max(SCALE, _GUARD + (length - 1).bit_length()), max(SCALE, _SUM_GUARD + size)
    lifted = max(SCALE + _SIZE, fine + 1) + MARGIN
    found = reciprocal(most, fine, lifted)
    if found is None:
        return None
    inverse, span = found
    bits = scale + max(lifted - SCALE, span, opened * (size + MARGIN))
    exp = choose("exp", _MOST, _FRACTION, bits - scale, scale, 0.6 * 2.0**-10, 1 / length)
    return None if exp is None else Tables(exp, bits, inverse, reciprocal_at(span), lifted)


def reciprocal(most: float, scale: int, bits: int) -> tuple[PolynomialTable, int] | None:
    """The table of 1/x on [1 - 2^-8, most], right in so many bits, and its span."""
    for span in SPANS:
        middle = reciprocal_at(span)
        reach = max(middle - 1 + 2.0**-8, most - middle)
        if reach < 2.0 ** (span - 1):
            name = f"reciprocal-{span}"
            table = choose(name, reach, _SUM_FRACTION, bits - scale, scale, 2.0**-10, 0.0, WIDEST_OF_ROWS)
            if table is not None and table.k == span + _SUM_FRACTION:
                return table, span
    return None
