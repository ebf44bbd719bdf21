"""Attention's softmax(x) y for x in a known range, with the division after the product: three rounds with the softmax.

For rows of n values, the softmax (softmax_in_range.py) returns E = e^c 2^a / n, where 2^a is the least power of two
that is n or more; the mean of e^c lies in [1, sum]. From E and values y this layer computes the weighted means

    sum of E y / sum of E = M w        M = 2^-a sum of E y        w = 2^a / sum of E

*First round.* The parties open E and y, each in the bits that its bound takes, for the product of both as matrices
(protocols/lifted_matmul.py), and look up w from the sum of E. *Second round.* They open M, and w for each row. The
product M w is cut to 18 bits of fraction, and is right in the whole ring (protocols/lifted_product.py).

*Error.* The softmax's error, relative to max(result, mean of |y|). y has 12 bits of fraction, and its rounding errors,
N/2 units, are averaged too. M has 14 bits, and M w is cut to 18: this adds N 2^-15 and (N + 1) 2^-19.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.bits import Rows
from hummingbird.cost import Cost
from hummingbird.mpc.layers.layer import MAX_SCALE, Given, Layer, Spec, held
from hummingbird.mpc.layers.softmax_in_range import (
    FRACTION,
    LONGEST,
    SUM_FRACTION,
    SoftmaxInRange,
    SoftmaxSizes,
    most_bits,
    most_sum,
    numbers,
)
from hummingbird.mpc.protocols import lifted_matmul, lifted_product
from hummingbird.mpc.protocols.lifted_matmul import LiftedMatMul, terms
from hummingbird.mpc.protocols.lifted_product import Operand
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE

_MEAN = 14  # bits of fraction of M
_SPREAD = (LONGEST - 1).bit_length()  # the largest a
_RESULT = SCALE + 2  # bits of fraction of a result


class WeightedMeanWidths(NamedTuple):
    """How many bits the operands of a weighted mean of values y with weights E have when they are opened.

    value: how many bits of y are opened.
    mean: how many bits are opened of M, the sum of E y times a power of two.
    shift: how many more bits of fraction the sum of E y has than M.
    """

    value: int
    mean: int
    shift: int

    @property
    def sums(self) -> int:
        """How many low bits of the shares of the sum of E y are read.

        They are the opened bits of M, and the `shift` bits of fraction that M does not have.
        """
        return self.mean + self.shift


def widths(rows: Rows, bound: int, spread: int) -> WeightedMeanWidths:
    """Return how many bits a `WeightedMean` opens, for values |y| < 2^bound and rows of up to 2^spread values.

    rows: the range of the softmax's rows.
    """
    larger = math.ceil(math.log2(most_sum(rows) * (1 + 2.0**-7)))
    return WeightedMeanWidths(FRACTION + held(bound), _MEAN + larger + held(bound), 2 * FRACTION + spread - _MEAN)


def serves(rows: Rows, bound: int) -> bool:
    """Return whether the openings of a `WeightedMean` fit the ring, for rows of any length and values |y| < 2^bound.

    rows: the range of the softmax's rows.
    """
    found = widths(rows, bound, _SPREAD)
    factor = numbers(1 << _SPREAD, rows).factor
    return max(found.sums, found.value) <= 64 and most_bits(rows) <= found.sums and found.mean + factor <= 61


class WeightedMean(Layer):
    """Layer for weighted means of y, (..., j, l), with weights E, (..., i, j), from a softmax in a known range.

    A mean is the sum of E y divided by the sum of E. The layer computes it as M w. M is 2^-a times the sum of E y, and
    w is 2^a over the sum of E, where 2^a is the least power of two that is the length j or more.
    rows: the range of the softmax's rows. softmax: the softmax itself, if a mask hides some of its values.
    It takes 2 rounds. y is opened in its bound's bits plus 15; E in the bits that its largest value takes; M in 17 bits
    more than the bounds of y and of the rows' mean of exponentials (`most_sum`) have together.
    """

    input_limit = MAX_SCALE

    def __init__(self, rows: Rows, softmax: SoftmaxInRange | None = None) -> None:
        super().__init__()
        self.rows = rows
        self._masked = [] if softmax is None else [softmax]  # in a list: it is a layer of its own, no part of this one

    def lifts(self, given: Given) -> bool:
        return given.scale == FRACTION  # E, which is right in the bits opened; y has another scale

    def _cut(self, scale: int) -> int:
        """Return how many bits of fraction are cut off the averaged values y as they are opened.

        scale: bits of fraction of y.
        """
        return max(0, scale - FRACTION)

    def out_scale(self, scales: Sequence[int]) -> int:
        return _RESULT

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        enough = all(low >= wanted for low, wanted in zip(valid, self.needs_of_each(scales, 64), strict=True))
        return 64 if enough else 0  # no bit is right: the planner tries another form

    def needs_of_each(self, scales: Sequence[int], later: int) -> list[int]:
        return [most_bits(self.rows), self._widths(0).value + self._cut(scales[1])]

    def needs(self, scales: Sequence[int], later: int) -> int:
        return max(self.needs_of_each(scales, later))

    def reads(self, later: int | None) -> int | None:
        return None

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[1]

    def weight_scale(self, later: int) -> int:
        return SCALE

    def _widths(self, spread: int) -> WeightedMeanWidths:
        return widths(self.rows, self.given[1].bound, spread)

    def _parts(self, x: Sequence[int]) -> tuple[SoftmaxSizes, WeightedMeanWidths]:
        found = self._masked[0].sizes_of(x[-1], masked=True) if self._masked else numbers(x[-1], self.rows)
        return found, self._widths(found.spread)

    def _per_row(self, exp: Tensor, mask: Sequence[Tensor]) -> Tensor | int:
        """Return the number by which each masked row's sums are multiplied, int64 (..., 1); 1 for rows without mask.

        exp: the weights. mask: the attention mask of this call, if there is one.
        """
        rows = self._masked[0].pivots(exp.shape, exp.device, mask) if self._masked else None
        return 1 if rows is None else rows.more

    def constants(self) -> tuple[int, ...]:
        return (*self._widths(_SPREAD), self.given[1].bound)

    def _product(self, found: SoftmaxSizes, sizes: WeightedMeanWidths) -> tuple[int, int]:
        """Return how many low bits of the product M w are right, and how many bits of fraction are cut off it.

        M is a sum of weighted values times a power of two, w the factor that makes it a mean (`WeightedMean`).
        found, sizes: the softmax's numbers and this layer's, for rows of one length.
        """
        cut = _MEAN + found.reciprocal.scale - _RESULT
        return max(self.read, sizes.mean - cut, found.factor - cut), cut

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        x, y = (tuple(spec.shape) for spec in inputs)
        found, sizes = self._parts(x)
        request = LiftedMatMul(x, y, found.value, sizes.value, sizes.sums)
        looked_up = LookUpPrice.of(math.prod(x[:-1]), found.reciprocal, found.factor, parties)
        return lifted_matmul.price(request, looked_up, parties) + self._division_price(x, y, parties)

    def _division_price(self, x: tuple[int, ...], y: tuple[int, ...], parties: int) -> Cost:
        """Return the price of the product M w. x, y: shapes of the weights and of the values."""
        (found, sizes), every = self._parts(x), terms(x, y)
        out, (bits, cut) = math.prod((*every[:-2], every[-1])), self._product(found, sizes)
        return lifted_product.price(out, math.prod(x[:-1]), out, sizes.mean, found.factor, bits, parties, cut)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        x, y = (tuple(spec.shape) for spec in inputs)
        found, _ = self._parts(x)
        entries = math.prod(x[:-1]) << max(0, found.reciprocal.w - 2)
        return max(super().breadth(inputs), entries, math.prod(terms(x, y)) // 4)  # three fields, and the summands

    def forward(self, session: Session, x: Shared, y: Shared) -> Shared:
        exp = x.share
        found, sizes = self._parts(exp.shape)
        more = self._per_row(exp, ())
        inverse = self._inverse(session, exp, found, more)
        values = Operand(y.share, self._cut(y.scale), sizes.value)
        mean, over = lifted_matmul.product(session, Operand(exp, 0, found.value), values, sizes.sums, inverse)
        return self._divided(session, mean * more, over, found, sizes)

    def _divided(
        self, session: Session, mean: Tensor, over: Tensor, found: SoftmaxSizes, sizes: WeightedMeanWidths
    ) -> Shared:
        """Multiply sums of weighted values by the numbers w of their rows, `over`; return the means."""
        bits, cut = self._product(found, sizes)
        operands = Operand(mean, sizes.shift, sizes.mean), Operand(over, 0, found.factor)
        return Shared(lifted_product.product(session, *operands, bits, cut), _RESULT)

    @staticmethod
    def _inverse(session: Session, exp: Tensor, found: SoftmaxSizes, more: Tensor | int) -> LookUp:
        """Prepare the look-up of the number w for each row of weights E: the row's weighted sums times w are means.

        w is 2^a over the sum of the row's weights, where 2^a is the least power of two that is the row's length or
        more.
        exp: this party's share of the weights, rows along the last dimension; w has the size 1 there.
        found: the softmax's numbers for rows of this length.
        more: a factor of each row's sum (`_per_row`).
        Returns the look-up, which sends nothing yet.
        """
        scale = FRACTION + found.spread
        lacking = max(0, SUM_FRACTION - scale)
        middle = int(ring.encode(torch.tensor(found.below, dtype=torch.float64), scale + lacking))
        mean = (exp.sum(-1, keepdim=True) * more << lacking) - (middle if session.rank == 0 else 0)
        return LookUp(session, mean, found.reciprocal, scale + lacking, found.factor)

    def label(self) -> str:
        found = self._widths(0)
        return f"weighted means, of what {self.rows} leaves: opens {found.value} and {found.mean} bits"
