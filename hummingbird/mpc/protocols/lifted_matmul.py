"""Matrix products of values that are known to be small, in one round, without a lift of either value first.

As in lifted_product.py: z = e' - A and v = d' - B, where the masks A and B have two forms, and e' and d' tell which
form applies. In

    sum over j of z v = sum of (e' - A) d' - sum of e' B + sum of A B

all but the sum of A B is local matrix products. The terms of A B are dealt:

    sum of A B = sum of lambda mu - 2^k sum of w t mu - 2^K sum of w' lambda s + 2^(k+K) sum of w w' t s

where w and w' are 1 if an opened word selects the signed mask. The result is right mod 2^R, where R is the number of
bits that are read of it.

*The dealt shares.* The masks lambda (i, j) and mu (j, l), and the fields for each form of a product of two masks, are
those of lifted_product.py. In a sum over j the opened words select a form for every term. So lambda mu is dealt as a
sum over j; a product with a top bit is dealt for every i, j and l, mod 2^(R-k), 2^(R-K) or 2^(R-k-K), and not at all if
no bit remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hummingbird import cost, kernels, ring
from hummingbird.cost import Cost, packed
from hummingbird.kernels.shares.packing import Words
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number, shape
from hummingbird.mpc.protocols.lifted_product import LiftedShares, Operand, masked, masks, read, remaining, seen
from hummingbird.mpc.protocols.poly import LookUp, LookUpPrice
from hummingbird.mpc.session.session import Session


def batch_of(size0: Sequence[int], size1: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the stack in a product of stacks of matrices: all dimensions but the last two, broadcast.

    size0, size1: shapes of the two stacks.
    """
    return tuple(torch.broadcast_shapes(tuple(size0[:-2]), tuple(size1[:-2])))


def terms(size0: Sequence[int], size1: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of all the single products that a matrix product adds up: (..., i, j, l).

    size0, size1: shapes of the operands, (..., i, j) and (..., j, l).
    """
    return (*batch_of(size0, size1), *size0[-2:], size1[-1])


@dataclass(frozen=True)
class LiftedMatMul(Request[LiftedShares]):
    """Request for the masks and their products by which two private matrices are multiplied in one round.

    The masks are uniform: mod 2^value of shape size0 for the first matrix, mod 2^factor of shape size1 for the second.
    Also dealt: what the parties need to know of products of these masks for a matrix product mod 2^product
    (`lifted_product.LiftedShares`).
    """

    kind = "lifted_matmul"
    size0: tuple[int, ...] = shape()
    size1: tuple[int, ...] = shape()
    value: int = number(least=2, most=64)
    factor: int = number(least=2, most=64)
    product: int = number(least=2, most=64)

    def check(self) -> None:
        if max(self.value, self.factor) > self.product:
            raise ValueError(f"{self.product} bits of {self.value} and {self.factor}")
        if min(len(self.size0), len(self.size1)) < 2 or self.size0[-1] != self.size1[-2]:
            raise ValueError(f"matrices {self.size0} and {self.size1}")

    @cached_property
    def free(self) -> Fields:
        return masks(self.size0, self.size1, self.value, self.factor)

    @cached_property
    def derived(self) -> Fields:
        every, left, right = terms(self.size0, self.size1), self.product - self.value, self.product - self.factor
        fields = {
            **dict.fromkeys(("carry", "wrapped"), (self.size0, left)),
            **dict.fromkeys(("factor_carry", "factor_wrapped"), (self.size1, right)),
            "product": ((*every[:-2], every[-1]), self.product),
        }
        found = {name: Field("ring", size, width=width) for name, (size, width) in fields.items()}
        for name, width in (("top", left), ("factor_top", right), ("tops", left - self.factor)):
            found[name] = Field("ring", (math.prod(every),), width=width, left=True)
        return {name: item for name, item in found.items() if item.width > 0}

    def derive(self, mask: list[Tensor], factor: list[Tensor]) -> dict[str, Tensor]:
        a, b = read(mask, self.value), read(factor, self.factor)

        def each(x: Tensor, y: Tensor) -> Tensor:
            return (x.unsqueeze(-1) * y.unsqueeze(-3)).reshape(-1)

        values = {
            "carry": lambda: a.carry,
            "wrapped": lambda: a.carry + a.top,
            "factor_carry": lambda: b.carry,
            "factor_wrapped": lambda: b.carry + b.top,
            "product": lambda: ring.bilinear("matmul", a.value, b.value, self.product),
            "top": lambda: each(a.top, b.value),
            "factor_top": lambda: each(a.value, b.top),
            "tops": lambda: each(a.top, b.top),
        }
        return {name: value() for name, value in values.items() if name in self.derived}

    def shares(self, **tensors: Tensor) -> LiftedShares:
        return LiftedShares(**tensors)


def product(session: Session, x: Operand, y: Operand, bits: int, beside: LookUp) -> tuple[Tensor, Tensor]:
    """Compute a share of a matrix product mod 2^bits, and the result of a look-up, both in one round; return both.

    x, y: the matrices, (..., i, j) and (..., j, l), and how they are opened. x is opened in x.k bits, as z = x /
        2^shift; with N parties, z is right within N/2 units. |z| < 2^(x.k - 2) is required, unless x.k = bits. The same
        holds for y. The stacks of matrices are broadcast.
    bits: how many low bits of the product's shares are right; the bits above are arbitrary.
    beside: the look-up whose message is sent together with the product's.
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
    size = terms(request.size0, request.size1)
    # Stacks of at least one matrix, as many as the product has.
    rows, columns = (bits.expand(*size[:-3], *bits.shape[-2:]).reshape(-1, *bits.shape[-2:]) for bits in (wraps, turns))

    def summed(words: Words, left: Tensor | None, right: Tensor | None) -> Tensor:
        flat = math.prod(size[:-3]), *size[-3:]
        return kernels.selected_sums(words, left, right, flat).view(*size[:-2], size[-1])

    if shares.top is not None:
        out = out - (summed(shares.top, rows, None) << x.k)
    if shares.factor_top is not None:
        out = out - (summed(shares.factor_top, None, columns) << y.k)
    if shares.tops is not None:
        out = out + (summed(shares.tops, rows, columns) << (x.k + y.k))
    return out, beside.result(others)


def price(request: LiftedMatMul, beside: LookUpPrice, parties: int) -> Cost:
    """Return the price of `product` together with the look-up whose message travels with it.

    request: of the product.
    beside: the look-up's price.
    """
    sent = packed(math.prod(request.size0) * request.value) + packed(math.prod(request.size1) * request.factor)
    return cost.opening(parties, sent + beside.payload, request.correction_bits + beside.offline_bits)
