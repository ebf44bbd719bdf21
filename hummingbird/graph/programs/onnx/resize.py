"""ONNX's Resize and Upsample: by torch's interpolate where it means the same, else by indices or matrices.

ONNX names the formula for the position in the input of every element of the result (`coordinate_transformation_mode`),
and how a position between two elements is rounded (`nearest_mode`); torch has a few of the combinations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hummingbird.errors import InputError
from hummingbird.graph.batch import BatchSize
from hummingbird.graph.programs.onnx.values import (
    MOST,
    axis_of,
    ints,
    is_known,
    limited,
    number,
    operator,
    rank,
    shape,
    unlike,
)


@operator("Resize", 19, numbers=(1, 2))
def resize(
    X: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str | None = None,
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    version: int,
) -> Any:
    """Compute ONNX's Resize: its formulas give the position in the input from which an element of the result is read.

    version: the version of the operator. The other arguments are ONNX's inputs and attributes. Raises InputError for
    attributes that are not supported, and if the batch dimension would be resized.
    """
    unlike("antialias", antialias, 0)
    unlike("exclude_outside", exclude_outside, 0)
    unlike("keep_aspect_ratio_policy", keep_aspect_ratio_policy, "stretch")
    unlike("mode", mode, "nearest", "linear", "cubic")
    old, dims = list(shape(X)), rank(X)
    if version == 10:  # (X, scales), of the coordinates of Upsample
        roi, scales, coordinate_transformation_mode, nearest_mode = None, roi, "asymmetric", "floor"
    places = list(range(dims)) if axes is None else [axis_of(axis, dims) for axis in axes]
    new, factors = list(old), [1.0] * dims
    given = scales if scales is not None and not (is_known(scales) and scales.size == 0) else None
    if given is not None:
        listed = given.reshape(-1).tolist() if is_known(given) else [number(one, "scales") for one in given]
        for dim, factor in zip(places, listed, strict=True):
            factors[dim] = float(factor)
            new[dim] = old[dim] if factor == 1 else math.floor(old[dim] * factor)
    else:
        for dim, size in zip(places, ints(sizes, "sizes"), strict=True):
            if isinstance(size, BatchSize) and isinstance(old[dim], BatchSize) and size == old[dim]:
                continue
            new[dim], factors[dim] = size, size / old[dim]
    limited([size for size in new if type(size) is int], "a resized value")
    changed = [dim for dim in range(dims) if factors[dim] != 1]
    return _resized(
        X, changed, new, factors, mode, coordinate_transformation_mode or "half_pixel", nearest_mode, cubic_coeff_a
    )


@operator("Upsample", 10, numbers=(1,))
def upsample(X: Any, scales: Any, *, mode: str = "nearest") -> Any:
    unlike("mode", mode, "nearest", "linear")
    return resize(X, scales, mode=mode, version=10)


def _resized(
    x: Any, dims: list[int], new: list[int], factors: list[float], mode: str, place: str, rounding: str, cubic: float
) -> Any:
    """Resize the dimensions `dims` of x, by torch's interpolate where that computes what ONNX asks for.

    Otherwise the mode "nearest" selects elements, and "linear" multiplies each dimension by a matrix. new, factors:
    size and scale factor of every dimension of x. mode: "nearest", "linear" or "cubic". place: ONNX's formula for
    positions (coordinate_transformation_mode). rounding: its nearest_mode. cubic: its cubic_coeff_a.
    """
    old = list(shape(x))
    if not dims:
        return x
    if any(isinstance(old[dim], BatchSize) for dim in dims):
        raise InputError("a resize of the batch", hint="resize the dimensions of images")
    if place == "align_corners" and not all(
        math.isclose(factors[dim] * old[dim], new[dim], rel_tol=1e-6) for dim in dims
    ):
        hint = "export with sizes in place of scales: runtimes differ in where the last element lies"
        raise InputError("align_corners with scales that do not give whole sizes", hint=hint)
    at = {dim: _coordinates(old[dim], new[dim], factors[dim], place) for dim in dims}
    images, space = min(dims) >= 2 and len(old) in (3, 4, 5), list(range(2, len(old)))
    if mode == "nearest":
        chosen = {dim: _nearest(at[dim], old[dim], rounding) for dim in dims}
        for name in ("nearest", "nearest-exact") if images else ():
            if all(np.array_equal(chosen[dim], _torch_nearest(old[dim], new[dim], name)) for dim in dims):
                return F.interpolate(x, size=[new[dim] for dim in space], mode=name)
        for dim in dims:
            x = x.index_select(dim, torch.from_numpy(chosen[dim]))
        return x
    corners = place == "align_corners"
    usual = all(
        place in ("half_pixel", "align_corners") or (place == "pytorch_half_pixel" and new[d] > 1) for d in dims
    )
    exact = all(math.isclose(factors[dim] * old[dim], new[dim], rel_tol=1e-6) for dim in dims)
    if mode == "cubic":
        if not (usual and exact and images and len(space) == 2 and math.isclose(cubic, -0.75, rel_tol=1e-6)):
            hint = "for cubic: half_pixel or align_corners, cubic_coeff_a=-0.75, height and width; or use linear"
            raise InputError(f"cubic resizing with coordinate_transformation_mode={place!r}", hint=hint)
        return F.interpolate(x, size=[new[dim] for dim in space], mode="bicubic", align_corners=corners)
    if usual and exact and images:
        kind = ("linear", "bilinear", "trilinear")[len(space) - 1]
        doubled = all(factors[dim] >= 1 and math.log2(factors[dim]).is_integer() for dim in dims)
        if doubled and not corners:  # exact in private, where the factors are known
            return F.interpolate(x, scale_factor=[factors[dim] for dim in space], mode=kind, align_corners=False)
        return F.interpolate(x, size=[new[dim] for dim in space], mode=kind, align_corners=corners)
    for dim in dims:
        low = np.clip(np.floor(at[dim]), 0, old[dim] - 1).astype(np.int64)
        high = np.clip(low + 1, 0, old[dim] - 1)
        share = np.clip(at[dim] - low, 0, 1)
        matrix = np.zeros((new[dim], old[dim]), np.float32)
        np.add.at(matrix, (np.arange(new[dim]), low), 1 - share)
        np.add.at(matrix, (np.arange(new[dim]), high), share)
        x = F.linear(x.transpose(dim, -1), torch.from_numpy(matrix)).transpose(dim, -1)
    return x


def _coordinates(old: int, new: int, factor: float, place: str) -> Any:
    """Return the position in the input of each element of a resize's result along one dimension, `new` floats.

    old, new: length of the dimension before and after. factor: new / old, as the file gives it. place: ONNX's name of
    the formula (coordinate_transformation_mode). Raises InputError for an unknown formula.
    """
    n, factor = np.arange(new, dtype=np.float32), np.float32(factor)  # in float32, as runtimes round
    if place == "asymmetric":
        return n / factor
    if place == "align_corners":
        return n * np.float32(old - 1) / np.float32(new - 1) if new > 1 else n * 0
    if place == "half_pixel" or (place == "pytorch_half_pixel" and new > 1):
        return (n + 0.5) / factor - 0.5
    if place == "pytorch_half_pixel":
        return n * 0
    if place == "tf_half_pixel_for_nn":
        return (n + 0.5) / factor
    raise InputError(f"coordinate_transformation_mode={place!r}", hint="half_pixel is torch's align_corners=False")


def _nearest(at: Any, old: int, rounding: str) -> Any:
    unlike("nearest_mode", rounding, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    whole: dict[str, Callable[[Any], Any]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    return np.clip(whole[rounding](at), 0, old - 1).astype(np.int64)


def _torch_nearest(old: int, new: int, mode: str) -> Any:
    if old > MOST:
        raise InputError(f"a resize of {old} positions", hint=f"up to {MOST}")
    positions = torch.arange(old, dtype=torch.float32).view(1, 1, -1)
    return F.interpolate(positions, size=new, mode=mode).reshape(-1).long().numpy()
