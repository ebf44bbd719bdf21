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

    Image number n has the indices (o * batch + n) * inner + i of this dimension, 0 <= o < outer and 0 <= i < inner.
    Mostly outer = inner = 1: then the dimension counts images alone.
    size: the size of the batch. The rules follow any dimension that a net treats so, such as the places of a sequence
        (causal.py), with another size.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    size: int = PROBE


Where = BatchLayout | None  # None: the value does not depend on the batch
Shape = tuple[int, ...]
BatchRule = Callable[[dict[str, Any], list[Where], list[Shape], Shape], Where]


def _one(where: list[Where]) -> BatchLayout:
    layout = where[0]
    assert layout is not None
    return layout


def each(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in the result of an elementwise function of one value: where the value has it.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    return where[0]


def apart(*, axis: Callable[[dict[str, Any], Shape], Collection[int]]) -> BatchRule:
    """Make the batch rule for a function that works along some dimensions and keeps the shape, such as softmax.

    The rule returns where its input has the batch, and raises Mixed if the function works along the batch's dimension.
    axis: a function that takes the step's attributes and the input's shape, and returns the dimensions along which the
    step works; negative ones count from the end.
    """

    def rule(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
        layout = _one(where)
        if layout.axis in {dim % len(shapes[0]) for dim in axis(a, shapes[0])}:
            raise Mixed
        return layout

    return rule


def first(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in a layer's result, if it is in dimension 0 of the input; raise Mixed if it is not.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    if _one(where).axis != 0:
        raise Mixed
    return where[0]


def reduced(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is after a reduction, such as a mean; raise Mixed if it is along the batch's dimension.

    The reduced dimensions are dropped, or kept with size 1.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    layout, dims = _one(where), a["dims"] if "dims" in a else (a["dim"],)
    if dims is None:
        raise Mixed
    gone = {dim % len(shapes[0]) for dim in dims}
    if layout.axis in gone:
        raise Mixed
    return layout if a["keepdim"] else layout._replace(axis=layout.axis - sum(dim < layout.axis for dim in gone))


def broadcast(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in an elementwise function's result, for several values or a value and a constant.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    shapes = [*shapes, *(tuple(c.shape) for c in [a.get("value")] if isinstance(c, Tensor))]
    return _agreed(where + [None] * (len(shapes) - len(where)), shapes, len(out))


def cosines(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in products of rows along the dimension `dim` of two values that are broadcast.

    The dimension is dropped; Mixed is raised if it is the batch's.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    rank = len(out) + 1
    return reduced({"dim": a["dim"], "keepdim": False}, [_agreed(where, shapes, rank)], [(1,) * rank], out)


def _agreed(where: list[Where], shapes: list[Shape], rank: int) -> BatchLayout:
    """Return where the batch is in the result of broadcasting the inputs to `rank` dimensions, as a `BatchLayout`.

    where: each input's `BatchLayout`, None for an input without the batch. shapes: the inputs' shapes. Raises Mixed if
    no input has the batch, if two inputs have it in different places of the result, or if an input without it has a
    size other than 1 in the batch's dimension. An input may lack that dimension.
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
    """Return where the batch is in a matrix product; raise Mixed if that is not sure.

    If both factors depend on the batch, its dimension must come before the last two, which are the matrices'. If only
    one factor depends on the batch, the batch may also be in a dimension of that factor's matrices, but not in the one
    that is summed over.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
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
    """Return where the batch is in the result of an einsum; raise Mixed if that is not sure.

    One letter of the equation must stand for the batch, in the result and in every operand that depends on the batch;
    no other operand may have this letter.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    terms, _, result = a["equation"].partition("->")
    names = terms.split(",")
    found = {(names[i][w.axis], w._replace(axis=0)) for i, w in enumerate(where) if w is not None}
    if len(found) != 1:
        raise Mixed
    ((index, layout),) = found
    if index not in result or any(w is None and index in names[i] for i, w in enumerate(where)):
        raise Mixed
    return layout._replace(axis=result.index(index))


def permuted(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is after a permutation of the dimensions, which the attribute `dims` gives.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    layout = _one(where)
    order = [dim % len(out) for dim in a["dims"]]
    return layout._replace(axis=order.index(layout.axis))


def transposed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is after an exchange of two dimensions, the attributes `dim0` and `dim1`.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    order = list(range(len(out)))
    first, second = a["dim0"], a["dim1"]
    order[first], order[second] = order[second], order[first]
    return permuted({"dims": order}, where, shapes, out)


def reshaped(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is after reshaping, which keeps the order of elements.

    In this order the elements of the input count outer x batch x inner; the new shape must too. One of its dimensions
    must have a size o * batch * i such that o times all sizes before it equals `outer`, and i times all sizes after it
    equals `inner`; otherwise Mixed is raised.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    layout = _one(where)
    outer = math.prod(shapes[0][: layout.axis]) * layout.outer
    inner = math.prod(shapes[0][layout.axis + 1 :]) * layout.inner
    for axis, size in enumerate(out):
        before, after = math.prod(out[:axis]), math.prod(out[axis + 1 :])
        if not before * after or inner % after or outer % before:
            continue
        found = layout._replace(axis=axis, outer=outer // before, inner=inner // after)
        if size == found.outer * found.size * found.inner:
            return found
    raise Mixed


def joined(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in the result of cat, which joins values along the dimension `dim`.

    Raises Mixed unless all values have the batch in the same dimension, and it is not `dim`.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    if None in where or len(set(where)) != 1 or _one(where).axis == a["dim"] % len(out):
        raise Mixed
    return where[0]


def stacked(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in the result of stack, which joins values along a new dimension.

    Raises Mixed unless all values have the batch in the same dimension.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    if None in where or len(set(where)) != 1:
        raise Mixed
    layout = _one(where)
    return layout._replace(axis=layout.axis + (a["dim"] % len(out) <= layout.axis))


def indexed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in the result of an index of integers and slices, the attribute `index`.

    The index must take all of the batch's dimension; otherwise Mixed is raised.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
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
    """Return where the batch is in each of the results of unbind, which splits a value along the dimension `dim`.

    This dimension is dropped; Mixed is raised if it is the batch's.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    return reduced({"dim": a["dim"], "keepdim": False}, where, shapes, out)


def padded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is after padding; raise Mixed if the padding is along the batch's dimension.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    layout = _one(where)
    place = 2 * (len(out) - 1 - layout.axis)
    if any(a["pads"][place : place + 2]):
        raise Mixed
    return layout


def expanded(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in a value that is repeated along dimensions; raise Mixed if the batch's is among them.

    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    layout = _one(where)
    layout = layout._replace(axis=layout.axis + len(out) - len(shapes[0]))
    if out[layout.axis] != shapes[0][_one(where).axis]:
        raise Mixed
    return layout


def packed(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is when several results are packed into one tensor: in dimension 0.

    Raises Mixed unless every result has the batch in dimension 0.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    if any(layout != BatchLayout(0) for layout in where):
        raise Mixed
    return where[0]


def softmax(a: dict[str, Any], where: list[Where], shapes: list[Shape], out: Shape) -> Where:
    """Return where the batch is in a softmax of logits; raise Mixed if the softmax is along the batch's dimension.

    A second input is a public attention mask. It needs no check here, because an earlier step adds it to the logits,
    and the rule of that step checks it.
    a: the step's attributes. where: for each input the position of the batch in it, a `BatchLayout`; None for an input
    without the batch. shapes, out: the shapes of the inputs and of the result. Returns the result's `BatchLayout`.
    """
    axes = (-1, -2) if a.get("causal") else (a["dim"],)
    return apart(axis=lambda a, shape: axes)(a, where[:1], shapes[:1], out)


def channels(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return the dimension of the channels along which a step works, as a tuple: 1, or 0 if there is only one
    dimension.

    It is passed as `axis` to `apart`, which makes a batch rule of it. a: the step's attributes, which are not read.
    shape: the input's shape.
    """
    return (min(1, len(shape) - 1),)


def along(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return the dimension along which a step works, the attribute `dim`, as a tuple of one.

    It is passed as `axis` to `apart`, which makes a batch rule of it. a: the step's attributes. shape: the input's
    shape, which is not read.
    """
    return (a["dim"],)


def all_of(a: dict[str, Any], shape: Shape) -> Collection[int]:
    """Return all dimensions that the attribute `dims` lists, along which a step works.

    It is passed as `axis` to `apart`, which makes a batch rule of it. a: the step's attributes. shape: the input's
    shape, which is not read.
    """
    dims: Collection[int] = a["dims"]
    return dims
