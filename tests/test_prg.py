"""The source of randomness: known answers, independence of purposes, and streams that never jump or repeat."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hummingbird.errors import InputError
from hummingbird.kernels.shares.packing import plain
from hummingbird.kernels.streams import chacha20, chacha20_key
from hummingbird.prg import Stream, derive, new_seed
from tests.support.triton import interpret

SEED = bytes(range(16))
CPU = torch.device("cpu")


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


def test_packed_words_lie_without_gaps_in_whole_blocks() -> None:
    stream, raw = Stream(SEED), keystream(SEED, 3 * 64)
    left = [stream.leave(torch.int64, 3, 5, width=20), stream.leave(torch.int64, 1, width=7)]
    assert [(drawn.first, drawn.nbytes) for drawn in left] == [(0, 38), (1, 1)]
    assert [drawn.octets().numpy().tobytes() for drawn in left] == [raw[:38], raw[64:65]]
    numbers = int.from_bytes(raw[:38], "little")
    assert plain(left[0]).tolist() == [[numbers >> 20 * (5 * i + j) & 0xFFFFF for j in range(5)] for i in range(3)]
    assert stream.bytes(1).tolist() == [raw[128]]


SIZES = [1, 15, 64, 3, 0, 63, 65, (1 << 20) + 5, 7, 1 << 20, 9]


def whole_blocks(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes that calls of these sizes must give, each from a whole block of 64 bytes on."""
    ends = list(itertools.accumulate(-(-size // 64) * 64 for size in sizes))
    return [stream[start : start + size] for start, size in zip([0, *ends], sizes, strict=False)]


def test_every_call_begins_at_a_whole_block() -> None:
    stream = Stream(SEED)
    pieces = [stream.bytes(size).numpy().tobytes() for size in SIZES]
    assert pieces == whole_blocks(keystream(SEED, 4 << 20), SIZES)


def test_words_are_the_stream_read_as_little_endian_integers() -> None:
    words = Stream(SEED).words(3, 5)
    assert words.dtype == torch.int64 and words.shape == (3, 5)
    raw = keystream(SEED, 120)
    expected = [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, 120, 8)]
    assert words.flatten().tolist() == expected
    narrow = Stream(SEED).words(3, 5, dtype=torch.int32)
    assert narrow.dtype == torch.int32 and narrow.numpy().tobytes() == raw[:60]
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


@pytest.mark.parametrize("length", [0, 1, 15, 17, 24, 31, 33, 64])
def test_seeds_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"16 or 32 bytes, got {length}"):
        Stream(bytes(length))


# ChaCha20 -------------------------------------------------------------------------------------------------------------

LONG = bytes(range(32))


def chacha_keystream(key: bytes, count: int, first: int = 0) -> bytes:
    """The `cryptography` package's."""
    nonce = first.to_bytes(4, "little") + bytes(12)
    return Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(count))


# RFC 8439, appendix A.1, the vectors with a zero nonce: key, block counter, key stream.
RFC_8439 = [
    (
        bytes(32),
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]


@pytest.mark.parametrize(("key", "block", "expected"), RFC_8439)
def test_vectors_of_the_chacha20_standard(key: bytes, block: int, expected: str) -> None:
    assert bytes(chacha20(chacha20_key(key, CPU), block, 1).tolist()).hex() == expected
    assert chacha_keystream(key, 64, block).hex() == expected


@pytest.mark.parametrize(("first", "blocks"), [(0, 0), (0, 1), (0, 1000), (7, 3), ((1 << 32) - 2, 2)])
def test_any_blocks_are_those_of_another_implementation(first: int, blocks: int) -> None:
    assert bytes(chacha20(chacha20_key(LONG, CPU), first, blocks).tolist()) == chacha_keystream(
        LONG, 64 * blocks, first
    )


@pytest.mark.parametrize(("first", "blocks"), [((1 << 32) - 1, 2), (-1, 1)])
def test_what_chacha20_refuses(first: int, blocks: int) -> None:
    with pytest.raises(InputError, match="2\\^32 blocks"):
        chacha20(chacha20_key(LONG, CPU), first, blocks)
    with pytest.raises(InputError, match="32 bytes, got 16"):
        chacha20_key(bytes(16), CPU)
    with pytest.raises(InputError, match="int32 \\(8,\\), got"):
        chacha20(chacha20_key(LONG, CPU).long(), 0, 1)


@pytest.mark.slow
def test_triton_computes_the_same() -> None:
    interpret(
        "import torch\n"
        "from hummingbird.kernels.streams import chacha20_key\n"
        "from hummingbird.kernels.gpu import streams as gpu\n"
        "from hummingbird.kernels.reference import streams as reference\n"
        "key = chacha20_key(bytes(range(32)), torch.device('cpu'))\n"
        "for first, blocks in ((0, 0), (0, 1), (0, 128), (3, 129), (2**32 - 2, 2), (77, 400)):\n"
        "    expected = reference.chacha20(key, first, blocks)\n"
        "    assert torch.equal(gpu.chacha20(key, first, blocks), expected), (first, blocks)\n"
    )


def test_a_device_draws_what_a_cpu_draws_and_may_leave_it() -> None:
    """The meta device stands in for one, with a key of its own on the CPU."""
    here, there = Stream(LONG), Stream(LONG, "meta")
    assert there.on_device and not here.on_device and not Stream(SEED, "meta").on_device
    there._key, there.device = chacha20_key(LONG, CPU), CPU
    raw = whole_blocks(chacha_keystream(LONG, 4 << 20), SIZES)
    assert [stream.bytes(size).numpy().tobytes() for stream in (here, there) for size in SIZES] == raw * 2
    left, words = there.leave(torch.int32, 7, 5), here.words(7, 5, dtype=torch.int32)
    assert left.device == CPU and left.tensor().equal(words) and there.bits(9).equal(here.bits(9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_what_a_cpu_draws() -> None:
    here, there = Stream(LONG), Stream(LONG, "cuda")
    for size in (1, 63, 1000, 1 << 20):
        drawn = there.words(size)
        assert drawn.is_cuda and torch.equal(drawn.cpu(), here.words(size))
    short = Stream(SEED, "cuda").words(9)
    assert short.is_cuda and torch.equal(short.cpu(), Stream(SEED).words(9))


def test_derived_seeds_have_the_size_of_their_parent() -> None:
    assert len(derive(LONG, "a")) == 32 and len(derive(SEED, "a")) == 16 and len(derive(LONG, "a", size=16)) == 16
    assert len(new_seed(32)) == 32 and new_seed(32) != new_seed(32)
    assert derive(LONG, "a") != derive(LONG, "b") and derive(LONG, "a")[:16] != derive(LONG, "a", size=16)


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
