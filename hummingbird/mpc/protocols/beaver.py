"""Products of two private values, by dealt products of masks (Beaver, CRYPTO 1991): one opening of both, masked.

A product mod 2^R needs its operands mod 2^R and no more, so that masks, openings and what is dealt have R bits: as many
as later layers look at (mpc/plan/rounding_plan.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hummingbird import kernels, ring
from hummingbird.mpc.correlations.products import RowProducts, SquarePair, Triple
from hummingbird.mpc.session.session import Session


def product(session: Session, op: str, x: Tensor, y: Tensor, options: dict[str, Any], bits: int = 64) -> Tensor:
    """Share of op(x, y, **options) mod 2^bits from shares of both, int64, with anything above; op of `ring.BILINEAR`.

    With e = x + a and d = y + b opened: xy = c + op(e, y) - op(a, d), y at party 0 alone being d less its share of b.
    Cost: `cost.product`, `bits` bits per element of x and y, 1 round.
    """
    a, b, c = session.correlation(Triple(tuple(x.shape), tuple(y.shape), op, options, bits=bits))
    e, d = opened(session, bits, (x, a), (y, b))
    right = d - b if session.rank == 0 else -b.long()
    return c + ring.bilinear(op, e, right, bits, **options) - ring.bilinear(op, a.long(), d, bits, **options)


def square(session: Session, x: Tensor, bits: int = 64) -> Tensor:
    """Share of x * x mod 2^bits from a share of x, int64 of any shape. Bits above are anything.

    With e = x + r opened, and r^2 dealt: x^2 = r^2 - 2 e r + e^2. Cost: `cost.square`, `bits` bits per element and 1
    round.
    """
    r, squared = session.correlation(SquarePair(tuple(x.shape), bits=bits))
    (e,) = opened(session, bits, (x, r))
    out = squared - 2 * e * r
    return out + e * e if session.rank == 0 else out


def opened(session: Session, bits: int, *pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The sums mod 2^bits of values and masks that the parties have shares of, int64 of their shapes: one round, `bits`
    bits per element.
    """
    mine = [kernels.mask_words(value.reshape(-1), mask.reshape(-1), 0, bits) for value, mask in pairs]
    frames = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    return [
        kernels.open_words(list(parts), value.numel(), bits).view(value.shape)
        for parts, (value, _) in zip(frames, pairs, strict=True)
    ]


class OpenedRows:
    """Rows of private values, opened once behind a mask: the sums of their squares, and one product with a number for
    each row. Cost: `cost.opened_rows`, 64 bits per value, and `bits` for each row with the product: a round each.

    x: int64 (..., length). With e = x + a opened, the sums s of a^2 and the products c = a b dealt: the sum of x^2 is s
    less the sum of 2 e a, and that of e^2 more; x y is c + e y - a d, with d = y + b opened.
    """

    def __init__(self, session: Session, x: Tensor, bits: int) -> None:
        self._session, self._bits = session, bits
        self._shares = session.correlation(RowProducts(tuple(x.shape), bits=bits))
        (self._opened,) = opened(session, 64, (x, self._shares.a))

    def squares(self) -> Tensor:
        """A share of the sum of each row's squares mod 2^64, (..., 1)."""
        e = self._opened
        factor = e - 2 * self._shares.a if self._session.rank == 0 else -2 * self._shares.a
        return (e * factor).sum(-1, keepdim=True) + self._shares.squares

    def times(self, y: Tensor) -> Tensor:
        """A share of x y mod 2^bits, with anything above, from a share of y, (..., 1)."""
        a, b, _, c = self._shares
        (d,) = opened(self._session, self._bits, (y, b))
        return c + self._opened * (d - b if self._session.rank == 0 else -b.long()) - a * d
