"""Tables of polynomials behind masks in Triton: a party's look-up in one launch, and a dealer's corrections in one.

kernels/shares/polynomials.py declares the operations. The look-up draws one ChaCha block for a coefficient that it
reads, or loads the few bytes that hold it. The dealer's kernel computes a tile of coefficients in float64, of which a
product and a sum are not fused, and subtracts the other parties' shares as it draws them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.devices import put
from hummingbird.kernels.gpu.sizes import sizes as tile_sizes
from hummingbird.kernels.gpu.tiles import (
    DRAWN,
    TENSOR,
    chacha_blocks,
    grid,
    keep_correction,
    low_bits,
    operand,
    packed_part,
    room,
    tile,
)
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import polynomials
from hummingbird.kernels.shares.packing import Words
from hummingbird.kernels.streams import Drawn

_MAGIC = tl.constexpr(6755399441055744.0)  # 1.5 2^52: adding it rounds to an integer below 2^51, ties to even


@triton.jit
def _chosen(source, first, row, inside, size, FORM: tl.constexpr, WIDTH: tl.constexpr):
    """Read one word of an operand for each element, in whichever form the operand is: uint64 (n,).

    source: address of the operand's words, or of the key from which they are drawn. first: number of the first block of
    a drawn operand. row: numbers of the words, (n,). inside: where there is a word. size: bytes of packed words. FORM,
    WIDTH: as for `tiles.read`.
    """
    if FORM == TENSOR:
        word = tl.load(source + row, mask=inside, other=0).to(tl.int64).to(tl.uint64, bitcast=True)
    elif FORM == DRAWN:
        if WIDTH == 32:
            words = chacha_blocks(source, first + (row >> 4))
            here = tl.arange(0, 16)[None, :] == (row & 15)[:, None]
            found = tl.sum(tl.where(here, words, 0), axis=1).to(tl.uint32)
            word = found.to(tl.int32, bitcast=True).to(tl.int64).to(tl.uint64, bitcast=True)  # with sign
        else:
            low, high = tl.split(chacha_blocks(source, first + (row >> 3)).reshape(row.shape[0], 8, 2))
            here = tl.arange(0, 8)[None, :] == (row & 7)[:, None]
            word = tl.sum(tl.where(here, low, 0), axis=1).to(tl.uint64)
            word |= tl.sum(tl.where(here, high, 0), axis=1).to(tl.uint64) << 32
    else:
        byte, skip = row * WIDTH >> 3, (row * WIDTH & 7).to(tl.uint64)
        word = (row ^ row).to(tl.uint64)
        for b in tl.static_range((WIDTH + 14) // 8):  # the word begins within the first one
            octet = tl.load(source + byte + b, mask=inside & (byte + b < size), other=0).to(tl.uint64)
            if b < 8:
                word |= octet << (8 * b) >> skip
            else:
                word |= octet << 1 << (63 - skip)
        word = word & low_bits(WIDTH)
    return word


@triton.jit(do_not_specialize=["n"])
def _evaluate_opened(
    opened,
    sources,
    firsts,
    out,
    n,
    M: tl.constexpr,
    W: tl.constexpr,
    SHIFT: tl.constexpr,
    FORMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    LANES: tl.constexpr,
):
    value = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = value < n
    word = tl.load(opened + value, mask=inside, other=0)
    row = (value << W) + (word >> M & ((1 << W) - 1))
    v = (word & ((1 << M) - 1)).to(tl.uint64)
    total = (row ^ row).to(tl.uint64)
    for place in tl.static_range(len(FORMS)):  # the highest power first
        size = ((n.to(tl.int64) << W) * WIDTHS[place] + 7) // 8
        found = _chosen(sources[place], tl.load(firsts + place), row, inside, size, FORMS[place], WIDTHS[place])
        total = total * v + (found << (place * M))
    result = (total + (1 << SHIFT >> 1)).to(tl.int64, bitcast=True) >> SHIFT
    tl.store(out + value, result, mask=inside)


@triton.jit
def _rounded(x):
    return (x + _MAGIC).to(tl.int64, bitcast=True) - tl.full((), _MAGIC, tl.float64).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["parties", "n"])
def _deal_polynomials(
    pieces,
    mask,
    keys,
    parties,
    firsts,
    outs,
    n,
    M: tl.constexpr,
    W: tl.constexpr,
    WIDTHS: tl.constexpr,
    LANES: tl.constexpr,
):
    lane = tile(LANES)
    element = lane[:, None] * 16 + tl.arange(0, 16)[None, :]
    lambda_ = tl.load(mask + (element >> W), mask=element < n, other=0)
    at = pieces + ((element - (lambda_ >> M)) & ((1 << W) - 1)) * 4
    low = (lambda_ & ((1 << M) - 1)).to(tl.float64) * (-1.0 / (1 << M))
    c0, c1, c2, c3 = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    c2 = c2 + c3 * low
    c1 = c1 + c2 * low
    moved = (c0 + c1 * low,)
    c2 = c2 + c3 * low
    moved = moved + (c1 + c2 * low, c2 + c3 * low, c3)  # type: ignore[assignment]
    for power in tl.static_range(len(WIDTHS)):
        value = _rounded(moved[power]).to(tl.uint64, bitcast=True)
        keep_correction(value, keys, parties, tl.load(firsts + power), lane, n, outs[power], WIDTHS[power])


# Launches ------------------------------------------------------------------------------------------------------------


@implements(polynomials.evaluate_opened, "gpu", takes=lambda *tensors: all([x.is_contiguous() for x in tensors]))
def evaluate_opened(opened: Tensor, coefficients: Sequence[Words], m: int, w: int, shift: int) -> Tensor:
    """Implement `kernels.shares.polynomials.evaluate_opened` in Triton: evaluate the selected polynomials."""
    out, n, size = torch.empty_like(opened), opened.numel(), tile_sizes("evaluate_opened", opened.device)
    sources, blocks, forms, widths = zip(*map(operand, reversed(coefficients)), strict=True)
    if n:
        firsts = put(torch.tensor(blocks), opened.device)
        with torch.cuda.device_of(out):  # Triton starts kernels on the thread's device
            _evaluate_opened[(triton.cdiv(n, size["LANES"]),)](
                *(opened, sources, firsts, out, n),
                **{"M": m, "W": w, "SHIFT": shift, "FORMS": forms, "WIDTHS": widths, **size},
            )
    return out


@implements(polynomials.deal_polynomials, "gpu")
def deal_polynomials(
    pieces: Tensor, mask: Tensor, shares: Sequence[Sequence[Drawn]], m: int, widths: Sequence[int]
) -> list[Tensor]:
    """Implement `kernels.shares.polynomials.deal_polynomials` in Triton: compute the dealer's corrections."""
    device, w = mask.device, len(pieces).bit_length() - 1
    n, size = mask.numel() << w, tile_sizes("deal_polynomials", device)
    rooms, others = [room(n, width, device) for width in widths], [share.key for share in shares[0]]
    if n:
        # Powers that the table lacks are zeros, which change no other coefficient.
        table = put(torch.nn.functional.pad(pieces.double(), (0, 4 - pieces.shape[1])), device)
        firsts = put(torch.tensor([of[0].first if of else 0 for of in shares]), device)
        keys = torch.stack([*others[:1], *others]) if others else firsts.int()  # the receiver's is not read
        with torch.cuda.device_of(mask):  # Triton starts kernels on the thread's device
            _deal_polynomials[grid(n, size["LANES"])](
                *(table, mask.contiguous(), keys, 1 + len(others), firsts, tuple(rooms), n),
                **{"M": m, "W": w, "WIDTHS": tuple(widths), "enable_fp_fusion": False, **size},
            )
    return [packed_part(part, n, width) for part, width in zip(rooms, widths, strict=True)]
