"""The source of randomness: known answers, independence of purposes, and streams that never jump or repeat."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hummingbird.errors import InputError
from hummingbird.prg import Stream, derive, new_seed

SEED = bytes(range(16))


def keystream(seed: bytes, count: int) -> bytes:
    """AES-128 of the counters 0, 1, 2, ... (big-endian), block by block: CTR mode written out."""
    encrypt = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    blocks = (count + 15) // 16
    return encrypt.update(b"".join(i.to_bytes(16, "big") for i in range(blocks)))[:count]


def test_known_answer_of_the_aes_standard() -> None:
    # AES-128 of the zero block, under the key of FIPS-197, appendix C.1 (OpenSSL's answer).
    assert bytes(Stream(SEED).bytes(16).tolist()).hex() == "c6a13b37878f5b826f4f8162a1c8d879"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 33])
def test_bytes_are_aes_in_counter_mode(count: int) -> None:
    out = Stream(SEED).bytes(count)
    assert out.dtype == torch.uint8 and out.shape == (count,)
    assert out.numpy().tobytes() == keystream(SEED, count)


def test_calls_of_any_size_continue_the_stream() -> None:
    sizes = [1, 15, 16, 3, 0, (1 << 20) + 5, 7, 1 << 20, 9]
    stream = Stream(SEED)
    pieces = b"".join(stream.bytes(size).numpy().tobytes() for size in sizes)
    assert pieces == keystream(SEED, sum(sizes))


def test_words_are_the_stream_read_as_little_endian_integers() -> None:
    words = Stream(SEED).words(3, 5)
    assert words.dtype == torch.int64 and words.shape == (3, 5)
    raw = keystream(SEED, 120)
    expected = [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, 120, 8)]
    assert words.flatten().tolist() == expected
    assert Stream(SEED).words().shape == () and Stream(SEED).words(0, 4).shape == (0, 4)


def test_bits_are_the_stream_lowest_first() -> None:
    bits = Stream(SEED).bits(3, 7)
    assert bits.dtype == torch.uint8 and bits.shape == (3, 7)
    raw = keystream(SEED, 3)
    assert bits.flatten().tolist() == [(raw[i // 8] >> (i % 8)) & 1 for i in range(21)]


def test_results_do_not_share_memory() -> None:
    stream = Stream(SEED)
    first = stream.words(4)
    copy = first.clone()
    stream.words(4).zero_()
    assert torch.equal(first, copy)


@pytest.mark.parametrize("label", ["bits", "words"])
def test_bits_are_balanced(label: str) -> None:
    """Each count is binomial(n, 1/2): within 5 sigma = 2.5 sqrt(n); one in 10^6 would leave it, and the seed is
    fixed.
    """
    count = 1 << 16
    if label == "bits":
        columns = Stream(derive(SEED, "balance")).bits(count, 8)
    else:
        words = Stream(derive(SEED, "balance")).words(count)
        columns = (words[:, None] >> torch.arange(64)) & 1
    ones = columns.long().sum(0)
    assert float((ones - count / 2).abs().max()) < 2.5 * math.sqrt(count)
    # Neighbours are independent: as many equal as different ones.
    equal = (columns[1:] == columns[:-1]).long().sum(0)
    assert float((equal - count / 2).abs().max()) < 2.5 * math.sqrt(count)


def test_same_seed_same_values_other_seed_others() -> None:
    assert torch.equal(Stream(SEED).words(100), Stream(SEED).words(100))
    other = bytes([SEED[0] ^ 1]) + SEED[1:]
    assert int((Stream(SEED).words(1000) == Stream(other).words(1000)).sum()) == 0


@pytest.mark.parametrize("length", [0, 1, 15, 17, 24, 32])
def test_seeds_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"16 bytes, got {length}"):
        Stream(bytes(length))


def test_derived_seeds_differ_for_all_labels() -> None:
    labels: list[tuple[str | int, ...]] = [
        (),
        ("",),
        ("", ""),
        ("a", "bc"),
        ("ab", "c"),
        ("abc",),
        ("abc", ""),
        ("", "abc"),
        ("a", "b", "c"),
        (1,),
        (1, 1),
        ("1",),
        (-1,),
        (256,),
        (0,),
        ("\x01\0\0\0\0\0\0\0",),
        ("\x01", "\0\0\0\0\0\0\0"),
        (0, 1),
        (2**63 - 1,),
        (-(2**63),),
        ("é",),
    ]
    seeds = [derive(SEED, *label) for label in labels]
    assert all(len(seed) == 16 for seed in seeds)
    assert len(set(seeds)) == len(labels)
    assert derive(SEED, "a", 3) == derive(SEED, "a", 3) != derive(bytes(16), "a", 3)
    assert SEED not in seeds


def test_derived_streams_are_unrelated() -> None:
    streams = [Stream(derive(SEED, "request", index, "and")).words(200) for index in range(20)]
    for a, b in itertools.combinations(streams, 2):
        assert int((a == b).sum()) == 0
        # The Hamming distance of 12,800 independent bits is within 5 sigma = 2.5 sqrt(12800) of a half.
        different = int((((a ^ b)[:, None] >> torch.arange(64)) & 1).sum())
        assert abs(different - 6400) < 2.5 * math.sqrt(12800) * 1.2  # 190 pairs: a little wider


def test_new_seeds_are_new() -> None:
    seeds = {new_seed() for _ in range(1000)}
    assert len(seeds) == 1000 and {len(seed) for seed in seeds} == {16}
