"""Prices of the pair's protocols in transfers, bits and rounds, for each value; they are exact.

    a + b        a and then b: both prices add up
    a | b        a beside b: transfers and bits add up, and the rounds are those of the longer one

One of the two parties is the sender of a protocol's main transfers; for half of the values it is the other one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from hummingbird.cost import cot_message
from hummingbird.mpc.protocols.step_tables import SILENT, SOFTSPOKEN, TransferKind
from hummingbird.ot.silent import CotPool, steady_bits

KINDS = {kind.name: kind for kind in (SOFTSPOKEN, SILENT)}
DEFAULT = SOFTSPOKEN  # the one that takes less time on one host (docs/pair.md)

# By a kind's name: bits of both parties for a transfer, where many are made.
MESSAGE_BITS = {SOFTSPOKEN.name: 31.0, SILENT.name: steady_bits()}

# Seconds of a core at each party for a transfer, with all that recipes do with it: those of a masked ReLU divided by
# its transfers, which vary by a tenth from p = 0 to p = k. Two processes on two busy cores (AMD EPYC), C++ kernels.
PROCESSOR = {SOFTSPOKEN.name: 28e-9, SILENT.name: 39e-9}


@dataclass(frozen=True)
class Stock:
    """The random transfers of a connection that are made and not used, by which the next ones have their price.

    kind: how they are made, and their price. sent, received: those that one party sends and receives; none are ever
    left by SoftSpoken OT.
    """

    kind: TransferKind = DEFAULT
    sent: CotPool = CotPool()
    received: CotPool = CotPool()

    def drawn(self, sent: int, received: int) -> tuple[int, int, Stock]:
        """Return the price of drawing transfers, in bits of both parties and in rounds, and what is left.

        sent, received: how many of each direction.
        """
        if self.kind.name == SOFTSPOKEN.name:
            return 8 * sum(cot_message(count, random=True) for count in (sent, received)), 1, self
        out, into = self.sent.drawn(sent), self.received.drawn(received)
        return out.bits + into.bits, max(out.rounds, into.rounds), Stock(self.kind, out.pool, into.pool)

    @property
    def turned(self) -> Stock:
        """The same, as the other party has it."""
        return Stock(self.kind, self.received, self.sent)


EMPTY = Stock()  # after the set-up


@dataclass(frozen=True)
class PairPrice:
    """The price of a protocol for one value.

    main: transfers in the main direction. back: in the other one. sent: bits that the main direction's sender sends,
    beside the transfers' own. returned: bits that it receives. rounds: exchanges of messages, in which both parties
    send at the same time.
    """

    main: int = 0
    back: int = 0
    sent: int = 0
    returned: int = 0
    rounds: int = 0

    def __add__(self, other: PairPrice) -> PairPrice:
        return PairPrice(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def __or__(self, other: PairPrice) -> PairPrice:
        total = self + other
        rounds = max(self.rounds, other.rounds)
        return PairPrice(total.main, total.back, total.sent, total.returned, rounds)

    def times(self, count: int) -> PairPrice:
        """Return the price of the same for `count` values, in the same rounds."""
        return replace(
            self, main=self.main * count, back=self.back * count, sent=self.sent * count, returned=self.returned * count
        )

    @property
    def turned(self) -> PairPrice:
        """Return the price of the same with the parties' parts exchanged."""
        return PairPrice(self.back, self.main, self.returned, self.sent, self.rounds)

    @property
    def transfers(self) -> int:
        """Return the number of transfers for a value, in both directions."""
        return self.main + self.back

    @property
    def bits(self) -> int:
        """Return the bits that both parties send for a value, beside the transfers' own."""
        return self.sent + self.returned

    def weight(self, transfer_bits: float) -> float:
        """Return the bits for a value with those of its transfers, `transfer_bits` each."""
        return self.bits + self.transfers * transfer_bits


def beside(*prices: PairPrice) -> PairPrice:
    """Return the price of protocols that run at the same time."""
    total = PairPrice()
    for price in prices:
        total |= price
    return total


# Of one use of a main transfer (transfers.py)

ROT = PairPrice(main=1)
BACK = PairPrice(back=1)
TURNED = PairPrice(main=1, returned=1, rounds=1)
TURNED_BACK = PairPrice(back=1, sent=1, rounds=1)


def words(*widths: int) -> PairPrice:
    """Return the price of words of these widths, sent in one round; a width below 0 counts as 0."""
    bits = sum(max(0, width) for width in widths)
    return PairPrice(sent=bits, rounds=int(bits > 0))


def returned(*widths: int) -> PairPrice:
    """Return the price of words of these widths in the other direction."""
    price = words(*widths)
    return PairPrice(returned=price.sent, rounds=price.rounds)


def own_words(width: int) -> PairPrice:
    """Return the price of the product of two random bits as a number mod 2^width, with its transfer."""
    return ROT + words(width - 1)


@dataclass(frozen=True)
class PairCost:
    """The cost of requests that two parties make together.

    transfers: random transfers in both directions. bits: what both parties send, public keys included, without their
    transfers' messages and without frames. transfer_bits: those messages. frame_bits: the frames' headers. rounds:
    exchanges of messages.
    """

    transfers: int
    bits: int
    transfer_bits: int
    frame_bits: int
    rounds: int

    def __add__(self, other: PairCost) -> PairCost:
        return PairCost(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def all_bits(self) -> int:
        """Return all bits that both parties send, as the channel's meters count them."""
        return self.bits + self.transfer_bits + self.frame_bits


def halves(n: int) -> tuple[int, int]:
    """Divide n values into two halves, multiples of 16: party 0 sends for the first half, party 1 for the second.

    The second half may have up to 15 values more than there are, which are dropped.
    """
    first = 16 * math.ceil(n / 32)
    return first, 16 * math.ceil(max(0, n - first) / 16)
