"""The number-theoretic transform in plain torch, on a thread's workspace; kernels/ciphertexts/ring.py describes it."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import ring as declared
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.reference.ciphertexts.workspace import pieces
from hummingbird.kernels.registry import implements


@implements(declared.transform, "reference")
def transform(ring: Ring, x: Tensor, inverse: bool) -> Tensor:
    """See `ring.transform`."""
    rows = x.view(-1, len(ring.primes), ring.degree)
    out = torch.empty_like(rows)
    for piece, space in pieces(ring.degree, rows.shape[0], x.device):
        for i, q in enumerate(ring.primes):
            values = space.transform(space.load(rows[piece, i]), q, inverse)
            space.store(space.reduce(values, q), out[piece, i])
    return out.view(x.shape)


def carry(x: Tensor, last: int, ring: Ring) -> Tensor:
    """Take values modulo the prime `last` to those of the same centred coefficients modulo the ring's.

    int32 (n, N) to (n, L, N); |coefficient| < 2^25, which transforms allow.
    """
    out = x.new_empty(x.shape[0], len(ring.primes), ring.degree)
    for piece, space in pieces(ring.degree, x.shape[0], x.device):
        plain = space.keep(space.reduce(space.transform(space.load(x[piece]), last, True), last))
        for i, q in enumerate(ring.primes):
            values = space.transform(plain, q, False)
            space.store(space.reduce(values, q), out[piece, i])
    return out
