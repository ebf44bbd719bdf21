"""BFV's operations in plain torch, in int64; kernels/ciphertexts/bfv.py has the bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import bfv
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.ciphertexts.roots import centred
from hummingbird.kernels.registry import implements


@implements(bfv.encode, "reference")
def encode(ring: Ring, x: Tensor, k: int, error: Tensor, factor: int, inverses: list[int]) -> Tensor:
    """See `bfv.encode`; factor: Q mod 2^k, inverses: 2^-k modulo each prime, centred."""
    v = (x * factor) << (64 - k) >> (64 - k)  # mod 2^64, then the low k bits with their sign
    residues = [centred(error - v * inverse, q) for q, inverse in zip(ring.primes, inverses, strict=True)]  # below 2^57
    return torch.stack(residues, 1).int()


@implements(bfv.accumulate, "reference")
def accumulate(ring: Ring, weights: Tensor, x: Tensor, order: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """See `bfv.accumulate`; output o has the weights order[first[o] : first[o + 1]], times x of the same `inputs`."""
    out = torch.empty(len(first) - 1, *x.shape[1:], dtype=torch.int32, device=x.device)
    for number, (start, end) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
        total = torch.zeros(x.shape[1:], dtype=torch.int64, device=x.device)
        for weight, source in zip(order[start:end].tolist(), inputs[start:end].tolist(), strict=True):
            total += weights[weight].long() * x[source]
        for i, q in enumerate(ring.primes):
            out[number, :, i] = centred(total[:, i], q)
    return out
