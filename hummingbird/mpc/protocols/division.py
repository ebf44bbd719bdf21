"""x // d for a public integer d in one round, exact to one unit for any number of parties.

This is truncation (truncation.py) with a divisor in place of the power of two. The dealer shares a mask a, uniform in
Z_2^64, and its quotients. Let s = x + O, where O is the largest multiple of d up to 2^62. The parties open
e = s + a mod 2^64. As s is not negative, the top bit of e says how to read e and a. If it is set, s + a did not
overflow as a sum of unsigned numbers: read both as unsigned. If it is clear, read both as signed (if the top bit of a
is set, s + a overflowed). Then e = s + a holds over the integers, and

    e // d - a // d = s // d + {0, 1} = x // d + O / d + {0, 1}      (// rounds down)

Cost: `divide_price`, 64 bits per element, 1 round.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hummingbird.cost import Cost
from hummingbird.mpc.correlations.request import number
from hummingbird.mpc.protocols.interfaces import Operation
from hummingbird.mpc.protocols.truncation import OFFSET, Quotients, truncate_price
from hummingbird.mpc.session.session import Session

LARGEST = 1 << 28  # bound on the divisors that a dealer takes


@dataclass(frozen=True)
class Division(Quotients):
    """Request for `count` uniform masks a, and for two quotients a // divisor of each, rounded down.

    One quotient reads a as an unsigned 64-bit number, the other as a signed one.
    """

    kind = "divide"
    divisor: int = number(least=1)

    def derive(self, mask: Tensor) -> dict[str, Tensor]:
        unsigned, signed = quotients(mask, self.divisor)
        return {"unsigned": unsigned, "signed": signed}


def quotients(words: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """Divide 64-bit words by the divisor, read as unsigned and then as signed numbers; return both quotients.

    Both are rounded down.
    words: int64.
    divisor: 1 to 2^28.
    """
    signed = words.div(divisor, rounding_mode="floor")
    half = ((words >> 1) & (2**63 - 1)).div(divisor, rounding_mode="floor") << 1
    # The remainder is at most 2 divisor - 1, below 2^29; for a divisor of 1 it is 0 or 1.
    return half + (words - half * divisor >= divisor).long(), signed


def divide(session: Session, x: Tensor, divisor: int) -> Tensor:
    """Compute this party's share of x // divisor, int64 (n,). The quotient is right, or 1 too large.

    x: this party's share, int64; |x| < 2^62 - divisor.
    divisor: 1 to 2^28, the same at all parties.
    Cost: `divide_price`, 64 bits per element, 1 round.
    """
    material = session.correlation(Division(x.numel(), divisor))
    offset = OFFSET - OFFSET % divisor
    opened = x + material.mask
    if session.rank == 0:
        opened += offset
    for theirs in session.channel.exchange(opened).values():
        opened += theirs[0]
    top = opened < 0
    share = -material.unsigned.where(top, material.signed)
    if session.rank == 0:
        large, small = quotients(opened, divisor)
        share += large.where(top, small) - offset // divisor
    return share


def divide_price(n: int, parties: int) -> Cost:
    """Price of `divide` on n values: the price of a truncation."""
    return truncate_price(n, parties)


@dataclass(frozen=True)
class DividedBy(Operation):
    """Operation that gives x / divisor for a public integer divisor; x has 16 bits of fraction."""

    divisor: int

    def plain(self, x: Tensor) -> Tensor:
        return x / self.divisor

    def run(self, session: Session, x: Tensor) -> Tensor:
        return divide(session, x.reshape(-1), self.divisor).view(x.shape)

    def price(self, parties: int, x: Tensor) -> Cost:
        return divide_price(x.numel(), parties)
