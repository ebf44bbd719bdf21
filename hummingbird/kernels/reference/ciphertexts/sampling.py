"""Uniform residues, binomial errors and wide integers in plain torch, from drawn words."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import sampling
from hummingbird.kernels.ciphertexts.ring import Ring, centred
from hummingbird.kernels.ciphertexts.sampling import ETA, WORD
from hummingbird.kernels.registry import implements

_AT_ONCE = 1 << 15  # elements at a time on a CPU: their memory fits the second-level cache


@implements(sampling.uniform, "reference")
def uniform(x: Tensor, moduli: Tensor) -> Tensor:
    """Convert random words to residues in place, and return where a residue must be drawn again.

    x: int32 (n, L, N). moduli: the primes, int32 (L,). The result has the indices into the flattened x, int64.
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


@implements(sampling.noise, "reference")
def noise(words: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.sampling.noise` in plain torch.

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


@implements(sampling.wide, "reference")
def wide(ring: Ring, words: Tensor, spare: int) -> Tensor:
    """Implement `kernels.ciphertexts.sampling.wide` in plain torch.

    words: random, int32 (digits, n, N), the highest first. spare: how many bits of the highest word are not used.
    """
    residues = []
    for q in ring.primes:
        total = centred(words[0].long() >> spare, q)
        for word in words[1:]:
            total = centred((total << 32) + (word.long() & 0xFFFFFFFF), q)  # below 2^57 + 2^32
        residues.append(total.int())
    return torch.stack(residues, 1)
