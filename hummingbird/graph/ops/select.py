"""Maxima of two values, magnitudes, comparisons as values, and selection by them: rules from torch's arguments.

A comparison of private values is the number 1 or 0, of the kind BOOL. torch would treat it as a truth value, so it may
enter where, masked_fill, a product or a cast only. A result that is an integer in torch has the attribute "whole"
(properties.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph.build import BOOL, TENSOR, StepBuilder, Unsupported
from hummingbird.graph.ops import attention
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.arithmetic import arithmetic, constant, integers, value
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling
from hummingbird.graph.steps import Ref

HINT = "return the result of argmax and compute the rest on the opened result; for a comparison, use (x > 0).float()"
_ONE_TYPE = "leave it out, or convert with example=: a private value has one type and one device"


def magnitude(b: StepBuilder, input: Any) -> Ref:
    return b.emit("abs", b.tensor(input))


def extreme(op: str) -> Callable[..., Ref]:
    """Return the rule that converts maximum or minimum, of two tensors or of a tensor and a constant, to a step.

    op: "max" or "min".
    """

    def rule(b: StepBuilder, input: Any, other: Any = None, **options: Any) -> Ref:
        if other is None or options or not isinstance(other, (Ref, Tensor)):  # torch.max(x, 1): a dimension
            hint = f"torch.{op}imum(x, y) of two tensors; max_pool or argmax within one tensor"
            raise Unsupported(f"{op} over the elements of one tensor", hint)
        if not isinstance(input, Ref):
            input, other = other, input
        return b.emit(f"{op}imum", b.tensor(input), value(b, other))

    return rule


def compared(name: str) -> Callable[..., Ref]:
    """Return the rule that converts a comparison to a step "greater". name: "gt", "ge", "lt" or "le"."""

    def rule(b: StepBuilder, input: Any, other: Any) -> Ref:
        turned, strict = name in ("lt", "le"), name in ("gt", "lt")
        if not isinstance(input, Ref):
            input, other, turned = other, input, not turned
        if isinstance(other, Tensor) and other.dim() == 0 and not b.owns(other):  # a learned number stays a tensor
            other = other.item()
        if isinstance(other, (int, float)):
            number = b.number(other, "the number in a comparison")
            return b.emit("greater", b.tensor(input), kind=BOOL, value=number, turned=turned, strict=strict)
        x, y = b.tensor(input), value(b, other)
        return b.emit("greater", x, y, kind=BOOL, turned=turned, strict=strict)

    return rule


def where(b: StepBuilder, condition: Any, input: Any = None, other: Any = None) -> Ref:
    """Convert a call of where to steps, other + condition (input - other).

    condition: a comparison or a constant mask.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if input is None or other is None:
        raise Unsupported("where with one argument: the size of its result is private", "where(condition, x, y)")
    if isinstance(condition, Tensor):
        if (masked := _hidden(b, condition.bool(), input, other)) is not None:
            return masked
        mask = condition.bool().float()
        kept = _times(b, input, mask, ".kept")
        return _named(b, ".chosen", arithmetic("add"), kept, _times(b, other, 1 - mask, ".other"))
    if b.kind(condition) != BOOL:
        raise Unsupported("where with a condition that is no comparison", "where(x > y, a, b)")
    if isinstance(input, Ref) or isinstance(other, Ref):
        difference = _named(b, ".difference", arithmetic("sub"), input, other)
        chosen = _times(b, condition, difference, ".chosen")
        return _named(b, "", arithmetic("add"), chosen, other)
    kind = torch.result_type(*(value if isinstance(value, Tensor) else torch.tensor(value) for value in (input, other)))
    if kind == torch.bool:
        raise Unsupported("where between True and False", "that is the comparison itself: cast it")
    difference = constant(b, input) - constant(b, other)
    chosen = b.emit("mul", condition, suffix=".chosen", value=difference, **integers(kind))
    return _named(b, "", arithmetic("add"), chosen, other)


def _hidden(b: StepBuilder, condition: Tensor, input: Any, other: Any) -> Ref | None:
    """Convert where() of a value and of a number below -2^20, such as -inf, to an attention mask (attention.hidden).

    Only softmaxes give numbers for such values: no value of a net reaches 2^20. condition: constant, true where the
    result is `input`. Returns None unless exactly one of `input` and `other` is such a constant.
    """
    shown, value, filled = (condition, input, other) if isinstance(input, Ref) else (~condition, other, input)
    if isinstance(filled, Ref) or b.kind(value) != TENSOR or not bool((torch.as_tensor(filled) < -(2.0**20)).all()):
        return None
    return b.emit("add", b.tensor(value), value=attention.hidden(b, shown))


