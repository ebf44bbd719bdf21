"""AES-128's key stream by OpenSSL; kernels/aes128.py describes it."""

from __future__ import annotations

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from hummingbird.kernels import aes128 as declared
from hummingbird.kernels.registry import implements

_PIECE = 1 << 20
_ZEROS = bytes(_PIECE)


@implements(declared.aes128, "reference")
def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """See `aes128.aes128`."""
    counter = modes.CTR((4 * first).to_bytes(16, "big"))
    return encrypted_zeros(Cipher(algorithms.AES(key.numpy().tobytes()), counter).encryptor(), 64 * blocks)


def encrypted_zeros(encrypt: CipherContext, size: int) -> Tensor:
    """The first bytes of a cipher's key stream, a multiple of 64 of them: uint8 (size,)."""
    out = torch.empty(size + 15, dtype=torch.uint8)  # update_into wants a block of slack
    view = out.numpy().data
    for start in range(0, size, _PIECE):
        end = min(start + _PIECE, size)
        encrypt.update_into(memoryview(_ZEROS)[: end - start], view[start : end + 15])
    return out[:size]
