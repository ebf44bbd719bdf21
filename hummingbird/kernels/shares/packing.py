"""Bits and words of ring elements, packed for messages, and `Words`: the forms in which kernels take words.

Bits are packed least significant first: element i is bit i % 8 of byte i // 8; the spare bits of the last byte are 0.
Words of `width` bits form one stream of bits, least significant first: element i is bits i * width to
(i + 1) * width - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.registry import best
from hummingbird.kernels.streams import Drawn

# Packing --------------------------------------------------------------------------------------------------------------


def bytes_of(bits: int) -> int:
    """Return the number of bytes that hold `bits` bits."""
    return (bits + 7) // 8


def to_planes(x: Tensor, low: int, count: int) -> Tensor:
    """Extract bits low .. low + count - 1 of every element of x into rows: row j has bit low + j of all elements.

    x: int64 (n,), ring elements. 0 <= low, 0 <= count, low + count <= 64. Returns uint8 (count, ceil(n/8)), packed.

        to_planes(torch.tensor([5, 2]), 0, 3).tolist() == [[0b01], [0b10], [0b01]]
    """
    check_tensor("kernels.to_planes(x)", x, torch.int64, x)
    check_range("kernels.to_planes(low)", low, 0, 64)
    check_range("kernels.to_planes(count)", count, 0, 64 - low)
    return best(to_planes, x)(x, low, count)


def from_bits(plane: Tensor, n: int) -> Tensor:
    """Unpack n packed bits to int64 numbers 0 and 1; the spare bits of the last byte are not read.

    plane: uint8 (ceil(n/8),), packed. Returns int64 (n,).

        from_bits(torch.tensor([0b101], dtype=torch.uint8), 3).tolist() == [1, 0, 1]
    """
    check_range("kernels.from_bits(n)", n, 0, 2**63 - 8)
    check_tensor("kernels.from_bits(plane)", plane, torch.uint8, plane, bytes_of(n))
    return best(from_bits, plane)(plane, n)


def from_planes(planes: Tensor, n: int) -> Tensor:
    """Put the bits of n numbers together: row j has bit j of all of them. Spare bits of a row are not read.

    planes: uint8 (K, ceil(n/8)), packed, of at most 64 rows. Returns int64 (n,).

        from_planes(torch.tensor([[0b01], [0b10], [0b01]], dtype=torch.uint8), 2).tolist() == [5, 2]
    """
    count = len(planes) if isinstance(planes, Tensor) and planes.dim() else 0
    check_range("kernels.from_planes(n)", n, 0, 2**63 - 8)
    check_range("kernels.from_planes(planes), rows", count, 0, 64)
    check_tensor("kernels.from_planes(planes)", planes, torch.uint8, planes, bytes_of(n), count)
    return best(from_planes, planes)(planes, n)


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
    """Unpack n words of `width` bits that `pack_words` packed: uint8 (ceil(n width / 8),) to int64 (n,), unsigned."""
    check_range("kernels.unpack_words(width)", width, 0, 64)
    check_range("kernels.unpack_words(n)", n, 0, 2**56)
    check_tensor("kernels.unpack_words(data)", data, torch.uint8, data, bytes_of(n * width))
    return best(unpack_words, data)(data, n, width)


# Words: operands as a tensor, or in a form from which a kernel computes the tensor as it reads it ---------------------
#
#     Tensor    int64, or int32 if only the low 32 bits or fewer are used
#     Drawn     a part of a key stream (kernels/streams.py), of either type
#     Packed    words of fewer bits: a correction in the form of the message, or a share as AES-128 draws it
#
# A kernel on a GPU computes the last two in registers; one on a CPU unpacks words as it reads them. `plain` converts
# them to tensors.


@dataclass(frozen=True)
class Packed:
    """Unsigned words of `width` bits, packed as `pack_words` packs them: one of the forms in which kernels take words.

    data: uint8 (ceil(n width / 8),) for n words. shape, dtype: of the tensor that `tensor` returns.
    """

    data: Tensor
    shape: tuple[int, ...]
    width: int
    dtype: torch.dtype = torch.int64

    @property
    def device(self) -> torch.device:
        """Return the device of the data."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the packed data."""
        return self.data.nbytes

    def to(self, device: torch.device) -> Packed:
        """Return the same words on another device."""
        return replace(self, data=self.data.to(device))

    def tensor(self) -> Tensor:
        """Unpack all words to a tensor."""
        return unpack_words(self.data, math.prod(self.shape), self.width).view(self.shape)


Words: TypeAlias = Tensor | Drawn | Packed


def stored(words: Words) -> Tensor | Packed:
    """Convert drawn words to stored ones; other words are returned unchanged.

    The result is a tensor, or `Packed` if the key stream holds packed words.
    """
    if not isinstance(words, Drawn):
        return words
    return words.tensor() if words.width is None else Packed(words.octets(), words.shape, words.width)


def plain(words: Words) -> Tensor:
    """Convert words, whether stored, packed or drawn, to a tensor of numbers."""
    found = stored(words)
    return found if isinstance(found, Tensor) else found.tensor()


def anchor(words: Words) -> Tensor:
    """Return the tensor whose device and layout decide which kernel runs (`registry.best`).

    It is the tensor that stores the words or, for drawn words, the key.
    """
    return words if isinstance(words, Tensor) else words.key if isinstance(words, Drawn) else words.data


def check_words(where: str, words: Words, like: Tensor, n: int, octets: bool = False) -> None:
    """Raise InputError unless `words` are n numbers, int64 or int32, on the device of `like`; with `octets`, n bytes.

    where: the argument's name.
    """
    dtypes = (torch.uint8,) if octets else (torch.int64, torch.int32)
    if not isinstance(words, Words):
        raise InputError(f"expected a tensor, got {type(words).__name__}", where=where, hint="pass a torch.Tensor")
    if words.dtype not in dtypes:
        hint = "packed bits are torch.uint8" if octets else "ring elements are torch.int64, or torch.int32"
        raise InputError(f"expected {' or '.join(map(str, dtypes))}, got {words.dtype}", where=where, hint=hint)
    if words.shape != (n,):
        hint = "flatten with .reshape(-1); n elements have ceil(n/8) packed bytes"
        raise InputError(f"expected shape {(n,)}, got {tuple(words.shape)}", where=where, hint=hint)
    if words.device != like.device:
        hint = "move all arguments to one device with .to()"
        raise InputError(f"expected device {like.device}, got {words.device}", where=where, hint=hint)
    if isinstance(words, Packed) and words.data.numel() != bytes_of(n * words.width):
        message = f"expected {bytes_of(n * words.width)} packed bytes, got {words.data.numel()}"
        raise InputError(message, where=where, hint=f"{n} words of {words.width} bits")
