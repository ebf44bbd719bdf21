"""Noise stays below its bounds, and what is seen is as close to uniform as they say."""

from __future__ import annotations

import math

import pytest
import torch
from pytest import MonkeyPatch
from torch import Tensor

from hummingbird.errors import ConfigError, InputError
from hummingbird.he.bfv import noise
from hummingbird.he.bfv import reply as reply_module
from hummingbird.he.bfv.scheme import PARAMETERS, REST, RING
from hummingbird.kernels.ciphertexts import add, compose, encode, phase
from tests.support.bfv_cases import UNLIKELY, Answer, answer, chi_square, elements, weights
from tests.support.covering import every


def noise_of(got: Answer) -> Tensor:
    """The noise of `whole`, where it is below 2^24 in absolute value: int32 (n, 4, N), alike modulo all primes."""
    zero = torch.zeros_like(got.wanted, dtype=torch.int32)
    return add(RING, got.phases(), encode(RING, got.wanted, got.k, zero), -1)


def without_flood(patch: MonkeyPatch) -> None:
    patch.setattr(reply_module, "wide", lambda ring, stream, n, bits: torch.zeros(n, 4, 4096, dtype=torch.int32))


@pytest.mark.parametrize("largest", every(3, [1 << 14, 1, 100]))
def test_noise_before_the_flood_is_below_its_bound(largest: int, monkeypatch: MonkeyPatch) -> None:
    """In a million coefficients for all three, and not far below: the bound is for the worst signs."""
    without_flood(monkeypatch)
    w = weights(largest, 82, largest, 32)
    got = answer(elements(largest, 82, 20), w, 20, monkeypatch)
    errors = noise_of(got)
    assert all(torch.equal(errors[:, 0], errors[:, i]) for i in range(4))
    worst = errors[:, 0].abs().amax(1)
    bounds = torch.tensor([float(noise.before_flood(int(norm), False)) for norm in w.abs().sum(1)])
    assert (worst <= bounds).all()
    alike = math.sqrt(4096 * 2 / 3 * 10.5 * 2)  # deviation of u e + e_2 s
    spread = math.sqrt(alike**2 + 10.5 * float(w.double().square().sum(1).mean()))
    assert float(errors[:, 0].double().std()) == pytest.approx(spread, rel=0.1)


def test_bounds_are_those_of_the_derivation() -> None:
    assert float(noise.before_flood(1000)) < 21.5 * 1000 + 2**18
    assert noise.before_flood(0) == 21 * (2 * 4096 + 1) + 0.5
    assert noise.before_flood(1, switched=True) - noise.before_flood(1) == 1 << 32
    for k in range(1, 33):
        assert noise.flood_bits(k) == math.floor(PARAMETERS.bits - k - 2) == 101 - k
        assert noise.distance(1000, k, 50) == pytest.approx(
            float(50 * noise.before_flood(1000)) / 2 ** (102 - k), rel=1e-12, abs=0
        )
    assert noise.distance_bits(1000, 20, 1) - noise.distance_bits(1000, 21, 1) == pytest.approx(1)


def test_too_large_a_distance_is_refused() -> None:
    noise.check_distance(2.0**-30, "here")
    with pytest.raises(ConfigError, match=r"2\^-29\.0 from ones.*here"):
        noise.check_distance(2.0**-29, "here")
    with pytest.raises(InputError):
        noise.flood_bits(33)


@pytest.mark.parametrize("k", every(3, [32, 20, 8]))
def test_floods_and_replies_leave_room(k: int, monkeypatch: MonkeyPatch) -> None:
    """The noise of what a client decrypts is uniform, below its bound, and says nothing of the weights."""
    got = answer(elements(k, 30, k), weights(k, 30, 127), k, monkeypatch)
    parts = got.reply.parts()
    parts[:, 1] = REST.ntt(parts[:, 1])
    x, modulus = compose(REST, phase(REST, parts, got.secret._values[:2], "mixed")), math.prod(REST.primes)
    apart = torch.remainder(x - got.wanted.double() * (modulus / 2**k) + modulus / 2, modulus) - modulus / 2
    assert float(apart.abs().max()) <= float(noise.after_dropping(127 * 4096, k)) + 2  # rounding of this formula
    assert float(noise.after_dropping(127 * 4096, k)) < modulus / 2 ** (k + 1)
    half = 2 ** noise.flood_bits(k) / math.prod(PARAMETERS.primes[2:])  # about 2^(49 - k)
    inside = apart[apart.abs() < half * 0.99]
    assert len(inside) == pytest.approx(0.99 * apart.numel(), rel=0.01)
    assert chi_square(inside, int(-half * 0.99), math.ceil(2 * half * 0.99) + 1) < UNLIKELY


def test_the_bound_on_noise_can_fail(monkeypatch: MonkeyPatch) -> None:
    """Weights a hundred times as large as they were said to be leave it."""
    without_flood(monkeypatch)
    w = weights(0, 4, 1 << 16, 32)
    worst = noise_of(answer(elements(0, 4, 20), w, 20, monkeypatch)).abs().max()
    assert float(worst) > float(noise.before_flood(int(w.abs().sum(1).max()) // 100))


def test_there_is_room_for_all_weights_that_a_distance_allows() -> None:
    for k in range(1, 33):
        assert noise.room_bits(1 << 24, k) > 1
    assert noise.room_bits(1 << 70, 32) < 0
