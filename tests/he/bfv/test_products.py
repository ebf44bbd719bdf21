"""Products are exact mod 2^k, for every k, for the largest weights, and through bytes."""

from __future__ import annotations

import pickle

import pytest
import torch
from pytest import MonkeyPatch

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.he import bfv
from hummingbird.he.bfv import noise
from tests.support.bfv_cases import WHOLE, answer, elements, product, weights
from tests.support.covering import every


@pytest.mark.parametrize(
    "k", [*(1, 8, 20, 32), *(pytest.param(k, marks=pytest.mark.slow) for k in range(8, 33) if k not in (8, 20, 32))]
)
def test_sums_of_products_are_exact(k: int) -> None:
    """Three inputs, two outputs, one of two products and one of three, through the bytes of every message."""
    secret, r, w = bfv.Secret.new(), elements(k, 3, k), weights(k, 5, 127)
    pairs = torch.tensor([[1, 1], [0, 0], [2, 1], [0, 1], [1, 0]])
    used = [torch.arange(5, 4096, 7), torch.tensor([4095, 0, 17])]
    public = bfv.PublicKey.from_bytes(secret.public().to_bytes())
    sent = bfv.Fresh.from_bytes(secret.encrypt(r, k).to_bytes(), 3)
    sums = bfv.products(sent.parts(), bfv.transform(w), pairs, 2)
    masks = bfv.draw_masks(prg.fresh(), 2, k)
    back = bfv.Reply.from_bytes(bfv.evaluate(public, sums, masks, k, used).to_bytes(), used)
    got = secret.decrypt(back, k)
    for output, places in enumerate(used):
        wanted = sum(product(r[i], w[p]) for p, (i, o) in enumerate(pairs.tolist()) if o == output) - masks[output]
        assert torch.equal(got[output, places], wanted[places] & (1 << k) - 1)
        others = torch.ones(4096, dtype=torch.bool)
        others[places] = False
        assert not got[output, others].any()


@pytest.mark.parametrize(("k", "most"), [(32, 1 << 24), (20, 1 << 25), (8, 1 << 25)])
def test_products_with_the_largest_weights_are_exact(k: int, most: int, monkeypatch: MonkeyPatch) -> None:
    """All coefficients of one sign and the largest magnitude: as far as the distance, or a transform, allows."""
    w = torch.full((2, 4096), most)
    w[1] = -most
    assert most == 1 << 25 or noise.distance_bits(most * 4096, k, 1) < 31
    got = answer(elements(1, 2, k), w, k, monkeypatch)
    assert noise.room_bits(most * 4096, k) > 1
    assert torch.equal(got.secret.decrypt(got.reply, k), got.wanted)


@pytest.mark.parametrize("seed", every(4, range(4)))
def test_products_of_ordinary_weights_are_exact(seed: int, monkeypatch: MonkeyPatch) -> None:
    """In 253,952 coefficients each; a million for all seeds."""
    r, w = elements(seed, 62, 32), weights(seed, 62, 127, 9)
    got = answer(r, w, 32, monkeypatch)
    assert torch.equal(got.secret.decrypt(got.reply, 32), got.wanted)


def test_another_ring_gives_other_values(monkeypatch: MonkeyPatch) -> None:
    got = answer(elements(0, 1, 20), weights(0, 1, 7), 20, monkeypatch)
    other = got.secret.decrypt(got.reply, 21)
    assert int(other.max()) < 1 << 21 and not torch.equal(other, got.wanted)


def test_another_secret_decrypts_nothing(monkeypatch: MonkeyPatch) -> None:
    got = answer(elements(0, 1, 20), weights(0, 1, 7), 20, monkeypatch)
    assert float((bfv.Secret.new().decrypt(got.reply, 20) == got.wanted).double().mean()) < 0.01


def test_a_secret_is_neither_shown_nor_copied_to_a_file() -> None:
    secret = bfv.Secret.new()
    assert repr(secret) == "Secret(degree=4096)"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_what_is_refused() -> None:
    secret, x = bfv.Secret.new(), torch.zeros(2, 4096, dtype=torch.int64)
    for k in (0, 33, 8.0, None):
        with pytest.raises(InputError, match="k = "):
            secret.encrypt(x, k)  # type: ignore[arg-type]
    for bad in (x.int(), x[0], x[:, 1:], None):
        with pytest.raises(InputError, match=r"expected torch.int64 \(n, 4096\)"):
            secret.encrypt(bad, 8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at most 2\\^25"):
        bfv.transform(x - (1 << 25) - 1)
    public, sums, masks = secret.public(), torch.zeros(2, 2, 4, 4096, dtype=torch.int32), x
    used = [WHOLE, WHOLE]
    for arguments in (
        (sums[:, :, :3], masks, 8, used),
        (sums[:, :1], masks, 8, used),
        (sums, masks[:1], 8, used),
        (sums, masks.int(), 8, used),
        (sums, masks, 33, used),
        (sums, masks, 8, used[:1]),
        (sums, masks, 8, [WHOLE, WHOLE + 1]),
        (sums, masks, 8, [WHOLE, WHOLE.int()]),
    ):
        with pytest.raises(InputError):
            bfv.evaluate(public, *arguments)
