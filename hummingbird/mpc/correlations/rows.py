"""The dealer's side of rows that are lifted, squared and multiplied by one opening (protocols/rows.py).

The masks lambda and mu of a value and of the factor of its row, and what products have of them, are those of
lifted_product.py. The square of lambda as a signed number, with its top bit t, has a term more:

    (lambda - 2^k t)^2 = lambda^2 + 2^(k+1) t (2^(k-1) - lambda)

which is dealt for each value, and lambda^2 for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.lifted_product import (
    LARGEST_CUT,
    LiftedShares,
    check_widths,
    masks,
    multiplied,
    products,
    read,
)
from hummingbird.mpc.correlations.parameters import number, shape
from hummingbird.mpc.correlations.request import Request


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
        return {
            **products(self.shape, self._row, self.value, self.factor, self.product + self.cut, self.sums, self.cut),
            "squares": Field("ring", self._row, width=self.sums),
            "turned": Field("ring", self.shape, width=self.sums - self.value - 1),
        }

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        a = read(mask, self.value)
        return {
            **multiplied(a, read(factor, self.factor), self.derived, self.cut),
            "squares": (a.value * a.value).sum(-1, keepdim=True),
            "turned": a.top * ((1 << self.value - 1) - a.value),
        }

    def shares(self, **tensors: Tensor) -> LiftedRowShares:
        return LiftedRowShares(**tensors)
