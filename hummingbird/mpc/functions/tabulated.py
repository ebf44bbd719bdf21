"""Sigmoid, tanh, SiLU and GELU as tables of polynomials (polynomials.py), looked up in one round (protocols/poly.py).

A window [k:m) promises |x| < 2^(k-17). If a table covers this interval, x is looked up directly: one opening. Wider
windows, such as the default one, first take two comparisons, since the function is constant or linear beyond +-e:

    f(x) = f(c) [+ relu(x - e)],        c = relu(x + e) - relu(x - e) - e, which is clamp(x, -e, e)

So the result is right for every x in the window, as with splines. m determines the precision: inputs and results are
rounded to 2^(m - 22), 1/64 of what comparisons leave undecided, or to 2^-14 if that is coarser. Pieces err by half a
unit; if a table covers a window that leaves 1/4 or more undecided, by two units, which are 1/32 of that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hummingbird.bits import BitWindow
from hummingbird.mpc.functions.polynomials import ACTIVATIONS, PolynomialTable, choose
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.layer import MARGIN, held
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.ring import SCALE, exponent_of

FINEST, COARSEST = 14, 6  # most and fewest bits of fraction of inputs and results
_COARSE = 8  # up to these bits of fraction pieces may err by two units
_BELOW = 22 - SCALE  # bits of fraction that a table has below the window's m
_INTEGERS = 28  # integer bits of a result: enough for 20 bits of weights, then a window of up to 24 bits
_UNDECIDED = 14  # a clamp errs by up to 2^(_UNDECIDED - 16)


class LayerTable(NamedTuple):
    """The table by which a layer computes its function, and how the layer uses it.

    bits: how many bits of the table's results must be right.
    clamped: whether x is first clamped to an interval that the table covers.
    """

    table: PolynomialTable
    bits: int
    clamped: bool


@functools.cache
def _most_integers(name: str, most: float, fraction: int, least: int) -> int:
    """Return how many integer bits, with the sign, the results of a table of a function can have at most.

    It is at most `_INTEGERS`, and 0 if there is no table with `least` or more such bits.
    name: the function's, a key of `polynomials.FUNCTIONS`.
    most, fraction: the table is for |x| <= most, with `fraction` bits of fraction.
    """
    tables = (bits for bits in range(_INTEGERS, least - 1, -1) if choose(name, most, fraction, bits) is not None)
    return next(tables, 0)


class Tabulated(Comparing):
    """Layer that applies a smooth function, such as sigmoid or GELU, to each value, by a look-up in a table.

    Where the table covers the layer's window [k:m), the cost is 1 round, and k + 1 bits for each value, less the bits
    of fraction cut. Otherwise the layer first clamps the values: two comparisons, in the rounds of one, then a look-up
    of 19 or 20 bits and an opening of about as many, in 1 round each.
    name: of the function, a key of `polynomials.ACTIVATIONS`.
    `LayerTable.table.error` bounds the error.
    """

    whole_ring = True  # results of comparisons are added to the result

    def __init__(self, name: str, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.name, self.function = name, ACTIVATIONS[name]

    @property
    def _tails(self) -> Comparison:
        """The comparison by which the layer clamps x to [-e, e], the interval that its table covers.

        It compares x - e and x + e with 0, so its window has one bit more than the layer's.
        """
        known = self.comparison
        k, m = known.window.k, min(known.window.m, _UNDECIDED)
        return known.wider(BitWindow(min(64, k + 1), m), known.valid)

    def _size(self, scale: int) -> int:
        """Return log2 of the magnitude that results are below, for an input with `scale` bits of fraction."""
        return max(1, self.comparison.range(scale)) if self.function.rises else 1

    def look_up(self, scale: int) -> LayerTable:
        """Choose this layer's table for an input with `scale` bits of fraction; return it as a `LayerTable`.

        That says also whether the input is clamped before. The planner must have set `comparison.valid`.
        """
        fraction = max(COARSEST, min(FINEST, SCALE + _BELOW - self.comparison.window.m))
        reach = self.comparison.range(scale)
        offered = _most_integers(self.name, 2.0**reach, fraction, held(self._size(scale))) if reach < SCALE else 0
        if offered:
            allowed = 2.0**-fraction * (2 if fraction <= _COARSE else 0.5)
            bits = max(1, min(offered, self.read - SCALE))
            table = choose(self.name, 2.0**reach, fraction, bits, allowed=allowed)
            assert table is not None, "fewer bits need no other table"
            if table.k + scale - fraction <= self.comparison.valid:
                return LayerTable(table, bits + fraction, False)
        most = self.function.end + 2.0 ** (_UNDECIDED - SCALE)
        bits = MARGIN + (exponent_of(most) if self.function.rises else 1)  # integer bits for results between the ends
        table = choose(self.name, most, fraction, bits)
        assert table is not None, "every function has a table between its ends"
        return LayerTable(table, bits + fraction, True)

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        found = self.look_up(n.scale)
        if not found.clamped:
            return n.polynomial(x, found.table, found.bits).to(x.dtype)
        end = self.function.end
        y = n.with_comparison(self._tails, n.scale).relus(x, (-end, end))
        rest = n.with_comparison(self.comparison)
        inside = rest.polynomial(y[0] - y[1] - n.constant(end), found.table, found.bits, whole=True)
        return (inside + y[1] if self.function.rises else inside).to(x.dtype)

    def reads(self, later: int | None) -> int | None:
        known = None if self.comparison.drops else self.comparison.reads
        return super().reads(later) if known is None else known + 1

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.comparison.drops:
            return later
        found = self.look_up(scales[0])
        return self._tails.needs(scales[0]) if found.clamped else found.table.k + scales[0] - found.table.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            return valid[0]
        found = self.look_up(scales[0])
        return 64 if found.clamped else found.bits - found.table.scale + SCALE

    def grain(self) -> int:
        if self.comparison.drops:
            return self.given[0].grain
        found = self.look_up(self.given[0].scale)
        return 0 if found.clamped else SCALE - found.table.scale

    def bound(self, bounds: Sequence[int]) -> int:
        if self.comparison.drops:
            return bounds[0]
        known = self.comparison.window.k - SCALE - 1  # a window of 64 bits gives no bound
        return min(bounds[0], max(1, known)) if self.function.rises else 1

    def constants(self) -> tuple[int, ...]:
        """Return the integers that describe the layer's table; () if the window has no bits.

        All parties must have the same table, and its choice depends on floating point.
        """
        if self.comparison.drops:
            return ()
        table, bits, clamped = self.look_up(self.scales[0])
        return table.k, table.fraction, table.w, table.degree, table.scale, bits, clamped

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
        table, _, clamped = self.look_up(self.scales[0] if self.scales else SCALE)
        where = f", clamped to {self.function.end:g}" if clamped else ""
        return f"{self.name}, {1 << table.w} pieces of degree {table.degree}{where}, error {table.error(2):.1e}"
