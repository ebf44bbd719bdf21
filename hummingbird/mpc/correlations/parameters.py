"""Limits of a request's parameters. They are checked before any use, since a request may come from another process.

@dataclass(frozen=True)
class Truncation(Request[...]):
    count: int = number()
    shift: int = number(most=62)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

LIMIT = 1 << 28  # elements of one request: 2 GiB of masks
DIMENSIONS = 8
_OPTIONS = ("stride", "padding", "output_padding", "dilation", "groups")  # of torch's convolutions


def number(*, least: int = 0, most: int = LIMIT, **default: int) -> Any:
    """Make a dataclass field for an integer parameter from `least` to `most`. default: its default, if it has one."""
    expected = f"a whole number in {least}..{most}"
    return _parameter(lambda value: _natural(value) and least <= value <= most, expected, **default)


def width() -> Any:
    """Make a keyword-only dataclass field for how many low bits of a ring element count: 1 to 64, by default 64."""
    return _parameter(
        lambda value: _natural(value) and 1 <= value <= 64, "a whole number in 1..64", default=64, kw_only=True
    )


def shape() -> Any:
    """Make a dataclass field for a tensor's shape: a tuple of at most `DIMENSIONS` sizes, each from 0 to `LIMIT`."""
    return _parameter(
        lambda value: isinstance(value, tuple) and _sizes(value), f"at most {DIMENSIONS} sizes in 0..{LIMIT}"
    )


def one_of(names: Sequence[str]) -> Any:
    """Make a dataclass field for a parameter that is one of these names."""
    return _parameter(lambda value: isinstance(value, str) and value in names, f"one of {', '.join(names)}")


def options() -> Any:
    """Make a dataclass field for keyword arguments of torch's convolutions.

    They are as JSON has them: integers or lists of integers.
    """

    def good(value: Any) -> bool:
        return isinstance(value, dict) and all(key in _OPTIONS and _option(item) for key, item in value.items())

    return _parameter(good, f"options of {', '.join(_OPTIONS)}")


def faults(request: Any) -> str:
    """Return a message about the first parameter that breaks its limit, or "" if all are good.

    request: a dataclass whose fields were made by the functions of this module.
    """
    for item in dataclasses.fields(request):
        value = getattr(request, item.name)
        if not item.metadata["good"](value):
            return f"{item.name} {str(value)[:_SHOWN]} is not {item.metadata['expected']}"
    return ""


_SHOWN = 200  # characters of a bad value that an error shows: another process may have sent it


def _parameter(good: Callable[[Any], bool], expected: str, **how: Any) -> Any:
    return dataclasses.field(metadata={"good": good, "expected": expected}, **how)


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LIMIT


def _sizes(values: Sequence[Any]) -> bool:
    return len(values) <= DIMENSIONS and all(_natural(value) for value in values)


def _option(value: Any) -> bool:
    return _sizes(value) if isinstance(value, list) else _natural(value)
