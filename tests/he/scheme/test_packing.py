"""Encodings against their definition, evaluated term by term, and what rounding costs."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

from hummingbird.errors import ConfigError
from hummingbird.he.scheme import packing
from hummingbird.he.scheme.packing import PACKINGS, constant_step, decode, encode, peak, slots, spread


def evaluated(polynomial: Tensor) -> Tensor:
    """m(zeta^(4j+1)) for all j: complex128 (n, N/2)."""
    degree = polynomial.shape[1]
    roots = [cmath.exp(1j * math.pi / degree * (4 * j + 1)) for j in range(degree // 2)]
    powers = torch.tensor([[root**k for root in roots] for k in range(degree)], dtype=torch.complex128)
    return polynomial.to(torch.complex128) @ powers


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_slots_are_values_at_roots_of_unity(kind: str) -> None:
    torch.manual_seed(0)
    degree, scale = 32, 20
    x = torch.randn(5, slots(kind, degree), dtype=torch.float64)
    m = encode(x, kind, degree, 2.0**scale)
    z = evaluated(m) * 2.0**-scale
    wanted = torch.complex(x[:, :16], x[:, 16:]) if kind == "complex" else x.to(torch.complex128)
    # A sum of N roundings, each at most 1/2: the worst case.
    assert (z - wanted).abs().max() <= degree / 2 * 2.0**-scale
    assert torch.allclose(
        decode(m.double(), kind) * 2.0**-scale, torch.view_as_real(z).movedim(-1, 1).flatten(1)[:, : x.shape[1]]
    )


def test_real_slots_multiply() -> None:
    """The product mod X^N + 1, by its definition, is the slots' product."""
    torch.manual_seed(1)
    degree = 16
    x, y = (torch.randn(1, degree // 2) for _ in range(2))
    a, b = (encode(v, "real", degree, 2.0**20)[0].tolist() for v in (x, y))
    product = [0] * degree
    for i in range(degree):
        for j in range(degree):
            product[(i + j) % degree] += a[i] * b[j] * (1 if i + j < degree else -1)
    got = decode(torch.tensor([product], dtype=torch.float64), "real") * 2.0**-40
    # Each factor is off by N/2 2^-20 at most, times the other's size of at most 4.
    assert torch.allclose(got, (x * y).double(), atol=2 * 4 * degree / 2 * 2.0**-20)


@pytest.mark.parametrize("kind", PACKINGS)
def test_what_comes_back(kind: str) -> None:
    """Fewer values than slots, rounding as predicted, and coefficients no larger than promised."""
    torch.manual_seed(2)
    degree, scale = 2048, 12
    count = slots(kind, degree) - 3
    x = torch.rand(20, count) * 2 - 1
    m = encode(x, kind, degree, 2.0**scale)
    assert m.dtype == torch.int32 and m.shape == (20, degree)
    assert int(m.abs().max()) <= peak(kind) * 2**scale + 1
    back = decode(m.double(), kind) * 2.0**-scale
    wrong = back[:, :count] - x
    # m_k = -m_{N-k} for real slots: their roundings are in pairs, which doubles the variance.
    expected = math.sqrt((1 + (kind == "real")) / 12) * spread(kind, degree) * 2.0**-scale
    assert float(wrong.square().mean().sqrt()) == pytest.approx(expected, rel=0.05)  # of 20,000 values or more
    if kind == "coefficients":
        assert not back[:, count:].any() and float(wrong.abs().max()) <= 2.0 ** -(scale + 1)


def test_complex_packing_reaches_its_peak() -> None:
    """The bound on coefficients cannot be smaller: values that turn against the roots add up in one."""
    degree = 64
    roots = torch.tensor([cmath.exp(1j * math.pi / degree * (4 * j + 1) * 5) for j in range(degree // 2)])
    x = torch.cat([roots.real, roots.imag])[None]
    assert int(encode(x, "complex", degree, 2.0**20).abs().max()) == pytest.approx(2**20, rel=1e-6)
    assert float(x.abs().max()) > 0.99


@pytest.mark.parametrize("kind", PACKINGS)
def test_the_constant_one(kind: str) -> None:
    """Where a constant is added: ones there decode to 1 in every slot, both parts of a complex one."""
    one = torch.zeros(1, 64, dtype=torch.float64)
    one[:, :: constant_step(kind, 64)] = 1
    assert torch.allclose(decode(one, kind), torch.ones(1, slots(kind, 64), dtype=torch.float64))


@pytest.mark.parametrize("kind", PACKINGS)
def test_every_slot_has_its_own_scale(kind: str) -> None:
    """Huge values in some slots cost the others nothing: errors are of the rounding, whatever the scales."""
    torch.manual_seed(3)
    degree = 256
    scales = 2.0 ** torch.randint(5, 25, (slots(kind, degree),))
    x = torch.randn(5, slots(kind, degree), dtype=torch.float64)
    wrong = decode(encode(x, kind, degree, scales).double(), kind) - x * scales
    assert float(wrong.square().mean().sqrt()) == pytest.approx(
        math.sqrt((1 + (kind == "real")) / 12) * spread(kind, degree), rel=0.1
    )


def test_unknown_packing() -> None:
    with pytest.raises(ConfigError, match="'dense'"):
        packing.slots("dense", 64)
