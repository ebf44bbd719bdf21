"""BFV modulo t = 2^k: the parameters, and sums of products of a server's polynomials with ciphertexts.

A ciphertext of the polynomial x, with coefficients mod 2^k, is (c_0, c_1) with the phase

    c_0 + c_1 s = round(Q x / 2^k) + noise mod Q,

so its product with a polynomial w of small integers is a ciphertext of w x mod 2^k, with ||w||_1 times the noise
(Brakerski 2012; Fan and Vercauteren, ePrint 2012/144). Ciphertexts are not multiplied with each other, so nothing is
relinearised. Values are coefficients, so t need not be prime (Huang, Lu, Hong and Ding, Cheetah, USENIX Security 2022).

N = 4096 and the four largest primes of 26 bits: log2 Q is just below 104, and both tables of scheme/params.py allow it.
A reply keeps two of the primes. Residues stay in the transformed (NTT) domain until a reply is built.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import accumulate, encrypt_ntt, noise, ternary

DEGREE = 4096
PARAMETERS = choose(DEGREE, 4)
RING = PARAMETERS.ring
REST = RING.take(2)  # of a reply
MOST_BITS = 32  # of the plaintext ring
MOST_WEIGHT = 1 << 25  # bound on a coefficient of w, from the transform


def check_bits(k: int, where: str) -> None:
    """Raise InputError unless k, the bits of a plaintext value, is from 1 to 32. where: the place for the error."""
    if not isinstance(k, int) or not 1 <= k <= MOST_BITS:
        raise InputError(f"k = {k!r}", where=where, hint=f"values are ring elements mod 2^k, k from 1 to {MOST_BITS}")


def check_polynomials(x: Tensor, where: str, count: int | None = None) -> None:
    """Raise InputError unless x is int64 (count, N), with a polynomial in each row.

    count: None allows any number of rows. where: the place that the error names.
    """
    right = isinstance(x, Tensor) and x.dtype == torch.int64 and x.dim() == 2 and x.shape[1] == DEGREE
    if not right or count not in (None, x.shape[0]):
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        wanted = f"expected torch.int64 ({'n' if count is None else count}, {DEGREE})"
        raise InputError(f"{wanted}, got {got}", where=where, hint="polynomials are rows of N coefficients")


def transform(polys: Tensor) -> Tensor:
    """Return a server's weight polynomials, int64 (n, N), |w| <= 2^25, transformed for `products`: int32 (n, 4, N).

    A transformed polynomial (NTT modulo each of four primes) has 64 KiB and can be reused for all clients. Raises
    InputError for another type, shape or magnitude.
    """
    where = "he.bfv.transform"
    check_polynomials(polys, where)
    if polys.numel() and not -MOST_WEIGHT <= int(polys.min()) <= int(polys.max()) <= MOST_WEIGHT:
        what = f"coefficients from {int(polys.min())} to {int(polys.max())}"
        raise InputError(what, where=where, hint="weights are centred integers of at most 2^25 in absolute value")
    return RING.ntt(polys.int()[:, None].expand(-1, len(RING.primes), -1))


def products(x: Tensor, weights: Tensor, pairs: Tensor, outputs: int) -> Tensor:
    """Multiply ciphertexts by weight polynomials, and add the products of each result: int32 (outputs, 2, 4, N).

    Result o encrypts the sum of weights[p] x[i] over all p for which pairs[p] is (i, o).
    x: ciphertexts, int32 (inputs, 2, 4, N), from `Fresh.parts`. weights: int32 (P, 4, N), from `transform`.
    pairs: int64 (P, 2), at most 4,096 for one o. outputs: number of results, which `evaluate` takes.
    A result's noise is at most the noise of x times the sum of the absolute weights that the result adds up.
    Raises InputError for other types, shapes or numbers.
    """
    return accumulate(RING, weights, x, pairs, outputs)


def encrypted_zeros(public: Tensor, count: int) -> Tensor:
    """Encrypt 0 `count` times with new randomness; return the ciphertexts, int32 (count, 2, 4, N).

    They are modulo four primes, and transformed (NTT).
    public: the public key's two polynomials, int32 (2, 4, N), modulo the same primes and transformed.
    """
    u = ternary(prg.fresh(), count * DEGREE).view(count, 1, DEGREE)
    u = RING.ntt(u.expand(-1, len(RING.primes), -1))
    errors = noise(prg.fresh(), 2 * count, DEGREE).view(2, count, DEGREE)
    nothing = torch.zeros_like(errors[0])
    # The encryption kernel computes m + e - a s; here a is u and s is minus the key.
    return torch.stack([encrypt_ntt(RING, nothing, e, u, -part) for e, part in zip(errors, public, strict=True)], 1)


def decode(phases: Tensor, k: int) -> Tensor:
    """Return the plaintext values of decrypted coefficients: round(2^k x / Q') mod 2^k, int64 in 0 .. 2^k - 1.

    phases: the decrypted coefficients x, float64, with |x| < Q'/2. Q' is the product of a reply's two primes.
    k: bits of a plaintext value. As |2^k x / Q'| is below 2^31, float64 adds an error of at most 2^-21. The bounds of
    bfv/noise.py leave room for it.
    """
    return (phases * ((1 << k) / math.prod(REST.primes))).round().long() & ((1 << k) - 1)
