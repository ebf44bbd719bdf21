"""Masked openings in plain torch, on any device: what the dealer and the parties compute locally.

kernels/shares/dealing.py and kernels/shares/opening.py have the equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.reference.shares.packing import (
    from_bits,
    logical_shift,
    low_bits,
    pack_bits,
    pack_words,
    unpack_words,
)
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import dealing, opening, packing
from hummingbird.kernels.shares.words import Words, plain

# The dealer ----------------------------------------------------------------------------------------------------------


@implements(dealing.deal_masks, "reference")
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """Implement `kernels.shares.dealing.deal_masks` in plain torch."""
    mask, *bits = ([plain(share) for share in shares] for shares in fields[:3])
    choice, wrap = (reduce(torch.bitwise_xor, shares) for shares in bits)
    values, out = dealing.mask_values(mask, choice, wrap, n, k, m, sizes, whole), []
    widths = dealing.widths(k, ring, whole)
    for value, shares, width in zip(values, fields[3:], widths, strict=False):
        out.append(packing.pack_words(reduce(torch.sub, [plain(share) for share in shares], value), width))
    for table, shares in zip(values[len(widths) :], fields[3 + len(widths) :], strict=True):
        out.append(reduce(torch.bitwise_xor, [plain(share) for share in shares], table))
    return out


# The parties ---------------------------------------------------------------------------------------------------------


@implements(opening.rescale, "reference")
def rescale(opened: Tensor, mask_high: Tensor, mask_low: Tensor, shift: int, first: bool, offset: int) -> Tensor:
    """Implement `kernels.shares.opening.rescale` in plain torch."""
    mask = torch.where(opened < 0, mask_high, mask_low)
    return logical_shift(opened, shift) - (offset >> shift) - mask if first else -mask


@implements(opening.select, "reference")
def select(
    opened: Tensor,
    choice: Tensor,
    bit: Tensor,
    mask_high: Tensor,
    mask_low: Tensor,
    bit_high: Tensor,
    bit_low: Tensor,
    shift: int,
    first: bool,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.select` in plain torch."""
    z = rescale(opened, mask_high, mask_low, shift, first, offset)
    value = logical_shift(opened, shift) - (offset >> shift)
    rz = value * bit - torch.where(opened < 0, bit_high, bit_low)
    return torch.where(from_bits(choice, opened.numel()).bool(), z - rz, rz), z


@implements(opening.mask_words, "reference")
def mask_words(share: Tensor, mask: Words, shift: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.mask_words` in plain torch."""
    return pack_words(((share + (1 << shift >> 1)) >> shift) + plain(mask), width)


@implements(opening.open_words, "reference")
def open_words(frames: list[Tensor], n: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.open_words` in plain torch."""
    total = unpack_words(frames[0], n, width)
    for frame in frames[1:]:
        total += unpack_words(frame, n, width)
    return total & low_bits(width)


@implements(opening.step_table, "reference")
def step_table(x: Tensor, bits: int) -> Tensor:
    """Implement `kernels.shares.opening.step_table` in plain torch."""
    step = x & low_bits(bits)
    if bits < 3:
        return pack_words(torch.full_like(step, -1) << step, 1 << bits)
    places = torch.arange(0, 1 << bits, 8, device=x.device)  # of every byte; ones begin 0 to 8 bits above it
    return ((0xFF << (step[:, None] - places).clamp(0, 8)) & 0xFF).to(torch.uint8).view(-1)


@implements(opening.lookup, "reference")
def lookup(opened: Tensor, table: Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    """Implement `kernels.shares.opening.lookup` in plain torch.

    With T the step table of L, and v bits low..low+bits-1 of an opened word, row 0 is [L < v] = T[v - 1], row 1
    [L <= v] = T[v]; rows 2 and 3 are the same for v with its top bit flipped.
    """
    v = (opened >> low) & low_bits(bits)
    start = torch.arange(opened.numel(), device=opened.device) << bits

    answers = []
    for row in rows:
        place = (v ^ (row // 2 << (bits - 1))) - (1 - row % 2)
        index = start + place.clamp(min=0)
        bit = (table[index >> 3] >> (index & 7).to(torch.uint8)) & (place >= 0).to(torch.uint8)
        answers.append(pack_bits(bit))
    return torch.stack(answers)


@implements(opening.compare_opened, "reference")
def compare_opened(
    frames: list[Tensor], table: Words, choice_bits: Words, wrap_bits: Words, n: int, k: int, m: int, first: bool
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.compare_opened` in plain torch, by `open_words` and `lookup`.

    The comparison's result is b = [L < X] xor s xor [X < h], in the letters of mpc/protocols/masked.py.
    """
    opened = opening.open_words(frames, n, k)
    less, wrap = opening.lookup(opened, plain(table), m, k - m, (0, 3))
    if first:
        less = less ^ ~packing.to_planes(opened, k - 1, 1)[0]  # [X < h]
    return opened, torch.stack((less ^ wrap ^ plain(choice_bits), wrap ^ plain(wrap_bits)))


@implements(opening.lift, "reference")
def lift(
    opened: Tensor,
    choice: Tensor,
    mask: Words,
    carry: Words | None,
    bit: Words,
    wrap: Words,
    product: Words,
    k: int,
    first: bool,
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.lift` in plain torch; mpc/protocols/masked.py has the equations."""
    n, low = opened.numel(), low_bits(k)
    bits = from_bits(choice[0], n), from_bits(choice[1], n)
    one = int(first)
    # Shares of the two bits and of the mask, less the masks' carry.
    b, s = (c * one + (1 - 2 * c) * plain(r) for c, r in zip(bits, (bit, wrap), strict=True))
    below = 1 - ((opened >> (k - 1)) & 1)  # [X < 2^(w-1)]
    over = (below * one - s) << k if k < 64 else 0
    lifted = opened * one + over
    if carry is None:
        own = lifted - plain(mask)
    else:
        own = (plain(mask).long() & low) - (plain(carry).long() << k if k < 64 else 0)
    z = lifted - own
    y = opened * b - bits[0] * own - (1 - 2 * bits[0]) * plain(product) + over * below
    return y, z
