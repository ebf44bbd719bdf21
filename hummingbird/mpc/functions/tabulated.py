"""Functions of one value as tables of polynomials (polynomials.py), looked up in one round (protocols/poly.py).

The function is an expression (graph/ops/functions.py), such as sigmoid(x). A table covers an interval of x. Where the
interval comes from decides the layer:

    Tabulated     the function has two tails: beyond +-e it is constant or linear. A window [k:m) promises that |x| <
                  2^(k - 17), or the range of values is told (`BitConfig.rows`). If a table covers this, x may be
                  looked up directly: one opening. Otherwise two comparisons come first, for
                      f(x) = f(c) + s relu(x - b) + r min(x - a, 0),       c = clamp(x, a, b)
                  with the tails' slopes r, left of a, and s, right of b. So the result is right for every x in the
                  window, and up to half beyond a told range.
    FunctionInRange
                  the function has a pole, or grows, such as log(x): the range of its values must be known.

*The clamp.* Only the k bits of c that the table opens are needed, so the comparisons' results are dealt mod 2^k
(thresholds.py, or lines.py with aim "rounds"), and constant tails add nothing: f(c) is the result. A comparison with a
window of 8 bits or fewer leaves an x undecided up to 2^(m - 16) beyond an end, which must not matter: the table covers
as much beyond b, and a lies as much before the tail. So m may be large, up to 2 units, and one step table of at most
2^8 bits serves both ends: about 45 bytes, where a table over a range twice as wide costs twice as much.

The precision follows from the error in `BitConfig.rows`, if there is one. Otherwise m determines it: inputs and results
are rounded to 2^(m - 22), 1/64 of what comparisons leave undecided, or to 2^-14 if that is coarser. Pieces err by half
a unit; if a table covers a window that leaves 1/4 or more undecided, by two units, which are 1/32 of that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import BitWindow, Rows
from hummingbird.cost import FREE, Cost
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.graph.ops.functions import Tail
from hummingbird.mpc.functions.function_table import (
    COARSEST,
    FINEST,
    INTEGERS,
    MOST_BYTES,
    STEPS,
    TYPICAL,
    WIDEST_IN_RANGE,
    Clamp,
    LayerTable,
    Sizes,
    extent,
    of_error,
    sized,
    table_of,
)
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, CostTensor, Shares
from hummingbird.mpc.layers.layer import FLOOR, MARGIN, MAX_SCALE, Layer, Spec, held
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.step_tables import LATENCY
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE, exponent_of

_COARSE = 8  # up to these bits of fraction pieces may err by two units
_BELOW = 22 - SCALE  # bits of fraction that a table has below the window's m
_UNDECIDED = range(13, 18)  # m of a clamp's comparison: smaller ones only where the function bends at a tail's end
_NEAREST = 2.0**-15  # a function differs by less from its tails
_GAIN = 7 / 8  # a clamp must save an eighth: it takes two rounds more
_SMALL = 8  # bits of a window that one step table serves
_PARTIES, _VALUES = 2, 1 << 14  # of the prices compared: constants, since all parties must make the same plan
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


class _Form(NamedTuple):
    """How a layer looks its function up.

    sizes, fill: those of the table, and whether x fills it.
    clamp: how x is clamped before; None where it is not.
    lifted: whether the table's results are lifted to 64 bits, in one more opening.
    """

    sizes: Sizes
    fill: bool
    clamp: Clamp | None
    lifted: bool

    def table(self, text: str, integers: int, possible: int = INTEGERS) -> LayerTable | None:
        """Return the table of the function `text` in this form; None if none below `MOST_BYTES` keeps the error.

        integers: how many integer bits of results are read. possible: as `table_of` has it.
        """
        found = table_of(text, self.sizes, integers, self.fill, possible)
        return found and found._replace(clamp=self.clamp, lifted=self.lifted)


class Tabulated(Comparing):
    """Layer that applies a function with two tails, such as sigmoid or GELU, to each value, by a look-up in a table.

    Where a table covers the layer's window [k:m), or the range of its values is known, the cost is 1 round, and k + 1
    bits for each value, less the bits of fraction cut. Otherwise, or with aim "throughput" where this takes fewer
    bytes, the layer first clamps the values: two comparisons, in the rounds of one, then a look-up in 1 round. With
    "gmw" a look-up takes one more opening.
    text: the function as an expression.
    rises: whether the function is x itself for x above 0.
    rows: the range of the values (`BitConfig.rows`), or None. Clamped values may exceed it by half.
    `LayerTable.error` bounds the error.
    """

    whole_ring = True  # with "gmw", results of comparisons are added to the result
    integers = INTEGERS  # set by the planner: how many integer bits of results may be right

    def __init__(self, text: str, comparison: Comparison, rows: Rows | None = None, rises: bool = False) -> None:
        super().__init__(comparison)
        self.text, self.rises, self.rows = text, rises, rows
        left, right = functions.tails(text, rises)
        assert left is not None and right is not None, "other functions are `FunctionInRange`"
        self.left, self.right = left, right

    @property
    def _whole(self) -> bool:
        """Whether the protocol needs the look-up's shares right in all bits, as "gmw" does."""
        return not self.comparison.looks_up

    @property
    def _fraction(self) -> int:
        """How many bits of fraction inputs and results have, where the window's m determines the precision."""
        return max(COARSEST, min(FINEST, SCALE + _BELOW - self.comparison.window.m))

    @property
    def told(self) -> float | None:
        """The error that is allowed for values of a known range; None if the window's m determines the precision."""
        return self.rows.error if self.rows is not None else None

    @property
    def _near(self) -> float:
        """By how much the function may differ from its tails where values are clamped."""
        return max(_NEAREST, 2.0 ** -(self._fraction + 2) if self.told is None else self.told / 8)

    @property
    def _ends(self) -> tuple[Tail, Tail]:
        """The tails to which values are clamped."""
        left, right = functions.tails(self.text, self.rises, self._near)
        assert left is not None and right is not None, "see __init__"
        return left, right

    @property
    def _lines(self) -> bool:
        """Whether a tail of the function is no constant, so that results may be as large as the values."""
        return bool(self.left.slope or self.right.slope)

    @property
    def _most(self) -> float:
        """The magnitude up to which a clamp takes values: those of the window, or half more than the known range."""
        if self.rows is not None:
            return 1.5 * max(-self.rows.least, self.rows.most)
        return 2.0 ** (self.comparison.window.k - 1 - SCALE)

    @property
    def _largest(self) -> int:
        """Log2 of a bound of the results, if a tail is no constant."""
        return min(FLOOR, max(exponent_of(self._most), exponent_of(self._ends[0].at)) + 1)

    @property
    def _clamp_k(self) -> int:
        """The upper bit of a clamp's window, which holds the distances of values from the ends of the tails."""
        left, right = self._ends
        return min(64, exponent_of(self._most + max(abs(left.at), abs(right.at)) + 2) + 1 + SCALE)

    def look_up(self, scale: int) -> LayerTable:
        """Choose this layer's table for an input with `scale` bits of fraction; return it as a `LayerTable`.

        That says also whether the input is clamped before. The planner must have set `comparison.valid`.
        """
        known = self.comparison
        how = self.rows, self.rises, self.integers
        # The form does not depend on what later layers read, so that all time steps of a recurrent layer have one.
        form = _form_of(type(known), (known.window, known.valid, known.aim), self.text, how, scale)
        found = self._finished(form, self.read - SCALE)
        assert found is not None, "see `_form`"
        return found

    def _finished(self, form: _Form, integers: int) -> LayerTable | None:
        """Return the table of a form, of whose results `integers` integer bits are read; None if there is none."""
        if not form.lifted:
            return form.table(self.text, integers, self.integers)
        found = form.table(self.text, MARGIN + form.sizes.integers)
        if form.clamp is None or found is None:
            return found
        bits = MARGIN + exponent_of(extent(self.text, form.clamp.low, form.clamp.high)[1] + 1)
        return found._replace(bits=bits + found.table.scale)

    def _form(self, scale: int) -> _Form:
        direct, aim = self._direct(scale), self.comparison.aim
        if direct is not None and (aim.name in ("latency", "rounds") or self._whole):
            return direct
        tables = ((self._finished(form, TYPICAL), form) for form in self._clamped())
        priced = [(self._price(found, scale), form) for found, form in tables if found is not None]
        if priced:
            least, clamped = min(priced, key=lambda pair: pair[0])
            found = direct and self._finished(direct, TYPICAL)
            gain = _GAIN if aim.link is None else 1
            if direct is None or (found is not None and least[-1] < gain * self._price(found, scale)[-1]):
                return clamped
        if direct is None:
            left, right = self._ends
            what = f"no table below {MOST_BYTES >> 10} kB for a value serves {self.text} on"
            hint = "multiply its argument by a number in a step before, or give the values' range"
            raise ConfigError(f"{what} [{left.at:g}, {right.at:g}]", hint=hint)
        return direct

    def _direct(self, scale: int) -> _Form | None:
        """Return the form without a clamp; None if no table covers the values, or too few bits of them are right."""
        fraction, reach = self._fraction, self.comparison.range(scale)
        allowed = 2.0**-fraction * (2 if fraction <= _COARSE else 0.5)
        if self.rows is not None and not (self.rises and self.rows.most > 0):
            sizes = self._in_range(self.rows, fraction, allowed)
        elif self.rows is None and reach < SCALE and not self.rises:
            sizes = sized(self.text, -(2.0**reach), 2.0**reach, fraction, fraction, allowed)
        else:
            return None
        # A table that x fills is smaller, and reads more bits of x.
        forms = [_Form(sizes, fill, None, self._whole) for fill in (False, True)]
        found = [(table, form) for form in forms if (table := form.table(self.text, TYPICAL)) is not None]
        for table, form in sorted(found, key=lambda pair: pair[0].dealt):
            if table.read + scale - table.table.fraction <= self.comparison.valid:
                check_error(self.text, self.rows, table)
                return form
        return None

    def _in_range(self, rows: Rows, fraction: int, allowed: float) -> Sizes:
        if rows.error is not None:
            return of_error(self.text, rows.least, rows.most, rows.error)
        return sized(self.text, rows.least, rows.most, fraction, fraction, allowed, WIDEST_IN_RANGE)

    def _clamped(self) -> list[_Form]:
        """Return the forms with a clamp, for comparisons that leave less or more undecided."""
        (left, right), k = self._ends, self._clamp_k
        found: list[_Form] = []
        for m in range(min(_UNDECIDED[-1], k - 2), 0, -1):
            room = 2.0 ** (m - SCALE)
            if (m < _UNDECIDED[0] and found) or not self._level(right, room):
                continue
            low, high = left.at - room, right.at
            if self.told is None:
                allowed = 2.0 ** -(self._fraction + 1)
                sizes = sized(self.text, low, high + room, self._fraction, self._fraction, allowed)
            else:
                sizes = of_error(self.text, low, high + room, self.told - self._near)
            q = 0 if self._whole else max(0, min(m, SCALE - sizes.fraction - STEPS))
            clamp = Clamp(low, high, BitWindow(k, m, q), self._near)
            for widest in dict.fromkeys((sizes.widest, WIDEST_IN_RANGE)):
                form = _Form(sizes._replace(widest=widest), True, clamp, self._whole)
                if (table := form.table(self.text, TYPICAL)) is not None:
                    # With linear tails results are as large as x: a fine table has too few bits for them.
                    wide = self._lines and table.bits - table.table.scale < held(self._largest)
                    found.append(form._replace(lifted=self._whole or wide))
                    break
        return found

    def _level(self, right: Tail, room: float) -> bool:
        """Whether the function stays near its right tail for values up to `room` beyond, which keep their place."""
        x = torch.linspace(right.at, right.at + room, 65, dtype=torch.float64)
        y = functions.value(self.text, x)
        return float((y - y[0] - right.slope * (x - right.at)).abs().max()) <= self._near

    def _price(self, found: LayerTable, scale: int) -> tuple[float, ...]:
        """Return the rounds of a form, and its price by the aim (`TableChoice.price`); for a link the price alone."""
        prices = CostTensor(self.comparison, scale, _PARTIES)
        self._computed(prices, torch.empty(_VALUES, dtype=torch.int64, device="meta"), found)
        aim, total = self.comparison.aim, prices.total
        price = aim.price(total, _VALUES, _PARTIES)
        return (price,) if aim.link is not None else (total.rounds, price)

    def _comparison(self, found: LayerTable) -> Comparison:
        """Return the comparison by which values are clamped before they are looked up in `found`.

        Its results have the bits that the table opens, and those that are added to the table's results.
        """
        known, clamp = self.comparison, found.clamp
        assert clamp is not None
        ring, window = 64, clamp.window
        if not self._whole:
            ring = found.read + SCALE - found.table.fraction
            if self._lines:
                ring = 64 if found.lifted else max(ring, found.bits - found.table.scale + SCALE)
        out = known.wider(window, known.valid, min(64, ring))
        # One step table of up to 8 bits is little beside the table of the function, and saves a round.
        return replace(out, aim=LATENCY) if known.aim.name == "throughput" and window.w <= _SMALL else out

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return self._computed(n, x, self.look_up(n.scale))

    def _computed(self, n: Arithmetic, x: Tensor, found: LayerTable) -> Tensor:
        clamp = found.clamp
        if clamp is None:
            if self.rows is not None:
                expect(n, x, self.text, self.rows)
            m, y = found.argument(n, x, self.comparison)
            return m.polynomial(y, found.table, found.bits, whole=found.lifted).to(x.dtype)
        if self.rows is not None:
            far = 2.0 ** (clamp.window.k - 1 - SCALE) - 2.0 ** (clamp.window.m - SCALE)
            n.expects(x, clamp.low + far, f"the argument of {self.text} is", clamp.high - far)
        tails = n.with_comparison(self._comparison(found), n.scale)
        if self.left.slope:
            above, z = tails.above(x, (clamp.low, clamp.high))
        else:
            above = tails.relus(x, (clamp.low, clamp.high))
        clamped = above[0] - above[1] + n.constant(clamp.low)
        rest, y = found.argument(n.with_comparison(self.comparison), clamped, self.comparison)
        inside = rest.polynomial(y, found.table, found.bits, whole=found.lifted)
        if self.right.slope:
            inside = inside + self.right.slope * above[1]
        if self.left.slope:
            inside = inside + self.left.slope * (z - above[0])
        return inside.to(x.dtype)

    def farthest(self, scale: int) -> float:
        return max(map(abs, (self.look_up(scale).clamp or (0.0, 0.0))[:2]))

    def reads(self, later: int | None) -> int | None:
        if self.comparison.drops:
            return super().reads(later)
        return None if self._clamp_k == 64 else self._clamp_k - SCALE

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.comparison.drops:
            return later
        found = self.look_up(scales[0])
        if found.clamped:
            return self._comparison(found).needs(scales[0])
        return found.read + scales[0] - found.table.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            return valid[0]
        found = self.look_up(scales[0])
        return 64 if found.lifted else found.bits - found.table.scale + SCALE

    def grain(self) -> int:
        if self.comparison.drops:
            return self.given[0].grain
        found = self.look_up(self.given[0].scale)
        grain = SCALE - found.table.scale
        return min(grain, found.clamp.window.q) if found.clamp and self._lines else grain

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

    def variant(self, scale: int, parties: int, n: int) -> str:
        """Return how many pieces of which degree the layer's table has, as a text: "2^6 cubics".

        scale: bits of fraction of the input.
        """
        if self.comparison.drops:
            return super().variant(scale, parties, n)
        return self.look_up(scale).table.shown

    def label(self) -> str:
        if self.comparison.drops:
            return super().label()
        found = self.look_up(self.scales[0] if self.scales else SCALE)
        where = f", clamped to [{found.clamp.low:g}, {found.clamp.high:g}]" if found.clamp else ""
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
    def table(self) -> LayerTable:
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
        found = self.table
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
        return None if self.rows is None else self.table.read - self.table.table.fraction

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 64 if self.rows is None else self.table.read + scales[0] - self.table.table.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.rows is None or self._whole:
            return 64
        if valid[0] < self.needs(scales, 64):
            return 0  # no bit is right: the planner tries another form
        return self.table.bits - self.table.table.scale + SCALE

    def grain(self) -> int:
        return 0 if self.rows is None else SCALE - self.table.table.scale

    def bound(self, bounds: Sequence[int]) -> int:
        if self.rows is None:
            return super().bound(bounds)
        return max(1, exponent_of(extent(self.text, self.rows.least, self.rows.most)[1]))

    def constants(self) -> tuple[int, ...]:
        return () if self.rows is None else self.table.numbers

    def label(self) -> str:
        if self.rows is None:
            return f"{self.text} of values whose range is not known"
        return f"{self.text} in {self.rows}, {self.table.table.shown}, error {self.table.error(2):.1e}"


@functools.lru_cache(1024)
def _form_of(kind: type[Comparison], known: tuple[Any, ...], text: str, how: tuple[Any, ...], scale: int) -> _Form:
    """Return the form of a function's layer: the arguments, named where it is called, are all that it depends on."""
    layer = Tabulated(text, kind(known[0], valid=known[1], aim=known[2]), *how[:2])
    layer.integers = how[2]
    return layer._form(scale)


RANGE_HINT = "give it: bits.with_rows(hummingbird.find_rows(net, inputs)), or Rows(least, most) by the step's name"
