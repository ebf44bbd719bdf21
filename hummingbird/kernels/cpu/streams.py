"""Key streams on a CPU: ChaCha20's by OpenSSL, AES-128's in C++ by the AES instructions (csrc/dealing.cpp)."""

from __future__ import annotations

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.cpu.library import aes, handle
from hummingbird.kernels.reference.streams import encrypted_zeros
from hummingbird.kernels.registry import implements


@implements(streams.chacha20, "cpu")
def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """Implement `kernels.streams.chacha20` by OpenSSL: compute blocks of a key stream."""
    start = first.to_bytes(4, "little") + bytes(12)  # the counter, and a nonce of zeros
    cipher = Cipher(algorithms.ChaCha20(key.numpy().tobytes(), start), None)
    return encrypted_zeros(cipher.encryptor(), 64 * blocks)


@implements(streams.aes128, "cpu", takes=lambda key: aes())
def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """Implement `kernels.streams.aes128` in C++: compute blocks of a key stream."""
    out = torch.empty(64 * blocks, dtype=torch.uint8)
    handle().hb_aes128(key.data_ptr(), first, blocks, out.data_ptr())
    return out
