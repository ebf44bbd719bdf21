"""Errors of encrypted arithmetic, as deviations of integers: the precision that a plan may promise.

A fresh coefficient is off by e and by rounding the message; a value by `packing.spread` times that. A switch rounds
every component to a multiple of the primes dropped: sum_i r_i s^i with r_i uniform in [-1/2, 1/2], and s^i, for ternary
s, has an energy of about i! (2N/3)^i (moments of a complex Gaussian: s at a root of unity is a sum of N terms). That is
11 for two components at N = 2048, and 2^10.6 for three at N = 8192: why three-component ciphertexts need a scale of
2^44 or so after a switch. A weight rounded to a multiple of its unit is off by a uniform error in +-1/2 of it.
"""

from __future__ import annotations

import math

from hummingbird.he.scheme.ckks import SECRET, VARIANCE
from hummingbird.he.scheme.packing import spread

ROUNDING = 1 / 12  # variance of a uniform error in +-1/2
# Errors are kept below 2^-PRECISION of a value's root mean square, each kind for itself.
PRECISION = 12
FLOAT32 = 2.0**-25  # of a value that the client keeps


def fresh(packing: str, degree: int) -> float:
    """Deviation of a value that was encrypted, in units of the input scale."""
    # Real slots make m_k = -m_{N-k}: roundings come in pairs, and all of their energy is in the real parts.
    return math.sqrt(VARIANCE + ROUNDING * (1 + (packing == "real"))) * spread(packing, degree)


def switch(packing: str, degree: int, size: int) -> float:
    """Deviation of a value whose ciphertext of `size` components was divided by a prime, in units after that."""
    energy = sum(math.factorial(i) * (SECRET * degree) ** i for i in range(size))
    return math.sqrt(ROUNDING * energy) * spread(packing, degree)
