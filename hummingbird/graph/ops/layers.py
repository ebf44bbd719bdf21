"""Layers with weights, norms, pools and activations: the arguments torch takes -> one canonical step.

A rule has the parameters of the torch function, so modules (by attribute), functions and methods all bind to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops.resize import edge_pad
from hummingbird.graph.steps import Ref


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
    """n spatial dimensions; padding="same" with an odd sum, or padding with the input's own values, becomes a step
    before the convolution, as in torch.
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
    """x @ W for a constant matrix W of shape (in, out) is the linear layer of weight W^T."""
    if not b.kind(input) and b.kind(other) and isinstance(input, torch.Tensor) and input.dim() == 2:
        # W x = (x^T W^T)^T over the last two dimensions
        x = b.emit("transpose", b.tensor(other), suffix=".turned", dim0=-2, dim1=-1)
        y = b.emit("linear", x, suffix=".rows", weight=b.weight(input, "matrix"), bias=None)
        return b.emit("transpose", y, dim0=-2, dim1=-1)
    if not b.kind(input) or b.kind(other) or not isinstance(other, torch.Tensor) or other.dim() != 2:
        raise Unsupported("matmul is known for a traced tensor times a constant matrix only", "write it as nn.Linear")
    return b.emit("linear", b.tensor(input), weight=b.weight(other, "matrix").t().contiguous(), bias=None)


def batch_norm(
    b: StepBuilder,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Ref:
    """Emits "batch_norm", which `fold` replaces by new weights of the layer before, or by "affine"."""
    if training or running_mean is None or running_var is None:
        raise Unsupported(
            "batch norm on the statistics of the batch itself",
            "use running statistics: track_running_stats=True, training=self.training",
        )
    mean, var = b.weight(running_mean, "running_mean"), b.weight(running_var, "running_var")
    check_variance(var, eps)
    scale = None if weight is None else b.weight(weight)
    shift = None if bias is None else b.weight(bias, "bias")
    return b.emit("batch_norm", b.tensor(input), mean=mean, var=var, weight=scale, bias=shift, eps=b.number(eps, "eps"))


def check_variance(var: torch.Tensor, eps: float) -> None:
    """Unsupported for a running variance that has no inverse root."""
    if not var.is_meta and not bool((var.double() + eps > 0).all()):
        raise Unsupported("running_var + eps is not positive", "train again, or raise eps")


def max_pool(
    b: StepBuilder,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    n: int,
) -> Ref:
    _no_indices(return_indices)
    attrs = _window(b, n, kernel_size, stride, padding) | {"dilation": b.ints(dilation, n, "dilation")}
    return b.emit("max_pool", b.tensor(input), **attrs, ceil_mode=bool(ceil_mode))


def avg_pool(
    b: StepBuilder,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    n: int,
) -> Ref:
    attrs = _window(b, n, kernel_size, stride, padding) | {"ceil_mode": bool(ceil_mode)}
    counts = {"count_include_pad": bool(count_include_pad), "divisor": divisor_override}
    return b.emit("avg_pool", b.tensor(input), **attrs | counts)


def _window(b: StepBuilder, n: int, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    size = b.ints(kernel, n, "kernel_size")
    steps = size if stride is None or stride == [] or stride == () else b.ints(stride, n, "stride")
    return {"kernel": size, "stride": steps, "padding": b.ints(padding, n, "padding")}


def adaptive_avg_pool(b: StepBuilder, input: Any, output_size: Any, *, n: int) -> Ref:
    return b.emit("adaptive_avg_pool", b.tensor(input), output_size=b.ints(output_size, n, "output_size"))


def adaptive_max_pool(b: StepBuilder, input: Any, output_size: Any, return_indices: bool = False, *, n: int) -> Ref:
    _no_indices(return_indices)
    return b.emit("adaptive_max_pool", b.tensor(input), output_size=b.ints(output_size, n, "output_size"))


def _no_indices(return_indices: bool) -> None:
    if return_indices:
        raise Unsupported("return_indices=True", "the position of the maximum is not computed: return the values only")


def elementwise(op: str) -> Callable[..., Ref]:
    """The rule of an activation without attributes."""

    def rule(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
        return b.emit(op, b.tensor(input))

    return rule


def leaky_relu(b: StepBuilder, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    return b.emit("leaky_relu", b.tensor(input), slope=b.number(negative_slope, "negative_slope"))


def prelu(b: StepBuilder, input: Any, weight: Any) -> Ref:
    return b.emit("prelu", b.tensor(input), weight=b.weight(weight).reshape(-1))


def hardtanh(b: StepBuilder, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Ref:
    low, high = b.number(min_val, "the lower bound"), b.number(max_val, "the upper bound")
    if low > high:
        raise Unsupported(f"the lower bound {low:g} is above the upper bound {high:g}", "exchange them")
    return b.emit("hardtanh", b.tensor(input), low=low, high=high)


def relu6(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
    return hardtanh(b, input, 0.0, 6.0)


def clamp(b: StepBuilder, input: Any, min: Any = None, max: Any = None) -> Ref:
    """Both bounds: hardtanh; min=0 alone: relu."""
    if all(isinstance(bound, (int, float)) for bound in (min, max)):
        return hardtanh(b, input, min, max)
    if max is None and isinstance(min, (int, float)) and min == 0:
        return b.emit("relu", b.tensor(input))
    bound = max if min is None else min
    if (min is None) != (max is None) and isinstance(bound, (int, float)):
        return b.emit("minimum" if min is None else "maximum", b.tensor(input), value=b.number(bound, "the bound"))
    b.check_told(bound, "the bound")
    raise Unsupported(f"clamp with bounds {b._show(min)}, {b._show(max)}", "give numbers, or torch.maximum of tensors")


def clamp_max(b: StepBuilder, input: Any, max: Any) -> Ref:
    return clamp(b, input, None, max)


def gelu(b: StepBuilder, input: Any, approximate: str = "none") -> Ref:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"gelu with approximate={approximate!r}", "'none' or 'tanh'")
    return b.emit("gelu", b.tensor(input), approximate=approximate)


def softmax(op: str) -> Callable[..., Ref]:
    """softmax and log_softmax."""

    def rule(b: StepBuilder, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Ref:
        if not isinstance(dim, int):
            raise Unsupported(f"{op} without a dimension", "give dim")
        no_dtype(dtype)
        return b.emit(op, b.tensor(input), dim=dim)

    return rule


def argmax(b: StepBuilder, input: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    if not isinstance(dim, int):
        raise Unsupported("argmax without a dimension", "give dim")
    return b.emit("argmax", b.tensor(input), dim=dim, keepdim=bool(keepdim))


def no_dtype(dtype: Any) -> None:
    """Steps compute in the type of their input."""
    if dtype is not None:
        raise Unsupported(f"dtype={dtype}", "leave dtype out: there is one number type in private inference")


def dropout(b: StepBuilder, input: Any, p: float = 0.5, training: Any = True, inplace: bool = False) -> Ref:
    if training:
        raise Unsupported("dropout that stays active at inference", "pass training=self.training")
    return b.tensor(input)


def identity(b: StepBuilder, input: Any, memory_format: Any = None) -> Ref:
    return b.tensor(input)
