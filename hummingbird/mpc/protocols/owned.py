"""Products with weights that one of two parties holds in clear: nothing of them is opened, one message goes one way.

The owner has the weights W, the other party has not. Both have shares of the input, x = x^o + x^p. For each product the
other party has a fresh uniform mask a of its own, and both have shares of c = op(a, W). The other party sends
e = x^p + a, and

    op(x, W) = op(x^o + e, W) - c               since op is linear in its first operand, and x^o + e = x + a

where the owner alone computes the first term. e and c have as many bits as are read of the result. e is uniform, and it
is all that the owner receives; the other party receives nothing. So the parties trust each other as they do in the
making of c, which no dealer can deal: it follows from W. Two parties make it (mpc/pair/owned.py), as in the linear
layers of Gazelle (Juvekar et al., USENIX Security 2018) and Delphi (Mishra et al., USENIX Security 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from hummingbird import cost, kernels, ring
from hummingbird.cost import Cost, packed
from hummingbird.errors import ConfigError
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import number
from hummingbird.mpc.protocols.beaver import DealtProduct
from hummingbird.mpc.protocols.weight_mask import weights_digest
from hummingbird.mpc.session.session import Session


class OwnedShares(NamedTuple):
    """A party's shares of an input's mask a, which the owner of the weights lacks, and of c = op(a, W)."""

    a: Tensor
    c: Tensor


@dataclass(frozen=True)
class OwnedProduct(DealtProduct[OwnedShares]):
    """Request for a uniform mask a of one party, and for shares of c = op(a, W, **kwargs), W the other party's weights.

    owner: the party that has W. weight: bits of W as a signed number: |W| <= 2^(weight - 1). key: the number of W,
    which the owner has told its source of material (`hold`).
    """

    kind = "owned"
    owner: int = number(most=1)
    weight: int = number(least=1, most=64)
    key: int = number()

    @cached_property
    def free(self) -> Fields:
        return {
            "a": Field("ring", self.size0, owner=1 - self.owner, width=self.bits),
            "b": Field("ring", self.size1, owner=self.owner, key=self.key, earlier=True),
        }

    def shares(self, **tensors: Tensor) -> OwnedShares:
        return OwnedShares(**tensors)


@runtime_checkable
class HoldsWeights(Protocol):
    """Interface: a source of material for `OwnedProduct`."""

    def own(self, key: int, weight: Tensor) -> None:
        """Keep a private weight of this party, int64, for requests with this key."""


class OwnedWeight(nn.Module):
    """One private weight of party `owner`, which alone has it.

    code: int64, the encoded weight at its owner; at the other party any values of that shape, which are not read.
    bits: of the code as a signed number. key: its number in the session, from `hold`; -1 before.
    here: whether this party is the owner; False before `hold`.
    """

    code: Tensor

    def __init__(self, code: Tensor, owner: int, bits: int) -> None:
        super().__init__()
        self.owner, self.shape, self.bits, self.key, self.here = owner, tuple(code.shape), bits, -1, False
        self.register_buffer("code", code)

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

        op: a name of `ring.BILINEAR`, such as "matmul". x: this party's share, int64.
        view: the shape that W takes in this product; None: its own.
        Cost: `product_price`, 1 round, in which the other party sends `bits` bits per element of x.
        """
        code = self.code.view(self.shape if view is None else tuple(view))
        if session.parties == 1:
            return ring.bilinear(op, x, code, bits, **options)
        of_weight = {"owner": self.owner, "weight": min(self.bits, bits), "key": self.key}
        a, c = session.correlation(OwnedProduct(tuple(x.shape), tuple(code.shape), op, options, **of_weight, bits=bits))
        peer = 1 - session.rank
        if session.rank != self.owner:
            session.channel.swap(peer, [kernels.mask_words(x.reshape(-1), a.reshape(-1), 0, bits)], [])
            return -c.long()
        like = torch.empty(packed(bits * x.numel()), dtype=torch.uint8, device=x.device)
        (message,) = session.channel.swap(peer, [], [like])
        e = kernels.unpack_words(message, x.numel(), bits).view(x.shape)
        return ring.bilinear(op, x + e, code, bits, **options).sub_(c)

    def extra_repr(self) -> str:
        return f"{self.shape} private to party {self.owner}, which keeps it"


def product_price(left: int, parties: int, bits: int, owner: bool) -> Cost:
    """Return the price of a product for one party: 1 round.

    left: number of elements of the input. bits: the result is mod 2^bits. owner: whether the party has the weights:
    then it sends a frame without content. What the parties send to make the material is not in it.
    """
    return cost.opening(parties, 0 if owner else packed(bits * left))


def hold(session: Session, weights: Sequence[OwnedWeight]) -> None:
    """Number private weights, and give the owner's to its source of material. Nothing is sent.

    All parties pass the same weights in the same order. Raises ConfigError in a session whose material does not come
    from the two parties alone, and DealerError if a store has material that was made with other weights.
    """
    if weights and session.parties > 1 and not isinstance(session.dealer, HoldsWeights):
        what = f"private weights of a net converted with the aim 'pair', in a session with {session.dealer!r}"
        raise ConfigError(what, where="weights", hint='begin the session with dealer="pair", or leave the aim out')
    for weight in weights:
        weight.key, weight.here = next(session.fixed_keys), session.rank == weight.owner
        if weight.here and isinstance(session.dealer, HoldsWeights):
            session.dealer.own(weight.key, weight.code)
    if codes := [weight.code for weight in weights if weight.here]:
        session.dealer.bind(f"weights {weights[0].key}", weights_digest(codes))
