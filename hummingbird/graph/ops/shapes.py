"""Shapes: rules from torch's arguments to one step that moves, selects or repeats values.

Sizes are values too: `x.size(0)` is a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph.build import INT, SIZE, TUPLE, UNKNOWN, StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.arithmetic import value
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling
from hummingbird.graph.ops.resize import edge_pad
from hummingbird.graph.steps import Ref


def join(op: str) -> Callable[..., Ref]:
    """Return the rule that converts a call of cat or stack, on a tuple or list of tensors, to a step.

    op: "cat" or "stack".
    """

    def rule(b: StepBuilder, tensors: Any, dim: int = 0) -> Ref:
        if not isinstance(tensors, (tuple, list)):
            raise Unsupported(f"{op} takes a list of tensors", "unpack chunks first: a, b = x.chunk(2, 1)")
        return b.emit(op, tuple(value(b, item) for item in tensors), dim=dim)

    return rule


def expand(b: StepBuilder, input: Any, *sizes: Any, size: Any = ()) -> Ref:
    flat = tuple(item for part in sizes or (size,) for item in (part if isinstance(part, (tuple, list)) else (part,)))
    for item in flat:
        if b.kind(item) not in (INT, SIZE, UNKNOWN) and type(item) is not int:
            raise Unsupported(f"expand to {b._show(item)}", "give integers or sizes")
    return b.emit("expand", value(b, input), *flat)


def flatten(b: StepBuilder, input: Any, start_dim: int = 0, end_dim: int = -1) -> Ref:
    return b.emit("flatten", b.tensor(input), start=start_dim, end=end_dim)


def reshape(b: StepBuilder, input: Any, *sizes: Any, shape: Any = (), size: Any = ()) -> Ref:
    """Convert a call of view or reshape to a step, which reads x and the new sizes.

    sizes, shape, size: three ways to give the new sizes, of which a call uses one: ints, or references to sizes that
    the net computes.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    sizes = sizes or (shape,) if shape else sizes or (size,)
    flat = tuple(item for part in sizes for item in (part if isinstance(part, (tuple, list)) else (part,)))
    for item in flat:
        if b.kind(item) not in (INT, SIZE, UNKNOWN) and not (isinstance(item, int) and not isinstance(item, bool)):
            raise Unsupported(f"reshape to {b._show(item)}", "give integers or sizes")
    return b.emit("reshape", b.tensor(input), *flat)


def permute(b: StepBuilder, input: Any, *rest: Any, dims: Any = ()) -> Ref:
    order = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest or dims
    return b.emit("permute", b.tensor(input), dims=b.ints(order, len(order), "dims"))


def transpose(b: StepBuilder, input: Any, dim0: int, dim1: int) -> Ref:
    return b.emit("transpose", b.tensor(input), dim0=dim0, dim1=dim1)


def squeeze(b: StepBuilder, input: Any, dim: Any = None) -> Ref:
    return b.emit("squeeze", b.tensor(input), dim=tuple(dim) if isinstance(dim, (tuple, list)) else dim)


def unsqueeze(b: StepBuilder, input: Any, dim: int) -> Ref:
    return b.emit("unsqueeze", b.tensor(input), dim=dim)


def chunk(b: StepBuilder, input: Any, chunks: int, dim: int = 0) -> Ref:
    return b.emit("chunk", b.tensor(input), kind=TUPLE, chunks=b.ints(chunks, 1, "chunks")[0], dim=dim)


