"""Sums of ciphertexts times monomials: a convolution with few weights, on polynomials that hold one channel each.

    out[o] = sum_t factors[t] X^shifts[t] x[inputs[t]] mod q, X^N + 1,   first[o] <= t < first[o + 1]

X^e shifts coefficients up by e and negates those that pass N. So no transform is needed, and each non-zero weight costs
one product for each residue (Choi et al., Impala, 2022: sparse convolution, here with monomials in place of rotations).
Sums are exact in float64 under the same bound as in `linear`.

reference/ciphertexts/arithmetic.py has the version in torch, csrc/monomials.cpp the one in C++.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_tensor
from hummingbird.kernels.ciphertexts.arithmetic import EXACT
from hummingbird.kernels.ciphertexts.ring import Ring
from hummingbird.kernels.registry import best


def taps(ring: Ring, x: Tensor, first: Tensor, inputs: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """Sum ciphertexts times monomials c X^e; output o sums the terms first[o] .. first[o + 1] - 1.

    x: int32 (n, size, L, N), centred coefficients. inputs, shifts, factors: int64 (T,), for each term the index of a
    ciphertext of x, an exponent 0 .. 2N - 1 and an integer. first: int64 (outputs + 1,), ascending from 0 to T. Returns
    int32 (outputs, size, L, N), centred, 0 for an output without terms. Uses torch.get_num_threads(). InputError for
    anything else, and for an output whose sums could be inexact: (q - 1) / 2 times the sum of its |factors|, plus q,
    must not exceed 2^53.

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
    """Raise InputError for values outside 0 .. end - 1. where: the argument's name."""
    if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < end:
        what = f"values from {int(tensor.min())} to {int(tensor.max())}"
        raise InputError(what, where=where, hint=f"0 to {end - 1}")
