"""Masks and their quotients: protocols/truncation.py and mpc/functions/division.py open a value behind one, and divide.

A quotient comes in two versions, of the mask as an unsigned and as a signed 64-bit number: which one is right, the
opened value tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.field import Field, Fields, planes
from hummingbird.mpc.correlations.parameters import number
from hummingbird.mpc.correlations.request import Request


class QuotientShares(NamedTuple):
    """Additive shares of a mask and of its two quotients, rounded down; int64 (count,)."""

    mask: Tensor
    unsigned: Tensor
    signed: Tensor


@dataclass(frozen=True)
class _Quotients(Request[QuotientShares]):
    """a uniform; its two quotients."""

    count: int = number()

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,))}

    @cached_property
    def derived(self) -> Fields:
        return dict.fromkeys(("unsigned", "signed"), Field("ring", (self.count,)))

    def shares(self, **tensors: Tensor) -> QuotientShares:
        return QuotientShares(**tensors)


@dataclass(frozen=True)
class Truncation(_Quotients):
    """a uniform; a >> shift, with zeros and with copies of the top bit drawn in."""

    kind = "truncate"
    shift: int = number(most=62)

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        unsigned, signed = shifted(mask, self.shift)
        return {"unsigned": unsigned, "signed": signed}


@dataclass(frozen=True)
class Division(_Quotients):
    """a uniform; a // divisor, of a as an unsigned and as a signed number, rounded down."""

    kind = "divide"
    divisor: int = number(least=1)

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        unsigned, signed = quotients(mask, self.divisor)
        return {"unsigned": unsigned, "signed": signed}


class SelectionShares(NamedTuple):
    """Shares of a bit r, packed and as a number (`flag`), of a mask and its quotients, and of r times both quotients.

    bit: xor shares, uint8 (1, ceil(count/8)); all others are additive, int64 (count,).
    """

    bit: Tensor
    mask: Tensor
    flag: Tensor
    unsigned: Tensor
    signed: Tensor
    flag_unsigned: Tensor
    flag_signed: Tensor


@dataclass(frozen=True)
class Selection(Request[SelectionShares]):
    """a and a bit r uniform; r as a number, a >> shift with zeros and with sign drawn in, and r times both.

    Without a shift, the mask is its own quotient, and r a is dealt once.
    """

    kind = "select"
    count: int = number()
    shift: int = number(most=62)

    @cached_property
    def free(self) -> Fields:
        return {"bit": planes(1, self.count), "mask": Field("ring", (self.count,))}

    @cached_property
    def derived(self) -> Fields:
        names = ("flag", "unsigned", "signed", "flag_unsigned", "flag_signed") if self.shift else ("flag", "flag_mask")
        return dict.fromkeys(names, Field("ring", (self.count,)))

    def derive(self, bit: Tensor, mask: Tensor) -> dict[str, Tensor]:
        flag = kernels.from_bits(bit.view(-1), self.count)
        if not self.shift:
            return {"flag": flag, "flag_mask": flag * mask}
        unsigned, signed = shifted(mask, self.shift)
        quotients = {"unsigned": unsigned, "signed": signed}
        return {"flag": flag, **quotients, "flag_unsigned": flag * unsigned, "flag_signed": flag * signed}

    def shares(self, **tensors: Tensor) -> SelectionShares:
        if not self.shift:
            mask, product = tensors["mask"], tensors.pop("flag_mask")
            return SelectionShares(**tensors, unsigned=mask, signed=mask, flag_unsigned=product, flag_signed=product)
        return SelectionShares(**tensors)


def shifted(mask: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """mask >> shift with zeros, and with copies of the top bit, drawn in."""
    signed = mask >> shift
    return (signed & ((1 << (64 - shift)) - 1) if shift else signed), signed


def quotients(words: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """words // divisor, read as unsigned and as signed 64-bit numbers and rounded down; divisor in 1..2^28."""
    signed = words.div(divisor, rounding_mode="floor")
    half = ((words >> 1) & (2**63 - 1)).div(divisor, rounding_mode="floor") << 1
    # At most 2 divisor - 1 is left, below 2^29; a divisor of 1 leaves 0 or 1.
    return half + (words - half * divisor >= divisor).long(), signed
