"""Key streams: every version of AES-128 against the block cipher, with the counters written out."""

from __future__ import annotations

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hummingbird.errors import InputError
from hummingbird.kernels import streams
from hummingbird.kernels.reference import streams as reference

SEED, LONG = bytes(range(16)), bytes(range(32))


@pytest.mark.parametrize(("first", "blocks"), [(0, 0), (0, 1), (5, 100), ((1 << 30) - 1, 3), ((1 << 56) - 2, 2)])
def test_any_blocks_of_aes_are_the_definitions(isa: str, first: int, blocks: int) -> None:
    key = streams.aes128_key(SEED)
    assert streams.aes128(key, first, blocks).equal(reference.aes128(key, first, blocks))
    numbers = b"".join(i.to_bytes(16, "big") for i in range(4 * first, 4 * (first + blocks)))
    encrypt = Cipher(algorithms.AES(SEED), modes.ECB()).encryptor()
    assert streams.aes128(key, first, blocks).numpy().tobytes() == encrypt.update(numbers)


def test_what_aes_refuses() -> None:
    with pytest.raises(InputError, match="no such blocks"):
        streams.aes128(streams.aes128_key(SEED), 1 << 56, 1)
    with pytest.raises(InputError, match="16 bytes, got 32"):
        streams.aes128_key(LONG)
    with pytest.raises(InputError, match="int32 \\(4,\\), got"):
        streams.aes128(streams.chacha20_key(LONG, torch.device("cpu")), 0, 1)
