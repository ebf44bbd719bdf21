"""Parts of the masked opening's kernels: a tile of `lanes` x 16 elements, as many as a ChaCha block has words.

Element 16 lane + j of a field is word j of the lane's own block, so a thread draws what it needs and nobody else does;
16 words of any width are whole 16-bit halves of a packed stream; and 16 bits of a plane are one half.

Forms of an operand that has a word for every element (`shares/words.py`): a tensor in memory, int64 or int32; drawn,
from a key and the number of its first block; packed, of a width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.gpu.chacha20 import double_round
from hummingbird.kernels.shares.packing import bytes_of

TENSOR, DRAWN, PACKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def tile(LANES: tl.constexpr):
    """The numbers of a program's lanes."""
    return tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)


@triton.jit
def chacha_blocks(key, block):
    """Blocks of a key stream by number, (n,) int64: (n, 16) uint32, every row in one thread."""
    zero = (block ^ block).to(tl.uint32)
    counter = block.to(tl.uint32)
    k0, k1 = zero + tl.load(key + 0).to(tl.uint32, bitcast=True), zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2, k3 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True), zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4, k5 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True), zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6, k7 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True), zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = counter, zero, zero, zero
    for _ in range(10):
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = double_round(
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15
        )
    # Joined from the number's top bit down: the last join tells neighbours apart.
    a = tl.join(tl.join(x0 + 0x61707865, x8 + k4), tl.join(x4 + k0, x12 + counter))
    b = tl.join(tl.join(x1 + 0x3320646E, x9 + k5), tl.join(x5 + k1, x13))
    c = tl.join(tl.join(x2 + 0x79622D32, x10 + k6), tl.join(x6 + k2, x14))
    d = tl.join(tl.join(x3 + 0x6B206574, x11 + k7), tl.join(x7 + k3, x15))
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(block.shape[0], 16)


