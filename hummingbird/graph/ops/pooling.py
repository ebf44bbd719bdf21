"""Which places of its input a pooling window looks at, torch's options, one dimension at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError


def places(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Tensor:
    """Indices (kernel, out) along a dimension of `size` places that each max pooling window looks at.

    InputError for a window that looks at padding alone: torch gives -inf for it.

    Padding never wins in torch, and the maximum of a set does not change when an element is repeated: a place in the
    padding is replaced by the nearest one of the same pooling window that is not, so no "minus infinity" has to fit
    the ring.
    """
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1  # torch: the last window must begin inside the input or the left padding
    start = torch.arange(out) * stride - padding
    first = (-start + dilation - 1).div(dilation, rounding_mode="floor").clamp(min=0)  # first tap inside
    last = (size - 1 - start).div(dilation, rounding_mode="floor").clamp(max=kernel - 1)  # last tap inside
    if bool((first > last).any()):
        raise InputError(
            f"a window of max pooling (kernel {kernel}, dilation {dilation}, padding {padding}) over {size} places "
            "looks at padding alone, where torch gives -inf",
            hint="make the input larger, or the padding or the dilation smaller",
        )
    taps = torch.arange(kernel)[:, None].clamp(min=first[None]).minimum(last[None])
    return start[None] + taps * dilation


def adaptive_windows(size: int, output: int | None) -> tuple[Tensor, Tensor]:
    """First place and length of each of `output` windows of an adaptive pooling along `size` places; None: of each
    place. As torch: from floor(i size / output) to ceil((i + 1) size / output).
    """
    output = output or size
    first = torch.arange(output) * size // output
    return first, -(-(torch.arange(output) + 1) * size // output) - first


def equal_windows(shape: Sequence[int], output_size: Sequence[int | None]) -> list[int]:
    """Kernel (and stride) of an adaptive pooling whose windows are equal; InputError if they cannot be."""
    space = tuple(shape)[-len(output_size) :]
    sizes = [out or size for size, out in zip(space, output_size, strict=True)]
    if any(size % out for size, out in zip(space, sizes, strict=True)):
        raise InputError(
            f"adaptive pooling to {tuple(sizes)} does not divide the input's {space}",
            hint="change the input size, or replace the layer by AvgPool2d or MaxPool2d",
        )
    return [size // out for size, out in zip(space, sizes, strict=True)]
