"""ONNX's operators on shapes, and those that select, move, repeat or pad values, by torch's functions.

Shapes are known numbers, so calculations with them leave nothing in a trace. Where ONNX and torch differ: slices with
negative steps, a reshape's 0, pads before all first dimensions and then behind all, sizes that a list of two parts
broadcasts, and the coordinates of a resize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F

from hummingbird.errors import InputError
from hummingbird.graph.batch import BatchSize
from hummingbird.graph.programs.onnx.values import (
    axis_of,
    ints,
    is_known,
    known,
    limited,
    number,
    operator,
    rank,
    shape,
    tensor,
    unlike,
)

_LAST = 1 << 30  # an end of a slice beyond it is the end of the dimension: exporters write 2^31 - 1 or 2^63 - 1

# Types ---------------------------------------------------------------------------------------------------------------

_REALS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
_TYPES = {"INT64": torch.int64, "INT32": torch.int32, "INT16": torch.int16, "INT8": torch.int8, "UINT8": torch.uint8}
_TYPES |= {"BOOL": torch.bool} | dict.fromkeys(_REALS, torch.float32)


def torch_type(code: int, what: str = "a value") -> torch.dtype:
    """Return torch's dtype for the number `code` by which ONNX names a type; all floating-point types become float32.

    what: name of the value that has this type, for the error. Raises InputError for a type that is not supported.
    """
    names = {value: name for name, value in onnx.TensorProto.DataType.items()}
    name = names.get(code, str(code))
    if name not in _TYPES:
        hint = "known: float32, float16, bfloat16, float64, int8 to int64, uint8 and bool; quantized nets are not known"
        raise InputError(f"{what} of type {name}", hint=hint)
    return _TYPES[name]


@operator("Cast", 28)
def cast(input: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return _as_type(input, torch_type(to, "a cast"))


@operator("CastLike", 25)
def cast_like(input: Any, target_type: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _as_type(input, tensor(target_type).dtype)


def _as_type(value: Any, dtype: torch.dtype) -> Any:
    if not is_known(value):
        return value if value.dtype == dtype else value.to(dtype)
    if value.dtype == object and not dtype.is_floating_point:
        return value
    if value.dtype == object:
        return known([float(item) for item in value.reshape(-1).tolist()]).reshape(value.shape)
    return value.astype(str(dtype).removeprefix("torch."))


# Shapes and known numbers --------------------------------------------------------------------------------------------


@operator("Shape", 25)
def shape_of(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    return known(list(shape(data)[start:end])) if shape(data)[start:end] else np.zeros(0, np.int64)


@operator("Size", 25)
def size_of(data: Any) -> Any:
    found: Any = 1
    for size in shape(data):
        found = size * found
    return known(found)


@operator("ConstantOfShape", 25)
def constant_of_shape(input: Any, *, value: Any = None) -> Any:
    sizes = ints(input, "the shape")
    filled = np.zeros(1, np.float32) if value is None else known(value)
    if any(isinstance(size, BatchSize) for size in sizes):
        return torch.full(sizes, filled.reshape(-1).tolist()[0], dtype=tensor(filled).dtype)
    if any(size < 0 for size in sizes):
        raise InputError(f"a constant of shape {sizes}", hint="the file is wrong")
    limited(sizes, "a constant")
    return np.full(sizes, filled.reshape(-1)[0])


@operator("Range", 27)
def arange(start: Any, limit: Any, delta: Any, *, stash_type: int = 1) -> Any:
    first, last, step = (number(value, "a bound of Range") for value in (start, limit, delta))
    if isinstance(last, BatchSize):
        return torch.arange(first, last, step)
    if step == 0:
        raise InputError("a range with steps of 0", hint="the file is wrong")
    count = max(math.ceil((last - first) / step), 0)
    limited([count], "a range")
    kind = start.dtype if is_known(start) else np.int64
    return known((first + step * np.arange(count)).astype(kind))


@operator("NonZero", 13)
def non_zero(X: Any) -> Any:
    if not is_known(X):
        raise InputError("the positions of values that are not zero", hint="a shape that depends on values is private")
    return known(np.array(np.nonzero(X), dtype=np.int64))


@operator("Trilu", 14, numbers=(1,))
def triangle(input: Any, k: Any = None, *, upper: int = 1) -> Any:
    diagonal = 0 if k is None else number(k, "k")
    if is_known(input):
        return known((np.triu if upper else np.tril)(input, diagonal))
    return (torch.triu if upper else torch.tril)(input, diagonal)


@operator("Identity", 25)
def identity(input: Any) -> Any:
    return input


# Rearranged values ---------------------------------------------------------------------------------------------------


@operator("Reshape", 25)
def reshape(data: Any, shape: Any, *, allowzero: int = 0) -> Any:
    sizes = ints(shape, "the shape")
    old = tuple(data.shape)
    if not allowzero and any(type(size) is int and size == 0 and place >= len(old) for place, size in enumerate(sizes)):
        raise InputError(f"a reshape of {old} to {sizes}", hint="a 0 copies a dimension of the input")
    if not allowzero:
        sizes = [old[place] if type(size) is int and size == 0 else size for place, size in enumerate(sizes)]
    return data.reshape(sizes)


@operator("Flatten", 25)
def flatten(input: Any, *, axis: int = 1) -> Any:
    place = axis + rank(input) if axis < 0 else axis
    if not 0 <= place <= rank(input):
        raise InputError(f"axis {axis} of a value of {rank(input)} dimension(s)", hint="the file is wrong")
    if place == 0:
        return input.reshape(1, -1)
    if place == 1 and rank(input) > 1 and not is_known(input):
        return input.flatten(1)
    return input.reshape(-1, math.prod(shape(input)[place:]))


@operator("Squeeze", 25)
def squeeze(data: Any, axes: Any = None) -> Any:
    sizes = shape(data)
    if axes is None:
        dims = [dim for dim, size in enumerate(sizes) if size == 1]
    else:
        dims = sorted(axis_of(axis, len(sizes)) for axis in ints(axes, "axes"))
    wrong = [dim for dim in dims if type(sizes[dim]) is int and sizes[dim] != 1]
    if wrong:
        raise InputError(f"Squeeze of dimension {wrong[0]} of {sizes}", hint="it must be 1")
    if is_known(data):
        return known(np.squeeze(data, tuple(dims)))
    return data.squeeze(tuple(dims)) if len(dims) > 1 else data.squeeze(dims[0]) if dims else data


@operator("Unsqueeze", 25)
def unsqueeze(data: Any, axes: Any) -> Any:
    given = ints(axes, "axes")
    dims = rank(data) + len(given)
    for axis in sorted(axis_of(axis, dims) for axis in given):
        data = known(np.expand_dims(data, axis)) if is_known(data) else data.unsqueeze(axis)
    return data


@operator("Transpose", 25)
def transpose(data: Any, *, perm: Sequence[int] | None = None) -> Any:
    order = list(range(rank(data)))[::-1] if perm is None else list(perm)
    if is_known(data):
        return known(np.transpose(data, order))
    return data if order == sorted(order) else data.permute(order)


@operator("Expand", 13)
def expand(input: Any, shape: Any) -> Any:
    wanted, old = ints(shape, "the shape"), list(input.shape)
    dims = max(len(wanted), len(old))
    wanted, old = [1] * (dims - len(wanted)) + wanted, [1] * (dims - len(old)) + old
    # A size of the batch is 1 for a batch of 1 only; it stays itself.
    sizes = [was if type(size) is int and size == 1 else size for size, was in zip(wanted, old, strict=True)]
    if is_known(input) and not any(isinstance(size, BatchSize) for size in sizes):
        limited(sizes, "an expanded constant")
        return known(np.broadcast_to(input, sizes))
    x = tensor(input)
    same = len(sizes) == x.dim() and all(type(a) is type(b) and a == b for a, b in zip(sizes, x.shape, strict=True))
    return x if same else x.expand(*sizes)


@operator("Tile", 13)
def tile(input: Any, repeats: Any) -> Any:
    counts = ints(repeats, "repeats")
    if len(counts) != rank(input):
        raise InputError(f"repeats {counts} of a value of {rank(input)} dimension(s)", hint="one for each dimension")
    if is_known(input):
        limited([*shape(input), *counts], "a repeated constant")
        return known(np.tile(input, counts))
    for dim, count in enumerate(counts):
        if count != 1:
            limited([count], "a list of copies")
            input = torch.cat([input] * count, dim)
    return input


@operator("Concat", 13)
def concat(*inputs: Any, axis: int) -> Any:
    if all(map(is_known, inputs)):
        return known(np.concatenate(inputs, axis))
    return inputs[0] if len(inputs) == 1 else torch.cat([tensor(value) for value in inputs], axis)


@operator("Split", 18)
def split(
    input: Any, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[Any, ...]:
    dim, count = axis_of(axis, rank(input)), num_outputs or outputs
    if split is not None:
        sizes = ints(split, "split")
    else:
        whole = shape(input)[dim]
        each = -(-whole // count) if type(whole) is int else whole // count
        if type(whole) is int and num_outputs is None and whole % count:
            raise InputError(f"a split of {whole} into {count} equal parts", hint="the file is wrong")
        sizes = [each] * (count - 1) + [whole - each * (count - 1)] if type(whole) is int else [each] * count
    if is_known(input):
        return tuple(known(part) for part in np.split(input, np.cumsum(sizes)[:-1], dim))
    parts = input.split(sizes, dim)
    return tuple(parts[place] for place in range(len(sizes)))


@operator("DepthToSpace", 28)
def depth_to_space(input: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    unlike("mode", mode, "DCR", "CRD")
    if mode == "CRD":
        return F.pixel_shuffle(input, blocksize)
    n, c, h, w = shape(input)
    parts = input.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


@operator("SpaceToDepth", 28)
def space_to_depth(input: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    unlike("mode", mode, "DCR", "CRD")
    if mode == "CRD":
        return F.pixel_unshuffle(input, blocksize)
    n, c, h, w = shape(input)
    parts = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


# Selected values -----------------------------------------------------------------------------------------------------


@operator("Slice", 13)
def slice_of(data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """Compute ONNX's Slice along some axes. For a negative step the value is flipped, and then sliced forwards."""
    first, last = ints(starts, "starts"), ints(ends, "ends")
    dims = list(range(len(first))) if axes is None else [axis_of(axis, rank(data)) for axis in ints(axes, "axes")]
    by = [1] * len(first) if steps is None else ints(steps, "steps")
    if not len(first) == len(last) == len(dims) == len(by) or 0 in by:
        raise InputError(f"a slice from {first} to {last} by {by}", hint="the file is wrong")
    parts = [slice(None)] * rank(data)
    for dim, start, end, step in zip(dims, first, last, by, strict=True):
        size = shape(data)[dim]
        if isinstance(size, BatchSize):
            whole = start == 0 and (end == size if isinstance(end, BatchSize) else end > _LAST)
            parts[dim] = slice(None, None, step) if whole and step > 0 else slice(start, end, step)
            continue
        if step < 0:
            start = max(start, -size)  # ONNX begins at the first element, where Python takes none
        begin, stop, _ = slice(start, end, step).indices(size)
        if step < 0:
            data = known(np.flip(data, dim)) if is_known(data) else data.flip(dim)
            begin, stop, step = size - 1 - begin, size - 1 - stop, -step
        parts[dim] = slice(None) if (begin, step) == (0, 1) and stop >= size else slice(begin, max(stop, begin), step)
    if all(part == slice(None) for part in parts):
        return data
    while not is_known(data) and parts[-1] == slice(None):
        parts.pop()
    return known(data[tuple(parts)]) if is_known(data) else data[tuple(parts)]