@triton.jit
def _bytes(data, bit, wanted, SPAN: tl.constexpr):
    """The 64 bits of a stream that begin at `bit`, of which SPAN at most are looked at."""
    at = data + (bit >> 3)
    skip = (bit & 7).to(tl.uint64)
    word = (bit ^ bit).to(tl.uint64)
    for place in tl.static_range(min(8, (SPAN + 14) // 8)):
        # The last words of a stream end before the bytes that their span could touch.
        word |= tl.load(at + place, mask=wanted & (skip + SPAN > 8 * place), other=0).to(tl.uint64) << (8 * place)
    word = word >> skip
    if SPAN > 57:  # a ninth byte
        ninth = tl.load(at + 8, mask=wanted & (skip + SPAN > 64), other=0).to(tl.uint64)
        word |= ninth << 1 << (63 - skip)
    return word


@triton.jit
def low_bits(WIDTH: tl.constexpr):
    """A constant with the lowest bits set, uint64."""
    return tl.full((), (1 << WIDTH) - 1, tl.uint64)


@triton.jit
def unpacked(data, element, inside, WIDTH: tl.constexpr):
    """Words of WIDTH bits without sign, uint64, of a packed stream."""
    if WIDTH == 0:
        word = (element ^ element).to(tl.uint64)
    else:
        word = _bytes(data, element * WIDTH, inside, WIDTH) & low_bits(WIDTH)
    return word


@triton.jit
def _drawn(key, first, lane, WIDTH: tl.constexpr):
    lanes: tl.constexpr = lane.shape[0]
    if WIDTH == 32:
        words = chacha_blocks(key, first + lane).to(tl.int32, bitcast=True).to(tl.int64)  # with sign
        wide = words.to(tl.uint64, bitcast=True)
    else:
        block = (lane[:, None] * 2 + tl.arange(0, 2)[None, :]).reshape(2 * lanes)
        low, high = tl.split(chacha_blocks(key, first + block).reshape(2 * lanes, 8, 2))
        wide = (low.to(tl.uint64) | high.to(tl.uint64) << 32).reshape(lanes, 16)
    return wide


@triton.jit
def read(source, first, lane, n, FORM: tl.constexpr, WIDTH: tl.constexpr):
    """A tile of an operand, uint64 (lanes, 16). WIDTH: of a packed word; of a drawn one 32 or 64."""
    element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = element < n
    if FORM == TENSOR:
        word = tl.load(source + element, mask=inside, other=0).to(tl.int64).to(tl.uint64, bitcast=True)
    elif FORM == DRAWN:
        word = _drawn(source, first, lane, WIDTH)
    else:
        word = unpacked(source, element, inside, WIDTH)
    return word


@triton.jit
def halves(data, lane, n):
    """A tile of n packed bits in memory: 16 bits a lane in uint32."""
    byte = lane * 2
    size = (n + 7) // 8
    low = tl.load(data + byte, mask=byte < size, other=0).to(tl.uint32)
    high = tl.load(data + byte + 1, mask=byte + 1 < size, other=0).to(tl.uint32)
    return low | high << 8


@triton.jit
def spread(bits):
    """The low 16 bits of each lane, apart: uint32 (lanes,) to uint64 (lanes, 16)."""
    return (bits[:, None] >> tl.arange(0, 16)[None, :].to(tl.uint32) & 1).to(tl.uint64)


@triton.jit
def gathered(bits):
    """One bit, 0 or 1, of each of a lane's elements, uint32 (lanes, 16), as 16 bits in uint32 (lanes,)."""
    return tl.sum(bits << tl.arange(0, 16)[None, :].to(tl.uint32), axis=1)


@triton.jit
def drawn_planes(key, first, second, lane):
    """Tiles of two drawn planes, by their first blocks: 16 bits a lane in uint32 each. Lanes: a multiple of 32."""
    lanes: tl.constexpr = lane.shape[0]
    blocks: tl.constexpr = lanes // 32
    here = tl.min(lane, axis=0) // 32 + tl.arange(0, blocks)
    # Both at once, as a thread that draws one block draws two in no more time than it waits.
    both = chacha_blocks(key, tl.join(first + here, second + here).reshape(2 * blocks))
    parts = tl.join(both & 0xFFFF, both >> 16)  # 32 of each block
    one, two = tl.split(parts.reshape(blocks, 2, 32).permute(0, 2, 1))
    return one.reshape(lanes), two.reshape(lanes)


@triton.jit
def keep_plane(out, lane, bits, n):
    """Store a plane of packed bits, of which each lane has 16 in uint32."""
    byte = lane * 2
    size = (n + 7) // 8
    tl.store(out + byte, bits.to(tl.uint8), mask=byte < size)
    tl.store(out + byte + 1, (bits >> 8).to(tl.uint8), mask=byte + 1 < size)


@triton.jit
def _append(filling, x, out, wanted, AT: tl.constexpr, WIDTH: tl.constexpr):
    """Put WIDTH <= 32 bits behind those of a lane that fill a half at bit AT of its stream; store each full half."""
    filling |= x << (AT % 16)
    for half in tl.static_range(AT // 16, (AT + WIDTH) // 16):
        tl.store(out + half, filling.to(tl.uint16), mask=wanted)
        filling = filling >> 16
    return filling


@triton.jit
def _append_word(filling, x, out, wanted, J: tl.constexpr, WIDTH: tl.constexpr):
    x &= low_bits(WIDTH)
    if WIDTH <= 32:
        filling = _append(filling, x, out, wanted, J * WIDTH, WIDTH)
    else:
        filling = _append(filling, x & 0xFFFFFFFF, out, wanted, J * WIDTH, 32)
        filling = _append(filling, x >> 32, out, wanted, J * WIDTH + 32, WIDTH - 32)
    return filling


@triton.jit
def keep_packed(out, lane, x, n, WIDTH: tl.constexpr):
    """Store the low WIDTH bits of a tile, uint64 (lanes, 16), as one stream: `out` int16, with room for whole lanes."""
    if WIDTH > 0:
        element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
        x = tl.where(element < n, x, 0)  # spare bits are 0
        at, wanted = out + lane * WIDTH, lane * 16 < n
        even, odd = tl.split(x.reshape(lane.shape[0], 2, 2, 2, 2))
        e0, e2 = tl.split(even)
        e1, e3 = tl.split(odd)
        e00, e04 = tl.split(e0)
        e01, e05 = tl.split(e1)
        e02, e06 = tl.split(e2)
        e03, e07 = tl.split(e3)
        x0, x8 = tl.split(e00)
        x1, x9 = tl.split(e01)
        x2, x10 = tl.split(e02)
        x3, x11 = tl.split(e03)
        x4, x12 = tl.split(e04)
        x5, x13 = tl.split(e05)
        x6, x14 = tl.split(e06)
        x7, x15 = tl.split(e07)
        f = x0 ^ x0
        f = _append_word(f, x0, at, wanted, 0, WIDTH)
        f = _append_word(f, x1, at, wanted, 1, WIDTH)
        f = _append_word(f, x2, at, wanted, 2, WIDTH)
        f = _append_word(f, x3, at, wanted, 3, WIDTH)
        f = _append_word(f, x4, at, wanted, 4, WIDTH)
        f = _append_word(f, x5, at, wanted, 5, WIDTH)
        f = _append_word(f, x6, at, wanted, 6, WIDTH)
        f = _append_word(f, x7, at, wanted, 7, WIDTH)
        f = _append_word(f, x8, at, wanted, 8, WIDTH)
        f = _append_word(f, x9, at, wanted, 9, WIDTH)
        f = _append_word(f, x10, at, wanted, 10, WIDTH)
        f = _append_word(f, x11, at, wanted, 11, WIDTH)
        f = _append_word(f, x12, at, wanted, 12, WIDTH)
        f = _append_word(f, x13, at, wanted, 13, WIDTH)
        f = _append_word(f, x14, at, wanted, 14, WIDTH)
        _append_word(f, x15, at, wanted, 15, WIDTH)


# What launches kernels ------------------------------------------------------------------------------------------------


def grid(n: int, lanes: int) -> tuple[int]:
    """As many programs as n elements take."""
    return (triton.cdiv(n, 16 * lanes),)


def room(n: int, width: int, device: torch.device) -> Tensor:
    """Memory for n packed words and what a last lane stores behind them: int16; `packed_part` is theirs."""
    return torch.empty(triton.cdiv(n, 16) * width, dtype=torch.int16, device=device)


def packed_part(room: Tensor, n: int, width: int) -> Tensor:
    """The n packed words in a `room`, uint8 (ceil(n width / 8),)."""
    return room.view(torch.uint8)[: bytes_of(n * width)]
