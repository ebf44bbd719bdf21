"""BFV's operations: the torch reference against Python's integers, each C++ version against the reference."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts import Ring, accumulate, encode, largest_primes, uniform
from hummingbird.kernels.ciphertexts.arithmetic import MOST_TERMS
from hummingbird.kernels.reference.ciphertexts import arithmetic as reference
from hummingbird.prg import Stream, derive
from tests.kernels.ciphertexts.test_polynomials import low_prime, ring_of

RINGS = [ring_of(1024, 1), ring_of(1024, 3), ring_of(4096, 4), Ring.of(2048, (low_prime(2048),))]


def stream(*labels: str | int) -> Stream:
    return Stream(derive(bytes(16), "bfv kernels", *labels))


def residue(x: int, q: int) -> int:
    return (x + q // 2) % q - q // 2


def values(ring: Ring, k: int) -> tuple[Tensor, Tensor]:
    """Ring elements with the smallest and largest among them, of any upper bits; errors with theirs."""
    x = stream("values", k).words(2, ring.degree)
    x[0, :6] = torch.tensor([0, 1, -1, 1 << k - 1, (1 << k - 1) - 1, (1 << k) - 1])
    error = stream("errors", k).words(2, ring.degree, dtype=torch.int32) >> 2  # |error| <= 2^29
    error[0, :2] = torch.tensor([(1 << 30) - 1, 1 - (1 << 30)])
    return x, error


@pytest.mark.parametrize("k", [1, 2, 8, 20, 31, 32])
@pytest.mark.parametrize("ring", RINGS)
def test_encode(path: str, ring: Ring, k: int) -> None:
    x, error = values(ring, k)
    got = encode(ring, x, k, error)
    wanted = encode_reference(ring, x, k, error)
    assert got.dtype == torch.int32 and torch.equal(got, wanted)
    modulus = math.prod(ring.primes)
    for column in range(8):  # the definition, by fractions: round(Q x / 2^k) + error
        exact = math.floor(Fraction(modulus * (int(x[0, column]) % (1 << k)), 1 << k) + Fraction(1, 2))
        for number, q in enumerate(ring.primes):
            assert int(got[0, number, column]) == residue(exact + int(error[0, column]), q), column


def encode_reference(ring: Ring, x: Tensor, k: int, error: Tensor) -> Tensor:
    inverses = [residue(pow(1 << k, -1, q), q) for q in ring.primes]
    return reference.encode(ring, x, k, error, math.prod(ring.primes) % (1 << k), inverses)


def sums(ring: Ring, weights: Tensor, x: Tensor, pairs: Tensor, outputs: int) -> Tensor:
    """`accumulate`, reduced after each product."""
    out = torch.zeros(outputs, *x.shape[1:], dtype=torch.int64)
    primes = torch.tensor(ring.primes)[:, None]
    for weight, (source, target) in zip(weights.long(), pairs.tolist(), strict=True):
        out[target] = (out[target] + weight * x[source].long()) % primes
    return torch.where(out > primes // 2, out - primes, out).int()


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("ring", RINGS)
def test_accumulate(path: str, ring: Ring, parts: int) -> None:
    """Every number of products in a sum from 0 to 9, in any order, as many of an input as it happens."""
    x = uniform(ring, stream("x", parts), 3 * parts).view(3, parts, len(ring.primes), ring.degree)
    targets = torch.cat([torch.full((count,), count) for count in range(10)])
    pairs = torch.stack([torch.arange(len(targets)) % 3, targets], 1)[torch.randperm(len(targets))]
    weights = uniform(ring, stream("weights", parts), len(pairs))
    assert torch.equal(accumulate(ring, weights, x, pairs, 11), sums(ring, weights, x, pairs, 11))


def test_accumulate_of_as_many_of_the_largest_products_as_there_may_be(path: str) -> None:
    ring = ring_of(1024, 1)
    signs = 1 - 2 * (torch.arange(1024) % 2)
    x = (signs << 25).int().expand(1, 1, 1, -1).contiguous()  # 2^25, above q/2: all that the bounds allow
    pairs = torch.zeros(MOST_TERMS, 2, dtype=torch.int64)
    weights = torch.full((1, 1, 1024), 1 << 25, dtype=torch.int32).expand(MOST_TERMS, -1, -1)
    (q,) = ring.primes
    got = accumulate(ring, weights, x, pairs, 1).flatten()
    assert got.tolist() == [residue(sign * MOST_TERMS << 50, q) for sign in signs.tolist()]


def test_accumulate_on_many_inputs_and_threads(path: str) -> None:
    """So many that fewer columns are done at a time."""
    ring = ring_of(4096, 1)
    x, weights = uniform(ring, stream("many"), 400).view(200, 2, 1, 4096), uniform(ring, stream("many weights"), 210)
    pairs = torch.stack([torch.arange(210) % 200, torch.arange(210) % 3], 1)
    wanted = sums(ring, weights, x, pairs, 3)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(accumulate(ring, weights, x, pairs, 3), wanted)
    finally:
        torch.set_num_threads(before)


def test_accumulate_of_nothing(path: str) -> None:
    ring = RINGS[0]
    x, none = torch.ones(1, 2, 1, 1024, dtype=torch.int32), torch.empty(0, 1, 1024, dtype=torch.int32)
    pairs = torch.empty(0, 2, dtype=torch.int64)
    assert accumulate(ring, none, x, pairs, 0).shape == (0, 2, 1, 1024)
    assert torch.equal(accumulate(ring, none, x, pairs, 2), torch.zeros(2, 2, 1, 1024, dtype=torch.int32))


def test_what_is_refused() -> None:
    ring = RINGS[0]
    x, weights = torch.zeros(2, 2, 1, 1024, dtype=torch.int32), torch.zeros(3, 1, 1024, dtype=torch.int32)
    pairs = torch.zeros(3, 2, dtype=torch.int64)
    for bad in (pairs[:2], pairs.int(), pairs - 1, pairs + 2, pairs + torch.tensor([0, 1])):
        with pytest.raises(InputError, match="accumulate"):
            accumulate(ring, weights, x, bad, 1)
    with pytest.raises(InputError, match="residues are int32"):
        accumulate(ring, weights.long(), x, pairs, 1)
    with pytest.raises(InputError, match="4097 products"):
        many = torch.zeros(MOST_TERMS + 1, 2, dtype=torch.int64)
        accumulate(ring, weights[:1].expand(MOST_TERMS + 1, -1, -1), x, many, 1)
    plain, error = torch.zeros(2, 1024, dtype=torch.int64), torch.zeros(2, 1024, dtype=torch.int32)
    for bad_x, k, bad_error in (
        (plain.int(), 8, error),
        (plain[:, 1:], 8, error),
        (plain, 0, error),
        (plain, 33, error),
        (plain, 8, error[:1]),
        (plain, 8, error.long()),
    ):
        with pytest.raises(InputError, match="kernels.encode"):
            encode(ring, bad_x, k, bad_error)
    assert largest_primes(1024, 1) == ring.primes
