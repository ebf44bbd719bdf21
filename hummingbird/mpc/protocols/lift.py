"""From a small ring to a larger one in one round: x mod 2^k, known to be small, is opened behind a mask of k bits.

The dealer draws lambda in Z_2^k as a sum of the low k bits of the parties' words l_i, and deals the carry of that sum,
sum of l_i = lambda + 2^k carry. The parties cut the surplus fraction off their own shares (local), and open

    e = u + lambda  mod 2^k,       u = z + 2^(k-2)

For |z| < 2^(k-2), u is below 2^(k-1), so the sum has left the ring if and only if the top bit t of lambda is 1 and that
of e is 0 (the argument of protocols/truncation.py, in the small ring). Over the integers

    z = e - 2^(k-2) - sum of l_i + 2^k (carry + t [e < 2^(k-1)])

where e is public. carry and carry + t are dealt, in as many bits as the larger ring has beyond k, and e tells which of
the two each party uses. To detect a wrap by top bits is from Escudero et al. 2020, section 5; the small ring and the
dealt carry are derived here. For z outside the range the result may be wrong by 2^k: one unit outside, for 2 of the 2^k
masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number
from hummingbird.mpc.session.session import Session


class LiftingShares(NamedTuple):
    """A party's shares for a lift, (count,) each; int32 if they have at most 32 bits, else int64.

    A mask is called lambda; it is the sum mod 2^k of one summand for each party.
    mask: this party's summand, in the low k bits.
    carry: its share of how often the sum of all summands passes 2^k, which is (sum of all summands - lambda) / 2^k.
    wrapped: its share of that number plus the top bit of lambda.
    An opened value tells whether `carry` or `wrapped` is used.
    """

    mask: Tensor
    carry: Tensor
    wrapped: Tensor


@dataclass(frozen=True)
class Lifting(Request[LiftingShares]):
    """Request for `count` masks, uniform mod 2^k, for values that are opened in k bits and then lifted to `ring` bits.

    A lift turns shares mod 2^k into shares mod 2^ring; k <= ring <= 64.
    """

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
        # The carry is right mod 2^(64 - k), and only ring - k of its bits are dealt: none for k = 64.
        carry = total >> self.k if self.k < 64 else total
        return {"carry": carry, "wrapped": carry + ((total >> (self.k - 1)) & 1)}

    def shares(self, **tensors: Tensor) -> LiftingShares:
        return LiftingShares(**tensors)


def lift(session: Session, share: Tensor, shift: int, k: int, ring: int = 64) -> Tensor:
    """Compute this party's share mod 2^ring, int64 (n,), of z = x / 2^shift, from its share of x mod 2^(k + shift).

    share: its share of x, int64 (n,). |z| < 2^(k-2), and 2 <= k <= ring <= 64.
    With N parties, each of which rounds its own share, z is within N/2 units of x / 2^shift, and right on average.
    Cost: `lift_price`: k bits, 1 round.
    """
    count, first = share.numel(), session.rank == 0
    material = session.correlation(Lifting(count, k, ring))
    mine = kernels.mask_words(share + (1 << (k - 2 + shift)) if first else share, material.mask, shift, k)
    opened = kernels.open_words([mine] + [theirs[0] for theirs in session.channel.exchange(mine).values()], count, k)
    low = (1 << k) - 1 if k < 64 else -1
    out = -(material.mask.long() & low)
    if k < 64:
        carry = material.carry.where(opened >> (k - 1) & 1 == 1, material.wrapped)
        out += carry.long() << k
    return out + (opened - (1 << (k - 2))) if first else out


def lift_price(n: int, k: int, ring: int, parties: int) -> Cost:
    """Return the price of `lift` on n values: k bits each and 1 round.

    For each value, two numbers of ring - k bits are dealt.
    """
    return cost.opening(parties, packed(n * k), 8 * 2 * packed(n * (ring - k)))
