"""Matrix products of values that are known to be small, in one round, neither of them lifted before.

As lifted_product.py: z = e' - A and v = d' - B, with masks A and B of two forms of which e' and d' tell. Of

    sum over j of z v = sum of (e' - A) d' - sum of e' B + sum of A B

all but the sums of A B is local matrix products, and what A B is made of is dealt (correlations/lifted_matmul.py):

    sum of A B = sum of lambda mu - 2^k sum of w t mu - 2^K sum of w' lambda s + 2^(k+K) sum of w w' t s

w and w' being 1 where a word tells the signed mask. The result is right mod 2^R, R the bits that are read of it.
"""

from __future__ import annotations

import math

from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.lifted_matmul import LiftedMatMul
from hummingbird.mpc.protocols.lifted_product import Operand, masked, remaining, seen
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.session.session import Session


def product(session: Session, x: Operand, y: Operand, bits: int, beside: LookUp) -> tuple[Tensor, Tensor]:
    """A share of the matrix product z v mod 2^bits, with anything above, batches broadcast; and the result of a look-up
    beside it: one round for both.

    x, y: int64 (..., i, j) and (..., j, l), rounded as in `lifted_product.product`. |z| < 2^(k-2), unless k = bits.
    Cost: `price`.
    """
    request = LiftedMatMul(tuple(x.share.shape), tuple(y.share.shape), x.k, y.k, bits)
    shares, first = session.correlation(request), session.rank == 0
    mine = [masked(session, x, shares.mask), masked(session, y, shares.factor), *beside.words]
    left, right, *others = zip(mine, *session.channel.exchange(*mine).values(), strict=True)
    (e, wraps), (d, turns) = seen(left, x), seen(right, y)
    a = remaining(shares.mask, shares.carry, shares.wrapped, wraps, x.k).share
    b = remaining(shares.factor, shares.factor_carry, shares.factor_wrapped, turns, y.k).share
    out = ring.bilinear("matmul", e - a if first else -a, d, bits) - ring.bilinear("matmul", e, b, bits)
    out = out + shares.product
    wraps, turns = wraps.unsqueeze(-1), turns.unsqueeze(-3)
    if shares.top is not None:
        out = out - ((shares.top * wraps).sum(-2) << x.k)
    if shares.factor_top is not None:
        out = out - ((shares.factor_top * turns).sum(-2) << y.k)
    if shares.tops is not None:
        out = out + ((shares.tops * (wraps * turns)).sum(-2) << (x.k + y.k))
    return out, beside.result(others)


def price(request: LiftedMatMul, beside: LookUpPrice, parties: int) -> Cost:
    """Price of `product` beside a look-up."""
    sent = packed(math.prod(request.size0) * request.value) + packed(math.prod(request.size1) * request.factor)
    return cost.opening(parties, sent + beside.payload, request.correction_bits + beside.offline_bits)
