"""Aims of a net's comparison tables: the fewest rounds, or the fewest bits of parties and dealer in all.

A masked ReLU looks its sign up in one table of 2^w bits, or in several small ones below a tree: rounds and bits more
between the parties, far fewer from the dealer (protocols/masked.py). Dealt in advance, material costs no time of a
run, and few rounds are best; streamed, it comes over a link too, and is most of what a run moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hummingbird import cost
from hummingbird.errors import ConfigError

AIMS = ("latency", "throughput")


@dataclass(frozen=True)
class TableChoice:
    """name: of `AIMS`. dealer: what a bit of the dealer counts for beside one of a party, for "throughput": the
    bandwidth of the parties' links over that of the dealer's.
    """

    name: str
    dealer: float = 1.0

    @classmethod
    def of(cls, text: str) -> TableChoice:
        """The aim that `str` gives back, "latency", "throughput" or "throughput:28.4"; ConfigError for other values."""
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
        """How many tables a window of w bits is looked up in, for comparisons of a value with so many knots."""
        if self.name == "latency":
            return cost.tables(w, knots)
        return cost.thrifty_tables(w, parties, self.dealer, knots)


LATENCY = TableChoice("latency")
