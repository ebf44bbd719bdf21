"""Masks of k bits that neither party knows: additive shares, and from bit m on xor shares of each bit.

lambda is a sum mod 2^k of one number of each party, as in a masked opening (mpc/protocols/masked.py). For a knob p, its
low p bits are those of a sum of two random numbers a and b (carry.py), with digits of some bits up to m and of 1 bit
from there on; its other bits are drawn as xors of a random bit of each party, x^0 ^ x^1:

    lambda = a + b - 2^p c_p + sum over j >= p of 2^j x_j          c_p = c^0 + c^1 - 2 c^0 c^1, the same for each x_j

Shares mod 2^R follow from shares of the products. `mask` is the low k bits of a share, and `carry`, by which the sum of
the masks exceeds lambda, minus the rest. A bit below p costs 2 transfers and 2 bits, one from p on 1 transfer and
R - j - 2 bits. So p rises as transfers become cheap, and falls for narrow rings. lambda is uniform to each party
alone: the other one's number a or b is, and so is its bit of each xor.

*Step tables* (step_tables.py). The sender knows the unit vector e of x^0, its bits of c bits of lambda. For each bit j
the receiver's x_j^1 exchanges the entries v and v ^ 2^j of all pairs: 2^(c-1) bits by the transfer of the bit. The
sender's share of the vector has always an odd number of ones, so that one bit of each exchange follows from the others:
c (2^(c-1) - 1) bits. The prefix xors of the vector at x^0 ^ x^1 are the table T[v] = [x <= v].
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.mpc.pair import carry
from hummingbird.mpc.pair.carry import number
from hummingbird.mpc.pair.lockstep import Rounds, together
from hummingbird.mpc.pair.price import TURNED, TURNED_BACK, PairPrice, beside, own_words, returned, words
from hummingbird.mpc.pair.transfers import ReceivedRot, Rot, SentRot, Side


@dataclass(frozen=True)
class MaskShape:
    """The parameters of masks of `k` bits, shared as numbers mod 2^ring; bits `m` to k - 1 are also shared by xor.

    p: the low p bits of lambda are those of a sum, the others xors of random bits.
    digit: bits of a digit of the sum below bit m.
    """

    k: int
    m: int
    ring: int
    p: int
    digit: int = carry.DIGIT

    @property
    def singles(self) -> int:
        """How many bits of the sum are digits of one bit, as they are also shared by xor."""
        return max(0, self.p - self.m)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the digits of the sum's p bits."""
        return [*carry.digits(self.digit, min(self.m, self.p)), *[1] * self.singles]


def drawn(side: Side, shape: MaskShape, tables: Sequence[int]) -> Rounds[tuple[Tensor, list[Tensor]]]:
    """Draw masks: return this party's share of lambda mod 2^ring, int64 (n,), and its xor shares of step tables.

    tables: of how many bits each table is, from bit m on. A table is uint8 (n 2^c / 8,), 2^c bits a value.
    Cost: `price`.
    """
    singles = [side.rot() for _ in range(shape.singles)]
    upper = [side.rot() for _ in range(shape.p, shape.k)]
    bits, cuts = [*singles, *upper[max(0, shape.m - shape.p) :]], list(itertools.accumulate(tables, initial=0))
    share, *rest = yield from together(
        _sum(side, shape, singles),
        *(rot.own_words(shape.ring - j - 1) for j, rot in enumerate(upper, shape.p)),
        *(step_table(bits[low:high]) for low, high in itertools.pairwise(cuts)),
    )
    for j, (rot, product) in enumerate(zip(upper, rest, strict=False), shape.p):
        share = share + ((kernels.from_bits(rot.own, side.n) - 2 * product) << j)
    return share, rest[len(upper) :]


def price(shape: MaskShape, tables: Sequence[int]) -> PairPrice:
    """Return the price of `drawn` for a value."""
    upper = (own_words(shape.ring - j - 1) for j in range(shape.p, shape.k))
    looked = (words(*[(1 << (c - 1)) - 1] * c) for c in tables)
    summed = carry.price(shape.sizes)
    if shape.ring - shape.p > 1 and shape.p:
        summed += TURNED + words(shape.ring - shape.p - 1)
    return beside(summed, *upper, *looked)


@cache
def best(k: int, m: int, ring: int, transfer_bits: float) -> MaskShape:
    """Return masks with the knobs p and digit for which bits and transfers cost least.

    transfer_bits: the price of a transfer in bits.
    """
    shapes = [MaskShape(k, m, ring, p, carry.best_digit(transfer_bits)) for p in range(k + 1)]
    return min(shapes, key=lambda shape: price(shape, ()).weight(transfer_bits))


def _sum(side: Side, shape: MaskShape, singles: Sequence[Rot]) -> Rounds[Tensor]:
    """Draw the low p bits of lambda; return a share of them mod 2^ring, int64 (n,)."""
    found = yield from carry.add(side, shape.sizes, singles)
    share = number(found.bits, side.n)
    if found.carry is None or shape.ring <= shape.p:
        return share
    over, product = kernels.from_bits(found.carry, side.n), torch.zeros(side.n, dtype=torch.int64)
    if shape.ring - shape.p > 1:
        turned = yield from side.rot().turned(found.carry)
        product = yield from turned.words(shape.ring - shape.p - 1, over)
    return share - ((over - 2 * product) << shape.p)


