"""Views of both sides look uniform; attacks that succeed on a copy without its cure fail on the product."""

from __future__ import annotations

import itertools

import pytest
import torch
from pytest import MonkeyPatch
from torch import Tensor

from hummingbird.he import bfv
from hummingbird.he.bfv import reply as reply_module
from hummingbird.he.bfv.scheme import REST, RING, encrypted_zeros
from hummingbird.kernels.ciphertexts import phase
from tests.he.bfv.test_noise import noise_of, without_flood
from tests.support.bfv_cases import UNLIKELY, Answer, answer, chi_square, elements, weights
from tests.support.covering import covering


def uniform_in_all_primes(x: Tensor, ring_primes: tuple[int, ...]) -> None:
    """Residues (n, L, N)."""
    for number, q in enumerate(ring_primes):
        assert chi_square(x[:, number], -(q // 2), q) < UNLIKELY


def test_a_server_sees_uniform_residues() -> None:
    """A constant message, too; twice the same gives other ciphertexts."""
    secret, x = bfv.Secret.new(), torch.full((20, 4096), 5)
    sent = secret.encrypt(x, 20)
    uniform_in_all_primes(sent.body, RING.primes)
    uniform_in_all_primes(RING.intt(sent.body), RING.primes)
    uniform_in_all_primes(secret.public().parts, RING.primes)
    assert sent.seed != secret.encrypt(x, 20).seed
    assert float((sent.body == secret.encrypt(x, 20).body).double().mean()) < 1e-4


@covering("k, most", [8, 20, 32], [0, 127])
def test_a_client_sees_uniform_values(k: int, most: int, monkeypatch: MonkeyPatch) -> None:
    """Weights 0, too: the parts of a reply, and what they decrypt to."""
    got = answer(elements(k, 20, k), weights(k, 20, most), k, monkeypatch)
    uniform_in_all_primes(got.reply.second, REST.primes)
    uniform_in_all_primes(got.reply.first.view(2, -1).t()[None].transpose(1, 2), REST.primes)
    uniform_in_all_primes(got.whole.flatten(0, 1), RING.primes)
    assert chi_square(got.secret.decrypt(got.reply, k), 0, 1 << k) < UNLIKELY


def test_the_test_of_uniformity_can_fail() -> None:
    assert chi_square(torch.randn(4096).clamp(-4, 3.9), -4, 8) > UNLIKELY


def divided(got: Answer) -> Tensor:
    """c_1 over the a that the client sent, value by value, modulo one prime: int64 (N,), the weights if c_1 = w a."""
    ring, q = RING.take(1), RING.primes[0]
    a, c = got.fresh.parts()[0, 1, 0].tolist(), RING.ntt(got.whole[:, 1])[0, 0].tolist()
    values = torch.tensor([[y * pow(x, -1, q) % q for x, y in zip(a, c, strict=True)]])
    return ring.intt(torch.where(values > q // 2, values - q, values).int())[0].long()


def test_a_client_divides_and_has_the_weights_without_the_encryption_of_zero(monkeypatch: MonkeyPatch) -> None:
    r, w = elements(0, 1, 20), weights(0, 1, 127)
    assert float((divided(answer(r, w, 20, monkeypatch)) == w[0]).double().mean()) < 0.01
    monkeypatch.setattr(reply_module, "encrypted_zeros", lambda public, count: torch.zeros(count, 2, 4, 4096).int())
    assert torch.equal(divided(answer(r, w, 20, monkeypatch)), w[0])


def errors_of(got: Answer) -> Tensor:
    """The errors of ciphertexts of 0, which are their phases: int32 (n, N)."""
    errors = phase(RING, got.fresh.parts(), got.secret._values, "ntt")[:, 0]
    assert int(errors.abs().max()) <= 21 and float(errors.double().var()) == pytest.approx(10.5, rel=0.05)
    return errors


def weight_in_noise(got: Answer, e: Tensor) -> float:
    """The weight w that explains noise = w e best, by least squares, from the errors e of what the client sent."""
    found = noise_of(got)[:, 0].double().flatten()
    return float((found * e).sum() / e.square().sum())


def test_a_client_reads_a_weight_off_the_noise_without_the_flood(monkeypatch: MonkeyPatch) -> None:
    """It knows its errors e, of a deviation of 3.2, and the rest of the noise has one of 240: 2^17 values show w to
    240 / 3.2 / 2^8.5 = +-0.2.
    """
    r, w = torch.zeros(32, 4096, dtype=torch.int64), torch.zeros(32, 4096, dtype=torch.int64)
    w[:, 0] = 77
    for flooded in (True, False):
        with monkeypatch.context() as patch:
            if not flooded:
                without_flood(patch)
            got = answer(r, w, 20, patch)
            e = errors_of(got).double().flatten()
            assert (abs(weight_in_noise(got, e) - 77) < 1) != flooded


def test_one_mask_for_two_inputs_shows_the_product_of_their_difference(monkeypatch: MonkeyPatch) -> None:
    w, first = weights(0, 1, 127), answer(elements(1, 1, 20), weights(0, 1, 127), 20, monkeypatch)
    for masks, shown in ((first.masks, True), (None, False)):
        second = answer(elements(2, 1, 20), w, 20, monkeypatch, masks)
        found = first.secret.decrypt(first.reply, 20) - second.secret.decrypt(second.reply, 20)
        difference = first.wanted + first.masks - second.wanted - second.masks  # W (r - r')
        assert torch.equal(found & 0xFFFFF, difference & 0xFFFFF) == shown


def test_every_part_of_an_encryption_of_zero_has_an_error_of_its_own() -> None:
    """Under a key of zeros they are all that is left: binomial, of variance 10.5, and equal by chance 1 time in 11."""
    parts = RING.intt(encrypted_zeros(torch.zeros(2, 4, 4096, dtype=torch.int32), 3))[:, :, 0].flatten(0, 1)
    assert int(parts.abs().max()) <= 21
    # The deviation of a sample's variance is 10.5 sqrt(2 / 4096) = 0.23, that of the part that is equal 0.0044.
    assert all(abs(float(part.double().var()) - 10.5) < 6 * 0.24 for part in parts)
    for one, other in itertools.combinations(parts, 2):
        assert float((one == other).double().mean()) < 1 / 11 + 6 * 0.0045
