"""A dealer's corrections for masked openings in one launch, in Triton: kernels/shares/dealing.py has the equations.

The kernel draws all parties' masks and bits in registers and sums them; from the resulting values it subtracts the
other parties' shares as it draws them, and packs the rest. Nothing but corrections is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.devices import put
from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.gpu.sizes import sizes as tile_sizes
from hummingbird.kernels.gpu.tiles import (
    DRAWN,
    chacha_blocks,
    drawn_planes,
    grid,
    keep_packed,
    low_bits,
    packed_part,
    read,
    room,
    spread,
    tile,
)
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import dealing


@triton.jit
def _correct(value, keys, parties, first, lane, n, out, WIDTH: tl.constexpr):
    """Subtract the other parties' shares from a tile of values, and store the difference, the correction, packed.

    A tile is LANES lanes of 16 elements (gpu/tiles.py). first: number of the first block of the shares in the parties'
    key streams. WIDTH: bits of a correction.
    """
    drawn: tl.constexpr = 32 if WIDTH <= 32 else 64
    for party in range(1, parties):
        value -= read(keys + 8 * party, first, lane, n, DRAWN, drawn)
    keep_packed(out, lane, value, n, WIDTH)


@triton.jit
def _others(keys, parties, block):
    """Compute the XOR of the other parties' key streams at these blocks: (n, 16) uint32."""
    words = tl.broadcast_to((block ^ block).to(tl.uint32)[:, None], (block.shape[0], 16))
    for party in range(1, parties):
        words ^= chacha_blocks(keys + 8 * party, block)
    return words


@triton.jit
def _steps(place, first):
    """Compute 32 entries of step tables, from entry `first` on: ones from entry `place` on, zeros before."""
    ahead = place - first
    full = tl.full((), 0xFFFFFFFF, tl.uint32)
    some = full << (ahead & 31).to(tl.uint32)
    return tl.where(ahead <= 0, full, tl.where(ahead >= 32, 0, some))


@triton.jit
def _table(place, keys, parties, first, lane, n, out, C: tl.constexpr):
    """Store corrections of a tile's step tables of 2^C bits, whose ones begin at `place`.

    out: int32, with memory for whole lanes.
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
            _correct(total >> K, keys, parties, tl.load(firsts + 3), lane, n, outs[0], RING - K)
        _correct(spread(r_s), keys, parties, tl.load(firsts + 5), lane, n, outs[2], RING - K)
    _correct(chosen, keys, parties, tl.load(firsts + 4), lane, n, outs[1], RING)
    _correct(chosen * lambda_, keys, parties, tl.load(firsts + 6), lane, n, outs[3], RING)
    for t in tl.static_range(len(SIZES)):
        place = (lambda_ >> STARTS[t]).to(tl.int32) & ((1 << SIZES[t]) - 1)
        _table(place, keys, parties, tl.load(firsts + 7 + t), lane, n, outs[4 + t], SIZES[t])


@implements(dealing.deal_masks, "gpu")
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """Implement `kernels.shares.dealing.deal_masks` in Triton."""
    keys = torch.stack([share.key for share in fields[0]])
    blocks = [shares[0].first if shares else 0 for shares in fields]  # none of other parties, if there are none
    widths = [*dealing.widths(k, ring, whole), *[1 << c for c in sizes]]
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
