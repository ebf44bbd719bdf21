"""Rows of private values that are lifted, squared and multiplied: one message for each value, one for each row.

A value z is opened as e', and what is left to subtract is a mask A of two forms, of which e' tells which
(lifted_product.py). So of

    z^2 = e'^2 - 2 e' A + A^2

all but A^2, summed over a row, is local; that is dealt, in both forms. The same opening serves the product
with the factor of a row, which is opened when it is known. An element is opened once, in the k bits that it may have,
and neither it nor the factor takes a message to be lifted before.

*What is dealt.* The masks lambda and mu of a value and of the factor of its row, and what products have of them, are
those of lifted_product.py. The square of lambda as a signed number, with its top bit t, has a term more:

    (lambda - 2^k t)^2 = lambda^2 + 2^(k+1) t (2^(k-1) - lambda)

which is dealt for each value, and lambda^2 for each row.
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
from hummingbird.mpc.correlations.parameters import number, shape
from hummingbird.mpc.correlations.request import Request
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
from hummingbird.mpc.protocols.operation import Operation
from hummingbird.mpc.session.session import Session


class RowWidths(NamedTuple):
    """Bits of rows: of a value and of the factor of a row as they are opened, and of what is read of the sum of a row's
    squares, and of a product, of which the lowest `cut` are not wanted.
    """

    value: int
    factor: int
    sums: int
    product: int
    cut: int = 0


@dataclass(frozen=True, kw_only=True)
class LiftedRowShares(LiftedShares):
    """A party's part of products with a row's factor, and of squares: `squares`, the sums of each row's lambda^2, and
    `turned`, t (2^(k-1) - lambda).
    """

    squares: Tensor
    turned: Tensor


@dataclass(frozen=True)
class LiftedRows(Request[LiftedRowShares]):
    """lambda uniform in Z_2^value, of this shape, mu in Z_2^factor for each row, the last dimension; as in
    `RowWidths`.
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
    """Rows z = x / 2^shift, rounded by every party on its own, within N/2 units: opened at once, one round.

    x: int64 (..., length), right mod 2^(widths.value + shift). |z| < 2^(widths.value - 2). Cost: `lifted_rows_price`,
    with the product.
    """

    def __init__(self, session: Session, x: Tensor, shift: int, widths: RowWidths) -> None:
        self._session, self._widths = session, widths
        self._shares = shares = session.correlation(LiftedRows(tuple(x.shape), *widths))
        (self._opened,) = opened(session, (Operand(x, shift, widths.value), shares.mask))
        self._mask = remaining(shares.mask, shares.carry, shares.wrapped, self._opened.wraps, widths.value)

    def squares(self) -> Tensor:
        """A share of the sum of each row's squares mod 2^sums, with anything above, (..., 1)."""
        e, wraps = self._opened
        mask = self._mask.share
        factor = e - 2 * mask if self._session.rank == 0 else -2 * mask
        turned = (self._shares.turned.long() * wraps).sum(-1, keepdim=True)
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares + (turned << (self._widths.value + 1))

    def times(self, v: Tensor) -> Tensor:
        """A share of z v / 2^cut mod 2^product, with anything above, from one of v mod 2^factor, (..., 1): one round.

        |v| < 2^(factor - 2). The result is exact for cut = 0, else within (N + 1)/2 units.
        """
        first, widths = self._session.rank == 0, self._widths
        (factor,) = opened(self._session, (Operand(v, 0, widths.factor), self._shares.factor))
        return multiplied(self._shares, self._opened, self._mask, factor, widths.factor, first, widths.cut)


def lifted_rows_price(
    n: int, rows: int, value: int, factor: int, sums: int, product: int, cut: int, parties: int
) -> Cost:
    """Price of a `RowOpening` of n values in so many rows, with its squares and one product; widths as in `RowWidths`:
    2 rounds.
    """
    masks = 2 * packed(n * (max(sums, product + cut) - value))
    squares = masks + packed(n * (sums - value - 1)) + packed(rows * sums)
    offline = squares + dealt_bytes(rows, n, value, factor, product + cut, cut)
    return cost.opening(parties, packed(n * value), 8 * offline) + cost.opening(parties, packed(rows * factor))


@dataclass(frozen=True)
class LiftedSquaredRows(Operation):
    """`beaver.SquaredRows` of x with `shift` fewer bits of fraction; `widths`: bits of x, of the factors, and of what
    is read of sums and products. Neither x nor the factors need to be in the whole ring.
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
