"""Norms that are written out, as ONNX files and many nets have them, and what torch has short names for.

    m = x.mean(-1, keepdim=True); c = x - m
    c / ((c ** 2).mean(-1, keepdim=True) + eps).sqrt()          one step, "norm"; without m, a root-mean-square norm

The root alone has no private form: it stands for itself until x - m is divided by it, or multiplied by its inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph.build import INVERSE, ROOT, StepBuilder, Unsupported
from hummingbird.graph.dimensions import ranks
from hummingbird.graph.hints import ROOTS
from hummingbird.graph.ops import elementwise
from hummingbird.graph.steps import Ref, Step

_NORM = "divide by it what its squares are of: (x - mean) / (variance + eps).sqrt(), as a norm does"


def sqrt(b: StepBuilder, input: Any) -> Ref:
    return _root(b, input, ROOT)


def rsqrt(b: StepBuilder, input: Any) -> Ref:
    return _root(b, input, INVERSE)


def _root(b: StepBuilder, input: Any, kind: str) -> Ref:
    """The root of a mean of squares, and a number."""
    name = "sqrt" if kind == ROOT else "rsqrt"
    if _variance(b, b.tensor(input)) is None or b.plain:
        raise Unsupported(f"{name} of what is no mean of squares over dimensions that are kept", ROOTS)
    return b.emit("add", input, suffix=".root", kind=kind, value=0.0)


def is_one(value: Any) -> bool:
    """Whether a constant is the number 1."""
    one = isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta)
    return one and bool(value == 1)


def inverse(b: StepBuilder, root: Ref) -> Ref:
    """1 / root."""
    return b.emit("add", root, suffix=".inverse", kind=INVERSE, value=0.0)


def divided(b: StepBuilder, input: Any, root: Ref) -> Ref:
    """A value over the root of its own mean square: a norm."""
    step = b.steps[root.index]
    while step.name.endswith((".root", ".inverse")) and step.op == "add" and b.kind(step.inputs[0]) in (ROOT, INVERSE):
        step = b.steps[step.inputs[0].index]
    found = _variance(b, step.inputs[0])
    x = b.tensor(input)
    if found is None:
        raise Unsupported("a division by a root", _NORM)
    squared, dims, eps = found
    mean = _less_mean(b, x)
    if x != squared and (mean is None or mean != _less_mean(b, squared)):
        raise Unsupported("a division by the root of another value's mean square", _NORM)
    center = mean is not None and mean[1] == dims
    return _norm(b, mean[0] if mean is not None and center else x, dims, eps, center)


def _variance(b: StepBuilder, value: Ref) -> tuple[Ref, tuple[int, ...], float] | None:
    """The value that is squared, the dimensions of the mean, and the number that is added."""
    step, eps = b.steps[value.index], 0.0
    if step.op == "add" and len(step.inputs) == 1 and (number := _eps(b, step.attrs["value"])) is not None:
        step, eps = b.steps[step.inputs[0].index], number
    if step.op != "mean" or not step.attrs["keepdim"] or step.attrs["dims"] is None or eps < 0:
        return None
    square = b.steps[step.inputs[0].index]
    return (square.inputs[0], step.attrs["dims"], eps) if square.op == "square" else None


def _less_mean(b: StepBuilder, value: Ref) -> tuple[Ref, tuple[int, ...]] | None:
    """x and dimensions, of a value that is x - x.mean(dimensions, keepdim=True)."""
    step = b.steps[value.index]
    if step.op != "sub" or len(step.inputs) != 2:
        return None
    mean = b.steps[step.inputs[1].index]
    fits = mean.op == "mean" and mean.attrs["keepdim"] and mean.attrs["dims"] is not None
    return (step.inputs[0], mean.attrs["dims"]) if fits and mean.inputs == step.inputs[:1] else None


_ROUND = [float(f"{digit}e{power}") for power in range(0, -17, -1) for digit in range(10)]
_ROUND += [torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps]


def _eps(b: StepBuilder, value: Any) -> float | None:
    """A number, or a tensor of one, as a number; None for larger tensors.

    As the eps of torch's norms it is one of the net's public options. A tensor that must not become a number is found
    by truth values among round ones, 1e-5 or 3e-7, as people write them; one that was learned is refused.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        return None
    if isinstance(value, Tensor) and value.is_meta:
        raise Unsupported("the eps of a norm has no value, on the meta device", "write the number into the code")
    if b.is_hidden(value):
        found = next((number for number in _ROUND if bool((value == number).all())), None)
        if found is None:
            b.check_told(value, "the eps of a norm, which all parties are told,")
        return found
    return float(value)


