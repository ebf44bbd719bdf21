"""Sampling and packing of polynomials: their definitions in Python's integers, distributions, refused bytes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts import (
    ETA,
    Ring,
    compose,
    largest_primes,
    noise,
    pack,
    packed_bytes,
    ternary,
    uniform,
    unpack,
    wide,
)
from hummingbird.kernels.ciphertexts.ring import centred
from hummingbird.kernels.cpu import library
from hummingbird.prg import Stream, derive
from tests.kernels.ciphertexts.test_polynomials import low_prime, ring_of, stream

# ---- sampling


def words(source: Stream, count: int) -> list[int]:
    return [w & (1 << 26) - 1 for w in source.bytes(4 * count).view(torch.int32).tolist()]


def slow_uniform(ring: Ring, source: Stream, n: int) -> list[int]:
    size = n * len(ring.primes) * ring.degree
    moduli = [ring.primes[i // ring.degree % len(ring.primes)] for i in range(size)]
    out, places = [0] * size, list(range(size))
    while places:
        for place, word in zip(places, words(source, len(places)), strict=True):
            out[place] = word
        places = [place for place in places if out[place] >= moduli[place]]
    return [r - q if r > q // 2 else r for r, q in zip(out, moduli, strict=True)]


def check_uniform() -> None:
    for primes in ([low_prime(1024), *largest_primes(1024, 2)], [low_prime(1024)]):
        ring = Ring.of(1024, primes)
        for n in (0, 1, 3):
            seed = derive(bytes(16), "uniform", n)
            first, second = Stream(seed), Stream(seed)
            x = uniform(ring, first, n)
            assert x.dtype == torch.int32 and x.shape == (n, len(primes), 1024)
            assert x.flatten().tolist() == slow_uniform(ring, second, n)
            assert first.bytes(8).equal(second.bytes(8))  # no more and no less was drawn


def test_uniform_is_by_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", None)
    check_uniform()


def test_native_uniform_is_by_rejection(isa: str) -> None:
    check_uniform()


def statistic(counts: list[int], chances: list[float]) -> float:
    total = sum(counts)
    return sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, chances, strict=True))


def limit(cells: int) -> float:
    """A bound that chi-square of so many cells exceeds with chance below e^-20 (Laurent and Massart 2000, lemma 1)."""
    return cells - 1 + 2 * math.sqrt(20 * (cells - 1)) + 40


def test_uniform_is_uniform() -> None:
    ring, cells = Ring.of(1024, [low_prime(1024, 3 << 24)]), 64
    q = ring.primes[0]
    x = uniform(ring, stream("chi"), 256).flatten()
    assert int(x.min()) >= -(q // 2) and int(x.max()) <= q // 2
    bounds = [q * i // cells for i in range(cells + 1)]
    chances = [(high - low) / q for low, high in itertools.pairwise(bounds)]

    def counts(x: Tensor) -> list[int]:
        places = torch.bucketize(x.long() + q // 2, torch.tensor(bounds[1:-1]), right=True)
        return torch.bincount(places, minlength=cells).tolist()

    assert statistic(counts(x), chances) < limit(cells)
    folded = centred(torch.tensor(words(stream("chi"), 1 << 18)), q)  # no rejection: the test tells
    assert statistic(counts(folded), chances) > limit(cells)


def test_ternary_is_uniform_and_by_rejection() -> None:
    n = 1 << 16
    x = ternary(stream("ternary"), n)
    assert x.dtype == torch.int32 and x.shape == (n,)
    counts = [int((x == v).sum()) for v in (-1, 0, 1)]
    assert sum(counts) == n and statistic(counts, [1 / 3] * 3) < limit(3)
    source = stream("ternary")
    drawn = source.bytes(n).tolist()
    places = [i for i, b in enumerate(drawn) if b == 255]
    assert places
    while places:
        for place, b in zip(places, source.bytes(len(places)).tolist(), strict=True):
            drawn[place] = b
        places = [i for i in places if drawn[i] == 255]
    assert x.tolist() == [b % 3 - 1 for b in drawn]


def check_noise() -> None:
    for n, degree in ((0, 1024), (1, 1024), (3, 2048)):
        x = noise(stream("noise"), n, degree)
        drawn = stream("noise").words(n, degree)
        drawn = drawn.view(-1).tolist()
        assert x.dtype == torch.int32 and x.shape == (n, degree)
        assert x.flatten().tolist() == [(w & (1 << 42) - 1).bit_count() - ETA for w in drawn]


def test_noise_counts_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", None)
    check_noise()


def test_native_noise_counts_bits(isa: str) -> None:
    check_noise()
    extreme = torch.tensor([0, -1, (1 << 42) - 1, -(1 << 42)])
    out = torch.empty(4, dtype=torch.int32)
    library.handle().hb_noise(extreme.data_ptr(), 4, out.data_ptr())
    assert out.tolist() == [-ETA, ETA, ETA, -ETA]


def test_noise_is_centred_binomial() -> None:
    n = 1 << 18
    x = noise(stream("binomial"), n // 1024, 1024).flatten()
    chances = [math.comb(42, k) / 2**42 for k in range(43)]
    counts = torch.bincount(x + ETA, minlength=43).tolist()
    assert len(counts) == 43  # the support
    middle = range(9, 34)  # expected 1e-4 n and more each; the tails are one cell
    kept, likely = [counts[k] for k in middle], [chances[k] for k in middle]
    assert statistic([*kept, n - sum(kept)], [*likely, 1 - sum(likely)]) < limit(len(middle) + 1)
    # Six standard errors: the mean's is sqrt(10.5/n); the fourth moment of 42 signed half bits is
    # (3 - 2/42) 10.5^2, so the sample variance's is 10.5 sqrt((2 - 2/42)/n).
    assert abs(x.double().mean()) < 6 * math.sqrt(10.5 / n)
    assert abs((x.double() ** 2).mean() - 10.5) < 6 * 10.5 * math.sqrt((2 - 2 / 42) / n)


def check_wide() -> None:
    """The definition, of every number of words; all residues alike; small ones are uniform."""
    ring = ring_of(1024, 3)
    for bits in (1, 3, 31, 32, 33, 64, 82, 101, 300):
        seed, digits = derive(bytes(16), "wide", bits), -(-bits // 32)
        drawn = wide(ring, Stream(seed), 2, bits)
        words = Stream(seed).words(digits, 2 * 1024, dtype=torch.int32).tolist()
        for place in range(2 * 1024):
            x = words[0][place] >> -bits % 32
            for row in words[1:]:
                x = (x << 32) + row[place] % (1 << 32)
            assert -(1 << bits - 1) <= x < 1 << bits - 1
            got = drawn[place // 1024, :, place % 1024].tolist()
            assert got == [(x + q // 2) % q - q // 2 for q in ring.primes]
    for bits in (3, 24, 27, 48):
        values = compose(ring_of(4096, 2), wide(ring_of(4096, 2), stream("wide"), 3, bits)).flatten()
        counts = torch.bincount(((values + 2.0 ** (bits - 1)) * 8 / 2.0**bits).long(), minlength=8).double()
        expected = values.numel() / 8
        assert float(((counts - expected) ** 2 / expected).sum()) < 50  # 7 degrees of freedom: once in 10^8


def test_wide_integers(path: str) -> None:
    check_wide()
    assert wide(ring_of(1024, 1), stream("none"), 0, 40).shape == (0, 1, 1024)
    for bits in (0, -1, 2.0):
        with pytest.raises(InputError, match="bits"):
            wide(ring_of(1024, 1), stream("refused"), 1, bits)  # type: ignore[arg-type]


# ---- packing


def slow_pack(ring: Ring, x: Tensor) -> bytes:
    out, quarter = bytearray(), ring.degree // 4
    for i, row in enumerate(x.view(-1, ring.degree).tolist()):
        v = [r % ring.primes[i % len(ring.primes)] for r in row]
        out += b"".join((r & 0xFFFF).to_bytes(2, "little") for r in v) + bytes(r >> 16 & 0xFF for r in v)
        out += bytes(sum((v[j + k * quarter] >> 24) << 2 * k for k in range(4)) for j in range(quarter))
    return bytes(out)


def check_pack() -> None:
    ring = Ring.of(1024, [*largest_primes(1024, 2), low_prime(1024)])
    x = uniform(ring, stream("pack"), 2)
    for index, q in enumerate(ring.primes):
        x[:, index, :4] = torch.tensor([q // 2, -(q // 2), 0, -1])
    data = pack(ring, x)
    assert data.shape == (packed_bytes(x.shape),) == (2 * 3 * 1024 * 13 // 4,)
    assert bytes(data.tolist()) == slow_pack(ring, x)
    assert unpack(ring, data, x.shape).equal(x)
    for shift in (1, 2, 3):  # a frame's payload may begin anywhere
        padded = torch.cat([torch.zeros(shift, dtype=torch.uint8), data])
        assert unpack(ring, padded[shift:], x.shape).equal(x)
    assert unpack(ring, data[:0], (0, 3, 1024)).shape == (0, 3, 1024)
    for index, q in enumerate(ring.primes):  # the largest residue, as q - 1, and one more
        low, high = q & 0xFFFF, q >> 16
        wrong = data.clone()
        start = index * 1024 * 13 // 4
        wrong[start], wrong[start + 1], wrong[start + 2048] = (low - 1) & 0xFF, (low - 1) >> 8, high & 0xFF
        wrong[start + 3072] = (int(data[start + 3072]) & 0xFC) | high >> 8
        assert int(unpack(ring, wrong, x.shape)[0, index, 0]) == -1
        wrong[start] = low & 0xFF
        with pytest.raises(InputError, match="not below its prime"):
            unpack(ring, wrong, x.shape)


def check_fuzzed_bytes() -> None:
    ring, source = ring_of(1024, 2), stream("fuzz")
    shape, accepted = (1, 2, 1024), 0
    for _ in range(60):
        data = source.bytes(packed_bytes(shape))
        try:
            x = unpack(ring, data, shape)
        except InputError as error:
            assert "not below its prime" in error.what and error.hint
        else:
            accepted += 1
            assert pack(ring, x).equal(data)
    # Each of 2048 residues is refused with chance 1 - q/2^26.
    chance = math.prod((q / 2**26) ** 1024 for q in ring.primes)
    assert abs(accepted - 60 * chance) <= 6 * math.sqrt(60 * chance * (1 - chance)) + 1


def test_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", None)
    check_pack()
    check_fuzzed_bytes()


def test_native_packing(isa: str) -> None:
    check_pack()
    check_fuzzed_bytes()
