"""Nested arguments and results as plain data: a structure of tuples, lists and dicts, and its tensors in order.

A structure is ("tensor",), ("public",) for a public tensor, ("constant", value), ("numbers", type, shape, values) for a
constant tensor, or (kind, keys, parts) for a container, whose kind is "tuple", "list", "dict" or "object" (a dataclass,
or a library's ModelOutput; `rebuild` returns a `NamedResults` for it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Structure = tuple[Any, ...]
TENSOR: Structure = ("tensor",)
PUBLIC: Structure = ("public",)
# The result of a net: a tensor, or, where a net returns several, what the user's annotation says.
Result = TypeVar("Result", default="Tensor")
DEEPEST = 16  # nesting of a structure from another process


class NamedResults(dict[str, Any]):
    """The results of a net that returns a dataclass: a dict whose entries are attributes, too.

    `result.logits` is `result["logits"]`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name!r}, only {', '.join(self)}") from None


def flatten(
    value: Any, is_tensor: Callable[[Any], bool], is_public: Callable[[Any], bool] = lambda value: False
) -> tuple[Structure, list[Any]]:
    """Split a net's arguments or results into their structure and a list of their tensors; return both.

    The structure has the tuples, lists, dicts and objects with their keys, the constants, and a mark in place of each
    tensor; the tensors are listed in the order of the marks. is_tensor: returns whether a part is a private tensor.
    is_public: returns whether it is a public tensor, which has another mark. All other parts are constants.
    """
    if is_tensor(value):
        return TENSOR, [value]
    if is_public(value):
        return PUBLIC, [value]
    parts: list[Any]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        keys = [field.name for field in dataclasses.fields(value)]
        kind, parts = "object", [getattr(value, key) for key in keys]
        if isinstance(value, Mapping):  # a ModelOutput leaves out fields that are None
            keys, parts = list(value), list(value.values())
    elif isinstance(value, Mapping):
        kind, keys, parts = "dict", list(value), list(value.values())
    elif isinstance(value, (tuple, list)):
        kind, keys, parts = ("list" if isinstance(value, list) else "tuple"), [], list(value)
    else:
        return ("constant", value), []
    flat = [flatten(part, is_tensor, is_public) for part in parts]
    structure = (kind, tuple(keys), tuple(structure for structure, _ in flat))
    return structure, [leaf for _, leaves in flat for leaf in leaves]


def spelled(structure: Structure, fits: Callable[[Any], bool]) -> Structure:
    """Return a structure in which constant tensors are written out as type, shape and numbers, for comparisons.

    structure: of a net's arguments or results, as `flatten` returns it. fits: returns whether a constant is a tensor
    that is short enough to be written out; others stay as they are.
    """
    if structure[0] == "constant" and fits(structure[1]):
        x = structure[1]
        return ("numbers", str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.reshape(-1).tolist()))
    if len(structure) == 3:
        return (*structure[:2], tuple(spelled(part, fits) for part in structure[2]))
    return structure


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Return the arguments or results of a net from their structure and their tensors; the inverse of `flatten`.

    leaves: yields the tensors, in the order of their marks in the structure.
    """
    if structure in (TENSOR, PUBLIC):
        return next(leaves)
    if structure[0] == "constant":
        return structure[1]
    kind, keys, structures = structure
    parts = [rebuild(part, leaves) for part in structures]
    if kind in ("dict", "object"):
        return (NamedResults if kind == "object" else dict)(zip(keys, parts, strict=True))
    return parts if kind == "list" else tuple(parts)


def places(structure: Structure, within: str = "") -> Iterator[str]:
    """Yield a name for each tensor in a structure: the keys and indices that lead to it, as in "states.0".

    structure: of a net's arguments or results, as `flatten` returns it. within: what each of these names begins with;
    "" for nothing.
    """
    if structure in (TENSOR, PUBLIC):
        yield within
    elif len(structure) == 3:
        _, keys, parts = structure
        for key, part in zip(keys or range(len(parts)), parts, strict=True):
            yield from places(part, f"{within}.{key}" if within else str(key))


def constants(structure: Structure) -> Iterator[Any]:
    """Yield every constant in a structure: each part of a net's arguments or results without a tensor's mark.

    structure: as `flatten` returns it, with a mark in place of each tensor.
    """
    if structure[0] == "constant":
        yield structure[1]
    elif len(structure) == 3:
        for part in structure[2]:
            yield from constants(part)


def keys(structure: Structure) -> Iterator[Any]:
    """Yield every key of the dicts and objects in the structure of a net's arguments or results.

    structure: as `flatten` returns it, with a mark in place of each tensor.
    """
    if len(structure) == 3:
        yield from structure[1]
        for part in structure[2]:
            yield from keys(part)


def tensors(structure: Structure) -> int:
    """Return how many private tensors a structure has, by their marks.

    structure: of a net's arguments or results, as `flatten` returns it.
    """
    return 1 if structure == TENSOR else sum(map(tensors, structure[2])) if len(structure) == 3 else 0


def is_plain(value: Any) -> bool:
    """Return whether `value` is something that JSON can hold as it is: a string, a number, True, False or None."""
    return value is None or isinstance(value, (bool, int, float, str))


def odd(structure: Structure) -> Any:
    """Return the first constant or key that JSON cannot hold in a structure (`is_plain`); None if there is none.

    structure: of a net's arguments or results, as `flatten` returns it.
    """
    return next((value for value in (*constants(structure), *keys(structure)) if not is_plain(value)), None)


def read(value: Any, depth: int = 0) -> Structure:
    """Make the structure of a net's results (see `flatten`) from a JSON value that another process has sent.

    depth: how deep in the whole message `value` is nested. Raises ValueError or TypeError for a value that is no such
    structure.
    """
    kind, *rest = value
    if depth > DEEPEST:
        raise ValueError("results nested too deeply")
    if [kind, *rest] == [*TENSOR]:
        return TENSOR
    if kind == "constant" and len(rest) == 1 and is_plain(rest[0]):
        return kind, rest[0]
    names, parts = rest
    named = kind in ("dict", "object") and len(names) == len(parts) and all(map(is_plain, names))
    if not named and not (kind in ("tuple", "list") and len(names) == 0):
        raise ValueError("no structure of results")
    return kind, tuple(names), tuple(read(part, depth + 1) for part in parts)


def leaf(value: Any) -> Any:
    """Return the first tensor in a net's result, which is a tensor or a tuple, list or dict of tensors."""
    while isinstance(value, (tuple, list, dict)):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return value