def _norm(b: StepBuilder, x: Ref, dims: Sequence[int], eps: float, center: bool) -> Ref:
    """Rows of the last dimensions; of others, as of channels, with these turned to the end and back."""
    attrs: dict[str, Any] = {"last": len(dims), "groups": None, "eps": eps, "center": center, "sizes": None}
    if sorted(dims) == [*range(-len(dims), 0)]:
        return b.emit("norm", x, **attrs)
    rank = _rank(b.steps, x)
    if rank is None:
        hint = "name the last dimensions from the end, x.mean(-1, keepdim=True), or give an example="
        raise Unsupported(f"a norm over dimensions {tuple(dims)} of a value whose rank is not known", hint)
    taken = sorted(dim % rank for dim in dims)
    order = [*(dim for dim in range(rank) if dim not in taken), *taken]
    if order == [*range(rank)]:
        return b.emit("norm", x, **attrs)
    turned = b.emit("permute", x, suffix=".turned", dims=tuple(order))
    made = b.emit("norm", turned, suffix=".norm", **attrs)
    return b.emit("permute", made, dims=tuple(order.index(dim) for dim in range(rank)))


def _rank(steps: Sequence[Step], value: Ref) -> int | None:
    try:
        found = ranks(steps)[value.index]
    except KeyError:  # a step that could not be converted
        return None
    return found if isinstance(found, int) else None


def var(
    b: StepBuilder, input: Any, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: Any = None
) -> Ref:
    """The mean square of x less its mean: in a norm, or by itself."""
    many = isinstance(dim, (tuple, list))
    if dim is None or isinstance(dim, bool) or (unbiased if correction is None else correction):
        hint = "x.var(dim, correction=0), over dimensions that are named"
        raise Unsupported("a variance over everything, or with a correction", hint)
    x, dims = b.tensor(input), b.ints(dim, len(dim) if many else 1, "dim")
    mean = b.emit("mean", x, suffix=".mean", dims=dims, keepdim=True)
    square = b.emit("square", b.emit("sub", x, mean, suffix=".less_mean"), suffix=".square")
    return b.emit("mean", square, dims=dims, keepdim=bool(keepdim))


# Short names of torch ---------------------------------------------------------------------------------------------


def glu(b: StepBuilder, input: Any, dim: int = -1) -> Ref:
    """Half of the values times the sigmoid of the others."""
    both = b.emit("chunk", b.tensor(input), suffix=".halves", kind="tuple", chunks=2, dim=dim)
    value, gate = (b.emit("getitem", both, suffix=f".{name}", index=i) for i, name in enumerate(("value", "gate")))
    return b.emit("mul", value, b.emit("sigmoid", gate, suffix=".sigmoid"))


def softmin(b: StepBuilder, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Ref:
    if not isinstance(dim, int) or dtype is not None:
        raise Unsupported("softmin without a dimension, or with a dtype", "give dim alone")
    return b.emit("softmax", b.emit("neg", b.tensor(input), suffix=".minus"), dim=dim)


def threshold(b: StepBuilder, input: Any, threshold: Any, value: Any, inplace: bool = False) -> Ref:
    """x above the threshold, and else the value."""
    if b.plain:
        return elementwise.emit(b, "threshold", (input, threshold, value), {})
    x, least, other = b.tensor(input), b.number(threshold, "the threshold"), b.number(value, "the value")
    if least == other:
        return b.emit("relu", x) if least == 0 else b.emit("maximum", x, value=least)
    bit = b.emit("greater", x, suffix=".above", kind="bool", value=least, turned=False, strict=True)
    if other == 0:
        return b.emit("mul", bit, x)
    kept = b.emit("mul", bit, b.emit("sub", x, suffix=".less", value=other, reversed=False), suffix=".kept")
    return b.emit("add", kept, value=other)


def rot90(b: StepBuilder, input: Any, k: int = 1, dims: Any = (0, 1)) -> Ref:
    """A transpose of two dimensions, turned round."""
    x, (first, second), (turns,) = b.tensor(input), b.ints(dims, 2, "dims"), b.ints(k, 1, "k")
    if turns % 4 == 0:
        return x
    if turns % 4 == 2:
        return b.emit("flip", x, dims=(first, second))
    turned = b.emit("flip", x, suffix=".flip", dims=(second if turns % 4 == 1 else first,))
    return b.emit("transpose", turned, dim0=first, dim1=second)


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
    """Values at these places of a dimension, in this order: slices, joined."""
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


def index_select(b: StepBuilder, input: Any, dim: int, index: Any) -> Ref:
    found = whole_numbers(index)
    if found is None:
        raise Unsupported("index_select by what is no constant list of places", ROWS)
    return picked(b, b.tensor(input), dim, found)


ROWS = "places must be constants, int64; by private ones, hummingbird.lookup gives a net its rows"


def whole_numbers(value: Any) -> list[int] | None:
    """A list of whole numbers, or a constant tensor of one dimension, as a list; else None."""
    if isinstance(value, Tensor) and value.dim() == 1 and value.dtype in (torch.int64, torch.int32):
        return [int(n) for n in value.tolist()]
    fits = isinstance(value, list) and value and all(type(n) is int for n in value)
    return value if fits else None


def listed(b: StepBuilder, input: Ref, parts: Sequence[Any]) -> Ref | None:
    """x[:, [2, 0]], with one list among slices; None for other indices."""
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
