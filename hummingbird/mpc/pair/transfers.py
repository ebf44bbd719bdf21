"""Random oblivious transfers in both directions between two parties, and the words that a transfer carries.

A random transfer gives the sender two pads. The receiver gets one of them, by its random choice c. A pad is a stream of
bits without an end: blocks of 128, hashes of the key of a correlated transfer (kernels/cot.py). A `Rot` is one transfer
for each of n values. It carries words; each word uses bits of the pads that no other word uses:

    a word x of the sender     sends z = x + k_0 - k_1        shares of c x: -k_0 and k_c + c z        mod 2^width
    bits x of the sender       sends z = x ^ k_0 ^ k_1        shares of c x: k_0 and k_c ^ c z         by xor
    the sender's own bit o     = the lowest bit of k_0 ^ k_1, so that for x = o the lowest bit of z is 0 and not sent

So for two random bits, o and c, xor shares of their product cost no message at all, and additive ones mod 2^width cost
width - 1 bits. Where the choice is to be a bit w that the receiver learns later, it sends w ^ c, and the sender swaps
its pads (`turned`).

A transfer's number is used once, and so is every bit of its pads: two words under the same bits reveal their
difference. Keys and set-up are fresh for each connection and are never stored.

Sources: Beaver 1995 for random transfers; Gilboa 1999 for products of words. ot/cot.py and ot/silent.py have those of
the correlated transfers.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hummingbird import kernels, prg
from hummingbird.kernels.cot import TILE, choose, pads
from hummingbird.mpc.pair.lockstep import Exchange, Rounds, together
from hummingbird.mpc.pair.price import DEFAULT, Stock
from hummingbird.mpc.protocols.step_tables import SILENT, TransferKind
from hummingbird.ot import cot
from hummingbird.ot.silent import CotDraw, SilentReceiver, SilentSender

LANE = 64  # bits of a lane of pads: a word lies in one lane
LANES = 2  # of a block


@dataclass(eq=False, repr=False)
class Rot(ABC):
    """One random transfer for each of n values, as one of the two parties has it; n is a multiple of 16.

    keys: of the correlated transfers, int64 (n, 2). first: number of the first transfer. key: the direction's public
    key of the hash, int64 (2,).
    """

    sends: ClassVar[bool]
    keys: Tensor
    first: int
    key: Tensor

    def __post_init__(self) -> None:
        self.n = self.keys.shape[0]  # the number of values
        self._next, self._own_used = 1, False  # the next unused bit of the pads; bit 0 is the sender's own bit

    @property
    @abstractmethod
    def own(self) -> Tensor:
        """This party's random bit of each value, packed uint8 (n/8,): a receiver's choice, or the sender's own bit."""

    @abstractmethod
    def turned(self, wanted: Tensor) -> Rounds[Rot]:
        """Return these transfers with other choices; the receiver sends how they differ from the old: n bits, 1 round.

        wanted: the choices, packed uint8 (n/8,); the sender's argument is not read. No word may have been sent.
        """

    @abstractmethod
    def words(self, width: int, value: Tensor) -> Rounds[Tensor]:
        """Send a word of each value; return a share of c * value mod 2^width, int64 (n,). width n bits, 1 round.

        The bits of the share from `width` on are arbitrary. Nothing is sent for a width of 0 or less.
        value: the sender's words, int64 (n,); the receiver's argument is not read.
        """

    @abstractmethod
    def bits(self, value: Tensor) -> Rounds[Tensor]:
        """Send bits of each value; return xor shares of c & value, uint8 (rows, n/8). rows n bits, 1 round.

        value: the sender's bits, uint8 (rows, n/8); of the receiver's argument only the shape is read.
        """

    @abstractmethod
    def own_words(self, width: int) -> Rounds[Tensor]:
        """Return a share of the product of both parties' `own` bits mod 2^width, int64 (n,).

        It must be the first word of these transfers. The bits of the share from `width` on are arbitrary. Cost:
        (width - 1) n bits and 1 round; nothing is sent for a width of 1 or less.
        """

    @abstractmethod
    def own_product(self) -> Tensor:
        """Return an xor share of the product of both parties' `own` bits, packed (n/8,). Nothing is sent."""

    @abstractmethod
    def free_product(self) -> tuple[Tensor, Tensor]:
        """Draw a random bit of the sender, and return it and an xor share of its product with the receiver's choice.

        Both are packed, (n/8,); the receiver gets zeros for the bit. Nothing is sent.
        """

    def places(self, rows: int) -> list[tuple[int, int]]:
        """Reserve pads for `rows` bits of each value: the first bit and the number of bits of each piece of a lane."""
        sizes = [min(LANE, rows - at) for at in range(0, rows, LANE)]
        return [(self._take(size), size) for size in sizes]

    def _take(self, width: int) -> int:
        """Reserve `width` bits of the pads, at most 64, in one lane; return the number of the first one.

        Both parties reserve in the same order.
        """
        if self._next % LANE + width > LANE:
            self._next += -self._next % LANE
        self._next += width
        return self._next - width

    def _take_own(self, width: int) -> None:
        assert not self._own_used and (width <= 1 or self._next == 1), "these pads are in use"
        self._own_used, self._next = True, max(self._next, width)


