"""Circuit privacy: a masked answer reveals its value to the client, which has the key, and nothing else.

The parts of an answer (c_0, .., c_k) are polynomials in the ciphertexts that the client sent, with the weights as
coefficients, and so is the error of the phase sum_i c_i s^i. The client sends an encryption of zero (b, a), b = e - a
s. For every ciphertext and every i < k the server draws small r_i, f_i, g_i (ternary; centred binomial) and a large
flood F, and sends

    c_i + [r_i b + f_i] + [r_{i-1} a + g_{i-1}] (+ F for i = 0).

The phase grows by F and by

    sum_i s^i (r_i e + f_i + g_i s),    |f| <= 21, r and s ternary.

Every coefficient of r_i e and of g_i s is a sum of at most N products of a ternary number with an error of its own. A
centred binomial error is half a sum of 42 random signs, so such a sum X is sub-Gaussian with the variance 21 N / 2
(Hoeffding 1963): |X| > t with a probability of at most 2 exp(-t^2 / (21 N)), which is 2^-95 for t^2 = 21 N ln(2^96).
So all of it is, in a coefficient, at most

    (2 t + 21) (1 + N + .. + N^(k-1)),    but for a probability of at most 2 k 2^-95 for each coefficient.

The errors e are those of an honest client's encryption, which draws new ones for each request; s may be any. (Without
this argument the first factor is 21 (2N + 1), 5 bits more at N = 4096, and nets need more primes.)

F is uniform over an interval of width 2^B in every coefficient. So the phase of each ciphertext is within N (bound /
2^B + 2 k 2^-95) of the exact one plus F, in statistical distance, also beside the small polynomials. c_0 follows from
the phase and the other parts. Of the other parts only c_1 contains r_0, and r_0 a + g_0 is a sample of ring learning
with errors under the secret r_0: if that problem is as hard as the parameters assume, c_1 looks uniform to the client
too. Then only c_2 contains r_1, and so on to c_k.

The server does not switch the modulus before it masks. So the exact phase is the net with integer weights, evaluated on
the client's own plaintexts and encryption errors, and later steps cannot reveal more. Up to the distance above,
everything that the client sees can be simulated from the net's value at its own input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.he.scheme.ckks import NOISE, VARIANCE
from hummingbird.kernels import ciphertexts
from hummingbird.kernels.ciphertexts import Ring, encrypt, encrypt_ntt, noise, ternary, wide

DISTANCE = 40  # bits: a batch's answers are within 2^-DISTANCE of ones that depend only on the net's values
_TAIL = 95  # bits: each sum of errors exceeds its bound with a probability of at most 2^-95


def added(degree: int, size: int) -> int:
    """Return a bound on what masking changes in a coefficient of a decrypted ciphertext, apart from the flood.

    The flood is the large uniform noise that hides the weights; masking also adds random encryptions of zero. The bound
    holds for any randomness. degree: number of coefficients of a polynomial. size: components of the ciphertext.
    """
    return NOISE * (2 * degree + 1) * sum(degree**i for i in range(size - 1))


def likely(degree: int, size: int) -> int:
    """Return the bound that holds in `added`'s place with all but the probability `unlikely`, and is much smaller.

    degree: number of coefficients of a polynomial. size: components of the ciphertext.
    """
    inner = 2 * math.sqrt(2 * VARIANCE * degree * (_TAIL + 1) * math.log(2)) + NOISE
    return math.ceil(inner) * sum(degree**i for i in range(size - 1))


def unlikely(size: int) -> float:
    """Return the probability with which the bound `likely` may fail in one coefficient. size: components."""
    return 2 * (size - 1) * 2.0**-_TAIL


def distance_bits(flood: int, degree: int, size: int, count: int) -> float:
    """Return -log2 of the statistical distance of masked ciphertexts from ciphertexts simulated without the weights.

    flood: log2 of the range of the noise that hides the weights. degree, size: degree and number of components of a
    ciphertext. count: number of ciphertexts.
    """
    return -math.log2(degree * count * (likely(degree, size) * 2.0**-flood + unlikely(size)))


def deviation(flood: int) -> float:
    """Return the standard deviation of the flood, the uniform noise that masks each coefficient of an answer.

    flood: log2 of the width of its range. The rest of the mask is smaller by a factor of 2^40 at least,
    but for the probability `unlikely`.
    """
    return 2.0**flood / math.sqrt(12)


@dataclass(frozen=True)
class Mask:
    """How the server hides the weights in a value that it returns: it multiplies the value by 2^lift, and adds noise.

    lift: makes room for the noise, so that the value keeps its right bits.
    flood: log2 of the width of the range over which the noise, called the flood, is uniform.
    """

    lift: int
    flood: int


def masked(ring: Ring, c: Tensor, zero: Tensor, flood: int, form: str) -> Tensor:
    """Mask ciphertexts, so that the client learns their values and nothing else; return the masked ciphertexts.

    c: the ciphertexts, int32 (n, components, primes, N); the result has this shape too.
    zero: the client's encryption of zero, int32 (2, primes, N).
    flood: log2 of the width of the range of the noise that is added.
    form: of c, `zero` and the result: "mixed" if component 0 is given as coefficients and the others are transformed
    (NTT), "ntt" if all are transformed.
    Fresh randomness is drawn here for each ciphertext.
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
    """Return r p + e for each of n ciphertexts: every one has its own polynomials r and e, and all have the same p.

    r: int32 (n, primes, N), transformed (NTT). shared: the polynomial p, int32 (primes, N), transformed.
    error: e, given as coefficients, int32 (n, N).
    form: "mixed" for a result as coefficients, "ntt" for a transformed one, int32 (n, primes, N).
    The encryption kernel computes m + e - a s; here m = 0, a = r and s = -p.
    """
    zeros = torch.zeros_like(error)
    return (encrypt if form == "mixed" else encrypt_ntt)(ring, zeros, error, r, -shared)
