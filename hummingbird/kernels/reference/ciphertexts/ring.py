"""The number-theoretic transform in plain torch: batched products of 8 x 8 matrices in float64, exact without limbs.

kernels/ciphertexts/ring.py describes the transform. X^m - c is the product of the K polynomials X^{m/K} - c_i with
c_i^K = c, and the remainders of x = sum_k x_k X^{k m/K} are sum_k c_i^k x_k: one K x K matrix for each of the
polynomials split so far (Gentleman and Sande 1966; the root of X^N + 1 is in the matrices, and 1/N in those of the
inverse). K = 8 is the largest for which sums of products of residues stay below 2^53. Polynomials are columns, so all
rows are long; a few polynomials at a time are transformed, in a workspace that fits about the second-level cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import ring as declared
from hummingbird.kernels.ciphertexts.ring import Ring, centred, exponents, powers
from hummingbird.kernels.registry import implements

_CPU_PIECE, _GPU_PIECE = 1 << 16, 1 << 22  # residues modulo one prime at a time
_WIDE = 64  # columns from which on a matrix product costs no more than multiplying its result by a number
_COLUMNS = 8  # at least: a vector of the last steps, whose rows are short


def _radices(degree: int) -> list[int]:
    bits = degree.bit_length() - 1
    return [1 << bits % 3] * bool(bits % 3) + [8] * (bits // 3)


@lru_cache(maxsize=128)
def _matrices(degree: int, q: int, inverse: bool, device: str) -> tuple[tuple[Tensor, Tensor], ...]:
    """Compute the matrices by which the steps of a transform modulo the prime q multiply, in the order of their use.

    degree: N. inverse: return the matrices of the inverse transform, which undoes the last step first. device: where
    the matrices are to be. Returns for each step a pair of float64 (G, K, K): G matrices of size K, and these divided
    by q. A step splits each of G polynomials into K parts (module head has the entries).
    """
    table, out, groups = powers(degree, q), [], 1
    for radix in _radices(degree):
        e = exponents(degree, groups * radix).view(groups, radix, 1)
        k = torch.arange(radix)
        if inverse:
            matrix = centred(table[-e * k % (2 * degree)] * pow(radix, -1, q), q).transpose(1, 2)
        else:
            matrix = table[e * k % (2 * degree)]
        matrix = matrix.double().contiguous().to(device)
        out.append((matrix, matrix / q))
        groups *= radix
    return tuple(reversed(out) if inverse else out)


class Workspace:
    """Buffers, float64 (N, columns), in which a few polynomials modulo one prime are transformed, one in each column.

    There are two working buffers, and one for `keep`. Each thread has one workspace: allocating memory for each
    transform would cost more than the transforms.
    """

    def __init__(self, degree: int, columns: int, device: torch.device) -> None:
        self.key = degree, columns, device
        self._a, self._b, self._kept = torch.empty(3, degree, columns, dtype=torch.float64, device=device)

    def _other(self, x: Tensor) -> Tensor:
        """Return the one of the two working buffers that is not x."""
        return self._a if x is self._b else self._b

    def load(self, x: Tensor) -> Tensor:
        """Copy x, int32 (columns, N) with any strides, to a working buffer; returns the buffer.

        The next `load` or transform overwrites it.
        """
        return self._a.copy_(x.t())

    def keep(self, x: Tensor) -> Tensor:
        """Copy x to a buffer that stays valid until the next `keep`; returns the buffer.

        x: int32 (columns, N) or float64 (N, columns).
        """
        return self._kept.copy_(x if x.is_floating_point() else x.t())

    def beside(self, values: Tensor, x: Tensor) -> Tensor:
        """Copy x, int32 (columns, N) with any strides, to the working buffer that is not `values`; returns
        the buffer.
        """
        return self._other(values).copy_(x.t())

    def store(self, x: Tensor, out: Tensor) -> None:
        """Copy residues (N, columns) to `out`, int32 (columns, N) with any strides."""
        out.copy_(x.t())

    def reduce(self, x: Tensor, q: int) -> Tensor:
        """Reduce x, float64 integers with |x| < 2^53 - q, modulo q; returns the buffer with the result, |result| <= q/2
        + 2.

        The result replaces x, unless x is from `keep`. x/q has an error below |x/q| 2^-52: one rounding of 1/q, and one
        of the product. For |x| < 2^51 the result is centred: q is odd, so x/q is at least 1/2q away from a half, more
        than the error.
        """
        quotients = torch.mul(x, 1.0 / q, out=self._other(x)).round_()
        return torch.sub(x, quotients, alpha=q, out=self._a if x is self._kept else x)

    def transform(self, x: Tensor, q: int, inverse: bool) -> Tensor:
        """Transform polynomials modulo q to their values, or back if `inverse`; returns a buffer, |result| <= q/2 + 16.

        x: from `load` or `keep`, |x| <= 2^25. The next `load` or transform may overwrite the result's buffer. Each step
            multiplies by a matrix M and reduces: it computes M x - q n, with n = (M/q) x rounded to integers. So memory
            is touched three times and not five. The sums of M x are below 8 q/2 (q/2 + 16) < 2^53 - 2^38, as q <= 2^26
            - 2047: they are exact in any order, before and after q n is subtracted. The sums of (M/q) x are below 2^27,
            and have up to 10 errors of 2^-53 of that, 2^-22 in all; times q it is 16, by which a result may be above
            q/2.
        """
        degree, columns, device = self.key
        for matrix, scaled in _matrices(degree, q, inverse, str(device)):
            groups, radix, _ = matrix.shape
            out = self._other(x)
            view = (groups, radix, degree // (groups * radix) * columns)
            given, made = x.view(view), out.view(view)
            if view[2] >= _WIDE:
                torch.bmm(scaled, given, out=made).round_()
                made.baddbmm_(matrix, given, beta=-q)
            else:  # products so small that two of them cost more
                torch.bmm(matrix, given, out=made)
                self.reduce(out, q)
            x = out
        return x


_kept = threading.local()


def pieces(degree: int, count: int, device: torch.device) -> Iterator[tuple[slice, Workspace]]:
    """Split `count` polynomials of `degree` coefficients into pieces that fit this thread's workspace.

    Yields for each piece the range of its polynomials, as a Python slice, and the workspace.
    """
    size = max(_COLUMNS, (_CPU_PIECE if device.type == "cpu" else _GPU_PIECE) // degree)
    for start in range(0, count, size):
        key = (degree, min(size, count - start), device)
        if getattr(_kept, "space", None) is None or _kept.space.key != key:
            _kept.space = Workspace(*key)
        yield slice(start, start + key[1]), _kept.space


@implements(declared.transform, "reference")
def transform(ring: Ring, x: Tensor, inverse: bool) -> Tensor:
    """Implement `kernels.ciphertexts.ring.transform` in plain torch: transform polynomials to NTT values or back."""
    rows = x.view(-1, len(ring.primes), ring.degree)
    out = torch.empty_like(rows)
    for piece, space in pieces(ring.degree, rows.shape[0], x.device):
        for i, q in enumerate(ring.primes):
            values = space.transform(space.load(rows[piece, i]), q, inverse)
            space.store(space.reduce(values, q), out[piece, i])
    return out.view(x.shape)


def carry(x: Tensor, last: int, ring: Ring) -> Tensor:
    """Convert the NTT values of polynomials modulo the prime `last` to their NTT values modulo each of the ring's
    primes.

    x: int32 (n, N). Returns int32 (n, L, N). The polynomials' coefficients, as centred integers, stay the same; they
    are below 2^25, as transforms need it.
    """
    out = x.new_empty(x.shape[0], len(ring.primes), ring.degree)
    for piece, space in pieces(ring.degree, x.shape[0], x.device):
        plain = space.keep(space.reduce(space.transform(space.load(x[piece]), last, True), last))
        for i, q in enumerate(ring.primes):
            values = space.transform(plain, q, False)
            space.store(space.reduce(values, q), out[piece, i])
    return out
