"""Random polynomials for encryption: uniform residues, ternary secrets, small errors, wide integers for flooding.

All bits come from a `prg.Stream`. Uniform residues and ternary coefficients are exact, by rejection: values out of
range are drawn again, in order, after all others. The error is centred binomial, the number of ones among 42 bits less
21: variance 10.5, as in Microsoft SEAL, in place of a rounded Gaussian of deviation 3.2 (Alkim et al., ePrint
2015/1092). No branch depends on the values that are kept of a secret or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.ciphertexts.ring import BITS, Ring
from hummingbird.kernels.registry import best

if TYPE_CHECKING:
    from hummingbird.prg import Stream

WORD = (1 << BITS) - 1  # the bits of a drawn word that are used
ETA = 21  # |error| <= ETA, and its variance is ETA / 2


def _check_count(n: int, where: str) -> None:
    if not isinstance(n, int) or n < 0:
        raise InputError(f"{n!r} is no number of polynomials", where=where, hint="a whole number, 0 or more")


def uniform(ring: Ring, stream: Stream, n: int) -> Tensor:
    """Draw uniform centred residues modulo each of the ring's L primes q: int32 (n, L, N).

    First each residue takes the low 26 bits r of a 32-bit word; a value r >= q is drawn again, and r > q/2 stands for
    r - q. Residues to draw again take words in the order of their indices, until none is left. Not for secrets: the
    time depends on how many were drawn again, and which.
    """
    _check_count(n, "kernels.uniform(n)")
    shape = (n, len(ring.primes), ring.degree)
    x = stream.bytes(4 * torch.Size(shape).numel()).view(torch.int32).view(shape)
    moduli = torch.tensor(ring.primes, dtype=torch.int32).to(x.device)
    places = best(uniform, x)(x, moduli)
    which = moduli[places // ring.degree % len(ring.primes)]
    while places.numel():
        drawn = stream.bytes(4 * places.numel()).view(torch.int32) & WORD
        again = drawn >= which
        x.view(-1)[places] = drawn - (drawn > which // 2) * which
        places, which = places[again], which[again]
    return x


def ternary(stream: Stream, degree: int) -> Tensor:
    """Draw uniform numbers from -1, 0 and 1: int32 (degree,).

    Each is b mod 3 - 1 for a random byte b from 0 to 254. All bytes 255 are drawn again, in the order of their indices,
    until none is left.
    """
    _check_count(degree, "kernels.ternary(degree)")
    x = stream.bytes(degree)
    places = (x == 255).nonzero().view(-1)  # independent of the bytes that are kept
    while places.numel():
        x[places] = drawn = stream.bytes(places.numel())
        places = places[drawn == 255]
    return (x % 3).int() - 1


def noise(stream: Stream, n: int, degree: int) -> Tensor:
    """Draw errors with a binomial distribution: int32 (n, degree).

    Each is the number of ones among the low 42 bits of a random word, less 21.
    """
    _check_count(n, "kernels.noise(n)")
    _check_count(degree, "kernels.noise(degree)")
    words = stream.words(n, degree)
    return best(noise, words)(words)


def wide(ring: Ring, stream: Stream, n: int, bits: int) -> Tensor:
    """Draw uniform integers of `bits` bits with sign, and return their centred residues: int32 (n, L, N).

    The integers go from -2^(bits-1) to 2^(bits-1) - 1; bits: 1 or more. Each takes ceil(bits / 32) words of 32 bits;
    the stream has the highest words, which are signed, of all integers first. Constant time.
    """
    where = "kernels.wide"
    _check_count(n, f"{where}(n)")
    if not isinstance(bits, int) or bits < 1:
        raise InputError(f"{bits!r} bits", where=f"{where}(bits)", hint="a whole number, 1 or more")
    words = stream.words(-(-bits // 32), n, ring.degree, dtype=torch.int32)
    return best(wide, words)(ring, words, -bits % 32)
