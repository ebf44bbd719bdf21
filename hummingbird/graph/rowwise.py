"""Whether a net computes every image of a batch by itself, so that parts of a batch can run apart: from its steps.

The batch is followed from step to step. In row-major order a value that depends on it is laid out as

    outer x batch x inner

with `outer` and `inner` whole numbers that no reshaping changes; a dimension holds it if it is outer' * batch * inner',
and what is left of both stands in the dimensions before and after. Every rule says where the batch is in the result, or
that it does not know: then the net is not rowwise. A rule must see to it that no two images meet, and that images at
all places are treated alike: a slice, a sum or a softmax along the batch's dimension, factors along it, a product that
sums over it are all refused. Shapes do not tell: x @ x.transpose(0, 1) of a square x has the shape of x.

Layouts are those of three images; for every other number of images the same steps must give values of the same sizes
but for the batch. That rules out a size that is three by chance, and what depends on how many images there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.calls import on_meta
from hummingbird.graph.run import run_all
from hummingbird.graph.steps import Ref, Step, map_refs

_PROBE, _OTHERS = 3, (1, 2, 5)  # images; a prime, for reshaping must not spread the batch over two dimensions


class Mixed(Exception):
    """A step of which it is not proven that images stay apart."""


class BatchLayout(NamedTuple):
    """Dimension `axis` of a value is outer * batch * inner."""

    axis: int
    outer: int = 1
    inner: int = 1


class _Known(NamedTuple):
    layout: Any
    value: Any


Where = BatchLayout | None  # None: the value is the same whatever the batch holds
Shape = tuple[int, ...]
Rule = Callable[[dict[str, Any], list[Where], list[Shape], Shape], Where]


def rowwise(steps: Sequence[Step], shape: Sequence[int]) -> bool:
    """Whether every image of a batch of this shape is computed by itself."""
    probed = _values(steps, shape, _PROBE)
    others = {images: _values(steps, shape, images) for images in {*_OTHERS, shape[0]}}
    if probed is None:
        return False
    try:
        layouts = _layouts(steps, probed)
        for images, values in others.items():
            if values is None:
                return False
            for layout, value, probe in zip(layouts, values, probed, strict=True):
                _same(layout, value, probe, images)
    except Mixed:
        return False
    return True


def _values(steps: Sequence[Step], shape: Sequence[int], images: int) -> list[Any] | None:
    """Every step's value, shapes only; None if the net cannot take so many images."""
    try:
        return run_all(steps, *on_meta(steps, (images, *shape[1:])))
    except (InputError, RuntimeError, IndexError, ValueError, TypeError):
        return None


def _layouts(steps: Sequence[Step], values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for number, step in enumerate(steps):
        given = list(_tensors(map_refs(step.inputs, lambda ref: _Known(found[ref.index], values[ref.index]))))
        where, shapes = [known.layout for known in given], [tuple(known.value.shape) for known in given]
        found.append(_layout(step, where, shapes, values[number], found, values))
    return found


def _layout(
    step: Step, where: list[Where], shapes: list[Shape], value: Any, found: Sequence[Any], values: Sequence[Any]
) -> Any:
    if step.op == "input":
        return BatchLayout(0)
    if step.op == "public":
        return BatchLayout(0) if step.attrs["shape"][:1] == (None,) else None
    if step.op in ("share_public", "embedding"):  # what they read beside the public value tells a type alone
        return where[0]
    if not isinstance(value, (Tensor, tuple, list)) or step.op in ("size", "int"):
        return None
    if step.op == "getitem" and isinstance(values[step.inputs[0].index], (tuple, list)):
        return found[step.inputs[0].index][step.attrs["index"]]
    if step.op == "output":
        if any(layout != BatchLayout(0) for layout in where):
            raise Mixed(step.name)
        return where[0]
    if step.op == "expand" and where == [None]:
        return _repeated(step, values)
    if all(layout is None for layout in where):
        return [None] * len(value) if isinstance(value, (tuple, list)) else None
    rule = _RULES.get(step.op)
    if rule is None:
        raise Mixed(step.name)
    parts = value if isinstance(value, (tuple, list)) else [value]
    layouts = [rule(step.attrs, where, shapes, tuple(part.shape)) for part in parts]
    return layouts if isinstance(value, (tuple, list)) else layouts[0]


def _tensors(inputs: Any) -> Iterator[_Known]:
    """All that is known of a step's tensors, through nested tuples."""
    if isinstance(inputs, _Known):
        if isinstance(inputs.value, Tensor):
            yield inputs
    elif isinstance(inputs, tuple):
        for item in inputs:
            yield from _tensors(item)


def _same(layout: Any, value: Any, probe: Any, images: int) -> None:
    """Mixed unless a value has the sizes it had for the probe, but for the batch."""
    if isinstance(value, Tensor):
        sizes = list(probe.shape)
        if layout is not None:
            sizes[layout.axis] = sizes[layout.axis] // _PROBE * images
        if list(value.shape) != sizes:
            raise Mixed
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size) and isinstance(layout, list):
        if len(value) != len(probe):
            raise Mixed
        for part in zip(layout, value, probe, strict=True):
            _same(*part, images)
    else:
        numbers, before = (list(item) if isinstance(item, (tuple, list)) else [item] for item in (value, probe))
        proportional = [now * _PROBE == then * images or now == then for now, then in zip(numbers, before, strict=True)]
        if not all(proportional):
            raise Mixed


