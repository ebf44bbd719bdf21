"""Keywords' hash and positions: C++ against hashlib and Python, and what cuckoo hashing promises."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import keywords
from hummingbird.kernels.cpu import keywords as cpu
from hummingbird.kernels.cpu import library
from hummingbird.kernels.keywords import (
    SEGMENTS,
    find_keywords,
    first_position,
    hash_keywords,
    place_keywords,
    positions,
)
from hummingbird.kernels.reference import keywords as reference

SEED = bytes(range(16))
native = pytest.mark.skipif(not library.available(), reason="the C++ kernels are not built")


def joined(words: list[bytes]) -> tuple[Tensor, Tensor]:
    """Return keywords as the kernels take them."""
    ends = [*itertools.accumulate(map(len, words), initial=0)]
    return torch.frombuffer(bytearray(b"".join(words) or b"\0"), dtype=torch.uint8), torch.tensor(ends)


def many(count: int, seed: bytes = SEED) -> Tensor:
    return hash_keywords(*joined([b"%d" % number for number in range(count)]), seed)


@native
@pytest.mark.parametrize("threads", [1, 3])
def test_the_hash_is_that_of_hashlib(threads: int) -> None:
    """Every length around BLAKE2b's blocks of 128 bytes, the empty keyword, and long ones; any part of the data."""
    generator = np.random.default_rng(0)
    lengths = [*range(260), 383, 384, 385, 4096, 65536, 0]
    words = [generator.bytes(length) for length in lengths]
    data, offsets = joined([b"before", *words])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = cpu.hash_keywords(data, offsets[1:], SEED)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, reference.hash_keywords(data, offsets[1:], SEED))
    digests = [hashlib.blake2b(word, key=SEED, digest_size=16).digest() for word in words]
    assert got.numpy().tobytes() == b"".join(digests)


@native
@pytest.mark.parametrize(("count", "segment"), [(0, 1), (1, 1), (3, 1), (440, 167), (2640, 1000), (900, 301)])
def test_places_are_those_of_the_definition(count: int, segment: int) -> None:
    digests = many(count)
    tags, expected = (
        torch.zeros(SEGMENTS * segment, dtype=torch.int64),
        torch.zeros(SEGMENTS * segment, dtype=torch.int64),
    )
    results = cpu.place_keywords(digests, segment, tags, 500), reference.place_keywords(digests, segment, expected, 500)
    assert results[0] == results[1] and torch.equal(tags, expected)
    asked = torch.cat([digests, many(50, bytes(16))])
    found = cpu.find_keywords(asked, segment, tags)
    assert torch.equal(found, reference.find_keywords(asked, segment, tags))
    if results[0] == -1:
        assert len(found[:count].unique()) == count and bool((found[:count] >= 0).all()) and (found[count:] < 0).all()
        assert torch.equal(tags[found[:count]], digests[:, 1])


def test_a_table_takes_88_percent_and_refuses_96() -> None:
    for number in range(10):
        digests = many(30_000, number.to_bytes(16, "big"))
        for load, fits in ((0.88, True), (0.96, False)):
            segment = int(30_000 / load / SEGMENTS) + 1
            tags = torch.zeros(SEGMENTS * segment, dtype=torch.int64)
            assert place_keywords(digests, segment, tags) == (-1 if fits else -2)
            assert int((tags != 0).sum()) == 30_000 or not fits


def test_one_position_and_the_tag_give_the_others() -> None:
    """So a row can be moved without its keyword."""
    words = many(1000).numpy().view(np.uint64)
    for segment in (1, 7, 1000, 2**39 // 3):
        places = positions(words[:, 0], words[:, 1], segment)
        assert (places // segment == np.arange(SEGMENTS)).all() and places.shape == (1000, SEGMENTS)
        for part in range(SEGMENTS):
            again = positions(first_position(places[:, part], words[:, 1], segment), words[:, 1], segment)
            assert (again == places).all()


def test_positions_are_spread_evenly() -> None:
    """Chi-squared over 50 positions in each segment, and over the pairs of two segments' positions."""
    words = many(100_000).numpy().view(np.uint64)
    places = positions(words[:, 0], words[:, 1], 50) % 50
    for cells in (*places.T, places[:, 0] * 50 + places[:, 1], places[:, 1] * 50 + places[:, 2]):
        size = 50 if cells.max() < 50 else 2500
        counts = np.bincount(cells, minlength=size)
        chi = float(((counts - 100_000 / size) ** 2).sum() * size / 100_000)
        assert abs(chi - size) < 6 * (2 * size) ** 0.5


def test_a_keyword_that_is_there_is_named() -> None:
    digests = many(100)
    twice = torch.cat([digests, digests[40:41]])
    for segment in (50, 400):
        tags = torch.zeros(SEGMENTS * segment, dtype=torch.int64)
        assert place_keywords(twice, segment, tags) == 100
        assert place_keywords(digests[7:9], segment, tags) == 0


def test_what_does_not_fit_is_refused() -> None:
    data, offsets = joined([b"a", b"bc"])
    for bad in (
        torch.tensor([0, 2, 1]),
        torch.tensor([0, 9]),
        torch.tensor([-1, 2]),
        torch.empty(0, dtype=torch.int64),
    ):
        with pytest.raises(InputError, match="offsets do not fit"):
            hash_keywords(data, bad, SEED)
    with pytest.raises(InputError, match="expected data uint8"):
        hash_keywords(data, offsets.int(), SEED)
    digests = hash_keywords(data, offsets, SEED)
    for function in (place_keywords, find_keywords):
        with pytest.raises(InputError, match="of 3 segments of 5"):
            function(digests, 5, torch.zeros(14, dtype=torch.int64))
        with pytest.raises(InputError, match="expected digests"):
            function(digests[:, :1], 5, torch.zeros(15, dtype=torch.int64))
    assert keywords.SEGMENTS == 3
