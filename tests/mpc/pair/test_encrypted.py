"""Encrypted products: exact with the largest noise, and answers that hide the other party's factors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.he.scheme.params import choose, most_primes
from hummingbird.kernels.ciphertexts import ETA, Ring
from hummingbird.mpc.pair import encrypted
from hummingbird.mpc.pair.encrypted import DEGREE, MOST_DISTANCE, MOST_PRIMES, PRIMES, SECURE, Encryption, PairKeys
from tests.support.chance import DEVIATIONS, chi_square_limit
from tests.support.pairs import low, stepwise

TERMS, VALUES = 1 << 16, 1 << 12
ALL = torch.arange(DEGREE)


def keys(primes: int = MOST_PRIMES) -> list[PairKeys]:
    return stepwise([PairKeys.exchanged(primes) for _ in range(2)]).results


def encryption(bits: int, terms: int = TERMS, values: int = VALUES) -> Encryption:
    found = Encryption.of(bits, terms, values)
    assert found is not None
    return found


def numbers(x: Tensor, primes: tuple[int, ...]) -> np.ndarray:
    """The integers, centred, of residues (primes, N), as Python's."""
    modulus, total = math.prod(primes), np.zeros(x.shape[-1], dtype=object)
    for q, row in zip(primes, x.tolist(), strict=True):
        rest = modulus // q
        total += np.array(row, dtype=object) * (rest * pow(rest, -1, q))
    total %= modulus
    return np.where(total > modulus // 2, total - modulus, total)


def product(x: Tensor, w: Tensor) -> Tensor:
    """x w modulo X^N + 1 and 2^64, int64 (N,), for a w with few coefficients."""
    total = torch.zeros_like(x)
    for place in w.nonzero().flatten().tolist():
        moved = x.roll(place)
        moved[:place] = -moved[:place]
        total += moved * w[place]
    return total


def answered(both: list[PairKeys], how: Encryption, x: Tensor, w: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Party 1's answer to party 0's polynomials x, for its factors w: the sum of products."""
    inputs = encrypted.received(how, encrypted.encrypt(both[0].secret, how, x), len(x))
    sums = encrypted.summed(how, inputs, encrypted.factors(how, w))
    return encrypted.answers(both[1].public, how, sums, masks.flatten(), [ALL])


def test_the_primes_are_secure_by_both_tables() -> None:
    assert choose(DEGREE, MOST_PRIMES).primes == PRIMES and most_primes(DEGREE) == MOST_PRIMES
    for degree, primes in SECURE.items():
        assert choose(degree, len(primes)).primes == primes and most_primes(degree) == len(primes)


@pytest.mark.parametrize("bits", [1, 2, 10, 11, 32, 33, 37, 38, 54, 63, 64])
@pytest.mark.parametrize("terms", [1, TERMS, 1 << 21])
def test_the_largest_noise_is_decrypted(bits: int, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise D and the largest flood values are exact; the flood is 2^41 times as wide as d, for all values."""
    how = Encryption.of(bits, terms, VALUES)
    assert how is not None and how.kept < how.primes
    before, likely = encrypted.noise_before(bits, terms), encrypted.noise_likely(bits, terms, VALUES, bits)
    assert likely <= before and VALUES * likely / (2 << how.flood) <= MOST_DISTANCE / 2
    assert how.noise_after(terms) < how.unit / 2
    flood = (math.prod(PRIMES[: how.primes - 1]) >> bits + 2).bit_length() - 1
    assert flood < 0 or VALUES * likely / (2 << flood) > MOST_DISTANCE / 2, "fewer primes would do"

    extreme = math.floor(before) + (1 << how.flood)
    (mine, other), masks = keys(), prg.fresh().words(1, DEGREE)

    def largest(ring: Ring, stream: Any, n: int, width: int) -> Tensor:
        assert width == how.flood + 1
        return (
            torch.tensor([(extreme + q // 2) % q - q // 2 for q in ring.primes])[None, :, None]
            .expand(n, -1, DEGREE)
            .int()
        )

    monkeypatch.setattr(encrypted, "wide", largest)
    zeros = torch.zeros(1, 2, how.primes, DEGREE, dtype=torch.int32)
    part = encrypted.answers(other.public, how, zeros, masks[0], [ALL])
    found = encrypted.decrypt(mine.secret, how, encrypted.joined(how, [part]), [ALL])[None]
    assert torch.equal(low(found, bits), low(-masks, bits))
    # From half of Q / 2^k to all of it: the check can fail.
    extreme <<= (math.prod(PRIMES[: how.primes]) >> bits).bit_length() - 1 - how.flood
    part = encrypted.answers(other.public, how, zeros, masks[0], [ALL])
    found = encrypted.decrypt(mine.secret, how, encrypted.joined(how, [part]), [ALL])[None]
    assert not torch.equal(low(found, bits), low(-masks, bits))


@pytest.mark.parametrize("bits", [1, 16, 37, 64])
def test_noise_stays_within_its_bound(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of the largest size, and all errors of the largest size with signs that add up as they can."""
    how = encryption(bits)
    how = replace(how, kept=how.primes)
    monkeypatch.setattr(encrypted, "wide", lambda ring, stream, n, width: torch.zeros(n, how.primes, DEGREE).int())
    monkeypatch.setattr(encrypted, "noise", lambda stream, n, degree: torch.full((n, degree), ETA, dtype=torch.int32))
    both = keys()
    w = torch.zeros(1, DEGREE, dtype=torch.int64)
    w[0, :64] = -(1 << bits - 1) if bits < 64 else -(2**63)
    x, masks = prg.fresh().words(1, DEGREE), prg.fresh().words(1, DEGREE)
    (first, second) = answered(both, how, x, w, masks)
    parts = torch.stack([first.int()[None], how.ring.ntt(second)], 1)
    phases = numbers(
        encrypted.phase(how.ring, parts, both[0].secret[: how.primes].contiguous(), "mixed")[0], PRIMES[: how.primes]
    )
    modulus = math.prod(PRIMES[: how.primes])
    value = np.array((low(product(x[0], w[0]) - masks[0], bits)).tolist(), dtype=object) % (1 << bits)
    noise = np.array([int(p) - (modulus * int(v) >> bits) for p, v in zip(phases, value, strict=True)], dtype=object)
    noise = (noise + modulus // 2) % modulus - modulus // 2
    largest, bound = max(abs(int(one)) for one in noise), encrypted.noise_before(bits, 64)
    assert bound / 2**12 < largest <= bound + 1 if bits < 8 else bound / 2 < largest <= bound + 1


@pytest.mark.parametrize("bits", [1, 20, 37, 38, 54, 64])
def test_products_are_exact(bits: int) -> None:
    how, both, n = encryption(bits), keys(), 5
    x, w = prg.fresh().words(n, DEGREE), torch.zeros(n, DEGREE, dtype=torch.int64)
    w[:, ::257] = prg.fresh().words(n, len(w[0, ::257]))
    masks, used = prg.fresh().words(1, 100), torch.arange(100) * 81
    inputs = encrypted.received(how, encrypted.encrypt(both[0].secret, how, x), n)
    sums = encrypted.summed(how, inputs, encrypted.factors(how, w))
    message = encrypted.joined(how, [encrypted.answers(both[1].public, how, sums, masks[0], [used])])
    assert message.numel() == how.answer_bytes(1, 100)
    found = encrypted.decrypt(both[0].secret, how, message, [used])
    wanted = sum(product(a, b) for a, b in zip(x, w, strict=True))
    assert torch.equal(low(found + masks, bits)[0], low(wanted, bits)[used])


@pytest.mark.parametrize(
    ("bits", "primes", "kept", "flood"), [(20, 5, 2, 107), (37, 6, 2, 116), (54, 7, 3, 125), (64, 8, 3, 141)]
)
def test_the_table_of_docs_pair(bits: int, primes: int, kept: int, flood: int) -> None:
    assert encryption(bits, 512, 200_000) == Encryption(bits, primes, kept, flood, bits)


def test_a_product_beyond_the_largest_secure_modulus_is_refused() -> None:
    assert Encryption.of(64, 1 << 13, 1 << 20) is not None and Encryption.of(64, 1 << 26, 1 << 26) is None


# What an answer shows -------------------------------------------------------------------------------------------------


def errors_of(both: list[PairKeys], how: Encryption, message: Tensor, x: Tensor) -> Tensor:
    """The encryption's errors, which its owner knows: phase less round(Q x / 2^k)."""
    parts = encrypted.received(how, message, 1)
    phases = encrypted.phase(how.ring, parts, both[0].secret[: how.primes].contiguous(), "ntt")
    return encrypted.add(how.ring, phases, encrypted._scaled(how.ring, x, how.bits), -1)[0, 0]


def shown(flooded: bool, monkeypatch: pytest.MonkeyPatch) -> float:
    """The correlation of the answer's noise with what follows from errors and factors, in deviations of chance."""
    how, both = encryption(40), keys()
    how = replace(how, kept=how.primes)  # an answer as it is before primes are dropped
    if not flooded:
        monkeypatch.setattr(encrypted, "wide", lambda ring, stream, n, width: torch.zeros(n, how.primes, DEGREE).int())
    x, masks = prg.fresh().words(1, DEGREE), prg.fresh().words(1, DEGREE)
    w = torch.zeros(1, DEGREE, dtype=torch.int64)
    w[0, :64] = prg.fresh().words(64) << 24 >> 24
    message = encrypted.encrypt(both[0].secret, how, x)
    errors = errors_of(both, how, message, x).long()
    sums = encrypted.summed(how, encrypted.received(how, message, 1), encrypted.factors(how, w))
    first, second = encrypted.answers(both[1].public, how, sums, masks[0], [ALL])
    parts = torch.stack([first.int()[None], how.ring.ntt(second)], 1)
    phases = encrypted.phase(how.ring, parts, both[0].secret[: how.primes].contiguous(), "mixed")[0]
    value = low(product(x[0], w[0]) - masks[0], 40)
    residues = encrypted.add(how.ring, phases[None], encrypted._scaled(how.ring, value[None], 40), -1)[0]
    noise = torch.tensor(numbers(residues, PRIMES[: how.primes]).astype(float))
    guess = product(errors, w[0]).double()
    return float((noise * guess).sum() / (noise.norm() * guess.norm())) * DEGREE**0.5


def test_noise_that_depends_on_factors_is_hidden_by_the_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(shown(True, monkeypatch)) < DEVIATIONS
    assert shown(False, monkeypatch) > 0.9 * DEGREE**0.5  # the same check finds an answer without flood


def test_the_second_part_hides_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the encryption of zero it is w a, whose quotient by a is w; with it, the quotient is uniform."""
    how = encryption(20)
    how = replace(how, kept=how.primes)
    both, w = keys(), torch.zeros(1, DEGREE, dtype=torch.int64)
    w[0, :64] = prg.fresh().words(64) << 44 >> 44
    q, ring = PRIMES[0], encrypted.ring_of(1)

    def quotient() -> Tensor:
        message = encrypted.encrypt(both[0].secret, how, w)
        inputs = encrypted.received(how, message, 1)
        sums = encrypted.summed(how, inputs, encrypted.factors(how, w))
        _, second = encrypted.answers(both[1].public, how, sums, torch.zeros_like(w)[0], [ALL])
        a, wa = inputs[0, 1, 0].long() % q, ring.ntt(second[:, :1].contiguous())[0, 0].long() % q
        inverse, power, left = torch.ones_like(a), a, q - 2
        while left:
            inverse = inverse * power % q if left & 1 else inverse
            power, left = power * power % q, left >> 1
        found = wa * inverse % q
        found = found - (found > q // 2) * q
        return ring.intt(found.int()[None, None])[0, 0].long()

    hidden = quotient()
    assert not torch.equal(hidden, w[0]) and float((hidden.double() / q).std() * 12**0.5) > 0.95
    real = encrypted.encrypt_ntt

    def plain(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
        """Encryption, but without an encryption of zero in answers, where the secret is minus a public key."""
        mine = torch.equal(secret, both[0].secret[: how.primes])
        return real(ring, message, noise, a, secret) if mine else torch.zeros_like(a)

    monkeypatch.setattr(encrypted, "encrypt_ntt", plain)
    assert torch.equal(quotient(), w[0])


def test_messages_are_uniform_residues() -> None:
    """Both messages that a party receives, for operands that are all 0: each residue uniform below its prime."""
    how, both = encryption(64), keys()
    nothing = torch.zeros(4, DEGREE, dtype=torch.int64)
    message = encrypted.encrypt(both[0].secret, how, nothing)
    inputs = encrypted.received(how, message, 4)
    sums = encrypted.summed(how, inputs, encrypted.factors(how, nothing))
    first, second = encrypted.answers(both[1].public, how, sums, prg.fresh().words(DEGREE), [ALL])
    for number, q in enumerate(how.ring.primes):
        check_uniform(inputs[:, :, number], q)
    for number, q in enumerate(how.rest.primes):
        check_uniform(first[number], q)
        check_uniform(second[:, number], q)


def check_uniform(x: Tensor, q: int) -> None:
    counts = torch.bincount(((x.flatten().double() / q + 0.5) * 64).long().clamp(0, 63), minlength=64).double()
    expected = x.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < chi_square_limit(64)
