"""The twin's comparison: the torch reference against Python's integers, and each C++ version against it bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.errors import InputError
from hummingbird.kernels import Cut
from hummingbird.kernels.cpu import simulation as cpu
from hummingbird.kernels.reference import simulation as reference
from hummingbird.kernels.reference.simulation import drawn
from hummingbird.kernels.registry import best
from hummingbird.kernels.simulation import word
from hummingbird.mpc.protocols.gmw import GmwLaw
from hummingbird.mpc.protocols.law import UNIT, Law
from hummingbird.mpc.protocols.masked import MaskedLaw

FALSE_ALARM = 1e-9  # of one statistical check; there are below 100 in this file
SIZES = [0, 1, 7, 1023, 1025, 5000]
WINDOWS = [
    (2, 0),
    (8, 3),
    (20, 0),
    (20, 8),
    (20, 12),
    (31, 16),
    (32, 16),
    (24, 20),
    (36, 0),
    (48, 33),
    (63, 8),
    (64, 0),
    *((8, 5), (20, 9), (40, 16), (48, 20), (64, 6)),  # those of ROUNDED alone
]
LAWS: list[Any] = [(MaskedLaw, 2), (GmwLaw, 2), (GmwLaw, 4, True)]
ROUNDED = [
    MaskedLaw(k, m, 2, q=q)
    for k, m, q in ((8, 5, 2), (20, 12, 6), (20, 9, 9), (31, 16, 1), (40, 16, 16), (48, 20, 7), (64, 6, 6))
]


def laws(k: int, m: int) -> list[Law]:
    return [law(k, m, *more) for law, *more in LAWS] + [law for law in ROUNDED if (law.k, law.m) == (k, m)]


def values(n: int, k: int, dtype: torch.dtype) -> Tensor:
    """Values around zero, all over several windows, and on and beside their edges and the ties of rounding."""
    width = 2.0 ** (k - 16)
    generator = torch.Generator().manual_seed(n)
    whole = torch.randint(-3, 4, (2, n), generator=generator)
    places = [torch.randn(n, generator=generator) * scale for scale in (width, 3.0, 20 * UNIT)]
    places += [whole[0] * width / 2 + whole[1] * UNIT / 2, torch.randint(-99, 99, (n,), generator=generator) * UNIT / 2]
    kind = torch.randint(0, len(places), (n,), generator=generator)
    return torch.stack(places).gather(0, kind[None])[0].to(dtype)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


# Random numbers -----------------------------------------------------------------------------------------------------


def test_words_are_those_of_splitmix64() -> None:
    """The published test vector of the generator with state 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [word(1234567, index) for index in range(4)] == expected