def unbind(b: StepBuilder, input: Any, dim: int = 0) -> Ref:
    """Convert a call of unbind to a step, whose value is a tuple of all slices along a dimension.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    return b.emit("unbind", b.tensor(input), kind=TUPLE, dim=dim)


def split(b: StepBuilder, input: Any, split_size: Any, dim: int = 0) -> Ref:
    many = isinstance(split_size, (tuple, list))
    sizes = b.ints(split_size, len(split_size) if many else 1, "split_size")
    return b.emit("split", b.tensor(input), kind=TUPLE, sizes=sizes if many else sizes[0], dim=dim)


def getitem(b: StepBuilder, input: Any, index: Any) -> Ref:
    kind = b.kind(input)
    if kind == SIZE and isinstance(index, (int, slice)):
        source = b.steps[input.index]
        if isinstance(index, int) and source.op == "size":  # x.shape[i] is x.size(i)
            return b.emit("size", *source.inputs, kind=INT, dim=index)
        return b.emit("int", input, kind=INT if isinstance(index, int) else SIZE, function="getitem", index=index)
    if kind == UNKNOWN:
        return b.emit("getitem", input, kind=UNKNOWN, index=index)
    if kind == TUPLE and isinstance(index, int):
        return b.emit("getitem", input, index=index)
    parts = tuple(index) if isinstance(index, tuple) else (index,)
    if kind != TUPLE and (found := listed(b, b.tensor(input), parts)) is not None:
        return found
    if kind == TUPLE or not all(_fixed(part) for part in parts):
        hint = "slice with numbers, use chunk, or one list of indices: x[:, [2, 0]]"
        raise Unsupported("an index with other parts than fixed integers and slices", hint)
    return b.emit("getitem", b.tensor(input), index=parts if isinstance(index, tuple) else index)


def _fixed(part: Any) -> bool:
    bounds = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return part is Ellipsis or all(bound is None or type(bound) is int for bound in bounds)


def pad(b: StepBuilder, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Ref:
    if mode != "constant":
        return edge_pad(b, input, pad, mode)
    pads = b.ints(pad, len(pad) if isinstance(pad, (tuple, list)) else 1, "pad")
    return b.emit("pad", b.tensor(input), pads=pads, value=b.number(value or 0.0, "the value"))


def zero_pad(b: StepBuilder, input: Any, padding: Any, mode: str = "constant", value: Any = None) -> Ref:
    return pad(b, input, padding, mode, value)


def size(b: StepBuilder, input: Any, dim: int | None = None) -> Ref:
    return b.emit("size", b.tensor(input), kind=SIZE if dim is None else INT, dim=dim)


def attribute(b: StepBuilder, input: Any, name: str) -> Ref:
    if name != "shape":
        raise Unsupported(f"the attribute .{name} of a traced value", "of a tensor's attributes, only .shape is known")
    return size(b, input)


def unflatten(b: StepBuilder, input: Any, dim: int, sizes: Any) -> Ref:
    """Convert a call of unflatten to a step that splits one dimension into several of fixed sizes.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    return b.emit("unflatten", b.tensor(input), dim=dim, sizes=b.ints(sizes, len(sizes), "sizes"))


def unflatten_layer(b: StepBuilder, input: Any, dim: int, unflattened_size: Any) -> Ref:
    return b.emit("unflatten", b.tensor(input), dim=dim, sizes=b.ints(unflattened_size, len(unflattened_size), "sizes"))


def narrow(b: StepBuilder, input: Any, dim: int, start: Any, length: Any) -> Ref:
    (first,), (count,) = b.ints(start, 1, "start"), b.ints(length, 1, "length")
    return _along(b, b.tensor(input), dim, slice(first, first + count if first + count else None))


def select(b: StepBuilder, input: Any, dim: int, index: Any) -> Ref:
    return _along(b, b.tensor(input), dim, b.ints(index, 1, "index")[0])


def _along(b: StepBuilder, x: Ref, dim: int, part: Any, suffix: str = "") -> Ref:
    rest = (slice(None),) * (dim if dim >= 0 else -dim - 1)
    return b.emit("getitem", x, suffix=suffix, index=(*rest, part) if dim >= 0 else (..., part, *rest))


_MOST_PIECES = 256


def picked(b: StepBuilder, x: Ref, dim: int, places: Sequence[int]) -> Ref:
    """Emit steps that select elements of x along dimension `dim`, and return a reference to the result.

    places: the indices of the elements, in the order of the result.
    """
    pieces: list[list[int]] = []
    for place in places:
        if pieces and pieces[-1][-1] + 1 == place and (place > 0 or pieces[-1][-1] < -1):
            pieces[-1].append(place)
        else:
            pieces.append([place])
    if not 0 < len(pieces) <= _MOST_PIECES:
        what = f"a list of indices of {len(pieces)} pieces"
        raise Unsupported(what, f"from 1 to {_MOST_PIECES}; or multiply by a constant matrix that picks them")
    slices = [slice(piece[0], piece[-1] + 1 if piece[-1] != -1 else None) for piece in pieces]
    if len(slices) == 1:
        return _along(b, x, dim, slices[0])
    return b.emit("cat", tuple(_along(b, x, dim, part, f".{n}") for n, part in enumerate(slices)), dim=dim)