@dataclass(eq=False, repr=False)
class SentRot(Rot):
    """A random transfer as its sender has it.

    delta: the difference of a transfer's two keys, int64 (2,), secret.
    """

    sends = True
    delta: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own: Tensor | None = None
        self._kept: tuple[int, Tensor, Tensor] | None = None

    @property
    def own(self) -> Tensor:
        if self._own is None:
            zero, one = self._both(0)
            self._own = kernels.to_planes(zero ^ one, 0, 1)[0]
        return self._own

    def turned(self, wanted: Tensor) -> Rounds[Rot]:
        assert self._next == 1, "these pads are in use"
        (difference,) = yield [], [self.n // 8]
        return replace(self, keys=choose(self.keys, difference, self.delta))

    def words(self, width: int, value: Tensor) -> Rounds[Tensor]:
        if width <= 0:
            return torch.zeros(self.n, dtype=torch.int64)
        share, message = self.hide_words(width, value)
        yield [message], []
        return share

    def hide_words(self, width: int, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return this party's share of c * value mod 2^width, and the message for the receiver."""
        at = self._take(width)
        zero, one = (lane >> at % LANE for lane in self._both(at // LANE))
        return -zero, kernels.pack_words(value + zero - one, width)

    def bits(self, value: Tensor) -> Rounds[Tensor]:
        share, message = self.hide_bits(value)
        yield [message], []
        return share

    def hide_bits(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return this party's xor share of c & value, and the message for the receiver; uint8 (rows, n/8) each."""
        shares, messages = [value[:0]], [value[:0]]
        for (at, rows), part in zip(self.places(len(value)), value.split(LANE), strict=False):
            zero, one = (kernels.to_planes(lane, at % LANE, rows) for lane in self._both(at // LANE))
            shares.append(zero)
            messages.append(part ^ zero ^ one)
        return torch.cat(shares), torch.cat(messages)

    def own_words(self, width: int) -> Rounds[Tensor]:
        self._take_own(width)
        zero, one = self._both(0)
        if width > 1:
            z = kernels.from_bits(self.own, self.n) + zero - one
            yield [kernels.pack_words(z >> 1, width - 1)], []
        return -zero

    def own_product(self) -> Tensor:
        self._take_own(1)
        return kernels.to_planes(self._both(0)[0], 0, 1)[0]

    def free_product(self) -> tuple[Tensor, Tensor]:
        at = self._take(1)
        zero, one = (kernels.to_planes(lane, at % LANE, 1)[0] for lane in self._both(at // LANE))
        return zero ^ one, zero

    def _both(self, lane: int) -> tuple[Tensor, Tensor]:
        if self._kept is None or self._kept[0] != lane // LANES:
            self._kept = lane // LANES, *pads(self.keys, self.key, self.first, lane // LANES, self.delta).split(LANES)
        return self._kept[1][lane % LANES], self._kept[2][lane % LANES]


@dataclass(eq=False, repr=False)
class ReceivedRot(Rot):
    """A random transfer as its receiver has it.

    choice: packed uint8 (n/8,).
    """

    sends = False
    choice: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kept: tuple[int, Tensor] | None = None
        self._mask: Tensor | None = None

    @property
    def own(self) -> Tensor:
        return self.choice

    def turned(self, wanted: Tensor) -> Rounds[Rot]:
        assert self._next == 1, "these pads are in use"
        yield [wanted ^ self.choice], []
        return replace(self, choice=wanted)

    def words(self, width: int, value: Tensor) -> Rounds[Tensor]:
        if width <= 0:
            return torch.zeros(self.n, dtype=torch.int64)
        at = self._take(width)
        (message,) = yield [], [self.n * width // 8]
        return (self._chosen(at // LANE) >> at % LANE) + self._where(kernels.unpack_words(message, self.n, width))

    def bits(self, value: Tensor) -> Rounds[Tensor]:
        places = self.places(len(value))
        (message,) = yield [], [len(value) * (self.n // 8)]
        return self.read_bits(message.view(value.shape), places)

    def read_bits(self, message: Tensor, places: list[tuple[int, int]]) -> Tensor:
        """Return this party's xor share of c & value, from the sender's message; uint8 (rows, n/8) both.

        places: of the pads, from `places`.
        """
        shares = [message[:0]]
        for (at, rows), part in zip(places, message.split(LANE), strict=False):
            shares.append(kernels.to_planes(self._chosen(at // LANE), at % LANE, rows) ^ (part & self.choice))
        return torch.cat(shares)

    def own_words(self, width: int) -> Rounds[Tensor]:
        self._take_own(width)
        chosen = self._chosen(0)
        if width > 1:
            (message,) = yield [], [self.n * (width - 1) // 8]
            chosen = chosen + self._where(kernels.unpack_words(message, self.n, width - 1) << 1)
        return chosen

    def own_product(self) -> Tensor:
        self._take_own(1)
        return kernels.to_planes(self._chosen(0), 0, 1)[0]

    def free_product(self) -> tuple[Tensor, Tensor]:
        at = self._take(1)
        return torch.zeros_like(self.choice), kernels.to_planes(self._chosen(at // LANE), at % LANE, 1)[0]

    def _where(self, words: Tensor) -> Tensor:
        """Return the words where the choice is 1, and 0 elsewhere."""
        if self._mask is None:
            self._mask = -kernels.from_bits(self.choice, self.n)
        return words & self._mask

    def _chosen(self, lane: int) -> Tensor:
        if self._kept is None or self._kept[0] != lane // LANES:
            self._kept = lane // LANES, pads(self.keys, self.key, self.first, lane // LANES)
        return self._kept[1][lane % LANES]


class Side:
    """The transfers of one protocol on n values at one party: the main ones, and those in the other direction.

    n: the number of values, a multiple of 16. rank: this party's. sends: whether it sends the main transfers. main,
    back: the transfers of both directions, `count` times n of each.
    """

    def __init__(self, n: int, rank: int, sends: bool, main: Rot, back: Rot) -> None:
        assert main.sends == sends and back.sends != sends
        self.n, self.rank, self.sends = n, rank, sends
        self._all, self._taken = (main, back), [0, 0]

    def wide(self, times: int) -> Side:
        """Return this side for `times` n values, which takes its transfers from the same ones."""
        out = copy.copy(self)
        out.n = times * self.n
        return out

    def rot(self) -> Rot:
        """Take the next main transfers, for n values; they are used up."""
        return self._take(0)

    def back(self) -> Rot:
        """Take the next transfers of the other direction, for n values; they are used up."""
        return self._take(1)

    def _take(self, way: int) -> Rot:
        at = self._taken[way]
        self._taken[way] += self.n
        return part(self._all[way], at, self.n)

    @property
    def done(self) -> bool:
        """Whether exactly all transfers have been taken."""
        return self._taken == [rot.n for rot in self._all]

    def words(self) -> Tensor:
        """Draw uniform numbers mod 2^64 that this party alone knows, int64 (n,)."""
        return prg.fresh().words(self.n)


def part(rot: Rot, at: int, n: int) -> Rot:
    """Return the transfers at, ..., at + n - 1 of those of `rot`; both are multiples of 16."""
    keys, first = rot.keys[at : at + n], rot.first + at
    if isinstance(rot, ReceivedRot):
        return replace(rot, keys=keys, first=first, choice=rot.choice[at // 8 : (at + n) // 8])
    return replace(rot, keys=keys, first=first)


class Transfers:
    """All random transfers of a connection between two parties: each call of `draw` makes new ones.

    The set-up takes two rounds (`cost.COT_SET_UP` bytes each way, in sum). Not thread-safe.
    exchange: sends a message, and returns one of so many bytes, which the other party sends at the same time.
    kind: how transfers are made; the same at both parties.
    stock: those that are made and not used.
    """

    def __init__(self, exchange: Exchange, kind: TransferKind = DEFAULT) -> None:
        start = cot.SetUp()
        asked = exchange(_octets(start.message), len(start.message))
        self._receiver, reply = cot.accept(asked.numpy().tobytes())
        answered = exchange(_octets(reply), len(reply))
        self._sender = start.finish(answered.numpy().tobytes())
        sending = _public(start.message, answered.numpy().tobytes())
        receiving = _public(asked.numpy().tobytes(), reply)
        self._sending, self._receiving = (_octets(key).view(torch.int64) for key in (sending, receiving))
        self._silent = SilentSender(self._sender, sending), SilentReceiver(self._receiver, receiving)
        self.stock = Stock(kind)
        self._sent = self._received = 0

    def draw(self, sent: int, received: int) -> Rounds[tuple[SentRot, ReceivedRot]]:
        """Make transfers in both directions. Cost: `Stock.drawn`.

        sent: how many this party sends. received: how many it receives. Both are multiples of 16.
        """
        assert sent % TILE == received % TILE == 0
        first, own, before = self._sent, self._received, self.stock
        self._sent += cot.numbers(sent)  # before anything is sent: numbers of a call that fails are used up
        self._received += cot.numbers(received)
        _, _, self.stock = before.drawn(sent, received)
        if before.kind.name == SILENT.name:
            ways = self._send_silent(before.sent.drawn(sent)), self._receive_silent(before.received.drawn(received))
        else:
            ways = self._send(first, sent), self._receive(own, received)
        mine, (keys, choice) = yield from together(*ways)
        out = SentRot(mine, first, self._sending, self._sender.delta)
        return out, ReceivedRot(keys, own, self._receiving, choice)

    def _send(self, first: int, count: int) -> Rounds[Tensor]:
        """Return the keys of transfers by SoftSpoken OT, int64 (count, 2)."""
        (theirs,) = yield [], [cot.message_bytes(count, random=True)]
        return self._sender.extend(first, count, theirs.numpy().tobytes(), random=True)

    def _receive(self, first: int, count: int) -> Rounds[tuple[Tensor, Tensor]]:
        """Return the keys of transfers by SoftSpoken OT, and their choices, packed."""
        message, choices, keys = self._receiver.random(first, count)
        yield [_octets(message)], []
        return keys, kernels.pack_bits(choices)

    def _send_silent(self, draw: CotDraw) -> Rounds[Tensor]:
        """Return the keys of silent transfers, int64 (n, 2)."""
        end, parts = self._silent[0], list[Tensor]()
        for count, extension in zip(draw.parts, draw.extensions, strict=False):
            parts.append(end.take(count))
            (asked,) = yield [], [extension.asked]
            yield [_octets(end.answer(extension, asked.numpy().tobytes()))], []
        return _joined([*parts, end.take(draw.parts[-1])])

    def _receive_silent(self, draw: CotDraw) -> Rounds[tuple[Tensor, Tensor]]:
        """Return the keys of silent transfers, and their choices, packed."""
        end, parts = self._silent[1], list[Tensor]()
        for count, extension in zip(draw.parts, draw.extensions, strict=False):
            parts.append(end.take(count))
            yield [_octets(end.ask(extension))], []
            (answer,) = yield [], [extension.answered]
            end.learn(answer.numpy().tobytes())
        keys = _joined([*parts, end.take(draw.parts[-1])])
        return keys, kernels.to_planes(keys[:, 0].contiguous(), 0, 1)[0]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _octets(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _public(message: bytes, reply: bytes) -> bytes:
    """Return a direction's public key of the hash, 16 bytes: a digest of its set-up."""
    return hashlib.blake2b(message + reply, digest_size=16, person=b"hummingbird").digest()
