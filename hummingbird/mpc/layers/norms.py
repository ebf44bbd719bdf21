"""Norms of rows (layer, group and instance norm) for every variance that fixed point holds: one inverse root per row.

For a row of n values with 16 bits of fraction, c = x - mean(x), S = sum of c^2 + n eps is exact, with 32 bits of
fraction. The result is c sqrt(n / S). S lies anywhere between 2^-20 n and 2^30, so it is first normalized, as the
mantissa of a floating-point number: comparisons with T_j = T_0 4^j, 1 <= j <= J, where T_0 4^(J + 1) = 2^30, find the
bits b_j = [S >= T_j]. From these follow, in integers,

    R = 2^J - sum_j b_j 2^(J-j)        R^2 = 4^J - sum_j 3 b_j 4^(J-j)        u = S R^2 2^-30, 1/4 <= u < 1

Then sqrt(n / S) = sqrt(n / u) R 2^-15. Where the protocol has tables (polynomials.py), u^(-1/2) on [1/4, 1] is a table
of the product S R^2 before it is truncated, and sqrt(n) a public factor; otherwise sqrt(n / u) is a linear spline.

*Error.* Each of N parties rounds its share of u by 2^-17 at most: together an error of N 2^-15 relative to u. The root
errs by half of that, and by 2^-14 of the spline or table. R is exact; the rounding of the row's factor sqrt(n / S), by
which c is multiplied, changes it by less than N 2^-16 of itself. So the relative error of a result is below
2^-14 + N 2^-15, which is 2^-13 for two parties. For a table the 2^-14 consist of 2^-15 for its pieces, 2^-16 for its
coefficients and 2^-17 for sqrt(n); u has 18 bits of fraction there, and the table's results 16, so rounding adds
N 2^-18 and N 2^-17. In addition x and its mean are rounded to 2^-16 each, which changes a result by less than
2^-15 / sqrt(variance + eps).

*Range.* S = n (variance + eps) must be below 2^30: otherwise the row becomes noise, unnoticed. If eps is below 2^-20,
rows with a variance below about 2^-20 are divided by about 2^-10, and by no less: the rounding of their values to 2^-16
is a hundredth of the values' differences or more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.bits import Rows
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.graph.ops.norms import rows
from hummingbird.mpc.functions import splines
from hummingbird.mpc.functions.polynomials import ROOT_AT, PolynomialTable, choose
from hummingbird.mpc.layers import norms_in_range
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import CostTensor, Shares
from hummingbird.mpc.layers.layer import MARGIN, MAX_SCALE, Layer, Spec
from hummingbird.mpc.protocols.beaver import SquaredRows, Times
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.division import DividedBy
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE

TOP = 30  # sums of squares stay below 2^TOP: 2^62 in the ring
FLAT = 2.0**-20  # the least variance that thresholds distinguish
LONGEST = 1 << 20  # values in a row
FRACTION = 30  # a result has 16 + FRACTION bits of fraction
_TOLERANCE = 2.0**-14  # relative error of the spline or table
_BITS = SCALE + 3 + MARGIN  # bits of the table's results
_ROOT = 14  # a row's factor, below 2^11, has 16 + _ROOT bits of fraction


class Thresholds(NamedTuple):
    """Thresholds T_j = least * 4^j, for j from 1 to `steps`, with which a norm compares the sum of a row's squares."""

    least: float
    steps: int


def places(length: int, eps: float) -> Thresholds:
    """Choose the thresholds with which a norm over rows of `length` values compares sums of squares.

    Raises InputError if none fit. `least` is at most length * max(eps, 2^-20), so only rows with variance + eps below
    2^-20 may have smaller sums of squares.
    """
    count = math.ceil((TOP - math.log2(length * max(eps, FLAT))) / 2) - 1
    if count < 1:
        raise InputError(f"a norm over {length} values with eps={eps:g}", hint=f"their product is at most 2^{TOP - 4}")
    return Thresholds(2.0 ** (TOP - 2 * (count + 1)), count)


