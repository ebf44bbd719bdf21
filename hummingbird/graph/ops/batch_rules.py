"""Rules for the batch's dimension in a value, from a step's attributes and the batch's dimension in its inputs.

In row-major order a value that depends on the batch is laid out as

    outer x batch x inner

with integers `outer` and `inner` that no reshaping changes. A dimension holds the batch if its size is
outer' * batch * inner'; the rest of `outer` and `inner` is in the dimensions before and after. Every rule returns the
batch's dimension in the result, or raises `Mixed`. A rule must prove that no result depends on two images, and that all
images are treated the same: it refuses slices, sums and softmaxes along the batch's dimension, factors that vary along
it, and products that sum over it. Shapes alone do not prove this: x @ x.transpose(0, 1) of a square x has the shape of
x. `hummingbird/graph/rowwise.py` applies the rules to a net.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from torch import Tensor

PROBE = 3  # batch size while a net is examined; a prime, so that reshaping cannot split it over two dimensions


class Mixed(Exception):
    """Error: it is not proven that a step computes the images of a batch independently."""


class BatchLayout(NamedTuple):
    """The position of the batch in a value: it is in dimension `axis`, whose size is outer * batch * inner.

    The indices of this dimension count through `outer` numbers, then images, then `inner` numbers, the last fastest.
    """

    axis: int
    outer: int = 1
    inner: int = 1


Where = BatchLayout | None  # None: the value does not depend on the batch
Shape = tuple[int, ...]
BatchRule = Callable[[dict[str, Any], list[Where], list[Shape], Shape], Where]


def _one(where: list[Where]) -> BatchLayout:
    layout = where[0]
    assert layout is not None
    return layout


def each(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the result of an elementwise function of one value: where the value has it."""
    return where[0]


