"""The dealer's side of a lift to a larger ring (protocols/lift.py): a mask mod 2^k, and the carry of its summands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.parameters import number
from hummingbird.mpc.correlations.request import Request


class LiftingShares(NamedTuple):
    """A party's part of a lift, (count,) each.

    mask: its summand of lambda in the low k bits. carry: its share of (sum of the summands - lambda) / 2^k. wrapped:
    that of the same and lambda's top bit. int32 where at most 32 bits count, else int64.
    """

    mask: Tensor
    carry: Tensor
    wrapped: Tensor


@dataclass(frozen=True)
class Lifting(Request[LiftingShares]):
    """`count` masks lambda, uniform mod 2^k; results are wanted mod 2^ring, k <= ring <= 64."""

    kind = "lift"
    count: int = number()
    k: int = number(least=2, most=64)
    ring: int = number(most=64)

    def check(self) -> None:
        if self.k > self.ring:
            raise ValueError(f"k {self.k} exceeds ring {self.ring}")

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,), width=self.k, apart=True)}

    @cached_property
    def derived(self) -> Fields:
        return dict.fromkeys(("carry", "wrapped"), Field("ring", (self.count,), width=self.ring - self.k))

    def derive(self, mask: list[Tensor]) -> dict[str, Tensor]:
        low = (1 << self.k) - 1 if self.k < 64 else -1
        total = sum((summand.long() & low for summand in mask[1:]), mask[0].long() & low)
        # Of the carry 64 - k bits are right, and of those ring - k count: none for k = 64.
        carry = total >> self.k if self.k < 64 else total
        return {"carry": carry, "wrapped": carry + ((total >> (self.k - 1)) & 1)}

    def shares(self, **tensors: Tensor) -> LiftingShares:
        return LiftingShares(**tensors)
