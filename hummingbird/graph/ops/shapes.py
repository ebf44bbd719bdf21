"""Arithmetic, reductions and shapes: the arguments torch takes -> one canonical step.

Shapes are values too: `x.size(0)` is a step, and arithmetic on sizes is the op "int", apart from arithmetic on tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph.build import BOOL, INT, INVERSE, ROOT, SIZE, TUPLE, UNKNOWN, StepBuilder, Unsupported
from hummingbird.graph.ops import elementwise, written_out
from hummingbird.graph.ops.layers import no_dtype
from hummingbird.graph.ops.resize import edge_pad
from hummingbird.graph.steps import Ref

RECIPROCAL = "needs a private reciprocal: divide by a constant, or fold the scale into a layer"


def arithmetic(op: str) -> Callable[..., Ref]:
    """add, sub, mul; and floordiv, of sizes only."""

    def rule(b: StepBuilder, input: Any, other: Any, alpha: Any = 1) -> Ref:
        if alpha != 1:
            raise Unsupported(f"alpha={alpha}", "write the product: x + alpha * y")
        if INT in (b.kind(input), b.kind(other)) or op == "floordiv":
            return _sizes(b, op, input, other)
        if op == "mul" and BOOL in (b.kind(input), b.kind(other)):
            return _chosen(b, input, other)
        if op == "mul" and INVERSE in (b.kind(input), b.kind(other)):
            x, root = (other, input) if b.kind(input) == INVERSE else (input, other)
            return written_out.divided(b, x, root)
        if op == "mul" and isinstance(input, Ref) and input == other:
            return b.emit("square", b.tensor(input))
        if isinstance(input, Ref) and isinstance(other, Ref):
            return b.emit(op, b.tensor(input), b.tensor(other, "the other operand"))
        reversed_, x, public = (True, other, input) if isinstance(other, Ref) else (False, input, other)
        attrs: dict[str, Any] = {"value": constant(b, public)}
        if op == "sub":
            attrs["reversed"] = reversed_
        return b.emit(op, b.tensor(x), **attrs)

    return rule


def addcmul(b: StepBuilder, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Ref:
    """input + tensor1 tensor2, any of which may be constant, but not both factors."""
    if value != 1 or not (b.kind(tensor1) or b.kind(tensor2)):
        raise Unsupported(f"addcmul with value={b._show(value)}, or of constant factors", "write a product and a sum")
    name = b.name
    b.name = f"{name}.product"
    product = arithmetic("mul")(b, tensor1, tensor2)
    b.name = name
    return arithmetic("add")(b, product, input)


def _chosen(b: StepBuilder, input: Any, other: Any) -> Ref:
    """A comparison, 1 or 0, times a value."""
    bit, value = (input, other) if b.kind(input) == BOOL else (other, input)
    if isinstance(value, Ref) and b.kind(value) != BOOL:
        return b.emit("mul", bit, b.tensor(value, "the other operand"))
    if isinstance(value, (Ref, bool)) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise Unsupported("a product of two comparisons", "cast them: (x > 0).float()")
    return b.emit("mul", bit, value=constant(b, value), **integers(torch.as_tensor(value).dtype))


def integers(dtype: torch.dtype) -> dict[str, Any]:
    """The attribute of a step whose values are integers in torch; Unsupported for types in which they may wrap."""
    if dtype.is_floating_point or dtype.is_complex:
        return {}
    if dtype not in (torch.int32, torch.int64):
        raise Unsupported(f"a comparison as {str(dtype).removeprefix('torch.')}", "cast it: (x > 0).float()")
    return {"whole": True}


def rsub(b: StepBuilder, input: Any, other: Any, alpha: Any = 1) -> Ref:
    return arithmetic("sub")(b, other, input, alpha)


def _sizes(b: StepBuilder, op: str, input: Any, other: Any) -> Ref:
    for value in (input, other):
        if b.kind(value) not in (INT, UNKNOWN) and not (isinstance(value, int) and not isinstance(value, bool)):
            both = "floor division of tensors" if op == "floordiv" else "arithmetic of a size and a tensor or float"
            raise Unsupported(both, "write the number itself, or use mean instead of dividing a sum by a size")
    return b.emit("int", input, other, kind=INT, function=op)


def constant(b: StepBuilder, value: Any) -> float | Tensor:
    """A public number or tensor as what is added or multiplied with."""
    if isinstance(value, (int, float)):
        return b.number(value, "the constant operand")
    if isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex():
        value = value.float()  # what torch makes of integers beside a float32 tensor
    return b.weight(value, "the constant operand")


def div(b: StepBuilder, input: Any, other: Any, rounding_mode: Any = None) -> Ref:
    if INT in (b.kind(input), b.kind(other)):
        raise Unsupported("true division with a size", "use // between sizes; use mean instead of dividing by a size")
    if rounding_mode is not None:
        raise Unsupported(f"rounding_mode={rounding_mode!r}", "divide without rounding")
    if b.kind(other) == ROOT:
        return written_out.inverse(b, other) if written_out.is_one(input) else written_out.divided(b, input, other)
    if isinstance(other, Ref):
        raise Unsupported("division by a private value", RECIPROCAL)
    divisor = constant(b, other)
    if not (isinstance(divisor, Tensor) and divisor.is_meta) and not bool(torch.as_tensor(divisor).all()):
        raise Unsupported("division by zero", "the divisor holds a zero")
    if isinstance(divisor, Tensor):
        return b.emit("mul", b.tensor(input), value=divisor.double().reciprocal().to(divisor.dtype))
    return b.emit("mul", b.tensor(input), value=1.0 / divisor)


def power(b: StepBuilder, input: Any, exponent: Any) -> Ref:
    """x ** 2, 3 and 4, as squares and products; of the square root, see written.py."""
    exponent = elementwise.exponent(exponent)
    if isinstance(input, Ref) and not isinstance(exponent, (Ref, Tensor)) and exponent in (0.5, -0.5):
        return (written_out.sqrt if exponent > 0 else written_out.rsqrt)(b, input)
    if not (isinstance(exponent, (int, float)) and exponent in (2, 3, 4) and isinstance(input, Ref)):
        raise Unsupported(f"a power other than x ** 2, 3 and 4, exponent {b._show(exponent)}", "write products of x")
    x = b.tensor(input)
    if exponent == 2:
        return b.emit("square", x)
    squared = b.emit("square", x, suffix=".square")
    return b.emit("mul", squared, x) if exponent == 3 else b.emit("square", squared)


def square(b: StepBuilder, input: Any) -> Ref:
    return b.emit("square", b.tensor(input))


def neg(b: StepBuilder, input: Any) -> Ref:
    return b.emit("neg", b.tensor(input))


def reduction(op: str) -> Callable[..., Ref]:
    """mean, sum over `dims` (None: over everything, keepdim is then False)."""

    def rule(b: StepBuilder, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
        no_dtype(dtype)
        if dim is None or dim == () or dim == []:
            if keepdim:
                raise Unsupported(
                    f"{op} over everything with keepdim=True", "name the dimensions, or leave keepdim out"
                )
            return b.emit(op, b.tensor(input), dims=None, keepdim=False)
        dims = b.ints(dim, len(dim) if isinstance(dim, (tuple, list)) else 1, "dim")
        return b.emit(op, b.tensor(input), dims=dims, keepdim=bool(keepdim))

    return rule


def join(op: str) -> Callable[..., Ref]:
    """cat, stack of a tuple or list of tensors."""

    def rule(b: StepBuilder, tensors: Any, dim: int = 0) -> Ref:
        if not isinstance(tensors, (tuple, list)):
            raise Unsupported(f"{op} takes a list of tensors", "unpack chunks first: a, b = x.chunk(2, 1)")
        return b.emit(op, tuple(value(b, item) for item in tensors), dim=dim)

    return rule


def value(b: StepBuilder, item: Any) -> Ref:
    """A tensor computed from the net's input, or a constant one in its place."""
    if isinstance(item, Tensor):
        real = item if item.is_floating_point() else item.float()
        return b.emit("constant", suffix=f".constant{len(b.steps)}", value=b.weight(real, "a constant part"))
    return b.tensor(item, "every part")


