"""Matrix products and convolutions of ring elements: exact mod 2^64, on every device.

A convolution is one matrix product per group, [O, C*kh*kw] x [C*kh*kw, B*L], the batch folded into the columns. On the
CPU csrc/products.cpp runs it without ever building the columns; without that library torch's own int64 `matmul` wraps
mod 2^64 just as well, on columns built for a few images at a time. CUDA has no integer product: there the factors are
cut into 16-bit limbs whose products are summed in float64, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import native

LIMB_TERMS = 1 << 21  # the most terms whose sum of limb products is exact in float64
_COLUMN_BYTES = 4 << 20  # unfolded columns built at a time: they stay in the cache


def _check(where: str, a: Tensor, b: Tensor) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype != torch.int64:
            raise InputError(f"{name} is {tensor.dtype}", where=where, hint="ring elements are torch.int64")
    if a.device != b.device:
        raise InputError(f"operands on {a.device} and {b.device}", where=where, hint="move both to one device")


def _is_native(x: Tensor) -> bool:
    return native.available() and x.device.type == "cpu"


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b mod 2^64, torch's shapes: int64 (..., n, k) x (..., k, m). InputError for other types or devices.

    On CUDA k is at most 2^21.
    """
    _check("kernels.matmul", a, b)
    if not _is_native(a) or b.dim() != 2 or a.dim() < 2 or not a.numel() or not b.numel():
        return reference_matmul(a, b)
    if a.shape[-1] != b.shape[0]:
        raise InputError(f"{tuple(a.shape)} times {tuple(b.shape)}", where="kernels.matmul", hint="inner sizes differ")
    left, right = a.contiguous().view(-1, b.shape[0], 1, 1), b.contiguous()[None, :, None]
    return native.conv2d(right, left, (1, 1), (1, 1), 1, (1, b.shape[1])).view(*a.shape[:-1], b.shape[1])


def reference_matmul(a: Tensor, b: Tensor) -> Tensor:
    """`matmul` in plain torch."""
    return matmul_limbs(a, b) if a.is_cuda else torch.matmul(a, b)


def matmul_limbs(a: Tensor, b: Tensor) -> Tensor:
    """`matmul` from float64 products of 16-bit limbs.

    Exact: limbs are below 2^16, so a sum of k products is below k 2^32 <= 2^53 for k <= 2^21, and so is every partial
    sum, in whatever order the device adds.
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


def conv2d(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Tensor:
    """Convolution without padding mod 2^64: x int64 (B, C, H, W), weight int64 (O, C // groups, kh, kw).

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
    if x.numel() and weight.numel() and _is_native(x):
        return native.conv2d(x.contiguous(), weight.contiguous(), stride, dilation, groups, size)
    return reference_conv2d(x, weight, stride, dilation, groups, size)


def reference_conv2d(
    x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int, size: Sequence[int]
) -> Tensor:
    """`conv2d` in plain torch: columns by strides, one matrix product per group."""
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
        sb, sc, sh, sw = piece.stride()
        view = piece.as_strided(
            (channels, kh, kw, images, oh, ow),
            (sc, sh * dilation[0], sw * dilation[1], sb, sh * stride[0], sw * stride[1]),
        )
        columns = view.reshape(groups, inputs * kh * kw, images * oh * ow)
        for group in range(groups):
            product = reference_matmul(flat[group], columns[group]).view(-1, images, oh, ow)
            first = group * (outputs // groups)
            out[start : start + images, first : first + product.shape[0]] = product.transpose(0, 1)
    return out


def _depthwise(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], oh: int, ow: int) -> Tensor:
    """One input channel per group: a sum of shifted, scaled copies; nothing is unfolded."""
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
