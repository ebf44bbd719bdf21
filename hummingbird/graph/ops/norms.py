"""Norms on statistics of the input itself: rules and meanings of layer, group, instance and root-mean-square norms.

All of them are one canonical op, "norm": every row of values is taken to mean 0 (unless `center` is False) and mean
square 1,

    y = (x - mean) / sqrt(mean square of (x - mean) + eps)

A row is what the last `last` dimensions hold; or, with `groups` g, a g-th of the channels (dimension 1) at all places
(g = 0: every channel by itself). Weight and bias are a step of their own: "affine", per channel, or "scale_last" for
factors of the last dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.steps import Ref


def layer_norm(
    b: StepBuilder, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Ref:
    """Rows of the last dimensions, and factors for them."""
    return _last(b, input, normalized_shape, weight, bias, b.number(eps, "eps"), True)


def rms_norm(b: StepBuilder, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Ref:
    """As `layer_norm`, without a mean. torch's eps, if none is given, is that of float32."""
    known = torch.finfo(torch.float32).eps if eps is None else b.number(eps, "eps")
    return _last(b, input, normalized_shape, weight, None, known, False)


def _last(b: StepBuilder, input: Any, sizes: Any, weight: Any, bias: Any, eps: float, center: bool) -> Ref:
    shape = b.ints(sizes, len(sizes) if isinstance(sizes, (tuple, list)) else 1, "normalized_shape")
    attrs: dict[str, Any] = {"last": len(shape), "groups": None, "eps": eps, "center": center, "sizes": shape}
    x = b.emit("norm", b.tensor(input), suffix="" if weight is None and bias is None else ".norm", **attrs)
    return x if weight is None and bias is None else _affine(b, "scale_last", x, weight, bias, shape)


def group_norm(
    b: StepBuilder, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Ref:
    """Rows of channels, which `num_groups` must divide."""
    (groups,) = b.ints(num_groups, 1, "num_groups")
    return _channels(b, input, groups, weight, bias, eps)


def instance_norm(
    b: StepBuilder,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Ref:
    """Every channel of every image by itself; with running statistics it is a batch norm, and is to be one."""
    if not use_input_stats:
        raise Unsupported(*_RUNNING)
    return _channels(b, input, 0, weight, bias, eps)


_RUNNING = "an instance norm on running statistics", "it is a BatchNorm in eval mode: use that"


def instance_norm_layer(
    b: StepBuilder, input: Any, track_running_stats: bool, weight: Any, bias: Any, eps: float, *, n: int
) -> Ref:
    """The module of n spatial dimensions, which in eval mode uses running statistics if it has them."""
    if track_running_stats:
        raise Unsupported(*_RUNNING)
    return _channels(b, input, 0, weight, bias, eps, rank=n + 2)


def _channels(
    b: StepBuilder, input: Any, groups: int, weight: Any, bias: Any, eps: float, rank: int | None = None
) -> Ref:
    attrs: dict[str, Any] = {"last": None, "groups": groups, "eps": b.number(eps, "eps"), "center": True, "sizes": None}
    attrs |= {} if rank is None else {"rank": rank}
    x = b.emit("norm", b.tensor(input), suffix="" if weight is None and bias is None else ".norm", **attrs)
    return x if weight is None and bias is None else _affine(b, "affine", x, weight, bias, None)


def _affine(b: StepBuilder, op: str, x: Ref, weight: Any, bias: Any, shape: tuple[int, ...] | None) -> Ref:
    scale = None if weight is None else b.weight(weight)
    shift = None if bias is None else b.weight(bias, "bias")
    known = scale if scale is not None else shift
    assert known is not None
    if shape is not None and tuple(known.shape) != shape:
        raise Unsupported(f"a norm over {shape} with a weight of shape {tuple(known.shape)}", "give them one shape")
    scale = torch.ones_like(known) if scale is None else scale
    return b.emit(op, x, scale=scale, shift=torch.zeros_like(known) if shift is None else shift)


def rows(a: dict[str, Any], x: Tensor) -> Tensor:
    """x as (..., length), a row of the norm in the last dimension; InputError for a shape that it cannot take."""
    if a["last"] is not None:
        if a["sizes"] is not None and tuple(x.shape[-a["last"] :]) != tuple(a["sizes"]):
            what = f"a norm over the last dimensions {tuple(a['sizes'])} of a value of shape {tuple(x.shape)}"
            raise InputError(what, hint="give inputs of the shape that the net was trained on")
        return x.flatten(-a["last"])
    if a.get("rank", x.dim()) != x.dim() or x.dim() < (2 if a["groups"] else 3):
        what = f"a norm of each channel, of a value of shape {tuple(x.shape)}"
        raise InputError(what, hint="give a batch of images: for one image, x.unsqueeze(0)")
    groups = a["groups"] or x.shape[1]
    if x.shape[1] % groups:
        what = f"{groups} groups of the channels of a value of shape {tuple(x.shape)}"
        raise InputError(what, hint="the number of groups divides the number of channels")
    return x.reshape(x.shape[0], groups, -1)


def _norm(a: dict[str, Any], x: Tensor) -> Tensor:
    y = rows(a, x)
    centered = y - y.mean(-1, keepdim=True) if a["center"] else y
    return (centered * (centered.square().mean(-1, keepdim=True) + a["eps"]).rsqrt()).reshape(x.shape)


def _scale_last(a: dict[str, Any], x: Tensor) -> Tensor:
    return x * a["scale"].to(x.device, x.dtype) + a["shift"].to(x.device, x.dtype)


OPS: dict[str, Callable[..., Any]] = {"norm": _norm, "scale_last": _scale_last}
