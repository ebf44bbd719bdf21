"""Exact products in float64, in plain torch: few limbs of the shares, times undivided weights.

The low V bits of a share are sum_i d_i 2^(h i), n signed limbs of h = ceil(V / n) bits, |d_i| <= 2^(h-1), and weights
are w, |w| <= 2^(b-1). A sum of K products d w stays within 2^(h+b-2) K, and float64 adds integers up to 2^53 exactly,
in any order. So n matrix products, by the BLAS on unfolded columns, yield the result mod 2^V. A library's own
convolution could use transforms (Winograd, FFT), which round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.kernels.reference.shares.products import columns
from hummingbird.kernels.shares.products import Factor

_MOST = 8  # limbs; the reference has ten products of 16-bit limbs
_COLUMN_BYTES = 1 << 30  # size of the unfolded columns that are built at a time


def count(bits: int, weight_bits: int, terms: int) -> int:
    """Return the least number of limbs into which shares must be split for sums of products to be exact in float64.

    0 if 8 limbs do not suffice. bits: how many low bits of the result are read. weight_bits: bits of a weight. terms:
    products in a sum.
    """
    for limbs in range(1, _MOST + 1):
        if terms << max(0, -(-bits // limbs) + weight_bits - 2) <= 2**53:  # 2^(h+b-2) K, see above
            return limbs
    return 0


def balanced(x: Tensor, width: int, limbs: int) -> list[Tensor]:
    """Split x into limbs d_i, numbers of `width` bits with sign: x = sum_i d_i 2^(width i) mod 2^(width limbs).

    limbs: how many. Each limb has the type and shape of x, int64.
    """
    out = []
    for _ in range(limbs):
        out.append((x << (64 - width)) >> (64 - width))
        x = (x - out[-1]) >> width  # the difference may wrap, which changes only bits above all limbs
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
    """Implement `kernels.shares.products.conv2d` by float64 products of limbs, in plain torch.

    To be called only where `count` finds a number of limbs whose sums are exact. size: height and width of the result.
    """
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
