"""Bounds of the noise: results are exact, and what hides a server's weights is measured here.

In a coefficient of the phase of a sum of products with weights w, all outputs' polynomials together of norm ||w||_1,

    ||w||_1 (21 + 1/2)        the error of encryption, and that of rounding Q r / 2^k
    21 (2N + 1) + 1/2         the encryption of zero u pk + (e_1, e_2), whose phase is u e + e_1 + e_2 s, and the mask's
                              rounding; u and s are ternary, and each e is at most 21

are at most 21.5 ||w||_1 + 2^18 in all. A ciphertext that was switched to another key has an error of 8 N terms, digit
times error of the key: deviation 2^11.2 by 2^7.9, 2^26.6 in all, so that 2^32 is 40 deviations.

Then the server adds a flood, uniform in [-2^F, 2^F) with F = floor(log2 Q - k - 2), half of the room Q / 2^(k+1) that
decryption has, or less. Shifted by a noise e, it is another by |e| / 2^(F+1) in statistical distance: what a client
sees of a layer is within (values sent) (bound) / 2^(F+1) of what the values alone give (noise flooding: Gentry 2009).
"""

from __future__ import annotations

import math
from fractions import Fraction

from hummingbird.errors import ConfigError
from hummingbird.he.bfv.scheme import DEGREE, PARAMETERS, REST, check_bits
from hummingbird.he.scheme.ckks import NOISE
from hummingbird.he.scheme.masking import added

MOST_DISTANCE = 2.0**-30  # of what a client sees for an image from what it may see
SWITCHED = 1 << 32  # noise of a ciphertext that was switched to another key
_Q, _REST = PARAMETERS.modulus(4), math.prod(REST.primes)


def flood_bits(k: int) -> int:
    """F: the flood is uniform in [-2^F, 2^F)."""
    check_bits(k, "he.bfv.flood_bits(k)")
    return (_Q >> k + 2).bit_length() - 1


def before_flood(norm: int, switched: bool = False) -> Fraction:
    """The most that the noise of an output can be before the flood; norm: the sum of ||w||_1 of its polynomials.

    switched: of a ciphertext that was switched to another key first, where it is no more with overwhelming probability.
    """
    sent = Fraction(2 * NOISE + 1, 2) + (SWITCHED if switched else 0)
    return norm * sent + added(DEGREE, 2) + Fraction(1, 2)


def distance(norm: int, k: int, values: int, switched: bool = False) -> float:
    """How far, in statistical distance, `values` coefficients that are sent are from ones that hide all weights."""
    return float(values * before_flood(norm, switched) / (2 << flood_bits(k)))


def distance_bits(norm: int, k: int, values: int) -> float:
    """-log2 of `distance`."""
    return -math.log2(distance(norm, k, values))


def check_distance(total: float, where: str) -> None:
    """ConfigError where the distances of all layers for an image sum up to more than 2^-30."""
    if not total <= MOST_DISTANCE:
        raise ConfigError(
            f"answers would be 2^{math.log2(total):.1f} from ones that hide the weights, at most 2^-30 is allowed",
            where=where,
            hint="use smaller weights or a smaller ring k: each bit less halves the distance",
        )


def after_dropping(norm: int, k: int, switched: bool = False) -> Fraction:
    """The most that the noise of a reply can be: with the flood, divided by two primes and rounded.

    The rounding of a polynomial is at most 1/2 in each coefficient for each prime, and s is ternary: (N + 1) / 2.
    """
    dropped, rounding = PARAMETERS.primes[2:], Fraction(DEGREE + 1, 2)
    noise = before_flood(norm, switched) + (1 << flood_bits(k))
    for prime in reversed(dropped):
        noise = noise / prime + rounding
    return noise


def room_bits(norm: int, k: int, switched: bool = False) -> float:
    """log2 of the room of decryption, Q' / 2^(k+1), over the most that noise can be: results are exact above 0."""
    return math.log2(Fraction(_REST, 2 << k) / after_dropping(norm, k, switched))
