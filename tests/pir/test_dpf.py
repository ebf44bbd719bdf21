"""Distributed point functions: the servers' bits differ at alpha alone, and the signs are right, for every alpha of
small tables; and one key alone tells nothing of alpha, by a test that leaky generators fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import lookups as kernel
from hummingbird.kernels.lookups import PRFS, expand, key_bytes, leaves_of
from hummingbird.pir import dpf
from hummingbird.prg import Stream, derive
from tests.kernels.conftest import isa  # noqa: F401 - a fixture

FALSE_ALARM = 1e-6  # of one test below; seeds are fixed, so that a pass stays one


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of keys from the next of a row of seeds."""
    numbers = iter(range(1 << 30))
    monkeypatch.setattr(dpf, "new_seed", lambda: derive(bytes(16), "test_dpf", next(numbers)))


def below(rows: int, count: int) -> Tensor:
    """Uniform indices; `rows` is a power of two."""
    return Stream(derive(bytes(16), "alphas", rows)).words(count) & rows - 1


def selected(keys: Tensor, rows: int) -> Tensor:
    """t of each row, zeros and ones: uint8 (B, rows)."""
    packed = expand(keys, 0, leaves_of(rows))
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, bitorder="little"))[:, :rows]


def right(alphas: Tensor, rows: int, prf: str) -> bool:
    """Whether t_0 - t_1 is s at alpha and 0 elsewhere, over the integers, so that the counts of ones differ by s."""
    first, second, signs = dpf.generate(alphas, rows, prf)
    bits = [selected(keys, rows) for keys in (first, second)]
    differences = bits[0].view(torch.int8) - bits[1].view(torch.int8)
    expected = torch.zeros_like(differences).scatter_(1, alphas[:, None], signs[:, None].to(torch.int8))
    return torch.equal(differences, expected) and bool((signs.abs() == 1).all())


# What the keys are for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prf", PRFS)
@pytest.mark.parametrize("rows", [1, 2, 3, 100, 1023, 1024, 1025, 2049, 3000])
def test_all_alphas_of_a_small_table(isa: str, rows: int, prf: str) -> None:  # noqa: F811
    assert right(torch.arange(rows), rows, prf)


