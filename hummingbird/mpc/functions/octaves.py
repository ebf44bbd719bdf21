"""Functions over a wide range of positive values: the octave of x first, then a table of one octave.

A table over [least, most] has as many pieces for the octave at `most` as the octave at `least` needs, so it grows with
the ratio most / least. 1/x, 1/sqrt(x), sqrt(x), other powers and logarithms need one octave only:

    f(2^S y) = c^S f(y),   c = f(2) / f(1)         or        f(2^S y) = f(y) + c S,   c = f(2) - f(1)

So do they behind a sum, as in log(x + 1): below, x stands for that sum, and public numbers are compared less the 1.

*Octave.* Let t_j = base 2^j for j = 1 .. J, with base <= least and most <= base 2^(J + 1). One masked opening compares
x with all of them (thresholds.py). It gives shares of the bits b_j = [x >= t_j], of b_j (x - t_j) and of x, so

    S = sum of b_j                   y = x 2^-S = x - sum over j of 2^-j (b_j (x - t_j) + t_j b_j)
    c^S = 1 + sum of b_j (c^j - c^(j-1))

are local, y with J more bits of fraction. All bits of a value are decided by one random number u below 2^m, b_j = [x -
t_j + u >= 2^m], so that they fall from 1 to 0 as j grows, and y is in [base, 2 base + 2^m): the table of f covers that.

*Result.* f(y) is looked up in one round. A logarithm adds c S, which is local. The others multiply f(y) by c^S, one
more round (lifted_product.py), in which the product is cut to 16 bits of fraction. With aim "throughput", an error of
2^-9 and 22 integer bits of the results, 1/x on [1, 64] takes 5 rounds and 191 bytes, or 1 round and 8,448 bytes with
one table.

*What the parties see*: what they see of the comparison, the look-up and the product, each behind masks of its own.

*Error* for N parties. Each rounds its share of x to F bits of fraction, N/2 units in y and less in higher octaves; the
look-up errs by e (`LayerTable.error`), the factors c^j by 2^-(Q + 1), and the last cut by (N + 1)/2 units:

    |error| <= c^S (e + slope 2^-S N 2^-(F + 1)) + max|f(y)| 2^-(Q + 1) + (N + 1) 2^-17

So the first part is relative to f(x): it is c^S times that of the first octave. A logarithm errs by e + slope 2^-S N
2^-(F + 1) + 2^-17 in all octaves. What is asked for is a bound of the largest error, as with one table.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import EXACT, BitWindow, Rows
from hummingbird.errors import ConfigError
from hummingbird.graph.ops import functions
from hummingbird.mpc.functions.function_table import TYPICAL, LayerTable, Sizes, extent, of_error, table_of
from hummingbird.mpc.functions.polynomials import steepest
from hummingbird.mpc.functions.tabulated import SMALLEST_ERROR, FunctionInRange, expect
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.layer import MARGIN, Spec
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.lifted_product import LiftedTimes
from hummingbird.ring import SCALE, exponent_of

_PARTIES, _VALUES = 2, 1 << 14  # of the prices compared: constants, since all parties must make the same plan
_EXACT = 2.0**-40  # a function follows its law across octaves up to this part of its value
_MOST = 16  # octaves
_ROUNDED = 16  # units of x by which parties' rounding may move it, beside what the window leaves undecided


class Octaves(NamedTuple):
    """How a layer finds the octave of x, and what it does with f(y).

    text, shift: f as a function of x + `shift` (log(x) for log1p(x) and 1), by which octaves are counted. off: by how
        much the shift errs, as it is rounded to the unit of x.
    base: the least y, a multiple of the unit of x. last: J, the number of thresholds base 2^j, and of the last octave.
    window: of the comparison with them. sizes: of the table of f(y).
    factor: c by which f grows with an octave; None for a logarithm, which adds `added` instead.
    fraction: Q, bits of fraction of the powers of `factor`.
    """

    text: str
    shift: float
    off: float
    base: float
    last: int
    window: BitWindow
    sizes: Sizes
    factor: float | None
    added: float
    fraction: int

    @property
    def knots(self) -> list[float]:
        return [self.base * 2.0**j for j in range(1, self.last + 1)]

    @property
    def rises(self) -> list[int]:
        """By how much the factor, or the term, of an octave exceeds that of the octave before, as integers.

        In units of 2^-fraction for factors, and of 2^-16 for terms.
        """
        if self.factor is None:
            powers = [round(self.added * j * 2.0**SCALE) for j in range(self.last + 1)]
        else:
            powers = [round(self.factor**j * 2.0**self.fraction) for j in range(self.last + 1)]
        return [after - before for before, after in zip(powers, powers[1:], strict=False)]

    @property
    def opened(self) -> int:
        """The number of bits of a factor c^S that the product opens."""
        assert self.factor is not None
        return self.fraction + exponent_of(max(1.0, self.factor**self.last)) + 1 + MARGIN

    def table(self, integers: int) -> LayerTable | None:
        """Return the table of f(y), of whose results `integers` integer bits are read; None if there is none."""
        return table_of(self.text, self.sizes, integers)

    def error(self, table: LayerTable, parties: int) -> float:
        """Return a bound of the error of results for x in the range; see above."""
        far = self.base * (2 + 2.0 ** (self.window.low - SCALE) / self.base)
        slope = steepest(functions.of(self.text, functions.spelled("add", "x", table.middle)), far - table.middle)
        moved = slope * (parties / 2 * 2.0 ** (self.window.q - SCALE) + self.off)
        if self.factor is None:
            return table.error(parties) + moved + 2.0 ** -(SCALE + 1)
        error = max(self.factor**j * (table.error(parties) + moved * 2.0**-j) for j in (0, self.last))
        largest = extent(self.text, self.base, far)[1]
        return error + largest * 2.0 ** -(self.fraction + 1) + (parties + 1) * 2.0 ** -(SCALE + 1)


def _law(text: str, least: float, most: float) -> tuple[float | None, float] | None:
    """Return the factor by which f grows with an octave, or None and what it adds; None if it does neither."""
    x = least * 2.0 ** torch.linspace(0, math.log2(most / least) - 1, 129, dtype=torch.float64)
    y, far = functions.value(text, x), functions.value(text, 2 * x)
    if not bool(y.isfinite().all() and far.isfinite().all()):
        return None
    added, ratio = far - y, far / y
    largest = float(y.abs().max()) + float(far.abs().max())
    if float((added - added[0]).abs().max()) <= _EXACT * largest:
        return None, float(added.mean())
    if bool(ratio.isfinite().all()) and float((ratio / ratio[0] - 1).abs().max()) <= _EXACT and float(ratio[0]) > 0:
        return float(ratio.mean()), 0.0
    return None


@functools.lru_cache(1024)
def _found(text: str, least: float, most: float, error: float) -> tuple[Octaves, ...]:
    """List the forms that keep an error for two parties, for windows that leave more or less undecided."""
    for shift in _shifts(text):
        moved = functions.of(text, functions.spelled("sub", "x", shift)) if shift else text
        low, high = least + shift, most + shift
        if low > 0 and 4 <= high / low <= 2.0**_MOST and (law := _law(moved, low, high)) is not None:
            return tuple(
                form
                for form in _forms(moved, shift, low, high, error, *law)
                if (table := form.table(TYPICAL)) is not None and form.error(table, _PARTIES) <= error * (1 + 2.0**-6)
            )
    return ()


def _shifts(text: str) -> list[float]:
    """List numbers c for which f may follow its law as a function of x + c: 0, those in f, and b / a for a x + b."""
    numbers = [float(word) for word in re.findall(r"-?\d[\d.]*(?:e[+-]?\d+)?", re.sub(r"[a-z]\w*", "", text))]
    numbers = list(dict.fromkeys(abs(number) for number in numbers if number))[:4]
    found = [*numbers, *(b / a for a in numbers for b in numbers)]
    return list(dict.fromkeys([0.0, 1.0, *found, *(-number for number in found)]))


def _forms(
    text: str, shift: float, least: float, most: float, error: float, factor: float | None, added: float
) -> Iterator[Octaves]:
    """List candidate forms for x + `shift` in [least, most]; the caller checks that they keep the error."""
    slope, largest = extent(text, least, min(most, 3 * least))
    grown = 1.0 if factor is None else max(1.0, factor ** math.log2(most / least))
    for finer in (2, 3):
        x_fraction = min(SCALE, max(1, math.ceil(math.log2(max(1.0, grown * slope / error))) + finer))
        q = SCALE - x_fraction
        near_shift = round(shift * 2.0**x_fraction) * 2.0**-x_fraction
        off = abs(near_shift - shift)
        base = math.floor((least - off) * 2.0**x_fraction) * 2.0**-x_fraction
        if base <= 0:
            continue
        count = math.ceil(math.log2(most / base)) - 1
        fraction = min(SCALE, max(1, math.ceil(math.log2(max(1.0, largest / error))) + 2))
        left = error - grown * slope * (2.0**-x_fraction + off) - 2.0 ** -(SCALE + 1)
        if factor is not None:
            left -= largest * 2.0 ** -(fraction + 1) + 2.0**-SCALE
        if left < error / 8:
            continue
        k = exponent_of(most * (1 + 2.0**-6)) + SCALE + 1
        for m in range(max(q, exponent_of(base) + SCALE - 3), exponent_of(base) + SCALE):
            if k - m < 2:
                continue
            # The shares of x, rounded, may lie a little outside of the range.
            far = 2 * base + 2.0 ** (m - SCALE) + _ROUNDED * 2.0**-x_fraction
            near = base - min(base / 4, _ROUNDED * 2.0**-x_fraction)
            try:
                sizes = of_error(text, near, far, left / grown)
            except ConfigError:
                continue
            yield Octaves(text, near_shift, off, base, count, BitWindow(k, m, q), sizes, factor, added, fraction)


class FunctionByOctaves(FunctionInRange):
    """Layer that applies a power or a logarithm to positive values in a wide known range.

    It takes the rounds of one comparison, one for the look-up and, but for a logarithm, one for a product.
    text, exact, rows: as for `FunctionInRange`.
    form: how octaves are found, one of `_found`.
    """

    def __init__(self, text: str, exact: Comparison, rows: Rows, form: Octaves) -> None:
        super(FunctionInRange, self).__init__()  # which has no table of the whole range
        self.text, self.exact, self.rows, self._octaves = text, exact, rows, form

    @property
    def _multiplies(self) -> bool:
        return self._octaves.factor is not None

    @property
    def table(self) -> LayerTable:
        integers = self._octaves.sizes.integers if self._multiplies else self.read - SCALE
        found = self._octaves.table(integers)
        assert found is not None, "see `_found`"
        return found

    def _comparison(self) -> Comparison:
        """Return the comparison with the thresholds; its results are right in all bits that are used of them."""
        found, form = self.table, self._octaves
        bits = form.opened if self._multiplies else found.bits - found.table.scale + SCALE
        ring = max(found.read + SCALE + form.last - found.table.fraction, bits + form.window.q)
        return self.exact.wider(form.window, 64, min(64, ring))

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        found, form, kind = self.table, self._octaves, x.dtype
        assert self.rows is not None
        expect(n, x, self.text, self.rows)
        count, knots = form.last, form.knots
        bits, above, z = n.with_comparison(self._comparison(), n.scale).steps(
            n.precise(x, 2 * SCALE), [knot - form.shift for knot in knots]
        )
        down = [-(1 << count - j) for j in range(1, count + 1)]
        y = n.times(z, 1 << count, count) + n.constant(knots[0], count)
        y = n.weighted(above, down, count, y)
        steps = [number * round(knot * 2.0**SCALE) for number, knot in zip(down, knots, strict=True)]
        y = n.weighted(bits, steps, SCALE + count, y)
        m, argument = found.argument(n.with_comparison(self.exact, SCALE + count), y, self.exact)
        inside = m.polynomial(argument, found.table, found.bits)
        if not self._multiplies:
            return n.weighted(bits, form.rises, SCALE, inside).to(kind)
        factor = n.weighted(bits, form.rises, form.fraction, n.constant(1.0, form.fraction - SCALE))
        scale = found.table.scale
        cut = max(0, min(scale + form.fraction - SCALE, found.bits, form.opened))
        up = max(0, SCALE - scale - form.fraction)
        read = max(self.read - up, found.bits - cut, form.opened - cut)
        product = LiftedTimes(SCALE - scale, found.bits, form.opened, read, cut)
        return n.times(n.apply(product, inside, factor), 1 << up, up).to(kind)

    def reads(self, later: int | None) -> int | None:
        return self._octaves.window.k - SCALE

    def needs(self, scales: Sequence[int], later: int) -> int:
        return self._octaves.window.k + scales[0] - SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        found = super().valid(scales, valid)
        return 64 if found and self._multiplies else found

    def grain(self) -> int:
        return 0

    def constants(self) -> tuple[int, ...]:
        form = self._octaves
        steps = [round(knot * 2.0**SCALE) for knot in form.knots]
        window = form.window.k, form.window.m, form.window.q
        return (*super().constants(), round(form.shift * 2.0**SCALE), *steps, *form.rises, *window, form.fraction)

    def error(self, parties: int) -> float:
        """Return a bound of the error of results for values in the range."""
        return self._octaves.error(self.table, parties)

    def label(self) -> str:
        table = self.table.table.shown
        return f"{self.text} in {self.rows}, {self._octaves.last + 1} octaves, {table}, error {self.error(2):.1e}"


def function_in_range(text: str, comparison: Comparison, rows: Rows | None) -> FunctionInRange:
    """Make the layer of a function without tails: one table, or octaves and a table of one.

    Aims "latency" and "rounds" take one table, which has fewer rounds, unless it has more than `MOST_BYTES`; other
    aims take what is cheaper.
    """
    exact = comparison.wider(EXACT, 64)
    if rows is None or not comparison.gives_steps:
        return FunctionInRange(text, exact, rows)
    forms = _found(text, rows.least, rows.most, rows.error or SMALLEST_ERROR)
    try:
        direct: list[FunctionInRange] = [FunctionInRange(text, exact, rows)]
    except ConfigError:
        if not forms:
            raise
        direct = []
    aim = comparison.aim
    if direct and (aim.name in ("latency", "rounds") or not forms):
        return direct[0]
    choices = direct + [FunctionByOctaves(text, exact, rows, form) for form in forms]

    def price(layer: FunctionInRange) -> tuple[int, float]:
        layer.read = SCALE + TYPICAL
        total = layer.cost([Spec((_VALUES,), SCALE)], _PARTIES)
        del layer.read
        weight = aim.price(total, _VALUES, _PARTIES)
        return (total.rounds if aim.name in ("latency", "rounds") else 0), weight

    return min(choices, key=price)
