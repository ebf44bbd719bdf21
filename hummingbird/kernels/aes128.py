"""AES-128's key stream in counter mode (FIPS 197; NIST SP 800-38A) on a CPU, in blocks of 64 bytes.

Four blocks of the cipher: the encryptions of 4 i, ..., 4 i + 3 as big-endian numbers of 128 bits. Blocks are
independent, so that a kernel that reads some of them computes these alone.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best

KEY_BYTES = 16


def key_words(key: bytes) -> Tensor:
    """Put a key of 16 bytes in a tensor: int32 (4,). InputError for another size."""
    if len(key) != KEY_BYTES:
        raise InputError(f"a key has {KEY_BYTES} bytes, got {len(key)}", where="kernels.aes128")
    return torch.tensor(struct.unpack("<4i", key), dtype=torch.int32)


def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """Compute blocks first .. first + blocks - 1 of the key stream: uint8 (64 * blocks,).

    key: of `key_words`. first + blocks <= 2^56. InputError for anything else.
    """
    if key.shape != (KEY_BYTES // 4,) or key.dtype != torch.int32 or not key.is_cpu:
        raise InputError(f"expected a key int32 (4,), got {key.dtype} {tuple(key.shape)}", where="kernels.aes128")
    if not 0 <= first <= first + blocks <= 1 << 56:
        raise InputError("no such blocks of the key stream", where="kernels.aes128")
    return best(aes128, key)(key, first, blocks)
