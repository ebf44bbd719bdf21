"""Layers with weights: convolutions and products with constant matrices.

A rule has the parameters of the torch function, so the arguments of modules (their attributes), functions and methods
all bind to it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling, check_batch, like
from hummingbird.graph.ops.resize import edge_pad
from hummingbird.graph.steps import Ref, Step


def conv(
    b: StepBuilder,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    *,
    n: int,
) -> Ref:
    """Convert a call of a convolution of n spatial dimensions to steps.

    Some paddings become a step of their own before the convolution: those with the input's own values ("reflect" and
    the like), and padding="same" where the two sides of a dimension get different amounts.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    x, w, c = b.tensor(input), b.weight(weight), None if bias is None else b.weight(bias, "bias")
    strides, dilations = b.ints(stride, n, "stride"), b.ints(dilation, n, "dilation")
    pads: tuple[int, ...] | None = None
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilations, w.shape[2:], strict=True)]
        padding = tuple(t // 2 for t in total)
        pads = tuple(side for t in reversed(total) for side in (t // 2, t - t // 2))
        if padding_mode == "zeros" and any(t % 2 for t in total):
            x = b.emit("pad", x, suffix=".pad", pads=pads, value=0.0)
            padding = 0
    paddings = b.ints(0 if padding == "valid" else padding, n, "padding")
    if padding_mode != "zeros":
        if pads is None:
            pads = tuple(side for p in reversed(paddings) for side in (p, p))
        x = edge_pad(b, x, pads, padding_mode, ".pad") if any(pads) else x
        paddings = (0,) * n
    attrs: dict[str, Any] = {"stride": strides, "padding": paddings, "dilation": dilations}
    return b.emit("conv", x, weight=w, bias=c, **attrs, groups=b.ints(groups, 1, "groups")[0])


def conv_transpose(
    b: StepBuilder,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    padding_mode: str = "zeros",
    *,
    n: int,
) -> Ref:
    if padding_mode != "zeros":
        raise Unsupported(f"padding_mode={padding_mode!r}", "torch's transposed convolutions have zeros alone")
    x, w, c = b.tensor(input), b.weight(weight), None if bias is None else b.weight(bias, "bias")
    attrs: dict[str, Any] = {
        "stride": b.ints(stride, n, "stride"),
        "padding": b.ints(padding, n, "padding"),
        "output_padding": b.ints(output_padding, n, "output_padding"),
        "dilation": b.ints(dilation, n, "dilation"),
        "groups": b.ints(groups, 1, "groups")[0],
    }
    return b.emit("conv_transpose", x, weight=w, bias=c, **attrs)


def linear(b: StepBuilder, input: Any, weight: Any, bias: Any = None) -> Ref:
    w = b.weight(weight)
    if w.dim() != 2:
        raise Unsupported(f"a linear weight must have 2 dimensions, got {w.dim()}")
    return b.emit("linear", b.tensor(input), weight=w, bias=None if bias is None else b.weight(bias, "bias"))


def matmul(b: StepBuilder, input: Any, other: Any) -> Ref:
    """Convert a matrix product of a value and a constant matrix to a linear layer.

    input @ other, with other constant of shape (in, out), becomes a layer whose weight is `other` transposed. With
    `input` constant, the value is transposed before the layer, and the result after it. The steps are added to `b`;
    returns a reference to the result.
    """
    if not b.kind(input) and b.kind(other) and isinstance(input, torch.Tensor) and input.dim() == 2:
        # W x = (x^T W^T)^T over the last two dimensions
        x = b.emit("transpose", b.tensor(other), suffix=".turned", dim0=-2, dim1=-1)
        y = b.emit("linear", x, suffix=".rows", weight=b.weight(input, "matrix"), bias=None)
        return b.emit("transpose", y, dim0=-2, dim1=-1)
    if not b.kind(input) or b.kind(other) or not isinstance(other, torch.Tensor) or other.dim() != 2:
        raise Unsupported("matmul is known for a traced tensor times a constant matrix only", "write it as nn.Linear")
    return b.emit("linear", b.tensor(input), weight=b.weight(other, "matrix").t().contiguous(), bias=None)


def _conv(a: Attrs, x: Tensor) -> Tensor:
    check_batch(a, x)
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(a["stride"]) - 1]
    weight, bias = like(a["weight"], x), like(a["bias"], x)
    return conv(x, weight, bias, a["stride"], a["padding"], a["dilation"], a["groups"])


def _conv_transpose(a: Attrs, x: Tensor) -> Tensor:
    check_batch(a, x)
    conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(a["stride"]) - 1]
    weight, bias = like(a["weight"], x), like(a["bias"], x)
    return conv(x, weight, bias, a["stride"], a["padding"], a["output_padding"], a["groups"], a["dilation"])


def _check(step: Step) -> None:
    """Raise ValueError unless the weight and the bias of a saved step have the shapes that its layer needs."""
    a, transposed = step.attrs, step.op == "conv_transpose"
    weight, bias, groups = a["weight"], a["bias"], a.get("groups", 1)
    dims = 2 + len(a.get("stride", ()))
    if weight.dim() != dims or 0 in weight.shape or weight.shape[0] % groups:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} for {dims} dimensions and {groups} group(s)")
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and tuple(bias.shape) != (channels,):
        raise ValueError(f"a bias of shape {tuple(bias.shape)} for {channels} channels")


_CONV = "weight bias stride padding dilation groups padding_mode"
_WEIGHTS = "weight=tensor bias=tensor|none"

OPS = [
    Op(
        "conv",
        _conv,
        ranks.spatial,
        [
            Spelling(partial(conv, n=n), f"conv{n}d", {module: _CONV})
            for n, module in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1)
        ],
        attrs=f"{_WEIGHTS} stride=positives padding=wholes dilation=positives groups=positive",
        check=_check,
        batch=batch.first,
    ),
    Op(
        "conv_transpose",
        _conv_transpose,
        ranks.spatial,
        [
            Spelling(partial(conv_transpose, n=n), f"conv_transpose{n}d", {module: _CONV + " output_padding"})
            for n, module in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1)
        ],
        attrs=f"{_WEIGHTS} stride=positives padding=wholes output_padding=wholes dilation=positives groups=positive",
        check=_check,
        batch=batch.first,
    ),
    Op(
        "linear",
        lambda a, x: F.linear(x, like(a["weight"], x), like(a["bias"], x)),
        ranks.same,
        [Spelling(linear, "linear", {nn.Linear: "weight bias"})],
        attrs=_WEIGHTS,
        check=_check,
        batch=batch.apart(axis=lambda a, shape: (-1,)),
    ),
]
REFUSED = [
    Refused(
        "a product of two private matrices is not in the vocabulary: one factor must be a constant matrix",
        (nn.Bilinear,),
    ),
]
