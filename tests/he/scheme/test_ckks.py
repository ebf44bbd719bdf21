"""Encryption: exact messages, errors and masks as they should be, and randomness that cannot be used twice."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he.scheme import ckks
from hummingbird.he.scheme.ckks import NOISE, VARIANCE, Coins, SecretKey, expand
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import square, switch
from tests.support.chance import DEVIATIONS, chi_square_limit

FORMS = ("mixed", "ntt")


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return SecretKey(choose(2048, 2))


def messages(count: int, bound: int, degree: int = 2048) -> Tensor:
    torch.manual_seed(count)
    return torch.randint(-bound, bound + 1, (count, degree), dtype=torch.int32)


def encrypted(key: SecretKey, message: Tensor, form: str) -> Tensor:
    seed, body = key.encrypt(message, Coins(key.ring, len(message)), form)
    return torch.stack([body, expand(key.ring, seed, len(message))], 1)


@pytest.mark.parametrize("form", FORMS)
def test_decryption_gives_message_and_error(key: SecretKey, form: str) -> None:
    message = messages(16, (1 << 30) - 1 - NOISE)
    error = key.decrypt(encrypted(key, message, form), form) - message
    assert float(error.abs().max()) <= NOISE
    # 32,768 errors: the variance's own deviation is sqrt(2/n) of it or less, so 7.6 of them are below 6%.
    assert float(error.square().mean()) == pytest.approx(VARIANCE, rel=0.06)
    assert abs(float(error.mean())) < DEVIATIONS * (VARIANCE / error.numel()) ** 0.5


@pytest.mark.parametrize("form", FORMS)
def test_a_ciphertext_looks_uniform_whatever_it_holds(key: SecretKey, form: str) -> None:
    """16 bins of 131,072 residues."""
    for message in (torch.zeros(64, 2048, dtype=torch.int32), messages(64, 1)):
        c = encrypted(key, message, form)
        for part in c.unbind(1):
            for prime, residues in zip(key.ring.primes, part.unbind(1), strict=True):
                bins = torch.bincount((residues.reshape(-1).long() % prime) * 16 // prime, minlength=16).double()
                expected = residues.numel() / 16
                assert float(((bins - expected) ** 2 / expected).sum()) < chi_square_limit(16)


def test_another_key_reads_nothing(key: SecretKey) -> None:
    message = torch.zeros(4, 2048, dtype=torch.int32)
    other = SecretKey(key.parameters).decrypt(encrypted(key, message, "mixed"), "mixed")
    quarter = key.parameters.modulus(2) / 4
    assert 0.45 < float((other.abs() > quarter).double().mean()) < 0.55  # a half of a uniform distribution


def test_randomness_is_spent_once(key: SecretKey) -> None:
    coins, message = Coins(key.ring, 2), messages(2, 100)
    key.encrypt(message, coins, "mixed")
    with pytest.raises(InputError, match="has been used"):
        key.encrypt(message, coins, "mixed")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copied(Coins(key.ring, 1))


def test_coins_must_fit(key: SecretKey) -> None:
    for coins in (Coins(key.ring, 3), Coins(key.ring.take(1), 2)):
        with pytest.raises(InputError, match="coins for"):
            key.encrypt(messages(2, 100), coins, "mixed")


def test_two_encryptions_of_one_message_have_nothing_in_common(key: SecretKey) -> None:
    message = messages(3, 100)
    (seed, body), (other_seed, other) = (key.encrypt(message, Coins(key.ring, 3), "mixed") for _ in range(2))
    assert seed != other_seed and len(seed) == 16
    assert float((body == other).double().mean()) < 1e-4  # 2^-26 by chance
    a, b = (expand(key.ring, s, 3) for s in (seed, other_seed))
    assert float((a == b).double().mean()) < 1e-4
    errors = [key.decrypt(torch.stack([c, e], 1), "mixed") - message for c, e in ((body, a), (other, b))]
    assert not torch.equal(*errors)


def test_a_key_stays_where_it_is(key: SecretKey) -> None:
    assert repr(key) == "SecretKey(degree=2048, primes=2)"
    with pytest.raises(TypeError):
        pickle.dumps(key)
    assert not torch.equal(key._secret, SecretKey(key.parameters)._secret)
    secret = key.ring.intt(key._secret)
    assert torch.equal(secret[0], secret[1]) and set(secret.unique().tolist()) == {-1, 0, 1}


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_a_switch_is_as_predicted(key: SecretKey, form: str) -> None:
    message = messages(32, 1 << 29)
    c = encrypted(key, message, form)
    dropped = key.ring.primes[1]
    wrong = key.decrypt(switch(key.ring, c, form), form) - key.decrypt(c, form) / dropped
    predicted = ckks.switch_error("coefficients", 2048, 2)
    assert float(wrong.square().mean().sqrt()) == pytest.approx(predicted, rel=0.05)
    assert float(wrong.abs().max()) <= (1 + 2048) / 2  # what Return.room leaves for it


def test_rounding_of_a_switched_square_is_as_predicted() -> None:
    """Three components: r_2 s^2 dominates, 2^10 of it at this degree. One key is one sample of s^2: within a third."""
    key = SecretKey(choose(4096, 4))
    message = messages(4, 1 << 20, 4096)
    c = square(key.ring, encrypted(key, message, "ntt"))
    dropped = key.ring.primes[3]
    wrong = key.decrypt(switch(key.ring, c, "ntt"), "ntt") - key.decrypt(c, "ntt") / dropped
    predicted = ckks.switch_error("coefficients", 4096, 3)
    assert predicted > 50 * ckks.switch_error("coefficients", 4096, 2)
    assert float(wrong.square().mean().sqrt()) == pytest.approx(predicted, rel=0.33)


def test_agrees_with_tenseal_on_what_ckks_is() -> None:
    """The same sums and products of the same slots, by another library (SEAL), to both schemes' precision."""
    tenseal = pytest.importorskip("tenseal")
    from hummingbird.he.scheme import packing

    torch.manual_seed(0)
    x, y = (torch.randn(4096, dtype=torch.float64).clamp(-4, 4) for _ in range(2))
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2**40
    theirs = tenseal.ckks_vector(context, x.tolist())
    theirs = torch.tensor((theirs * theirs + y.tolist()).decrypt())
    key, scale = SecretKey(choose(8192, 4)), 22
    c = square(key.ring, encrypted(key, packing.encode(x[None], "real", 8192, 2.0**scale), "ntt"))
    ours = packing.decode(key.decrypt(c, "ntt"), "real")[0] * 2.0 ** (-2 * scale) + y
    deviation = 2 * 4 * ckks.fresh_error("real", 8192) * 2.0**-scale
    assert float((ours - theirs).abs().max()) < 6 * deviation
