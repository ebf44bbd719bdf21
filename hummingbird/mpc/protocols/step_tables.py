"""Comparisons of a secret L with public numbers, from xor-shared step tables of L (masked.py); and how many tables.

A step table T[v] = [L <= v] of 2^c bits answers any number of comparisons of c bits of L by local look-ups, since the
index of a look-up is public and its result stays shared. Wider numbers are cut into chunks with one table each, below a
tree. One level of the tree takes one round, for any number of comparisons:

    [L < v] = [Lh < vh] xor [Lh = vh] [Ll < vl]          the same for <=, and [Lh = vh] = [Lh < vh] xor [Lh <= vh]

An inner node is two ANDs with a common operand: 3 bits. The top table is looked up twice, at X and at X xor h.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols.boolean import and_, and_pair, and_pair_price, and_price
from hummingbird.mpc.session.session import Session


def compare(session: Session, opened: Sequence[Tensor], tables: Sequence[Tensor], k: int, m: int) -> Tensor:
    """Compare J opened values with the mask that hides them all; return two bits for each element, as xor shares.

    The first bit is that of the ReLU: 1 if the hidden value is 2^m or more, 0 if it is negative, and 0 or 1 in between.
    The second bit tells, together with the public top bit of the opened value, whether the sum of value and mask wraps.
    The bits are packed: uint8 (2, J, ceil(n/8)).
    opened: J tensors int64 (n,), mod 2^k.
    tables: xor shares of the step tables of bits m to k - 1 of the mask, lowest bits first.
    Cost: nothing for one table, else ceil(log2(number of tables)) rounds.
    """
    looked = [_look_up(words, tables, k, m) for words in opened]
    less, wrap = _merge(session, [torch.cat(rows, 1) for rows in zip(*looked, strict=True)])
    less, wrap = less.view(len(opened), -1), wrap.view(len(opened), -1)
    if session.rank == 0:
        less = less ^ ~torch.cat([kernels.to_planes(words, k - 1, 1) for words in opened])  # [X < h]
    return torch.stack((less ^ wrap, wrap))


def price(n: int, count: int, parties: int) -> Cost:
    """Return the price of `compare` on n comparisons with `count` step tables.

    A tree merges the tables' answers. An inner node takes 3 bits, or 6 at the top table, which is looked up twice; the
    root takes 4.
    """
    total, below = cost.FREE, count - 1
    while below > 1:
        nodes = below // 2 + 2 * (below % 2)
        total += and_pair_price(n, nodes, nodes, parties)
        below //= 2
    return total + (and_price(n, 2, parties) if below else cost.FREE)


def chunks(w: int, tables: int) -> list[int]:
    """Return how many bits of a window of w bits each of the step tables covers, lowest bits first.

    The numbers differ by at most one. Raises ValueError if one would be above 8.
    """
    if not 0 < tables <= w or -(-w // tables) > 8:
        raise ValueError(f"{tables} tables of at most 8 bits do not cover a window of {w} bits")
    return [w // tables + (place < w % tables) for place in range(tables)]


def dealt_bytes(n: int, w: int, tables: int) -> int:
    """Return how many bytes are dealt for the step tables of n masks, for a window of w bits in `tables` parts."""
    return sum(packed(n << size) for size in chunks(w, tables))


def _look_up(opened: Tensor, tables: Sequence[Tensor], k: int, m: int) -> list[Tensor]:
    """Look up in each step table how its bits of the opened values compare with those of the mask; return the answers.

    They are xor shares for each table, lowest first, uint8 (rows, ceil(n/8)). With v for the table's bits of the opened
    value and L for those of the mask, a table's two rows are [L < v] and [L <= v]. The top table has four rows: both
    for v, and both for v with its top bit turned; if it is the only table, just the first and the last.
    opened: int64 (n,).
    tables: xor shares of the step tables, lowest bits first.
    k, m: the tables cover the bits m to k - 1.
    """
    low, looked = m, []
    for place, (size, table) in enumerate(zip(chunks(k - m, len(tables)), tables, strict=True)):
        rows = (0, 1) if place < len(tables) - 1 else (0, 1, 2, 3) if place else (0, 3)
        looked.append(kernels.lookup(opened, table, low, size, rows))
        low += size
    return looked


def _merge(session: Session, looked: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Merge the tables' answers into xor shares of [L < X], and of [L <= X with its top bit turned], for each value.

    L and X are the bits of the window of the mask and of the opened value. One level of the tree is one round.
    looked: for each table, lowest first, the rows of answers that `_look_up` has returned.
    """
    if len(looked) == 1:
        return looked[0][0], looked[0][1]
    count = 8 * looked[0].shape[1]
    less, most = (torch.stack([table[row] for table in looked[:-1]]) for row in (0, 1))
    top_less, top_most = looked[-1][0::2], looked[-1][1::2]  # at X, and at X xor h
    while less.shape[0] > 1:
        pairs, odd = divmod(less.shape[0], 2)
        low, high = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        under, over = [less[low], most[low]], [less[high], most[high]]
        if odd:  # the highest one merges with the top, which has answers at X and at X xor h
            under = [torch.cat([u, rest[-1:].expand(2, -1)]) for u, rest in zip(under, (less, most), strict=True)]
            over = [torch.cat([o, top]) for o, top in zip(over, (top_less, top_most), strict=True)]
        first, second = and_pair(session, over[0] ^ over[1], under[0], under[1], count)
        merged = over[0] ^ first, over[0] ^ second
        less, most = merged[0][:pairs], merged[1][:pairs]
        if odd:
            top_less, top_most = merged[0][pairs:], merged[1][pairs:]
    # Only [L < X] at X, and [L <= X xor h] at X xor h, are needed.
    product = and_(session, top_less ^ top_most, torch.cat([less, most]), count)
    return top_less[0] ^ product[0], top_less[1] ^ product[1]


