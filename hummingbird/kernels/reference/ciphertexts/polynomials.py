"""Random polynomials, encryption, decryption and packing of residues in plain torch.

kernels/ciphertexts/polynomials.py describes the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import polynomials
from hummingbird.kernels.ciphertexts.polynomials import ETA, WORD, packed_bytes
from hummingbird.kernels.ciphertexts.ring import Ring, centred
from hummingbird.kernels.reference.ciphertexts.ring import pieces
from hummingbird.kernels.registry import implements

# Uniform residues, binomial errors and wide integers, from drawn words ------------------------------------------------

_AT_ONCE = 1 << 15  # elements at a time on a CPU: their memory fits the second-level cache


@implements(polynomials.uniform, "reference")
def uniform(x: Tensor, moduli: Tensor) -> Tensor:
    """Convert random words to centred residues in place; returns which of them must be drawn again.

    x: the words, int32 (n, L, N). moduli: the primes, int32 (L,). The result is int64: indices into the flattened x.
    """
    (primes, degree), moduli = x.shape[1:], moduli.view(-1, 1)
    half, apart = moduli // 2, degree // 8
    step = max(1, 4 * _AT_ONCE // (primes * degree)) if x.is_cpu else max(1, len(x))
    found = [torch.empty(0, dtype=torch.int64, device=x.device)]
    for start in range(0, len(x), step):
        piece = x[start : start + step].bitwise_and_(WORD)
        # Few words are out of range, and maxima cost less than comparisons: compare the largest of every eight first.
        largest = piece.unflatten(2, (8, apart)).amax(2)
        line, column = (largest >= moduli).flatten(0, 1).nonzero().unbind(1)
        eight = piece.view(-1, 8, apart)[line, :, column]
        which, number = (eight >= moduli[line % primes]).nonzero().unbind(1)
        found.append((start * primes + line[which]) * degree + number * apart + column[which])
        piece.sub_((half - piece).bitwise_right_shift_(31).bitwise_and_(moduli))  # q where x > q/2
    return torch.cat(found).sort().values


@implements(polynomials.noise, "reference")
def noise(words: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.noise` in plain torch: draw random errors from words.

    words: random, int64 (n, degree); they are overwritten.
    """
    out = torch.empty(words.shape, dtype=torch.int32, device=words.device)
    step = _AT_ONCE if words.is_cpu else max(1, words.numel())
    for x, counts in zip(words.view(-1).split(step), out.view(-1).split(step), strict=True):
        x &= (1 << 2 * ETA) - 1
        part = torch.empty_like(x)
        # Count ones in every two, four and eight bits, on halves of words, as 32-bit shifts are vector instructions.
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


@implements(polynomials.wide, "reference")
def wide(ring: Ring, words: Tensor, spare: int) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.wide` in plain torch: make residues of random integers.

    words: random, int32 (digits, n, N), the highest first. spare: how many bits of the highest word are not used.
    """
    residues = []
    for q in ring.primes:
        total = centred(words[0].long() >> spare, q)
        for word in words[1:]:
            total = centred((total << 32) + (word.long() & 0xFFFFFFFF), q)  # below 2^57 + 2^32
        residues.append(total.int())
    return torch.stack(residues, 1)


# Encryption, decryption and packing -----------------------------------------------------------------------------------


@implements(polynomials.encrypt, "reference")
def encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.encrypt` in plain torch: encrypt messages."""
    out, s = torch.empty_like(a), secret.double()
    for piece, space in pieces(ring.degree, a.shape[0], a.device):
        plain = space.keep(message[piece] + noise[piece])
        for i, q in enumerate(ring.primes):
            product = space.load(a[piece, i]).mul_(s[i, :, None])  # below 2^50
            masked = space.transform(space.reduce(product, q), q, True)
            space.store(space.reduce(torch.sub(plain, masked, out=masked), q), out[piece, i])
    return out


@implements(polynomials.encrypt_ntt, "reference")
def encrypt_ntt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.encrypt_ntt` in plain torch: encrypt messages, as NTT values."""
    out, s = torch.empty_like(a), secret.double()
    for piece, space in pieces(ring.degree, a.shape[0], a.device):
        plain = space.keep(message[piece] + noise[piece])
        for i, q in enumerate(ring.primes):
            values = space.transform(space.reduce(plain, q), q, False)
            values.addcmul_(space.beside(values, a[piece, i]), s[i, :, None], value=-1)  # below 2^51
            space.store(space.reduce(values, q), out[piece, i])
    return out


