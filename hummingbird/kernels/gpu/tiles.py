"""Parts of the kernels of masked openings: tiles of `lanes` x 16 elements, as a ChaCha block has 16 words.

Element 16 lane + j of a field is word j of the lane's own block, so every block is drawn by one thread only; 16 words
of any width are a whole number of 16-bit halves of a packed stream; and 16 bits of a plane are one half.

Forms of an operand with one word for every element (`shares/packing.py`): TENSOR, in memory, int64 or int32; DRAWN,
by a key and the number of its first block; PACKED, with a width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.gpu.streams import double_round
from hummingbird.kernels.shares.packing import Packed, Words, bytes_of
from hummingbird.kernels.streams import Drawn

TENSOR, DRAWN, PACKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def tile(LANES: tl.constexpr):
    """Return the numbers of the lanes (groups of 16 elements) that this program computes: (LANES,) int64."""
    return tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)


@triton.jit
def rows(column):
    """Join 16 columns to a tile, (n, 16), each row in one thread. column: a tuple of the columns, (n,) each."""
    # Joined from the top bit of the column's number down: the last join interleaves neighbours.
    a = tl.join(tl.join(column[0], column[8]), tl.join(column[4], column[12]))
    b = tl.join(tl.join(column[1], column[9]), tl.join(column[5], column[13]))
    c = tl.join(tl.join(column[2], column[10]), tl.join(column[6], column[14]))
    d = tl.join(tl.join(column[3], column[11]), tl.join(column[7], column[15]))
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(column[0].shape[0], 16)


@triton.jit
def columns(row):
    """Split a tile, (n, 16), into a tuple of its 16 columns. row: the tile."""
    even, odd = tl.split(row.reshape(row.shape[0], 2, 2, 2, 2))
    e0, e2 = tl.split(even)
    e1, e3 = tl.split(odd)
    a, b = tl.split(e0)
    c, d = tl.split(e1)
    e, f = tl.split(e2)
    g, h = tl.split(e3)
    x0, x8 = tl.split(a)
    x4, x12 = tl.split(b)
    x1, x9 = tl.split(c)
    x5, x13 = tl.split(d)
    x2, x10 = tl.split(e)
    x6, x14 = tl.split(f)
    x3, x11 = tl.split(g)
    x7, x15 = tl.split(h)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def chacha_blocks(key, block):
    """Compute blocks of a ChaCha20 key stream: (n, 16) uint32, a row for each block, each row in one thread.

    key: address of its eight words. block: the numbers of the blocks, (n,) int64.
    """
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
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, x3 + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = x4 + k0, x5 + k1, x6 + k2, x7 + k3, x8 + k4, x9 + k5, x10 + k6, x11 + k7
    return rows((x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12 + counter, x13, x14, x15))


@triton.jit
def low_bits(WIDTH: tl.constexpr):
    """Return the number whose lowest WIDTH bits are set, uint64."""
    return tl.full((), (1 << WIDTH) - 1, tl.uint64)


@triton.jit
def _behind(data, size, BYTES: tl.constexpr):
    """Load the bytes of a stream that come after its last full word of BYTES bytes, as one number, uint64.

    data: the address of the stream. size: the stream's length in bytes.
    """
    rest = tl.full((), 0, tl.uint64)
    for byte in tl.static_range(BYTES - 1):
        found = tl.load(data + size // BYTES * BYTES + byte, mask=byte < size % BYTES, other=0)
        rest |= found.to(tl.uint64) << (8 * byte)
    return rest


@triton.jit
def _stream(data, n, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Load this program's tile of a stream of n packed words of WIDTH bits, without unpacking.

    data: the address of the stream. Returns a tuple of uint64 (LANES,): together they have the 16 WIDTH bits of each
    lane, the lowest first.
    """
    BYTES: tl.constexpr = 4 if WIDTH % 4 else 8
    kind: tl.constexpr = tl.uint32 if WIDTH % 4 else tl.uint64
    size: tl.constexpr = 2 * LANES * WIDTH // BYTES  # of the tile, in loads
    octets = (n.to(tl.int64) * WIDTH + 7) // 8
    start = tl.program_id(0).to(tl.int64) * size
    whole = tl.minimum(octets // BYTES - start, size).to(tl.int32)
    rest = tl.full((), 0, kind)
    if whole < size:  # in the last tile
        rest = _behind(data, octets, BYTES).to(kind)
    at = tl.arange(0, LANES) * (2 * WIDTH) // BYTES
    source = data.to(tl.pointer_type(kind)) + start + at
    words = ()
    for k in tl.static_range((2 * WIDTH + BYTES - 1) // BYTES):
        words = words + (tl.load(source + k, mask=at + k < whole, other=rest).to(tl.uint64),)  # type: ignore[assignment]
    if WIDTH % 4:
        odd = (tl.arange(0, LANES) % 2 * 16).to(tl.uint64)
        pairs = ()
        for k in tl.static_range(0, len(words), 2):
            pair = words[k]  # type: ignore[var-annotated]
            if k + 1 < len(words):
                pair |= words[k + 1] << 32  # type: ignore[assignment]
            if WIDTH % 2:  # every other lane begins in the middle of a load
                pair = pair >> odd
                if k + 2 < len(words):
                    pair |= words[k + 2] << 1 << (63 - odd)
            pairs = pairs + (pair,)  # type: ignore[assignment]
        words = pairs
    return words


@triton.jit
def unpacked(data, n, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Unpack this program's tile of a stream of n packed words of WIDTH bits: uint64 (LANES, 16), without sign.

    The values of elements after the last are undefined. data: address of the stream, a multiple of 8 bytes. A lane's
    bits begin at a multiple of 8 bytes if 4 divides WIDTH, else of 2. They are loaded 8 or 4 bytes at a time, each
    once. If each element loaded its own bytes, `lift` would have three times the loads and 1.4 times the instructions;
    if each loaded two or three words of 4 bytes, 1.25 times the instructions, and registers would be spilled.
    """
    if WIDTH == 0:
        word = tl.zeros((LANES, 16), tl.uint64)
    elif WIDTH == 64:
        element = tile(LANES)[:, None] * 16 + tl.arange(0, 16)[None, :]
        word = tl.load(data.to(tl.pointer_type(tl.uint64)) + element, mask=element < n, other=0)
    else:
        words = _stream(data, n, WIDTH, LANES)
        found = ()
        for j in tl.static_range(16):
            column = words[j * WIDTH // 64] >> (j * WIDTH % 64)
            if j * WIDTH % 64 + WIDTH > 64:
                column |= words[j * WIDTH // 64 + 1] << (64 - j * WIDTH % 64)
            found = found + (column & low_bits(WIDTH),)  # type: ignore[assignment]
        word = rows(found)
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
    """Read a tile of an operand as uint64 (lanes, 16), in whichever form the operand is.

    source: address of the operand's words, or of the key from which they are drawn. FORM: TENSOR, DRAWN or PACKED
    (module head). first: number of the first block of a drawn operand. lane: numbers of the tile's lanes. n: elements
    in all tiles. WIDTH: bits of a packed word; of a drawn word 32 or 64.
    """
    element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = element < n
    if FORM == TENSOR:
        word = tl.load(source + element, mask=inside, other=0).to(tl.int64).to(tl.uint64, bitcast=True)
    elif FORM == DRAWN:
        word = _drawn(source, first, lane, WIDTH)
    else:
        word = unpacked(source, n, WIDTH, lane.shape[0])
    return word


@triton.jit
def halves(data, lane, n):
    """Load a tile of packed bits: uint32 (lanes,), with the 16 bits of each lane.

    data: address of all packed bits. lane: numbers of the tile's lanes. n: how many bits there are in all.
    """
    byte = lane * 2
    size = (n + 7) // 8
    low = tl.load(data + byte, mask=byte < size, other=0).to(tl.uint32)
    high = tl.load(data + byte + 1, mask=byte + 1 < size, other=0).to(tl.uint32)
    return low | high << 8


@triton.jit
def spread(bits):
    """Spread the low 16 bits of each lane's word to the lane's elements: uint32 (lanes,) to uint64 (lanes, 16), each 0
    or 1.
    """
    return (bits[:, None] >> tl.arange(0, 16)[None, :].to(tl.uint32) & 1).to(tl.uint64)


@triton.jit
def gathered(bits):
    """Gather the bits of each lane in one word: uint32 (lanes, 16), each 0 or 1, to uint32 (lanes,).

    Bit j of a lane's word is the bit of the lane's element j.
    """
    return tl.sum(bits << tl.arange(0, 16)[None, :].to(tl.uint32), axis=1)


@triton.jit
def drawn_planes(key, first, second, lane):
    """Draw two planes of random bits for a tile, one from block `first` and one from block `second` of a key stream on.

    Each plane has one bit for each element of the tile: 16 bits of each lane, in uint32 (lanes,). key: address of the
    stream's key. lane: numbers of the tile's lanes; how many there are must be a multiple of 32.
    """
    lanes: tl.constexpr = lane.shape[0]
    blocks: tl.constexpr = lanes // 32
    here = tl.min(lane, axis=0) // 32 + tl.arange(0, blocks)
    # Both at once: a thread draws a second block while it would wait for the first.
    both = chacha_blocks(key, tl.join(first + here, second + here).reshape(2 * blocks))
    parts = tl.join(both & 0xFFFF, both >> 16)  # 32 of each block
    one, two = tl.split(parts.reshape(blocks, 2, 32).permute(0, 2, 1))
    return one.reshape(lanes), two.reshape(lanes)


@triton.jit
def keep_plane(out, lane, bits, n):
    """Store a tile of bits, packed.

    bits: uint32 (lanes,), with the 16 bits of each lane. out: memory for the bits of all tiles. lane: numbers of the
    tile's lanes. n: elements in all tiles.
    """
    byte = lane * 2
    size = (n + 7) // 8
    tl.store(out + byte, bits.to(tl.uint8), mask=byte < size)
    tl.store(out + byte + 1, (bits >> 8).to(tl.uint8), mask=byte + 1 < size)


@triton.jit
def keep_packed(out, lane, x, n, WIDTH: tl.constexpr):
    """Store the low WIDTH bits of each element of a tile, as packed words.

    x: the tile, uint64 (lanes, 16). out: int16, memory for the words of all tiles, filled up to full lanes. lane:
    numbers of the tile's lanes. n: elements in all tiles. The 16 WIDTH bits of a lane are stored in pieces of 64, 32 or
    16 bits: the largest that divides them.
    """
    if WIDTH > 0:
        BITS: tl.constexpr = 16 if WIDTH % 2 else 32 if WIDTH % 4 else 64
        kind: tl.constexpr = tl.uint16 if WIDTH % 2 else tl.uint32 if WIDTH % 4 else tl.uint64
        element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
        column = columns(tl.where(element < n, x, 0) & low_bits(WIDTH))  # spare bits are 0
        at, wanted = out.to(tl.pointer_type(kind)) + lane * (16 * WIDTH // BITS), lane * 16 < n
        for k in tl.static_range(16 * WIDTH // BITS):
            word = column[BITS * k // WIDTH] >> (BITS * k % WIDTH)
            for j in tl.static_range(BITS * k // WIDTH + 1, (BITS * (k + 1) - 1) // WIDTH + 1):
                word |= column[j] << (j * WIDTH - BITS * k)
            tl.store(at + k, word.to(kind), mask=wanted)


@triton.jit
def keep_correction(value, keys, parties, first, lane, n, out, WIDTH: tl.constexpr):
    """Store one tile of the dealer's corrections: values, less the shares that all parties but the receiver draw.

    value: the values, uint64 (lanes, 16). keys: of all parties' key streams, the receiver's first. first: number of the
    block in these streams where the shares begin. lane: numbers of the tile's lanes. n: elements in all tiles. out:
    memory for packed words. WIDTH: bits of a correction.
    """
    drawn: tl.constexpr = 32 if WIDTH <= 32 else 64
    for party in range(1, parties):
        value -= read(keys + 8 * party, first, lane, n, DRAWN, drawn)
    keep_packed(out, lane, value, n, WIDTH)


# Launches ------------------------------------------------------------------------------------------------------------


def operand(words: Words) -> tuple[Tensor, int, int, int]:
    """Return the arguments by which the kernel function `read` reads these words.

    They are the tensor of words or the key from which words are drawn, the number of the first block of drawn words,
    the form (stored, drawn or packed), and the bits of a word.
    """
    if isinstance(words, Drawn):
        return words.key, words.first, DRAWN.value, 8 * words.dtype.itemsize
    if isinstance(words, Packed):
        return aligned(words.data), 0, PACKED.value, words.width
    return words, 0, TENSOR.value, 64


def aligned(data: Tensor) -> Tensor:
    """Return packed data at an address that is a multiple of 8, as `unpacked` needs it: `data`
    itself, or a copy.
    """
    return data.clone() if data.data_ptr() % 8 else data


def grid(n: int, lanes: int) -> tuple[int]:
    """Return how many programs of a Triton kernel compute n elements, as a tuple, if each computes `lanes` x 16
    elements.
    """
    return (triton.cdiv(n, 16 * lanes),)


def room(n: int, width: int, device: torch.device) -> Tensor:
    """Allocate memory for n packed words of `width` bits, rounded up to a multiple of 16 words: int16.

    `packed_part` returns the part of it that has the n words.
    """
    return torch.empty(triton.cdiv(n, 16) * width, dtype=torch.int16, device=device)


def packed_part(room: Tensor, n: int, width: int) -> Tensor:
    """Return the first bytes of the memory `room`, in which n packed words are: uint8 (ceil(n width / 8),).

    room: from the function `room`.
    """
    return room.view(torch.uint8)[: bytes_of(n * width)]
