"""Exact products in float64, in plain torch: few limbs of the shares, the weights whole.

The low V bits of a share are sum_i d_i 2^(h i), n limbs of h = ceil(V / n) bits with their signs, |d_i| <= 2^(h-1), and
weights are w, |w| <= 2^(b-1). A sum of K products d w stays within 2^(h+b-2) K, and float64 adds whole numbers up to
2^53 exactly, in whatever order. So n matrix products, by the BLAS on unfolded columns, give the result mod 2^V; a
library's own convolution would be free to take transforms (Winograd, FFT), which round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.kernels.reference.shares.products import columns
from hummingbird.kernels.shares.products import Factor

_MOST = 8  # limbs; the products of 16-bit limbs are ten
_COLUMN_BYTES = 1 << 30  # unfolded columns at a time


def count(bits: int, weight_bits: int, terms: int) -> int:
    """The least number of limbs with which a sum of `terms` products is exact; 0 if there is none up to 8."""
    for limbs in range(1, _MOST + 1):
        if terms << max(0, -(-bits // limbs) + weight_bits - 2) <= 2**53:  # 2^(h+b-2) K, see above
            return limbs
    return 0


def balanced(x: Tensor, width: int, limbs: int) -> list[Tensor]:
    """Limbs d_i of `width` bits with their signs: x = sum_i d_i 2^(width i) mod 2^(width limbs), int64 as x."""
    out = []
    for _ in range(limbs):
        out.append((x << (64 - width)) >> (64 - width))
        x = (x - out[-1]) >> width  # the difference may wrap, which changes bits above all limbs
    return out


def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """See `products.conv2d`; for weights and terms that `count` allows."""
    outputs, inputs, *kernel = factor.code.shape
    terms, places = factor.code[0].numel(), size[0] * size[1]
    limbs = count(bits, factor.bits, terms)
    width = -(-bits // limbs)
    weight = factor.made(_whole).view(groups, outputs // groups, terms)
    out = torch.empty((x.shape[0], outputs, *size), dtype=torch.int64, device=x.device)
    step = max(1, _COLUMN_BYTES // (8 * groups * terms * places))
    for start in range(0, x.shape[0], step):
        piece = x[start : start + step]
        total = torch.zeros((groups, outputs // groups, len(piece) * places), dtype=torch.int64, device=x.device)
        for i, limb in enumerate(balanced(piece, width, limbs)):
            unfolded = columns(limb.double(), kernel, stride, dilation, groups, size)
            total += torch.matmul(weight, unfolded).long() << (width * i)
        out[start : start + step] = total.view(outputs, len(piece), *size).transpose(0, 1)
    return out


def _whole(factor: Factor) -> Tensor:
    return factor.code.double()  # exact: |w| <= 2^(b-1), and b - 2 < 53 where `count` allows it
