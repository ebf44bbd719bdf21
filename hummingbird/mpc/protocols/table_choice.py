"""The number of comparison tables, by aim: the fewest rounds, or the fewest bits of parties and dealer together.

A masked ReLU looks its sign up in one table of 2^w bits, or in several small tables below a tree. The tree takes more
rounds and bits between the parties, and far fewer bits from the dealer (protocols/masked.py). Material that is dealt in
advance costs no time during a run, so the fewest rounds are best. Material that the dealer streams during the run is
most of what a run sends, so the fewest bits are best.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols import step_tables

AIMS = ("latency", "throughput")
TABLE_BITS = 256  # bound on the bits of all step tables of one ReLU: those of one table for a window of 8 bits
ROUND_BITS = 8  # the price of a round in bits per value: 0.1 ms at 10 Gb/s, for 125,000 values at once


@dataclass(frozen=True)
class TableChoice:
    """An aim, and the price of the dealer's bits.

    name: one of `AIMS`.
    dealer: for "throughput", the price of a dealer's bit if a party's bit costs 1: the bandwidth of the parties' links
        divided by that of the dealer's.
    """

    name: str
    dealer: float = 1.0

    @classmethod
    def of(cls, text: str) -> TableChoice:
        """The aim that `str` wrote: "latency", "throughput" or "throughput:28.4"; ConfigError for other values."""
        name, colon, number = text.partition(":") if isinstance(text, str) else (text, "", "")
        hint = '"latency", "throughput", or "throughput:RATIO", the bandwidth of the parties\' links over the dealer\'s'
        if name not in AIMS or (colon and name == "latency"):
            raise ConfigError(f"aim={text!r}", where="aim", hint=hint)
        try:
            dealer = float(number) if colon else 1.0
        except ValueError:
            dealer = math.nan
        if not 0 < dealer < math.inf:
            raise ConfigError(f"aim={text!r}", where="aim", hint=hint)
        return cls(name, dealer)

    def __str__(self) -> str:
        return self.name if self.dealer == 1 else f"{self.name}:{self.dealer!r}"

    def tables(self, w: int, parties: int, knots: int = 1) -> int:
        """How many tables a window of w bits is cut into, if each value is compared with `knots` knots."""
        if self.name == "latency":
            return fewest_rounds(w, knots)
        return fewest_bits(w, parties, self.dealer, knots)


LATENCY = TableChoice("latency")


@functools.cache
def fewest_rounds(w: int, knots: int = 1) -> int:
    """Choose the number of step tables into which a window of w bits is cut, for the fewest rounds.

    If several numbers take equally few rounds, the one with the fewest bits, online and offline, is chosen.
    knots: how many comparisons of a value the tables serve. The tables have at most `TABLE_BITS` bits per comparison;
        beyond that, the dealer's bits outweigh a round.
    """
    fitting = [n for n in _splits(w) if sum(1 << size for size in step_tables.chunks(w, n)) <= TABLE_BITS * knots]

    def price(n: int) -> tuple[int, int]:
        tree = step_tables.price(knots << 10, n, 2)
        return tree.rounds, tree.bits + tree.offline_bits + 8 * step_tables.dealt_bytes(1 << 10, w, n)

    return min(fitting, key=price)


@functools.cache
def fewest_bits(w: int, parties: int = 2, dealer: float = 1.0, knots: int = 1) -> int:
    """Choose the number of step tables into which a window of w bits is cut, for the fewest bits.

    Bits of all parties and of the dealer are added, and each round counts as `ROUND_BITS` bits of each value.
    dealer: the price of a dealer's bit, if a party's bit costs 1.
    knots: how many comparisons of a value the tables serve.
    """
    n = 1 << 20  # so many values that the headers of frames do not matter

    def price(count: int) -> tuple[float, int]:
        tree = step_tables.price(knots * n, count, parties)
        offline = tree.offline_bits + 8 * step_tables.dealt_bytes(n, w, count)
        return parties * tree.bits + dealer * offline + ROUND_BITS * n * tree.rounds, tree.rounds

    return min(_splits(w), key=price)


def _splits(w: int) -> list[int]:
    """The possible numbers of tables, of at most 8 bits each, for a window of w bits."""
    return [n for n in range(1, w + 1) if -(-w // n) <= 8]
