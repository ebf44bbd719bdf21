"""Resizing and rearranging images: rules from torch's arguments to one step.

Resizing is a public linear map: out = R x C^T, one matrix for each axis, which `axis_matrix` obtains from torch itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import INT, SIZE, UNKNOWN, StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling
from hummingbird.graph.steps import Ref, Step
from hummingbird.kernels.devices import put

MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic")
_LINEAR = ("linear", "bilinear", "trilinear")  # of one, two and three spatial dimensions


def interpolate(
    b: StepBuilder,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Ref:
    """Convert a call of interpolate to a step "resize".

    If a target size is the size of another tensor, this size becomes an input of the step.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if mode not in MODES or antialias:
        what = f"mode={mode!r}" + (", antialias=True" if antialias else "")
        raise Unsupported(f"resizing with {what}", f"use one of {', '.join(MODES)}, without antialias")
    attrs: dict[str, Any] = {"mode": mode, "align_corners": align_corners, "recompute": recompute_scale_factor}
    if scale_factor is not None:
        factors = tuple(scale_factor) if isinstance(scale_factor, (tuple, list)) else (scale_factor,)
        numbers = tuple(b.number(factor, "scale_factor") for factor in factors)
        return b.emit("resize", b.tensor(input), scale=numbers, **attrs)
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    for item in sizes:
        if b.kind(item) not in (INT, SIZE, UNKNOWN) and type(item) is not int:
            raise Unsupported(f"resizing to {b._show(item)}", "give integers or sizes")
    return b.emit("resize", b.tensor(input), *sizes, scale=None, **attrs)


def upsample_nearest(b: StepBuilder, input: Any, size: Any = None, scale_factor: Any = None) -> Ref:
    return interpolate(b, input, size, scale_factor)


def upsample_bilinear(b: StepBuilder, input: Any, size: Any = None, scale_factor: Any = None) -> Ref:
    return interpolate(b, input, size, scale_factor, "bilinear", True)


def resize(a: dict[str, Any], x: Tensor, *sizes: Any) -> Tensor:
    """Return x, (batch, channels, *space), resized by torch's interpolate: the meaning of the operation "resize".

    a: the step's attributes. sizes: the target sizes, if they are inputs of the step and not attributes.
    """
    size = [n for item in sizes for n in (item if isinstance(item, (tuple, list)) else (item,))]
    size = size * (x.dim() - 2) if len(size) == 1 else size
    scale = a["scale"] if a["scale"] is None or len(a["scale"]) > 1 else a["scale"] * (x.dim() - 2)
    # Shapes are the same, and torch runs "bicubic" in Python on the meta device, for a fifth of a second.
    mode = "bilinear" if a["mode"] == "bicubic" and x.is_meta else a["mode"]
    return F.interpolate(
        x,
        size=size or None,
        scale_factor=scale,
        mode=mode,
        align_corners=a["align_corners"],
        recompute_scale_factor=a["recompute"] if scale is not None else None,
    )


def axis_matrix(a: dict[str, Any], size: int, out: int, axis: int, axes: int) -> Tensor:
    """Compute the matrix that resizes along one dimension: float64 (out, size), from torch's results on unit vectors.

    a: the step's attributes. size, out: length of the dimension before and after. axes: how many dimensions are
    resized. axis: which one of these this is, from 0.
    """
    units = torch.eye(size, dtype=torch.float64).view(size, 1, size, 1)
    mode = "bilinear" if a["mode"] in _LINEAR else a["mode"]
    if a["scale"] is None:
        found = F.interpolate(units, size=(out, 1), mode=mode, align_corners=a["align_corners"])
    else:
        factor = a["scale"][axis] if len(a["scale"]) == axes else a["scale"][0]
        options = {"align_corners": a["align_corners"], "recompute_scale_factor": a["recompute"]}
        found = F.interpolate(units, scale_factor=(factor, 1.0), mode=mode, **options)
    return found.reshape(size, -1).t().contiguous()


def exact_bits(a: dict[str, Any]) -> int | None:
    """Return how many bits of fraction make the weights of a resize exact, along each axis; None if that is not known.

    It is known for nearest modes, and without `align_corners` for linear, bilinear and trilinear modes with scales 1,
    2, 4 and so on. a: the step's attributes.
    """
    if a["mode"].startswith("nearest"):
        return 0
    doubles = a["scale"] is not None and all(s >= 1 and math.log2(s).is_integer() for s in a["scale"])
    if a["mode"] in _LINEAR and not a["align_corners"] and doubles:
        return max(int(math.log2(s)) for s in a["scale"]) + 1
    return None


def pixel_shuffle(b: StepBuilder, input: Any, upscale_factor: int) -> Ref:
    return b.emit("pixel_shuffle", b.tensor(input), factor=b.ints(upscale_factor, 1, "upscale_factor")[0])


def pixel_unshuffle(b: StepBuilder, input: Any, downscale_factor: int) -> Ref:
    return b.emit("pixel_unshuffle", b.tensor(input), factor=b.ints(downscale_factor, 1, "downscale_factor")[0])


def channel_shuffle(b: StepBuilder, input: Any, groups: int) -> Ref:
    return b.emit("channel_shuffle", b.tensor(input), groups=b.ints(groups, 1, "groups")[0])


def flip(b: StepBuilder, input: Any, *rest: Any, dims: Any = ()) -> Ref:
    flat = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest or dims
    return b.emit("flip", b.tensor(input), dims=b.ints(flat, len(flat), "dims"))