# Rules ----------------------------------------------------------------------------------------------------------------


def _one(where: list[Where]) -> BatchLayout:
    layout = where[0]
    assert layout is not None
    return layout


def _each(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Element by element."""
    return where[0]


def _apart(*, axis: Callable[[dict[str, Any], Shape], Collection[int]]) -> Rule:
    """Nothing moves, and the batch must not be in one of these dimensions, negative ones counted from the end."""

    def rule(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
        layout = _one(where)
        if layout.axis in {dim % len(shapes[0]) for dim in axis(a, shapes[0])}:
            raise Mixed
        return layout

    return rule


def _first(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Layers that have the batch in dimension 0."""
    if _one(where).axis != 0:
        raise Mixed
    return where[0]


def _reduced(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Over dimensions that may go."""
    layout, dims = _one(where), a["dims"] if "dims" in a else (a["dim"],)
    if dims is None:
        raise Mixed
    gone = {dim % len(shapes[0]) for dim in dims}
    if layout.axis in gone:
        raise Mixed
    return layout if a["keepdim"] else layout._replace(axis=layout.axis - sum(dim < layout.axis for dim in gone))


def _broadcast(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Element by element, of several values or of a value and a constant."""
    shapes = [*shapes, *(tuple(c.shape) for c in [a.get("value")] if isinstance(c, Tensor))]
    return _agreed(where + [None] * (len(shapes) - len(where)), shapes, len(out))


def _agreed(where: list[Where], shapes: list[Shape], rank: int) -> BatchLayout:
    """The batch is in one dimension of the result, and what does not depend on it has no size there."""
    aligned = [
        None if layout is None else layout._replace(axis=layout.axis + rank - len(shape))
        for layout, shape in zip(where, shapes, strict=True)
    ]
    (*known,) = {layout for layout in aligned if layout is not None}
    if len(known) != 1:
        raise Mixed
    for layout, shape in zip(aligned, shapes, strict=True):
        place = known[0].axis - rank + len(shape)
        if layout is None and place >= 0 and shape[place] != 1:
            raise Mixed
    return known[0]


def _matmul(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """The batch is among the stacks of both; or one factor alone depends on it, and its rows or columns may hold it."""
    if all(layout is not None for layout in where):
        found = _agreed(where, shapes, len(out))
        if found.axis >= len(out) - 2:
            raise Mixed
        return found
    side = 0 if where[0] is not None else 1
    layout, rank = where[side], len(shapes[side])
    assert layout is not None
    if layout.axis == rank - 1 - side:  # the dimension that is summed over: the first's last, the second's last but one
        raise Mixed
    if layout.axis >= rank - 2:
        return layout._replace(axis=layout.axis + len(out) - rank)
    return _agreed(where, shapes, len(out))


def _einsum(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    terms, _, result = a["equation"].partition("->")
    names = terms.split(",")
    found = {(names[i][w.axis], w.outer, w.inner) for i, w in enumerate(where) if w is not None}
    if len(found) != 1:
        raise Mixed
    ((index, outer, inner),) = found
    if index not in result or any(w is None and index in names[i] for i, w in enumerate(where)):
        raise Mixed
    return BatchLayout(result.index(index), outer, inner)


def _permute(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    layout = _one(where)
    order = [dim % len(out) for dim in a["dims"]]
    return layout._replace(axis=order.index(layout.axis))


def _transpose(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    order = list(range(len(out)))
    first, second = a["dim0"], a["dim1"]
    order[first], order[second] = order[second], order[first]
    return _permute({"dims": order}, where, shapes, out)


def _reshaped(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """The order of elements stays: outer x batch x inner is found again among the new dimensions."""
    layout = _one(where)
    outer = math.prod(shapes[0][: layout.axis]) * layout.outer
    inner = math.prod(shapes[0][layout.axis + 1 :]) * layout.inner
    for axis, size in enumerate(out):
        before, after = math.prod(out[:axis]), math.prod(out[axis + 1 :])
        if not before * after or inner % after or outer % before:
            continue
        found = BatchLayout(axis, outer // before, inner // after)
        if size == found.outer * _PROBE * found.inner:
            return found
    raise Mixed


def _joined(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """cat: along another dimension than the batch's, of values that all have it."""
    if None in where or len(set(where)) != 1 or _one(where).axis == a["dim"] % len(out):
        raise Mixed
    return where[0]


def _stacked(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    if None in where or len(set(where)) != 1:
        raise Mixed
    layout = _one(where)
    return layout._replace(axis=layout.axis + (a["dim"] % len(out) <= layout.axis))


def _indexed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Integers and slices of other dimensions than the batch's."""
    layout, index = _one(where), a["index"]
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    rest = [slice(None)] * (len(shapes[0]) - taken)
    place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts[place : place + 1] = rest
    source = result = 0
    for part in parts:
        if part is None:
            result += 1
            continue
        if source == layout.axis:
            if part != slice(None):
                raise Mixed
            return layout._replace(axis=result)
        result += not isinstance(part, int)
        source += 1
    raise Mixed


def _unbound(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    return _reduced({"dim": a["dim"], "keepdim": False}, where, shapes, out)


def _padded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    layout = _one(where)
    place = 2 * (len(out) - 1 - layout.axis)
    if any(a["pads"][place : place + 2]):
        raise Mixed
    return layout


def _repeated(step: Step, values: Sequence[Any]) -> Where:
    """A constant, once for each image where a size is that of the batch."""
    sizes = [values[size.index] if isinstance(size, Ref) else 0 for size in step.inputs[1:]]
    return BatchLayout(sizes.index(_PROBE)) if _PROBE in sizes else None


def _expanded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    layout = _one(where)
    layout = layout._replace(axis=layout.axis + len(out) - len(shapes[0]))
    if out[layout.axis] != shapes[0][_one(where).axis]:
        raise Mixed
    return layout


def _packed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    if any(layout != BatchLayout(0) for layout in where):
        raise Mixed
    return where[0]


def _softmax(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """A mask of each call is beside the logits, as the sum before it has found."""
    axes = (-1, -2) if a.get("causal") else (a["dim"],)
    return _apart(axis=lambda a, shape: axes)(a, where[:1], shapes[:1], out)


def _normed(a: dict[str, Any], shape: Shape) -> Collection[int]:
    return range(-a["last"], 0) if a["last"] is not None else range(1, len(shape))


_ELEMENTWISE = "relu leaky_relu hardtanh sigmoid hardsigmoid tanh silu hardswish gelu neg square abs"
_BATCHED = "conv conv_transpose max_pool avg_pool adaptive_avg_pool adaptive_max_pool resize"
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _each),
    **dict.fromkeys(_BATCHED.split(), _first),
    **dict.fromkeys(("add", "sub", "mul", "elementwise", "maximum", "minimum", "greater"), _broadcast),
    **dict.fromkeys(("flatten", "reshape", "unflatten", "squeeze", "unsqueeze"), _reshaped),
    **dict.fromkeys(("mean", "sum", "argmax"), _reduced),
    "linear": _apart(axis=lambda a, shape: (-1,)),
    "affine": _apart(axis=lambda a, shape: (min(1, len(shape) - 1),)),
    "prelu": _apart(axis=lambda a, shape: (min(1, len(shape) - 1),) if a["weight"].numel() > 1 else ()),
    "scale_last": _apart(axis=lambda a, shape: range(-a["scale"].dim(), 0)),
    "norm": _apart(axis=_normed),
    "softmax": _softmax,
    "log_softmax": _apart(axis=lambda a, shape: (a["dim"],)),
    "root_scale": _apart(axis=lambda a, shape: (-1,)),
    "causal": _apart(axis=lambda a, shape: (-1, -2)),
    "matmul": _matmul,
    "einsum": _einsum,
    "permute": _permute,
    "transpose": _transpose,
    "expand": _expanded,
    "pack": _packed,
    "cat": _joined,
    "stack": _stacked,
    "chunk": _apart(axis=lambda a, shape: (a["dim"],)),
    "split": _apart(axis=lambda a, shape: (a["dim"],)),
    "unbind": _unbound,
    "getitem": _indexed,
    "pad": _padded,
    "edge_pad": _padded,
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _apart(axis=lambda a, shape: (-3, -2, -1))),
    "channel_shuffle": _apart(axis=lambda a, shape: (1,)),
    **dict.fromkeys(("flip", "roll"), _apart(axis=lambda a, shape: a["dims"])),
}
