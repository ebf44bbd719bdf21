"""Several thresholds from one masked opening: relu(x - t) for J public numbers t, k + 2J bits in two rounds.

The parties open x^ = x + lambda mod 2^k once (masked.py). For every public t

    x^ - t = (x - t) + lambda  mod 2^k

is the opening of x - t under the same mask, and the equations of masked.py hold for it unchanged: one lambda, one carry
and one step table of its upper bits serve all J comparisons. Only the fields that hide a comparison's two results are
dealt for each t, r_b, r_s and r_b lambda: 3R - k bits. The table and the carry, of R - k bits, are dealt once. t need
not be a multiple of 2^m. A comparison is right if x - t is in the window, |x - t| < 2^(k-1) - 2^m. The same low bits of
lambda decide for every t which small values become 0.

*Squares.* With e = (x^ - t) - lambda and p = [X < h] (1 - s), relu(x - t) is b e + 2^k p. p = 1 implies b = 1, so that

    relu(x - t)^2 = b e^2 + 2^(k+1) p e + 2^(2k) p
    b e^2 = b (x^ - t)^2 - 2 (x^ - t) b lambda + b lambda^2         p e = [X < h] ((1 - s) (x^ - t) - lambda + s lambda)

is local too, from shares of lambda^2, r_b lambda^2 and r_s lambda: no private product, and no more bits or rounds.

*What the parties see*: x^ and, for each t, b xor r_b and s xor r_s. lambda is uniform and drawn for this value alone,
and every pair of bits r_b, r_s is uniform and independent of lambda and of the other pairs. So all that they see is
uniform and independent, whatever x is. A table may be looked up at many public indices because no look-up is opened by
itself: the index is a function of x^ and t, the entry is xor-shared, and the result is opened behind a bit of its own.

Source: derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.cost import Cost, packed
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.mpc.correlations.field import Field, Fields
from hummingbird.mpc.correlations.request import Request, number
from hummingbird.mpc.protocols import step_tables
from hummingbird.mpc.protocols.boolean import open_bits
from hummingbird.mpc.session.session import Session


class ThresholdShares(NamedTuple):
    """A party's shares for `count` masked openings whose values are each compared with J public numbers.

    A value's mask is called lambda; it is the sum mod 2^k of a summand of each party. r_b and r_s are random bits, for
    each value and number. They hide two bits of a comparison: the ReLU's bit, and one that tells with the top bit of
    the opened value whether the sum of value and mask wraps. All fields but `mask`, `bits` and `tables` are additive.
    mask: this party's summand of lambda in the low k bits, int32 or int64 (count,).
    bits: xor shares of r_b and r_s for each number, uint8 (J, 2, ceil(count/8)).
    carry: (sum of the parties' summands - lambda) / 2^k, (count,).
    choice, wrap: r_b and r_s as numbers, (J, count).
    product: r_b lambda, (J, count).
    tables: xor shares of the step tables, lowest bits first.
    square: lambda^2, (count,); None without squares.
    choice_square, wrap_product: r_b lambda^2 and r_s lambda, (J, count); None without squares.
    """

    mask: Words
    bits: Words
    carry: Words
    choice: Words
    wrap: Words
    product: Words
    tables: list[Words]
    square: Words | None = None
    choice_square: Words | None = None
    wrap_product: Words | None = None


@dataclass(frozen=True)
class MaskedThresholds(Request[ThresholdShares]):
    """Request for `count` masks by which values are opened in k bits, and compared with `knots` public numbers each.

    The window [k:m) is divided into `tables` step tables. Results are mod 2^ring, k <= ring <= 64.
    squares: 1 if squares of the ReLUs are computed, too, which takes k < ring; else 0.
    """

    kind = "masked_thresholds"
    count: int = number()
    knots: int = number(least=1)
    k: int = number(most=64)
    m: int = number(most=64)
    tables: int = number(most=64)
    ring: int = number(most=64)
    squares: int = number(most=1)

    def check(self) -> None:
        if not self.ring or (self.squares and self.k >= self.ring):
            raise ValueError(f"ring {self.ring} is 0, or has no bit beyond k {self.k} for squares")

    @property
    def sizes(self) -> list[int]:
        """How many bits of the window each step table covers, lowest bits first."""
        return step_tables.chunks(self.k - self.m, self.tables)

    @cached_property
    def free(self) -> Fields:
        mask = Field("ring", (self.count,), width=self.k, apart=True)
        return {"mask": mask, "bits": Field("packed", (self.knots, 2, packed(self.count)))}

    @cached_property
    def derived(self) -> Fields:
        beyond = max(0, self.ring - self.k)
        whole, high = (Field("ring", (self.knots, self.count), width=w) for w in (self.ring, beyond))
        carry = Field("ring", (self.count,), width=beyond)
        tables = {f"table_{place}": Field("packed", (packed(self.count << c),)) for place, c in enumerate(self.sizes)}
        relus = {"carry": carry, "choice": whole, "wrap": high, "product": whole, **tables}
        if not self.squares:
            return relus
        square = Field("ring", (self.count,), width=self.ring)
        product = Field("ring", (self.knots, self.count), width=self.ring - self.k - 1)  # used times 2^(k + 1)
        return {**relus, "square": square, "choice_square": whole, "wrap_product": product}

    def derive(self, mask: list[Tensor], bits: Tensor) -> dict[str, Tensor]:
        choice, wrap = bits.unbind(1)
        values = kernels.mask_values(mask, choice, wrap, self.count, self.k, self.m, self.sizes)
        relus = dict(zip(self.derived, values, strict=False))
        if not self.squares:
            return relus
        lambda_ = reduce(torch.add, [share.long() for share in mask]) & ((1 << self.k) - 1)
        square = lambda_ * lambda_  # mod 2^64
        products = {"choice_square": relus["choice"] * square, "wrap_product": relus["wrap"] * lambda_}
        return {**relus, "square": square, **products}

    def shares(self, **words: Words) -> ThresholdShares:
        tables = [words.pop(f"table_{place}") for place in range(self.tables)]
        return ThresholdShares(**words, tables=tables)


def relus(
    session: Session,
    share: Tensor,
    knots: Sequence[int],
    shift: int,
    k: int,
    m: int,
    ring: int = 64,
    tables: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute shares mod 2^ring of relu(z - t) for every public knot t, int64 (J, n), and of z less the first, (n,).

    z is x / 2^shift, for the value x that the parties share.
    share: this party's share of x mod 2^(k + shift), int64 (n,).
    knots: J integers t, with |z - t| < 2^(k-1) - 2^m for each, for the window [k:m).
    tables: how many step tables, of at most 8 bits each, serve the window; None: as many as take fewest rounds.
    Cost: `relus_price`: k + 2J bits and 2 rounds for one table.
    """
    material, places, public = _compared(session, share, knots, shift, k, m, ring, tables, False)
    return _lifted(session, material, places, public, k)


def steps(
    session: Session,
    share: Tensor,
    knots: Sequence[int],
    shift: int,
    k: int,
    m: int,
    ring: int = 64,
    tables: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute shares mod 2^ring of the bits [z >= t] as integers, (J, n), and of what `relus` computes.

    Arguments, cost and results are those of `relus`; the bits follow from the same material, so that nothing more is
    sent or dealt. All J bits of a value are decided by one random number: they fall from 1 to 0 as t grows.
    """
    material, places, public = _compared(session, share, knots, shift, k, m, ring, tables, False)
    hidden, first = zip(public, plain(material.choice), strict=True), int(session.rank == 0)
    bits = [_chosen(kernels.from_bits(row[0], share.numel()), first, r_b.long()) for row, r_b in hidden]
    return torch.stack(bits), *_lifted(session, material, places, public, k)


def _lifted(
    session: Session, material: ThresholdShares, places: Sequence[Tensor], public: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return shares of relu(z - t) for every knot t, and of z less the first; the rest is what `_compared` returned."""
    own = plain(material.mask), plain(material.carry)
    each = zip(places, public, *(plain(w) for w in (material.choice, material.wrap, material.product)), strict=True)
    lifted = [
        kernels.lift(place, bits, *own, choice, wrap, product, k, session.rank == 0)
        for place, bits, choice, wrap, product in each
    ]
    return torch.stack([y for y, _ in lifted]), lifted[0][1]


def squares(
    session: Session,
    share: Tensor,
    knots: Sequence[int],
    shift: int,
    k: int,
    m: int,
    tables: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute shares mod 2^64 of y = relu(z - t) and of y^2 for every public knot t, int64 (J, n) each.

    z is x / 2^shift, for the value x that the parties share.
    share: this party's share of x mod 2^(k + shift), int64 (n,).
    knots: J integers t, with |z - t| < 2^(k-1) - 2^m for each, for the window [k:m); k < 64.
    tables: how many step tables serve the window; None: as many as take fewest rounds.
    Cost: `squares_price`: the bits and rounds of `relus`.
    """
    material, places, public = _compared(session, share, knots, shift, k, m, 64, tables, True)
    first = int(session.rank == 0)
    assert material.square is not None and material.choice_square is not None and material.wrap_product is not None
    own = (plain(material.mask).long() & ((1 << k) - 1)) - (plain(material.carry).long() << k)
    square = plain(material.square)
    shared = material.choice, material.wrap, material.product, material.choice_square, material.wrap_product
    out = []
    for place, bits, *words in zip(places, public, *map(plain, shared), strict=True):
        r_b, r_s, r_b_own, r_b_square, r_s_own = (word.long() for word in words)
        c_b, c_s = (kernels.from_bits(row, share.numel()) for row in bits)
        b, b_own, b_square = (_chosen(c_b, *pair) for pair in ((first, r_b), (own, r_b_own), (square, r_b_square)))
        s, s_own = (_chosen(c_s, *pair) for pair in ((first, r_s), (own, r_s_own)))
        below = 1 - (place >> (k - 1))  # [X < h]
        p, p_e = below * (first - s), below * ((first - s) * place - own + s_own)
        relu = b * place - b_own + (p << k)
        far = p << 2 * k if 2 * k < 64 else 0
        out.append((relu, place * (b * place - 2 * b_own) + b_square + (p_e << (k + 1)) + far))
    y, y_squared = zip(*out, strict=True)
    return torch.stack(y), torch.stack(y_squared)


def _chosen(c: Tensor, value: Tensor | int, product: Tensor) -> Tensor:
    """Return a share of (c xor r) v, for public bits c and a secret bit r.

    c: the bits as 0 or 1.
    value: a share of v.
    product: a share of r v.
    """
    return c * value + (1 - 2 * c) * product


def _compared(
    session: Session,
    share: Tensor,
    knots: Sequence[int],
    shift: int,
    k: int,
    m: int,
    ring: int,
    tables: int | None,
    squared: bool,
) -> tuple[ThresholdShares, list[Tensor], Tensor]:
    """Open shares once, and compare the opened values with every knot: two rounds for one step table.

    Returns three things: the dealt material; for each of J knots the opened values less the knot, mod 2^k, int64 (n,);
    and the two bits of each comparison, opened behind random bits of the material, uint8 (J, 2, ceil(n/8)).
    share: this party's share of the values, int64 (n,); `shift` bits of fraction are cut off it.
    k, m: the window [k:m).
    ring: how many bits the results have.
    tables: how many step tables serve the window; None: as many as take fewest rounds.
    squared: whether the material has masks for squares.
    """
    count, many = share.numel(), len(knots)
    tables = tables or step_tables.fewest_rounds(k - m, many)
    material = session.correlation(MaskedThresholds(count, many, k, m, tables, ring, int(squared)))
    mine = kernels.mask_words(share, material.mask, shift, k)
    frames = [mine] + [theirs[0] for theirs in session.channel.exchange(mine).values()]
    opened, low = kernels.open_words(frames, count, k), (1 << k) - 1 if k < 64 else -1
    places = [(opened - knot) & low for knot in knots]
    both = step_tables.compare(session, places, [plain(steps) for steps in material.tables], k, m)
    (public,) = open_bits(session, (both.transpose(0, 1) ^ plain(material.bits)).contiguous())
    return material, places, public


def relus_price(n: int, k: int, m: int, ring: int, parties: int, tables: int | None = None, knots: int = 1) -> Cost:
    """Return the price of `relus` on n values and J knots: k + 2J bits for each value, in 2 rounds for one table.

    k, m: the window [k:m).
    ring: how many bits the results have.
    tables: how many step tables serve the window; None: as many as take fewest rounds.
    knots: J, the number of knots with which each value is compared.
    """
    tables = tables or step_tables.fewest_rounds(k - m, knots)
    beyond = max(0, ring - k)
    words = [beyond, *(knots * width for width in (ring, beyond, ring))]
    dealt = sum(packed(n * width) for width in words) + step_tables.dealt_bytes(n, k - m, tables)
    opened = cost.opening(parties, packed(n * k), 8 * dealt)
    compared = step_tables.price(8 * packed(n) * knots, tables, parties)
    return opened + compared + cost.opening(parties, 2 * knots * packed(n))


def squares_price(n: int, k: int, m: int, parties: int, tables: int | None = None, knots: int = 1) -> Cost:
    """Return the price of `squares` on n values: that of `relus` mod 2^64, and the bits dealt for the squares.

    The parties send no more than for `relus`.
    k, m: the window [k:m).
    tables: how many step tables serve the window; None: as many as take fewest rounds.
    knots: with how many knots each value is compared; each knot costs a comparison and a square for every value.
    """
    words = [64, *(knots * width for width in (64, 64 - k - 1))]
    dealt = Cost(offline_bits=8 * sum(packed(n * width) for width in words))
    return relus_price(n, k, m, 64, parties, tables, knots) + dealt
