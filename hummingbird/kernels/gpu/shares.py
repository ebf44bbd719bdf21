"""Masked openings in Triton: a ReLU at a party in three launches, and a dealer's corrections in one.

kernels/shares/opening.py declares the operations. Kernels draw values of a seed in registers, from its ChaCha blocks,
and never store them; they unpack packed values there too. A program computes one tile, see tiles.py. This module also
imports the products and the polynomials: `registry` finds all operations on shares here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.devices import put
from hummingbird.kernels.gpu.polynomials import deal_polynomials, evaluate_opened
from hummingbird.kernels.gpu.products import conv2d, matmul
from hummingbird.kernels.gpu.sizes import sizes as tile_sizes
from hummingbird.kernels.gpu.tiles import (
    DRAWN,
    TENSOR,
    aligned,
    chacha_blocks,
    drawn_planes,
    gathered,
    grid,
    halves,
    keep_correction,
    keep_packed,
    keep_plane,
    low_bits,
    operand,
    packed_part,
    read,
    room,
    spread,
    tile,
    unpacked,
)
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import opening, packing
from hummingbird.kernels.shares.packing import Words, anchor, bytes_of, plain
from hummingbird.kernels.streams import Drawn

__all__ = [
    "compare_opened",
    "conv2d",
    "deal_masks",
    "deal_polynomials",
    "evaluate_opened",
    "lift",
    "mask_words",
    "matmul",
    "open_words",
    "unpack_words",
]

# A party's kernels ----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["first", "n"])
def _mask_words(
    share,
    mask,
    first,
    out,
    n,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
    MASK_WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    lane = tile(LANES)
    x = read(share, 0, lane, n, TENSOR, 64).to(tl.int64, bitcast=True)
    x = (x + (1 << SHIFT >> 1)) >> SHIFT
    keep_packed(out, lane, x.to(tl.uint64, bitcast=True) + read(mask, first, lane, n, FORM, MASK_WIDTH), n, WIDTH)


@triton.jit
def _sum(frames, n, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Compute this program's tile of opened words: the sum of all parties' words mod 2^WIDTH, uint64 (LANES, 16).

    frames: addresses of the parties' packed words. n: how many words there are.
    """
    total = tl.zeros((LANES, 16), tl.uint64)
    for party in tl.static_range(len(frames)):
        total += unpacked(frames[party], n, WIDTH, LANES)
    return total & low_bits(WIDTH)


@triton.jit(do_not_specialize=["n"])
def _open_words(frames, out, n, WIDTH: tl.constexpr, LANES: tl.constexpr):
    element = tile(LANES)[:, None] * 16 + tl.arange(0, 16)[None, :]
    word = _sum(frames, n, WIDTH, LANES)
    tl.store(out + element, word.to(tl.int64, bitcast=True), mask=element < n)


