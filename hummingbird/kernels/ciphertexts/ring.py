"""The ring Z[X]/(X^N + 1) modulo several primes, and its number-theoretic transform.

A residue is kept centred, in (-q/2, q/2), as int32; a polynomial modulo q_0 .. q_{L-1} has shape (L, N). With zeta a
primitive 2N-th root of one mod q, X^N + 1 = prod_p (X - zeta^order[p]), and the transform evaluates the polynomial:
value p is x(zeta^order[p]), so products of polynomials are products of values. order[p] = 2 reversed(p) + 1, the bits
of p reversed, and zeta = x^((q-1)/2N) for the smallest x >= 2 for which that is primitive. Both are part of the format,
as transformed values cross the network.

reference/ciphertexts/ring.py has the transform in torch, csrc/ntt.h has it in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best

# Roots of unity ------------------------------------------------------------------------------------------------------
#
# The tables of every transform hold roots of unity modulo a prime, along which X^N + 1 splits: zeta is a primitive
# 2N-th root of one, so zeta^N = -1, and X^m - c = (X^{m/2} - c^{1/2}) (X^{m/2} + c^{1/2}) from X^N - zeta^N down to
# X - zeta^e, for every odd e (Seiler, ePrint 2018/039).


@lru_cache(maxsize=256)
def root(degree: int, q: int) -> int:
    """Return zeta, a 2N-th root of one mod q, N the degree, whose powers below 2N are all different (module head)."""
    roots = (pow(x, (q - 1) // (2 * degree), q) for x in range(2, q))
    return next(zeta for zeta in roots if pow(zeta, degree, q) == q - 1)


def exponents(degree: int, parts: int) -> Tensor:
    """Return the exponents e_i of the factors X^{N/parts} - zeta^e_i, whose product is X^N + 1: int64 (parts,).

    degree: N. parts: the number of factors, a power of two. zeta: the 2N-th root of one that the function `root`
    returns. X^m - zeta^e is the product of the two factors of half the degree with the exponents e/2 and e/2 + N.
    """
    e = torch.tensor([degree])
    while e.numel() < parts:
        e = torch.stack([e // 2, e // 2 + degree], 1).flatten()
    return e


def powers(degree: int, q: int) -> Tensor:
    """Compute all powers zeta^i mod q, 0 <= i < 2N, centred: int64 (2N,).

    zeta: the 2N-th root of one that the function `root` returns. degree: N.
    """
    out, factor = torch.ones(1, dtype=torch.int64), root(degree, q)
    while out.numel() < 2 * degree:
        out = torch.cat([out, out * factor % q])  # below 2^52
        factor = factor * factor % q
    return centred(out, q)


def centred(x: Tensor, q: int) -> Tensor:
    """Reduce integers modulo q to residues between -q/2 and q/2; returns a tensor of the same type."""
    half = q // 2
    return torch.remainder(x + half, q) - half


# The ring ------------------------------------------------------------------------------------------------------------

DEGREES = tuple(1 << bits for bits in range(10, 16))
BITS = 26  # every prime is between 2^25 and 2^26
MOST_PRIMES = 64


@dataclass(frozen=True)
class Ring:
    """The ring Z[X]/(X^N + 1) modulo each of several primes; `Ring.of` makes one.

    degree: N, a power of two from 1024 to 32768. primes: at most 64, distinct, 1 mod 2N, between 2^25 and 2^26.
    """

    degree: int
    primes: tuple[int, ...]

    @staticmethod
    def of(degree: int, primes: Sequence[int]) -> Ring:
        """Make the ring of this degree and these primes; InputError unless they are as `Ring` documents.

        Ring.of(2048, largest_primes(2048, 2)).ntt(torch.zeros(2, 2048, dtype=torch.int32))
        """
        for number in (degree, *primes):
            if type(number) is not int:  # the cache below takes 2048.0 for 2048
                hint = "the degree and the primes are whole numbers"
                raise InputError(f"{number!r} is no whole number", where="kernels.Ring.of", hint=hint)
        return _checked(degree, tuple(primes))

    def take(self, count: int) -> Ring:
        """Return the ring of the same degree with only the first `count` primes."""
        if not 1 <= count <= len(self.primes):
            what = f"{count} of {len(self.primes)} primes"
            raise InputError(what, where="kernels.Ring.take(count)", hint="take at least one, at most all")
        return Ring(self.degree, self.primes[:count])

    @property
    def order(self) -> Tensor:
        """Return the exponents of the points at which a transform evaluates a polynomial: NTT value p is
        x(zeta^order[p]).

        x: the polynomial. The result is int64 (N,); the points are the N roots of X^N + 1. zeta: the 2N-th root of one
        that the function `root` returns.
        """
        return exponents(self.degree, self.degree)

    def ntt(self, x: Tensor) -> Tensor:
        """Compute the NTT values of polynomials (number-theoretic transform), modulo each of the ring's L primes.

        x: coefficients, int32 (..., L, N), of absolute value <= 2^25. Returns centred values of the same shape.
        InputError for another type or shape.
        """
        self.check(x, "kernels.Ring.ntt(x)")
        return transform(self, x, False)

    def intt(self, x: Tensor) -> Tensor:
        """Compute the coefficients of polynomials from their NTT values: the inverse of `ntt`, modulo each prime.

        x: values of absolute value <= 2^25, int32 (..., L, N). Returns centred coefficients of the same shape. Raises
        as `ntt`.
        """
        self.check(x, "kernels.Ring.intt(x)")
        return transform(self, x, True)

    def check(self, x: Tensor, where: str, dims: int | None = None) -> None:
        """Raise InputError unless x is int32 (..., L, N), with L the number of this ring's primes and N its degree.

        dims: how many dimensions x must have; None: any number. where: the argument's name.
        """
        shape = (len(self.primes), self.degree)
        right = isinstance(x, Tensor) and x.dtype == torch.int32 and x.shape[-2:] == shape
        if not right or dims not in (None, x.dim()):
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            what = f"expected torch.int32 (..., {shape[0]}, {shape[1]}), got {got}"
            hint = "residues are int32, the primes in the second last dimension"
            raise InputError(what, where=where, hint=hint)


@lru_cache(maxsize=64)
def _checked(degree: int, primes: tuple[int, ...]) -> Ring:
    where = "kernels.Ring.of"
    if degree not in DEGREES:
        raise InputError(f"degree {degree}", where=where, hint="a power of two from 1024 to 32768")
    if not 1 <= len(set(primes)) == len(primes) <= MOST_PRIMES:
        hint = f"give each prime once, at least one and at most {MOST_PRIMES}"
        raise InputError(f"{len(primes)} primes, {len(set(primes))} of them distinct", where=where, hint=hint)
    for q in primes:
        if q >> BITS - 1 != 1 or q % (2 * degree) != 1 or not _is_prime(q):
            hint = f"a prime between 2^25 and 2^26 that is 1 mod {2 * degree}"
            raise InputError(f"modulus {q}", where=where, hint=hint)
    return Ring(degree, primes)


def _is_prime(q: int) -> bool:
    return q % 2 == 1 and all(q % d for d in range(3, 1 << BITS // 2, 2))  # q < 2^26


@lru_cache(maxsize=64)
def largest_primes(degree: int, count: int) -> tuple[int, ...]:
    """Find the `count` largest primes below 2^26 that are 1 mod 2N, N the degree, in descending order.

    InputError if there are fewer above 2^25.
    """
    candidates = range((1 << BITS) - 2 * degree + 1, 1 << BITS - 1, -2 * degree)
    found: list[int] = []
    for q in candidates:
        if len(found) < count and _is_prime(q):
            found.append(q)
    if not 1 <= count <= len(found):
        what = f"{count} primes for degree {degree}"
        raise InputError(what, where="kernels.largest_primes(count)", hint="ask for fewer, or for a smaller degree")
    return tuple(found)


def transform(ring: Ring, x: Tensor, inverse: bool) -> Tensor:
    """Compute the NTT values of the polynomials x, or with `inverse` the coefficients of polynomials with the values x.

    It is what `Ring.ntt` and `Ring.intt` call once they have checked x.
    """
    x = x.contiguous()
    return best(transform, x)(ring, x, inverse)
