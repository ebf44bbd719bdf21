"""Bits and words of ring elements, packed for messages.

Bits are packed least significant first: element i is bit i % 8 of byte i // 8; the spare bits of the last byte are 0.
Words of `width` bits form one stream of bits, least significant first: element i is bits i * width to
(i + 1) * width - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.registry import best


def bytes_of(bits: int) -> int:
    """Return the number of bytes that hold `bits` bits."""
    return (bits + 7) // 8


def to_planes(x: Tensor, low: int, count: int) -> Tensor:
    """Extract bits low .. low + count - 1 of every element: row j holds bit low + j of all elements.

    x: int64 (n,), ring elements. 0 <= low, 0 <= count, low + count <= 64. Returns uint8 (count, ceil(n/8)), packed.

        to_planes(torch.tensor([5, 2]), 0, 3).tolist() == [[0b01], [0b10], [0b01]]
    """
    check_tensor("kernels.to_planes(x)", x, torch.int64, x)
    check_range("kernels.to_planes(low)", low, 0, 64)
    check_range("kernels.to_planes(count)", count, 0, 64 - low)
    return best(to_planes, x)(x, low, count)


def from_bits(plane: Tensor, n: int) -> Tensor:
    """Unpack bits to int64 numbers 0 and 1; the spare bits of the last byte are not read.

    plane: uint8 (ceil(n/8),), packed. Returns int64 (n,).

        from_bits(torch.tensor([0b101], dtype=torch.uint8), 3).tolist() == [1, 0, 1]
    """
    check_range("kernels.from_bits(n)", n, 0, 2**63 - 8)
    check_tensor("kernels.from_bits(plane)", plane, torch.uint8, plane, bytes_of(n))
    return best(from_bits, plane)(plane, n)


def pack_bits(bits: Tensor) -> Tensor:
    """Pack bits, eight to a byte; of each input byte, only bit 0 is read.

    bits: uint8 (n,), zeros and ones. Returns uint8 (ceil(n/8),), packed.

        pack_bits(torch.tensor([1, 0, 1], dtype=torch.uint8)).tolist() == [0b101]
    """
    check_tensor("kernels.pack_bits(bits)", bits, torch.uint8, bits)
    return best(pack_bits, bits)(bits)


def pack_words(x: Tensor, width: int) -> Tensor:
    """Pack the low `width` bits of every element into one stream of bits.

    x: int64 (n,). 0 <= width <= 64. Returns uint8 (ceil(n width / 8),).

        pack_words(torch.tensor([1, 2, 3]), 3).tolist() == [0b11_010_001, 0]
    """
    check_tensor("kernels.pack_words(x)", x, torch.int64, x)
    check_range("kernels.pack_words(width)", width, 0, 64)
    return best(pack_words, x)(x, width)


def unpack_words(data: Tensor, n: int, width: int) -> Tensor:
    """Unpack what `pack_words` packed, as unsigned numbers: uint8 (ceil(n width / 8),) to int64 (n,)."""
    check_range("kernels.unpack_words(width)", width, 0, 64)
    check_range("kernels.unpack_words(n)", n, 0, 2**56)
    check_tensor("kernels.unpack_words(data)", data, torch.uint8, data, bytes_of(n * width))
    return best(unpack_words, data)(data, n, width)
