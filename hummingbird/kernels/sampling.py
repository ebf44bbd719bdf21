"""Random polynomials for encryption: the uniform one, the ternary secret, the small error.

All bits come from a `prg.Stream`. Uniform residues and ternary coefficients are exact, by rejection: what is out of
range is drawn again, in order, after all others. The error is centred binomial, the number of ones among 42 bits less
21: variance 10.5, as in Microsoft SEAL, in place of a rounded Gaussian of deviation 3.2 (Alkim et al., ePrint
2015/1092). What is kept of a secret polynomial and of an error is computed without branches on its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.ntt import BITS, Ring

if TYPE_CHECKING:
    from hummingbird.prg import Stream

_WORD = (1 << BITS) - 1
_AT_ONCE = 1 << 15  # elements, of torch on a CPU: what they take stays in the second-level cache
ETA = 21  # of the error; its absolute value is at most ETA, its variance ETA / 2


def _check_count(n: int, where: str) -> None:
    if not isinstance(n, int) or n < 0:
        raise InputError(f"{n!r} is no number of polynomials", where=where, hint="a whole number, 0 or more")


def uniform(ring: Ring, stream: Stream, n: int) -> Tensor:
    """Uniform residues: int32 (n, L, N), centred.

    First a 32-bit word for each, of which the low 26 bits count; a value r >= q is drawn again, r > q/2 stands for
    r - q. Those to draw again take words in the order of their places, until none is left. Not for secrets: the time
    tells how many were drawn again, and where.
    """
    _check_count(n, "kernels.uniform(n)")
    shape = (n, len(ring.primes), ring.degree)
    x = stream.bytes(4 * torch.Size(shape).numel()).view(torch.int32).view(shape)
    moduli = torch.tensor(ring.primes, dtype=torch.int32, device=x.device)
    places = (native_uniform if library.usable(x) else reference_uniform)(x, moduli)
    which = moduli[places // ring.degree % len(ring.primes)]
    while places.numel():
        drawn = stream.bytes(4 * places.numel()).view(torch.int32) & _WORD
        again = drawn >= which
        x.view(-1)[places] = drawn - (drawn > which // 2) * which
        places, which = places[again], which[again]
    return x


def reference_uniform(x: Tensor, moduli: Tensor) -> Tensor:
    """Words x, int32 (n, L, N), to residues in place; the places of those to draw again, int64."""
    (primes, degree), moduli = x.shape[1:], moduli.view(-1, 1)
    half, apart = moduli // 2, degree // 8
    step = max(1, 4 * _AT_ONCE // (primes * degree)) if x.is_cpu else max(1, len(x))
    found = [torch.empty(0, dtype=torch.int64, device=x.device)]
    for start in range(0, len(x), step):
        piece = x[start : start + step].bitwise_and_(_WORD)
        # Few words are out of range: the largest of every eight is compared first, as maxima cost less.
        largest = piece.unflatten(2, (8, apart)).amax(2)
        line, column = (largest >= moduli).flatten(0, 1).nonzero().unbind(1)
        eight = piece.view(-1, 8, apart)[line, :, column]
        which, number = (eight >= moduli[line % primes]).nonzero().unbind(1)
        found.append((start * primes + line[which]) * degree + number * apart + column[which])
        piece.sub_((half - piece).bitwise_right_shift_(31).bitwise_and_(moduli))  # q where x > q/2
    return torch.cat(found).sort().values


def native_uniform(x: Tensor, moduli: Tensor) -> Tensor:
    """See `reference_uniform`."""
    places = torch.empty(x.numel(), dtype=torch.int64)  # few of its pages are ever touched
    count = library.handle().hb_uniform(x.data_ptr(), *x.shape, moduli.data_ptr(), places.data_ptr())
    return places[:count]


def ternary(stream: Stream, degree: int) -> Tensor:
    """Uniform on {-1, 0, 1}: int32 (degree,). A byte for each, 255 is drawn again as in `uniform`; b mod 3 - 1."""
    _check_count(degree, "kernels.ternary(degree)")
    x = stream.bytes(degree)
    places = (x == 255).nonzero().view(-1)  # tells nothing of the bytes that are kept
    while places.numel():
        x[places] = drawn = stream.bytes(places.numel())
        places = places[drawn == 255]
    return (x % 3).int() - 1


def noise(stream: Stream, n: int, degree: int) -> Tensor:
    """Errors, centred binomial: int32 (n, degree). From a 64-bit word each: the ones among its low 42 bits, less 21."""
    _check_count(n, "kernels.noise(n)")
    _check_count(degree, "kernels.noise(degree)")
    words = stream.words(n, degree)
    if not library.usable(words):
        return reference_noise(words)
    out = torch.empty(n, degree, dtype=torch.int32)
    library.handle().hb_noise(words.data_ptr(), words.numel(), out.data_ptr())
    return out


def reference_noise(words: Tensor) -> Tensor:
    """`noise` in plain torch, in place."""
    out = torch.empty(words.shape, dtype=torch.int32, device=words.device)
    step = _AT_ONCE if words.is_cpu else max(1, words.numel())
    for x, counts in zip(words.view(-1).split(step), out.view(-1).split(step), strict=True):
        x &= (1 << 2 * ETA) - 1
        part = torch.empty_like(x)
        # Ones of every two, four and eight bits, on halves of words, as 32-bit shifts are vector instructions.
        half, other = x.view(torch.int32), part.view(torch.int32)
        half.sub_(torch.bitwise_right_shift(half, 1, out=other).bitwise_and_(0x55555555))
        torch.bitwise_right_shift(half, 2, out=other).bitwise_and_(0x33333333)
        half.bitwise_and_(0x33333333).add_(other)
        half.add_(torch.bitwise_right_shift(half, 4, out=other)).bitwise_and_(0x0F0F0F0F)
        # Bytes of at most 8 add up in the highest byte of each half, at most 32 there: no sum leaves its byte.
        half.mul_(0x01010101).bitwise_right_shift_(24)
        torch.bitwise_right_shift(x, 32, out=part).add_(x).bitwise_and_(0xFF)
        counts.copy_(part).sub_(ETA)
    return out
