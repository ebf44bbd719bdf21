"""Softmax of rows that are assumed to lie in a known range (`BitConfig.rows`): without a maximum, without comparisons.

*Assumption.* For a row of n values x, c = x - mean(x) lies in [least, most], and u, the mean of e^c, is at most `sum`.
By Jensen's inequality the mean of exponentials of numbers with mean 0 is at least 1. So u lies in [1, sum] for every
n, and the division by u needs no maximum.

*Exponentials.* Let 2^a be the least power of two that is n or more. From its share every party computes
y = (n x - sum of x) 2^-a, which is (n / 2^a) c exactly. E = e^c (2^a / n) 2^-t is a table (polynomials.py) of y minus
the middle of its range. The table stretches its argument by 2^a / n and multiplies its results by a gain in [1, 2); the
integer t makes up for the rest of the factor.

*Sum.* The sum of E over a row is u 2^(a - t). Its shares are right in enough bits to be the argument of a second
table, v = 1/u, without an opening in between.

*Product.* A result is E v 2^(t - a). E is opened in the bits that e^most needs, v in the bits that 1 needs
(protocols/lifted_product.py).

*Error.* The error of E, relative to max(e^c, 1): 0.6 2^-10 for the table's pieces, 2^-12 for its coefficients as masks
move them, N 2^-12 for y, which is rounded by N/2 units of 2^-12 and stretched, N 2^-13 for the rounding of E, and
|c| 2^-17 for the rounding of the stretch: less than h = (1 + 3 N / 8) 2^-10. Since u >= 1, a result errs by
h max(result, 1/n) for its own E, and by 2 h result for u, which is a mean of such errors. v errs by 2^-10 for its
pieces and by N 2^-14 each for the rounding of u and v. Together a result errs by less than
(4 + 5 N / 4) 2^-10 max(result, 1/n), which is 2^-7 for up to three parties.

*Masks.* Hidden values of a row count for nothing: their exponentials are multiplied by a public 0, and c is 0 in the
argument of the table. Let s values be shown, and let 2^j be the largest power of two up to s. The mean of x that is
subtracted is that of the last 2^j shown values, and u is the sum of e^c over all shown values, divided by 2^j. So u is
still 1 or more, and sums are divided by powers of two: every row, whatever s is, has the tables of rows of `LONGEST`
values, of which 2^(LONGEST's - j) count for one. `pivots` finds these numbers.

*Range.* A row outside of the range becomes noise, unnoticed: y or u leaves its table. The range of u is derived here;
softmax without a maximum is common for logits that are known to be small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.graph.ops.attention import shown_places
from hummingbird.mpc.functions.polynomials import GAIN, POWER_TO, PolynomialTable, choose, reciprocal_at
from hummingbird.mpc.functions.softmax_tables import reciprocals
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Spec
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.lifted_product import LiftedTimes
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE

LONGEST = 512  # values in a row
_SPREAD = (LONGEST - 1).bit_length()
_WIDEST = POWER_TO - 1  # the most that half of the range of c may be
_LOWEST = -7.0  # the lowest middle of the range: below it E would have no bits of fraction
FRACTION = 12  # bits of fraction of y, and of E 2^t
SUM_FRACTION = 13  # of u, as the argument of its table
_BELOW = 13  # bits of fraction of v beyond the log2 of the largest u
_PIECES = 0.6 * 2.0**-10
_SLACK = 2.0**-6  # of y: room for the parties' rounding of the range and of its middle


class SoftmaxSizes(NamedTuple):
    """Numbers of bits, and two tables, by which a softmax over rows of n values in a known range computes its results.

    A result is E v 2^(turn - spread): E is an exponential, v belongs to its row's sum.
    spread: a, where 2^a is the least power of two that is n or more.
    turn: t: E is e^(x - mean) (2^a / n) 2^-t.
    middle: the middle of the range of (x - mean) n / 2^a. The argument of E's table is this number less `middle`.
    exp: the table of E.
    reciprocal: the table of v, the reciprocal of the row's mean of e^(x - mean).
    below: the number that is subtracted from the argument of `reciprocal`.
    bits: how many low bits of the shares of E are right.
    value, factor: how many bits of E and of v are opened.
    """

    spread: int
    turn: int
    middle: float
    exp: PolynomialTable
    reciprocal: PolynomialTable
    below: float
    bits: int
    value: int
    factor: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers of this record and of its tables, which must be equal at all parties."""
        tables = [(at.k, at.fraction, at.w, at.degree, at.scale, at.gain, at.stretch) for at in self[3:5]]
        return (self.spread, self.turn, *tables[0], *tables[1], self.bits, self.value, self.factor)