ROWS = "indices must be constants, int64; for private ones, hummingbird.lookup returns rows as a net's input"


def index_select(b: StepBuilder, input: Any, dim: int, index: Any) -> Ref:
    found = whole_numbers(index)
    if found is None:
        raise Unsupported("index_select by indices that are no constant list", ROWS)
    return picked(b, b.tensor(input), dim, found)


def whole_numbers(value: Any) -> list[int] | None:
    """Convert a list of ints, or a constant integer tensor of rank 1, to a list; None for other values."""
    if isinstance(value, Tensor) and value.dim() == 1 and value.dtype in (torch.int64, torch.int32):
        return [int(n) for n in value.tolist()]
    fits = isinstance(value, list) and value and all(type(n) is int for n in value)
    return value if fits else None


def listed(b: StepBuilder, input: Ref, parts: Sequence[Any]) -> Ref | None:
    """Convert x[:, [2, 0]], an index that has one list among slices, to steps; return None for other indices.

    input: a reference to x. parts: the parts of the index. The steps are added to `b`; returns a reference to the
    result.
    """
    lists = [number for number, part in enumerate(parts) if whole_numbers(part) is not None]
    rest = [part for number, part in enumerate(parts) if number not in lists]
    if len(lists) != 1 or not all(isinstance(part, slice) or part is Ellipsis or part is None for part in rest):
        return None
    place = lists[0]
    if any(part is None or (isinstance(part, slice) and part != slice(None)) for part in rest):
        index = tuple(slice(None) if number == place else part for number, part in enumerate(parts))
        input = b.emit("getitem", input, suffix=".sliced", index=index)
    dim = place if Ellipsis not in parts[:place] else place - len(parts)
    found = whole_numbers(parts[place])
    assert found is not None
    return picked(b, input, dim, found)


