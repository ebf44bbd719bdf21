"""The table of ONNX operators, and the two kinds of values that flow between them.

A value is a tensor of torch (while a net is traced: a symbol), or a numpy array of what is known before any input: the
numbers of a shape, indices, limits. A shape may have sizes that grow with the batch, which are Python objects
(graph/batch.py): then the array's dtype is object.

An operator is a function of torch's values. Its positional parameters are the operator's inputs, and its further
parameters the attributes, both by ONNX's names; an input that later versions of the operator made of an attribute is
one parameter. An attribute without a parameter is refused when a file is read. Four more parameters are filled in
where a function has them: `op` (the operator's name), `version` (of the operator), `outputs` (how many the node names)
and `constant` (for each input, whether it is a weight of the file).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.batch import BatchSize

Known = np.ndarray[Any, Any]
MOST = 1 << 24  # elements of an array of known numbers; a short file can ask for any number


@dataclass(frozen=True)
class Operator:
    """The entry of one ONNX operator in the table of operators.

    function: computes the operator from its inputs and attributes. newest: the operator's last version (an opset) that
    is known here. numbers: positions of inputs that must be known numbers, such as limits; a constant of the file in
    such a position becomes a number, and no weight.
    """

    function: Callable[..., Any]
    newest: int
    numbers: tuple[int, ...] = ()

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """Return the names of the function's parameters."""
        return frozenset(inspect.signature(self.function).parameters)


OPERATORS: dict[str, Operator] = {}


def operator(name: str, newest: int, numbers: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Return a decorator that enters a function into the table `OPERATORS` as the one for the ONNX operator `name`.

    newest, numbers: as in `Operator`: the last version that is known, and the inputs that must be known numbers.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name] = Operator(function, newest, tuple(numbers))
        return function

    return enter


def is_known(value: Any) -> bool:
    """Whether a value is known before any input. Such values are numpy arrays here; all others are torch's tensors."""
    return isinstance(value, np.ndarray)


def known(value: Any) -> Known:
    """Return a number, a size, an array or a list of numbers as a numpy array, the form of known values.

    Floats become float32. Sizes that grow with the batch are kept as objects (dtype object).
    """
    if isinstance(value, BatchSize):
        one = np.empty((), dtype=object)
        one[()] = value
        return one
    mixed = isinstance(value, (list, tuple)) and any(isinstance(item, BatchSize) for item in value)
    found = np.array(value, dtype=object) if mixed else np.asarray(value)
    return found.astype(np.float32) if found.dtype.kind == "f" and found.dtype != np.float32 else found


def limited(count: Any, what: str) -> None:
    """Raise InputError if an array of known numbers would have more than `MOST` elements.

    count: the array's shape. what: its name for the error.
    """
    if math.prod(count) > MOST:
        raise InputError(f"{what} of {math.prod(count)} known numbers", hint=f"up to {MOST}; give them as an input")


def ints(value: Any, what: str) -> list[Any]:
    """Return a list of the integers and sizes in a known array, a list or a single number.

    what: the value's name for the error. Raises InputError if the value has other numbers, or depends on an input.
    """
    if isinstance(value, int):
        return [value]
    if isinstance(value, (list, tuple)) or is_known(value):
        items = list(value) if isinstance(value, (list, tuple)) else value.reshape(-1).tolist()
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return items
        raise InputError(f"{what} must be integers, got {items[:4]}", hint="the file is wrong")
    if (
        isinstance(value, Tensor) and not value.is_floating_point()
    ):  # no symbol: a run, or a public input taken as fixed
        return list(value.reshape(-1).tolist())
    hint = (
        "it must follow from the file and the shapes of the inputs; shapes that depend on values have no private form"
    )
    raise InputError(f"{what} depends on the values of an input", hint=hint)


def number(value: Any, what: str) -> Any:
    """Return a value that is one known number, as a number of Python; raises InputError for other values.

    what: the value's name for the error.
    """
    if isinstance(value, (int, float)):
        return value
    if is_known(value) and value.size == 1:
        return value.reshape(-1).tolist()[0]
    if isinstance(value, Tensor) and value.numel() == 1:  # no symbol
        return value.item()
    hint = "a limit, an exponent or a scale must be a number of the file"
    raise InputError(f"{what} is no known number", hint=hint)


def tensor(value: Any) -> Any:
    """Return a known array as a tensor of torch, with floats in float32; a tensor is returned unchanged."""
    if not is_known(value):
        return value
    if value.dtype == object:
        return torch.tensor(value.tolist())
    return torch.from_numpy(known(value).copy())


def operand(value: Any, beside: Any) -> Any:
    """Convert a value to an operand for torch: one known number becomes a number of Python, a known array a tensor.

    A number of Python leaves the type of the other operand `beside` as it is. An array of one element that has more
    dimensions than `beside` becomes a tensor, because it adds dimensions to the result.
    """
    if is_known(value) and value.size == 1 and (value.ndim == 0 or value.ndim <= rank(beside)):
        return value.reshape(-1).tolist()[0]
    return tensor(value)


def rank(value: Any) -> int:
    """Return the number of dimensions of a known array or a tensor."""
    return int(value.ndim if is_known(value) else value.dim())


def shape(value: Any) -> tuple[Any, ...]:
    """Return the shape of a known array or a tensor, as a tuple; sizes that grow with the batch are `BatchSize`s."""
    return tuple(value.shape)


def axis_of(axis: Any, dims: int) -> int:
    """Return an axis, counted from the first, of a value that has `dims` dimensions.

    axis: a known number; a negative one counts from the end. Raises InputError for an axis that the value does not
        have.
    """
    found = number(axis, "axis")
    if not -dims <= found < dims:
        raise InputError(f"axis {found} of a value of {dims} dimension(s)", hint="the file is wrong, or its input is")
    return int(found) % dims


def unlike(name: str, value: Any, *fits: Any, hint: str = "") -> None:
    """Raise InputError if an attribute of an operator has a value that is not supported.

    name: the attribute's name. value: its value. fits: the values that are supported. hint: the error's hint; "": it
    lists these values.
    """
    if value not in fits:
        raise InputError(f"{name}={value!r}", hint=hint or f"known: {', '.join(map(repr, fits))}")
