"""The dealer's side of products of values that are lifted by the opening itself (protocols/lifted_product.py).

A value and its factor are opened behind masks lambda and mu, of k and K bits, as a lift opens one (lift.py). What is
left to subtract is lambda as an unsigned number or as a signed one, lambda - 2^k t with its top bit t, and the opened
word tells which; likewise mu - 2^K s. So the dealer deals what a product has in each case, mod 2^R:

    (lambda - 2^k t) (mu - 2^K s) = lambda mu - 2^k t mu - 2^K lambda s + 2^(k+K) t s

each term in as many bits as are left of R when it is moved up, and none where none is: for k = R nothing is lifted.
Of a product that loses its lowest s bits, mod 2^R as it is then, terms have as many as are left of R + s; lambda mu,
which is no multiple of 2^s, is rounded by s bits itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number, shape
from hummingbird.mpc.correlations.request import Request


@dataclass(frozen=True, kw_only=True)
class LiftedShares:
    """A party's part. mask, factor: its summands of lambda and mu in the low k and K bits; all others are additive.

    carry, wrapped: (sum of the summands - lambda) / 2^k, and the same and t; factor_carry, factor_wrapped: of mu.
    product, top, factor_top, tops: lambda mu, t mu, lambda s, t s. None where no bit counts.
    """

    mask: Tensor
    factor: Tensor
    product: Tensor
    carry: Tensor | None = None
    wrapped: Tensor | None = None
    factor_carry: Tensor | None = None
    factor_wrapped: Tensor | None = None
    top: Tensor | None = None
    factor_top: Tensor | None = None
    tops: Tensor | None = None


LARGEST_CUT = 40  # bits


def check_widths(value: int, factor: int, product: int, cut: int) -> None:
    """Raise ValueError for widths that a product mod 2^product, less its lowest `cut` bits, cannot have."""
    whole = product + cut
    narrow = cut > min(value, factor) or whole - min(value, factor) > 64 or value + factor > 61
    if max(value, factor) > whole or (cut and narrow):
        raise ValueError(f"{product} bits of {value} and {factor}, less {cut}")


@dataclass(frozen=True)
class LiftedProduct(Request[LiftedShares]):
    """lambda uniform in Z_2^value, of shape size0, mu in Z_2^factor, of size1, and products less their lowest `cut`
    bits mod 2^product, of the shape that torch broadcasts them to.
    """

    kind = "lifted_product"
    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()
    value: int = number(least=2, most=64)
    factor: int = number(least=2, most=64)
    product: int = number(least=2, most=64)
    cut: int = number(most=LARGEST_CUT, default=0)

    def check(self) -> None:
        check_widths(self.value, self.factor, self.product, self.cut)

    @cached_property
    def free(self) -> Fields:
        return masks(self.size0, self.size1, self.value, self.factor)

    @cached_property
    def derived(self) -> Fields:
        return products(self.size0, self.size1, self.value, self.factor, self.product + self.cut, 0, self.cut)

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        return multiplied(read(mask, self.value), read(factor, self.factor), self.derived, self.cut)

    def shares(self, **tensors: Tensor) -> LiftedShares:
        return LiftedShares(**tensors)


def masks(size0: Sequence[int], size1: Sequence[int], k: int, factor: int) -> Fields:
    """The masks of values and of factors."""
    return {
        "mask": Field("ring", tuple(size0), width=k, apart=True),
        "factor": Field("ring", tuple(size1), width=factor, apart=True),
    }


def products(
    size0: Sequence[int], size1: Sequence[int], k: int, factor: int, bits: int, whole: int, cut: int
) -> Fields:
    """The fields that are dealt for products mod 2^bits, of which the lowest `cut` are not wanted, where the masks of
    values count mod 2^whole, if that is more.
    """
    left, right, out = tuple(size0), tuple(size1), tuple(torch.broadcast_shapes(size0, size1))
    fields = {
        **dict.fromkeys(("carry", "wrapped"), (left, max(bits, whole) - k)),
        **dict.fromkeys(("factor_carry", "factor_wrapped"), (right, bits - factor)),
        "product": (out, bits - cut),
        "top": (out, bits - k),
        "factor_top": (out, bits - factor),
        "tops": (out, bits - k - factor),
    }
    return {name: Field("ring", size, width=width) for name, (size, width) in fields.items() if width > 0}


@dataclass(frozen=True)
class MaskValues:
    """The dealer's knowledge of masks of k bits: values, carries of their summands mod 2^(64 - k), and top bits."""

    value: Tensor
    carry: Tensor
    top: Tensor


def read(summands: list[Tensor], k: int) -> MaskValues:
    """The masks whose summands, in the low k bits, the parties have."""
    low = (1 << k) - 1 if k < 64 else -1
    total = sum((summand.long() & low for summand in summands[1:]), summands[0].long() & low)
    # Of a sum mod 2^64 the bits from k on are right mod 2^(64 - k), and nobody asks for those of 64.
    return MaskValues(total & low, total >> min(k, 63), (total >> (k - 1)) & 1)


def multiplied(a: MaskValues, b: MaskValues, fields: Fields, cut: int) -> dict[str, Tensor]:
    """The values of those of `products` that are among the fields."""
    values = {
        "carry": lambda: a.carry,
        "wrapped": lambda: a.carry + a.top,
        "factor_carry": lambda: b.carry,
        "factor_wrapped": lambda: b.carry + b.top,
        "product": lambda: (a.value * b.value + (1 << cut >> 1)) >> cut,
        "top": lambda: a.top * b.value,
        "factor_top": lambda: a.value * b.top,
        "tops": lambda: a.top * b.top,
    }
    return {name: value() for name, value in values.items() if name in fields}