@dataclass
class SquaredMask:
    """A party's part of masks with their squares.

    share: its additive share of lambda mod 2^ring, int64 (n,); the low k bits are its summand. carry: of the carry of
    the summands, mod 2^(ring - k). square: of lambda^2. tables: its xor shares of step tables.
    """

    share: Tensor
    carry: Tensor
    square: Tensor
    tables: list[Tensor]


def squared(
    side: Side, shape: MaskShape, tables: Sequence[int], bits: int, singles: Sequence[Rot] | None = None
) -> Rounds[SquaredMask]:
    """Draw masks as `drawn` does, with shares of lambda^2 mod 2^bits too.

    With p = k, lambda is a + b - 2^k c, and

        lambda^2 = a^2 + b^2 + 2 a b - 2^(k+1) c (a + b) + 2^(2k) c

    a goes as a word with each bit of b as the choice, of bits - 1 - j bits for bit j. c a and c b take transfers of
    both directions, whose choices are the shares of c.
    singles: main transfers that get the xor shares of lambda's bits from m on as their own bits; None: new ones.
    Cost: `squared_price`, with these transfers.
    """
    k, ring = shape.k, shape.ring
    singles = [side.rot() for _ in range(shape.singles)] if singles is None else singles
    cuts = list(itertools.accumulate(tables, initial=0))
    found, *made = yield from together(
        carry.add(side, shape.sizes, singles),
        *(step_table(singles[low:high]) for low, high in itertools.pairwise(cuts)),
    )
    assert shape.p == k and found.carry is not None
    later = [j for j in range(k) if j not in found.rots]
    rot, back, *turned = yield from together(
        side.rot().turned(found.carry),
        side.back().turned(found.carry),
        *(side.rot().turned(found.bits[j]) for j in later),
    )
    rots = {**found.rots, **dict(zip(later, turned, strict=True))}
    own, bit = number(found.bits, side.n), kernels.from_bits(found.carry, side.n)
    signed = own - 2 * bit * own
    product, one, two, *crossed = yield from together(
        rot.words(ring - k - 1, bit),
        rot.words(bits - k - 1, signed),
        back.words(bits - k - 1, signed),
        *(rots[j].words(bits - 1 - j, own) for j in range(k)),
    )
    over = bit - 2 * product
    square = own * own - ((bit * own + one + two) << k + 1) + (over << 2 * k if 2 * k < bits else 0)
    square = reduce(torch.add, (word << j + 1 for j, word in enumerate(crossed)), square)
    return SquaredMask(own - (over << k), over, square, made)


def squared_price(shape: MaskShape, tables: Sequence[int], bits: int) -> PairPrice:
    """Return the price of `squared` for a value; k < bits and k < ring."""
    k, ring = shape.k, shape.ring
    looked = (words(*[(1 << (c - 1)) - 1] * c) for c in tables)
    later = sum(size == 1 for size in shape.sizes)
    turned = beside(TURNED, TURNED_BACK, *[TURNED] * later)
    crossed = words(*(bits - 1 - j for j in range(k)), bits - k - 1, ring - k - 1) | returned(bits - k - 1)
    return beside(carry.price(shape.sizes), *looked) + turned + crossed


def step_table(bits: Sequence[Rot]) -> Rounds[Tensor]:
    """Return an xor share of the step table of numbers of c bits, uint8 (n 2^c / 8,): 2^c bits for each value.

    bits: transfers whose own bits are xor shares of the numbers' bits, lowest first.
    Cost: c (2^(c-1) - 1) bits, 1 round.
    """
    sends, n, half = bits[0].sends, bits[0].n // 8, 1 << (len(bits) - 1)
    vector = carry.unit([rot.own for rot in bits]) if sends else torch.zeros(2 * half, n, dtype=torch.uint8)
    messages, places, read = [], [], []
    if not sends and half > 1:
        places = [rot.places(half - 1) for rot in bits]
        (message,) = yield [], [len(bits) * (half - 1) * n]
        read = list(message.view(len(bits), half - 1, n))
    for j, rot in enumerate(bits):
        pairs = vector.view(half >> j, 2, 1 << j, n)
        difference = (pairs[:, 0] ^ pairs[:, 1]).view(half, n)
        if isinstance(rot, SentRot):
            share, sent = rot.hide_bits(difference[:-1])
            messages.append(sent)
            moved = torch.cat([share, _sum_of(share)])
        else:
            assert isinstance(rot, ReceivedRot)
            share = rot.read_bits(read[j], places[j]) if half > 1 else difference[:0]
            # All of the sender's differences add up to 1, as its share of the vector has an odd number of ones.
            moved = torch.cat([share, _sum_of(share) ^ rot.choice]) ^ (difference & rot.choice)
        vector = (pairs ^ moved.view(half >> j, 1, 1 << j, n)).view(2 * half, n)
    if sends and half > 1:
        yield [torch.cat(messages)], []
    return _by_value(torch.stack(list(itertools.accumulate(vector, torch.bitwise_xor))))


def _sum_of(rows: Tensor) -> Tensor:
    """Return the xor of all rows, uint8 (1, n/8). rows: uint8 (rows, n/8)."""
    return reduce(torch.bitwise_xor, rows, rows.new_zeros(rows.shape[1]))[None]


def _by_value(rows: Tensor) -> Tensor:
    """Put the bits of each value beside each other: uint8 (K, n/8) to (K n / 8,), for K a power of two."""
    n = 8 * rows.shape[1]
    words = torch.stack([kernels.from_planes(part, n) for part in rows.split(64)], 1)
    return kernels.pack_words(words.view(-1), min(64, len(rows)))
