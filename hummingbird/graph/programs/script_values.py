"""TorchScript's operations on Python's values: numbers, sizes, lists, dicts and texts.

Graphs of TorchScript name them as operations of `prim` and `aten`. Here they are Python's own, so a size that stands
for any batch stays one, and a private value that would become a number refuses by itself.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from hummingbird.graph.build import Unsupported
from hummingbird.graph.programs import mapped
from hummingbird.graph.symbols import is_tensor

# The numbers of types in TorchScript (c10/core/ScalarType.h); private inference has one floating-point type.
TYPES: dict[int, torch.dtype] = {
    **{0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 11: torch.bool},
    **dict.fromkeys((5, 6, 7, 15), torch.float32),
}


def computes(schema: Any, inputs: list[Any]) -> bool:
    """Whether torch must compute an operation of TorchScript because an input is a tensor; else Python computes it.

    The name alone does not say so: traced programs call operations on tensors with sizes too. schema: the operation's
    signature, or None. inputs: the values of its inputs.
    """
    if schema is None or not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return False
    found: list[bool] = []

    def look(value: Any) -> Any:
        found.append(isinstance(value, Tensor) or (isinstance(value, fx.Proxy) and is_tensor(value.node)))
        return value

    for value in inputs:
        look(value) if not isinstance(value, (list, tuple)) else mapped(value, look)
    return any(found)


def typed(name: str, value: Any) -> Any:
    """Return torch's dtype if `value` is TorchScript's number of a type; other values are returned unchanged.

    name: the argument's name; only an int in the argument "dtype" is such a number. Raises Unsupported for a type that
        has no form here.
    """
    if name != "dtype" or type(value) is not int:
        return value
    if value not in TYPES:
        raise Unsupported(f"type number {value} of TorchScript", "compute in float32; complex numbers have no form")
    return TYPES[value]


def _number(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function that converts a value to a number of Python.

    A size that may stand for any batch stays as it is.
    kind: int, float or bool.
    """

    def convert(x: Any) -> Any:
        if isinstance(x, fx.Proxy) and not is_tensor(x.node):
            return x
        if isinstance(x, int) and kind is not float:
            return bool(x) if kind is bool else x
        return kind(x.item() if isinstance(x, (Tensor, fx.Proxy)) and kind is not bool else x)

    return convert


def _index(x: Any, at: Any) -> Any:
    return x[at]


def _set(x: Any, at: Any, value: Any) -> Any:
    x[at] = value
    return x


def _list_slice(x: Any, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[start:end:step]


def _range_length(low: Any, high: Any, step: int) -> Any:
    return high if (low, step) == (0, 1) else len(range(low, high, step))


def _format(text: str, *values: Any) -> str:
    """Put values into the places {} of a text. TorchScript's format() knows no other places."""
    parts = text.split("{}")
    return "".join(part + str(value) for part, value in zip(parts, (*values, ""), strict=False))


def _changed(name: str) -> Callable[..., Any]:
    """Return a function that calls a method that changes a list or dict, such as append, and returns the list or dict.

    name: the method's name.
    """

    def call(x: Any, *args: Any) -> Any:
        getattr(x, name)(*args)
        return x

    return call


def _called(name: str) -> Callable[..., Any]:
    return lambda x, *args: getattr(x, name)(*args)


def _pairs(*parts: Any) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _type_number(x: Any) -> int:
    return next((number for number, kind in TYPES.items() if kind == x.dtype and number not in (5, 7, 15)), -1)


def _added(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _taken(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


def _divided(x: Any, y: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode is None:
        return x / y
    return x // y if rounding_mode == "floor" else int(x / y)


def _same(x: Any, *rest: Any) -> Any:
    return x


ALWAYS: dict[str, Callable[..., Any]] = {  # whatever they get
    "prim::ListConstruct": lambda *parts: list(parts),
    "prim::TupleConstruct": lambda *parts: tuple(parts),
    "prim::DictConstruct": _pairs,
    "prim::TupleIndex": _index,
    "prim::Uninitialized": lambda: None,
    "prim::Print": lambda *values: None,
    "prim::dtype": _type_number,
    "prim::device": operator.attrgetter("device"),
    "prim::is_cuda": operator.attrgetter("is_cuda"),
    "prim::requires_grad": lambda x: False,
    "prim::data": _same,
    "prim::min": lambda *values: builtins.min(*values),
    "prim::max": lambda *values: builtins.max(*values),
    **dict.fromkeys(("prim::unchecked_cast", "prim::unchecked_unwrap_optional", "prim::NumToTensor"), _same),
    "aten::_unwrap_optional": _same,
    **dict.fromkeys(("aten::Int", "aten::IntImplicit", "aten::ScalarImplicit"), _number(int)),
    **dict.fromkeys(("aten::Float", "aten::FloatImplicit"), _number(float)),
    "aten::Bool": _number(bool),
    "aten::warn": lambda *values: None,
    "aten::len": builtins.len,
    **{f"aten::{name}": _called(name) for name in "dim numel stride is_floating_point is_complex item".split()},
    "aten::format": _format,
    "aten::str": builtins.str,
}
PYTHON: dict[str, Callable[..., Any]] = {  # if no tensor is among their arguments
    "aten::add": _added,
    "aten::add_": operator.iadd,
    "aten::sub": _taken,
    "aten::rsub": lambda x, y, alpha=1: _taken(y, x, alpha),
    "aten::mul": operator.mul,
    "aten::div": _divided,
    **dict.fromkeys(("aten::floordiv", "aten::floor_divide"), operator.floordiv),
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::abs": builtins.abs,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::round": builtins.round,
    "aten::sqrt": math.sqrt,
    "aten::log": math.log,
    "aten::exp": math.exp,
    **{f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": operator.contains,
    "aten::__getitem__": _index,
    "aten::_set_item": _set,
    "aten::Delete": operator.delitem,
    "aten::slice": _list_slice,
    "aten::list": builtins.list,
    "aten::dict": builtins.dict,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda at, start, step: start + at * step,
    **{f"aten::{name}": _changed(name) for name in "append insert extend clear reverse sort update".split()},
    **{f"aten::{name}": _called(name) for name in "pop get index count copy setdefault".split()},
    **{
        f"aten::{name}": _called(name)
        for name in "lower upper strip split join startswith endswith find replace".split()
    },
    **{f"aten::{name}": lambda x, name=name: list(getattr(x, name)()) for name in ("keys", "values", "items")},
}
