"""DReLU on a window of the shares: HummingBird's reduced ring, where a carry tree adds the shares on packed bits.

Party i cuts its share to s_i[k:m) = (s_i >> m) mod 2^w, locally. The cut shares add up, mod 2^w, to

    floor(x / 2^m) - c,   with a carry 0 <= c < N

so for -2^(k-1) <= x < 2^(k-1) the top bit of their sum is the sign of x, except for 0 <= x < (N-1) * 2^m and within
(N-1) * 2^m of the lower bound (Maeng and Suh, "HummingBird", 2023, section 4). Only that bit is computed:

    sign = p[w-1] xor carry,   carry = G over bits 0..w-2,   (G, P) o (G', P') = (G xor P G', P P')

with generate g = a & b and propagate p = a xor b. With two parties, each operand of g has one owner, so g costs one bit
per party. An inner node is two ANDs with a common operand, three bits instead of four, and the lowest node of a level
needs no P. With N > 2 parties, carry-save adders first reduce the addends to two. The paper counts 2w + 4w ceil(log2 w)
bits; this module sends 4w - 7 - ceil(log2(w - 1)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost, packed
from hummingbird.errors import ConfigError
from hummingbird.kernels import Cut
from hummingbird.mpc.correlations.field import Fields, planes
from hummingbird.mpc.protocols.boolean import And, and_, and_pair, and_pair_price, and_price
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.law import UNIT, Law
from hummingbird.mpc.protocols.truncation import select, select_price
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE


class Gmw(Comparison):
    """Comparison by a carry tree on a window of the shares mod 2^64, as in the HummingBird paper (protocol="gmw").

    The sign is decided first. Then one opening of 64 bits cuts off the bits of fraction beyond 16, and the lowest q
    bits of the window (truncation.py). It requires |x| < 2^62 in the ring.
    """

    name = "gmw"
    least_width = 1
    takes_rounded_shares = False

    @property
    def reads(self) -> int | None:
        # The opening needs |x| < 2^62, so that a window up to bit k < 64 reads a sign and one more bit.
        return None if self.window.k == 64 else self.window.k - SCALE + 1

    @property
    def undecided(self) -> float:
        return 8 * super().undecided  # one unit for each party but one: enough for nine parties

    def needs(self, scale: int) -> int:
        return 64

    def range(self, scale: int) -> int:
        return min(self.window.k, 64 - (scale - SCALE) - 1) - SCALE - 1

    def check(self, scale: int) -> None:
        extra = scale - SCALE
        if not self.drops and self.window.low + extra > 63:
            hint = f"the shares carry {extra} more bits of fraction here: choose a lower m, or a lower q"
            raise ConfigError(f"window {self.window} begins above the 64-bit ring", hint=hint)

    def law(self, scale: int, parties: int) -> GmwLaw:
        extra = scale - SCALE
        return GmwLaw(min(self.window.k, 64 - extra), self.window.low, parties, bool(extra), q=self.window.q)

    def variant(self, scale: int, parties: int, n: int) -> str:
        return "dropped" if self.drops else "carry tree"

    def _run(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, value: bool
    ) -> tuple[Tensor, Tensor]:
        shift = scale - SCALE
        moved = torch.cat([share - ((knot << shift) if session.rank == 0 else 0) for knot in knots])
        y, z = relu(session, moved, self.window, shift)
        return y.view(len(knots), -1), z[: share.numel()]

    def _price(self, n: int, knots: int, scale: int, parties: int, value: bool) -> Cost:
        extra = scale - SCALE
        return relu_price(n * knots, cut(self.window, extra)[1], extra + self.window.q, parties)


@dataclass(frozen=True)
class GmwLaw(Law):
    """The law of "gmw": it decides by the sign of d = r - u, where r = round(2^16 v) for a real value v.

    d is first reduced mod 2^k to a signed number, for the window [k:m). u is random, the sum of N - 1 uniform numbers
    in [0, 2^m) for N parties: the low bits of all shares but one. The decided bit multiplies r. If the window drops its
    lowest q bits, it multiplies r + e rounded down to a multiple of 2^q. Here e is uniform in [0, 2^q): the low bits of
    the mask by which the value is opened.
    between: whether the shares have more than 16 bits of fraction. Then r is 1 lower (`lower`), if m > 0.
    """

    between: bool = False
    rounds_apart = True
    disturbances = 0

    @property
    def draws(self) -> int:
        return self.parties - 1 if self.m else 0

    @property
    def lower(self) -> int:
        return 1 if self.between and self.m else 0

    @property
    def cut(self) -> Cut:
        return Cut(self.k, self.m, self.draws, self.slack + self.lower, 1 << (self.k - 1), False, 0)

    @property
    def range(self) -> tuple[float, float]:
        half = 1 << (self.k - 1)
        return (-half + self.slack + self.lower) * UNIT, (half - 1 + self.lower) * UNIT

    def decide(self, r: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return r - u - self.turns(r - u) >= 0, r  # the opening rounds r later (`rounded`), with other random numbers


def cut(window: BitWindow, extra: int) -> tuple[int, int]:
    """Return which bits of the shares decide for a window: the lowest one, and how many.

    extra: how many bits of fraction above 16 the shares have. The window [64:0) on shares with 16 such bits is [64:16):
        the dropped bits are below the resolution of the result.
    """
    low = window.low + extra
    return low, min(window.k + extra, 64) - low


def relu(session: Session, share: Tensor, window: BitWindow, shift: int) -> tuple[Tensor, Tensor]:
    """Compute this party's shares of relu(z) and of z = x >> shift, int64 (n,) each; z may be one unit too large.

    share: its share of x, int64 (n,).
    window: the bits that decide, counted in z. If it drops its lowest q bits, z is rounded to a multiple of 2^q.
    Cost: `relu_price`.
    """
    y, z = select(session, share, drelu(session, share, *cut(window, shift)), shift + window.q)
    return (y << window.q, z << window.q) if window.q else (y, z)


def relu_price(n: int, w: int, shift: int, parties: int) -> Cost:
    """Return the price of `relu` on n values.

    w: bits of the window; a window without bits costs nothing.
    shift: bits of fraction that `relu` cuts off the shares.
    """
    if w == 0:
        return cost.FREE
    return drelu_price(n, w, parties) + select_price(n, shift, parties)


@dataclass(frozen=True)
class PrivateAnd(And):
    """Request for masks a and b and for a & b, by which two parties AND bits that one of them knows with the other's.

    Party 0 alone knows a, and party 1 alone knows b; both get xor shares of a & b. It serves the first step of adding
    the two parties' shares.
    """

    kind = "and_private"

    @cached_property
    def free(self) -> Fields:
        return {"a": planes(self.planes, self.count, owner=0), "b": planes(self.planes, self.count, owner=1)}


def drelu(session: Session, share: Tensor, low: int, w: int) -> Tensor:
    """Compute this party's xor share of the bit [x >= 0], packed: uint8 (ceil(n/8),).

    share: its additive share of x, int64 (n,).
    low, w: the bits of the shares that decide, low to low + w - 1.
    Cost: `drelu_price`. For two parties it is 4 w - 7 - L bits in 1 + L rounds, where L = ceil(log2(w - 1)).
    """
    planes = kernels.to_planes(share, low, w)
    count = share.numel()
    if session.parties == 1:
        sign = planes[-1].clone()
    elif session.parties == 2:
        sign = _two_party_sign(session, planes, count)
    else:
        sign = _sign(session, *_two_addends(session, planes, count), count)
    return ~sign if session.rank == 0 else sign


def _two_party_sign(session: Session, planes: Tensor, count: int) -> Tensor:
    """Compute this party's xor share of the sign of a sum of two addends; each of two parties knows one of them.

    planes: this party's addends for `count` sums, uint8 (w, ceil(count/8)): one plane of packed bits for each of w
        bits, lowest first.
    For the ANDs of the two addends each party needs only one mask.
    """
    width = planes.shape[0]
    if width == 1:
        return planes[0].clone()
    operand = planes[:-1]
    material = session.correlation(PrivateAnd(width - 1, count))
    # Party 0 holds a and its mask a', party 1 holds b and its mask b'. Each opens its operand behind its mask, and
    # ab = c ^ b'(a^a') ^ a'(b^b') ^ (a^a')(b^b').
    mask = material.a if session.rank == 0 else material.b
    mine = operand ^ mask
    (theirs,) = next(iter(session.channel.exchange(mine).values()))
    generate = material.c ^ (mask & theirs)
    if session.rank == 0:
        generate = generate ^ (mine & theirs)
    return planes[-1] ^ _carry(session, generate, operand, count)


def _sign(session: Session, a: Tensor, b: Tensor, count: int) -> Tensor:
    propagate = a ^ b
    if propagate.shape[0] == 1:
        return propagate[0]
    generate = and_(session, a[:-1], b[:-1], count)
    return propagate[-1] ^ _carry(session, generate, propagate[:-1], count)


def _carry(session: Session, generate: Tensor, propagate: Tensor, count: int) -> Tensor:
    """Compute an xor share of the carry out of a sum, from the generate and propagate bits of its positions.

    A position generates a carry if both bits are 1, and propagates one if exactly one of them is 1.
    generate, propagate: this party's xor shares, uint8 (positions, ceil(count/8)), lowest position first.
    count: how many sums.
    Pairs of positions merge level by level; an odd one waits for the next level. Each level is one round.
    """
    while generate.shape[0] > 1:
        pairs = generate.shape[0] // 2
        low, high = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        # The propagate bit of the lowest position is not used, since no carry goes into it.
        up, through = and_pair(session, propagate[high], generate[low], propagate[low][1:], count)
        generate = torch.cat([generate[high] ^ up, generate[2 * pairs :]])
        propagate = torch.cat([propagate[high][:1], through, propagate[2 * pairs :]])
    return generate[0]


def _two_addends(session: Session, planes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Reduce the N parties' addends to two with the same sum mod 2^w, by carry-save adders; return xor shares of both.

    A carry-save adder turns three addends into two.
    planes: this party's addends for `count` sums, uint8 (w, ceil(count/8)): one plane of packed bits for each of w
        bits.
    """
    zero = torch.zeros_like(planes)
    addends = [planes if party == session.rank else zero for party in range(session.parties)]
    width = planes.shape[0]
    while len(addends) > 2:
        triples = len(addends) // 3
        x, y, z = (torch.stack(addends[i : 3 * triples : 3]) for i in range(3))
        kept = addends[3 * triples :]
        sums = x ^ y ^ z
        carries = torch.zeros_like(sums)
        if width > 1:  # majority = ((x ^ z) & (y ^ z)) ^ z, moved up by one bit; the top carry leaves the ring
            left, right = ((t ^ z)[:, :-1].reshape(triples * (width - 1), -1) for t in (x, y))
            product = and_(session, left, right, count).view(triples, width - 1, -1)
            carries[:, 1:] = product ^ z[:, :-1]
        addends = [*sums, *carries, *kept]
    return addends[0], addends[1]


