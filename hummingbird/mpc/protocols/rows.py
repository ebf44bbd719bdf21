"""Rows of private values, lifted, squared and multiplied: one message opens the values, one the row's factors.

A value z is opened as e', and the mask A to subtract has two forms; e' tells which form applies (lifted_product.py). In

    z^2 = e'^2 - 2 e' A + A^2

all but the row sum of A^2 is local; that sum is dealt, in both forms. The same opening serves the product with the
row's factor, which is opened once it is known. So a value is opened once, in the k bits that it may have, and no
message is needed to lift values or factors first.

*The dealt shares.* The masks lambda and mu of a value and of its row's factor, and the fields for their products, are
those of lifted_product.py. The square of lambda as a signed number, with its top bit t, has one more term:

    (lambda - 2^k t)^2 = lambda^2 + 2^(k+1) t (2^(k-1) - lambda)

The factor t (2^(k-1) - lambda) is dealt for each value, and the sum of lambda^2 for each row. Where only the sums are
wanted (`SumOfSquares`), nothing else is dealt.
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
from hummingbird.mpc.correlations.request import Request, made, number, shape
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.protocols.lifted_product import (
    LARGEST_CUT,
    LiftedShares,
    Mask,
    MaskValues,
    Opening,
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
    """Numbers of bits for rows that are squared and multiplied.

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
class SquaredShares:
    """A party's shares of what is dealt for the sums of rows' squares; the fields are those of `LiftedRowShares`."""

    mask: Tensor
    carry: Tensor
    wrapped: Tensor
    squares: Tensor
    turned: Tensor


@dataclass(frozen=True)
class LiftedSquares(Request[SquaredShares]):
    """Request for the masks by which rows of values are squared, uniform mod 2^value, and for the squares of these.

    shape: of the values. A row is a vector along the last dimension.
    sums: how many bits of the sum of a row's squares are read.
    """

    kind = "lifted_squares"
    shape: tuple[int, ...] = shape()
    value: int = number(least=2, most=62)
    sums: int = number(most=64)

    def check(self) -> None:
        if not self.shape:
            raise ValueError("no rows")
        if self.value + 1 >= self.sums:
            raise ValueError(f"{self.sums} bits of sums of squares of {self.value} bits")

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", self.shape, width=self.value, apart=True)}

    @cached_property
    def derived(self) -> Fields:
        wide = Field("ring", self.shape, width=self.sums - self.value)
        return {"carry": wide, "wrapped": wide, **_square_fields(self.shape, self.value, self.sums)}

    def derive(self, mask: list[Tensor]) -> dict[str, Tensor]:
        a = read(mask, self.value)
        return {"carry": a.carry, "wrapped": a.carry + a.top, **_dealt_squares(a, self.value)}

    def shares(self, **tensors: Tensor) -> SquaredShares:
        return SquaredShares(**tensors)


def _square_fields(size: tuple[int, ...], value: int, sums: int) -> Fields:
    """Return the fields "squares" and "turned". size: of the values. value, sums: as in `RowWidths`."""
    return {
        "squares": Field("ring", (*size[:-1], 1), width=sums),
        "turned": Field("ring", size, width=sums - value - 1),
    }


def _dealt_squares(a: MaskValues, value: int) -> dict[str, Tensor]:
    """Compute, as the dealer does, the fields "squares" and "turned" of masks `a` of `value` bits."""
    return {
        "squares": (a.value * a.value).sum(-1, keepdim=True),
        "turned": a.top * ((1 << value - 1) - a.value),
    }


def _summed(seen: Opening, mask: Mask, shares: SquaredShares | LiftedRowShares, first: bool) -> Tensor:
    """Return a party's share of the sum of each opened row's squares, (..., 1). Nothing is sent.

    seen, mask: the opening of the rows, and this party's share of their mask. first: whether this is party 0.
    """
    factor = seen.word - 2 * mask.share if first else -2 * mask.share
    turned = (shares.turned.long() * seen.wraps).sum(-1, keepdim=True)
    return (seen.word * factor).sum(-1, keepdim=True) + shares.squares + (turned << (mask.k + 1))


@dataclass(frozen=True, kw_only=True)
class LiftedRowShares(LiftedShares):
    """A party's shares for the products of rows with factors, and for the rows' squares.

    lambda is the mask of a value, of k bits, and t its top bit. Fields that are not named here are those of
    `lifted_product.LiftedShares`.
    squares: a share of the sum of lambda^2 over each row.
    turned: a share of t (2^(k-1) - lambda), for each value.
    """

    squares: Tensor
    turned: Tensor