# The number of tables -------------------------------------------------------------------------------------------------
#
# It is chosen by an aim: few rounds, or the fewest bits of parties and dealer together. A masked ReLU looks its
# sign up in one table of 2^w bits, or in several small tables below a tree. The tree takes more rounds and bits between
# the parties, and far fewer bits from the dealer (protocols/masked.py). Material that is dealt in advance costs no time
# during a run, so the fewest rounds are best. Material that the dealer streams during the run is most of what a run
# sends, so the fewest bits are best. Two parties that make their material themselves (mpc/pair) pay for a table by the
# bits of its halves, and for each AND of the tree by two oblivious transfers; they make no other kind of table.

AIMS = ("rounds", "latency", "throughput", "pair")  # and "link", which needs numbers
TABLE_BITS = 256  # bound on the bits of all step tables of one ReLU: those of one table for a window of 8 bits
LINE_BITS = 10_240  # bound on the bits of all lines of one ReLU in one round (lines.py): 2^7 lines of two words of 40
ROUND_BITS = 8  # the price of a round in bits per value: 0.1 ms at 10 Gb/s, for 125,000 values at once


@dataclass(frozen=True)
class TransferKind:
    """How two parties make the random transfers of their material, and what a transfer counts when forms are chosen.

    name: "softspoken" (ot/cot.py) or "silent" (ot/silent.py). bits: the price of a transfer in bits of both parties'
        messages. The higher it is, the fewer transfers and rounds the material takes, and the more bits (docs/pair.md).
    """

    name: str
    bits: float

    @classmethod
    def of(cls, text: str) -> TransferKind:
        """Read a kind from a text, such as "silent", or "silent:60" with another price than the kind's own.

        Raises ConfigError for other texts.
        """
        name, *words = text.split(":")
        own = {kind.name: kind for kind in (SOFTSPOKEN, SILENT)}
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = [math.nan]
        if name not in own or len(numbers) > 1 or not all(0 < number < math.inf for number in numbers):
            hint = f'{" or ".join(own)}, or with the price of a transfer in bits, such as "silent:60"'
            raise ConfigError(f"transfers {text!r}", where="transfers", hint=hint)
        return cls(name, *numbers) if numbers else own[name]

    def __str__(self) -> str:
        return self.name if self in (SOFTSPOKEN, SILENT) else f"{self.name}:{self.bits:g}"


