"""Material of ANDs: random bits of both parties, and xor shares of their products; and random bits as numbers.

A transfer gives a random bit of its sender, o, and one of its receiver, c, and xor shares of o c without a message
(transfers.py). So a triple of bits a, b, a b costs two transfers: (a^0 ^ a^1) (b^0 ^ b^1) has two products of bits of
different parties. Two triples with a common p cost as many: one of the transfers has p^1 as its choice, the other one,
in the other direction, p^0, and each has a bit of both other factors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.cost import packed
from hummingbird.mpc.correlations.provider import SharedBit, WordTriple
from hummingbird.mpc.pair.lockstep import Rounds, finished
from hummingbird.mpc.pair.price import BACK, ROT
from hummingbird.mpc.pair.products import Broadcast
from hummingbird.mpc.pair.recipe import PairRecipe, flag, flag_price
from hummingbird.mpc.pair.transfers import Side
from hummingbird.mpc.protocols.boolean import And, AndPair
from hummingbird.mpc.protocols.gmw import PrivateAnd

_Fields = dict[str, Tensor]


def _and(request: And, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    first, second = side.rot(), side.rot()
    a, b = (first.own, second.own) if side.sends else (second.own, first.own)
    return finished({"a": a, "b": b, "c": a & b ^ first.own_product() ^ second.own_product()})


def _and_private(request: PrivateAnd, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    rot = side.rot()
    zero = torch.zeros_like(rot.own)
    a, b = (rot.own, zero) if side.rank == 0 else (zero, rot.own)
    return finished({"a": a, "b": b, "c": rot.own_product()})


def _and_pair(request: AndPair, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    rot, back = side.rot(), side.back()
    sent, chosen = (rot, back) if side.sends else (back, rot)
    p, g = chosen.own, sent.own
    q, mine = sent.free_product()
    _, theirs = chosen.free_product()
    pg = p & g ^ rot.own_product() ^ back.own_product()
    return finished({"p": p, "g": g, "q": q, "pg": pg, "pq": p & q ^ mine ^ theirs})


def _last_planes(request: AndPair, fields: _Fields) -> _Fields:
    """Leave of q and of its products the last planes."""
    each = packed(request.count)
    last = slice((request.planes - request.second) * each, request.planes * each)
    return {**fields, "q": fields["q"][last], "pq": fields["pq"][last]}


def _words(request: WordTriple, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    rot, back = side.rot(), side.back()
    sent, chosen = (rot, back) if side.sends else (back, rot)
    b, a, c = chosen.own, [], []
    for _ in range(Broadcast(request.size0, request.size1).times):
        bit, mine = sent.free_product()
        _, theirs = chosen.free_product()
        a.append(bit)
        c.append(bit & b ^ mine ^ theirs)
    return finished({"a": torch.stack(a), "b": b, "c": torch.stack(c)})


def _arranged(request: WordTriple, fields: _Fields) -> _Fields:
    """Turn bits into words of 64, and put the words at their places in the tensors."""
    how = Broadcast(request.size0, request.size1)
    size = 8 * how.elements
    words = {name: found[..., :size].contiguous().view(torch.int64) for name, found in fields.items()}
    a, b, c = how.arranged(words["a"]).flatten(), words["b"], how.arranged(words["c"]).flatten()
    return {"a": a, "b": b, "c": c} if how.smaller else {"a": b, "b": a, "c": c}


def _b2a(request: SharedBit, side: Side, transfer_bits: float) -> Rounds[_Fields]:
    drawn = yield from flag(side, 64)
    return {"binary": kernels.from_bits(drawn.bit, side.n), "arithmetic": drawn.flag}


AND = PairRecipe(And, lambda request: 8 * request.planes * packed(request.count), lambda *_: ROT | ROT, _and)
AND_PRIVATE = PairRecipe(
    PrivateAnd, lambda request: 8 * request.planes * packed(request.count), lambda *_: ROT, _and_private
)
AND_PAIR = PairRecipe(
    AndPair, lambda request: 8 * request.planes * packed(request.count), lambda *_: ROT | BACK, _and_pair, _last_planes
)
BINARY = PairRecipe(
    WordTriple,
    lambda request: 64 * Broadcast(request.size0, request.size1).elements,
    lambda *_: ROT | BACK,
    _words,
    _arranged,
    lambda request: "" if Broadcast(request.size0, request.size1).fits else "both of its operands are broadcast",
    "give one operand the shape of the result",
)
B2A = PairRecipe(SharedBit, lambda request: math.prod(request.shape), lambda *_: flag_price(64), _b2a)
