"""Exact products on a GPU: the choice among three methods.

    digits     signed bytes of both factors in Triton, summed in int32 by the tensor cores (digits.py)
    limbs      few limbs of the shares times undivided weights, summed in float64 (limbs.py)
    reference  16-bit limbs of both factors, ten products in float64 (reference/shares/products.py)

The peak rates of an H100, for 40 result bits and weights of 19 bits, are 82 T multiply-adds a second by 12 products of
digits, 14 T by 2 products of limbs and 2.9 T by the reference: derived, not measured. The first two methods must be
exact for this V, b and K. torch's switches for TF32 and for sums in half precision affect neither int8 nor float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.kernels.gpu import digits, limbs
from hummingbird.kernels.reference.shares import products as reference
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import products
from hummingbird.kernels.shares.products import Factor

WAYS = {"digits": digits.conv2d, "limbs": limbs.conv2d, "reference": reference.conv2d}
TENSOR_CORES = (8, 0)  # the least compute capability with products of bytes in Triton


def way(bits: int, weight_bits: int, terms: int, capability: tuple[int, int]) -> str:
    """Choose a method of WAYS ("digits", "limbs" or "reference") that computes sums of products exactly.

    bits: how many low bits of the result are read. weight_bits: bits of a weight. terms: products in a sum. capability:
    the GPU's compute capability.
    """
    if capability >= TENSOR_CORES and digits.exact(bits, weight_bits, terms):
        return "digits"
    return "limbs" if limbs.count(bits, weight_bits, terms) else "reference"


def _several_inputs(x: Tensor, weight: Tensor) -> bool:
    """Whether each group of a convolution has several input channels; with one, a matrix product does not pay."""
    return bool(x.numel() and weight.numel()) and weight.shape[1] > 1


@implements(products.conv2d, "gpu", takes=_several_inputs)
def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` on a GPU, by the method that `way` chooses.

    size: height and width of the result.
    """
    chosen = way(bits, factor.bits, factor.code[0].numel(), torch.cuda.get_device_capability(x.device))
    with torch.cuda.device_of(x):  # Triton starts kernels on the thread's device
        return WAYS[chosen](x, factor, stride, dilation, groups, size, bits)


def _one_product(a: Tensor, b: Tensor) -> bool:
    return b.dim() == 2 <= a.dim() and bool(a.numel() and b.numel())


@implements(products.matmul, "gpu", takes=_one_product)
def matmul(a: Tensor, factor: Factor, bits: int) -> Tensor:
    """Implement `kernels.shares.products.matmul` on a GPU, as a 1 x 1 convolution with a's rows as images."""
    terms, columns = factor.code.shape
    out = conv2d(a.view(-1, terms, 1, 1), factor.made(_turned), (1, 1), (1, 1), 1, (1, 1), bits)
    return out.view(*a.shape[:-1], columns)


def _turned(factor: Factor) -> Factor:
    """Convert a matrix to the weight of a convolution, whose outputs are the matrix's columns."""
    return Factor(factor.code.t()[:, :, None, None], factor.bits)