# A transfer by SoftSpoken OT has messages of 31 bits. A silent one sends less than one bit; the rest is the processor's
# time: the bits that a link of some 100 Mb/s carries meanwhile.
SOFTSPOKEN, SILENT = TransferKind("softspoken", 31.0), TransferKind("silent", 10.0)


class Link(NamedTuple):
    """A link between parties, by which forms are compared in seconds.

    rtt: seconds there and back. bandwidth: bits per second that a party sends. dealt: bits per second at which dealt
    material comes, from the dealer or from a store, for all parties together.
    """

    rtt: float
    bandwidth: float
    dealt: float = 10e9

    def seconds(self, cost: Cost) -> float:
        """Return the seconds of a piece of work: those of its messages, and those in which its material comes."""
        return cost.seconds(self.bandwidth, self.rtt) + cost.offline_bits / self.dealt

    @property
    def aim(self) -> TableChoice:
        """The aim "link" for this link."""
        return TableChoice("link", self.bandwidth / self.dealt, self)


@dataclass(frozen=True)
class TableChoice:
    """The aim by which a comparison chooses its tables: one round, fewest rounds with step tables, or fewest bits.

    name: "rounds", "latency", "throughput", "link" or "pair". "rounds" is "latency" but for narrow windows, whose ReLUs
        take one round. "link" takes for each layer the form of the first three that takes the fewest seconds on a link.
        "pair" takes forms whose material two parties can make themselves, with the fewest bits of both.
    dealer: for "throughput" and "link", the price of a dealer's bit if a party's bit costs 1: the bandwidth of the
        parties' links divided by that of the dealer's.
    link: for "link" only. transfers: for "pair" only, how the two parties make the material.
    """

    name: str
    dealer: float = 1.0
    link: Link | None = None
    transfers: TransferKind = SOFTSPOKEN

    @classmethod
    def of(cls, text: str) -> TableChoice:
        """Read an aim from a text, such as "rounds", "latency", "throughput:28.4", "pair" or "link:0.04:100e6:10e9".

        The number of "throughput" is `dealer`; those of "link" are the fields of `Link`, of which the last may be left
        out; behind "pair:" is a `TransferKind`. Raises ConfigError for other texts.
        """
        name, *words = text.split(":") if isinstance(text, str) else (text,)
        if name == "pair" and words:
            return cls(name, transfers=TransferKind.of(":".join(words)))
        hint = (
            '"rounds", "latency", "throughput", "pair" for two parties without a dealer, "throughput:RATIO" with the '
            "parties' bandwidth over the dealer's, or "
        )
        hint += '"link:RTT:BANDWIDTH" with seconds there and back and bits per second, such as "link:0.04:100e6"; '
        hint += "a third number is the bits per second at which dealt material comes (10e9)"
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = [math.nan]
        least = [0.0, math.ulp(0.0), math.ulp(0.0)] if name == "link" else [math.ulp(0.0)]
        counts = {"throughput": (0, 1), "link": (2, 3)}.get(name, (0,))
        right = all(low <= number < math.inf for low, number in zip(least, numbers, strict=False))
        if name not in (*AIMS, "link") or len(numbers) not in counts or not right:
            raise ConfigError(f"aim={text!r}", where="aim", hint=hint)
        if name == "link":
            return Link(*numbers).aim
        return cls(name, numbers[0] if numbers else 1.0)

    def __str__(self) -> str:
        if self.link is not None:
            return ":".join([self.name, *(repr(int(n) if n.is_integer() else n) for n in self.link)])
        if self.transfers != SOFTSPOKEN:
            return f"{self.name}:{self.transfers}"
        return self.name if self.dealer == 1 else f"{self.name}:{self.dealer!r}"

    @property
    def pair(self) -> bool:
        """Whether two parties make the material themselves, so that no functions are looked up in dealt tables."""
        return self.name == "pair"

    @property
    def forms(self) -> list[TableChoice]:
        """The aims among whose forms "link" chooses."""
        return [TableChoice("throughput", self.dealer), LATENCY, TableChoice("rounds")]

    def price(self, cost: Cost, values: int, parties: int) -> float:
        """Return by how much work counts against this aim: seconds on the link, or a weighted sum of bits and rounds.

        The sum has the bits of all parties, those of the dealer times `dealer`, and `ROUND_BITS` bits of each of so
        many values for a round.
        """
        if self.link is not None:
            return self.link.seconds(cost)
        return parties * cost.bits + self.dealer * cost.offline_bits + ROUND_BITS * values * cost.rounds

    def tables(self, w: int, parties: int, knots: int = 1) -> int:
        """Return how many step tables serve a window of w bits, if each value is compared with `knots` knots."""
        if self.name == "throughput":
            return fewest_bits(w, parties, self.dealer, knots)
        if self.pair:
            return fewest_bits_of_pair(w, knots, self.transfers.bits)
        return fewest_rounds(w, knots)

    def in_one_round(self, bits: int) -> bool:
        """Return whether a ReLU may take one round (lines.py). bits: how many bits its lines have.

        By "link" they may take one: it depends on the number of values (`Comparison.fastest`).
        """
        return self.name in ("rounds", "link") and bits <= LINE_BITS