@operator("Gather", 13)
def gather(data: Any, indices: Any, *, axis: int = 0) -> Any:
    """Compute ONNX's Gather: select elements of `data` along an axis by their indices.

    The indices are known numbers or a public tensor. By a public tensor, rows of a floating-point matrix are selected
    with torch's embedding.
    """
    dim = axis_of(axis, rank(data))
    if is_known(indices):
        size = shape(data)[dim]
        places = ints(indices, "indices")
        if type(size) is int and any(not -size <= place < size for place in places):
            raise InputError(f"index {max(places, key=abs)} of {size}", hint="the file is wrong")
        if is_known(data):
            return known(np.take(data, np.asarray(places, np.int64).reshape(indices.shape), dim))
        if indices.ndim == 0:
            return data.select(dim, places[0])
        found = data.index_select(dim, torch.tensor([p if p >= 0 else p + size for p in places], dtype=torch.int64))
        return (
            found if indices.ndim == 1 else found.reshape(*shape(data)[:dim], *indices.shape, *shape(data)[dim + 1 :])
        )
    table = tensor(data)
    if rank(table) == 2 and dim == 0 and table.is_floating_point():
        return F.embedding(indices, table)
    sizes = shape(indices)
    found = table.index_select(dim, indices.reshape(-1))
    return found if len(sizes) == 1 else found.reshape(*shape(table)[:dim], *sizes, *shape(table)[dim + 1 :])


