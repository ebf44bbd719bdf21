"""Arithmetic and reductions: rules from torch's arguments to one step.

Sizes are values too; arithmetic on them is an operation of its own, "int".
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.build import BOOL, INT, INVERSE, SIZE, UNKNOWN, StepBuilder, Unsupported, no_dtype
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops import elementwise, functions, written_out
from hummingbird.graph.ops.op import Attrs, Op, Spelling, like
from hummingbird.graph.steps import Ref, Step


def arithmetic(op: str) -> Callable[..., Ref]:
    """Return the rule that converts a call of an operator on two values to a step.

    op: "add", "sub", "mul", or "floordiv", which is accepted for sizes only.
    """

    def rule(b: StepBuilder, input: Any, other: Any, alpha: Any = 1) -> Ref:
        if alpha != 1:
            raise Unsupported(f"alpha={alpha}", "write the product: x + alpha * y")
        if INT in (b.kind(input), b.kind(other)) or op == "floordiv":
            return _sizes(b, op, input, other)
        if op == "mul" and BOOL in (b.kind(input), b.kind(other)):
            return _chosen(b, input, other)
        if op == "mul" and INVERSE in (b.kind(input), b.kind(other)):
            return written_out.multiplied(b, *((other, input) if b.kind(input) == INVERSE else (input, other)))
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
    """Convert a call of addcmul to steps: input + tensor1 * tensor2; one of the factors may be constant.

    Raises Unsupported for a `value` other than 1.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if value != 1 or not (b.kind(tensor1) or b.kind(tensor2)):
        raise Unsupported(f"addcmul with value={b._show(value)}, or of constant factors", "write a product and a sum")
    name = b.name
    b.name = f"{name}.product"
    product = arithmetic("mul")(b, tensor1, tensor2)
    b.name = name
    return arithmetic("add")(b, product, input)


def _chosen(b: StepBuilder, input: Any, other: Any) -> Ref:
    """Emit a step for the product of a comparison, which is 1 or 0, and a value; return a reference to the product.

    input, other: the comparison (a value of kind BOOL) and the value, in either order.
    """
    bit, value = (input, other) if b.kind(input) == BOOL else (other, input)
    if isinstance(value, Ref) and b.kind(value) != BOOL:
        return b.emit("mul", bit, b.tensor(value, "the other operand"))
    if isinstance(value, (Ref, bool)) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise Unsupported("a product of two comparisons", "cast them: (x > 0).float()")
    return b.emit("mul", bit, value=constant(b, value), **integers(torch.as_tensor(value).dtype))


def integers(dtype: torch.dtype) -> dict[str, Any]:
    """Return the attribute that marks a step as integer, {"whole": True}, for int32 and int64; {} for real types.

    Raises Unsupported for other types.
    """
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
    """Convert a constant operand of a sum or product for a step: a number to a float, a tensor to a copy, detached.

    Integer tensors become float32. Raises Unsupported for other values, and for NaN and infinities.
    """
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
    if isinstance(other, Ref) and (found := written_out.divided(b, input, other)) is not None:
        return found
    if isinstance(other, Ref):
        return _divided(b, input, other)
    divisor = constant(b, other)
    if not (isinstance(divisor, Tensor) and divisor.is_meta) and not bool(torch.as_tensor(divisor).all()):
        raise Unsupported("division by zero", "the divisor holds a zero")
    if isinstance(divisor, Tensor):
        return b.emit("mul", b.tensor(input), value=divisor.double().reciprocal().to(divisor.dtype))
    return b.emit("mul", b.tensor(input), value=1.0 / divisor)


def _divided(b: StepBuilder, input: Any, other: Ref) -> Ref:
    """Emit steps for a division by the private value `other`: a reciprocal, and a product unless `input` is a number.

    The reciprocal is a table over the range of `other`, which may not hold 0.
    """
    if b.plain:
        raise Unsupported("division by a private value")  # the caller computes it as it is
    if isinstance(input, (int, float)):
        return functions.emit(b, other, functions.spelled("div", b.number(input, "the dividend"), "x"))
    inverse = functions.emit(b, other, "reciprocal(x)", ".reciprocal")
    if isinstance(input, Ref):
        return b.emit("mul", b.tensor(input), inverse)
    return b.emit("mul", inverse, value=constant(b, input))


