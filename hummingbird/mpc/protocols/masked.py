"""The masked opening: a ReLU that sends k + 2 bits in two rounds, from a mask that the dealer knows.

The dealer draws lambda in Z_2^k. The parties cut the surplus fraction off their own shares (local), and open only

    x^ = x + lambda  mod 2^k,      X = x^ >> m,   L = lambda >> m,   w = k - m bits,   h = 2^(w-1)

X is public, and only the dealer knows L. For |x| < 2^(k-1) - 2^m, two comparisons of L with public numbers suffice:

    s = [L <= X xor h]        b = [L < X] xor s xor [X < h]  =  [1 <= X - L < h]          (differences mod 2^w)
    x = x^ - lambda + 2^k ([X < h] - s)          relu(x) = b x^ - b lambda + 2^k [X < h] (1 - s)

over Z_2^64: x and relu(x) are lifted out of the small ring. b is [x > 0] for |x| >= 2^m, 0 or 1 for 0 <= x < 2^m, and 0
for every negative x; m = 0 is exact.

A step table T[v] = [L <= v] of 2^c bits, dealt xor-shared, answers both comparisons for c bits of L by two local
look-ups of one secret step. One-time truth tables for b and for the wrap would take twice the bits. One table serves a
window of up to 8 bits. A wider window takes several tables below a tree (step_tables.py), with ceil(log2(number of
tables)) more rounds; so does a narrower one if fewer bits matter more than fewer rounds.

The second round opens c_b = b xor r_b and c_s = s xor r_s. With dealt shares of r_b, r_s, lambda and r_b lambda the
rest is local: [b] = c_b + (1 - 2 c_b) [r_b], [b lambda] = c_b [lambda] + (1 - 2 c_b) [r_b lambda].

lambda is the sum mod 2^k of the low k bits of the parties' words. As the parties hold these as integers, the dealer
makes shares of lambda by dealing only the carry of that sum, in as many bits as the ring has beyond k. Even the carry
is not needed if the parties' shares of x are right in all bits that are wanted (`whole`), as those of an input are:
then [lambda] = x^ - [x] + 2^k ([X < h] - [s]), and z is x. For x outside the window the right side is then off by
x - x', with x' in [-2^(k-1), 2^(k-1)), and y is b x' + c_b (x - x').

One opening serves comparisons of a value with several public numbers: thresholds.py. Narrow windows have another form
of the same ReLU, which takes one round: lines.py.

Sources: masked wires with dealt functions of the mask, Boyle, Gilboa, Ishai 2019; tables as one-time truth tables,
Ishai, Kushilevitz, Meldgaard, Orlandi, Paskin-Cherniavsky 2013; the step table, the double look-up and the lift of x
and relu(x) by one bit are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.cost import Cost, packed
from hummingbird.errors import ConfigError
from hummingbird.kernels import Cut
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.kernels.streams import Drawn
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Draw, Request, layout, number
from hummingbird.mpc.protocols import lines, step_tables, thresholds
from hummingbird.mpc.protocols.boolean import open_bits
from hummingbird.mpc.protocols.interfaces import Comparison, most_at_once
from hummingbird.mpc.protocols.law import UNIT, Law
from hummingbird.mpc.session.session import Session
from hummingbird.ring import SCALE


class MaskedShares(NamedTuple):
    """A party's shares for masked openings of `count` values, by which their signs are decided.

    A value's mask is called lambda; it is the sum mod 2^k of a summand of each party. r_b and r_s are random bits. They
    hide two bits of a comparison: the ReLU's bit b, and s, which with the top bit of the opened value tells whether the
    sum of value and mask wraps.
    mask: this party's summand of lambda in the low k bits, int32 or int64 (count,).
    choice_bits, wrap_bits: xor shares of r_b and r_s, uint8 (ceil(count/8),).
    choice, wrap: additive shares of r_b and r_s as numbers, (count,).
    product: an additive share of r_b lambda, (count,).
    tables: xor shares of the step tables, lowest bits first, uint8 (ceil(count 2^c / 8),) each, for c bits of the
        window.
    carry: an additive share of (sum of the parties' summands - lambda) / 2^k, (count,); None if the parties' shares of
        the values are right in all bits of the result.
    """

    mask: Words
    choice_bits: Words
    wrap_bits: Words
    choice: Words
    wrap: Words
    product: Words
    tables: list[Words]
    carry: Words | None = None


@dataclass(frozen=True)
class MaskedOpening(Request[MaskedShares]):
    """Request for `count` masks of k bits, and for the tables by which the signs of masked values are decided.

    The window [k:m) is divided into `tables` parts, and there is a step table for each part of each mask. Results are
    mod 2^ring, k <= ring <= 64.
    whole: 1 if the parties' shares of the compared values are right mod 2^ring, so that no carry is dealt; else 0.
    """

    kind = "masked"
    count: int = number()
    k: int = number(most=64)
    m: int = number(most=64)
    tables: int = number(most=64)
    ring: int = number(most=64)
    whole: int = number(most=1, default=0)

    def check(self) -> None:
        if self.k > self.ring:
            raise ValueError(f"k {self.k} exceeds ring {self.ring}")

    @property
    def sizes(self) -> list[int]:
        """How many bits of the window each step table covers, lowest bits first."""
        return step_tables.chunks(self.k - self.m, self.tables)

    @cached_property
    def free(self) -> Fields:
        bits = Field("packed", (packed(self.count),), left=True)
        mask = Field("ring", (self.count,), width=self.k, apart=True, left=True)
        return {"mask": mask, "choice_bits": bits, "wrap_bits": bits}

    @cached_property
    def derived(self) -> Fields:
        whole = Field("ring", (self.count,), width=self.ring, left=True)
        high = Field("ring", (self.count,), width=self.ring - self.k, left=True)  # used times 2^k
        tables = {
            f"table_{place}": Field("packed", (packed(self.count << c),), left=True)
            for place, c in enumerate(self.sizes)
        }
        carry = {} if self.whole else {"carry": high}
        return {**carry, "choice": whole, "wrap": high, "product": whole, **tables}

    def derive(self, mask: list[Tensor], choice_bits: Tensor, wrap_bits: Tensor) -> dict[str, Tensor]:
        values = kernels.mask_values(
            mask, choice_bits, wrap_bits, self.count, self.k, self.m, self.sizes, bool(self.whole)
        )
        return dict(zip(self.derived, values, strict=True))

    def correct_at_once(self, draw: Draw) -> list[Tensor]:
        fields = [draw(item, 0) for item in self.free.values()] + [draw(item, 1) for item in self.derived.values()]
        left = cast("list[list[Drawn]]", fields)
        out = kernels.deal_masks(left, self.count, self.k, self.m, self.ring, self.sizes, bool(self.whole))
        return [x.view(dtype) for x, (dtype, _) in zip(out, layout(self), strict=True)]

    def shares(self, **words: Words) -> MaskedShares:
        tables = [words.pop(f"table_{place}") for place in range(self.tables)]
        return MaskedShares(**words, tables=tables)


def relu(
    session: Session,
    share: Tensor,
    shift: int,
    k: int,
    m: int,
    ring: int = 64,
    tables: int | None = None,
    whole: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute this party's shares mod 2^ring of relu(z) and of z = x / 2^shift, int64 (n,) each.

    share: its share of x mod 2^(k + shift), int64 (n,). |z| < 2^(k-1) - 2^m for the window [k:m), and k <= ring <= 64.
    tables: how many step tables, of at most 8 bits each, serve the window; None: as many as take fewest rounds.
    whole: whether the shares are of x mod 2^(ring + shift).
    Each of N parties rounds its own share, so z is within N/2 units of x / 2^shift, and right on average.
    Cost: `relu_price`: k + 2 bits and 2 rounds for one table.
    """
    count, tables = share.numel(), tables or step_tables.fewest_rounds(k - m)
    material = session.correlation(MaskedOpening(count, k, m, tables, ring, int(whole)))
    mine = kernels.mask_words(share, material.mask, shift, k)
    frames = [mine] + [theirs[0] for theirs in session.channel.exchange(mine).values()]
    opened, both = _compare(session, material, frames, count, k, m)
    (public,) = open_bits(session, both)
    own: tuple[Words, Words | None] = (_cut(share, shift), None) if whole else (material.mask, material.carry)
    words = material.choice, material.wrap, material.product
    return kernels.lift(opened, public, *own, *words, k, session.rank == 0)


def _cut(share: Tensor, shift: int) -> Tensor:
    return (share + (1 << shift >> 1)) >> shift if shift else share


def _compare(
    session: Session, material: MaskedShares, frames: list[Tensor], count: int, k: int, m: int
) -> tuple[Tensor, Tensor]:
    """Open the masked values and compare them with 0. Returns the opened words, and xor shares of two hidden bits.

    The bits are packed, uint8 (2, ceil(count/8)). The first is the ReLU's bit. The second tells, together with the
    opened word's top bit, whether the sum with the mask wraps. Random bits of the material hide both.
    material: dealt for this opening.
    frames: the messages of all parties.
    count: how many values.
    k, m: the window [k:m).
    """
    bits, (table, *more) = (material.choice_bits, material.wrap_bits), material.tables
    if not more:
        return kernels.compare_opened(frames, table, *bits, count, k, m, session.rank == 0)
    opened = kernels.open_words(frames, count, k)
    both = step_tables.compare(session, [opened], [plain(steps) for steps in material.tables], k, m)
    return opened, both[:, 0] ^ torch.stack([plain(share) for share in bits])


def relu_price(n: int, k: int, m: int, ring: int, parties: int, tables: int | None = None, whole: bool = False) -> Cost:
    """Return the price of `relu` on n values: k + 2 bits each, in 2 rounds for one table.

    k, m: the window [k:m).
    ring: how many bits the results have.
    tables: how many step tables serve the window; None: as many as take fewest rounds.
    whole: whether the shares are right in `ring` bits after the cut; then no carry is dealt.
    """
    price = thresholds.relus_price(n, k, m, ring, parties, tables)
    return replace(price, offline_bits=price.offline_bits - 8 * packed(n * (ring - k))) if whole else price


@dataclass(frozen=True)
class MaskedLaw(Law):
    """The law of "masked": it decides by d = r + u, where r = round(2^16 v) for a real value v, and u is random.

    u is uniform in [0, 2^m), for the window [k:m). The bit is 1 if S(d) >= 2^m, where S(d) is d reduced mod 2^k to a
    signed number. The lowest q bits of u, called e, are what the rounding of two shares adds; its other bits are low
    bits of the mask. The bit multiplies z = floor(r + e) + S(d) - d, where floor rounds down to a multiple of 2^q, and
    S(d) - d is 0 inside the window.
    """

    rounds_apart = False

    @property
    def draws(self) -> int:
        return 1 if self.m else 0

    @property
    def disturbances(self) -> int:
        return self.parties - 2 if self.q else 0

    @property
    def cut(self) -> Cut:
        half, least = 1 << (self.k - 1), 1 << self.m
        return Cut(self.k, self.m, self.draws, least, half - least, True, self.q)

    @property
    def range(self) -> tuple[float, float]:
        half, off = 1 << (self.k - 1), self.disturbances << self.q >> 1
        return (off - half) * UNIT, (half - off - self.slack - 1) * UNIT

    def decide(self, r: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        turns = self.turns(r + u)
        return r + u - turns >= 1 << self.m, self.rounded(r, u & ((1 << self.q) - 1)) - turns


class Masked(Comparison):
    """Comparison by an opening of k bits of the shares behind a mask (protocol="masked"), for a window [k:m).

    Every party first cuts the bits of fraction beyond 16, f of them, off its own share. This changes the sum of the
    shares by a rounding error and by multiples of 2^(64 - f), which vanish mod 2^k if k <= 64 - f; so no message is
    needed. A window's lowest q bits are cut in the same way. Then only k - q bits are opened, and for results of
    R bits numbers of R - q bits are dealt, as the results are multiplied by 2^q at the end.
    """

    name = "masked"
    least_width = 2
    takes_rounded_shares = True
    looks_up = True
    gives_squares = True
    gives_steps = True

    def k(self, scale: int) -> int:
        """Return the upper bound k of the opened bits: the window's k, or less if fewer bits of the shares are right.

        scale: bits of fraction of the input.
        """
        return min(self.window.k, self.valid - (scale - SCALE))

    @property
    def reads(self) -> int | None:
        return None if self.window.k == 64 else self.window.k - SCALE

    @property
    def reach(self) -> int:
        # A result is a number mod 2^k; of `whole` shares it may be larger, but then no layer relies on this bound.
        return self.window.k - SCALE - 1

    def needs(self, scale: int) -> int:
        return min(self.valid, (self.ring if self.whole else self.k(scale)) + scale - SCALE)

    def may_be_whole(self, scale: int) -> bool:
        tables = not self.drops and not self.in_one_round(scale)
        return tables and self.k(scale) < self.ring and self.ring + scale - SCALE <= self.valid

    def range(self, scale: int) -> int:
        return self.k(scale) - SCALE - 1

    def check(self, scale: int) -> None:
        if not self.drops and self.width(scale) < 2:
            left = self.valid - (scale - SCALE)
            what = f"window {self.window} leaves fewer than two of the {left} bits that are right here"
            hint = "choose k - m >= 2 and k - q >= 2, BitWindow(0, 0) for an identity, or protocol='gmw'"
            raise ConfigError(what, hint=hint)

    def law(self, scale: int, parties: int) -> MaskedLaw:
        return MaskedLaw(self.k(scale), self.window.low, parties, q=self.window.q, whole=self.whole)

    def width(self, scale: int) -> int:
        """Return how many bits of the opened value decide its sign: from the window's lowest bit to bit k - 1.

        scale: bits of fraction of the input.
        """
        return self.k(scale) - self.window.low

    def in_one_round(self, scale: int, knots: int = 1) -> bool:
        """Return whether the aim lets ReLUs of this window take one round (lines.py).

        `ring` must be set.
        scale: bits of fraction of the input.
        knots: with how many knots each value is compared.
        """
        return self.aim.in_one_round(lines.bits(*self._bits(scale, knots)))

    def at_once(self, scale: int, knots: int) -> int:
        one = self.in_one_round(scale, knots)
        return lines.most_at_once(self.width(scale)) if one else super().at_once(scale, knots)

    def breadth(self, n: int, scale: int, knots: int) -> int:
        # 2^w lines of two words, packed, beside a comparison's 2^8 bits and ten words.
        one = self._masked(n, scale, 2, knots).in_one_round(scale, knots)
        lined = n << max(0, self.width(scale) - 4) if one else 0
        return max(lined, super().breadth(n, scale, knots))

    def tables(self, scale: int, parties: int, knots: int = 1) -> int:
        """Return into how many step tables the aim divides the window, if each value is compared with `knots` knots.

        scale: bits of fraction of the input.
        """
        return self.aim.tables(self.width(scale), parties, knots)

    def variant(self, scale: int, parties: int, n: int) -> str:
        if self.drops:
            return "dropped"
        form = self._masked(n, scale, parties, 1)
        if form.in_one_round(scale):
            return f"lines {self.width(scale)}"
        tables = form.tables(scale, parties)
        return f"table {self.width(scale)}" if tables == 1 else f"tree of {tables}"

    def _masked(self, n: int, scale: int, parties: int, knots: int) -> Masked:
        """Return the form by which n values are compared with `knots` knots each."""
        form = self._form(n, scale, parties, knots, False)
        assert isinstance(form, Masked)
        return form

    def _bits(self, scale: int, knots: int = 1) -> tuple[int, int, int]:
        """Return three numbers of bits: how many are opened, how many of these do not decide, how many the result has.

        If the window drops its lowest q bits, all three count without them: the result is multiplied by 2^q in the end.
        scale: bits of fraction of the input.
        knots: with how many knots each value is compared. Results of several have no more bits than are read.
        """
        k, q = self.k(scale), self.window.q
        return k - q, self.window.low - q, max(1, (self.ring if knots > 1 else max(self.ring, k)) - q)

    def _run(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, value: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, shift, bits = self.window.q, scale - SCALE, self._bits(scale, len(knots))
        # Several knots are rounded to multiples of 2^q, since the opened words have no lower bits.
        near = [knot + (1 << q >> 1) >> q for knot in knots] if len(knots) > 1 else [0]
        moved = share - (knots[0] << shift) if len(knots) == 1 and knots[0] and session.rank == 0 else share
        z: Tensor | None
        if self.in_one_round(scale, len(knots)):
            y, z = lines.relus(session, moved, near, shift + q, *bits, value)
        elif len(knots) > 1:
            y, z = thresholds.relus(session, share, near, shift + q, *bits, self._tables(session, scale, knots))
        else:
            y, z = relu(session, moved, shift + q, *bits, self._tables(session, scale, knots), self.whole)
            y = y[None]
        return (y << q, z if z is None else z << q) if q else (y, z)

    def _tables(self, session: Session, scale: int, knots: Sequence[int]) -> int:
        return self.tables(scale, session.parties, len(knots))

    def _price(self, n: int, knots: int, scale: int, parties: int, value: bool) -> Cost:
        if self.in_one_round(scale, knots):
            return lines.relus_price(n, *self._bits(scale, knots), parties, value)
        how = *self._bits(scale, knots), parties, self.tables(scale, parties, knots)
        return relu_price(n, *how, self.whole) if knots == 1 else thresholds.relus_price(n, *how, knots)

    def steps(self, session: Session, share: Tensor, knots: Sequence[int], scale: int) -> tuple[Tensor, Tensor, Tensor]:
        q, flat = self.window.q, share.reshape(-1)
        near = [knot >> q for knot in knots]
        tables = self._tables_of_steps(flat.numel(), scale, session.parties, len(knots))
        how = scale - SCALE + q, self.k(scale) - q, self.window.low - q, self.ring - q, tables
        done = [thresholds.steps(session, part, near, *how) for part in flat.split(most_at_once(len(knots)))]
        bits, y, z = (torch.cat(parts, -1) for parts in zip(*done, strict=True))
        sizes = len(knots), *share.shape
        return bits.view(sizes), (y << q).view(sizes), (z << q).view(share.shape)

    def cost_of_steps(self, n: int, scale: int, parties: int, knots: int) -> Cost:
        q, tables = self.window.q, self._tables_of_steps(n, scale, parties, knots)
        how = self.k(scale) - q, self.window.low - q, self.ring - q, parties, tables, knots
        whole, rest = divmod(n, most_at_once(knots))
        parts = thresholds.relus_price(most_at_once(knots), *how) * whole
        return parts + thresholds.relus_price(rest, *how) if rest or not whole else parts

    def _tables_of_steps(self, n: int, scale: int, parties: int, knots: int) -> int:
        return self.fastest(n, parties, lambda form: form.cost_of_steps(n, scale, parties, knots)).aim.tables(
            self.width(scale), parties, knots
        )

    def squares(
        self, session: Session, share: Tensor, knots: Sequence[int], scale: int, fraction: int
    ) -> tuple[Tensor, Tensor]:
        k, m, tables = self._coarser(share.numel(), scale, session.parties, len(knots), fraction)
        flat, shift = share.reshape(-1).split(most_at_once(len(knots))), scale - fraction
        parts = [thresholds.squares(session, part, knots, shift, k, m, tables) for part in flat]
        y, squared = (torch.cat(part, -1).view(-1, *share.shape) for part in zip(*parts, strict=True))
        return y, squared

    def cost_of_squares(self, n: int, scale: int, parties: int, knots: int, fraction: int) -> Cost:
        k, m, tables = self._coarser(n, scale, parties, knots, fraction)
        most = most_at_once(knots)
        whole, rest = divmod(n, most)
        parts = thresholds.squares_price(most, k, m, parties, tables, knots) * whole
        return parts + thresholds.squares_price(rest, k, m, parties, tables, knots) if rest or not whole else parts

    def _coarser(self, n: int, scale: int, parties: int, knots: int, fraction: int) -> tuple[int, int, int]:
        """Return the window's bounds k and m, counted in units of 2^-fraction, and how many step tables serve it.

        The window is at least two bits wide.
        n: how many values are compared.
        scale: bits of fraction of the input.
        knots: how many comparisons of each value there are.
        """
        dropped = SCALE - fraction
        k = max(2, self.k(scale) - dropped)
        m = min(k - 2, max(0, self.window.low - dropped))
        form = self.fastest(n, parties, lambda form: form.cost_of_squares(n, scale, parties, knots, fraction))
        return k, m, form.aim.tables(k - m, parties, knots)