@functools.cache
def root(length: int) -> splines.Fit:
    """The spline of sqrt(length / u) on [1/4, 1], with relative error 2^-14, constant to the left."""
    u = torch.linspace(-math.log(4.0), 0.0, 4001, dtype=torch.float64).exp()
    top = math.sqrt(length)

    def function(u: Tensor) -> Tensor:
        return top * u.rsqrt()

    return splines.fit(function, u, (0.0, -top / 2), _TOLERANCE * function(u))


@functools.cache
def looked_up() -> PolynomialTable:
    """The table of u^(-1/2) on [1/4, 1], with pieces of relative error 2^-15.

    For smaller u its results are smaller than u^(-1/2), and below 2^3.
    """
    found = choose("root", 0.5 + 2.0**-6, 18, _BITS - SCALE, SCALE, _TOLERANCE / 2, 0.0)
    assert found is not None and found.k == 19, "so much of a number of scale 62 is right in the ring"
    return found


def normed(n: Arithmetic, x: Tensor, eps: float, center: bool, exact: Comparison, read: int = 64) -> Tensor:
    """Normalize the rows of x, (..., length), to mean square 1.

    eps: added to the mean square before the root.
    center: whether the mean is subtracted first.
    exact: an exact comparison.
    read: how many low bits of the result's shares later layers read.
    On shares the result has 16 + FRACTION bits of fraction, and `read` right low bits.
    """
    length = x.shape[-1]
    centered = x - n.apply(DividedBy(length), x.sum(-1, keepdim=True)) if center else x
    squares, times = n.apply(SquaredRows(read), centered)
    total = squares + n.constant(length * eps, SCALE)
    n.expects(total, 2.0**TOP, "the squares of a row, less its mean, add up to")
    least, count = places(length, eps)
    bits = n.at_least(total, [least * 4.0**j for j in range(1, count + 1)], SCALE)
    # Integers without bits of fraction: 16 bits fewer than a value of scale 2^16 has.
    most, most_squared = (n.times(n.units(total.new_full((), 1 << k * count).long()), 1, -SCALE) for k in (1, 2))
    up = n.weighted(bits, [-(1 << (count - j)) for j in range(1, count + 1)], 0, most)
    up_squared = n.weighted(bits, [-3 << 2 * (count - j) for j in range(1, count + 1)], 0, most_squared)
    u = n.times(n.apply(Times(), total, up_squared), 1, TOP)  # below 2^62: see TOP
    inverse = _root_of(n, u, length, exact)  # below 2^(13 + 32) for the longest rows, for which R is 2^14
    (inverse,) = n.cut(SCALE + TOP // 2 - _ROOT, n.times(n.apply(Times(), inverse, up), 1, TOP // 2))
    return times(inverse)  # below sqrt(length) 2^(16 + FRACTION)


def _root_of(n: Arithmetic, u: Tensor, length: int, exact: Comparison) -> Tensor:
    """Compute sqrt(length / u) with 32 bits of fraction, for u from 1/4 to 1.

    u: with 32 + TOP bits of fraction on shares.
    exact: an exact comparison, for the spline if there are no tables.
    """
    if not exact.looks_up:
        # `cut` takes values below 2^62, and u is below 1: without the 1/2, rounding would take u near 1 out of range.
        (moved,) = n.cut(SCALE + TOP, u - n.constant(0.5, SCALE + TOP))
        return splines.evaluate(root(length), moved + n.constant(0.5), n)
    found = looked_up()
    moved = u - n.constant(ROOT_AT, SCALE + TOP)
    inverse = n.with_comparison(exact, 2 * SCALE + TOP).polynomial(moved, found, _BITS, whole=True)
    return n.times(inverse, round(math.sqrt(length) * 2.0**SCALE), SCALE)


class Norm(Layer):
    """Layer that normalizes rows to mean 0 and mean square 1.

    attrs: the attributes of the op "norm" (graph/ops/norms.py).
    rows: the range of variance + eps of every row (`BitConfig.rows`), or None.

    With a range for which `norms_in_range.serves` holds, and a protocol with tables, it takes three rounds: every value
    is opened once, and each row takes a look-up and an opening. Otherwise it takes eight rounds, and those of a
    comparison: every value is opened once, for its square and its product, and each row takes an opening for its mean,
    2 J comparisons, where J is about 20, and a look-up. Without tables it takes seven rounds instead of eight, and 56
    more comparisons for each row. The price follows from the formula.
    Raises InputError for rows of more than 2^20 values.
    """

    input_limit = SCALE
    whole_input = True

    def __init__(self, attrs: dict[str, Any], comparison: Comparison, rows: Rows | None = None) -> None:
        super().__init__()
        self.attrs, self.exact = attrs, comparison
        self.length = math.prod(attrs["sizes"]) if attrs["sizes"] is not None else None
        longest = min(self.length or LONGEST, LONGEST)
        serves = comparison.looks_up and rows is not None and norms_in_range.serves(rows, longest, attrs["eps"])
        self.assumed, self.told = rows if serves else None, rows
        if self.assumed is not None and self.length is not None:  # otherwise the bits that it needs are not known
            self.input_limit, self.whole_input = MAX_SCALE, False

    @property
    def comparisons(self) -> list[Comparison]:
        return [self.exact] if self.assumed is None else []

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        """The layer's function of x, in the operations of `n`."""
        values = rows(self.attrs, x)
        if not 0 < values.shape[-1] <= LONGEST:
            raise InputError(f"a norm over {values.shape[-1]} values", hint=f"at most {LONGEST}")
        eps, center = self.attrs["eps"], self.attrs["center"]
        if self.assumed is None:
            out = normed(n, values, eps, center, self.exact, self.read)
        else:
            out = norms_in_range.normed(n, values, eps, center, self.assumed, self.exact, self.read)
        return out.reshape(x.shape).to(x.dtype)

    def forward(self, session: Session, x: Shared) -> Shared:
        n = Shares(session, self.exact, x.scale)
        return Shared(self.formula(n, x.share), self.out_scale([x.scale]))

    def weight_scale(self, later: int) -> int:
        return super().weight_scale(later) if self.assumed is None else SCALE

    def _prices(self, x: Spec, parties: int) -> CostTensor:
        prices = CostTensor(self.exact, x.scale, parties)
        self.formula(prices, torch.empty(x.shape, dtype=torch.int64, device="meta"))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self._prices(inputs[0], parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return max(inputs[0].numel, self._prices(inputs[0], 2).breadth)

    def out_scale(self, scales: Sequence[int]) -> int:
        return SCALE + (FRACTION if self.assumed is None else norms_in_range.FRACTION)

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return 64 if valid[0] >= self.needs(scales, 64) else 0  # no bit is right: the planner tries another form

    def needs(self, scales: Sequence[int], later: int) -> int:
        if self.whole_input or self._sizes is None:
            return 64
        return norms_in_range.needed(self._sizes, scales[0])

    def reads(self, later: int | None) -> int | None:
        # Only differences from the mean count, however large the mean is.
        if self.whole_input or self._sizes is None:
            return None
        return norms_in_range.needed(self._sizes, SCALE) - SCALE

    @property
    def _sizes(self) -> norms_in_range.NormSizes | None:
        """The numbers of a norm for rows with variance + eps in a known range; None if the layer uses no range.

        If the rows' length is not known, they are those of the longest rows.
        """
        if self.assumed is None:
            return None
        return norms_in_range.sizes(self.length or LONGEST, self.attrs["center"], self.assumed)

    def bound(self, bounds: Sequence[int]) -> int:
        return ((self.length or LONGEST) - 1).bit_length() // 2 + 1  # |result| <= sqrt(length of a row)

    def constants(self) -> tuple[int, ...]:
        if self._sizes is not None:
            return self._sizes.numbers
        if self.exact.looks_up:
            table = looked_up()
            return table.w, table.degree
        return () if self.length is None else root(self.length).numbers

    def label(self) -> str:
        if self.assumed is not None:
            assert self._sizes is not None
            return f"variance + eps of a row in {self.assumed}: {self._sizes.table.shown}"
        beyond = "" if self.told is None else f", no table for {self.told}"
        return f"squares of a row, less its mean, below 2^{TOP} together: comparisons{beyond}"
