"""ChaCha20's key stream (RFC 8439, section 2.3) on any device: randomness where the shares are.

A block is 64 bytes: the state is four constants, eight words of key, a block counter and three words of nonce, here
zero; twenty rounds of additions, xors and rotations on 32-bit words, and the state added to the result. Blocks are
independent, so a device computes all of them at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best_on

KEY_BYTES, BLOCK_BYTES = 32, 64


def chacha20(key: bytes, first: int, blocks: int, device: torch.device) -> Tensor:
    """Compute blocks first .. first + blocks - 1 of the key stream, zero nonce: uint8 (64 * blocks,) on `device`.

    key: 32 bytes. first + blocks <= 2^32, the end of the counter. InputError for anything else.
    """
    if len(key) != KEY_BYTES:
        raise InputError(f"a key has {KEY_BYTES} bytes, got {len(key)}", where="kernels.chacha20")
    if not 0 <= first <= first + blocks <= 1 << 32:
        raise InputError("the key stream ends after 2^32 blocks, 256 GiB", where="kernels.chacha20")
    return best_on(chacha20, device)(key, first, blocks, device)
