"""Arithmetic on ciphertexts: integer matrix products, sums, ring products, modulus switching, and sums of monomials.

A ciphertext in RNS is an int32 tensor (size, L, N): `size` ring elements, their residues modulo L primes, N
coefficients or NTT values each; residues are centred, |x| <= (q - 1) / 2. reference/ciphertexts/arithmetic.py is the
version in torch, csrc/ciphertexts.cpp, csrc/bfv.cpp and csrc/monomials.cpp are those in C++.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.registry import best

# Linear layers, sums, products and modulus switching ------------------------------------------------------------------
#
# A ciphertext of CKKS in RNS is an int32 tensor (size, L, N): `size` ring elements, their residues modulo L primes, N
# coefficients or NTT values each; residues are centred, |x| <= (q - 1) / 2. One weight times a ciphertext is one
# integer times each residue (batch-axis packing: Boemer et al., nGraph-HE2, WAHC 2019, section 4.2), so a linear layer
# is
#
#     out[row, place] = sum_k weights[row, k] x[index[place, k]] mod q
#
# for every residue: a matrix product whose columns are the residues. It is summed in float64, which is exact in any
# order while ||weights[row]||_1 (q - 1) / 2 + q <= 2^53; only the division by q rounds. See also ePrint 2024/1284 and
# arXiv 2503.16080 on homomorphic products by plain ones.
#
# Modulo q a sum s is s - q round(s / q). The computed quotient has an error of at most |s / q| 2^-52, and s / q is at
# least 1 / 2q away from a tie (q is odd), so the rounding is right for |s| < 2^51. For larger s it may be off by one,
# and a second step, with |s| < q, corrects that. q round(s / q) is within q of s, so the product is exact.
#
# reference/ciphertexts/arithmetic.py is the version in torch, csrc/ciphertexts.cpp the one in C++.

EXACT = 2**53  # float64 holds every integer up to here
_ONE_STEP = 2**51  # below it, one step of the reduction is enough
_MOST_PRODUCTS = 8  # 8 products of residues, each below q^2 / 4 < 2^50, and q more are below 2^53


def linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute linear combinations of ciphertexts: out[g rows + r, p] = sum_k weights[g, r, k] x[index[g, p, k]] mod q.

    There are G groups of `rows` sums; each sum is computed at several places p, as a convolution's filters at all
    pixels.
    weights: float64 (G, rows, K), integers. index: int32 (G, places, K): the number of the ciphertext of x that each
    term reads; -1 for a term that is 0. x: int32 (inputs, ..., L, N), centred, N residues modulo each of L primes q.
    out: where to write the result; its first two dimensions may be strided, so that some of the places can be computed
    at a time. Returns int32 (G rows, places, ..., L, N). Uses torch.get_num_threads(). InputError for other types or
    shapes, for an index out of range, and for a row whose sums could be inexact: the sum of |weights[g, r]| times (q -
    1) / 2, plus q, must not exceed 2^53 (a sum of about 2^28 for 26-bit primes).

        linear(ring, torch.tensor([[[2.0, -1.0]]]).double(), torch.tensor([[[0, 1]]]).int(), x)[0, 0]  # 2 x[0] - x[1]
    """
    where = "kernels.linear"
    ring.check(x, f"{where}(x)")
    if x.dim() < 3:
        raise InputError(f"x is {tuple(x.shape)}", where=f"{where}(x)", hint="x is (inputs, ..., L, N)")
    _check_like(f"{where}(weights)", weights, torch.float64, x)
    _check_like(f"{where}(index)", index, torch.int32, x)
    if weights.dim() != 3 or index.dim() != 3 or weights.shape[::2] != index.shape[::2]:
        shapes = f"weights {tuple(weights.shape)}, index {tuple(index.shape)}"
        raise InputError(shapes, where=where, hint="weights are (groups, rows, K), index is (groups, places, K)")
    if index.numel() and not -1 <= int(index.min()) <= int(index.max()) < x.shape[0]:
        what = f"indices from {int(index.min())} to {int(index.max())} of {x.shape[0]} ciphertexts"
        raise InputError(what, where=f"{where}(index)", hint="0 to inputs - 1, or -1 for none")
    largest = _check_exact(ring, weights)
    shape = (weights.shape[0] * weights.shape[1], index.shape[1], *x.shape[1:])
    if out is None:
        out = torch.empty(shape, dtype=torch.int32, device=x.device)
    else:
        _check_like(f"{where}(out)", out, torch.int32, x)
        if out.shape != shape or (out.numel() and not out[0, 0].is_contiguous()):
            raise InputError(f"out is {tuple(out.shape)}, strides {out.stride()}", where=where, hint=f"give {shape}")
    if not weights.shape[2] or not x.shape[0]:
        return out.zero_()
    if out.numel():
        x, steps = x.contiguous(), 1 if largest < _ONE_STEP else 2
        best(linear, x)(ring, weights.contiguous(), index.contiguous(), x, out, steps)
    return out