def _ends(rows: Rows) -> tuple[float, float]:
    """Return the lowest and the highest difference of a value from its row's mean that the table of exp serves.

    They are the bounds of `rows`, unless the middle of these is too low for the table: then the upper bound is raised.
    """
    return rows.least, max(rows.most, 2 * _LOWEST - rows.least)


class Pivots(NamedTuple):
    """The public numbers of masked rows, along the last dimension (see *Masks*).

    shown: bool, which values count. taken: bool, the last 2^j of them. more: int64 (..., 1), 2^(spread - j), where
    2^spread is `LONGEST`.
    """

    shown: Tensor
    taken: Tensor
    more: Tensor

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean that is subtracted from each row of the real numbers x; its last size is 1."""
        return (x * self.taken).sum(-1, keepdim=True) * (self.more * 2.0**-_SPREAD).to(x.dtype)

    def sum(self, exp: Tensor) -> Tensor:
        """Return the sum of the shown numbers e^c of each row, divided by 2^j, for real numbers."""
        return (exp * self.shown).sum(-1) * (self.more[..., 0] * 2.0**-_SPREAD).to(exp.dtype)


def pivots(shown: Tensor) -> Pivots:
    """Return the numbers of masked rows. shown: bool (..., n), which values of a row count; at least one."""
    behind = shown.long().flip(-1).cumsum(-1).flip(-1)
    power = behind[..., :1].double().log2().floor().long()  # exact: log2 of a power of two has no error
    return Pivots(shown, shown & (behind <= 1 << power), 1 << (_SPREAD - power).clamp(min=0))


def most_sum(rows: Rows) -> float:
    """Return the largest mean of e^(x - mean of x) that a row x in this range can have: `rows.sum` if it is given.

    Otherwise a row whose values are all `least` or `most` has the largest mean, since e^x is convex.
    """
    if rows.sum is not None:
        return rows.sum
    part = -rows.least / (rows.most - rows.least)  # the part of values at the upper bound, for a mean of 0
    return part * math.exp(rows.most) + (1 - part) * math.exp(rows.least)


def most_bits(rows: Rows) -> int:
    """Return the most bits in which a softmax opens its numbers e^(x - mean) 2^a / n, for rows of any length n.

    2^a is the least power of two that is n or more, so 2^a / n is less than 2.
    """
    longest = sizes(LONGEST, rows)
    assert longest is not None, "see `serves`"
    return longest.value + 1


def fine(rows: Rows) -> int:
    """Return how many bits of fraction v has, the reciprocal of a row's mean of e^(x - mean). rows: the rows' range.

    They are enough for the smallest v, that of a row whose mean of e^(x - mean) is `most_sum`.
    """
    return max(SCALE, _BELOW + math.ceil(math.log2(most_sum(rows))))


def serves(rows: Rows) -> bool:
    """Return whether a softmax over rows of every length up to `LONGEST` in this range has tables that fit the ring."""
    least, most = _ends(rows)
    if (most - least) / 2 > _WIDEST:
        return False
    return all(sizes(length, rows) is not None for power in range(10) for length in ((1 << power) // 2 + 1, 1 << power))


@functools.lru_cache(1024)
def sizes(length: int, rows: Rows) -> SoftmaxSizes | None:
    """Compute the numbers of bits and the tables of a softmax over rows of `length` values (`SoftmaxSizes`).

    rows: the rows' range.
    The tables are those with the fewest bits for a row.
    Returns None if a table does not fit.
    """
    spread = (length - 1).bit_length()
    stretch = round(2.0**spread / length * GAIN)
    least, most = (end * length / 2.0**spread for end in _ends(rows))
    middle = round((least + most) / 2 * 2**FRACTION) * 2.0**-FRACTION
    # E(y) = e^(stretch (y - middle)) times a constant factor, which is 2^t times a gain in [1, 2).
    factor = math.exp(middle * stretch / GAIN) * 2.0**spread / length
    turn = math.floor(math.log2(factor))
    gain, unit = round(factor * 2.0**-turn * GAIN), 2.0**spread / length * 2.0**-turn
    scale = FRACTION + turn
    largest = math.exp(_ends(rows)[1] * (1 + 2.0**-16) + _SLACK) * unit * (1 + 2.0**-9)
    opened = fine(rows) + 1 + MARGIN  # v is at most slightly above 1
    value = math.ceil(largest * 2.0**scale).bit_length() + 1 + MARGIN
    reach = (most - least) / 2 + _SLACK
    widest = None if length == LONGEST else sizes(LONGEST, rows)  # no row needs more bits of its values than this one
    found = []
    for inverse, span in reciprocals(most_sum(rows) * (1 + 2.0**-8), fine(rows), opened):
        bits = max(value, span + FRACTION + spread)
        wanted = "power", reach, FRACTION, bits - scale, scale, _PIECES, unit
        table = choose(*wanted, gain=gain, stretch=stretch)
        if table is not None and widest is not None and table.k > widest.exp.k:
            table = choose(*wanted, gain=gain, stretch=stretch, k=widest.exp.k)
        if table is not None:
            made = SoftmaxSizes(spread, turn, middle, table, inverse, reciprocal_at(span), bits, value, opened)
            found.append((length * table.dealt(bits) + inverse.dealt(opened), made))
    return min(found, key=lambda pair: pair[0], default=(0, None))[1]


def numbers(length: int, rows: Rows) -> SoftmaxSizes:
    """Compute the numbers of bits and the tables of a softmax over rows of `length` values (`SoftmaxSizes`).

    rows: the rows' range; `serves` must hold for it.
    Raises InputError for rows of more than `LONGEST` values.
    """
    if not 0 < length <= LONGEST:
        raise InputError(f"softmax over {length} places", hint=f"at most {LONGEST}")
    found = sizes(length, rows)
    assert found is not None, "see `serves`"
    return found


class SoftmaxInRange(Comparing):
    """Layer for exp(x) / sum along `dim`, without a maximum, for rows in a known range: three rounds.

    The rounds are a look-up and an opening of every value, and a look-up and an opening for each row.
    rows: the range of a row's values minus their mean (`BitConfig.rows`).
    causal: whether the layer hides each key that comes after its query.
    hidden: a bool tensor that broadcasts to x, true where a value is hidden; None for no mask.
    The layer's second input, a public mask of the call, may hide further values. Hidden values cost as much as others.
    Raises InputError for rows of more than `LONGEST` values.
    """

    input_limit = MAX_SCALE - _SPREAD

    hidden: Tensor | None

    divides = True  # set by the planner: whether this layer divides by the sum; otherwise its reader does

    def __init__(
        self, dim: int, comparison: Comparison, rows: Rows, causal: bool = False, hidden: Tensor | None = None
    ) -> None:
        super().__init__(comparison)
        self.dim, self.rows, self.causal = dim, rows, causal
        self.register_buffer("hidden", hidden)
        self.fraction = FRACTION + fine(rows) + _SPREAD - SCALE

    def left_to_reader(self) -> None:
        """Make this softmax return numbers in proportion to e^x; the layer that reads them divides by their sum.

        For rows of n values these numbers are e^(x - mean) 2^a / n, right in `SoftmaxSizes.value` bits, where 2^a is
        the least power of two that is n or more (mpc/layers/weighted_mean.py).
        """
        self.divides, self.fraction = False, FRACTION - SCALE

    @property
    def _longest(self) -> SoftmaxSizes:
        found = sizes(LONGEST, self.rows)
        assert found is not None, "see `serves`"
        return found

    def pivots(self, shape: Sequence[int], device: torch.device, mask: Sequence[Tensor]) -> Pivots | None:
        """Return the numbers of the rows of logits of this shape; None without a mask, and on the meta device.

        mask: the attention mask of this call, if there is one.
        """
        logits = torch.empty((1,), device=device).expand(tuple(shape))
        shown = shown_places(logits, self.causal, self.hidden, mask[0] if mask else None)
        return None if shown is None else pivots(shown)

    @property
    def masks(self) -> bool:
        """Whether a mask of the layer hides values."""
        return self.causal or self.hidden is not None

    def sizes_of(self, length: int, masked: bool) -> SoftmaxSizes:
        """Return the numbers of rows of `length` values. masked: whether a mask may hide some of them."""
        found = numbers(length, self.rows)
        return self._longest if masked else found

    def formula(self, n: Arithmetic, x: Tensor, *mask: Tensor) -> Tensor:
        values = n.precise(x, 2 * SCALE).movedim(self.dim, -1)
        found = self.sizes_of(values.shape[-1], self.masks or bool(mask))
        rows = self.pivots(values.shape, values.device, mask)
        exp, inverse, more = self._looked_up(n, values, found, rows)
        up = _SPREAD - found.spread
        product = max(self.read - up, found.value, found.factor)
        out = n.apply(LiftedTimes(more, found.value, found.factor, product), exp, inverse)
        out = n.times(out if rows is None else out * rows.more.to(out.dtype), 1, found.spread - found.turn)
        return n.times(out, 1 << up, up).movedim(-1, self.dim).to(x.dtype)

    def exponentials(self, n: Arithmetic, x: Tensor, found: SoftmaxSizes, rows: Pivots | None = None) -> Tensor:
        """Look up E = e^(x - mean) (2^a / L) 2^-t for each value x, in rows along the last dimension; return E.

        mean: the mean of the row. L: the row's length. 2^a: the least power of two that is L or more. t: `found.turn`.
        n: the kind of numbers.
        found: the numbers for rows of this length. The result has `found.exp.scale` bits of fraction, and at least 16.
        rows: of masked rows, for which L is `LONGEST`; the result is 0 for hidden values.
        """
        length = x.shape[-1] if rows is None else LONGEST
        summed = x if rows is None else x * rows.taken.to(x.dtype) * rows.more.to(x.dtype)
        y = n.times(x, length, found.spread) - n.times(summed.sum(-1, keepdim=True), 1, found.spread)
        y = y if rows is None else y * rows.shown.to(y.dtype)
        unit = length * 2.0**-found.spread
        n.expects(y, self.rows.most * (1 + _SLACK), _WHAT, self.rows.least * (1 + _SLACK), unit)
        y = y - n.constant(found.middle, n.scale + found.spread - SCALE)
        exp = n.with_comparison(self.comparison, n.scale + found.spread).polynomial(y, found.exp, found.bits)
        return exp if rows is None else exp * rows.shown.to(exp.dtype)

    def _looked_up(
        self, n: Arithmetic, x: Tensor, found: SoftmaxSizes, rows: Pivots | None
    ) -> tuple[Tensor, Tensor, int]:
        """Look up numbers E and v for the rows of x along the last dimension; a row's softmax is proportional to E v.

        E is proportional to e^x within a row, and v to the reciprocal of the row's sum of E. Returns E, v with size 1
        in the last dimension, and how many of E's lowest bits of fraction are zero.
        n: the kind of numbers.
        found: the numbers for rows of this length.
        rows: of masked rows.
        """
        exp = self.exponentials(n, x, found, rows)
        scale = max(SCALE, found.exp.scale)
        total = exp.sum(-1, keepdim=True)
        total = n.times(total if rows is None else total * rows.more.to(exp.dtype), 1, found.spread - found.turn)
        n.expects(total, most_sum(self.rows) * (1 + 2.0**-8), _MEAN)
        at = scale + found.spread - found.turn  # bits of fraction of u
        lacking = max(0, SUM_FRACTION - at)
        total = n.times(total, 1 << lacking, lacking) - n.constant(found.below, at + lacking - SCALE)
        sums = n.with_comparison(self.comparison, at + lacking)
        return exp, sums.polynomial(total, found.reciprocal, found.factor), scale - found.exp.scale

    def dropped(self, x: Tensor) -> Tensor:
        raise AssertionError("a softmax without bits has no rows")

    def forward(self, session: Session, x: Shared, *mask: Tensor) -> Shared:
        scale, share = x.scale, x.share
        n = Shares(session, self.comparison, scale)
        if self.divides:
            return Shared(self.formula(n, share, *mask), SCALE + self.fraction)
        found, rows = (
            self.sizes_of(share.shape[-1], self.masks or bool(mask)),
            self.pivots(share.shape, share.device, mask),
        )
        exp = self.exponentials(n, share, found, rows)
        return Shared(exp >> max(0, SCALE - found.exp.scale), FRACTION)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self._priced(inputs, parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return self._priced(inputs, 2).breadth

    def _priced(self, inputs: Sequence[Spec], parties: int) -> CostTensor:
        x, *masks = inputs
        prices = CostTensor(self.comparison, x.scale, parties)
        given = torch.empty(x.shape, dtype=torch.int64, device="meta")
        mask = [torch.empty(spec.shape, device="meta") for spec in masks]
        if self.divides:
            self.formula(prices, given, *mask)
        else:
            self.exponentials(prices, given, self.sizes_of(x.shape[-1], self.masks or bool(mask)))
        return prices

    def out_scale(self, scales: Sequence[int]) -> int:
        return SCALE + self.fraction

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if valid[0] < self.needs(scales, 64):
            return 0  # no bit is right: the planner tries another form
        return 64 if self.divides else most_bits(self.rows)

    def needs(self, scales: Sequence[int], later: int) -> int:
        return self._longest.exp.k + max(0, scales[0] + _SPREAD - FRACTION)

    def reads(self, later: int | None) -> int | None:
        return self.needs([SCALE], 64) - SCALE

    def bound(self, bounds: Sequence[int]) -> int:
        return 1 if self.divides else most_bits(self.rows) - FRACTION - MARGIN - 1

    def weight_scale(self, later: int) -> int:
        return SCALE

    def constants(self) -> tuple[int, ...]:
        return (*self._longest.numbers, int(self.divides))

    def variant(self, scale: int, parties: int, n: int) -> str:
        return self._longest.exp.shown

    def label(self) -> str:
        tables = f"{self._longest.exp.shown}, and {self._longest.reciprocal.shown}"
        return f"values of a row less their mean in {self.rows}: {tables}"


_WHAT = "of a softmax's row, a value less the mean of all is"
_MEAN = "of a softmax's row, the mean of exp(x - mean) is"
