"""The carries of a sum of two random numbers, each known to one party; xor-shared.

The sender of the transfers has a, the receiver b; c_j is the carry into bit j of a + b, c_0 = 0, with shares c^0 and
c^1. Bits come in digits of a few bits:

*Several bits at once* (the first digit, and those of 2 or 3 bits). The carry out is [a + b + c >= 2^s], for the digit's
s bits of a and b: a function of (b, c^1) with 2^(s+1) values, all of which the sender knows, as it knows a and c^0. The
receiver gets a share of one value by choosing with each bit (`chosen`): 2^(s+1) - 1 bits for s + 1 transfers. Random
choices are the bits of b. c^1 follows from earlier bits, so it takes one more bit. The first digit has no carry in.

*One bit*: with u = a ^ c^0 and v = b ^ c^1, for which a + b + c has the lowest bit u ^ v,

    carry out = a c^0 ^ b c^1 ^ c^0 c^1 ^ u v

u and v are drawn, both of them random, and a and b follow. So the product u v costs a transfer and no bit, and u ^ v is
the sum's bit, in shares that the look-up of a table can use as choices (masks.py). The product c^0 c^1 costs a transfer
and 2 bits.

Derived here. A transfer of one of 2^s words from transfers of one of two: Naor and Pinkas, STOC 1999.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import TURNED, PairPrice, words
from hummingbird.mpc.pair.transfers import ReceivedRot, Rot, SentRot, Side

DIGIT = 3  # bits of a digit with SoftSpoken OT, whose transfers and bits are 46.7 for each bit (4: 46.75, 1: 64)


@dataclass
class Carries:
    """A party's part of a sum of two random numbers.

    bits: its own number's bits, lowest first, packed uint8 (n/8,).
    carry: its xor share of the carry out.
    rots: by the place of a bit in a digit of several, the transfer whose choice is the receiver's bit.
    into: by the place of a digit, the transfer whose choice is the receiver's share of the carry into the digit, and
        this party's share of that carry.
    """

    bits: list[Tensor] = field(default_factory=list)
    carry: Tensor | None = None
    rots: dict[int, Rot] = field(default_factory=dict)
    into: dict[int, tuple[Rot, Tensor]] = field(default_factory=dict)


def digits(size: int, *ends: int) -> list[int]:
    """Return the sizes of digits, at most `size`, that cover the bits up to the last of `ends` and break at each."""
    sizes: list[int] = []
    for low, high in itertools.pairwise((0, *ends)):
        sizes += [min(size, high - at) for at in range(low, high, size)]
    return sizes


@cache
def best_digit(transfer_bits: float) -> int:
    """Return the size of digits, at most `DIGIT` bits, that costs least for each bit.

    transfer_bits: the price of a transfer in bits; below 4, digits of one bit are best.
    """

    def weight(size: int) -> float:
        return (price([1, size]).weight(transfer_bits) - price([1]).weight(transfer_bits)) / size

    return min(range(1, DIGIT + 1), key=weight)


def add(side: Side, sizes: Sequence[int], singles: Sequence[Rot] = ()) -> Rounds[Carries]:
    """Draw two random numbers with digits of these sizes, and compute the carries of their sum. Cost: `price`.

    singles: the transfers of the last digits, which have one bit each; those of the others are new ones.
    """
    out, first = Carries(), len(sizes) - len(singles)
    for at, size in enumerate(sizes):
        carry, place = out.carry, len(out.bits)
        turned: Rot | None = None
        if carry is not None:
            turned = yield from side.rot().turned(carry)
            out.into[place] = turned, carry
        rots = [singles[at - first]] if at >= first else [side.rot() for _ in range(size)]
        own = [rot.own for rot in rots]
        if size > 1:
            out.bits += own
            out.rots.update(enumerate(rots, place))
            table = _table(own, carry) if side.sends else None
            out.carry = yield from chosen([*rots, turned] if turned else rots, table)
            continue
        both = rots[0].own_product()
        if turned is None or carry is None:
            out.bits.append(own[0])
            out.carry = both
        else:
            bit = own[0] ^ carry
            out.bits.append(bit)
            (product,) = yield from turned.bits(carry[None])
            out.carry = bit & carry ^ both ^ product
    return out


def price(sizes: Sequence[int]) -> PairPrice:
    """Return the price of `add`: for the first digit of s bits s transfers and 2^s - 1 bits, or no bit for s = 1.

    Each later digit takes s + 1 transfers and 2^(s+1) bits, or 2 bits for s = 1, and two rounds.
    """
    total = PairPrice()
    for at, size in enumerate(sizes):
        if at:
            total += TURNED
        bits = (1 << (size + (at > 0))) - 1 if size > 1 else int(at > 0)
        total += PairPrice(main=size) + words(bits)
    return total


def of_given(side: Side, bits: Sequence[Tensor], sizes: Sequence[int]) -> Rounds[Tensor]:
    """Return this party's xor share of the carry out of the sum of two given numbers, packed (n/8,).

    Every choice follows from the receiver's number, and takes a bit. Cost: `of_given_price`.
    bits: this party's number, lowest bit first. sizes: of the digits.
    """
    rots = yield from together(*(side.rot().turned(bit) for bit in bits))
    carry, at = None, 0
    for size in sizes:
        mine = rots[at : at + size]
        table = _table(bits[at : at + size], carry) if side.sends else None
        if carry is not None:
            mine = [*mine, (yield from side.rot().turned(carry))]
        carry = yield from chosen(mine, table)
        at += size
    assert carry is not None
    return carry


def of_given_price(sizes: Sequence[int]) -> PairPrice:
    """Return the price of `of_given`: that of `add` with digits of several bits, and a bit for each bit."""
    total = TURNED.times(sum(sizes))
    for at, size in enumerate(sizes):
        total += words((1 << size) - 1) if not at else TURNED + words((2 << size) - 1)
    return total


def unit(bits: Sequence[Tensor]) -> Tensor:
    """Return the unit vectors of numbers, uint8 (2^s, n/8): row v has a 1 for each number that equals v.

    bits: of the numbers, lowest first, packed (n/8,).
    """
    out = torch.full((1, len(bits[0])), 255, dtype=torch.uint8)
    for bit in bits:
        out = torch.cat([out & ~bit, out & bit])
    return out


def chosen(rots: Sequence[Rot], table: Tensor | None) -> Rounds[Tensor]:
    """Return an xor share of one of 2^s bits of the sender, (n/8,), which the receiver chooses by its s choices.

    table: the sender's bits, uint8 (2^s, n/8); entry v is chosen by the choices that are the bits of v, lowest first.
    Cost: 2^s - 1 bits, 1 round.
    """
    if table is not None:
        messages = []
        for rot in rots:
            assert isinstance(rot, SentRot)
            share, message = rot.hide_bits(table[0::2] ^ table[1::2])
            table = table[0::2] ^ share
            messages.append(message)
        yield [torch.cat(messages)], []
        return table[0]
    n = rots[0].n // 8
    sizes = [1 << place for place in reversed(range(len(rots)))]
    places = [rot.places(size) for rot, size in zip(rots, sizes, strict=True)]
    (message,) = yield [], [n * sum(sizes)]
    share = torch.zeros(2 * sizes[0], n, dtype=torch.uint8)
    for rot, part, at in zip(rots, message.view(-1, n).split(sizes), places, strict=True):
        assert isinstance(rot, ReceivedRot)
        share = share[0::2] ^ (rot.choice & (share[0::2] ^ share[1::2])) ^ rot.read_bits(part, at)
    return share[0]


def _table(own: Sequence[Tensor], carry: Tensor | None) -> Tensor:
    """Return the bits [a + b + c >= 2^s], by b and then, if there is a carry, by the receiver's share of c.

    own: the bits of a. carry: the sender's share of c.
    """
    at = unit(own)  # [a = v]
    least = torch.stack(list(itertools.accumulate(at.flip(0), torch.bitwise_xor)))  # row b - 1: [a >= 2^s - b]
    without = torch.cat([torch.zeros_like(at[:1]), least[:-1]])
    if carry is None:
        return without
    more = at.flip(0)  # row b: [a + b + 1 = 2^s]
    first = without ^ (more & carry)
    return torch.cat([first, first ^ more])


def number(bits: Sequence[Tensor], n: int) -> Tensor:
    """Return the numbers with these bits, lowest first, int64 (n,). bits: packed (n/8,)."""
    return kernels.from_planes(torch.stack(list(bits)) if bits else torch.empty(0, n // 8, dtype=torch.uint8), n)
