"""Noise bounds: they show that results are exact, and how well answers hide the server's weights.

A coefficient of the phase of a sum of products, whose weight polynomials have the norm ||w||_1 together, has the noise

    ||w||_1 (21 + 1/2)        from the errors of encryption and of rounding Q r / 2^k
    21 (2N + 1) + 1/2         from the encryption of zero u pk + (e_1, e_2), whose phase is u e + e_1 + e_2 s, and from
                              rounding the mask; u and s are ternary, and each e is at most 21

which is at most 21.5 ||w||_1 + 2^18. A ciphertext that was switched to another key also has an error of 8 N terms, each
a digit (deviation 2^11.2) times an error of the key (2^7.9): a deviation of 2^26.6, so that 2^32 is 40 deviations.

Then the server adds a flood, uniform in [-2^F, 2^F) with F = floor(log2 Q - k - 2): at most half of Q / 2^(k+1), the
largest noise that decrypts correctly. The statistical distance between the flood and the flood plus a noise e is
|e| / 2^(F+1). So the client's view of a layer is within (values sent) (bound) / 2^(F+1) of a view simulated from the
values alone (noise flooding: Gentry 2009).
"""

from __future__ import annotations

import math
from fractions import Fraction

from hummingbird.errors import ConfigError
from hummingbird.he.bfv.scheme import DEGREE, PARAMETERS, REST, check_bits
from hummingbird.he.scheme.ckks import NOISE
from hummingbird.he.scheme.masking import added

MOST_DISTANCE = 2.0**-30  # statistical distance of a client's view, for one image, from one that hides the weights
SWITCHED = 1 << 32  # bound on the noise of a ciphertext that was switched to another key
_Q, _REST = PARAMETERS.modulus(4), math.prod(REST.primes)


def flood_bits(k: int) -> int:
    """Return F, the size of the flood in bits: the flood is noise, uniform in [-2^F, 2^F), that hides a server's
    weights.

    The server adds it to each coefficient of a reply. k: bits of a plaintext value.
    """
    check_bits(k, "he.bfv.flood_bits(k)")
    return (_Q >> k + 2).bit_length() - 1


def before_flood(norm: int, switched: bool = False) -> Fraction:
    """Bound the noise of an output's coefficient before the server adds the flood, the large noise that hides the
    weights.

    The bound is a Fraction; 1 is one step of a coefficient mod Q, the product of all four primes.
    norm: the factor by which weights enlarge noise, from `Layout.norms`.
    switched: whether the input was switched to another key; then the bound holds with overwhelming probability.
    """
    sent = Fraction(2 * NOISE + 1, 2) + (SWITCHED if switched else 0)
    return norm * sent + added(DEGREE, 2) + Fraction(1, 2)


def distance(norm: int, k: int, values: int, switched: bool = False) -> float:
    """Bound the statistical distance of a reply's coefficients from ones that do not depend on the weights; return a
    float.

    norm: the factor by which weights enlarge noise, from `Layout.norms`. k: bits of a plaintext value.
    values: how many coefficients the reply sends. switched: whether the input was switched to another key.
    """
    return float(values * before_flood(norm, switched) / (2 << flood_bits(k)))


def distance_bits(norm: int, k: int, values: int) -> float:
    """Return -log2 of the bound from `distance`: how many bits of security the weights have against the client.

    norm: the factor by which weights enlarge noise, from `Layout.norms`. k: bits of a plaintext value.
    values: how many coefficients the reply sends.
    """
    return -math.log2(distance(norm, k, values))


def check_distance(total: float, where: str) -> None:
    """Raise ConfigError if the replies to one image could reveal something about the weights.

    total: the sum of `distance` over all layers, which may be at most 2^-30. where: the place that the error names.
    """
    if not total <= MOST_DISTANCE:
        raise ConfigError(
            f"answers would be 2^{math.log2(total):.1f} from ones that hide the weights, at most 2^-30 is allowed",
            where=where,
            hint="use smaller weights or a smaller ring k: each bit less halves the distance",
        )


def after_dropping(norm: int, k: int, switched: bool = False) -> Fraction:
    """Bound the noise of a coefficient of a reply as it is sent: after the flood, and after division by two of four
    primes.

    The bound is a Fraction; 1 is one step of a coefficient mod the product of the two primes that remain.
    The flood is the noise that hides the weights.
    norm: the factor from `Layout.norms`. k: bits of a plaintext value.
    switched: whether the input was switched to another key.
    Each division rounds both polynomials, which changes a coefficient of the decrypted one by at most (N + 1) / 2.
    """
    dropped, rounding = PARAMETERS.primes[2:], Fraction(DEGREE + 1, 2)
    noise = before_flood(norm, switched) + (1 << flood_bits(k))
    for prime in reversed(dropped):
        noise = noise / prime + rounding
    return noise


def room_bits(norm: int, k: int, switched: bool = False) -> float:
    """Return log2 of the largest noise that decrypts correctly over the bound on a reply's noise.

    If the result is above 0, decrypted values are exact. The largest noise is Q' / 2^(k+1), where Q' is the product of
    the two primes of a reply.
    norm: the factor by which weights enlarge noise, from `Layout.norms`. k: bits of a plaintext value.
    switched: whether the input was switched to another key.
    """
    return math.log2(Fraction(_REST, 2 << k) / after_dropping(norm, k, switched))