@implements(polynomials.phase, "reference")
def phase(ring: Ring, c: Tensor, secret: Tensor, form: str) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.phase` in plain torch: decrypt ciphertexts."""
    out, s = torch.empty(c.shape[0], *c.shape[2:], dtype=torch.int32, device=c.device), secret.double()
    for piece, space in pieces(ring.degree, c.shape[0], c.device):
        for i, q in enumerate(ring.primes):
            *earlier, last = c[piece, :, i].unbind(1)
            total = space.load(last)
            if form == "mixed":
                space.reduce(total.mul_(s[i, :, None]), q)  # below 2^50
                total = space.transform(total, q, True).add_(space.keep(earlier[0]))
            else:
                for part in reversed(earlier):  # Horner: below 2^50 + 2^25
                    space.reduce(total.mul_(s[i, :, None]).add_(space.keep(part)), q)
                total = space.transform(total, q, True)
            space.store(space.reduce(total, q), out[piece, i])
    return out


@implements(polynomials.compose, "reference")
def compose(ring: Ring, x: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.compose` in plain torch: combine residues to integers."""
    digits = list(x.double().unbind(1))
    for k, factors in enumerate(inverses(ring.primes)):
        later = zip(digits[k + 1 :], factors, ring.primes[k + 1 :], strict=True)
        for digit, factor, q in later:
            # |digit - digits[k]| <= 2^26 - 2047 times an inverse of at most q/2: below 2^51, so it is centred again.
            digit.sub_(digits[k]).mul_(factor)
            digit.sub_(torch.mul(digit, 1.0 / q).round_(), alpha=q)
    total = digits[-1]
    for q, digit in zip(reversed(ring.primes[:-1]), reversed(digits[:-1]), strict=True):
        total = total.mul(q).add_(digit)
    return total


@lru_cache(maxsize=64)
def inverses(primes: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Compute the inverse of every prime modulo each later prime, centred; returns a tuple of floats for each prime."""
    rows = []
    for k, earlier in enumerate(primes):
        found = [(pow(earlier, -1, q), q) for q in primes[k + 1 :]]
        rows.append(tuple(float(f - q if f > q // 2 else f) for f, q in found))
    return tuple(rows)


@lru_cache(maxsize=64)
def moduli(ring: Ring, device: str = "cpu") -> Tensor:
    """Return the ring's primes as a tensor, int32 (L, 1)."""
    return torch.tensor(ring.primes, dtype=torch.int32).view(-1, 1).to(device)


def _planes(ring: Ring, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three views of packed polynomials, by the format of `pack`.

    data: the packed bytes. The views are bits 0 to 15 of all residues, int16 (rows, N), bits 16 to 23, uint8 (rows, N),
    and bits 24 and 25, uint8 (rows, N/4); a row is a polynomial modulo one prime.
    """
    low, middle, top = data.view(-1, 13 * ring.degree // 4).tensor_split((2 * ring.degree, 3 * ring.degree), 1)
    return low.view(torch.int16), middle, top


@implements(polynomials.pack, "reference")
def pack(ring: Ring, x: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.pack` in plain torch: pack residues in 26 bits each."""
    out = torch.empty(packed_bytes(x.shape), dtype=torch.uint8, device=x.device)
    low, middle, top = _planes(ring, out)
    v = (x + (x >> 31 & moduli(ring, str(x.device)))).view(-1, ring.degree)
    low.copy_(v)
    middle.copy_(v >> 16)
    bits = (v >> 24).view(-1, 4, ring.degree // 4)
    top.copy_(bits[:, 0] | bits[:, 1] << 2 | bits[:, 2] << 4 | bits[:, 3] << 6)
    return out


@implements(polynomials.unpack, "reference")
def unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, bool]:
    """Implement `kernels.ciphertexts.polynomials.unpack` in plain torch: unpack residues of 26 bits.

    The second result is True if all values are below their primes.
    """
    low, middle, top = _planes(ring, data.clone() if data.storage_offset() % 2 else data)
    x = low.int().bitwise_and_(0xFFFF).add_(middle, alpha=1 << 16)
    for j, quarter in enumerate(x.chunk(4, 1)):
        quarter.add_(top >> 2 * j & 3, alpha=1 << 24)
    x = x.view(tuple(shape))
    primes = moduli(ring, str(x.device))
    right = not bool((x >= primes).any())
    return x.sub_((x > primes // 2) * primes), right