@operator("GatherElements", 13)
def gather_elements(data: Any, indices: Any, *, axis: int = 0) -> Any:
    dim = axis_of(axis, rank(data))
    if is_known(indices):
        indices = np.where(indices < 0, indices + shape(data)[dim], indices)
        if is_known(data):
            return known(np.take_along_axis(data, indices, dim))
    return torch.gather(tensor(data), dim, tensor(indices))


@operator("GatherND", 13)
def gather_points(data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    unlike("batch_dims", batch_dims, 0)
    if not is_known(indices):
        raise InputError("indices that depend on an input", hint="they must be numbers of the file")
    points = tuple(indices[..., place] for place in range(indices.shape[-1]))
    if is_known(data):
        return known(data[points])
    return data[tuple(tensor(part) for part in points)]


# Padding ----------------------------------------------------------------------------------------------------------

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad", 25, numbers=(2,))
def pad(
    data: Any, pads: Any, constant_value: Any = None, axes: Any = None, *, mode: str = "constant", value: Any = None
) -> Any:
    """Compute ONNX's Pad: add values before and behind dimensions, or cut values off where a number is negative.

    pads: the numbers before all padded axes, then those behind them. The other arguments are ONNX's too.
    """
    unlike("mode", mode, "constant", *_MODES)
    given, dims = ints(pads, "pads"), rank(data)
    places = list(range(dims)) if axes is None else [axis_of(axis, dims) for axis in ints(axes, "axes")]
    if len(given) != 2 * len(places):
        raise InputError(f"{len(given)} pads for {len(places)} dimension(s)", hint="two for each")
    sides = [(0, 0)] * dims
    for number_, dim in enumerate(places):
        sides[dim] = given[number_], given[number_ + len(places)]
    added = constant_value if constant_value is not None else value
    filled = 0 if added is None else number(added, "the constant value")
    if is_known(data):
        limited(
            [size + before + behind for size, (before, behind) in zip(shape(data), sides, strict=True)], "a padding"
        )
        data = tensor(data)
    return padded(data, sides, mode, filled)


def padded(data: Any, sides: Sequence[tuple[int, int]], mode: str, filled: Any) -> Any:
    """Return a tensor with values added before and behind its dimensions; negative numbers cut values off.

    sides: (before, behind) for each dimension. mode: ONNX's "constant", "reflect", "edge" or "wrap". filled: the added
    value in the mode "constant".
    """
    if not any(map(any, sides)):
        return data
    first = next(dim for dim, pair in enumerate(sides) if any(pair))
    flat = [side for pair in reversed(sides[first:]) for side in pair]
    if mode == "constant":
        return F.pad(data, flat, value=filled)
    dims, spatial = rank(data), len(sides) - first
    if 3 <= dims <= 5 and spatial <= dims - 2 and min(flat) >= 0 and mode != "wrap":
        return F.pad(data, flat + [0, 0] * (dims - 2 - spatial), mode=_MODES[mode])
    for dim, (before, behind) in enumerate(sides):
        size = shape(data)[dim]
        if (before, behind) == (0, 0):
            continue
        cut = np.arange(size)[max(-before, 0) : size - max(-behind, 0)]
        chosen = np.pad(cut, (max(before, 0), max(behind, 0)), mode)  # type: ignore[call-overload]
        data = data.index_select(dim, torch.from_numpy(chosen))
    return data
