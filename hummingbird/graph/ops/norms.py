"""Norms by statistics of their own input: rules and meanings of layer, group, instance and root-mean-square norms.

All of them are one operation, "norm": it scales every row of values to mean 0 (unless `center` is False) and mean
square 1,

    y = (x - mean) / sqrt(mean square of (x - mean) + eps)

A row is the last `last` dimensions; or, with `groups` g, one g-th of the channels (dimension 1) at all positions
(g = 0: each channel is a row). Weight and bias are a step of their own: "affine" per channel, or "scale_last" for
factors along the last dimensions.

Norms that are written out in forward() become the same step (written_out.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling, like
from hummingbird.graph.steps import Ref, Step


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
    """Convert a call of batch_norm with running statistics to a step "batch_norm", which `rewrite.fold` removes.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
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
    """Raise Unsupported unless every running variance plus eps is positive, as its root is a divisor."""
    if not var.is_meta and not bool((var.double() + eps > 0).all()):
        raise Unsupported("running_var + eps is not positive", "train again, or raise eps")


def layer_norm(
    b: StepBuilder, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Ref:
    """Convert a call of layer_norm to a step "norm" on the last dimensions, then "scale_last" for weight and bias.

    "scale_last" multiplies and adds numbers along these dimensions; without weight and bias it is left out. The steps
    are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    return _last(b, input, normalized_shape, weight, bias, b.number(eps, "eps"), True)


def rms_norm(b: StepBuilder, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Ref:
    """Convert a call of rms_norm to a step "norm" on the last dimensions, and "scale_last" for the weight.

    "scale_last" multiplies by numbers along these dimensions; without a weight it is left out. No mean is subtracted.
    eps: None stands for the eps of float32. The steps are added to `b`; returns a reference to the result. The other
    arguments are as in torch.
    """
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
    """Convert a call of group_norm to steps; `num_groups` must divide the number of channels.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
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
    """Convert a call of instance_norm to steps: each channel of each image is a row of the norm.

    Raises Unsupported if `use_input_stats` is False: the norm would use running statistics. Otherwise running_mean,
    running_var and momentum have no effect. The steps are added to `b`; returns a reference to the result. The other
    arguments are as in torch.
    """
    if not use_input_stats:
        raise Unsupported(*_RUNNING)
    return _channels(b, input, 0, weight, bias, eps)


_RUNNING = "an instance norm on running statistics", "it is a BatchNorm in eval mode: use that"


def instance_norm_layer(
    b: StepBuilder, input: Any, track_running_stats: bool, weight: Any, bias: Any, eps: float, *, n: int
) -> Ref:
    """Convert a call of an instance norm module of n spatial dimensions to steps.

    Raises Unsupported for a module with running statistics, as eval mode would use them.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
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


# Meanings ------------------------------------------------------------------------------------------------------------


def _per_channel(a: Attrs, x: Tensor) -> Tensor:
    shape = (-1,) + (1,) * (x.dim() - 2)
    return x * like(a["scale"], x).reshape(shape) + like(a["shift"], x).reshape(shape)


def rows(a: dict[str, Any], x: Tensor) -> Tensor:
    """Return x as (..., length), with each row of the norm in the last dimension; InputError for an unsuitable shape.

    a: the norm's attributes, which say which values make a row.
    """
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


def _check_batch_norm(step: Step) -> None:
    a = step.attrs
    shapes = {tuple(a[name].shape) for name in ("mean", "var", "weight", "bias") if a[name] is not None}
    if len(shapes) > 1 or any(len(shape) != 1 or 0 in shape for shape in shapes):
        raise ValueError(f"a norm with tensors of shapes {sorted(shapes)}")


def _check_norm(step: Step) -> None:
    a = step.attrs
    if (a["last"] is None) == (a["groups"] is None) or (a["last"] is None and a["sizes"] is not None):
        raise ValueError("a norm is over the last dimensions, or over groups of channels")


def _check_factors(step: Step) -> None:
    a = step.attrs
    if a["scale"].shape != a["shift"].shape:
        raise ValueError("a factor and a shift of different shapes")
    if step.op == "affine" and a["scale"].dim() != 1:
        raise ValueError("a factor for each channel")


_STATISTICS = "running_mean running_var weight bias eps"
_INSTANCE = "track_running_stats weight bias eps"
_NO_ROOT = "train with BatchNorm, which costs nothing, or with LayerNorm, GroupNorm or RMSNorm, which convert"
_RMS: dict[type[nn.Module], str] = (
    {nn.RMSNorm: "normalized_shape weight eps"} if hasattr(nn, "RMSNorm") else {}
)  # torch 2.4

OPS = [
    Op(
        "batch_norm",
        None,
        ranks.same,
        [
            Spelling(
                batch_norm,
                modules=dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _STATISTICS),
                functions=(torch.nn.functional.batch_norm,),
            )
        ],
        attrs="mean=tensor var=tensor weight=tensor|none bias=tensor|none eps=number",
        check=_check_batch_norm,
    ),
    Op(
        "norm",
        _norm,
        ranks.same,
        [
            Spelling(layer_norm, "layer_norm", {nn.LayerNorm: "normalized_shape weight bias eps"}),
            Spelling(group_norm, "group_norm", {nn.GroupNorm: "num_groups weight bias eps"}),
            Spelling(instance_norm, "instance_norm"),
            *(
                Spelling(partial(instance_norm_layer, n=n), modules={module: _INSTANCE})
                for n, module in enumerate((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), 1)
            ),
            Spelling(rms_norm, "rms_norm", _RMS),
        ],
        attrs="last=positive|none groups=whole|none eps=number center=bool sizes=positives|none rank?=positive",
        check=_check_norm,
        batch=batch.apart(
            axis=lambda a, shape: range(-a["last"], 0) if a["last"] is not None else range(1, len(shape))
        ),
    ),
    Op(
        "affine",
        _per_channel,
        ranks.same,
        attrs="scale=tensor shift=tensor",
        check=_check_factors,
        batch=batch.apart(axis=batch.channels),
    ),
    Op(
        "scale_last",
        _scale_last,
        ranks.same,
        attrs="scale=tensor shift=tensor",
        check=_check_factors,
        batch=batch.apart(axis=lambda a, shape: range(-a["scale"].dim(), 0)),
    ),
]
REFUSED = [
    Refused(_NO_ROOT, (nn.LocalResponseNorm, nn.CrossMapLRN2d), "local_response_norm"),
]
