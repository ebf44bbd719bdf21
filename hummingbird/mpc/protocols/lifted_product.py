"""Products of values that are known to be small, in one round, neither of them lifted before.

A lift (lift.py) opens e = z + 2^(k-2) + lambda mod 2^k, and with e' = e - 2^(k-2) over the integers

    z = e' - A,        A = lambda where e has its top bit, lambda - 2^k t where not

with the top bit t of lambda. That is an opening of z behind a mask that has two forms, of which e tells which: so with
v = d' - B, opened the same way in K bits behind mu,

    z v = (e' - A) d' - e' B + A B

all but A B is local, and A B is dealt, in all forms (correlations/lifted_product.py). z v is right mod 2^R, R the bits
that are read of it, though no more than k and K bits were opened. For k = R nothing needs to be known of z: every form
of its mask is the same mod 2^R, and for k = K = R this is Beaver's product (beaver.py). That top bits tell a wrap is
from Escudero et al. 2020, section 5; the merger of lift and product is derived here.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.lifted_product import LiftedProduct, LiftedShares
from hummingbird.mpc.session import Session


class Operand(NamedTuple):
    """A share of x, int64 of any shape, right mod 2^(k + shift): z = x / 2^shift is opened, in k bits."""

    share: Tensor
    shift: int
    k: int


class Opening(NamedTuple):
    """A value as all parties see it: e', and 1 where the mask to subtract from it is the signed one, else 0."""

    word: Tensor
    wraps: Tensor


def product(session: Session, x: Operand, y: Operand, bits: int) -> Tensor:
    """A share of z v mod 2^bits, with anything above, torch's broadcasting: one round.

    Each of x and y is rounded by every party on its own, within N/2 units, and exact if shares are multiples of
    2^shift. |z| < 2^(k-2), unless k = bits; k <= bits. Cost: `cost.lifted_product`.
    """
    shares = session.correlation(LiftedProduct(tuple(x.share.shape), tuple(y.share.shape), x.k, y.k, bits))
    left, right = opened(session, (x, shares.mask), (y, shares.factor))
    mask = remaining(shares.mask, shares.carry, shares.wrapped, left.wraps, x.k)
    lifted = left.word - mask if session.rank == 0 else -mask
    return multiplied(shares, left, lifted, right, (x.k, y.k))


def opened(session: Session, *pairs: tuple[Operand, Tensor]) -> list[Opening]:
    """The openings of operands behind masks, of which parties have summands: one round."""
    rank, mine = session.rank, []
    for (share, shift, k), mask in pairs:
        flat = share.reshape(-1)
        mine.append(
            kernels.mask_words(flat + (1 << (k - 2 + shift)) if rank == 0 else flat, mask.reshape(-1), shift, k)
        )
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    out = []
    for parts, ((share, _, k), _) in zip(frames, pairs, strict=True):
        words = kernels.open_words(list(parts), share.numel(), k).view(share.shape)
        out.append(Opening(words - (1 << (k - 2)), 1 - ((words >> (k - 1)) & 1)))
    return out


def remaining(summand: Tensor, carry: Tensor | None, wrapped: Tensor | None, wraps: Tensor, k: int) -> Tensor:
    """A share of the mask to subtract, in the bits of the carry and k more."""
    low = summand.long() & ((1 << k) - 1 if k < 64 else -1)
    if carry is None or wrapped is None:
        return low
    return low - (carry.where(wraps == 0, wrapped).long() << k)


def multiplied(shares: LiftedShares, left: Opening, lifted: Tensor, right: Opening, widths: tuple[int, int]) -> Tensor:
    """A share of z v from both openings and a share of z; widths: k and K."""
    k, factor = widths
    its = remaining(shares.factor, shares.factor_carry, shares.factor_wrapped, right.wraps, factor)
    both = shares.product.long()
    if shares.top is not None:
        both = both - ((shares.top.long() * left.wraps) << k)
    if shares.factor_top is not None:
        both = both - ((shares.factor_top.long() * right.wraps) << factor)
    if shares.tops is not None:
        both = both + ((shares.tops.long() * (left.wraps * right.wraps)) << (k + factor))
    return lifted * right.word - left.word * its + both
