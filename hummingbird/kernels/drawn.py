"""Drawn tensors: parts of a key stream that kernels compute when they read them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.streams import BLOCK_BYTES


def blocks_of(count: int) -> int:
    """Return the number of blocks, of 64 bytes each, that hold `count` bytes."""
    return -(-count // BLOCK_BYTES)


@dataclass(frozen=True)
class Drawn:
    """A tensor that is not stored, but a part of a key stream, and is computed where it is read.

    Kernels that take one (`shares.opening`) never store it; `octets` does.

    key: from `streams.chacha20_key` or `streams.aes128_key`. first: number of the block, of 64 bytes, with whose first
    byte the tensor begins.
    width: bits of a word, if the stream holds packed words; None: the stream holds whole elements of `dtype`.
    """

    key: Tensor = field(repr=False)
    first: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    width: int | None = None

    @property
    def device(self) -> torch.device:
        """Return the device on which the tensor is computed."""
        return self.key.device

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the tensor's part of the stream."""
        bits = 8 * self.dtype.itemsize if self.width is None else self.width
        return (bits * math.prod(self.shape) + 7) // 8

    def to(self, device: torch.device) -> Drawn:
        """Return the same drawn tensor, to be computed on another device."""
        return replace(self, key=self.key.to(device))

    def octets(self) -> Tensor:
        """Compute the tensor's part of the stream: uint8 (nbytes,)."""
        cipher = streams.aes128 if streams.is_aes128(self.key) else streams.chacha20
        return cipher(self.key, self.first, blocks_of(self.nbytes))[: self.nbytes]

    def tensor(self) -> Tensor:
        """Compute the tensor itself; only if the stream holds whole elements, not packed words."""
        assert self.width is None
        return self.octets().view(self.dtype).view(self.shape)