LATENCY = TableChoice("latency")


@functools.cache
def fewest_rounds(w: int, knots: int = 1) -> int:
    """Choose the number of step tables into which a window of w bits is cut, for the fewest rounds.

    If several numbers take equally few rounds, the one with the fewest bits, online and offline, is chosen.
    knots: with how many knots each value is compared by these tables. The tables have at most `TABLE_BITS` bits per
        comparison; beyond that, the dealer's bits outweigh a round.
    """
    fitting = [n for n in _splits(w) if sum(1 << size for size in chunks(w, n)) <= TABLE_BITS * knots]

    def costs(n: int) -> tuple[int, int]:
        tree = price(knots << 10, n, 2)
        return tree.rounds, tree.bits + tree.offline_bits + 8 * dealt_bytes(1 << 10, w, n)

    return min(fitting, key=costs)


@functools.cache
def fewest_bits(w: int, parties: int = 2, dealer: float = 1.0, knots: int = 1) -> int:
    """Choose the number of step tables into which a window of w bits is cut, for the fewest bits.

    Bits of all parties and of the dealer are added, and each round counts as `ROUND_BITS` bits of each value.
    dealer: the price of a dealer's bit, if a party's bit costs 1.
    knots: with how many knots each value is compared by these tables.
    """
    n = 1 << 20  # so many values that the headers of frames do not matter

    def costs(count: int) -> tuple[float, int]:
        tree = price(knots * n, count, parties)
        offline = tree.offline_bits + 8 * dealt_bytes(n, w, count)
        return parties * tree.bits + dealer * offline + ROUND_BITS * n * tree.rounds, tree.rounds

    return min(_splits(w), key=costs)


@functools.cache
def fewest_bits_of_pair(w: int, knots: int = 1, transfer_bits: float = SOFTSPOKEN.bits) -> int:
    """Choose the number of step tables into which a window of w bits is cut, for the fewest bits of two parties.

    Their transfers for the material count, their messages online, and `ROUND_BITS` bits of each value for a round. A
    table of c bits takes c (2^(c-1) - 1) bits of messages, an AND two transfers (docs/pair.md).
    knots: with how many knots each value is compared by these tables. transfer_bits: the price of a transfer in bits.
    """
    n = 1 << 20  # so many values that the headers of frames do not matter

    def costs(count: int) -> tuple[float, int]:
        tree = price(knots * n, count, 2)
        dealt = n * sum(c * ((1 << c >> 1) - 1) for c in chunks(w, count)) + 2 * transfer_bits * tree.offline_bits
        return dealt + 2 * tree.bits + ROUND_BITS * n * tree.rounds, tree.rounds

    return min(_splits(w), key=costs)


def _splits(w: int) -> list[int]:
    """List into how many tables, of at most 8 bits each, a window of w bits can be divided."""
    return [n for n in range(1, w + 1) if -(-w // n) <= 8]