def expand(b: StepBuilder, input: Any, *sizes: Any, size: Any = ()) -> Ref:
    flat = tuple(item for part in sizes or (size,) for item in (part if isinstance(part, (tuple, list)) else (part,)))
    for item in flat:
        if b.kind(item) not in (INT, UNKNOWN) and type(item) is not int:
            raise Unsupported(f"expand to {b._show(item)}", "give integers or sizes")
    return b.emit("expand", value(b, input), *flat)


def flatten(b: StepBuilder, input: Any, start_dim: int = 0, end_dim: int = -1) -> Ref:
    return b.emit("flatten", b.tensor(input), start=start_dim, end=end_dim)


def reshape(b: StepBuilder, input: Any, *sizes: Any, shape: Any = (), size: Any = ()) -> Ref:
    """x.view(n, -1), x.view((n, -1)), x.reshape(x.shape): the sizes are inputs, ints or steps that make sizes."""
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
    """All slices along a dimension."""
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
    if kind != TUPLE and (found := written_out.listed(b, b.tensor(input), parts)) is not None:
        return found
    if kind == TUPLE or not all(_fixed(part) for part in parts):
        hint = "slice with numbers, use chunk, or one list of places: x[:, [2, 0]]"
        raise Unsupported("an index that is not made of fixed integers and slices", hint)
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