@dataclass(frozen=True)
class LiftedRows(Request[LiftedRowShares]):
    """Request for the masks by which rows of values are squared and multiplied by factors, and for products of these.

    The masks are uniform: mod 2^value for each value, mod 2^factor for each row's factor.
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
            **_square_fields(self.shape, self.value, self.sums),
        }

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        a, b = read(mask, self.value), read(factor, self.factor)
        return {**dealt_products(a, b, self.derived, self.cut), **_dealt_squares(a, self.value)}

    def shares(self, **tensors: Tensor) -> LiftedRowShares:
        return LiftedRowShares(**tensors)


class RowOpening:
    """Rows of private values, opened behind masks in one round, to sum each row's squares and to multiply each row.

    x: this party's share, int64 (..., length), right mod 2^(widths.value + shift).
    shift: the opened value stands for z = x / 2^shift. With N parties, each of which rounds its own share, z is within
        N/2 units of it. |z| < 2^(widths.value - 2).
    widths: numbers of bits.
    Cost: `lifted_rows_price`, which includes a product of each row with a factor.
    """

    def __init__(self, session: Session, x: Tensor, shift: int, widths: RowWidths) -> None:
        self._session, self._widths = session, widths
        self._shares = shares = session.correlation(made(LiftedRows, tuple(x.shape), *widths))
        (self._opened,) = opened(session, (Operand(x, shift, widths.value), shares.mask))
        self._mask = remaining(shares.mask, shares.carry, shares.wrapped, self._opened.wraps, widths.value)

    def squares(self) -> Tensor:
        """Return a share of the sum of each opened row's squares mod 2^sums, (..., 1). The bits above are arbitrary.

        `sums` is that of the rows' `RowWidths`. Nothing is sent.
        """
        return _summed(self._opened, self._mask, self._shares, self._session.rank == 0)

    def times(self, v: Tensor) -> Tensor:
        """Compute a share of z v / 2^cut mod 2^product, where z are the opened rows: one round.

        `cut` and `product` are those of the rows' `RowWidths`; the result's bits above `product` are arbitrary.
        v: this party's share of a factor for each row, (..., 1), right mod 2^factor, |v| < 2^(factor - 2).
        With N parties the result is exact for cut = 0, else within (N + 1)/2 units.
        """
        first, widths = self._session.rank == 0, self._widths
        (factor,) = opened(self._session, (Operand(v, 0, widths.factor), self._shares.factor))
        return multiplied(self._shares, self._opened, self._mask, factor, widths.factor, first, widths.cut)


def lifted_rows_price(
    n: int, rows: int, value: int, factor: int, sums: int, product: int, cut: int, parties: int
) -> Cost:
    """Return the price of a `RowOpening` with its sums of squares and one product: 2 rounds.

    n: number of values in all rows.
    rows: number of rows.
    value, factor, sums, product, cut: numbers of bits, as in `RowWidths`.
    """
    masks = 2 * packed(n * (max(sums, product + cut) - value))
    squares = masks + packed(n * (sums - value - 1)) + packed(rows * sums)
    offline = squares + dealt_bytes(rows, n, value, factor, product + cut, cut)
    return cost.opening(parties, packed(n * value), 8 * offline) + cost.opening(parties, packed(rows * factor))


@dataclass(frozen=True)
class LiftedSquaredRows(Operation):
    """Operation that gives the sum of each row's squares, and a function that multiplies each row by a number.

    It is for values that are known to be small, whose shares may be right in few low bits; `beaver.SquaredRows` serves
    others. The function takes a number for each row, (..., 1).
    shift: how many bits of fraction are cut off the values before.
    widths: bits of the values and of the rows' factors, and how many bits of the sums and products are read.
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


def summed_squares(session: Session, x: Tensor, shift: int, value: int, sums: int) -> Tensor:
    """Compute a share of the sum of each row's squares mod 2^sums, (..., 1): one round.

    The bits above are arbitrary.

    x: this party's share, int64 (..., length), right mod 2^(value + shift).
    shift: the sum is of z = x / 2^shift. With N parties, each of which rounds its own share, z is within N/2 units of
        it. |z| < 2^(value - 2).
    value: in how many bits a value is opened.
    Cost: `summed_squares_price`.
    """
    shares = session.correlation(LiftedSquares(tuple(x.shape), value, sums))
    (seen,) = opened(session, (Operand(x, shift, value), shares.mask))
    mask = remaining(shares.mask, shares.carry, shares.wrapped, seen.wraps, value)
    return _summed(seen, mask, shares, session.rank == 0)


def summed_squares_price(n: int, rows: int, value: int, sums: int, parties: int) -> Cost:
    """Return the price of `summed_squares`: 1 round. n: number of values in all `rows` rows."""
    offline = 2 * packed(n * (sums - value)) + packed(n * (sums - value - 1)) + packed(rows * sums)
    return cost.opening(parties, packed(n * value), 8 * offline)


@dataclass(frozen=True)
class SumOfSquares(Operation):
    """Operation that gives the sum of each row's squares, of values that are known to be small.

    shift: how many bits of fraction are cut off the values before.
    value: in how many bits a value is opened, two more than its magnitude has.
    sums: how many low bits of a sum are read.
    """

    shift: int
    value: int
    sums: int

    def plain(self, x: Tensor) -> Tensor:
        return x.square().sum(-1, keepdim=True)

    def run(self, session: Session, x: Tensor) -> Tensor:
        return summed_squares(session, x, self.shift, self.value, self.sums)

    def price(self, parties: int, x: Tensor) -> Cost:
        return summed_squares_price(x.numel(), math.prod(x.shape[:-1]), self.value, self.sums, parties)
