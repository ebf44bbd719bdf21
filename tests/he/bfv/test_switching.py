"""Ciphertexts of a user, switched to another's secret: exact, masked, with noise below its bound."""

from __future__ import annotations

import pytest
import torch
from pytest import MonkeyPatch

from hummingbird import cost, prg
from hummingbird.errors import InputError
from hummingbird.he import bfv
from hummingbird.he.bfv import noise
from hummingbird.he.bfv.scheme import RING
from hummingbird.kernels.ciphertexts import add, compose, encode, phase
from tests.he.bfv.test_hiding import uniform_in_all_primes
from tests.support.bfv_cases import UNLIKELY, WHOLE, chi_square, elements


@pytest.mark.parametrize("k", [8, 20, 32])
def test_what_was_encrypted_for_one_is_decrypted_by_another(k: int) -> None:
    user, other, x = bfv.Secret.new(), bfv.Secret.new(), elements(k, 3, k)
    public = other.public()
    key = bfv.SwitchingKey.from_bytes(user.switching_key(public).to_bytes())
    sums = bfv.switch_key(key, user.encrypt(x, k).parts())
    rho = bfv.draw_masks(prg.fresh(), 3, k)
    reply = bfv.evaluate(public, sums, -rho, k, [WHOLE] * 3)
    assert torch.equal(other.decrypt(reply, k), x + rho & (1 << k) - 1)
    assert chi_square(other.decrypt(reply, k), 0, 1 << k) < UNLIKELY
    assert float((user.decrypt(reply, k) == (x + rho & (1 << k) - 1)).double().mean()) < 0.02


def test_noise_of_a_switch() -> None:
    """A deviation of 2^26.6, of which the bound is 40, over 200,000 coefficients."""
    user, other, x = bfv.Secret.new(), bfv.Secret.new(), elements(0, 50, 20)
    sums = bfv.switch_key(user.switching_key(other.public()), user.encrypt(x, 20).parts())
    exact = encode(RING, x, 20, torch.zeros_like(x, dtype=torch.int32))
    off = add(RING, phase(RING, sums, other._values, "ntt"), exact, -1)[:, :2].contiguous()
    errors = compose(RING.take(2), off)  # modulo two primes: below 2^51, exact
    assert float(errors.std()) == pytest.approx(2**26.6, rel=0.1)
    assert float(errors.abs().max()) < 2**29.5 < noise.before_flood(1, switched=True)
    assert noise.distance(1, 20, 4096, switched=True) == pytest.approx(2**-38, rel=2**-13, abs=0)  # 2^32 + 2^18
    assert noise.room_bits(1, 32, switched=True) > 1


def test_a_server_sees_uniform_residues() -> None:
    key = bfv.Secret.new().switching_key(bfv.Secret.new().public())
    assert len(key.to_bytes()) == cost.bfv_switching_key() == 851_968
    uniform_in_all_primes(key.parts.flatten(0, 1), RING.primes)


def test_two_keys_of_a_secret_differ() -> None:
    user, public = bfv.Secret.new(), bfv.Secret.new().public()
    first, second = (user.switching_key(public).parts for _ in range(2))
    assert float((first == second).double().mean()) < 1e-4


def test_what_is_refused(monkeypatch: MonkeyPatch) -> None:
    data = bfv.Secret.new().switching_key(bfv.Secret.new().public()).to_bytes()
    for bad in (data[:-1], data + b"\0", b""):
        with pytest.raises(InputError, match="bytes"):
            bfv.SwitchingKey.from_bytes(bad)
    with pytest.raises(InputError, match="not below its prime"):
        bfv.SwitchingKey.from_bytes(data[:100] + b"\xff" * 20000 + data[20100:])
    key = bfv.SwitchingKey.from_bytes(data)
    for shape in ((1, 1, 4, 4096), (1, 2, 3, 4096), (2, 4, 4096)):
        with pytest.raises(InputError):
            bfv.switch_key(key, torch.zeros(shape, dtype=torch.int32))
