"""Roots of unity modulo a prime, and how X^N + 1 splits along them: what every transform's tables are made of.

zeta is a primitive 2N-th root of one, so zeta^N = -1, and X^m - c = (X^{m/2} - c^{1/2}) (X^{m/2} + c^{1/2}) from
X^N - zeta^N down to X - zeta^e, for every odd e (Seiler, ePrint 2018/039).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def root(degree: int, q: int) -> int:
    """zeta: the primitive 2N-th root of one mod q that ring.py chooses."""
    roots = (pow(x, (q - 1) // (2 * degree), q) for x in range(2, q))
    return next(zeta for zeta in roots if pow(zeta, degree, q) == q - 1)


def exponents(degree: int, parts: int) -> Tensor:
    """e of X^N + 1 = prod_i (X^{N/parts} - zeta^e_i), int64 (parts,): a split halves e, or halves it and adds N."""
    e = torch.tensor([degree])
    while e.numel() < parts:
        e = torch.stack([e // 2, e // 2 + degree], 1).flatten()
    return e


def powers(degree: int, q: int) -> Tensor:
    """zeta^i for 0 <= i < 2N, centred: int64 (2N,)."""
    out, factor = torch.ones(1, dtype=torch.int64), root(degree, q)
    while out.numel() < 2 * degree:
        out = torch.cat([out, out * factor % q])  # below 2^52
        factor = factor * factor % q
    return centred(out, q)


def centred(x: Tensor, q: int) -> Tensor:
    """Integers to the residues in (-q/2, q/2), of the same type."""
    half = q // 2
    return torch.remainder(x + half, q) - half
