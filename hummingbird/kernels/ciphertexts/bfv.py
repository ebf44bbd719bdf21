"""Operations of BFV modulo 2^k: integers to residues at the scale Q / 2^k, and sums of products of polynomials.

A polynomial x of ring elements is encrypted as round(Q x / 2^k). With v = [Q x]_{2^k}, centred, Q x - v is a multiple
of 2^k, and the quotient (Q x - v) / 2^k is Q x / 2^k rounded to the nearest integer. Modulo a prime q of Q, Q is 0:

    round(Q x / 2^k) = -v 2^-k mod q,        |v| <= 2^(k-1).

Products of residues are integers below 2^50: a sum of 2^12 of them stays below 2^62, so one reduction is enough for the
whole sum (Harvey, "Faster arithmetic for number-theoretic transforms", 2014, on unreduced sums).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.registry import best

MOST_BITS = 32  # of the plaintext ring: |v| <= 2^31 fits int32
MOST_TERMS = 1 << 12  # products in one sum: below 2^12 2^50 = 2^62


def encode(ring: Ring, x: Tensor, k: int, error: Tensor) -> Tensor:
    """Encode ring elements mod 2^k for encryption: round(Q x / 2^k) + error mod q, Q the product of all primes.

    x: int64 (n, N), of which only the low k bits are used. 1 <= k <= 32. error: int32 (n, N), |error| < 2^30. Returns
    coefficients, int32 (n, L, N). Constant time. InputError for anything else.
    """
    where = "kernels.encode"
    check_range(f"{where}(k)", k, 1, MOST_BITS)
    for name, tensor, dtype in (("x", x, torch.int64), ("error", error, torch.int32)):
        wanted = (x.shape[0], ring.degree) if isinstance(x, Tensor) and x.dim() == 2 else ("n", ring.degree)
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != wanted:
            got = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            what = f"expected {dtype} {wanted}, got {got}"
            raise InputError(what, where=f"{where}({name})", hint="polynomials of N ring elements, an error for each")
    if error.device != x.device:
        what = f"expected device {x.device}, got {error.device}"
        raise InputError(what, where=f"{where}(error)", hint="move all arguments to one device")
    x, error = x.contiguous(), error.contiguous()
    factor = math.prod(ring.primes) % (1 << k)
    inverses = [centred_inverse(1 << k, q) for q in ring.primes]
    return best(encode, x, error)(ring, x, k, error, factor, inverses)


def centred_inverse(x: int, q: int) -> int:
    """Compute 1 / x mod q as a number of absolute value below q/2."""
    return (pow(x, -1, q) + q // 2) % q - q // 2


def accumulate(ring: Ring, weights: Tensor, x: Tensor, pairs: Tensor, outputs: int) -> Tensor:
    """Sum products of weights and ciphertexts: out[o] = sum of weights[p] x[i] mod q over all p with pairs[p] = (i, o).

    Products are taken value by value. weights: int32 (P, L, N), x: int32 (inputs, size, L, N), both NTT values,
    |residue| <= 2^25. pairs: int64 (P, 2), input and output of each weight, in any order; at most 4,096 for each
    output. Returns int32 (outputs, size, L, N), centred, 0 for an output without pair. Uses torch.get_num_threads().
    InputError for anything else.
    """
    where = "kernels.accumulate"
    ring.check(weights, f"{where}(weights)", 3)
    ring.check(x, f"{where}(x)", 4)
    check_range(f"{where}(outputs)", outputs, 0, 1 << 31)
    if not isinstance(pairs, Tensor) or pairs.dtype != torch.int64 or pairs.shape != (weights.shape[0], 2):
        got = f"{pairs.dtype} {tuple(pairs.shape)}" if isinstance(pairs, Tensor) else type(pairs).__name__
        what = f"expected torch.int64 {(weights.shape[0], 2)}, got {got}"
        raise InputError(what, where=f"{where}(pairs)", hint="an input and an output for each weight")
    if not weights.device == x.device == pairs.device:
        what = f"weights on {weights.device}, x on {x.device}, pairs on {pairs.device}"
        raise InputError(what, where=where, hint="move all arguments to one device")
    inputs, targets = pairs.unbind(1)
    if pairs.numel():
        outside = bool((pairs < 0).any()) or int(inputs.max()) >= x.shape[0] or int(targets.max()) >= outputs
        if outside:
            hint = "inputs count from 0 to len(x) - 1, outputs from 0 to outputs - 1"
            raise InputError(f"a pair outside ({x.shape[0]}, {outputs})", where=f"{where}(pairs)", hint=hint)
        most = int(torch.bincount(targets).max())
        if most > MOST_TERMS:
            hint = "split the sum, and add the parts"
            raise InputError(f"{most} products in a sum, exact are {MOST_TERMS}", where=f"{where}(pairs)", hint=hint)
    order = targets.argsort(stable=True)  # the pairs of an output stand together
    first = torch.searchsorted(targets[order], torch.arange(outputs + 1, device=x.device))
    weights, x = weights.contiguous(), x.contiguous()
    return best(accumulate, weights, x)(ring, weights, x, order, inputs[order], first)
