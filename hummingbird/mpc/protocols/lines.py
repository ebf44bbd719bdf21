"""A ReLU in one round: the masked opening selects a line, whose two coefficients are dealt.

The parties cut the surplus fraction off their own shares (local), and open

    x^ = x + lambda  mod 2^k,      X = x^ >> m,   v = x^ mod 2^m,   L, l the same of lambda,   w = k - m,   h = 2^(w-1)

as in masked.py. For every X the dealer knows D = X - L mod 2^w, as a signed number in [-h, h). Let S(d) be d = x + l,
reduced mod 2^k to a signed number. As x^ = 2^m L + d mod 2^k,

    S(d) = 2^m D + v,      z = S(d) - l = 2^m D + v - l,      b = [S(d) >= 2^m] = [D >= 1]

for every x, where b and z are those of `MaskedLaw`: z is x if d is inside the window, and the ReLU's result is b z. For
each X it is a line in v, with a slope and a start that the dealer knows:

    T_1[X] = b        T_0[X] = b (2^m D - l)        b z = T_1[X] v + T_0[X]

The dealer deals additive shares mod 2^R of both, for all X; the public X selects one line, and every party evaluates it
with its own shares. The result is right mod 2^R, and for equal masks it is the result of masked.py bit for bit, also
outside the window. It takes k bits and one round, and 2^w 2R bits offline; if m = 0, v is 0 and no slope is dealt.

*Several thresholds.* For a public t, x^ - t is the opening of x - t under the same mask, and the lines depend on the
mask alone. So the line that x^ - t selects has the value relu(x - t): the same lines serve any number of thresholds,
without another bit online or offline.

*The value itself.* lambda is the sum of the parties' summands less 2^k times a carry, and 2^m X - lambda + 2^k c = 2^m
D - l for c = (D - (X - L)) / 2^w, which is -1, 0 or 1. So

    z = x^ - summands + 2^k (carry + c)

and the dealer deals carry + c mod 2^(R - k) for every X, where z is asked for: 2^w (R - k) bits.

*What the parties see*: x^ alone, which is uniform. As in masked.py, its low bits v decide whether an x from 0 to 2^m
becomes 0. The selected shares stay shares, and nothing of them is opened.

Source: one-time truth tables, Ishai, Kushilevitz, Meldgaard, Orlandi, Paskin-Cherniavsky 2013; lines in the opened
value's low bits, and thresholds that share them, are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.kernels.shares.packing import Packed, Words, plain
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number
from hummingbird.mpc.session.session import Session

WIDEST = 10  # bits of the widest window that a request may have: 2^10 lines a value
AT_ONCE = 1 << 22  # lines of one request: 38 MB of shares mod 2^36, and 32 MiB for each coefficient where it is dealt
TOGETHER = 8  # requests that one message serves: their shares stay in memory until the message has come
_DEALT_AT_ONCE = 1 << 15  # lines that `Lines.derive` computes at a time: they stay in a core's cache


class LineShares(NamedTuple):
    """A party's shares for masked openings of `count` values: each opened value selects one of 2^w lines.

    All fields are additive. The lines of one value follow each other, in the order of the opened upper bits X.
    mask: this party's summand of each value's mask, in the low k bits, int32 or int64 (count,).
    start: T_0 mod 2^ring, (count 2^w,).
    slope: T_1 mod 2^ring, (count 2^w,); None for m = 0, where the opened value has no lower bits.
    wrap: carry + c mod 2^(ring - k), (count 2^w,); None unless the values themselves are asked for.
        It has no bits for ring <= k.
    """

    mask: Words
    start: Words
    slope: Words | None = None
    wrap: Words | None = None


@dataclass(frozen=True)
class Lines(Request[LineShares]):
    """Request for `count` masks of k bits and, for each mask, the 2^(k-m) lines that give ReLUs of the window [k:m).

    Results are mod 2^ring, in more or fewer bits than the k that are opened.
    values: 1 if shares of the opened values themselves are wanted too; else 0.
    """

    kind = "lines"
    count: int = number()
    k: int = number(most=64)
    m: int = number(most=64)
    ring: int = number(most=64)
    values: int = number(most=1)

    def check(self) -> None:
        if not 1 <= self.w <= WIDEST:
            raise ValueError(f"a window of {self.w} bits is not in 1..{WIDEST}")
        if not self.ring:
            raise ValueError("results of no bits")

    @property
    def w(self) -> int:
        """How many bits the window has."""
        return self.k - self.m

    @cached_property
    def free(self) -> Fields:
        return {"mask": Field("ring", (self.count,), width=self.k, apart=True)}

    @cached_property
    def derived(self) -> Fields:
        widths = {"start": self.ring}
        if self.m:
            widths["slope"] = self.ring
        if self.values:
            widths["wrap"] = max(0, self.ring - self.k)  # used times 2^k
        return {name: Field("ring", (self.count << self.w,), width=width, left=True) for name, width in widths.items()}

    def derive(self, mask: list[Tensor]) -> dict[str, Tensor]:
        total, low = torch.zeros_like(mask[0], dtype=torch.int64), (1 << self.k) - 1 if self.k < 64 else -1
        for share in mask:
            total += share.long() & low
        # The sum is right mod 2^64, so its carry is right in the 64 - k bits that the field can have.
        carry = total >> self.k if self.k < 64 else torch.zeros_like(total)
        parts = zip(*(each.split(max(1, _DEALT_AT_ONCE >> self.w)) for each in (total & low, carry)), strict=True)
        columns = zip(*(self._lines(*part) for part in parts), strict=True)
        return {name: torch.cat(column).view(-1) for name, column in zip(self.derived, columns, strict=True)}

    def _lines(self, mask: Tensor, carry: Tensor) -> list[Tensor]:
        """Compute the derived fields, in their order, int64 (n, 2^w) each, for n masks and their carries."""
        size = 1 << self.w
        upper, at = torch.arange(size, device=mask.device), (mask >> self.m) & (size - 1)
        apart = upper - upper[:, None]  # X - L, by L and X
        d = ((apart + size // 2) & (size - 1)) - size // 2
        above = (d >= 1).long()
        slope = above.index_select(0, at)
        found = [((d << self.m) * above).index_select(0, at) - slope * (mask & ((1 << self.m) - 1))[:, None]]
        if self.m:
            found.append(slope)
        if self.values:
            found.append((d - apart >> self.w).index_select(0, at) + carry[:, None])
        return found

    def shares(self, **words: Words) -> LineShares:
        return LineShares(**words)


def bits(k: int, m: int, ring: int) -> int:
    """Return how many bits are dealt for the lines of one ReLU of the window [k:m). ring: bits of the result."""
    return (ring << k - m) * (1 + (m > 0))


def most_at_once(w: int) -> int:
    """Return how many values one call of `relus` may have, for a window of w bits: one message opens them."""
    return TOGETHER * (AT_ONCE >> w)


def relus(
    session: Session,
    share: Tensor,
    knots: Sequence[int],
    shift: int,
    k: int,
    m: int,
    ring: int = 64,
    value: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute shares mod 2^ring of relu(z - t) for every public knot t, int64 (J, n), and of z less the first, (n,).

    z is x / 2^shift, for the value x that the parties share.
    share: this party's share of x mod 2^(k + shift), int64 (n,), for n up to `most_at_once`.
    knots: J integers t, with |z - t| < 2^(k-1) - 2^m for each, for the window [k:m) of 1 to 10 bits.
    value: whether z is wanted; without it, the second result is None.
    Each of N parties rounds its own share, so z is within N/2 units of x / 2^shift, and right on average.
    Cost: `relus_price`, k bits for each value and one round, for any number of knots.
    """
    parts = share.split(AT_ONCE >> (k - m))
    dealt = [session.correlation(Lines(part.numel(), k, m, ring, int(value))) for part in parts]
    words = [kernels.mask_words(part, own.mask, shift, k) for part, own in zip(parts, dealt, strict=True)]
    out: list[tuple[Tensor, Tensor | None]] = []
    for frames in zip(words, *session.channel.exchange(*words).values(), strict=True):
        opened = kernels.open_words(list(frames), parts[len(out)].numel(), k)
        out.append(_selected(opened, dealt.pop(0), knots, k, m, ring, session.rank == 0))
    y = torch.cat([relu for relu, _ in out], 1)
    return y, torch.cat([z for _, z in out if z is not None]) if value else None


