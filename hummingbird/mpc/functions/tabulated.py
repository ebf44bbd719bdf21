"""Functions of one value as tables of polynomials (polynomials.py), looked up in one round (protocols/poly.py).

The function is an expression (graph/ops/functions.py), such as sigmoid(x). A table covers an interval of x. Where the
interval comes from decides the layer:

    Tabulated     the function has two tails: beyond +-e it is constant or linear. A window [k:m) promises that |x| <
                  2^(k - 17). If a table covers this, x is looked up directly: one opening. Wider windows, such as the
                  default one, first take two comparisons, for
                      f(x) = f(c) + s relu(x - b) + r min(x - a, 0),       c = clamp(x, a, b)
                  with the tails' slopes r, left of a, and s, right of b. So the result is right for every x in the
                  window. Values in a known range (`BitConfig.rows`) need no window: one opening.
    FunctionInRange
                  the function has a pole, or grows, such as log(x): the range of its values must be known.

The precision follows from the error in `BitConfig.rows`, if there is one. Otherwise m determines it: inputs and results
are rounded to 2^(m - 22), 1/64 of what comparisons leave undecided, or to 2^-14 if that is coarser. Pieces err by half
a unit; if a table covers a window that leaves 1/4 or more undecided, by two units, which are 1/32 of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.bits import BitWindow, Rows
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.mpc.functions.function_table import (
    COARSEST,
    FINEST,
    MOST_BYTES,
    WIDEST_IN_RANGE,
    LayerTable,
    Sizes,
    extent,
    of_error,
    sized,
    table_of,
)
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, exponent_of

_COARSE = 8  # up to these bits of fraction pieces may err by two units
_BELOW = 22 - SCALE  # bits of fraction that a table has below the window's m
_UNDECIDED = 14  # a clamp errs by up to 2^(_UNDECIDED - 16)
SMALLEST_ERROR = 2.0**-12  # of a table for values in a known range: values have 16 bits of fraction


def check_error(text: str, rows: Rows | None, found: LayerTable) -> None:
    """Raise ConfigError if results of a table err by more than `rows` allow for two parties.

    That is so where the function is too steep for values of 16 bits of fraction.
    """
    if rows is not None and rows.error is not None and (error := found.error(2)) > rows.error * (1 + 2.0**-6):
        what = (
            f"results of {text} on [{rows.least:g}, {rows.most:g}] may err by {error:.2g}, more than {rows.error:.2g}"
        )
        hint = "a larger error, or a smaller range: the function is too steep for values of 16 bits of fraction"
        raise ConfigError(what, hint=hint)


def expect(n: Arithmetic, x: Tensor, text: str, rows: Rows) -> None:
    """Let a simulation warn of values x beyond the range `rows` of a function, which rounding does not explain."""
    slack = 2.0**-10 * (rows.most - rows.least) + 2.0**-SCALE
    n.expects(x, rows.most + slack, f"the argument of {text} is", rows.least - slack)


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
        """Whether the protocol needs the look-up's shares right in all bits, as "gmw" does.

        A layer that clamps makes them right in all bits with every protocol.
        """
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
            direct = sized(self.text, -(2.0**reach), 2.0**reach, fraction, fraction, allowed)
        if direct is not None:  # a table that x fills is smaller, and reads more bits of x
            both = [table for fill in (False, True) if (table := table_of(self.text, direct, read, fill)) is not None]
            for table in sorted(both, key=lambda one: one.dealt):
                if table.read + scale - table.table.fraction <= self.comparison.valid:
                    check_error(self.text, self.rows, table)
                    return table
        low, high, room = self.left.at, self.right.at, 2.0 ** (_UNDECIDED - SCALE)
        if self.rows is not None and self.rows.error is not None:
            ends = of_error(self.text, low - room, high + room, self.rows.error)
        else:
            ends = sized(self.text, low - room, high + room, fraction, fraction, 2.0 ** -(fraction + 1))
        integers = MARGIN + ends.integers
        found = table_of(self.text, ends, integers)
        found = found or table_of(self.text, ends._replace(widest=WIDEST_IN_RANGE), integers)
        if found is None:
            what = f"no table below {MOST_BYTES >> 10} kB for a value serves {self.text} on [{low:g}, {high:g}]"
            raise ConfigError(
                what, hint="multiply its argument by a number in a step before, or give the values' range"
            )
        bits = MARGIN + exponent_of(extent(self.text, low, high)[1] + 1) + found.table.scale
        return found._replace(bits=bits, clamps=(low, high))

    def _in_range(self, rows: Rows, fraction: int, allowed: float) -> Sizes:
        if rows.error is not None:
            return of_error(self.text, rows.least, rows.most, rows.error)
        return sized(self.text, rows.least, rows.most, fraction, fraction, allowed, WIDEST_IN_RANGE)

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        found = self.look_up(n.scale)
        if not found.clamped:
            if self.rows is not None:
                expect(n, x, self.text, self.rows)
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
        largest = max(*ends, extent(self.text, *inside)[1] if inside[0] < inside[1] else 0)
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
            found = table_of(text, self._sizes, 1)
            if found is None:
                hint = "a smaller range, or a larger error: Rows(least, most, error=2**-8)"
                what = f"no table below {MOST_BYTES >> 10} kB for a value serves {text}"
                span = f"on [{rows.least:g}, {rows.most:g}] with an error of {rows.error or SMALLEST_ERROR:g}"
                raise ConfigError(f"{what} {span}", hint=hint)
            check_error(text, rows, found)

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
        found = self._table
        assert self.rows is not None
        expect(n, x, self.text, self.rows)
        m, y = found.argument(n, x, self.exact)
        return m.polynomial(y, found.table, found.bits, whole=self._whole).to(x.dtype)

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
        return max(1, exponent_of(extent(self.text, self.rows.least, self.rows.most)[1]))

    def constants(self) -> tuple[int, ...]:
        return () if self.rows is None else self._table.numbers

    def label(self) -> str:
        if self.rows is None:
            return f"{self.text} of values whose range is not known"
        return f"{self.text} in {self.rows}, {self._table.table.shown}, error {self._table.error(2):.1e}"


RANGE_HINT = "give it: bits.with_rows(hummingbird.find_rows(net, inputs)), or Rows(least, most) by the step's name"
