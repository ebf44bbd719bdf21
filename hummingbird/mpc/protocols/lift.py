"""From a small ring to a larger one in one round: x mod 2^k, known to be small, opened behind a mask of k bits.

The dealer draws lambda in Z_2^k as a sum of the low k bits of the parties' words l_i, and deals the carry of that sum,
sum of l_i = lambda + 2^k carry. The parties cut the surplus fraction off their own shares (local), and open

    e = u + lambda  mod 2^k,       u = z + 2^(k-2)

For |z| < 2^(k-2) u lies below 2^(k-1), so that the sum has left the ring if and only if lambda has its top bit t and e
has not (the argument of protocols/truncation.py, in the small ring). Over the integers

    z = e - 2^(k-2) - sum of l_i + 2^k (carry + t [e < 2^(k-1)])

in which e is public, and carry and carry + t are dealt, in as many bits as the larger ring has beyond k: each party
takes the one that e tells. That top bits tell a wrap is from Escudero et al. 2020, section 5; the small ring and the
dealt carry are derived here. Beyond its range z comes out wrong by 2^k: a unit beyond, for 2 of the 2^k masks.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.lift import Lifting
from hummingbird.mpc.session.session import Session


def lift(session: Session, share: Tensor, shift: int, k: int, ring: int = 64) -> Tensor:
    """Shares mod 2^ring of z = x / 2^shift, int64 (n,), from shares of x mod 2^(k + shift).

    z is rounded by every party on its own: it is within N/2 units of x / 2^shift, and right on average.
    share: int64 (n,). |z| < 2^(k-2). 2 <= k <= ring <= 64. Cost: `cost.lift`: k bits, 1 round.
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
