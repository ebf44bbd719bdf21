"""ONNX's convolutions, pools and norms, by torch's functions.

Where ONNX and torch differ: pads may be different on the two sides, or follow from the sizes (`auto_pad`); an average
counts the padding only with `count_include_pad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hummingbird.errors import InputError
from hummingbird.graph.programs.onnx.shapes import padded
from hummingbird.graph.programs.onnx.values import axis_of, operator, rank, shape, tensor, unlike

Sides = list[tuple[int, int]]


def _sides(
    auto_pad: str, pads: Sequence[int] | None, sizes: Sequence[Any], kernel: Any, stride: Any, dilation: Any
) -> Sides:
    """Return for each spatial dimension how many values are added (before, behind) it.

    auto_pad, pads: ONNX's attributes. sizes: the input's spatial sizes. kernel, stride, dilation: one number for each
    spatial dimension.
    """
    unlike("auto_pad", auto_pad, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    n = len(sizes)
    if auto_pad in ("NOTSET", "VALID"):
        given = list(pads or [0] * 2 * n) if auto_pad == "NOTSET" else [0] * 2 * n
        if len(given) != 2 * n or min(given) < 0:
            raise InputError(f"pads {given} for {n} spatial dimension(s)", hint="two for each, from 0")
        return list(zip(given[:n], given[n:], strict=True))
    found = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def _each(given: Sequence[int] | None, n: int, what: str) -> list[int]:
    values = [1] * n if given is None else list(given)
    if len(values) != n or min(values) < 1:
        raise InputError(f"{what} {values} for {n} spatial dimension(s)", hint="one for each, from 1")
    return values


def _spatial(x: Any) -> int:
    n = rank(x) - 2
    if not 1 <= n <= 3:
        raise InputError(
            f"a value of shape {shape(x)}", hint="(batch, channels, ...) with one to three dimensions more"
        )
    return n


@operator("Conv", 22)
def conv(
    X: Any,
    W: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    n, weight, bias = _spatial(X), tensor(W), None if B is None else tensor(B)
    kernel = list(shape(weight)[2:])
    unlike("kernel_shape", kernel if kernel_shape is None else list(kernel_shape), kernel)
    stride, dilation = _each(strides, n, "strides"), _each(dilations, n, "dilations")
    sides = _sides(auto_pad, pads, shape(X)[2:], kernel, stride, dilation)
    if any(before != behind for before, behind in sides):
        X, sides = padded(X, [(0, 0), (0, 0), *sides], "constant", 0.0), [(0, 0)] * n
    function: Callable[..., Any] = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    return function(X, weight, bias, stride, [before for before, _ in sides], dilation, group)


@operator("ConvTranspose", 22)
def conv_transpose(
    X: Any,
    W: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Compute ONNX's ConvTranspose by torch's transposed convolution.

    torch cuts equally from both sides of the result. Where ONNX cuts more from one side, the rest is cut afterwards.
    The arguments are ONNX's inputs and attributes.
    """
    n, weight, bias = _spatial(X), tensor(W), None if B is None else tensor(B)
    kernel = list(shape(weight)[2:])
    unlike("kernel_shape", kernel if kernel_shape is None else list(kernel_shape), kernel)
    stride, dilation = _each(strides, n, "strides"), _each(dilations, n, "dilations")
    more = [0] * n if output_padding is None else list(output_padding)
    full = [
        s * (size - 1) + o + (k - 1) * d + 1
        for size, k, s, d, o in zip(shape(X)[2:], kernel, stride, dilation, more, strict=True)
    ]
    unlike("auto_pad", auto_pad, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if output_shape is None and auto_pad in ("NOTSET", "VALID"):
        sides = _sides(auto_pad, pads, shape(X)[2:], kernel, stride, dilation)
    else:
        target = [size * s for size, s in zip(shape(X)[2:], stride, strict=True)]
        target = target if output_shape is None else list(output_shape)[-n:]
        totals = [whole - size for whole, size in zip(full, target, strict=True)]
        if min(totals) < 0:
            raise InputError(f"a result of {target}, and {full} is all that there is", hint="set output_padding")
        halves = [(total // 2, total - total // 2) for total in totals]
        sides = halves if auto_pad == "SAME_UPPER" else [(high, low) for low, high in halves]
    even = [min(pair) for pair in sides]
    function: Callable[..., Any] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    found = function(X, weight, bias, stride, even, more, group, dilation)
    cut = [
        slice(before - same, whole - same - behind) if (before, behind) != (same, same) else slice(None)
        for (before, behind), same, whole in zip(sides, even, full, strict=True)
    ]
    return found if all(part == slice(None) for part in cut) else found[tuple([slice(None), slice(None), *cut])]


# Pools ---------------------------------------------------------------------------------------------------------------


@operator("MaxPool", 22)
def max_pool(
    X: Any,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Any:
    """Compute ONNX's MaxPool by torch's. The arguments are ONNX's input and attributes.

    Padding that torch's pool cannot add is added before: copies of the values at the edge, which are in every window
    that reaches beyond the edge and so change no maximum; or -inf, if windows have gaps or could lie beyond the edge.
    """
    n = _spatial(X)
    kernel, stride, dilation = (
        _each(kernel_shape, n, "kernel"),
        _each(strides, n, "strides"),
        _each(dilations, n, "dilations"),
    )
    sides = _sides(auto_pad, pads, shape(X)[2:], kernel, stride, dilation)
    function: Callable[..., Any] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
    ceil = bool(ceil_mode) and auto_pad == "NOTSET"
    if _torch_pads(sides, kernel, dilation):
        return function(X, kernel, stride, [before for before, _ in sides], dilation, ceil)
    if ceil:
        sides = _up_to(sides, shape(X)[2:], kernel, stride, dilation)
    edges = all(d == 1 for d in dilation) and all(k > max(pair) for k, pair in zip(kernel, sides, strict=True))
    X = padded(X, [(0, 0), (0, 0), *sides], "edge" if edges else "constant", -math.inf)
    return function(X, kernel, stride, 0, dilation)


def _torch_pads(sides: Sides, kernel: Any, dilation: Any) -> bool:
    """Whether torch's pools can add this padding: as much on both sides, and at most half of the window's reach.

    sides: (before, behind) for each spatial dimension. kernel, dilation: one number for each spatial dimension.
    """
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return all(before == behind <= size // 2 for (before, behind), size in zip(sides, reach, strict=True))


def _up_to(sides: Sides, sizes: Any, kernel: Any, stride: Any, dilation: Any) -> Sides:
    """Return the padding with which a pool without ceil_mode has as many windows as with it.

    sides: (before, behind) for each spatial dimension; the result has the same form, with another `behind`. sizes: the
    input's spatial sizes. kernel, stride, dilation: one number for each spatial dimension.
    """
    found = []
    for (before, behind), size, k, s, d in zip(sides, sizes, kernel, stride, dilation, strict=True):
        reach = (k - 1) * d + 1
        count = -(-(size + before + behind - reach) // s) + 1
        count -= (count - 1) * s >= size + before  # no window begins behind the values
        found.append((before, (count - 1) * s + reach - size - before))
    return found


@operator("AveragePool", 22)
def average_pool(
    X: Any,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    n = _spatial(X)
    kernel, stride = _each(kernel_shape, n, "kernel_shape"), _each(strides, n, "strides")
    dilation = _each(dilations, n, "dilations")
    unlike("dilations", dilation, [1] * n)
    sides = _sides(auto_pad, pads, shape(X)[2:], kernel, stride, dilation)
    function: Callable[..., Any] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
    ceil = bool(ceil_mode) and auto_pad == "NOTSET"
    if _torch_pads(sides, kernel, dilation):
        padding = [before for before, _ in sides]
        return function(X, kernel, stride, padding, ceil, bool(count_include_pad))
    # A sum of all values, padding included, and the number of those that count.
    last = _up_to(sides, shape(X)[2:], kernel, stride, dilation) if ceil else sides
    counted = torch.ones(1, 1, *shape(X)[2:])
    if count_include_pad:
        counted = padded(counted, [(0, 0), (0, 0), *sides], "constant", 1.0)
        rest = [(0, new - old) for (_, new), (_, old) in zip(last, sides, strict=True)]
        counted = F.pad(counted, [side for pair in reversed(rest) for side in pair])
    else:
        counted = padded(counted, [(0, 0), (0, 0), *last], "constant", 0.0)
    share = function(counted, kernel, stride)
    sums = function(padded(X, [(0, 0), (0, 0), *last], "constant", 0.0), kernel, stride)
    return sums if bool((share == 1).all()) else sums * share.reciprocal()


@operator("GlobalAveragePool", 22)
def global_average_pool(X: Any) -> Any:
    n = _spatial(X)
    function: Callable[..., Any] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n - 1]
    return function(X, 1)


@operator("GlobalMaxPool", 22)
def global_max_pool(X: Any) -> Any:
    n = _spatial(X)
    function: Callable[..., Any] = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[n - 1]
    return function(X, 1)


# Norms ---------------------------------------------------------------------------------------------------------------


@operator("BatchNormalization", 15)
def batch_norm(
    X: Any,
    scale: Any,
    B: Any,
    input_mean: Any,
    input_var: Any,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> Any:
    unlike("training_mode", training_mode, 0, hint="export the net in eval mode")
    unlike("spatial", spatial, 1)
    mean, var = tensor(input_mean), tensor(input_var)
    return F.batch_norm(X, mean, var, tensor(scale), tensor(B), False, 0.0, epsilon)


@operator("InstanceNormalization", 22)
def instance_norm(input: Any, scale: Any, B: Any, *, epsilon: float = 1e-5) -> Any:
    return F.instance_norm(input, weight=tensor(scale), bias=tensor(B), eps=epsilon)


@operator("LayerNormalization", 17)
def layer_norm(X: Any, Scale: Any, B: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    unlike("stash_type", stash_type, 1, hint="values are float32")
    sizes = list(shape(X)[axis_of(axis, rank(X)) :])
    scale, bias = tensor(Scale), None if B is None else tensor(B)
    if shape(scale) == tuple(sizes) and (bias is None or shape(bias) == tuple(sizes)):
        return F.layer_norm(X, sizes, scale, bias, epsilon)
    scaled = F.layer_norm(X, sizes, eps=epsilon) * scale
    return scaled if bias is None else scaled + bias


@operator("RMSNormalization", 23)
def rms_norm(X: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    unlike("stash_type", stash_type, 1, hint="values are float32")
    sizes, factor = list(shape(X)[axis_of(axis, rank(X)) :]), tensor(scale)
    if shape(factor) == tuple(sizes):
        return F.rms_norm(X, sizes, factor, epsilon)
    return F.rms_norm(X, sizes, eps=epsilon) * factor


@operator("GroupNormalization", 21)
def group_norm(X: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    unlike("stash_type", stash_type, 1, hint="values are float32")
    return F.group_norm(X, num_groups, tensor(scale), tensor(bias), epsilon)


@operator("LpNormalization", 22)
def lp_norm(input: Any, *, axis: int = -1, p: int = 2) -> Any:
    unlike("p", p, 1, 2)
    return F.normalize(input, float(p), axis_of(axis, rank(input)))


@operator("LRN", 13)
def local_response_norm(X: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    if size % 2 == 0:
        raise InputError(f"size={size}", hint="an odd size: torch places the window of an even one elsewhere")
    return F.local_response_norm(X, size, alpha, beta, bias)