def drelu_price(n: int, w: int, parties: int) -> Cost:
    """Return the price of `drelu` on n values: the sign of a sum of the parties' shares of w bits each.

    For two parties a value costs each party 4w - 7 - L bits in 1 + L rounds, with L = ceil(log2(w-1)): the first ANDs
    take w-1 bits and one round, since each operand has one owner, and a tree takes the rest. For more parties,
    carry-save adders come first, with one AND per bit and removed addend.
    """
    if w <= 1:
        return cost.FREE
    total, addends = cost.FREE, parties
    while addends > 2:
        triples = addends // 3
        total += and_price(n, triples * (w - 1), parties)
        addends -= triples
    if parties == 2:
        total += cost.opening(parties, (w - 1) * packed(n), 8 * (w - 1) * packed(n))
    elif parties > 2:
        total += and_price(n, w - 1, parties)
    else:
        return cost.FREE
    return total + carry_price(n, w - 1, parties)


def carry_price(n: int, leaves: int, parties: int) -> Cost:
    """Return the price of the carries out of n sums of `leaves` bits each: ceil(log2(leaves)) rounds.

    A tree computes them; each of its inner nodes takes about 3 bits for each sum.
    """
    total, left = cost.FREE, leaves
    while left > 1:
        pairs = left // 2
        total += and_pair_price(n, pairs, pairs - 1, parties)
        left -= pairs
    return total


def published_bits(w: int) -> int:
    """Return the HummingBird paper's count of bits for one ReLU with a window of w bits, for each of two parties."""
    return 2 * w + 4 * w * math.ceil(math.log2(w)) + 129 if w > 1 else 2 * w + 129