def masked_fill(b: StepBuilder, input: Any, mask: Any, value: Any) -> Ref:
    if isinstance(input, Ref) and b.is_integer(input) and not isinstance(value, Ref):
        if not bool((torch.as_tensor(value) == torch.as_tensor(value).round()).all()):
            raise Unsupported(f"torch rounds {b._show(value)} in masked_fill of integers (int64)", HINT)
    return where(b, mask, value, input)


def where_method(b: StepBuilder, input: Any, condition: Any, other: Any) -> Ref:
    return where(b, condition, input, other)


def cast(dtype: torch.dtype | None = None) -> Callable[..., Ref]:
    """Return the rule that converts a cast of a comparison's result, of kind BOOL, to a step with the numbers 1 and 0.

    dtype: the type to which a method such as float() casts; None for a call that names the type itself. The rule raises
    Unsupported for a cast of any other value. With an example, casts that change nothing do not reach the rule, as the
    trace has removed them.
    """

    def rule(b: StepBuilder, input: Any, *others: Any, **more: Any) -> Ref:
        given = [*others, *more.values()]
        types = [value for value in given if isinstance(value, torch.dtype)] or ([] if dtype is None else [dtype])
        same = [value for value in given if isinstance(value, Ref)]
        if b.kind(input) != BOOL or len(types) + len(same) != 1:
            raise Unsupported("a cast to another type or device", _ONE_TYPE)
        if same:
            b.tensor(same[0], "the tensor whose type is taken")
            types = [torch.int64 if b.is_integer(same[0]) else torch.float32]
        return b.emit("mul", input, value=1.0, **integers(types[0]))

    return rule


def _times(b: StepBuilder, x: Any, y: Any, suffix: str) -> Any:
    """Emit a step for the product of x and y, and return its reference; if both are constants, return their product.

    suffix: end of the step's name.
    """
    if not isinstance(x, Ref) and not isinstance(y, Ref):
        return torch.as_tensor(x).float() * torch.as_tensor(y).float()
    return _named(b, suffix, arithmetic("mul"), x, y)


def _named(b: StepBuilder, suffix: str, rule: Callable[..., Any], *values: Any) -> Any:
    """Return the result of a rule for `values`; the names of the steps that it emits end with `suffix`."""
    name, b.name = b.name, b.name + suffix
    try:
        return rule(b, *values)
    finally:
        b.name = name


def _extreme(function: Callable[..., Tensor], bound: str) -> Callable[..., Tensor]:
    return lambda a, x, *other: function(x, other[0]) if other else x.clamp(**{bound: a["value"]})


def _greater(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
    """Return 1 where x > y (x >= y if the attribute `strict` is False), else 0, in x's type; in plain torch.

    If the attribute `turned` is True, x and y are exchanged. other: y; empty if y is the attribute `value`.
    """
    y = other[0] if other else a["value"]
    greater, less = (y, x) if a["turned"] else (x, y)
    return (greater > less if a["strict"] else greater >= less).to(x.dtype)


def _casts() -> list[Spelling]:
    named = [Spelling(cast(getattr(torch, name)), methods=name) for name in ("float", "double", "half", "int", "long")]
    return [Spelling(cast(), methods="to type type_as"), *named]


OPS = [
    Op(
        "abs",
        lambda a, x: x.abs(),
        ranks.same,
        [Spelling(magnitude, "abs absolute", operators="abs")],
        batch=batch.each,
        integers="kept",
    ),
    Op(
        "maximum",
        _extreme(torch.maximum, "min"),
        ranks.same,
        [Spelling(extreme("max"), "maximum max")],
        inputs="x x?",
        attrs="value?=number",
        batch=batch.broadcast,
        integers="promoted",
    ),
    Op(
        "minimum",
        _extreme(torch.minimum, "max"),
        ranks.same,
        [Spelling(extreme("min"), "minimum min")],
        inputs="x x?",
        attrs="value?=number",
        batch=batch.broadcast,
        integers="promoted",
    ),
    Op(
        "greater",
        _greater,
        ranks.same,
        [
            Spelling(compared("gt"), "gt greater", operators="gt"),
            Spelling(compared("ge"), "ge greater_equal", operators="ge"),
            Spelling(compared("lt"), "lt less", operators="lt"),
            Spelling(compared("le"), "le less_equal", operators="le"),
        ],
        inputs="x x?",
        attrs="value?=number turned=bool strict=bool",
        batch=batch.broadcast,
        integers="neutral",
    ),
]
SPELLINGS = [
    Spelling(where, "where"),
    Spelling(where_method, methods="where"),
    Spelling(masked_fill, "masked_fill"),
    *_casts(),
]
REFUSED = [
    Refused(
        "use max_pool, argmax or relu; of two tensors maximum, minimum, >, >= and where are known",
        names="max min amax amin argmin topk sort eq ne sign logical_and logical_or logical_not",
    ),
    Refused(_ONE_TYPE, names="to float double half bfloat16 type type_as cpu cuda"),
]
