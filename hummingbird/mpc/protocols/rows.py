"""Rows of private values, lifted, squared and multiplied: one message opens the values, one the row's factors.

A value z is opened as e', and the mask A to subtract has two forms; e' tells which form applies (lifted_product.py). In

    z^2 = e'^2 - 2 e' A + A^2

all but the row sum of A^2 is local; that sum is dealt, in both forms. The same opening serves the product with the
row's factor, which is opened once it is known. So a value is opened once, in the k bits that it may have, and no
message is needed to lift values or factors first.

*The dealt shares.* The masks lambda and mu of a value and of its row's factor, and the fields for their products, are
those of lifted_product.py. The square of lambda as a signed number, with its top bit t, has one more term:

    (lambda - 2^k t)^2 = lambda^2 + 2^(k+1) t (2^(k-1) - lambda)

The factor t (2^(k-1) - lambda) is dealt for each value, and the sum of lambda^2 for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import cost
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number, shape
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.protocols.lifted_product import (
    LARGEST_CUT,
    LiftedShares,
    Operand,
    check_widths,
    dealt_bytes,
    dealt_fields,
    dealt_products,
    masks,
    multiplied,
    opened,
    read,
    remaining,
)
from hummingbird.mpc.session.session import Session


class RowWidths(NamedTuple):
    """Bits of the values and results of rows.

    value, factor: bits in which a value and a row's factor are opened.
    sums: how many bits of the sum of a row's squares are read.
    product: how many bits of a product are read, after its lowest `cut` bits are cut off.
    """

    value: int
    factor: int
    sums: int
    product: int
    cut: int = 0


@dataclass(frozen=True, kw_only=True)
class LiftedRowShares(LiftedShares):
    """A party's shares for the products of rows with factors, and for the rows' squares.

    lambda is the mask of a value, of k bits, and t its top bit. The other fields are those of
    `lifted_product.LiftedShares`.
    squares: the sum of lambda^2 over each row.
    turned: t (2^(k-1) - lambda), for each value.
    """

    squares: Tensor
    turned: Tensor


@dataclass(frozen=True)
class LiftedRows(Request[LiftedRowShares]):
    """Request for a mask lambda, uniform in Z_2^value, of each value, and a mask mu, uniform in Z_2^factor, per row.

    shape: of the values. A row is a vector along the last dimension. The other parameters are those of `RowWidths`.
    """

    kind = "lifted_rows"
    shape: tuple[int, ...] = shape()
    value: int = number(least=2, most=62)
    factor: int = number(least=2, most=62)
    sums: int = number(most=64)
    product: int = number(most=64)
    cut: int = number(most=LARGEST_CUT, default=0)

    def check(self) -> None:
        if not self.shape:
            raise ValueError("no rows")
        if self.value + 1 >= self.sums or max(self.value, self.factor) >= self.product + self.cut:
            raise ValueError(f"{self.sums} and {self.product} bits of {self.value} and {self.factor}")
        check_widths(self.value, self.factor, self.product, self.cut)

    @property
    def _row(self) -> tuple[int, ...]:
        return (*self.shape[:-1], 1)

    @cached_property
    def free(self) -> Fields:
        return masks(self.shape, self._row, self.value, self.factor)

    @cached_property
    def derived(self) -> Fields:
        bits = self.product + self.cut
        return {
            **dealt_fields(self.shape, self._row, self.value, self.factor, bits, self.sums, self.cut),
            "squares": Field("ring", self._row, width=self.sums),
            "turned": Field("ring", self.shape, width=self.sums - self.value - 1),
        }

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        a = read(mask, self.value)
        return {
            **dealt_products(a, read(factor, self.factor), self.derived, self.cut),
            "squares": (a.value * a.value).sum(-1, keepdim=True),
            "turned": a.top * ((1 << self.value - 1) - a.value),
        }

    def shares(self, **tensors: Tensor) -> LiftedRowShares:
        return LiftedRowShares(**tensors)


class RowOpening:
    """Rows z = x / 2^shift, opened behind masks in one round, to sum each row's squares and to multiply each row.

    Every party rounds its own share: z is within N/2 units of x / 2^shift.
    x: int64 (..., length), right mod 2^(widths.value + shift); |z| < 2^(widths.value - 2).
    Cost: `lifted_rows_price`, which includes a product of each row with a factor.
    """

    def __init__(self, session: Session, x: Tensor, shift: int, widths: RowWidths) -> None:
        self._session, self._widths = session, widths
        self._shares = shares = session.correlation(LiftedRows(tuple(x.shape), *widths))
        (self._opened,) = opened(session, (Operand(x, shift, widths.value), shares.mask))
        self._mask = remaining(shares.mask, shares.carry, shares.wrapped, self._opened.wraps, widths.value)

    def squares(self) -> Tensor:
        """Compute a share of the sum of each row's squares mod 2^sums, (..., 1). The bits above are arbitrary.

        sums: of the rows' `RowWidths`.
        """
        e, wraps = self._opened
        mask = self._mask.share
        factor = e - 2 * mask if self._session.rank == 0 else -2 * mask
        turned = (self._shares.turned.long() * wraps).sum(-1, keepdim=True)
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares + (turned << (self._widths.value + 1))

    def times(self, v: Tensor) -> Tensor:
        """Compute a share of z v / 2^cut mod 2^product from a share of v: one round. The bits above are arbitrary.

        z are the opened rows; `cut` and `product` are those of their `RowWidths`.
        v: a factor for each row, (..., 1), right mod 2^factor, |v| < 2^(factor - 2). The result is exact for cut = 0,
            else within (N + 1)/2 units.
        """
        first, widths = self._session.rank == 0, self._widths
        (factor,) = opened(self._session, (Operand(v, 0, widths.factor), self._shares.factor))
        return multiplied(self._shares, self._opened, self._mask, factor, widths.factor, first, widths.cut)


def lifted_rows_price(
    n: int, rows: int, value: int, factor: int, sums: int, product: int, cut: int, parties: int
) -> Cost:
    """Price of a `RowOpening` with its sums of squares and one product: 2 rounds.

    n: number of values in all rows. rows: number of rows. The other numbers are those of `RowWidths`.
    """
    masks = 2 * packed(n * (max(sums, product + cut) - value))
    squares = masks + packed(n * (sums - value - 1)) + packed(rows * sums)
    offline = squares + dealt_bytes(rows, n, value, factor, product + cut, cut)
    return cost.opening(parties, packed(n * value), 8 * offline) + cost.opening(parties, packed(rows * factor))


@dataclass(frozen=True)
class LiftedSquaredRows(Operation):
    """Operation as `beaver.SquaredRows`, for rows of x that are known to be small.

    shift: how many bits of fraction are cut off x before.
    widths: bits of x and of the rows' factors, and how many bits of the sums and products are read. The shares of x and
        of the factors may be right in few low bits.
    """

    shift: int
    widths: RowWidths

    def plain(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return x.square().sum(-1, keepdim=True), lambda factors: x * factors

    def run(self, session: Session, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        rows = RowOpening(session, x, self.shift, self.widths)
        return rows.squares(), rows.times

    def price(self, parties: int, x: Tensor) -> Cost:
        return lifted_rows_price(x.numel(), math.prod(x.shape[:-1]), *self.widths, parties)
