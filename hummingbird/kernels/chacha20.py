"""ChaCha20's key stream (RFC 8439, section 2.3) on any device: randomness where the shares are.

A block is 64 bytes: the state is four constants, eight words of key, a block counter and three words of nonce, here
zero; twenty rounds of additions, xors and rotations on 32-bit words, and the state added to the result. Blocks are
independent, so a device computes all of them at once. The torch version is the definition; Triton runs the same on a
GPU.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from hummingbird.errors import InputError

KEY_BYTES, BLOCK_BYTES = 32, 64
CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
# Quarter rounds on the columns, then on the diagonals, of the 4 x 4 state.
QUARTERS = (
    *((i, i + 4, i + 8, i + 12) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)


def chacha20(key: bytes, first: int, blocks: int, device: torch.device) -> Tensor:
    """Blocks first .. first + blocks - 1 of the key stream with a zero nonce, uint8 (64 * blocks,) on `device`.

    key: 32 bytes. first + blocks <= 2^32, the end of the counter. InputError for anything else.
    """
    if len(key) != KEY_BYTES:
        raise InputError(f"a key has {KEY_BYTES} bytes, got {len(key)}", where="kernels.chacha20")
    if not 0 <= first <= first + blocks <= 1 << 32:
        raise InputError("the key stream ends after 2^32 blocks, 256 GiB", where="kernels.chacha20")
    if device.type == "cuda":
        from hummingbird.kernels import triton  # where there is a GPU; elsewhere Triton may be missing

        return triton.chacha20(key, first, blocks, device)
    return reference_chacha20(key, first, blocks, device)


def reference_chacha20(key: bytes, first: int, blocks: int, device: torch.device) -> Tensor:
    """`chacha20` in plain torch: int32 additions wrap."""
    counter = torch.arange(first, first + blocks, device=device).to(torch.int32)  # keeps the low 32 bits
    fixed = [*CONSTANTS, *struct.unpack("<8i", key)]
    start = [torch.full_like(counter, word) for word in fixed] + [counter] + [torch.zeros_like(counter)] * 3
    return torch.stack(rounds(start, 20), dim=1).view(torch.uint8).view(-1)


def rounds(start: list[Tensor], count: int) -> list[Tensor]:
    """The block function: `count` rounds, an even number, of the state `start`, and the state added to the result.

    start: the 16 words of many states, int32 of one shape. Twenty rounds are ChaCha20, twelve ChaCha12.
    """
    x = list(start)

    def turn(into: int, add: int, mix: int, amount: int) -> None:
        x[into] = x[into] + x[add]
        word = x[mix] ^ x[into]
        x[mix] = (word << amount) | ((word >> (32 - amount)) & ((1 << amount) - 1))

    for _ in range(count // 2):
        for a, b, c, d in QUARTERS:
            turn(a, b, d, 16)
            turn(c, d, b, 12)
            turn(a, b, d, 8)
            turn(c, d, b, 7)
    return [end + begin for end, begin in zip(x, start, strict=True)]
