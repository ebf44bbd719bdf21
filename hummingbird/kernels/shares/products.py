"""Matrix products and convolutions of ring elements: exact mod 2^64, on every device.

A convolution is one matrix product per group, [O, C*kh*kw] x [C*kh*kw, B*L], the batch folded into the columns. In C++
(csrc/products.cpp) it runs without ever building the columns; reference/shares/products.py has torch's ways on CPUs and
on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import best


def _check(where: str, a: Tensor, b: Tensor) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype != torch.int64:
            raise InputError(f"{name} is {tensor.dtype}", where=where, hint="ring elements are torch.int64")
    if a.device != b.device:
        raise InputError(f"operands on {a.device} and {b.device}", where=where, hint="move both to one device")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices mod 2^64, torch's shapes: int64 (..., n, k) x (..., k, m).

    InputError for other types or devices. On CUDA k is at most 2^21.
    """
    _check("kernels.matmul", a, b)
    if b.dim() == 2:  # one product for all of a's rows
        if a.shape[-1] != b.shape[0]:
            hint = "the first's columns are as many as the second's rows"
            what = f"{tuple(a.shape)} times {tuple(b.shape)}: inner sizes differ"
            raise InputError(what, where="kernels.matmul", hint=hint)
        a, b = a.contiguous(), b.contiguous()
    return best(matmul, a, b)(a, b)


def conv2d(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Tensor:
    """Convolve without padding mod 2^64: x int64 (B, C, H, W), weight int64 (O, C // groups, kh, kw).

    Returns int64 (B, O, oh, ow). InputError for other types or devices, for channels that do not fit, and for a kernel
    larger than the input.
    """
    where = "kernels.conv2d"
    _check(where, x, weight)
    outputs, inputs, *kernel = weight.shape
    if x.shape[1] != inputs * groups or outputs % groups:
        raise InputError(f"{x.shape[1]} channels, weight {tuple(weight.shape)}, {groups} groups", where=where)
    size = [(x.shape[2 + d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)]
    if min(size) < 1:
        raise InputError(f"kernel {tuple(kernel)} is larger than the padded input {tuple(x.shape[2:])}", where=where)
    x, weight = x.contiguous(), weight.contiguous()
    return best(conv2d, x, weight)(x, weight, stride, dilation, groups, size)
