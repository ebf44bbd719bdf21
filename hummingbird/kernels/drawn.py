"""Tensors that are parts of a key stream, computed where they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.streams import BLOCK_BYTES


def blocks_of(count: int) -> int:
    """How many blocks so many bytes begin."""
    return -(-count // BLOCK_BYTES)


@dataclass(frozen=True)
class Drawn:
    """A tensor that is a part of a key stream, from a whole block of 64 bytes on.

    Kernels that take one (`shares.opening`, `shares.dealing`) never store it; `octets` does. key: of
    `streams.chacha20_key` or `streams.aes128_key`. width: bits of a word in the stream, which then is packed; None: of
    whole elements.
    """

    key: Tensor = field(repr=False)
    first: int  # block
    shape: tuple[int, ...]
    dtype: torch.dtype
    width: int | None = None

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return self.key.device

    @property
    def nbytes(self) -> int:
        """Size in bytes of its part of the stream."""
        bits = 8 * self.dtype.itemsize if self.width is None else self.width
        return (bits * math.prod(self.shape) + 7) // 8

    def to(self, device: torch.device) -> Drawn:
        """The same on a device."""
        return replace(self, key=self.key.to(device))

    def octets(self) -> Tensor:
        """Compute all of it, as it lies in the stream: uint8 (nbytes,)."""
        cipher = streams.aes128 if streams.is_aes128(self.key) else streams.chacha20
        return cipher(self.key, self.first, blocks_of(self.nbytes))[: self.nbytes]

    def tensor(self) -> Tensor:
        """Compute all of it, of whole elements."""
        assert self.width is None
        return self.octets().view(self.dtype).view(self.shape)
