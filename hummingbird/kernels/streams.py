"""Key streams of ChaCha20 and AES-128: random bytes on the device where the shares are.

A stream is cut into blocks of 64 bytes, which are independent: a device computes all of them at once, and a kernel that
reads few of them computes these alone (`Drawn`).

ChaCha20 (RFC 8439, section 2.3), on any device: a block is the state of four constants, eight words of key, a block
counter and three words of nonce, here zero, after twenty rounds of additions, xors and rotations on 32-bit words, plus
the state before them.
AES-128 in counter mode (FIPS 197; NIST SP 800-38A), on a CPU: block i holds the encryptions of 4 i, ..., 4 i + 3 as
big-endian numbers of 128 bits.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.devices import put
from hummingbird.kernels.registry import best

BLOCK_BYTES = 64
CHACHA20_KEY_BYTES, AES128_KEY_BYTES = 32, 16


def chacha20_key(key: bytes, device: torch.device) -> Tensor:
    """Convert a key of 32 bytes to a tensor on a device: int32 (8,). InputError for another size."""
    if len(key) != CHACHA20_KEY_BYTES:
        raise InputError(f"a key has {CHACHA20_KEY_BYTES} bytes, got {len(key)}", where="kernels.chacha20")
    return put(torch.tensor(struct.unpack("<8i", key), dtype=torch.int32), device)


def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """Compute blocks `first` to `first + blocks - 1`, 64 bytes each, of the key stream of ChaCha20: uint8 (64 *
    blocks,).

    The result is on the key's device. The nonce is 0. key: from `chacha20_key`. first + blocks <= 2^32, the end of the
    counter. InputError for anything else.
    """
    if key.shape != (CHACHA20_KEY_BYTES // 4,) or key.dtype != torch.int32:
        raise InputError(f"expected a key int32 (8,), got {key.dtype} {tuple(key.shape)}", where="kernels.chacha20")
    if not 0 <= first <= first + blocks <= 1 << 32:
        raise InputError("the key stream ends after 2^32 blocks, 256 GiB", where="kernels.chacha20")
    return best(chacha20, key)(key, first, blocks)


def aes128_key(key: bytes) -> Tensor:
    """Convert a key of 16 bytes to a tensor on the CPU: int32 (4,). InputError for another size."""
    if len(key) != AES128_KEY_BYTES:
        raise InputError(f"a key has {AES128_KEY_BYTES} bytes, got {len(key)}", where="kernels.aes128")
    return torch.tensor(struct.unpack("<4i", key), dtype=torch.int32)


def is_aes128(key: Tensor) -> bool:
    """Return whether a key is for AES-128 (from `aes128_key`); else it is for ChaCha20 (from `chacha20_key`)."""
    return len(key) == AES128_KEY_BYTES // 4


def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """Compute blocks `first` to `first + blocks - 1`, 64 bytes each, of the key stream of AES-128: uint8 (64 *
    blocks,).

    key: from `aes128_key`. first + blocks <= 2^56. InputError for anything else.
    """
    if key.shape != (AES128_KEY_BYTES // 4,) or key.dtype != torch.int32 or not key.is_cpu:
        raise InputError(f"expected a key int32 (4,), got {key.dtype} {tuple(key.shape)}", where="kernels.aes128")
    if not 0 <= first <= first + blocks <= 1 << 56:
        raise InputError("no such blocks of the key stream", where="kernels.aes128")
    return best(aes128, key)(key, first, blocks)


# Drawn tensors: parts of a key stream that kernels compute when they read them ----------------------------------------


def blocks_of(count: int) -> int:
    """Return the number of blocks, of 64 bytes each, that hold `count` bytes."""
    return -(-count // BLOCK_BYTES)


@dataclass(frozen=True)
class Drawn:
    """A tensor of random numbers that is not stored: it is a part of a key stream, and computed where it is read.

    Kernels on a GPU, and in C++ those of the dealer and `evaluate_opened`, compute it as they read it, and do not store
    it; other kernels store it first, as `octets` and `tensor` do.

    key: from `streams.chacha20_key` or `streams.aes128_key`. first: number of the block, of 64 bytes, with whose first
    byte the tensor begins.
    width: bits of a word, if the stream holds packed words; None: the stream holds full elements of `dtype`.
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
        """Compute the bytes of the key stream that are this tensor: uint8 (nbytes,)."""
        cipher = aes128 if is_aes128(self.key) else chacha20
        return cipher(self.key, self.first, blocks_of(self.nbytes))[: self.nbytes]

    def tensor(self) -> Tensor:
        """Compute the tensor, of type `dtype`; only if `width` is None, so that the stream holds full elements."""
        assert self.width is None
        return self.octets().view(self.dtype).view(self.shape)
