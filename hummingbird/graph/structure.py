"""Nested arguments and results as plain data: a structure of tuples, lists and dicts, and its tensors in order.

A structure is ("tensor",), ("constant", value), or (kind, keys, parts) for a container; kind is "tuple", "list",
"dict" or "object" (a dataclass, or a library's ModelOutput, which comes back as a `Result`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Structure = tuple[Any, ...]
TENSOR: Structure = ("tensor",)


class Result(dict[str, Any]):
    """The fields of a net's result by name: `result.logits` is `result["logits"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name!r}, only {', '.join(self)}") from None


def flatten(value: Any, is_tensor: Callable[[Any], bool]) -> tuple[Structure, list[Any]]:
    """The structure of a value, and what in it `is_tensor`, from front to back."""
    if is_tensor(value):
        return TENSOR, [value]
    parts: list[Any]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        keys = [field.name for field in dataclasses.fields(value)]
        kind, parts = "object", [getattr(value, key) for key in keys]
        if isinstance(value, Mapping):  # a ModelOutput leaves out what is None
            keys, parts = list(value), list(value.values())
    elif isinstance(value, Mapping):
        kind, keys, parts = "dict", list(value), list(value.values())
    elif isinstance(value, (tuple, list)):
        kind, keys, parts = ("list" if isinstance(value, list) else "tuple"), [], list(value)
    else:
        return ("constant", value), []
    flat = [flatten(part, is_tensor) for part in parts]
    structure = (kind, tuple(keys), tuple(structure for structure, _ in flat))
    return structure, [leaf for _, leaves in flat for leaf in leaves]


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The value of this structure with these tensors."""
    if structure[0] == "tensor":
        return next(leaves)
    if structure[0] == "constant":
        return structure[1]
    kind, keys, structures = structure
    parts = [rebuild(part, leaves) for part in structures]
    if kind in ("dict", "object"):
        return (Result if kind == "object" else dict)(zip(keys, parts, strict=True))
    return parts if kind == "list" else tuple(parts)


def constants(structure: Structure) -> Iterator[Any]:
    """Everything in a structure that is no tensor."""
    if structure[0] == "constant":
        yield structure[1]
    elif structure[0] != "tensor":
        for part in structure[2]:
            yield from constants(part)
