"""The only source of randomness for shares, masks and keys.

A seed is 128 bits from the operating system. A stream expands one seed with AES-128 in counter mode (a PRF in counter
mode is a PRG; the key is used for one stream only, so the counter starts at 0 and never repeats). Streams for
different purposes come from different keys: `derive(seed, "purpose", 3)` hashes the seed with labels, encoded without
ambiguity, by keyed BLAKE2b.
Never used here: torch's generators, which are Mersenne Twister (CPU) or Philox (CUDA), neither of them cryptographic.
"""

from __future__ import annotations

import hashlib
import secrets

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hummingbird.errors import InputError

SEED_BYTES = 16
_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)


def new_seed() -> bytes:
    """A fresh 128-bit seed from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


def derive(seed: bytes, *labels: str | int) -> bytes:
    """A 128-bit seed for one purpose, independent of every other purpose of the same parent.

    Labels are length-prefixed, so ("a", "bc") and ("ab", "c") differ.
    """
    if len(seed) < SEED_BYTES:
        raise InputError(f"a seed has at least {SEED_BYTES} bytes, got {len(seed)}", where="prg.derive")
    state = hashlib.blake2b(key=seed, digest_size=SEED_BYTES, person=b"hummingbird")
    for label in labels:
        data = label.to_bytes(8, "little", signed=True) if isinstance(label, int) else label.encode()
        state.update(bytes([isinstance(label, int)]) + len(data).to_bytes(8, "little") + data)
    return state.digest()


class Stream:
    """Uniform bits from one seed, read forward only: `Stream(seed).words(2, 3)`.

    Two streams of the same seed give the same values if and only if the same calls are made in the same order.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise InputError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}", where="prg.Stream")
        # A zero nonce is safe: the key belongs to this stream alone.
        self._encrypt = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> torch.Tensor:
        """`count` uniform bytes, uint8 (count,)."""
        out = torch.empty(count + 15, dtype=torch.uint8)  # update_into wants a block of slack
        view = out.numpy().data
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            self._encrypt.update_into(memoryview(_ZEROS)[:size], view[start : start + size + 15])
        return out[:count]

    def words(self, *shape: int) -> torch.Tensor:
        """Uniform elements of Z_2^64, int64 of the given shape."""
        count = torch.Size(shape).numel()
        return self.bytes(8 * count).view(torch.int64).view(shape)

    def bits(self, *shape: int) -> torch.Tensor:
        """Uniform bits, uint8 of zeros and ones of the given shape (one random byte in eight bits)."""
        count = torch.Size(shape).numel()
        packed = self.bytes((count + 7) // 8)
        return ((packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).view(-1)[:count].reshape(shape)
