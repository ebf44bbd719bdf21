"""Exact products and convolutions in plain torch, right in all 64 bits.

On CPUs torch's int64 `matmul`, which wraps mod 2^64, runs on columns that are built for a few images at a time. CUDA
has no integer product: there the factors are split into 16-bit limbs, whose products are summed in float64, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import products
from hummingbird.kernels.shares.products import Factor

LIMB_TERMS = 1 << 21  # the largest number of terms for which sums of limb products are exact in float64
_COLUMN_BYTES = 4 << 20  # size of the unfolded columns that are built at a time: they fit the cache


@implements(products.matmul, "reference")
def matmul(a: Tensor, factor: Factor, bits: int) -> Tensor:
    """Implement `kernels.shares.products.matmul` in plain torch."""
    return _product(a, factor.code)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return matmul_limbs(a, b) if a.is_cuda else torch.matmul(a, b)


def matmul_limbs(a: Tensor, b: Tensor) -> Tensor:
    """Multiply int64 matrices mod 2^64, by float64 products of limbs of 16 bits.

    Exact: limbs are below 2^16, so a sum of k products, and every partial sum in any order, is below k 2^32 <= 2^53 for
    k <= 2^21. Raises InputError for larger k.
    """
    if a.shape[-1] > LIMB_TERMS:
        raise InputError(f"inner dimension {a.shape[-1]} exceeds 2^21, the exactness bound of the float64 product")
    left = [((a >> (16 * i)) & 0xFFFF).double() for i in range(4)]
    right = [((b >> (16 * i)) & 0xFFFF).double() for i in range(4)]
    total: Tensor | None = None
    for i in range(4):
        for j in range(4 - i):  # limbs with i + j >= 4 vanish mod 2^64
            term = torch.matmul(left[i], right[j]).long() << (16 * (i + j))
            total = term if total is None else total + term
    assert total is not None
    return total


@implements(products.conv2d, "reference")
def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` in plain torch: unfolded columns, one matrix product per group."""
    weight = factor.code
    batch, channels = x.shape[:2]
    outputs, inputs, kh, kw = weight.shape
    oh, ow = size
    if groups == channels:
        return _depthwise(x, weight, stride, dilation, oh, ow)
    out = torch.empty(batch, outputs, oh, ow, dtype=torch.int64, device=x.device)
    flat = weight.reshape(groups, outputs // groups, inputs * kh * kw)
    step = max(1, _COLUMN_BYTES // (8 * max(1, channels * kh * kw * oh * ow)))
    for start in range(0, batch, step):
        piece = x[start : start + step]
        images = piece.shape[0]
        unfolded = columns(piece, (kh, kw), stride, dilation, groups, size)
        for group in range(groups):
            product = _product(flat[group], unfolded[group]).view(-1, images, oh, ow)
            first = group * (outputs // groups)
            out[start : start + images, first : first + product.shape[0]] = product.transpose(0, 1)
    return out


def columns(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int, size: Sequence[int]
) -> Tensor:
    """Unfold x for a convolution: the inputs of each output position are a column, (groups, terms, images * positions).

    size: height and width of the result.
    """
    images, channels = x.shape[:2]
    sb, sc, sh, sw = x.stride()
    view = x.as_strided(
        (channels, *kernel, images, *size),
        (sc, sh * dilation[0], sw * dilation[1], sb, sh * stride[0], sw * stride[1]),
    )
    return view.reshape(groups, channels // groups * kernel[0] * kernel[1], images * size[0] * size[1])


def _depthwise(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], oh: int, ow: int) -> Tensor:
    """Compute a convolution with one input channel per group, as a sum of shifted, scaled copies of x.

    oh, ow: height and width of the result.
    """
    channels, outputs = x.shape[1], weight.shape[0]
    x = x.repeat_interleave(outputs // channels, dim=1) if outputs != channels else x
    out = torch.zeros(x.shape[0], outputs, oh, ow, dtype=torch.int64, device=x.device)
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            top, left = i * dilation[0], j * dilation[1]
            tap = x[
                :,
                :,
                top : top + (oh - 1) * stride[0] + 1 : stride[0],
                left : left + (ow - 1) * stride[1] + 1 : stride[1],
            ]
            out.addcmul_(tap, weight[:, 0, i, j].view(1, -1, 1, 1))
    return out
