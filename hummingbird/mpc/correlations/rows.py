"""The dealer's side of rows that are lifted, squared and multiplied by one opening (protocols/rows.py).

A value and the factor of its row are opened behind masks lambda and mu, of k and K bits, as a lift opens one (lift.py).
What is left to subtract is lambda as an unsigned number or as a signed one, lambda - 2^k t with its top bit t, and the
opened word tells which; likewise mu - 2^K s. So the dealer deals what squares and products have in each case:

    (lambda - 2^k t)^2 = lambda^2 + 2^(k+1) t (2^(k-1) - lambda)
    (lambda - 2^k t) (mu - 2^K s) = lambda mu - 2^k t mu - 2^K lambda s + 2^(k+K) t s

each term in as many bits as are left of those that are read when it is moved up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number, shape
from hummingbird.mpc.correlations.request import Request


class Widths(NamedTuple):
    """Bits of rows: of a value and of the factor of a row as they are opened, and of what is read of the sum of a row's
    squares, and of a product.
    """

    value: int
    factor: int
    sums: int
    product: int

    @property
    def masks(self) -> int:
        """Bits of the whole masks of values that count."""
        return max(self.sums, self.product)


class LiftedRowShares(NamedTuple):
    """A party's part. mask, factor: its summands of lambda and mu in the low k and K bits; all others are additive.

    carry, wrapped: (sum of the summands - lambda) / 2^k, and the same and t; factor_carry, factor_wrapped: of mu.
    squares: the sums of each row's lambda^2. turned: t (2^(k-1) - lambda). product, top, factor_top, tops: lambda mu,
    t mu, lambda s, t s; the last one None where no bit of it counts.
    """

    mask: Tensor
    factor: Tensor
    carry: Tensor
    wrapped: Tensor
    factor_carry: Tensor
    factor_wrapped: Tensor
    squares: Tensor
    turned: Tensor
    product: Tensor
    top: Tensor
    factor_top: Tensor
    tops: Tensor | None = None


@dataclass(frozen=True)
class LiftedRows(Request[LiftedRowShares]):
    """lambda uniform in Z_2^value, of this shape, mu in Z_2^factor for each row, the last dimension; as in `Widths`."""

    kind = "lifted_rows"
    shape: tuple[int, ...] = shape()
    value: int = number(least=2, most=62)
    factor: int = number(least=2, most=62)
    sums: int = number(most=64)
    product: int = number(most=64)

    def check(self) -> None:
        if not self.shape:
            raise ValueError("no rows")
        if self.value + 1 >= self.sums or max(self.value, self.factor) >= self.product:
            raise ValueError(f"{self.sums} and {self.product} bits of {self.value} and {self.factor}")

    @property
    def widths(self) -> Widths:
        """All widths."""
        return Widths(self.value, self.factor, self.sums, self.product)

    @cached_property
    def free(self) -> Fields:
        return {
            "mask": Field("ring", self.shape, width=self.value, apart=True),
            "factor": Field("ring", (*self.shape[:-1], 1), width=self.factor, apart=True),
        }

    @cached_property
    def derived(self) -> Fields:
        k, factor, row = self.value, self.factor, (*self.shape[:-1], 1)
        tops = self.product - k - factor
        return {
            **dict.fromkeys(("carry", "wrapped"), Field("ring", self.shape, width=self.widths.masks - k)),
            **dict.fromkeys(("factor_carry", "factor_wrapped"), Field("ring", row, width=self.product - factor)),
            "squares": Field("ring", row, width=self.sums),
            "turned": Field("ring", self.shape, width=self.sums - k - 1),
            "product": Field("ring", self.shape, width=self.product),
            "top": Field("ring", self.shape, width=self.product - k),
            "factor_top": Field("ring", self.shape, width=self.product - factor),
            **({"tops": Field("ring", self.shape, width=tops)} if tops > 0 else {}),
        }

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        a, carry, top = _read(mask, self.value)
        b, factor_carry, factor_top = _read(factor, self.factor)
        return {
            "carry": carry,
            "wrapped": carry + top,
            "factor_carry": factor_carry,
            "factor_wrapped": factor_carry + factor_top,
            "squares": (a * a).sum(-1, keepdim=True),
            "turned": top * ((1 << self.value - 1) - a),
            "product": a * b,
            "top": top * b,
            "factor_top": a * factor_top,
            "tops": top * factor_top,
        }

    def shares(self, **tensors: Tensor) -> LiftedRowShares:
        return LiftedRowShares(**tensors)


def _read(summands: list[Tensor], k: int) -> tuple[Tensor, Tensor, Tensor]:
    """A mask of k bits, the carry of its summands mod 2^(64 - k), and its top bit."""
    low = (1 << k) - 1
    total = sum((summand.long() & low for summand in summands[1:]), summands[0].long() & low)
    return total & low, total >> k, total >> (k - 1) & 1
