"""ChaCha20's key stream (RFC 8439, section 2.3) on any device: randomness where the shares are.

A block is 64 bytes: the state is four constants, eight words of key, a block counter and three words of nonce, here
zero; twenty rounds of additions, xors and rotations on 32-bit words, and the state added to the result. Blocks are
independent, so a device computes all of them at once, and a kernel that reads few of them computes these alone.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.devices import put
from hummingbird.kernels.registry import best

KEY_BYTES, BLOCK_BYTES = 32, 64


def key_words(key: bytes, device: torch.device) -> Tensor:
    """Put a key of 32 bytes on a device: int32 (8,). InputError for another size."""
    if len(key) != KEY_BYTES:
        raise InputError(f"a key has {KEY_BYTES} bytes, got {len(key)}", where="kernels.chacha20")
    return put(torch.tensor(struct.unpack("<8i", key), dtype=torch.int32), device)


def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """Compute blocks first .. first + blocks - 1 of the key stream, zero nonce: uint8 (64 * blocks,), where the key is.

    key: of `key_words`. first + blocks <= 2^32, the end of the counter. InputError for anything else.
    """
    if key.shape != (KEY_BYTES // 4,) or key.dtype != torch.int32:
        raise InputError(f"expected a key int32 (8,), got {key.dtype} {tuple(key.shape)}", where="kernels.chacha20")
    if not 0 <= first <= first + blocks <= 1 << 32:
        raise InputError("the key stream ends after 2^32 blocks, 256 GiB", where="kernels.chacha20")
    return best(chacha20, key)(key, first, blocks)
