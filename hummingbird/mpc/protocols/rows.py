"""Rows of private values that are lifted, squared and multiplied: one message for each value, one for each row.

A lift (lift.py) opens e = z + 2^(k-2) + lambda mod 2^k, and with e' = e - 2^(k-2) over the integers

    z = e' - A,        A = lambda where e has its top bit, lambda - 2^k t where not

with the top bit t of lambda. That is an opening of z behind a mask that has two forms, of which e tells which: so of

    z^2 = e'^2 - 2 e' A + A^2        z v = e' (d' - B) - A d' + A B

all but A^2, summed over a row, and A B are local, where v = d' - B is the factor of a row, lifted the same way; these
two are dealt, for all forms (correlations/rows.py). An element is opened once, in the k bits that it may have, and
neither it nor the factor takes a message to be lifted before. The merger of lift, squares and product is derived here.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.correlations.rows import LiftedRows, Widths
from hummingbird.mpc.session import Session


class RowOpening:
    """Rows z = x / 2^shift, rounded by every party on its own, within N/2 units: opened at once, one round.

    x: int64 (..., length), right mod 2^(widths.value + shift). |z| < 2^(widths.value - 2). Cost: `cost.lifted_rows`,
    with the product.
    """

    def __init__(self, session: Session, x: Tensor, shift: int, widths: Widths) -> None:
        self._session, self._widths = session, widths
        self._shares = shares = session.correlation(LiftedRows(tuple(x.shape), *widths))
        self._opened, self._wraps = _opened(session, x, shares.mask, shift, widths.value)
        self._mask = _mask(shares.mask, shares.carry, shares.wrapped, self._wraps, widths.value)

    def squares(self) -> Tensor:
        """A share of the sum of each row's squares mod 2^sums, with anything above, (..., 1)."""
        e = self._opened
        factor = e - 2 * self._mask if self._session.rank == 0 else -2 * self._mask
        turned = (self._shares.turned.long() * self._wraps).sum(-1, keepdim=True)
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares + (turned << (self._widths.value + 1))

    def times(self, v: Tensor) -> Tensor:
        """A share of z v mod 2^product, with anything above, from a share of v mod 2^factor, (..., 1): one round.

        |v| < 2^(factor - 2).
        """
        shares, k, factor = self._shares, self._widths.value, self._widths.factor
        d, wraps = _opened(self._session, v, shares.factor, 0, factor)
        mask = _mask(shares.factor, shares.factor_carry, shares.factor_wrapped, wraps, factor)
        masks = shares.product - ((shares.top.long() * self._wraps) << k)
        masks -= (shares.factor_top.long() * wraps) << factor
        if shares.tops is not None:
            masks += (shares.tops.long() * (self._wraps * wraps)) << (k + factor)
        right = d - mask if self._session.rank == 0 else -mask
        return self._opened * right - self._mask * d + masks


def _opened(session: Session, share: Tensor, mask: Tensor, shift: int, k: int) -> tuple[Tensor, Tensor]:
    """e', and 1 where the mask to subtract from it is the signed one, else 0; int64 of the share's shape."""
    flat = share.reshape(-1)
    mine = kernels.mask_words(flat + (1 << (k - 2 + shift)) if session.rank == 0 else flat, mask.reshape(-1), shift, k)
    frames = [mine] + [theirs[0] for theirs in session.channel.exchange(mine).values()]
    words = kernels.open_words(frames, flat.numel(), k).view(share.shape)
    return words - (1 << (k - 2)), 1 - (words >> (k - 1))


def _mask(summand: Tensor, carry: Tensor, wrapped: Tensor, wraps: Tensor, k: int) -> Tensor:
    """A share of the mask to subtract, in the bits of the carry and k more."""
    return (summand.long() & ((1 << k) - 1)) - (carry.where(wraps == 0, wrapped).long() << k)
