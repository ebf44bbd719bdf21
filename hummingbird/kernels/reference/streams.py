"""Key streams in plain torch (ChaCha20) and by OpenSSL (AES-128); kernels/streams.py describes them."""

from __future__ import annotations

import struct

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.registry import implements

_PIECE = 1 << 20  # bytes that OpenSSL encrypts at once
_ZEROS = bytes(_PIECE)
CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
# Quarter rounds on the columns, then on the diagonals, of the 4 x 4 state.
QUARTERS = (
    *((i, i + 4, i + 8, i + 12) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)


@implements(streams.chacha20, "reference")
def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """Implement `kernels.streams.chacha20` in plain torch, whose int32 additions wrap as ChaCha's do."""
    counter = torch.arange(first, first + blocks, device=key.device).to(torch.int32)  # keeps the low 32 bits
    constants = [torch.full_like(counter, word) for word in CONSTANTS]
    start = [*constants, *key[:, None].expand(-1, blocks), counter, *[torch.zeros_like(counter)] * 3]
    return torch.stack(rounds(start, 20), dim=1).view(torch.uint8).view(-1)


def rounds(start: list[Tensor], count: int) -> list[Tensor]:
    """Apply ChaCha's block function to many states at once: `count` rounds, after which the states before them are
    added.

    start: the 16 words of the states, int32 of one shape. count: even; 20 for ChaCha20, 12 for ChaCha12. Returns the 16
    words of the results.
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


@implements(streams.aes128, "reference")
def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """Implement `kernels.streams.aes128` by OpenSSL: compute blocks of a key stream."""
    counter = modes.CTR((4 * first).to_bytes(16, "big"))
    return encrypted_zeros(Cipher(algorithms.AES(key.numpy().tobytes()), counter).encryptor(), 64 * blocks)


def encrypted_zeros(encrypt: CipherContext, size: int) -> Tensor:
    """Compute the first `size` bytes of a cipher's key stream, by encrypting zeros: uint8 (size,).

    encrypt: the cipher at its start. size: a multiple of 64.
    """
    out = torch.empty(size + 15, dtype=torch.uint8)  # update_into wants a block of slack
    view = out.numpy().data
    for start in range(0, size, _PIECE):
        end = min(start + _PIECE, size)
        encrypt.update_into(memoryview(_ZEROS)[: end - start], view[start : end + 15])
    return out[:size]
