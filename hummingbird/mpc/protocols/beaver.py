"""Products of two private values, by dealt products of masks (Beaver, CRYPTO 1991): one opening of both, masked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hummingbird import ring
from hummingbird.mpc.correlations.products import SquarePair, Triple
from hummingbird.mpc.session import Session


def product(session: Session, op: str, x: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """Share of op(x, y, **options) mod 2^64 from shares of both, int64; op of `ring.BILINEAR`.

    With e = x - a and d = y - b opened: xy = c + op(e, b + d) + op(a, d), d's part in the first product at party 0
    only. Cost: `cost.product`, 64 bits per element of x and y, 1 round.
    """
    a, b, c = session.correlation(Triple(tuple(x.shape), tuple(y.shape), op, options))
    e, d = x - a, y - b
    for theirs in session.channel.exchange(e, d).values():
        e += theirs[0]
        d += theirs[1]
    right = b + d if session.rank == 0 else b
    return c + ring.bilinear(op, e, right, **options) + ring.bilinear(op, a, d, **options)


def square(session: Session, x: Tensor) -> Tensor:
    """Share of x * x mod 2^64 from a share of x, int64 of any shape.

    With e = x - r opened, and r^2 dealt: x^2 = r^2 + 2 e r + e^2. Cost: `cost.square`, 64 bits per element, 1 round.
    """
    r, squared = session.correlation(SquarePair(tuple(x.shape)))
    e = x - r
    for theirs in session.channel.exchange(e).values():
        e += theirs[0]
    out = squared + 2 * e * r
    return out + e * e if session.rank == 0 else out
