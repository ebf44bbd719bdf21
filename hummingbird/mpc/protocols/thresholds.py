"""Several thresholds from one masked opening: relu(x - t) for J public numbers t, k + 2J bits in two rounds.

The parties open x^ = x + lambda mod 2^k once (masked.py). For every public t

    x^ - t = (x - t) + lambda  mod 2^k

is the opening of x - t under the same mask, and the equations of masked.py hold for it as they stand: one lambda, one
carry and one step table of its upper bits serve all J comparisons. Only what hides a comparison's two results is dealt
for each, r_b, r_s and r_b lambda: 3R - k bits for each t, and the table and R - k bits for all of them. t need be no
multiple of 2^m. A comparison is right where x - t lies in the window, |x - t| < 2^(k-1) - 2^m; which small values it
prunes is decided by the same low bits of lambda for all t.

*Squares.* With e = (x^ - t) - lambda and p = [X < h] (1 - s), relu(x - t) is b e + 2^k p, and p = 1 has b = 1, so that

    relu(x - t)^2 = b e^2 + 2^(k+1) p e + 2^(2k) p
    b e^2 = b (x^ - t)^2 - 2 (x^ - t) b lambda + b lambda^2         p e = [X < h] ((1 - s) (x^ - t) - lambda + s lambda)

is local too, from shares of lambda^2, r_b lambda^2 and r_s lambda: no product, no bit and no round more.

*What is seen*: x^ and, for each t, b xor r_b and s xor r_s. lambda is uniform, drawn for this value alone, and every
pair of bits r_b, r_s is uniform and independent of it and of the others: all that is seen is uniform and independent,
whatever x is. A table may be looked up at many public places because nothing of a look-up is opened: a place is a
function of x^ and t, what stands there is xor-shared, and it is opened behind a bit of its own.

Source: derived here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import cost, kernels
from hummingbird.kernels.shares.words import plain
from hummingbird.mpc.correlations.thresholds import MaskedThresholds, ThresholdShares
from hummingbird.mpc.protocols import step_tables
from hummingbird.mpc.protocols.boolean import open_bits
from hummingbird.mpc.session.session import Session


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
    """Shares mod 2^ring of relu(z - t) for every knot t, int64 (J, n), and of z - t_0, int64 (n,), z = x / 2^shift.

    share, shift, k, m, ring, tables: as for `masked.relu`. knots: J whole numbers; |z - t| < 2^(k-1) - 2^m for each.
    Cost: `cost.masked_relu` of J knots: k + 2J bits and 2 rounds for one table.
    """
    material, places, public = _compared(session, share, knots, shift, k, m, ring, tables, False)
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
    """Shares mod 2^64 of y = relu(z - t) and of y^2 for every knot t, int64 (J, n) each, z = x / 2^shift.

    As `relus`, for k < 64. Cost: `cost.masked_squares`: the bits and rounds of `relus`.
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
    """Share of (c xor r) v from those of v and of r v."""
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
    """The material, x^ - t mod 2^k for each knot, int64 (n,), and its public c_b and c_s, uint8 (J, 2, ceil(n/8))."""
    count, many = share.numel(), len(knots)
    tables = tables or cost.tables(k - m, many)
    material = session.correlation(MaskedThresholds(count, many, k, m, tables, ring, int(squared)))
    mine = kernels.mask_words(share, material.mask, shift, k)
    frames = [mine] + [theirs[0] for theirs in session.channel.exchange(mine).values()]
    opened, low = kernels.open_words(frames, count, k), (1 << k) - 1 if k < 64 else -1
    places = [(opened - knot) & low for knot in knots]
    both = step_tables.compare(session, places, [plain(steps) for steps in material.tables], k, m)
    (public,) = open_bits(session, (both.transpose(0, 1) ^ plain(material.bits)).contiguous())
    return material, places, public
