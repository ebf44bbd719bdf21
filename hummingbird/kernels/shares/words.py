"""Words: operands of kernels, as a tensor or in a form from which the kernel computes the tensor as it reads it.

    Tensor    int64, or int32 if only the low 32 bits or fewer are used
    Drawn     a part of a key stream (kernels/drawn.py), of either type
    Packed    words of fewer bits: a correction in the form of the message, or a share as AES-128 draws it

A kernel on a GPU computes the last two in registers; one on a CPU unpacks words as it reads them. `plain` converts
them to tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.shares.packing import bytes_of, unpack_words


@dataclass(frozen=True)
class Packed:
    """Unsigned words of `width` bits, packed as `pack_words` packs them: one of the forms in which kernels take words.

    data: uint8 (ceil(n width / 8),) for n words. shape, dtype: of the unpacked tensor.
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
    """Store words in memory: drawn words are computed, and stay packed if their key stream holds packed words."""
    if not isinstance(words, Drawn):
        return words
    return words.tensor() if words.width is None else Packed(words.octets(), words.shape, words.width)


def plain(words: Words) -> Tensor:
    """Return words, in whatever form they are, as a tensor."""
    found = stored(words)
    return found if isinstance(found, Tensor) else found.tensor()


def anchor(words: Words) -> Tensor:
    """Return the tensor by which `registry.best` chooses: the one that stores the words, or the key of drawn words."""
    return words if isinstance(words, Tensor) else words.key if isinstance(words, Drawn) else words.data


def check_words(where: str, words: Words, like: Tensor, n: int, octets: bool = False) -> None:
    """Raise InputError unless `words` are n words, int64 or int32, or n bytes if `octets`, on the device of `like`.

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
