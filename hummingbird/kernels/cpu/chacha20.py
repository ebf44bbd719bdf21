"""ChaCha20's key stream on a CPU, by OpenSSL."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from hummingbird.kernels import chacha20 as declared
from hummingbird.kernels.reference.aes128 import encrypted_zeros
from hummingbird.kernels.registry import implements


@implements(declared.chacha20, "cpu")
def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """See `chacha20.chacha20`."""
    start = first.to_bytes(4, "little") + bytes(12)  # the counter, and a nonce of zeros
    cipher = Cipher(algorithms.ChaCha20(key.numpy().tobytes(), start), None)
    return encrypted_zeros(cipher.encryptor(), 64 * blocks)
