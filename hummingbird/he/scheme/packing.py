"""Encode real values as the integer coefficients of a polynomial, and decode them: three packings.

coefficients: N values, coefficient j is value j. Weights are scalars, so any linear encoding works, and this one costs
nothing and rounds once. complex, real: the canonical embedding of CKKS (Cheon, Kim, Kim and Song 2017), a polynomial's
values at half of the 2N-th roots of unity, where products of polynomials are products of values:

    m(zeta^(4j+1)) = sum_k (m_k + i m_{k+N/2}) zeta^k omega^(jk),   zeta = e^(i pi/N), omega = e^(2 pi i/(N/2)),

an FFT of N/2 points after a twist, as zeta^((4j+1)N/2) = i. complex puts two values into a slot, j and j + N/2
(nGraph-HE2, section 4.2: then no ciphertext may multiply a ciphertext); real puts one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import ConfigError

PACKINGS = ("coefficients", "complex", "real")


def slots(packing: str, degree: int) -> int:
    """Return the number of slots of a ciphertext: how many values, one for each image, its polynomial encodes.

    Raises ConfigError for an unknown packing.
    """
    if packing not in PACKINGS:
        raise ConfigError(f"packing={packing!r}", where="packing", hint=f"None, or one of {', '.join(PACKINGS)}")
    return degree // 2 if packing == "real" else degree


def spread(packing: str, degree: int) -> float:
    """Return by what factor decoding enlarges errors of the coefficients.

    If coefficients have independent errors of standard deviation 1, the result is the standard deviation of a decoded
    value.
    packing: "coefficients", "complex" or "real". degree: number of coefficients of a polynomial.
    """
    return 1.0 if packing == "coefficients" else math.sqrt(degree / 2)


def peak(packing: str) -> float:
    """Return how large a coefficient can be in a polynomial that encodes values of at most 1 in absolute value.

    A coefficient is a mean of values times roots of unity.
    """
    return math.sqrt(2) if packing == "complex" else 1.0


def encode(values: Tensor, packing: str, degree: int, scales: Tensor | float) -> Tensor:
    """Encode values times their scales as polynomials with integer coefficients; return these, int32 (n, N).

    values: float (n, count), a row for each polynomial, with at most `slots` values.
    packing: "coefficients", "complex" or "real". degree: N, the number of coefficients.
    scales: one number for all values, or a tensor (count,) with one for each value of a row.
    The product |value| * scale * m must be below 2^30, where m is 1, or sqrt(2) for "complex" (`peak`).
    """
    count = values.shape[1]
    if packing == "coefficients":
        out = torch.zeros(values.shape[0], degree, dtype=torch.int32, device=values.device)
        out[:, :count] = (values * scales).round_()
        return out
    half, n = degree // 2, values.shape[0]
    values = values * scales
    if count < degree:
        values = F.pad(values, (0, degree - count))
    out = torch.empty(n, 2, half, dtype=torch.int32, device=values.device)
    factors = _twist(degree).conj_physical().to(values.device) / half
    for piece, place in _pieces(values.view(n, 2, half), out):
        piece = piece.double()
        twisted = torch.fft.fft(torch.complex(piece[:, 0], piece[:, 1])).mul_(factors)
        place.copy_(torch.view_as_real(twisted).round_().movedim(2, 1))
    return out.view(n, degree)


def decode(coefficients: Tensor, packing: str) -> Tensor:
    """Decode polynomials to their values times the scale: float64 (n, N) to float64 (n, slots).

    packing: "coefficients", "complex" or "real".
    """
    if packing == "coefficients":
        return coefficients
    n, degree = coefficients.shape
    half, parts = degree // 2, 1 if packing == "real" else 2
    out = torch.empty(n, parts, half, dtype=torch.float64, device=coefficients.device)
    twist = _twist(degree).to(coefficients.device)
    for piece, place in _pieces(coefficients.view(n, 2, half), out):
        values = torch.fft.ifft(torch.complex(piece[:, 0], piece[:, 1]).mul_(twist), norm="forward")
        place.copy_(torch.view_as_real(values).movedim(2, 1)[:, :parts])
    return out.view(n, -1)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors along the first dimension, and yield their pieces together, as tuples: a piece of each tensor.

    Tensors on a CPU are cut into pieces of 32 polynomials, so small that several passes over one stay in the cache.
    Others are not cut.
    """
    size = 32 if tensors[0].is_cpu else max(1, len(tensors[0]))
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def constant_step(packing: str, degree: int) -> int:
    """Return the distance between the coefficients that are 1 in the polynomial that encodes the value 1 in all slots.

    The first of them is coefficient 0; all coefficients between them are 0.
    """
    return {"coefficients": 1, "complex": degree // 2, "real": degree}[packing]


@lru_cache(maxsize=8)
def _twist(degree: int) -> Tensor:
    """Return the factors zeta^k for k from 0 to N/2 - 1, zeta = e^(i pi / N): complex128 (N/2,).

    With these factors an FFT evaluates a polynomial as the encoding needs it (canonical embedding). degree: N.
    """
    angles = torch.arange(degree // 2, dtype=torch.float64) * (math.pi / degree)
    return torch.polar(torch.ones_like(angles), angles)
