"""Packed bits and words in plain torch, on any device.

Arithmetic is that of Z_2^64: torch's int64 wraps around, and a logical shift is an arithmetic one with the copies of
the sign cleared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import packing


def logical_shift(x: Tensor, shift: int) -> Tensor:
    """Shift int64 x right as an unsigned number: zeros come in from the left, not copies of the sign."""
    return x if shift == 0 else (x >> shift) & ((1 << (64 - shift)) - 1)


def low_bits(width: int) -> int:
    """Return the number whose lowest `width` bits are set, as an int64."""
    return (1 << width) - 1 if width < 64 else -1


@implements(packing.pack_bits, "reference")
def pack_bits(bits: Tensor) -> Tensor:
    """Implement `kernels.shares.packing.pack_bits` in plain torch."""
    padded = torch.nn.functional.pad(bits & 1, (0, -bits.numel() % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


@implements(packing.to_planes, "reference")
def to_planes(x: Tensor, low: int, count: int) -> Tensor:
    """Implement `kernels.shares.packing.to_planes` in plain torch."""
    planes = torch.empty((count, (x.numel() + 7) // 8), dtype=torch.uint8, device=x.device)
    for j in range(count):
        planes[j] = pack_bits(((x >> (low + j)) & 1).to(torch.uint8))
    return planes


@implements(packing.from_bits, "reference")
def from_bits(plane: Tensor, n: int) -> Tensor:
    """Implement `kernels.shares.packing.from_bits` in plain torch."""
    weights = torch.arange(8, dtype=torch.uint8, device=plane.device)
    return ((plane[:, None] >> weights) & 1).view(-1)[:n].to(torch.int64)


@implements(packing.pack_words, "reference")
def pack_words(x: Tensor, width: int) -> Tensor:
    """Implement `kernels.shares.packing.pack_words` in plain torch."""
    n = x.numel()
    lanes = torch.nn.functional.pad(x & low_bits(width), (0, -n % 8)).view(-1, 8).t().contiguous()
    out = torch.zeros(width, lanes.shape[1], dtype=torch.uint8, device=x.device)
    for lane, byte, shift in _overlaps(width):
        piece = logical_shift(lanes[lane], shift) if shift >= 0 else lanes[lane] << -shift
        out[byte] |= (piece & 0xFF).to(torch.uint8)
    return out.t().reshape(-1)[: (n * width + 7) // 8]


@implements(packing.unpack_words, "reference")
def unpack_words(data: Tensor, n: int, width: int) -> Tensor:
    """Implement `kernels.shares.packing.unpack_words` in plain torch."""
    count = -(-n // 8)
    places = torch.nn.functional.pad(data, (0, count * width - data.numel())).view(count, width).t().contiguous()
    out = torch.zeros(8, count, dtype=torch.int64, device=data.device)
    for lane, byte, shift in _overlaps(width):
        piece = places[byte].to(torch.int64)
        out[lane] |= piece << shift if shift >= 0 else piece >> -shift
    return (out & low_bits(width)).t().reshape(-1)[:n]


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """List the triples (word, byte, shift) that unpack eight words from `width` bytes.

    Byte `byte` holds bits of word number `word` of the eight, from bit `shift` of this word on.
    """
    return [
        (lane, byte, 8 * byte - lane * width)
        for lane in range(8)
        for byte in range(lane * width // 8, (lane * width + width + 7) // 8)
    ]
