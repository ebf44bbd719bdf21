"""Private weights: opened once behind a mask that stays, so that each product opens only its input.

The dealer shares B, uniform and the same for as long as the weights W are used, and the parties open d = W - B once.
For every product it shares a fresh uniform a and c = op(a, B), and the parties open e = x + a:

    op(x, W) = op(x, d) + op(e, B) - c          since op is linear in both operands, and W = d + B, x = e - a

where each party uses its own shares of x, B and c. a, e and c have as many bits as are read of the result. This is
Beaver's product (CRYPTO 1991) with one mask kept, as in SecureML (Mohassel and Zhang, S&P 2017, section IV-A). d and
every e are uniform, whatever W and x are. But two weights behind one mask would show their difference. So every weight
of a session has a key of its own, and `bind` tells a store, which deals the same masks in a later run, the digest of
the weights before the parties use them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird import cost, ring
from hummingbird.cost import Cost, packed
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number, shape
from hummingbird.mpc.protocols import beaver
from hummingbird.mpc.protocols.beaver import DealtProduct
from hummingbird.mpc.session import sharing
from hummingbird.mpc.session.session import Session


class FixedMaskShares(NamedTuple):
    """A party's share of the mask of a private weight."""

    mask: Tensor


@dataclass(frozen=True)
class FixedMask(Request[FixedMaskShares]):
    """Request for a uniform mask of a private weight, which serves all products with this weight.

    shape: the weight's.
    key: the weight's number. All requests with one key give the parties equal shares.
    """

    kind = "fixed"
    shape: tuple[int, ...] = shape()
    key: int = number()

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", self.shape, key=self.key)}

    def shares(self, **tensors: Tensor) -> FixedMaskShares:
        return FixedMaskShares(**tensors)


class FixedTripleShares(NamedTuple):
    """A party's shares of a fresh mask a, and of c = op(a, b), where the parties already have the weight's mask b."""

    a: Tensor
    c: Tensor


@dataclass(frozen=True)
class FixedTriple(DealtProduct[FixedTripleShares]):
    """Request for a uniform mask a of an input, and for c = op(a, b, **kwargs), with the mask b of a private weight.

    key: the weight's number. The parties have b already, by the `FixedMask` with the same key.
    """

    kind = "linear"
    key: int = number()

    @cached_property
    def free(self) -> Fields:
        b = Field("ring", self.size1, key=self.key, earlier=True)  # in Z_2^64, for products of any width
        return {"a": Field("ring", self.size0, width=self.bits), "b": b}

    def shares(self, **tensors: Tensor) -> FixedTripleShares:
        return FixedTripleShares(**tensors)


class FixedWeight(nn.Module):
    """One private weight of party `owner`, opened once behind a mask (`open_weights`) for all products with it.

    code: int64, the encoded weight at its owner; at other parties any values of that shape.
    """

    code: Tensor | None
    mask: Tensor | None  # this party's share of B
    difference: Tensor | None  # d

    def __init__(self, code: Tensor, owner: int) -> None:
        super().__init__()
        self.owner, self.shape, self.key = owner, tuple(code.shape), -1
        self.register_buffer("code", code)
        self.register_buffer("mask", None)
        self.register_buffer("difference", None)

    def cover(self, session: Session) -> Tensor:
        """Return this party's share of the weight minus its mask, to be opened; delete the plain weight."""
        assert self.code is not None, "a weight is covered once"
        self.key = next(session.fixed_keys)
        share = sharing.share_secret(session, self.code, self.shape, self.owner)
        self.mask = session.correlation(FixedMask(self.shape, self.key)).mask
        self.code = None
        return share - self.mask

    def product(
        self,
        session: Session,
        op: str,
        x: Tensor,
        options: dict[str, Any],
        view: Sequence[int] | None = None,
        bits: int = 64,
    ) -> Tensor:
        """Compute a share of op(x, W, **options) mod 2^bits, where W is this weight. The bits above are arbitrary.

        op: a name of `ring.BILINEAR`, such as "matmul".
        x: this party's share, int64.
        view: the shape that W takes in this product; None: its own.
        Cost: `product_price`, `bits` bits per element of x, 1 round.
        """
        assert self.mask is not None and self.difference is not None, "the weights have not been opened"
        view = self.shape if view is None else view
        mask, difference = self.mask.view(tuple(view)), self.difference.view(tuple(view))
        a, c = session.correlation(FixedTriple(tuple(x.shape), tuple(mask.shape), op, options, key=self.key, bits=bits))
        (e,) = beaver.opened(session, bits, (x, a))
        out = ring.bilinear(op, x, difference, bits, **options)
        out += ring.bilinear(op, e, mask, bits, **options)
        return out.sub_(c)

    def extra_repr(self) -> str:
        return f"{self.shape} private to party {self.owner}"


def product_price(left: int, out: int, parties: int, bits: int = 64) -> Cost:
    """Return the price of a product with an opened weight: 1 round.

    left, out: numbers of elements of the input and of the result.
    bits: the result is mod 2^bits.
    """
    return cost.opening(parties, packed(bits * left), 8 * packed(bits * out))


def opening_cost(weights: Sequence[FixedWeight], parties: int) -> Cost:
    """Return the cost of `open_weights`: 64 bits per element, 1 round for all weights together."""
    count = sum(torch.Size(weight.shape).numel() for weight in weights)
    return cost.opening(parties, 8 * count) if weights else cost.FREE


def weights_digest(codes: Sequence[Tensor]) -> bytes:
    """Compute a digest of encoded weights, int64: 32 bytes. It is for comparisons, and as secret as the weights."""
    state = hashlib.blake2b(digest_size=32, person=b"hb weights")
    for code in codes:
        state.update(f"{tuple(code.shape)};".encode())
        state.update(code.cpu().contiguous().numpy().data)
    return state.digest()


def open_weights(session: Session, weights: Sequence[FixedWeight]) -> None:
    """Open each weight minus its mask, all weights in one round. All parties pass the same weights in the same order.

    Raises DealerError, before anything is sent, if a store has recorded that its masks hide other weights already.
    """
    codes = [weight.code for weight in weights if weight.owner == session.rank and weight.code is not None]
    digest = weights_digest(codes)
    summands = [weight.cover(session) for weight in weights]
    if codes:
        session.dealer.bind(f"weights {weights[0].key}", digest)
    received = list(session.channel.exchange(*summands).values())
    for place, (weight, summand) in enumerate(zip(weights, summands, strict=True)):
        for theirs in received:
            summand += theirs[place]
        weight.difference = summand