def apart(*, axis: Callable[[dict[str, Any], Shape], Collection[int]]) -> BatchRule:
    """Make the batch rule for a function that works along some dimensions and keeps the shape, such as softmax.

    The rule returns the input's position of the batch, and raises Mixed if the function works along the batch's
    dimension. axis: takes the step's attributes and the input's shape, and returns the dimensions along which the
    function works; negative ones count from the end.
    """

    def rule(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
        layout = _one(where)
        if layout.axis in {dim % len(shapes[0]) for dim in axis(a, shapes[0])}:
            raise Mixed
        return layout

    return rule


def first(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the result of a layer whose input and result have the batch in dimension 0."""
    if _one(where).axis != 0:
        raise Mixed
    return where[0]


def reduced(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after a reduction, such as a mean, over other dimensions.

    These are dropped, or kept with size 1.
    """
    layout, dims = _one(where), a["dims"] if "dims" in a else (a["dim"],)
    if dims is None:
        raise Mixed
    gone = {dim % len(shapes[0]) for dim in dims}
    if layout.axis in gone:
        raise Mixed
    return layout if a["keepdim"] else layout._replace(axis=layout.axis - sum(dim < layout.axis for dim in gone))


def broadcast(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in an elementwise function's result, of several values or a value and a constant."""
    shapes = [*shapes, *(tuple(c.shape) for c in [a.get("value")] if isinstance(c, Tensor))]
    return _agreed(where + [None] * (len(shapes) - len(where)), shapes, len(out))


def _agreed(where: list[Where], shapes: list[Shape], rank: int) -> BatchLayout:
    """Find the dimension that holds the batch after the values are broadcast to a result of `rank` dimensions.

    Raises Mixed unless all values that depend on the batch have it in the same dimension, and each other value has size
    1 there or lacks the dimension.
    """
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


def multiplied(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in a matrix product.

    If both factors depend on the batch, its dimension must come before the last two, which are the matrices'. If only
    one factor depends on the batch, the batch may also be in a dimension of that factor's matrices, but not in the one
    that is summed over.
    """
    if all(layout is not None for layout in where):
        found = _agreed(where, shapes, len(out))
        if found.axis >= len(out) - 2:
            raise Mixed
        return found
    side = 0 if where[0] is not None else 1
    layout, rank = where[side], len(shapes[side])
    assert layout is not None
    if layout.axis == rank - 1 - side:  # the summed dimension: the first's last, the second's last but one
        raise Mixed
    if layout.axis >= rank - 2:
        return layout._replace(axis=layout.axis + len(out) - rank)
    return _agreed(where, shapes, len(out))


def einsum(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the result of an einsum.

    One letter of the equation must stand for the batch, in the result and in every operand that depends on the batch;
    no other operand may have this letter.
    """
    terms, _, result = a["equation"].partition("->")
    names = terms.split(",")
    found = {(names[i][w.axis], w.outer, w.inner) for i, w in enumerate(where) if w is not None}
    if len(found) != 1:
        raise Mixed
    ((index, outer, inner),) = found
    if index not in result or any(w is None and index in names[i] for i, w in enumerate(where)):
        raise Mixed
    return BatchLayout(result.index(index), outer, inner)


def permuted(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after a permutation of the dimensions, the attribute `dims`."""
    layout = _one(where)
    order = [dim % len(out) for dim in a["dims"]]
    return layout._replace(axis=order.index(layout.axis))


def transposed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after an exchange of two dimensions."""
    order = list(range(len(out)))
    first, second = a["dim0"], a["dim1"]
    order[first], order[second] = order[second], order[first]
    return permuted({"dims": order}, where, shapes, out)


def reshaped(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after reshaping, which keeps the order of elements.

    In this order the input is laid out as outer x batch x inner (`BatchLayout`). One dimension of the result must have
    a size o * batch * i such that o times all sizes before it is outer, and i times all sizes after it is inner;
    otherwise Mixed is raised.
    """
    layout = _one(where)
    outer = math.prod(shapes[0][: layout.axis]) * layout.outer
    inner = math.prod(shapes[0][layout.axis + 1 :]) * layout.inner
    for axis, size in enumerate(out):
        before, after = math.prod(out[:axis]), math.prod(out[axis + 1 :])
        if not before * after or inner % after or outer % before:
            continue
        found = BatchLayout(axis, outer // before, inner // after)
        if size == found.outer * PROBE * found.inner:
            return found
    raise Mixed


def joined(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the result of cat along another dimension.

    All joined values must depend on the batch.
    """
    if None in where or len(set(where)) != 1 or _one(where).axis == a["dim"] % len(out):
        raise Mixed
    return where[0]


def stacked(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the result of stack, which adds a dimension.

    All stacked values must have the batch in the same dimension.
    """
    if None in where or len(set(where)) != 1:
        raise Mixed
    layout = _one(where)
    return layout._replace(axis=layout.axis + (a["dim"] % len(out) <= layout.axis))


def indexed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after indexing by integers and slices, which must keep that dimension whole."""
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


def unbound(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in the results of unbind along another dimension, which is dropped."""
    return reduced({"dim": a["dim"], "keepdim": False}, where, shapes, out)


def padded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension after padding, which must not pad along the batch's dimension."""
    layout = _one(where)
    place = 2 * (len(out) - 1 - layout.axis)
    if any(a["pads"][place : place + 2]):
        raise Mixed
    return layout


def expanded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in a value that is repeated along dimensions other than the batch's."""
    layout = _one(where)
    layout = layout._replace(axis=layout.axis + len(out) - len(shapes[0]))
    if out[layout.axis] != shapes[0][_one(where).axis]:
        raise Mixed
    return layout


def packed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in several results packed into one tensor: each must have the batch in dimension 0."""
    if any(layout != BatchLayout(0) for layout in where):
        raise Mixed
    return where[0]


def softmax(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Find the batch's dimension in a softmax of logits, which must not be along the batch's dimension.

    A second input is a public mask; it needs no check here, because the step before, which adds it to the logits, has
    its own rule.
    """
    axes = (-1, -2) if a.get("causal") else (a["dim"],)
    return apart(axis=lambda a, shape: axes)(a, where[:1], shapes[:1], out)


def channels(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return the dimension of the channels, 1, or 0 if there is only one dimension.

    Pass this function to `apart` as its `axis`.
    """
    return (min(1, len(shape) - 1),)


def along(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return the dimension in the attribute `dim`, as a tuple of one. Pass this function to `apart` as its `axis`."""
    return (a["dim"],)


def all_of(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return the dimensions in the attribute `dims`. Pass this function to `apart` as its `axis`."""
    dims: Collection[int] = a["dims"]
    return dims