def _selected(
    opened: Tensor, own: LineShares, knots: Sequence[int], k: int, m: int, ring: int, first: bool
) -> tuple[Tensor, Tensor | None]:
    """Evaluate the lines that opened values select: shares of the ReLUs, (J, n), and of the values less the first knot.

    opened: the values plus their masks mod 2^k, int64 (n,).
    own: this party's lines for these masks.
    knots, k, m, ring: as for `relus`. first: whether this is party 0, which alone adds public numbers.
    The second result is None if the lines were dealt without it.
    """
    w, low = k - m, (1 << k) - 1 if k < 64 else -1
    start = torch.arange(opened.numel(), device=opened.device) << w
    found, z = [], None
    for number_, knot in enumerate(knots):
        place = (opened - knot) & low
        line = start + ((place >> m) & ((1 << w) - 1))
        y = chosen(own.start, line, ring)
        if own.slope is not None:
            y += chosen(own.slope, line, ring) * (place & ((1 << m) - 1))
        found.append(y)
        if own.wrap is not None and not number_:
            z = (place if first else 0) - (plain(own.mask).long() & low)
            if ring > k:
                z = z + (chosen(own.wrap, line, ring - k) << k)
    return torch.stack(found), z


def chosen(words: Words, index: Tensor, width: int) -> Tensor:
    """Return the words at these indices, int64 in the shape of `index`; only their low `width` bits count.

    words: of `width` bits each. Packed words are read where they lie: the others are not unpacked.
    index: int64.
    """
    if not isinstance(words, Packed):
        return plain(words)[index].long()
    data, bit = words.data, index * width
    if data.numel() % 8:
        data = torch.cat([data, data.new_zeros(-data.numel() % 8)])
    blocks = (data.clone() if data.storage_offset() % 8 else data).view(torch.int64)
    first, place = bit >> 6, bit & 63
    # A word's lower part, without the sign that the shift copies; then its upper part, which the mask drops if the word
    # ends before.
    lower = (blocks.index_select(0, first) >> place) & ~(-2 << 63 - place)
    upper = blocks.index_select(0, (first + 1).clamp_(max=len(blocks) - 1)) << 1 << 63 - place
    return (lower | upper) & ((1 << width) - 1 if width < 64 else -1)


def relus_price(n: int, k: int, m: int, ring: int, parties: int, value: bool = False) -> Cost:
    """Return the price of `relus` on n values and any number of knots: k bits for each value, in one round.

    k, m: the window [k:m).
    ring: how many bits the results have.
    value: whether the values themselves are wanted, too.
    """
    whole, rest = divmod(n, AT_ONCE >> (k - m))
    sizes = [AT_ONCE >> (k - m)] * whole + [rest] * (rest > 0 or not whole)
    widths = [ring] * (1 + (m > 0)) + [max(0, ring - k)] * value
    dealt = sum(packed((size << (k - m)) * width) for size in sizes for width in widths)
    return cost.opening(parties, sum(packed(size * k) for size in sizes), 8 * dealt)
