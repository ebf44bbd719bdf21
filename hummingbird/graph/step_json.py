"""Steps as JSON: tuples, references, slices, "..." and infinities become JSON objects; a tensor becomes its name.

A text may come from anybody: the readers raise one of `MALFORMED` for a value that no step may hold. They do not check
whether the parts of a step fit together; `schema.check` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from hummingbird.graph.steps import Ref

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, ZeroDivisionError)
MOST_NAME = 512  # characters


def check_name(name: Any, number: int) -> str:
    """Return `name` if it can be the name of step `number`; ValueError if not.

    A name is a str of at most `MOST_NAME` characters, all printable.
    """
    if not isinstance(name, str) or len(name) > MOST_NAME or not name.isprintable():
        raise ValueError(f"the name of step {number}")
    return name


def plain(value: Any, tensor: Callable[[Tensor], str] | None = None) -> Any:
    """Convert a field of a step, such as a number, tuple, reference, slice or tensor, to a form that JSON can hold.

    tensor: a function from a tensor to the name that stands for it; None: a tensor raises TypeError.
    """
    if isinstance(value, tuple):
        return {"tuple": [plain(item, tensor) for item in value]}
    if isinstance(value, dict):
        return {key: plain(item, tensor) for key, item in value.items()}
    if isinstance(value, Ref):
        return {"ref": value.index}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and tensor is not None:
        return {"tensor": tensor(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def read(data: Any, tensor: Callable[[str], Any] | None = None) -> Any:
    """Return the value that `plain` has converted to `data`.

    tensor: a function from a name to the tensor that it stands for; None: a tensor raises ValueError. Raises one of
    `MALFORMED` for data that no step's field has.
    """
    if not isinstance(data, dict):
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        raise ValueError("a list")
    ((kind, content),) = data.items()
    if kind == "tuple":
        return tuple(read(item, tensor) for item in content)
    if kind == "ref":
        return Ref(whole(content))
    if kind == "slice":
        start, stop, step = (None if part is None else int(part) for part in content)
        return slice(start, stop, step)
    if kind == "float":
        return float(content)
    if kind == "ellipsis":
        return Ellipsis
    if kind == "tensor" and tensor is not None:
        return tensor(content)
    raise ValueError(f"an object of kind {kind[:32]!r}")


def whole(value: Any) -> int:
    """Return `value` if it is an integer of 0 or more; ValueError if not."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{str(value)[:32]!r} is no whole number")
    return value