def roll(b: StepBuilder, input: Any, shifts: Any, dims: Any = None) -> Ref:
    many = len(shifts) if isinstance(shifts, (tuple, list)) else 1
    if dims is None:
        raise Unsupported("roll without dims", "name the dimensions")
    return b.emit("roll", b.tensor(input), shifts=b.ints(shifts, many, "shifts"), dims=b.ints(dims, many, "dims"))


def edge_pad(b: StepBuilder, input: Any, pads: Any, mode: str, suffix: str = "") -> Ref:
    """Convert a call of F.pad in a mode that pads with the input's own values to a step.

    pads: how many values are added before and after each padded dimension, the last dimension first. mode: "reflect",
    "replicate" or "circular". suffix: of the step's name. The step is added to `b`; returns a reference to the result.
    """
    sides = b.ints(pads, len(pads) if isinstance(pads, (tuple, list)) else 1, "pad")
    return b.emit("edge_pad", b.tensor(input), suffix=suffix, pads=sides, mode=mode)


def edge_pad_layer(b: StepBuilder, input: Any, padding: Any, *, mode: str) -> Ref:
    """Convert a call of a padding module of torch.nn, which pads with the input's own values, to a step.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    return edge_pad(b, input, padding, mode)


def pad_with_own(a: dict[str, Any], x: Tensor) -> Tensor:
    """Pad x with its own values, as torch does in the modes "reflect", "replicate" and "circular"; return the result.

    a: the step's attributes. Values are selected by their indices, which works for any dtype.
    """
    for number in range(len(a["pads"]) // 2):
        dim = x.dim() - 1 - number
        places = torch.arange(x.shape[dim], dtype=torch.float64).view(1, 1, -1)
        chosen = F.pad(places, a["pads"][2 * number : 2 * number + 2], a["mode"]).reshape(-1).long()
        x = x.index_select(dim, put(chosen, x.device))
    return x


def _channel_shuffle(a: Attrs, x: Tensor) -> Tensor:
    if x.shape[1] % a["groups"]:
        raise InputError(f"{x.shape[1]} channels are no multiple of {a['groups']} groups")
    parts = x.reshape(len(x), a["groups"], -1, *x.shape[2:])
    return parts.transpose(1, 2).reshape(x.shape)


def _check_resize(step: Step) -> None:
    scale = step.attrs["scale"]
    if (len(step.inputs) > 1) == (scale is not None):
        raise ValueError("resizing takes sizes or factors")
    if len(scale or ()) > 3:
        raise ValueError("resizing is of one to three spatial dimensions")


def _check_roll(step: Step) -> None:
    if len(step.attrs["shifts"]) != len(step.attrs["dims"]):
        raise ValueError("roll has a shift for each of its dimensions")


_images = batch.apart(axis=lambda a, shape: (-3, -2, -1))

OPS = [
    Op(
        "resize",
        resize,
        ranks.stays,
        [
            Spelling(
                interpolate,
                "interpolate upsample",
                {nn.Upsample: "size scale_factor mode align_corners recompute_scale_factor"},
            ),
            Spelling(upsample_nearest, "upsample_nearest", {nn.UpsamplingNearest2d: "size scale_factor"}),
            Spelling(upsample_bilinear, "upsample_bilinear", {nn.UpsamplingBilinear2d: "size scale_factor"}),
        ],
        inputs="x size*",
        attrs="mode=resizing align_corners=bool|none recompute=bool|none scale=numbers|none",
        kinds={"resizing": lambda value: value in MODES},
        check=_check_resize,
        batch=batch.first,
    ),
    Op(
        "pixel_shuffle",
        lambda a, x: F.pixel_shuffle(x, a["factor"]),
        ranks.stays,
        [Spelling(pixel_shuffle, "pixel_shuffle", {nn.PixelShuffle: "upscale_factor"})],
        attrs="factor=positive",
        batch=_images,
        integers="kept",
    ),
    Op(
        "pixel_unshuffle",
        lambda a, x: F.pixel_unshuffle(x, a["factor"]),
        ranks.stays,
        [Spelling(pixel_unshuffle, "pixel_unshuffle", {nn.PixelUnshuffle: "downscale_factor"})],
        attrs="factor=positive",
        batch=_images,
        integers="kept",
    ),
    Op(
        "channel_shuffle",
        _channel_shuffle,
        ranks.stays,
        [Spelling(channel_shuffle, "channel_shuffle", {nn.ChannelShuffle: "groups"})],
        attrs="groups=positive",
        batch=batch.apart(axis=lambda a, shape: (1,)),
        integers="kept",
    ),
    Op(
        "flip",
        lambda a, x: x.flip(a["dims"]),
        ranks.stays,
        [Spelling(flip, "flip")],
        attrs="dims=ints",
        batch=batch.apart(axis=batch.all_of),
        integers="kept",
    ),
    Op(
        "roll",
        lambda a, x: x.roll(a["shifts"], a["dims"]),
        ranks.stays,
        [Spelling(roll, "roll")],
        attrs="shifts=ints dims=ints",
        check=_check_roll,
        batch=batch.apart(axis=batch.all_of),
        integers="kept",
    ),
    Op(
        "edge_pad",
        pad_with_own,
        ranks.stays,
        [
            Spelling(
                partial(edge_pad_layer, mode="reflect"),
                modules=dict.fromkeys((nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d), "padding"),
            ),
            Spelling(
                partial(edge_pad_layer, mode="replicate"),
                modules=dict.fromkeys((nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d), "padding"),
            ),
        ],
        attrs="pads=ints mode=edges",
        kinds={"edges": lambda value: value in ("reflect", "replicate", "circular")},
        batch=batch.padded,
        integers="kept",
    ),
]
REFUSED = [Refused("no private resampling: use interpolate, or resample before the net", names="grid_sample")]
