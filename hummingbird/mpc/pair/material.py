"""Material that two parties make themselves, without a dealer, for the requests that a dealer serves.

The fields of a request are those of its module in mpc/protocols and obey its `derive`: nothing changes online.

    made = PairMaterial(channel)                          both parties, at the same time; or (channel, SILENT)
    material = made.correlation(MaskedOpening(1000, 20, 12, 2, 36))

Half of the values have party 0 as the sender of their main transfers, the others party 1, so that both parties compute
and send about the same. All requests of one call run in lock-step (lockstep.py). The first round of a call has the
messages of its transfers, and public keys for its encrypted products. Silent transfers have messages in few calls: two
rounds, or four where the pool grows twice (ot/silent.py), before the requests' own.

Semi-honest: a party that deviates can learn the other one's secrets, unseen. A party's fields are uniform
to the other one, and do not follow from a seed. All of this is on the CPU.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.channel.channel import Channel
from hummingbird.cost import HEADER_BYTES
from hummingbird.errors import ConfigError
from hummingbird.kernels.shares.packing import Words
from hummingbird.mpc.correlations.field import Field
from hummingbird.mpc.correlations.request import Material, Request
from hummingbird.mpc.pair import boolean, lifted, lifted_matrices, masked, matrices, owned, products, quotients, sums
from hummingbird.mpc.pair.encrypted import PairKeys, key_bytes
from hummingbird.mpc.pair.lockstep import Rounds, run, together
from hummingbird.mpc.pair.price import DEFAULT, EMPTY, MESSAGE_BITS, PROCESSOR, PairCost, Stock
from hummingbird.mpc.pair.recipe import MaterialRecipe, PairRecipe
from hummingbird.mpc.pair.terms import BY_TERMS
from hummingbird.mpc.pair.transfers import Side, Transfers, part
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.step_tables import SILENT, TransferKind
from hummingbird.mpc.session.session import agree
from hummingbird.ot.silent import SIZES, CotPool

_ALL: tuple[MaterialRecipe[Any], ...] = (
    *(masked.MASKED, masked.THRESHOLDS),
    *(boolean.AND, boolean.AND_PRIVATE, boolean.AND_PAIR, boolean.BINARY, boolean.B2A),
    *(sums.LIFT, sums.TRUNCATE, sums.SELECT, sums.WRAPS, quotients.DIVIDE),
    *(products.SQUARE, products.MULTIPLY, products.ROWS),
    *(lifted.LIFTED_PRODUCT, lifted.LIFTED_SQUARES, lifted.LIFTED_ROWS, lifted_matrices.LIFTED_MATRICES),
    owned.OWNED,
)
RECIPES: dict[str, MaterialRecipe[Any]] = {recipe.kind.kind: recipe for recipe in _ALL}

# What a net uses instead of material that two parties cannot make.
_INSTEAD = {
    "poly": "use thresholds and products instead, such as splines",
    "lines": "use step tables: an aim other than rounds",
    "fixed": 'convert the net with aim="pair"',
    "linear": 'convert the net with aim="pair"',
}


def recipe_of(request: Request[Any], transfer_bits: float = DEFAULT.bits) -> MaterialRecipe[Any]:
    """Return how two parties make a request's material. Raises ConfigError for a kind that they cannot make.

    transfer_bits: the price of a transfer in bits; the same at both parties.
    """
    found, what = RECIPES.get(request.kind), f"two parties cannot make material of kind {request.kind!r}"
    if isinstance(request, Triple) and request.op != "mul":
        found = BY_TERMS if matrices.better_by_terms(request, transfer_bits) else matrices.MATRICES
    if found is None:
        raise ConfigError(what, where="dealer", hint=_INSTEAD.get(request.kind, "use a dealer"))
    if why := found.refuses(request):
        raise ConfigError(f"{what}: {why}", where="dealer", hint=found.instead)
    return found


def cost(requests: Sequence[Request[Any]], stock: Stock = EMPTY) -> PairCost:
    """Return what one call costs that makes the material of these requests; exact.

    stock: the transfers that the parties have, `PairMaterial.stock`; by default none, as after the set-up.
    Raises ConfigError for a kind that two parties cannot make.
    """
    return cost_from(stock, requests)[0]


def cost_from(stock: Stock, requests: Sequence[Request[Any]]) -> tuple[PairCost, Stock]:
    """Return what one call costs, as `cost` does, and the transfers that the parties have after it."""
    total, transfer_bits = PairCost(0, 0, 0, 0, 0), stock.kind.bits
    for group in _in_turn([_pieces(request, transfer_bits) for request in requests]):
        each, stock = _cost([piece for _, piece in group], stock)
        total += each
    return total, stock


def _pieces(request: Request[Any], transfer_bits: float) -> list[Request[Any]]:
    found = recipe_of(request, transfer_bits)
    values = found.values(request) if isinstance(found, PairRecipe) else 0
    return _cut_up(request, found.total(request, transfer_bits).transfers / values) if values else [request]


def _cost(requests: Sequence[Request[Any]], stock: Stock) -> tuple[PairCost, Stock]:
    sent, bits, longest, primes, transfer_bits = [0, 0], 0, 0, 0, stock.kind.bits
    for request in requests:
        found = recipe_of(request, transfer_bits)
        price = found.total(request, transfer_bits)
        sent = [sent[0] + price.main, sent[1] + price.back]
        bits, longest, primes = bits + price.bits, max(longest, price.rounds), max(primes, found.primes(request))
    messages, drawing, stock = stock.drawn(*sent)
    rounds = max(drawing, int(primes > 0)) + longest
    return PairCost(sum(sent), bits + 16 * key_bytes(primes), messages, 2 * rounds * 8 * HEADER_BYTES, rounds), stock


def offline_bits(requests: Sequence[Request[Any]], kind: TransferKind = DEFAULT) -> int:
    """Return the bits that both parties send to make each request by itself, without frames, as `Material` counts them.

    kind: how transfers are made. A silent transfer counts as one of many (`MESSAGE_BITS`): its part of an extension.
    Raises ConfigError for a kind of request that two parties cannot make.
    """
    costs = [cost([request], Stock(kind)) for request in requests]
    if kind.name == SILENT.name:
        return sum(each.bits + math.ceil(each.transfers * MESSAGE_BITS[kind.name]) for each in costs)
    return sum(each.bits + each.transfer_bits for each in costs)


def seconds(requests: Sequence[Request[Any]], transfers: TransferKind, bandwidth: float, rtt: float) -> float:
    """Estimate how long two parties make the material of these requests, as one of many calls, to compare kinds.

    That is the time of the messages, half a round trip for each round, and the processor's, which is about
    proportional to the transfers (`price.PROCESSOR`).
    transfers: how they are made. bandwidth: bits per second of each party. rtt: round-trip time, seconds.
    """
    plenty = CotPool(len(SIZES) - 1, 1 << 60)
    price = cost(requests, Stock(transfers, plenty, plenty))
    sent = offline_bits(requests, transfers) + price.frame_bits
    return price.rounds * rtt / 2 + sent / 2 / bandwidth + price.transfers * PROCESSOR[transfers.name]


_PRICES = 10.0, 16.0, 31.0, 60.0, 120.0  # of a transfer, in bits: from p = k to p = 0 for usual ReLUs (masks.py)
_VALUES = 1 << 18  # of a large call


@cache
def fastest(rtt: float, bandwidth: float) -> TransferKind:
    """Return the transfers by which two parties make the material of ReLUs in the fewest seconds on a link.

    A price above the messages' stands for the processor's time, and for rounds: the forms with fewer transfers have
    fewer rounds, too. It is the one with which a large call of ReLUs of windows [20:12) in 36 bits takes the fewest
    `seconds`. rtt: round-trip time, seconds. bandwidth: bits per second of each party.
    """
    call = [MaskedOpening(_VALUES, 20, 12, 2, 36), And(2, _VALUES)]
    kinds = [TransferKind(name, bits) for name in MESSAGE_BITS for bits in _PRICES]
    return min(kinds, key=lambda kind: seconds(call, kind, bandwidth, rtt))


class PairMaterial:
    """One of two parties that make their material together, over a channel that nothing else uses at the same time.

    Both parties make this object at the same time, which takes three rounds, and then the same calls. Calls that differ
    are an error if their messages do; `PairDealer` compares the requests themselves. Not thread-safe.
    channel: of two parties.
    transfers: how random transfers are made; the same at both parties.
    Raises ConfigError for another number of parties, and AgreementError if the parties name different transfers.
    """

    def __init__(self, channel: Channel, transfers: TransferKind = DEFAULT) -> None:
        if channel.parties != 2:
            what = f"{channel.parties} parties cannot make their material themselves: two can"
            raise ConfigError(what, where="dealer", hint="use a dealer")
        agree(channel, "material of two parties", {"transfers": str(transfers)})
        self.rank, self._channel, self._transfer_bits = channel.rank, channel, transfers.bits
        self.weights: dict[int, Tensor] = {}  # this party's private weights, by number (mpc/protocols/owned.py)
        self._transfers = Transfers(self._exchange, transfers)

    @property
    def stock(self) -> Stock:
        """The transfers that the parties have, as party 0 has them: the price of the next call follows from it."""
        return self._transfers.stock.turned if self.rank else self._transfers.stock

    def correlation(self, request: Request[Any]) -> Material:
        """Make this party's shares for one request; return them with their cost. Cost: `cost([request], stock)`."""
        return self.make([request])[0]

    def make(self, requests: Sequence[Request[Any]]) -> list[Material]:
        """Make this party's shares for several requests, in lock-step; return them, in order.

        Cost: `cost(requests, stock)`.

        Raises ConfigError for a kind that two parties cannot make, before anything is sent.
        """
        started = time.perf_counter()
        bits = [offline_bits([request], self.stock.kind) for request in requests]
        cut = [_pieces(request, self._transfer_bits) for request in requests]
        parts: list[list[dict[str, Tensor]]] = [[] for _ in requests]
        for group in _in_turn(cut):
            found = run(self._made([piece for _, piece in group]), self._exchange)
            for (at, _), fields in zip(group, found, strict=True):
                parts[at].append(fields)
        shares = [_fields(*each) for each in zip(requests, cut, parts, strict=True)]
        seconds = (time.perf_counter() - started) / max(1, len(requests))
        return [Material(made, of, of // 2, seconds, seconds) for made, of in zip(shares, bits, strict=True)]

    def _made(self, requests: Sequence[Request[Any]]) -> Rounds[list[dict[str, Tensor]]]:
        recipes = [recipe_of(request, self._transfer_bits) for request in requests]
        works = [_works(*each, self.rank, self._transfer_bits) for each in zip(recipes, requests, strict=True)]
        flat = [work for of_request in works for work in of_request]
        primes = max((found.primes(each) for found, each in zip(recipes, requests, strict=True)), default=0)
        (out, into), keys = yield from together(
            self._transfers.draw(sum(work.sent for work in flat), sum(work.received for work in flat)),
            PairKeys.exchanged(primes),
        )
        protocols, sides, at, to = [], [], 0, 0
        for found, request, of_request in zip(recipes, requests, works, strict=True):
            own = []
            for work in of_request:
                mine, theirs = part(out, at, work.sent), part(into, to, work.received)
                at, to = at + work.sent, to + work.received
                own.append(Side(work.n, self.rank, work.sends, *((mine, theirs) if work.sends else (theirs, mine))))
            protocols.append(found.made(request, own, keys, self.rank, self._transfer_bits, self.weights))
            sides += own
        made = yield from together(*protocols)
        assert all(side.done for side in sides), "the price counts other transfers than are used"
        return made

    def _exchange(self, message: Tensor, size: int) -> Tensor:
        peer, like = 1 - self.rank, torch.empty(size, dtype=torch.uint8)
        return self._channel.swap(peer, [message], [like])[0]


@dataclass(frozen=True)
class _Work:
    """A part of a request, as one party has it.

    n: the number of values. sends: whether this party sends the main transfers. sent, received: how many transfers it
    sends and receives.
    """

    n: int
    sends: bool
    sent: int
    received: int


def _works(found: MaterialRecipe[Any], request: Request[Any], rank: int, transfer_bits: float) -> list[_Work]:
    """Return the parts of a request.

    found: how it is made. rank: this party's. transfer_bits: the price of a transfer in bits.
    """
    out = []
    for item in found.parts(request, transfer_bits):
        main, back, sends = item.n * item.price.main, item.n * item.price.back, item.sender == rank
        out.append(_Work(item.n, sends, *((main, back) if sends else (back, main))))
    return out


def _fields(request: Request[Any], cut: Sequence[Request[Any]], parts: Sequence[dict[str, Tensor]]) -> dict[str, Words]:
    """Return the fields of a request in the form in which a dealer's receiver has them.

    cut: its pieces. parts: for each piece the elements of its fields, and perhaps more behind them.
    """
    out: dict[str, Words] = {}
    for name, item in request.parts.items():
        found = _joined(item, [(piece.parts[name], own[name]) for piece, own in zip(cut, parts, strict=True)])
        packed = item.kind == "ring" and item.width < 64
        out[name] = item.received(kernels.pack_words(found.reshape(-1).long(), item.width) if packed else found)
    return out


# Pieces ---------------------------------------------------------------------------------------------------------------
#
# Large requests are made in pieces, one after the other, so that memory is bounded: a transfer takes some 40 bytes. A
# request whose values have nothing in common is cut into requests of the same kind, and their fields are joined at the
# end. A call makes the first pieces of all its requests in lock-step, then the second ones, and so on.

AT_ONCE = 1 << 21  # transfers of a piece
_LEAST = 1 << 12  # values of a piece: fewer would cost more rounds than they save memory
_SHAPES = (("shape",), ("size0", "size1"))  # parameters of kinds that do the same for each element of a tensor
_ELEMENTWISE = ("square", "b2a", "wraps", "binary", "additive", "lifted_product")


def _cut_up(request: Request[Any], transfers: float) -> list[Request[Any]]:
    """Cut a request into requests of at most `AT_ONCE` transfers or `_LEAST` values; [request] if it is not larger.

    transfers: how many it takes for each value.
    """
    made, most = request.params, max(_LEAST, int(AT_ONCE / max(transfers, 1.0)) // 32 * 32)
    if "count" in made:
        return _cut(request, made["count"], most, lambda n: {"count": n})
    if request.kind in _ELEMENTWISE and request.params.get("op", "mul") == "mul":
        names = next(names for names in _SHAPES if names[0] in made)
        if all(made[name] == made[names[0]] for name in names):
            return _cut(request, math.prod(made[names[0]]), most, lambda n: dict.fromkeys(names, (n,)))
    return [request]


def _cut(request: Request[Any], count: int, most: int, params: Any) -> list[Request[Any]]:
    if count <= most:
        return [request]
    return [replace(request, **params(min(most, count - at))) for at in range(0, count, most)]


def _in_turn(cut: Sequence[Sequence[Request[Any]]]) -> list[list[tuple[int, Request[Any]]]]:
    """Arrange requests' pieces in groups that are made at once; return for each group the places and the pieces.

    cut: the pieces of each request.
    """
    rows = itertools.zip_longest(*cut)
    return [[(at, piece) for at, piece in enumerate(row) if piece is not None] for row in rows] or [[]]


def _joined(item: Field, parts: Sequence[tuple[Field, Tensor]]) -> Tensor:
    """Join a field of a request from those of its pieces; return it in its shape.

    item: the field. parts: for each piece its field, and a tensor with the elements, and perhaps more behind them, or
    behind each row.
    """
    found = [_elements(own, tensor) for own, tensor in parts]
    return (found[0] if len(found) == 1 else torch.cat(found, -1)).reshape(item.shape)


def _elements(item: Field, found: Tensor) -> Tensor:
    if found.dim() > 1:
        found = found[..., : item.shape[-1]]
    return found.reshape(-1)[: math.prod(item.shape)].view(item.shape)


__all__ = ["RECIPES", "PairMaterial", "cost", "cost_from", "fastest", "offline_bits", "recipe_of", "seconds"]