def _check_like(where: str, tensor: Tensor, dtype: torch.dtype, like: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.device != like.device:
        got = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"expected {dtype} on {like.device}, got {got}", where=where, hint="convert it with .to()")


def _check_exact(ring: Ring, weights: Tensor) -> int:
    """Check the weights of `linear`, and return a bound on the absolute values of its sums before they are reduced.

    weights: float64 (G, rows, K). Raises InputError for weights that are not integers, and if float64 cannot hold the
        sums exactly.
    """
    if not weights.numel():
        return 0
    if not bool((weights == weights.round()).all()):  # NaN differs from itself; infinity fails below
        raise InputError("weights are not integers", where="kernels.linear(weights)", hint="scale and round them first")
    prime = max(ring.primes)
    most = (EXACT - prime) // ((prime - 1) // 2)
    norms = weights.abs().sum(-1)
    worst = int(norms.argmax())
    norm = float(norms.flatten()[worst])
    if not norm <= most:
        group, row = divmod(worst, weights.shape[1])
        raise InputError(
            f"row {row} of group {group}: the weights' absolute values sum to {norm:.0f}, exact are sums up to {most}",
            where="kernels.linear(weights)",
            hint="use a smaller weight scale, or split the inner dimension and add the parts",
        )
    return int(norm) * ((prime - 1) // 2)


def add(ring: Ring, x: Tensor, y: Tensor, factor: int = 1) -> Tensor:
    """Add ciphertexts x and y, of which y is multiplied by the integer `factor`: x + factor y modulo each prime q.

    x, y: int32 (..., L, N) of one shape, L primes and N coefficients. factor: |factor| <= 2^24. Returns int32 of that
    shape. InputError for anything else.
    """
    ring.check(x, "kernels.add(x)")
    ring.check(y, "kernels.add(y)")
    _check_like("kernels.add(y)", y, torch.int32, x)
    if x.shape != y.shape:
        raise InputError(f"{tuple(x.shape)} plus {tuple(y.shape)}", where="kernels.add", hint="give equal shapes")
    if not isinstance(factor, int) or abs(factor) > 1 << 24:
        raise InputError(f"factor {factor}", where="kernels.add(factor)", hint="a whole number, at most 2^24")
    x, y = x.contiguous(), y.contiguous()
    return best(add, x, y)(ring, x, y, factor)


def shift(ring: Ring, x: Tensor, constants: Tensor, step: int) -> None:
    """Add a constant to every `step`-th residue of the first ring element of each ciphertext, in place.

    x: the result of a linear layer, int32 (rows, places, size, L, N), centred: ciphertexts of `size` ring elements, one
    for each row of the weights and each place. The first two dimensions may be strided. constants: int32 (rows, L),
    centred: the constant of each row modulo each prime; it is added at all places of the row. step: 1 .. N. InputError
    for anything else.
    """
    where, primes = "kernels.shift", len(ring.primes)
    ring.check(x, f"{where}(x)", 5)
    _check_like(f"{where}(constants)", constants, torch.int32, x)
    if constants.shape != (x.shape[0], primes) or not 1 <= step <= ring.degree:
        what = f"constants {tuple(constants.shape)}, step {step}, x {tuple(x.shape)}"
        raise InputError(what, where=where, hint="constants are (rows, L), step is from 1 to N")
    if not x.numel():
        return
    if not x[0, 0].is_contiguous():
        raise InputError(f"x has strides {x.stride()}", where=f"{where}(x)", hint="a ciphertext is contiguous")
    moduli = torch.tensor(ring.primes, dtype=torch.int32).to(x.device)
    lifted = constants + (constants >> 31 & moduli)  # 0 .. q - 1: no sum is below -q/2
    best(shift, lifted)(ring, x, lifted, moduli, step)


def multiply(ring: Ring, x: Tensor, y: Tensor) -> Tensor:
    """Multiply ciphertexts pairwise, as polynomials in the secret: element k of a product is sum_i x_i y_{k-i} mod q.

    x: n ciphertexts, each of `a` ring elements, int32 (n, a, L, N). y: n ciphertexts, each of `b` ring elements, int32
    (n, b, L, N). Both are NTT values modulo L primes; 1 <= a, b and min(a, b) <= 8. Returns int32 (n, a + b - 1, L, N).
    InputError for anything else.
    """
    ring.check(x, "kernels.multiply(x)", 4)
    ring.check(y, "kernels.multiply(y)", 4)
    _check_like("kernels.multiply(y)", y, torch.int32, x)
    a, b = x.shape[1], y.shape[1]
    if x.shape[0] != y.shape[0] or not 1 <= min(a, b) <= _MOST_PRODUCTS:
        hint = "the same number of ciphertexts on both sides, and at most 8 parts on one of them"
        raise InputError(f"{tuple(x.shape)} times {tuple(y.shape)}", where="kernels.multiply", hint=hint)
    x, y = x.contiguous(), y.contiguous()
    return best(multiply, x, y)(ring, x, y)


def square(ring: Ring, x: Tensor) -> Tensor:
    """Multiply each ciphertext by itself, as polynomials in the secret.

    x: int32 (n, size, L, N), NTT values modulo L primes. Returns int32 (n, 2 size - 1, L, N). InputError as `multiply`.
    """
    return multiply(ring, x, x)


def switch(ring: Ring, x: Tensor, form: str) -> Tensor:
    """Divide ciphertexts by the last prime p, rounded to the nearest integer, and drop this prime (modulus switching).

    The result is (x - [x]_p) / p modulo each other prime, with [x]_p the centred residue modulo p. x: n ciphertexts of
    `size` ring elements modulo L primes, int32 (n, size, L, N), L >= 2. form: "ntt" if all elements are NTT values,
    "mixed" if element 0 is coefficients and the others are NTT values. Returns int32 (n, size, L - 1, N) in the same
    form, over the ring `ring.take(L - 1)`. The rounding error is at most 1/2 in each coefficient of each element. An
    element that is NTT values costs L transforms. InputError for anything else.
    """
    ring.check(x, "kernels.switch(x)", 4)
    if form not in ("mixed", "ntt"):
        raise InputError(f"form {form!r}", where="kernels.switch(form)", hint='"mixed" or "ntt"')
    count = len(ring.primes) - 1
    if not count:
        raise InputError("one prime is left", where="kernels.switch(ring)", hint="keep more primes until here")
    inverses = [(pow(ring.primes[count], -1, q) + q // 2) % q - q // 2 for q in ring.primes[:count]]
    x, plain = x.contiguous(), 1 if form == "mixed" else 0  # parts that are coefficients
    return best(switch, x)(ring, x, plain, inverses)


# BFV modulo 2^k: integers to residues at the scale Q / 2^k, and sums of products of polynomials -----------------------
#
# A polynomial x of ring elements is encrypted as round(Q x / 2^k). With v = [Q x]_{2^k}, centred, Q x - v is a multiple
# of 2^k, and the quotient (Q x - v) / 2^k is Q x / 2^k rounded to the nearest integer. Modulo a prime q of Q, Q is 0:
#
#     round(Q x / 2^k) = -v 2^-k mod q,        |v| <= 2^(k-1).
#
# Products of residues are integers below 2^50: a sum of 2^12 of them stays below 2^62, so one reduction is enough for
# the whole sum (Harvey, "Faster arithmetic for number-theoretic transforms", 2014, on unreduced sums).

MOST_BITS = 32  # of the plaintext ring: |v| <= 2^31 fits int32
MOST_TERMS = 1 << 12  # products in one sum: below 2^12 2^50 = 2^62


def encode(ring: Ring, x: Tensor, k: int, error: Tensor) -> Tensor:
    """Encode ring elements mod 2^k for encryption, as round(Q x / 2^k) + error, with Q the product of all L primes.

    x: int64 (n, N), of which only the low k bits are used. 1 <= k <= 32. error: int32 (n, N), |error| < 2^30. Returns
    the residues modulo each prime, as coefficients: int32 (n, L, N). Constant time. InputError for anything else.
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
    """Sum products of weights and ciphertexts, with N values modulo each of the ring's L primes q.

    Output o is the sum of weights[p] x[i] mod q over all p with pairs[p] = (i, o). weights: int32 (P, L, N). x: the
    inputs, int32 (inputs, size, L, N), ciphertexts of `size` ring elements. Both are NTT values with |residue| <= 2^25,
    which are multiplied one by one. pairs: int64 (P, 2), for each weight the number of its input i and of its output o,
    in any order; at most 4,096 for one output. outputs: how many outputs there are. Returns int32 (outputs, size, L,
    N), centred; 0 for an output without weights. Uses torch.get_num_threads(). InputError for anything else.
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


# Sums of ciphertexts times monomials: a convolution with few weights, a channel a polynomial --------------------------
#
#     out[o] = sum_t factors[t] X^shifts[t] x[inputs[t]] mod q, X^N + 1,   first[o] <= t < first[o + 1]
#
# X^e shifts coefficients up by e and negates those that pass N. So no transform is needed, and each non-zero weight
# costs one product for each residue (Choi et al., Impala, 2022: sparse convolution, here with monomials in place of
# rotations). Sums are exact in float64 under the same bound as in `linear`.
#
# reference/ciphertexts/arithmetic.py has the version in torch, csrc/monomials.cpp the one in C++.


def taps(ring: Ring, x: Tensor, first: Tensor, inputs: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """Sum ciphertexts multiplied by monomials c X^e: output o is the sum of the terms first[o] .. first[o + 1] - 1.

    x: int32 (n, size, L, N), centred coefficients. inputs, shifts, factors: int64 (T,), for each term the index of a
    ciphertext of x, the exponent e, 0 .. 2N - 1, and the integer c. first: int64 (outputs + 1,), ascending from 0 to T.
    Returns int32 (outputs, size, L, N), centred, 0 for an output without terms. Uses torch.get_num_threads().
    InputError for anything else, and for an output whose sums could be inexact: (q - 1) / 2 times the sum of its
    |factors|, plus q, must not exceed 2^53.

        taps(ring, x, torch.tensor([0, 1]), torch.tensor([4]), torch.tensor([3]), torch.tensor([-2]))  # -2 X^3 x[4]
    """
    where = "kernels.taps"
    ring.check(x, f"{where}(x)", 4)
    check_tensor(f"{where}(inputs)", inputs, torch.int64, x)
    for name, tensor in {"inputs": inputs, "shifts": shifts, "factors": factors}.items():
        check_tensor(f"{where}({name})", tensor, torch.int64, x, size=inputs.numel())
    check_tensor(f"{where}(first)", first, torch.int64, x, size=first.numel())
    _check_between(f"{where}(inputs)", inputs, x.shape[0])
    _check_between(f"{where}(shifts)", shifts, 2 * ring.degree)
    ends = first.numel() and first[0] == 0 and first[-1] == inputs.numel()
    if not ends or bool((first.diff() < 0).any()):
        hint = "output o has the terms first[o] .. first[o + 1] - 1, and each term an output"
        raise InputError(f"runs of terms that are not 0 .. {inputs.numel()}", where=f"{where}(first)", hint=hint)
    prime = max(ring.primes)
    most = (EXACT - prime) // ((prime - 1) // 2)
    if factors.numel() and not -most <= int(factors.min()) <= int(factors.max()) <= most:
        raise InputError("a factor is too large", where=f"{where}(factors)", hint=f"at most {most}")
    sums = torch.nn.functional.pad(factors.abs().cumsum(0), (1, 0))  # below 2^29 T
    if first.numel() > 1 and (norm := int(sums[first].diff().max())) > most:
        what = f"the factors of an output sum to {norm} in absolute value, exact are sums up to {most}"
        raise InputError(what, where=f"{where}(factors)", hint="use a smaller weight scale")
    x, terms = x.contiguous(), [t.contiguous() for t in (first, inputs, shifts, factors)]
    return best(taps, x)(ring, x, *terms)


def _check_between(where: str, tensor: Tensor, end: int) -> None:
    """Raise InputError unless all values of `tensor` are from 0 to end - 1. where: the argument's name."""
    if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < end:
        what = f"values from {int(tensor.min())} to {int(tensor.max())}"
        raise InputError(what, where=where, hint=f"0 to {end - 1}")