@pytest.mark.parametrize(("m", "draws"), [(0, 0), (1, 1), (12, 1), (16, 3), (17, 1), (32, 2), (40, 1), (63, 2)])
def test_u_is_cut_from_the_words(m: int, draws: int) -> None:
    key, bits = 2**64 - 3, 16 if m <= 16 else 32
    each, expected = 64 // bits, []
    for place in range(103):
        words = [word(key, place // each * draws + number) for number in range(draws)]
        parts = [x >> bits * (place % each) & (1 << bits) - 1 for x in words]
        total = sum(part >> bits - m if m <= bits else part << m - bits for part in parts)
        expected.append((total + 2**63) % 2**64 - 2**63)
    assert drawn(103, key, m, draws, torch.device("cpu")).tolist() == expected
    assert drawn(50, key, m, draws, torch.device("cpu")).tolist() == expected[:50]


@pytest.mark.parametrize("m", [3, 12, 16, 20])
def test_numbers_are_uniform_and_independent_of_neighbours_and_of_other_keys(m: int) -> None:
    """Every bit, and every pair of the top bits of places nearby or of keys nearby, is as likely as it should be."""
    n, device = 1 << 16, torch.device("cpu")
    # Hoeffding 1963: a sum of n independent numbers in [0, 1] leaves its mean by this with that probability.
    allowed = math.sqrt(n * math.log(2 / FALSE_ALARM) / 2)
    u = drawn(n + 8, 7, m, 1, device)
    assert int(u.min()) >= 0 and int(u.max()) < 1 << m
    for bit in range(m):
        assert abs(int((u[:n] >> bit & 1).sum()) - n / 2) < allowed
    others = [u[shift : n + shift] for shift in range(1, 9)]
    others += [drawn(n, key, m, 1, device) for key in (6, 8, 7 + 2**32, 2**63)]
    for other in others:
        both = (u[:n] >> m - 1) ^ (other >> m - 1)
        assert abs(int(both.sum()) - n / 2) < allowed


# The reference is the law -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "m"), WINDOWS)
def test_the_reference_decides_as_the_law_of_integers(k: int, m: int) -> None:
    for law in laws(k, m):
        n, key, cut = 4000, 11, law.cut
        v = values(n, k, torch.float32)
        v = v[v.abs() < 2.0**45]  # the law's r stops at 2^62
        u = drawn(len(v), key, m, law.draws, v.device)
        # gmw subtracts: the kernel adds what is lacking from the largest sum.
        bit, z = law.decide(law.ring(v), u if isinstance(law, MaskedLaw) else law.draws * ((1 << m) - 1) - u)
        y, whole = reference.twin_relu(v, key, cut, True)
        assert whole is not None
        exact = z.double() * UNIT if law.q else v.double() + (z - law.ring(v)).double() * UNIT
        assert torch.equal(whole, exact.float()), law
        assert torch.equal(y, torch.where(bit, exact, 0.0).float()), law
        assert k == 64 or (bool(bit.any()) and not bool(bit.all()))


def test_types_hold_the_result_without_rounding() -> None:
    """A value from beyond the window passes less whole windows, in every type."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        v = (torch.arange(-2000, 2000) / 16.0).to(dtype)
        y, _ = kernels.twin_relu(v, 0, MaskedLaw(17, 0, 2).cut)
        expected = v.double() - 2 * torch.round(v.double() / 2)
        assert y.dtype == dtype and torch.equal(y.double(), expected.clamp(min=0) * (expected < 1))


def test_what_is_not_finite_stays_so() -> None:
    v = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    for law in (MaskedLaw(20, 12, 2), GmwLaw(20, 12, 2), MaskedLaw(40, 0, 2), MaskedLaw(22, 17, 2)):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            y, _ = kernels.twin_relu(v.to(dtype), 0, law.cut)
            assert not bool(y[:3].isfinite().any()) and bool(y[3].isfinite()), (law, dtype)


# C++ is the reference ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("k", "m"), WINDOWS)
def test_native_is_the_reference(isa: str, k: int, m: int, dtype: torch.dtype) -> None:
    for law in laws(k, m):
        for n in SIZES:
            v = values(n, k, dtype)
            if n > 1000:
                v[500:504] = torch.tensor([float("nan"), float("inf"), -3e38, 1e-40], dtype=dtype)
            for both in (False, True):
                ours, theirs = (run(v, 2**64 - n, law.cut, both) for run in (cpu.twin_relu, reference.twin_relu))
                assert all(same(a, b) for a, b in zip(ours, theirs, strict=True)), (law, n, both)


def test_native_runs_where_it_can(isa: str) -> None:
    v = torch.randn(64)
    for dtype in (torch.float32, torch.bfloat16):
        assert best(kernels.twin_relu, v.to(dtype)) is cpu.twin_relu
    for dtype in (torch.float16, torch.float64):
        assert best(kernels.twin_relu, v.to(dtype)) is reference.twin_relu
    assert best(kernels.twin_relu, v[::2]) is reference.twin_relu  # a strided one is not for C++
    cut = MaskedLaw(20, 12, 2).cut
    assert same(kernels.twin_relu(v[::2], 5, cut)[0], kernels.twin_relu(v[::2].contiguous(), 5, cut)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu() -> None:
    for k, m in WINDOWS:
        if k == 64:
            continue  # 2^63 becomes an integer of another sign there
        for law in laws(k, m):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                v = values(5000, k, dtype)
                here, there = (kernels.twin_relu(x, 9, law.cut, True) for x in (v, v.cuda()))
                assert all(same(a, b.cpu()) for a, b in zip(here, there, strict=True) if a is not None)


# Errors ---------------------------------------------------------------------------------------------------------------

V, CUT = torch.zeros(9), Cut(20, 12, 1, 1 << 12, (1 << 19) - (1 << 12), True, 6)
WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("v", lambda: kernels.twin_relu(V.long(), 0, CUT), "torch.int64"),
    ("v", lambda: kernels.twin_relu(V.view(3, 3), 0, CUT), "(3, 3)"),
    ("v", lambda: kernels.twin_relu([1.0], 0, CUT), "list"),  # type: ignore[arg-type]
    ("key", lambda: kernels.twin_relu(V, -1, CUT), "-1"),
    ("key", lambda: kernels.twin_relu(V, 1 << 64, CUT), str(1 << 64)),
    *[
        ("cut", lambda change=change: kernels.twin_relu(V, 0, CUT._replace(**change)), f"{change}"[2:3])
        for change in (
            {"k": 0},
            {"k": 65},
            {"m": -1},
            {"m": 64},
            {"draws": 2},
            {"draws": 4096, "wraps": False},
            {"minus": -1},
            {"minus": 4097},
            {"below": (1 << 19) + 1},
            {"q": 13},
            {"m": 20, "q": 17},
            {"wraps": False},
        )
    ],
]


@pytest.mark.parametrize(("where", "call", "got"), WRONG, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRONG)])
def test_wrong_arguments_are_named(where: str, call: Callable[[], object], got: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.where == f"kernels.twin_relu({where})"
    assert got in caught.value.what and caught.value.hint
