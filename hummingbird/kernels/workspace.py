"""Transforms in plain torch: batched products of 8 x 8 matrices in float64, exact without limbs.

X^m - c is the product of the K polynomials X^{m/K} - c_i with c_i^K = c, and the remainders of x = sum_k x_k X^{k m/K}
are sum_k c_i^k x_k: one K x K matrix for each of the polynomials split so far (Gentleman and Sande 1966; the root of
X^N + 1 is in the matrices, and 1/N in those of the inverse). K = 8 is the most for which sums of products of residues
stay below 2^53. Polynomials are columns, so that all rows are long; they are worked on a few at a time, in memory that
stays near the second-level cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.kernels.roots import centred, exponents, powers

_PIECE = {"cpu": 1 << 18, "cuda": 1 << 22}  # residues at a time


def _radices(degree: int) -> list[int]:
    bits = degree.bit_length() - 1
    return [1 << bits % 3] * bool(bits % 3) + [8] * (bits // 3)


@lru_cache(maxsize=128)
def _matrices(degree: int, q: int, inverse: bool, device: str) -> tuple[Tensor, ...]:
    """Of each step: float64 (G, K, K), entry [g, i, k] = c_{g,i}^k, or the inverse matrices, the last step's first."""
    table, out, groups = powers(degree, q), [], 1
    for radix in _radices(degree):
        e = exponents(degree, groups * radix).view(groups, radix, 1)
        k = torch.arange(radix)
        if inverse:
            matrix = centred(table[-e * k % (2 * degree)] * pow(radix, -1, q), q).transpose(1, 2)
        else:
            matrix = table[e * k % (2 * degree)]
        out.append(matrix.double().contiguous().to(device))
        groups *= radix
    return tuple(reversed(out) if inverse else out)


class Workspace:
    """Buffers for a piece of a tensor of polynomials, transposed: (L, N, columns), one polynomial a column.

    One is kept per thread: fresh memory costs more than the transforms that are done in it.
    """

    def __init__(self, degree: int, primes: int, columns: int, device: torch.device) -> None:
        self.key = degree, primes, columns, device
        self._a, self._b, self._spare = torch.empty(3, degree, columns, dtype=torch.float64, device=device)
        self._parts: list[Tensor] = []

    def put(self, x: Tensor, part: int = 0) -> Tensor:
        """int32 (columns, L, N) or (columns, N), contiguous, copied to (L, N, columns) in buffer `part`."""
        columns = self.key[2]
        rows = x.view(columns, -1)
        into = self.part(part).view(-1, columns)[: rows.shape[1]]
        return into.copy_(rows.t()).view(-1, self.key[0], columns)

    def part(self, part: int) -> Tensor:
        """Buffer `part`, int32 (L, N, columns)."""
        degree, primes, columns, device = self.key
        while len(self._parts) <= part:
            self._parts.append(torch.empty(primes, degree, columns, dtype=torch.int32, device=device))
        return self._parts[part]

    def get(self, out: Tensor) -> None:
        """Buffer 0 to int32 (columns, L, N)."""
        columns = self.key[2]
        out.view(columns, -1).copy_(self.part(0).view(-1, columns).t())

    def load(self, x: Tensor) -> Tensor:
        """Residues (N, columns) as float64, in a buffer that the next transform overwrites."""
        return self._a.copy_(x)

    def reduce(self, x: Tensor, q: int) -> Tensor:
        """x mod q in place: float64 integers |x| < 2^53 - q.

        x/q is found with an error below |x/q| 2^-52, one rounding of 1/q and one of the product: |result| <= q/2 + 2.
        For |x| < 2^51 the result is centred: q is odd, so x/q keeps 1/2q away from halves, which is above the error.
        """
        torch.mul(x, 1.0 / q, out=self._spare).round_()
        return x.sub_(self._spare, alpha=q)

    def transform(self, x: Tensor, q: int, inverse: bool) -> Tensor:
        """What `load` returned, |x| <= 2^25, to values or coefficients in a buffer, of absolute value <= q/2 + 2."""
        degree, _, columns, device = self.key
        other = self._b
        for matrix in _matrices(degree, q, inverse, str(device)):
            groups, radix, _ = matrix.shape
            shape = (groups, radix, degree // (groups * radix) * columns)
            # Sums of 8 products: below 8 * q/2 * 2^25 = 2^27 q <= 2^53 - 2^38, as q <= 2^26 - 2047.
            torch.bmm(matrix, x.view(shape), out=other.view(shape))
            x, other = self.reduce(other, q), x
        return x


_kept = threading.local()


def pieces(degree: int, primes: int, count: int, device: torch.device) -> Iterator[tuple[slice, Workspace]]:
    """Cut `count` polynomials modulo so many primes into pieces that fit a workspace, this thread's."""
    size = max(32, _PIECE[device.type] // (degree * primes))
    for start in range(0, count, size):
        key = (degree, primes, min(size, count - start), device)
        if getattr(_kept, "space", None) is None or _kept.space.key != key:
            _kept.space = Workspace(*key)
        yield slice(start, start + key[2]), _kept.space
