"""Ring degrees, primes, and the two tables that bound log2 Q at 128 bits of security.

The modulus Q is a product of the largest primes q = 1 mod 2N below 2^26. With residues of 26 bits, float64 computes the
product of a residue and a weight, and long sums of such products, exactly. All primes count for security, also those
that the first rescaling drops.

Tables: Albrecht et al., "Homomorphic encryption security standard" (2018), table 1, and Bossuat et al., "Security
guidelines for implementing homomorphic encryption" (ePrint 2024/463), table 5.2; classical, ternary secret. Parameters
must pass both: the server checks when it chooses them, the client when it receives them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hummingbird.errors import ConfigError, InputError
from hummingbird.kernels.ciphertexts import Ring, largest_primes

STANDARD_2018 = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
GUIDELINES_2024 = {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868}
TABLES = {"2018": STANDARD_2018, "2024": GUIDELINES_2024}
DEGREES = tuple(STANDARD_2018)
PRIME_BITS = 26


@dataclass(frozen=True)
class Parameters:
    """Checked parameters of the encryption: the degree N of polynomials, and the primes whose product is the modulus Q.

    Two published tables bound log2 Q for 128 bits of security; they stand in he/scheme/params.py, by the year. Raises
    ConfigError for a degree that they do not have, for primes unsuitable for this degree, and for a log2 Q above one of
    the bounds.

        choose(2048, 2).limits == {"2018": 54, "2024": 53}
    """

    degree: int
    primes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_degree(self.degree)
        try:
            Ring.of(self.degree, self.primes)
        except InputError as error:
            raise ConfigError(error.what, where="parameters", hint=error.hint) from None
        for year, table in TABLES.items():
            if self.bits > table[self.degree]:
                raise ConfigError(
                    f"not secure: log2 Q is {self.bits:.1f}, and the table of {year} allows {table[self.degree]} at "
                    f"degree {self.degree}",
                    where="parameters",
                    hint="take fewer primes, or twice the degree",
                )

    @property
    def bits(self) -> float:
        """log2 of the modulus Q, the product of all primes."""
        return sum(math.log2(prime) for prime in self.primes)

    @property
    def limits(self) -> dict[str, int]:
        """The largest log2 Q that each security table allows for this degree, by the table's year; Q is the modulus."""
        return {year: table[self.degree] for year, table in TABLES.items()}

    @property
    def ring(self) -> Ring:
        """The ring of polynomials modulo all primes, in which ciphertexts are computed."""
        return Ring.of(self.degree, self.primes)

    def modulus(self, count: int) -> int:
        """Return the product of the first `count` primes."""
        return math.prod(self.primes[:count])


def choose(degree: int, count: int) -> Parameters:
    """Make parameters of the `count` largest primes of 26 bits for a degree. Raises ConfigError if these are not
    secure.

    degree: number of coefficients of a polynomial.
    """
    check_degree(degree)
    if not 1 <= count <= most_primes(degree):
        what = f"{count} primes of {PRIME_BITS} bits at degree {degree}, at most {most_primes(degree)} are secure"
        raise ConfigError(what, where="parameters", hint="take fewer primes, or twice the degree")
    return Parameters(degree, largest_primes(degree, count))


def most_primes(degree: int) -> int:
    """Return the largest number of 26-bit primes that both security tables allow for a degree."""
    return min(table[degree] for table in TABLES.values()) // PRIME_BITS


def check_degree(degree: int) -> None:
    """Raise ConfigError unless the security tables have this degree."""
    if degree not in DEGREES:
        known = ", ".join(str(n) for n in DEGREES)
        raise ConfigError(f"the ring's degree is {degree}", where="degree", hint=f"one of {known}")
