"""Circuit privacy: an answer is masked until it shows the client, who has the key, its value and nothing of its making.

The parts of an answer (c_0, .., c_k) are polynomials in what the client sent, with weights for coefficients, and so is
the error of the phase sum_i c_i s^i. The client sends an encryption of zero (b, a), b = e - a s. For every ciphertext
and every i < k the server draws small r_i, f_i, g_i (ternary; centred binomial) and a large flood F, and sends

    c_i + [r_i b + f_i] + [r_{i-1} a + g_{i-1}] (+ F for i = 0).

The phase grows by F and by

    sum_i s^i (r_i e + f_i + g_i s),    at most 21 (2N + 1) (1 + N + .. + N^(k-1)) in a coefficient,

as |e|, |f|, |g| <= 21 and r, s are ternary. F is uniform over an interval of width 2^B in every coefficient, so for
each ciphertext the phase is within N bound / 2^B of the exact one plus F, in statistical distance, whatever the small
polynomials are. c_0 follows from the phase and the other parts; apart from it r_0 is in c_1 alone, and r_0 a + g_0 is a
sample of ring learning with errors under the secret r_0: by the hardness that the parameters are chosen for, c_1 looks
uniform to the client too. Then r_1 is in c_2 alone, and so on to c_k.

The server divides by no prime before the mask, so the exact phase is the net with whole weights at what the client
encrypted, its own errors of encryption included; what is done after the mask cannot tell more. So all that the client
sees can be made, but for that distance, from the net's value at its own input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.he.scheme.ckks import NOISE
from hummingbird.kernels import ciphertexts
from hummingbird.kernels.ciphertexts import Ring, encrypt, encrypt_ntt, noise, ternary, wide

DISTANCE = 40  # bits: answers to a batch are at most 2^-DISTANCE from ones that depend on the net's values alone


def added(degree: int, size: int) -> int:
    """The most that masking without the flood adds to a coefficient of the phase of a ciphertext of `size` parts."""
    return NOISE * (2 * degree + 1) * sum(degree**i for i in range(size - 1))


def distance_bits(flood: int, degree: int, size: int, count: int) -> float:
    """-log2 of the statistical distance of `count` ciphertexts under a flood of 2^flood."""
    return flood - math.log2(added(degree, size)) - math.log2(degree * count)


def deviation(flood: int) -> float:
    """Deviation of a coefficient of the flood; all else that masking adds is below 2^-DISTANCE of it."""
    return 2.0**flood / math.sqrt(12)


@dataclass(frozen=True)
class Mask:
    """Mask of a value that is sent back: its integers are multiplied by 2^lift, for room, and flooded with 2^flood."""

    lift: int
    flood: int


def masked(ring: Ring, c: Tensor, zero: Tensor, flood: int, form: str) -> Tensor:
    """Ciphertexts masked by a client's encryption of zero: int32 (n, size, L, N) to the same shape.

    zero: int32 (2, L, N), of this form. flood: B. Randomness is drawn here, for each ciphertext its own.
    """
    n, size, primes, degree = c.shape
    b, a = zero[0] if form == "ntt" else ring.ntt(zero[:1].contiguous())[0], zero[1]
    secret, first, second = (prg.fresh(c.device) for _ in range(3))
    parts = list(c.unbind(1))
    for i in range(size - 1):
        r = ternary(secret, n * degree).view(n, degree)
        r = ring.ntt(r[:, None].expand(-1, primes, -1).contiguous())
        low = _product(ring, r, b, noise(first, n, degree), form if i == 0 else "ntt")
        high = _product(ring, r, a, noise(second, n, degree), "ntt")
        parts[i] = ciphertexts.add(ring, parts[i].contiguous(), low)
        parts[i + 1] = ciphertexts.add(ring, parts[i + 1].contiguous(), high)
    over = wide(ring, prg.fresh(c.device), n, flood)
    parts[0] = ciphertexts.add(ring, parts[0], over if form == "mixed" else ring.ntt(over))
    return torch.stack(parts, 1)


def _product(ring: Ring, r: Tensor, shared: Tensor, error: Tensor, form: str) -> Tensor:
    """r times one polynomial, plus an error: the kernel of encryption, which computes m + e - r s, with s = -shared."""
    zeros = torch.zeros_like(error)
    return (encrypt if form == "mixed" else encrypt_ntt)(ring, zeros, error, r, -shared)
