"""Products of values that are known to be small, in one round, neither of them lifted before.

A lift (lift.py) opens e = z + 2^(k-2) + lambda mod 2^k, and with e' = e - 2^(k-2) over the integers

    z = e' - A,        A = lambda where e has its top bit, lambda - 2^k t where not

with the top bit t of lambda. That is an opening of z behind a mask that has two forms, of which e tells which: so with
v = d' - B, opened the same way in K bits behind mu,

    z v = (e' - A) d' - e' B + A B

all but A B is local, and A B is dealt, in all forms (correlations/lifted_product.py). z v is right mod 2^R, R the bits
that are read of it, though no more than k and K bits were opened. For k = R nothing needs to be known of z: every form
of its mask is the same mod 2^R, and for k = K = R this is Beaver's product (beaver.py).

*Cut.* z v / 2^s is right mod 2^R if z v is mod 2^(R + s), more than a word. With s <= k and s <= K, and A = a - 2^k c,
B = b - 2^K c', a and b the summands of lambda and mu in a party's low k and K bits, every share is

    [e' - a] d' - e' b  +  2^k c d' + 2^K e' c' + A B        [e']: at party 0 alone

of which only (e' - a) d' - e' b, k + K + 2 bits, and lambda mu in A B are no multiples of 2^s: each party rounds the
former, the dealer the latter, and c, c' and products with top bits are dealt in s bits more. z v / 2^s is right to
(N + 1)/2 units. So a product takes no message to lose the fraction that it has gained.

That top bits tell a wrap is from Escudero et al. 2020, section 5; the merger of lift, product and cut is derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.lifted_product import LiftedProduct, LiftedShares
from hummingbird.mpc.session.session import Session


class Operand(NamedTuple):
    """A share of x, int64 of any shape, right mod 2^(k + shift): z = x / 2^shift is opened, in k bits."""

    share: Tensor
    shift: int
    k: int


class Opening(NamedTuple):
    """A value as all parties see it: e', and 1 where the mask to subtract from it is the signed one, else 0."""

    word: Tensor
    wraps: Tensor


class Mask(NamedTuple):
    """A share of the mask to subtract, low - 2^k carry; no carry where k bits are all that count."""

    low: Tensor
    carry: Tensor | None
    k: int

    @property
    def share(self) -> Tensor:
        """The share, in as many bits as the carry has, and k more."""
        return self.low if self.carry is None else self.low - (self.carry << self.k)


def product(session: Session, x: Operand, y: Operand, bits: int, cut: int = 0) -> Tensor:
    """A share of z v / 2^cut mod 2^bits, with anything above, torch's broadcasting: one round.

    Each of x and y is rounded by every party on its own, within N/2 units, and exact if shares are multiples of
    2^shift. |z| < 2^(k-2), unless k = bits + cut; k <= bits + cut. The result is exact for cut = 0, else within
    (N + 1)/2 units. Cost: `cost.lifted_product`.
    """
    shares = session.correlation(LiftedProduct(tuple(x.share.shape), tuple(y.share.shape), x.k, y.k, bits, cut))
    left, right = opened(session, (x, shares.mask), (y, shares.factor))
    mask = remaining(shares.mask, shares.carry, shares.wrapped, left.wraps, x.k)
    return multiplied(shares, left, mask, right, y.k, session.rank == 0, cut)


def opened(session: Session, *pairs: tuple[Operand, Tensor]) -> list[Opening]:
    """The openings of operands behind masks, of which parties have summands: one round."""
    mine = [masked(session, operand, mask) for operand, mask in pairs]
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    return [seen(parts, operand) for parts, (operand, _) in zip(frames, pairs, strict=True)]


def masked(session: Session, operand: Operand, mask: Tensor) -> Tensor:
    """A party's part of an opening, as it is sent."""
    share, shift, k = operand
    flat = share.reshape(-1)
    moved = flat + (1 << (k - 2 + shift)) if session.rank == 0 else flat
    return kernels.mask_words(moved, mask.reshape(-1), shift, k)


def seen(parts: Sequence[Tensor], operand: Operand) -> Opening:
    """The opening that all parties' parts are."""
    share, _, k = operand
    words = kernels.open_words(list(parts), share.numel(), k).view(share.shape)
    return Opening(words - (1 << (k - 2)), 1 - ((words >> (k - 1)) & 1))


def remaining(summand: Tensor, carry: Tensor | None, wrapped: Tensor | None, wraps: Tensor, k: int) -> Mask:
    """The mask to subtract from a value as it is opened."""
    low = summand.long() & ((1 << k) - 1 if k < 64 else -1)
    if carry is None or wrapped is None:
        return Mask(low, None, k)
    return Mask(low, carry.where(wraps == 0, wrapped).long(), k)


def multiplied(
    shares: LiftedShares, left: Opening, mask: Mask, right: Opening, factor: int, first: bool, cut: int = 0
) -> Tensor:
    """A share of z v / 2^cut from both openings and the mask of z; factor: K; first: whether this is party 0."""
    k, e, d = mask.k, left.word, right.word
    its = remaining(shares.factor, shares.factor_carry, shares.factor_wrapped, right.wraps, factor)
    fine = (e - mask.low if first else -mask.low) * d - e * its.low  # below 2^(k + K + 2), or right mod 2^64
    out = ((fine + (1 << cut >> 1)) >> cut) + shares.product.long()
    if mask.carry is not None:
        out = out + ((mask.carry * d) << (k - cut))
    if its.carry is not None:
        out = out + ((its.carry * e) << (factor - cut))
    if shares.top is not None:
        out = out - ((shares.top.long() * left.wraps) << (k - cut))
    if shares.factor_top is not None:
        out = out - ((shares.factor_top.long() * right.wraps) << (factor - cut))
    if shares.tops is not None:
        out = out + ((shares.tops.long() * (left.wraps * right.wraps)) << (k + factor - cut))
    return out
