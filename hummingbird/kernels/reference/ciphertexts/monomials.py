"""Sums of ciphertexts times monomials in plain torch; kernels/ciphertexts/monomials.py describes them."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import monomials
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.ciphertexts.roots import centred
from hummingbird.kernels.registry import implements


@implements(monomials.taps, "reference")
def taps(ring: Ring, x: Tensor, first: Tensor, inputs: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """See `monomials.taps`; |sum| < 2^53, which int64 holds."""
    ends, degree = first.tolist(), ring.degree
    out = torch.zeros(len(ends) - 1, *x.shape[1:], dtype=torch.int64, device=x.device)
    for sums, start, stop in zip(out, ends[:-1], ends[1:], strict=True):
        terms = zip(*(t[start:stop].tolist() for t in (inputs, shifts, factors)), strict=True)
        for number, shift, factor in terms:
            sign = 1 - 2 * (shift // degree)  # X^N = -1
            shift %= degree
            sums[..., shift:].add_(x[number, ..., : degree - shift], alpha=sign * factor)
            sums[..., :shift].sub_(x[number, ..., degree - shift :], alpha=sign * factor)
    for i, q in enumerate(ring.primes):
        out[..., i, :] = centred(out[..., i, :], q)
    return out.int()