@pytest.mark.parametrize(("prf", "step"), [*((prf, 7) for prf in PRFS), pytest.param("aes", 1, marks=pytest.mark.slow)])
def test_the_edges_of_every_table_up_to_3000_rows(prf: str, step: int) -> None:
    """Or of every seventh, and of those about one leaf's rows and two leaves'."""
    for rows in sorted({*range(1, 3001, step), *range(1020, 1030), *range(2044, 2054)}):
        edges = {0, rows - 1, rows // 2, *(edge for edge in (1023, 1024, 2047, 2048) if edge < rows)}
        assert right(torch.tensor(sorted(edges)), rows, prf), rows


@pytest.mark.parametrize("prf", PRFS)
def test_random_alphas_and_the_edges_of_leaves_of_a_million_rows(isa: str, prf: str) -> None:  # noqa: F811
    rows = 1 << 20
    edges = torch.arange(0, rows, rows // 4)
    assert right(torch.cat([below(rows, 8), edges, edges + 1023]), rows, prf)


@pytest.mark.parametrize("prf", PRFS)
def test_rows_that_are_no_power_of_two(prf: str) -> None:
    for rows in (64 * 1024 + 1, 65 * 1024, 100_003, 1_000_000):
        assert right(torch.tensor([0, 1023, 1024, 64 * 1024 - 1, 64 * 1024, rows - 1]), rows, prf), rows


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = dpf.generate
    monkeypatch.setattr(dpf, "generate", lambda *given: (*generate(*given)[:2], -generate(*given)[2]))
    assert not right(torch.arange(8), 8, "aes")
    monkeypatch.setattr(dpf, "generate", lambda alphas, *given: generate((alphas + 1) % 8, *given))
    assert not right(torch.arange(8), 8, "aes")


@pytest.mark.parametrize("prf", PRFS)
def test_keys_of_one_table_have_one_size_and_are_new_each_time(prf: str) -> None:
    for rows in (1, 1024, 1025, 70_000, 1 << 20):
        first, second, signs = dpf.generate(torch.tensor([0, rows - 1, rows // 2]), rows, prf)
        assert first.shape == second.shape == (3, key_bytes(rows)) and signs.shape == (3,)
    assert (key_bytes(1), key_bytes(1024), key_bytes(1025), key_bytes(1 << 20)) == (176, 176, 193, 346)
    assert not torch.equal(dpf.generate(torch.tensor([5]), rows, prf)[0], dpf.generate(torch.tensor([5]), rows, prf)[0])
    assert dpf.generate(torch.empty(0, dtype=torch.int64), rows, prf)[0].shape == (0, 346)


# What one key tells --------------------------------------------------------------------------------------------------

KEYS = 20_000


def strongest(features: Tensor, alphas: Tensor, bits: int) -> tuple[float, float]:
    """The largest correlation of a feature with a bit of alpha, and what chance allows, both in sigmas.

    features: uint8 (n, m), zeros and ones, functions of what one server sees. alphas: int64 (n,), uniform below 2^bits.
    If a feature is independent of alpha, the sum over n keys of (-1)^(feature + bit) is one of n independent fair
    signs, whatever the features are: sigma = sqrt(n), and it is beyond z sigma with probability at most 2 exp(-z^2 / 2)
    (Hoeffding 1963). So none of m * bits sums is beyond z = sqrt(2 ln(2 m bits / FALSE_ALARM)), but with FALSE_ALARM.
    """
    n, m = features.shape
    signs = 1 - 2 * (alphas[:, None] >> torch.arange(bits) & 1).float()
    sums = signs.sum(0)[:, None].repeat(1, m)  # of n < 2^24 signs: exact in float32
    for part, sign in zip(features.split(1000), signs.split(1000), strict=True):
        sums -= 2 * sign.T.matmul(part.float())
    return float(sums.abs().max()) / math.sqrt(n), math.sqrt(2 * math.log(2 * m * bits / FALSE_ALARM))


def bits_of(keys: Tensor) -> Tensor:
    """All bits of a key, and for each level the sum of its two control bits."""
    bits = torch.from_numpy(np.unpackbits(keys.numpy(), axis=1, bitorder="little"))
    flags = bits[:, 8 * 48 : -1024].view(len(keys), -1, 17, 8)[:, :, 16]
    return torch.cat([bits, flags[:, :, 0] ^ flags[:, :, 1]], dim=1)


@pytest.mark.parametrize("keys", [8000, pytest.param(KEYS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("prf", PRFS)
def test_no_bit_of_a_key_goes_with_a_bit_of_alpha(prf: str, keys: int) -> None:
    alphas = below(1 << 20, keys)
    first, second, signs = dpf.generate(alphas, 1 << 20, prf)
    for party in (first, second):
        found, allowed = strongest(bits_of(party), alphas, 20)
        assert found < allowed < 7.5  # so a correlation of 7.5 / sqrt(20,000) = 0.053 is seen, or of 0.084 by 8,000
    found, allowed = strongest((signs[:, None] > 0).to(torch.uint8), alphas, 20)
    assert found < allowed


@pytest.mark.parametrize("keys", [8000, pytest.param(KEYS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("prf", PRFS)
@pytest.mark.parametrize("rows", [16, 2048])
def test_no_selection_bit_goes_with_a_bit_of_alpha(prf: str, rows: int, keys: int) -> None:
    alphas = below(rows, keys)
    for party in dpf.generate(alphas, rows, prf)[:2]:
        bits = selected(party, rows)
        found, allowed = strongest(bits, alphas, rows.bit_length() - 1)
        assert found < allowed
        deviation = (2 * bits.sum(0, dtype=torch.int64) - keys).abs().max() / math.sqrt(keys)
        assert deviation < math.sqrt(2 * math.log(2 * rows / FALSE_ALARM))  # each row is selected by half of the keys


def one_root(alphas: Tensor, rows: int, prf: str) -> Tensor:
    """Both parties get the same root seed: every level's control bits are then alpha's bits."""
    random = Stream(bytes(16)).bytes(48 * len(alphas)).view(-1, 48)
    random[:, 16:32] = random[:, :16]
    return kernel.generate(alphas, rows, prf, lambda _: random.view(-1))[0]


def bits_of_alpha_in_corrections(alphas: Tensor, rows: int, prf: str) -> Tensor:
    """In one of ten keys, the lowest level's correction says which way alpha goes."""
    keys = dpf.generate(alphas, rows, prf)[0].clone()
    keys[::10, -128 - 10] = (keys[::10, -128 - 10] & 0xFE) | (alphas[::10, None] >> 10 & 1).to(torch.uint8)[:, 0]
    return keys


@pytest.mark.parametrize(
    ("leaky", "prf"), [(one_root, "aes"), (one_root, "chacha12"), (bits_of_alpha_in_corrections, "aes")]
)
def test_leaky_generators_are_found(leaky: Callable[..., Tensor], prf: str) -> None:
    alphas = below(1 << 20, KEYS)
    found, allowed = strongest(bits_of(leaky(alphas, 1 << 20, prf)), alphas, 20)
    assert found > allowed
    if leaky is one_root:  # one server reads 10 of 20 bits
        assert found == pytest.approx(math.sqrt(KEYS))


def test_drawing_again_until_the_sign_is_positive_is_found() -> None:
    alphas = below(16, 4 * KEYS)
    first, _, signs = dpf.generate(alphas, 16, "aes")
    kept = signs > 0
    found, allowed = strongest(selected(first[kept], 16), alphas[kept], 4)
    assert found > allowed  # row i is always selected where alpha = i: a correlation of 1/16, 12 sigma


@pytest.mark.parametrize("prf", PRFS)
def test_selection_bits_are_balanced(prf: str) -> None:
    """For one key: all bits, each place of a leaf, and pairs nearby, within a leaf and across leaves."""
    rows, shifts = 1 << 20, (1, 2, 7, 8, 64, 128, 512, 1024, 2048, 65536)
    allowed = math.sqrt(2 * math.log(2 * (1025 + len(shifts)) / FALSE_ALARM))
    for keys in dpf.generate(torch.tensor([77]), rows, prf)[:2]:
        bits = selected(keys, rows)[0]
        signs = 1 - 2 * bits.to(torch.int64)
        assert abs(int(signs.sum())) < allowed * math.sqrt(rows)
        assert int(signs.view(-1, 1024).sum(0).abs().max()) < allowed * math.sqrt(rows / 1024)
        for shift in shifts:
            assert abs(int((signs[shift:] * signs[:-shift]).sum())) < allowed * math.sqrt(rows - shift)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alphas", "rows", "prf", "reason"),
    [
        (torch.tensor([0, 3000]), 3000, "aes", "outside the table"),
        (torch.tensor([-1]), 3000, "aes", "outside the table"),
        (torch.tensor([2**63 - 1]), 3000, "aes", "outside the table"),
        (torch.tensor([1], dtype=torch.int32), 3000, "aes", "torch.int32"),
        (torch.tensor([1.0]), 3000, "aes", "torch.float32"),
        (torch.tensor([True]), 3000, "aes", "torch.bool"),
        (torch.tensor(1), 3000, "aes", r"\(\)"),
        (torch.tensor([[1]]), 3000, "aes", r"\(1, 1\)"),
        ([1], 3000, "aes", "list"),
        (torch.tensor([0]), 0, "aes", "rows, got 0"),
        (torch.tensor([0]), -5, "aes", "rows, got -5"),
        (torch.tensor([0]), (1 << 40) + 1, "aes", "rows, got"),
        (torch.tensor([0]), 1.5, "aes", "rows, got 1.5"),
        (torch.tensor([0]), True, "aes", "rows, got True"),
        (torch.tensor([0]), 3000, "sha", "'sha'"),
        (torch.tensor([0]), 3000, 1, "got 1"),
    ],
)
def test_bad_requests_are_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch, alphas: Tensor, rows: int, prf: str, reason: str
) -> None:
    monkeypatch.setattr(dpf, "new_seed", lambda: pytest.fail("randomness was drawn"))
    with pytest.raises(InputError, match=reason):
        dpf.generate(alphas, rows, prf)


def test_no_error_names_an_index() -> None:
    with pytest.raises(InputError) as caught:
        dpf.generate(torch.tensor([5, 123_456_789]), 3000)
    assert "123456789" not in str(caught.value) and "hint: they go from 0 to 2999" in str(caught.value)