@triton.jit
def _drawn_bits(key, first, lane, v, other, C: tl.constexpr):
    """Read two entries, numbers `v` and `other`, of each element's step table of 2^C bits; returns them as two planes.

    The tables are a share that is drawn from the key stream of `key`, from block `first` on. lane: numbers of the
    tile's lanes. A plane has one bit of each element of a tile: 16 bits of each lane, in uint32 (gpu/tiles.py).
    """
    lanes: tl.constexpr = lane.shape[0]
    if C < 5:  # a word serves several elements, a block several lanes
        own: tl.constexpr = 1 << (C - 1)  # words of a lane
        here = tl.min(lane, axis=0) * own // 16 + tl.arange(0, lanes * own // 16)
        words = chacha_blocks(key, first + here).reshape(lanes, own, 1)
        words = tl.broadcast_to(words, (lanes, own, 16 // own)).reshape(lanes, 16)
        j = tl.arange(0, 16)[None, :]
        start = (j % (16 // own)) << C
        one = tl.sum((words >> (start + v).to(tl.uint32) & 1) << j.to(tl.uint32), axis=1)
        two = tl.sum((words >> (start + other).to(tl.uint32) & 1) << j.to(tl.uint32), axis=1)
    else:
        P: tl.constexpr = 1 << (C - 5)  # blocks of a lane, and words of an element
        E: tl.constexpr = 16 // P  # elements of a block
        one = (lane ^ lane).to(tl.uint32)
        two = one
        for p in range(P):
            words = chacha_blocks(key, first + lane * P + p).reshape(lanes, E, P)
            this = tl.arange(0, P)[None, :, None] == p
            at = tl.sum(tl.where(this, v.reshape(lanes, P, E), 0), axis=1)
            word = tl.arange(0, P)[None, None, :] == (at >> 5)[:, :, None]
            bit = tl.sum(tl.where(word, words, 0), axis=2) >> (at & 31).to(tl.uint32) & 1
            places = (p * E + tl.arange(0, E)[None, :]).to(tl.uint32)
            one |= tl.sum(bit << places, axis=1)
            at = tl.sum(tl.where(this, other.reshape(lanes, P, E), 0), axis=1)
            word = tl.arange(0, P)[None, None, :] == (at >> 5)[:, :, None]
            bit = tl.sum(tl.where(word, words, 0), axis=2) >> (at & 31).to(tl.uint32) & 1
            two |= tl.sum(bit << places, axis=1)
    return one, two


@triton.jit
def _stored_bits(table, element, v, inside, C: tl.constexpr):
    at = element * (1 << C) + v
    octet = tl.load(table + (at >> 3), mask=inside, other=0).to(tl.uint32)
    return gathered(octet >> (at & 7).to(tl.uint32) & 1)


@triton.jit(do_not_specialize=["table_first", "choice_first", "wrap_first", "n"])
def _compare_opened(
    frames,
    table,
    table_first,
    choice_bits,
    choice_first,
    wrap_bits,
    wrap_first,
    opened,
    out,
    n,
    K: tl.constexpr,
    M: tl.constexpr,
    FIRST: tl.constexpr,
    TABLE_FORM: tl.constexpr,
    BITS_FORM: tl.constexpr,
    LANES: tl.constexpr,
):
    lane = tile(LANES)
    element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = element < n
    total = tl.where(inside, _sum(frames, n, K, LANES), 0)
    tl.store(opened + element, total.to(tl.int64, bitcast=True), mask=inside)
    C: tl.constexpr = K - M
    v = (total >> M).to(tl.int32) & ((1 << C) - 1)
    before, flipped = tl.where(v > 0, v - 1, 0), v ^ (1 << (C - 1))
    if TABLE_FORM == DRAWN:
        less, wrap = _drawn_bits(table, table_first, lane, before, flipped, C)
    else:
        less = _stored_bits(table, element, before, inside, C)
        wrap = _stored_bits(table, element, flipped, inside, C)
    less = less & gathered((v > 0).to(tl.uint32))  # [L < 0] is 0
    wrap = wrap & gathered(inside.to(tl.uint32))  # spare bits are 0
    if FIRST:
        less = less ^ gathered(1 - (total >> (K - 1)).to(tl.uint32))  # [X < h]
    if BITS_FORM == DRAWN:
        r_b, r_s = drawn_planes(choice_bits, choice_first, wrap_first, lane)
    else:
        r_b, r_s = halves(choice_bits, lane, n), halves(wrap_bits, lane, n)
    keep_plane(out, lane, less ^ wrap ^ r_b, n)
    keep_plane(out + (n + 7) // 8, lane, wrap ^ r_s, n)


@triton.jit(do_not_specialize=["mask_first", "carry_first", "bit_first", "wrap_first", "product_first", "n"])
def _lift(
    opened,
    choice,
    mask,
    mask_first,
    carry,
    carry_first,
    bit,
    bit_first,
    wrap,
    wrap_first,
    product,
    product_first,
    y,
    z,
    n,
    K: tl.constexpr,
    FIRST: tl.constexpr,
    WHOLE: tl.constexpr,
    FORMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    LANES: tl.constexpr,
):
    lane = tile(LANES)
    e = read(opened, 0, lane, n, TENSOR, 64)
    c_b, c_s = spread(halves(choice, lane, n)), spread(halves(choice + (n + 7) // 8, lane, n))
    one: tl.constexpr = 1 if FIRST else 0
    below = 1 - (e >> (K - 1) & 1)  # [X < h]
    over = e ^ e
    if K < 64:
        r_s = read(wrap, wrap_first, lane, n, FORMS[3], WIDTHS[3])
        over = (below * one - tl.where(c_s != 0, one - r_s, r_s)) << K
    element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    own = read(mask, mask_first, lane, n, FORMS[0], WIDTHS[0])
    if WHOLE:  # `mask` is the share of z itself, which is not stored again
        own = e * one + over - own
    else:
        own = own & low_bits(K)
        if K < 64:
            own = own - (read(carry, carry_first, lane, n, FORMS[1], WIDTHS[1]) << K)
        tl.store(z + element, (e * one - own + over).to(tl.int64, bitcast=True), mask=element < n)
    r_b = read(bit, bit_first, lane, n, FORMS[2], WIDTHS[2])
    rest = e * tl.where(c_b != 0, one - r_b, r_b) + over * below
    r_lambda = read(product, product_first, lane, n, FORMS[4], WIDTHS[4])
    rest = rest - tl.where(c_b != 0, own - r_lambda, r_lambda)
    tl.store(y + element, rest.to(tl.int64, bitcast=True), mask=element < n)


# Launches ------------------------------------------------------------------------------------------------------------


def _contiguous(*tensors: Tensor) -> bool:
    return all([x.is_contiguous() for x in tensors])


@implements(opening.mask_words, "gpu", takes=_contiguous)
def mask_words(share: Tensor, mask: Words, shift: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.mask_words` in Triton: make a party's message for an opening under a mask."""
    n, size = share.numel(), tile_sizes("mask_words", share.device)
    out, (source, first, form, mask_width) = room(n, width, share.device), operand(mask)
    if out.numel():
        with torch.cuda.device_of(out):  # Triton starts kernels on the thread's device
            _mask_words[grid(n, size["LANES"])](
                *(share, source, first, out, n),
                **{"SHIFT": shift, "WIDTH": width, "FORM": form, "MASK_WIDTH": mask_width, **size},
            )
    return packed_part(out, n, width)


@implements(opening.open_words, "gpu", takes=_contiguous)
def open_words(frames: list[Tensor], n: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.open_words` in Triton: sum the messages of all parties."""
    device = frames[0].device
    out, size = torch.empty(n, dtype=torch.int64, device=device), tile_sizes("open_words", device)
    if n:
        with torch.cuda.device_of(out):  # Triton starts kernels on the thread's device
            _open_words[grid(n, size["LANES"])](tuple(map(aligned, frames)), out, n, WIDTH=width, **size)
    return out


@implements(packing.unpack_words, "gpu", takes=_contiguous)
def unpack_words(data: Tensor, n: int, width: int) -> Tensor:
    """Implement `kernels.shares.packing.unpack_words` in Triton, by `open_words` with the words of a single party."""
    return open_words([data], n, width)


@implements(opening.compare_opened, "gpu", takes=_contiguous)
def compare_opened(
    frames: list[Tensor], table: Words, choice_bits: Words, wrap_bits: Words, n: int, k: int, m: int, first: bool
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.compare_opened` in Triton: open masked values and compare them."""
    device = frames[0].device
    opened = torch.empty(n, dtype=torch.int64, device=device)
    out = torch.empty((2, bytes_of(n)), dtype=torch.uint8, device=device)
    (steps, steps_first, steps_form, _), size = operand(table), tile_sizes("compare_opened", device)
    (choice, choice_first, choice_form, _), (wrap, wrap_first, wrap_form, _) = operand(choice_bits), operand(wrap_bits)
    assert choice_form == wrap_form and anchor(choice_bits).dtype == anchor(wrap_bits).dtype
    if n:
        with torch.cuda.device_of(out):  # Triton starts kernels on the thread's device
            _compare_opened[grid(n, size["LANES"])](
                tuple(map(aligned, frames)),
                *(steps, steps_first, choice, choice_first, wrap, wrap_first, opened, out, n),
                **{"K": k, "M": m, "FIRST": first, "TABLE_FORM": steps_form, "BITS_FORM": choice_form, **size},
            )
    return opened, out


@implements(opening.lift, "gpu", takes=_contiguous)
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
    """Implement `kernels.shares.opening.lift` in Triton: compute shares mod 2^64 at the end of a ReLU."""
    y, size = torch.empty_like(opened), tile_sizes("lift", opened.device)
    z = torch.empty_like(opened) if carry is not None else plain(mask)
    operands = [operand(words) for words in (mask, mask if carry is None else carry, bit, wrap, product)]
    inputs: list[Any] = [part for source, first_block, _, _ in operands for part in (source, first_block)]
    forms, widths = (tuple(part) for part in list(zip(*operands, strict=True))[2:])
    if opened.numel():
        with torch.cuda.device_of(opened):  # Triton starts kernels on the thread's device
            _lift[grid(opened.numel(), size["LANES"])](
                *(opened, choice, *inputs, y, z, opened.numel()),
                **{"K": k, "FIRST": first, "WHOLE": carry is None, "FORMS": forms, "WIDTHS": widths, **size},
            )
    return y, z


# The dealer's kernel --------------------------------------------------------------------------------------------------
#
# The kernel draws all parties' masks and bits in registers and sums them; from the resulting values it subtracts the
# other parties' shares as it draws them, and packs the rest. Nothing but corrections is stored.


@triton.jit
def _others(keys, parties, block):
    """Compute the XOR of some blocks of the key streams of all parties but the receiver: (n, 16) uint32.

    keys: address of the streams' keys, the receiver's first. parties: how many parties. block: numbers of the n blocks.
    """
    words = tl.broadcast_to((block ^ block).to(tl.uint32)[:, None], (block.shape[0], 16))
    for party in range(1, parties):
        words ^= chacha_blocks(keys + 8 * party, block)
    return words


@triton.jit
def _steps(place, first):
    """Return 32 entries of each step table in one word: bit i is entry number first + i.

    An entry is 1 from number `place` on, and 0 before; `place` has a number for each table.
    """
    ahead = place - first
    full = tl.full((), 0xFFFFFFFF, tl.uint32)
    some = full << (ahead & 31).to(tl.uint32)
    return tl.where(ahead <= 0, full, tl.where(ahead >= 32, 0, some))


@triton.jit
def _table(place, keys, parties, first, lane, n, out, C: tl.constexpr):
    """Store one tile of the dealer's corrections for step tables of 2^C bits.

    An entry of a table is 1 from number `place` on, and 0 before. keys: of all parties' key streams, the receiver's
    first.
    first: number of the block in these streams where the shares of the tables begin. lane: numbers of the tile's lanes.
    n: elements in all tiles. out: int32, with memory for full lanes.
    """
    lanes: tl.constexpr = lane.shape[0]
    if C < 5:  # a word holds several tables, a block those of several lanes
        own: tl.constexpr = 1 << (C - 1)  # words of a lane
        size: tl.constexpr = 1 << C
        ones = ((1 << size) - 1 << place) & ((1 << size) - 1)
        inside = lane[:, None] * 16 + tl.arange(0, 16)[None, :] < n
        ones = tl.where(inside, ones, 0).to(tl.uint32)  # spare bits are the other parties' alone
        shift = (tl.arange(0, 16) % (16 // own) * size).to(tl.uint32)
        words = tl.sum((ones << shift[None, :]).reshape(lanes, own, 16 // own), axis=2)
        blocks: tl.constexpr = lanes * own // 16
        here = tl.min(lane, axis=0) * own // 16 + tl.arange(0, blocks)
        words = words.reshape(blocks, 16) ^ _others(keys, parties, first + here)
        word = here[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out + word, words.to(tl.int32, bitcast=True), mask=word // own * 16 < n)
    else:
        P: tl.constexpr = 1 << (C - 5)  # blocks of a lane, and words of an element
        E: tl.constexpr = 16 // P  # elements of a block
        for p in range(P):
            this = tl.arange(0, P)[None, :, None] == p
            here = tl.sum(tl.where(this, place.reshape(lanes, P, E), 0), axis=1)
            words = _steps(here[:, :, None], 32 * tl.arange(0, P)[None, None, :]).reshape(lanes, 16)
            block = lane * P + p
            words ^= _others(keys, parties, first + block)
            at = out + block[:, None] * 16 + tl.arange(0, 16)[None, :]
            tl.store(at, words.to(tl.int32, bitcast=True), mask=lane[:, None] * 16 < n)


@triton.jit(do_not_specialize=["parties", "n"])
def _deal_masks(
    keys,
    parties,
    firsts,
    outs,
    n,
    K: tl.constexpr,
    RING: tl.constexpr,
    WHOLE: tl.constexpr,
    SIZES: tl.constexpr,
    STARTS: tl.constexpr,
    LANES: tl.constexpr,
):
    lane = tile(LANES)
    mask_width: tl.constexpr = 32 if K <= 32 else 64
    mask, choices, wraps = tl.load(firsts + 0), tl.load(firsts + 1), tl.load(firsts + 2)
    total = read(keys, mask, lane, n, DRAWN, mask_width) & low_bits(K)
    r_b, r_s = drawn_planes(keys, choices, wraps, lane)
    for party in range(1, parties):
        key = keys + 8 * party
        total += read(key, mask, lane, n, DRAWN, mask_width) & low_bits(K)
        choice, wrap = drawn_planes(key, choices, wraps, lane)
        r_b, r_s = r_b ^ choice, r_s ^ wrap
    chosen, lambda_ = spread(r_b), total & low_bits(K)
    if K < RING:  # else no bit of the carry and the wrap is needed
        if not WHOLE:
            keep_correction(total >> K, keys, parties, tl.load(firsts + 3), lane, n, outs[0], RING - K)
        keep_correction(spread(r_s), keys, parties, tl.load(firsts + 5), lane, n, outs[2], RING - K)
    keep_correction(chosen, keys, parties, tl.load(firsts + 4), lane, n, outs[1], RING)
    keep_correction(chosen * lambda_, keys, parties, tl.load(firsts + 6), lane, n, outs[3], RING)
    for t in tl.static_range(len(SIZES)):
        place = (lambda_ >> STARTS[t]).to(tl.int32) & ((1 << SIZES[t]) - 1)
        _table(place, keys, parties, tl.load(firsts + 7 + t), lane, n, outs[4 + t], SIZES[t])


@implements(opening.deal_masks, "gpu")
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """Implement `kernels.shares.opening.deal_masks` in Triton: compute the dealer's corrections for openings."""
    keys = torch.stack([share.key for share in fields[0]])
    blocks = [shares[0].first if shares else 0 for shares in fields]  # none of other parties, if there are none
    widths = [*opening.widths(k, ring, whole), *[1 << c for c in sizes]]
    if whole:  # empty entries for the carry
        blocks.insert(3, 0)
        widths.insert(0, 0)
    rooms, size = [room(n, width, keys.device) for width in widths], tile_sizes("deal_masks", keys.device)
    starts = tuple(m + sum(sizes[:place]) for place in range(len(sizes)))
    if n:
        # In memory: for each new number among the arguments, even in a tuple, the kernel would be compiled again.
        firsts = put(torch.tensor(blocks), keys.device)
        outs = (*rooms[:4], *[steps.view(torch.int32) for steps in rooms[4:]])
        with torch.cuda.device_of(keys):  # Triton starts kernels on the thread's device
            _deal_masks[grid(n, size["LANES"])](
                *(keys, len(keys), firsts, outs, n),
                **{"K": k, "RING": ring, "WHOLE": whole, "SIZES": tuple(sizes), "STARTS": starts, **size},
            )
    found = [packed_part(part, n, width) for part, width in zip(rooms, widths, strict=True)]
    return found[1:] if whole else found