def rot90(b: StepBuilder, input: Any, k: int = 1, dims: Any = (0, 1)) -> Ref:
    """Convert a call of rot90 to steps: a transpose of two dimensions and a flip.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    x, (first, second), (turns,) = b.tensor(input), b.ints(dims, 2, "dims"), b.ints(k, 1, "k")
    if turns % 4 == 0:
        return x
    if turns % 4 == 2:
        return b.emit("flip", x, dims=(first, second))
    turned = b.emit("flip", x, suffix=".flip", dims=(second if turns % 4 == 1 else first,))
    return b.emit("transpose", turned, dim0=first, dim1=second)


def _reshape(a: Attrs, x: Tensor, *sizes: Any) -> Tensor:
    return x.reshape([n for size in sizes for n in (size if isinstance(size, tuple) else (size,))])


def _squeeze(a: Attrs, x: Tensor) -> Tensor:
    return x.squeeze() if a["dim"] is None else x.squeeze(a["dim"])


OPS = [
    Op(
        "cat",
        lambda a, x: torch.cat(x, a["dim"]),
        ranks.same,
        [Spelling(join("cat"), "cat concat concatenate")],
        inputs="xs",
        attrs="dim=int",
        batch=batch.joined,
        integers="kept",
    ),
    Op(
        "stack",
        lambda a, x: torch.stack(x, a["dim"]),
        ranks.more(lambda a: 1),
        [Spelling(join("stack"), "stack")],
        inputs="xs",
        attrs="dim=int",
        batch=batch.stacked,
        integers="kept",
    ),
    Op(
        "expand",
        lambda a, x, *sizes: x.expand(*(s for part in sizes for s in (part if isinstance(part, tuple) else (part,)))),
        ranks.LISTED,
        [Spelling(expand, "expand")],
        inputs="x size*",
        batch=batch.expanded,
        view=True,
        integers="kept",
    ),
    Op(
        "flatten",
        lambda a, x: torch.flatten(x, a["start"], a["end"]),
        ranks.flattened,
        [Spelling(flatten, "flatten", {nn.Flatten: "start_dim end_dim"})],
        attrs="start=int end=int",
        batch=batch.reshaped,
        view=True,
        integers="kept",
    ),
    Op(
        "unflatten",
        lambda a, x: x.unflatten(a["dim"], a["sizes"]),
        ranks.more(lambda a: len(a["sizes"]) - 1),
        [
            Spelling(unflatten, "unflatten"),
            Spelling(unflatten_layer, modules={nn.Unflatten: "dim unflattened_size"}),
        ],
        attrs="dim=int sizes=ints",
        batch=batch.reshaped,
        view=True,
        integers="kept",
    ),
    Op(
        "reshape",
        _reshape,
        ranks.LISTED,
        [Spelling(reshape, "reshape view")],
        inputs="x size*",
        batch=batch.reshaped,
        view=True,
        integers="kept",
    ),
    Op(
        "permute",
        lambda a, x: x.permute(a["dims"]),
        lambda a, given: len(a["dims"]),
        [Spelling(permute, "permute")],
        attrs="dims=ints",
        batch=batch.permuted,
        view=True,
        integers="kept",
    ),
    Op(
        "transpose",
        lambda a, x: x.transpose(a["dim0"], a["dim1"]),
        ranks.stays,
        [Spelling(transpose, "transpose swapaxes swapdims")],
        attrs="dim0=int dim1=int",
        batch=batch.transposed,
        view=True,
        integers="kept",
    ),
    Op(
        "squeeze",
        _squeeze,
        ranks.unknown,
        [Spelling(squeeze, "squeeze")],
        attrs="dim=int|ints|none",
        batch=batch.reshaped,
        view=True,
        integers="kept",
    ),
    Op(
        "unsqueeze",
        lambda a, x: x.unsqueeze(a["dim"]),
        ranks.more(lambda a: 1),
        [Spelling(unsqueeze, "unsqueeze")],
        attrs="dim=int",
        batch=batch.reshaped,
        view=True,
        integers="kept",
    ),
    Op(
        "chunk",
        lambda a, x: x.chunk(a["chunks"], a["dim"]),
        ranks.stays,
        [Spelling(chunk, "chunk")],
        attrs="chunks=positive dim=int",
        batch=batch.apart(axis=batch.along),
        view=True,
        makes=TUPLE,
        integers="kept",
    ),
    Op(
        "split",
        lambda a, x: x.split(a["sizes"], a["dim"]),
        ranks.stays,
        [Spelling(split, "split")],
        attrs="sizes=positive|wholes dim=int",
        batch=batch.apart(axis=batch.along),
        view=True,
        makes=TUPLE,
        integers="kept",
    ),
    Op(
        "unbind",
        lambda a, x: x.unbind(a["dim"]),
        ranks.more(lambda a: -1),
        [Spelling(unbind, "unbind")],
        attrs="dim=int",
        batch=batch.unbound,
        view=True,
        makes=TUPLE,
        integers="kept",
    ),
    Op(
        "getitem",
        lambda a, x: x[a["index"]],
        ranks.indexed,
        [Spelling(getitem, operators="getitem")],
        inputs="x|tuple",
        attrs="index=index",
        batch=batch.indexed,
        view=True,
        integers="kept",
    ),
    Op(
        "pad",
        lambda a, x: F.pad(x, a["pads"], value=a["value"]),
        ranks.same,
        [
            Spelling(pad, "pad"),
            Spelling(zero_pad, modules=dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d), "padding")),
            Spelling(
                zero_pad, modules=dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d), "padding value")
            ),
        ],
        attrs="pads=ints value=number",
        batch=batch.padded,
        integers="kept",
    ),
    Op(
        "size",
        lambda a, x: x.size() if a["dim"] is None else x.size(a["dim"]),
        None,
        [Spelling(size, "size"), Spelling(attribute, functions=(getattr,))],
        attrs="dim=int|none",
        makes=lambda a: SIZE if a["dim"] is None else INT,
        integers="neutral",
    ),
]
SPELLINGS = [
    Spelling(narrow, "narrow"),
    Spelling(select, "select"),
    Spelling(index_select, "index_select"),
    Spelling(rot90, "rot90"),
]
REFUSED = [
    Refused("leave it out: x * y broadcasts by itself", names="expand_as"),
    Refused("x.transpose(0, 1)", names="t"),
    Refused("torch.cat([x, x], dim)", names="repeat"),
    Refused(
        "write a constant tensor in __init__, or a number",
        names="new_zeros new_ones new_full zeros_like ones_like full_like",
    ),
]