def power(b: StepBuilder, input: Any, exponent: Any) -> Ref:
    """Convert a call of pow to steps: squares and products for the exponents 2, 3 and 4, a root for 0.5 and -0.5.

    Other powers of a private value, and powers of a positive number with a private exponent, are functions of one
    value. The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    exponent = elementwise.exponent(exponent)
    if isinstance(input, Ref) and not isinstance(exponent, (Ref, Tensor)) and exponent in (0.5, -0.5):
        return (written_out.sqrt if exponent > 0 else written_out.rsqrt)(b, input)
    if isinstance(exponent, (int, float)) and exponent == 1 and isinstance(input, Ref):
        return b.tensor(input)
    if b.plain and not (isinstance(exponent, (int, float)) and exponent in (2, 3, 4) and isinstance(input, Ref)):
        raise Unsupported("a power other than x ** 2, 3 and 4")  # the caller computes it as it is
    if isinstance(exponent, Ref):
        base = b.number(input, "the base of a power with a private exponent")
        if base <= 0:
            raise Unsupported(f"a power of {base:g} with a private exponent", "the base is a positive number")
        return functions.emit(b, exponent, functions.spelled("pow", base, "x"))
    number = b.number(exponent, "the exponent of a power")
    if number not in (2, 3, 4):
        return functions.emit(b, input, functions.spelled("pow", "x", number))
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
    """Return the rule that converts a call of mean or sum to a step. op: "mean" or "sum".

    A call without `dim`, or with dim=None, is over all elements; it must not have keepdim.
    """

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


def value(b: StepBuilder, item: Any) -> Ref:
    """Return a reference to the value of `item`, an argument that may be a tensor of the net or a constant tensor.

    A constant tensor first becomes a step "constant". Raises Unsupported for anything else.
    """
    if isinstance(item, Tensor):
        real = item if item.is_floating_point() else item.float()
        return b.emit("constant", suffix=f".constant{len(b.steps)}", value=b.weight(real, "a constant part"))
    return b.tensor(item, "every part")


def _reduce(reduce: Callable[..., Tensor]) -> Callable[[Attrs, Tensor], Tensor]:
    return lambda a, x: reduce(x) if a["dims"] is None else reduce(x, a["dims"], a["keepdim"])


def _mul(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
    factor = a.get("value")
    if isinstance(factor, Tensor) and factor.numel() == 1 and factor.dim() > x.dim():
        what = f"a factor of shape {tuple(factor.shape)} would add dimensions to a value of shape {tuple(x.shape)}"
        raise InputError(what, hint="write the factor as a number")
    return x * (other[0] if other else like(factor, x))


def _binary(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def apply(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
        y = other[0] if other else like(a["value"], x)
        return function(y, x) if a.get("reversed") else function(x, y)

    return apply


def _int(a: Attrs, x: Any, *other: Any) -> Any:
    return getattr(operator, a["function"])(x, *(other or (a["index"],)))


def _check_int(step: Step) -> None:
    if (len(step.inputs) == 2) == ("index" in step.attrs):
        raise ValueError("arithmetic on sizes takes two, an element one and a position")
    if "index" in step.attrs and step.attrs["function"] != "getitem":
        raise ValueError("a position is for getitem")


OPS = [
    Op(
        "add",
        _binary(operator.add),
        ranks.same,
        [Spelling(arithmetic("add"), "add", operators="add"), Spelling(addcmul, "addcmul")],
        inputs="x x?",
        attrs="value?=number|tensor most?=number",  # most: bound of a recurrent state's magnitude (recurrent.py)
        batch=batch.broadcast,
        integers="promoted",
    ),
    Op(
        "sub",
        _binary(operator.sub),
        ranks.same,
        [Spelling(arithmetic("sub"), "sub subtract", operators="sub"), Spelling(rsub, "rsub")],
        inputs="x x?",
        attrs="value?=number|tensor reversed?=bool",
        batch=batch.broadcast,
        integers="promoted",
    ),
    Op(
        "mul",
        _mul,
        ranks.same,
        [
            Spelling(arithmetic("mul"), "mul multiply", operators="mul"),
            Spelling(div, "div divide true_divide", operators="truediv"),
            Spelling(power, "pow", operators="pow"),
        ],
        inputs="x x?",
        attrs="value?=number|tensor whole?=bool",
        batch=batch.broadcast,
        integers="promoted",
    ),
    Op(
        "neg",
        lambda a, x: -x,
        ranks.same,
        [Spelling(neg, "neg negative", operators="neg")],
        batch=batch.each,
        integers="kept",
    ),
    Op(
        "square",
        lambda a, x: x * x,
        ranks.same,
        [Spelling(square, "square")],
        batch=batch.each,
        integers="kept",
    ),
    Op(
        "mean",
        _reduce(torch.mean),
        ranks.reduced,
        [Spelling(reduction("mean"), "mean")],
        attrs="dims=ints|none keepdim=bool",
        batch=batch.reduced,
    ),
    Op(
        "sum",
        _reduce(torch.sum),
        ranks.reduced,
        [Spelling(reduction("sum"), "sum")],
        attrs="dims=ints|none keepdim=bool",
        batch=batch.reduced,
        integers="kept",
    ),
    Op(
        "int",
        _int,
        None,
        [Spelling(arithmetic("floordiv"), "floor_divide", operators="floordiv")],
        inputs="size size?",
        attrs="function=arithmetic index?=int|slice",
        kinds={"arithmetic": lambda value: value in ("add", "sub", "mul", "floordiv", "getitem")},
        check=_check_int,
        makes=lambda a: SIZE if isinstance(a.get("index"), slice) else INT,
        integers="neutral",
    ),
    Op(
        "constant",
        lambda a: a["value"],
        lambda a, given: a["value"].dim() if isinstance(a["value"], Tensor) else 0,
        inputs="",
        attrs="value=tensor",
    ),
]
