"""Large matrices of cases: a selection that covers them in the quick tier, all of them in the slow one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def covering(
    names: str, *axes: Iterable[Any], ids: Any = None, quick: Collection[Any] | None = None
) -> pytest.MarkDecorator:
    """Parametrize over the product of the axes; what the selection leaves out is slow. names, ids: as for pytest.

    The selection has every value of the longest axis, and every combination of the others' values, each at least once.
    quick: the values of the longest axis that the selection has in place of all.
    An axis has one name, or several if all its values are tuples.

        @covering("name, parties, protocol", CASES, [2, 3], ["masked", "gmw"])
        @covering("name, parties, protocol", CASES, [(2, "masked"), (3, "gmw")])
    """
    values = [list(axis) for axis in axes]
    places = [range(len(axis)) for axis in values]
    longest = max(range(len(values)), key=lambda axis: len(values[axis]))
    others = list(itertools.product(*(axis for number, axis in enumerate(places) if number != longest)))
    own = [place for place, value in enumerate(values[longest]) if quick is None or value in quick]
    selected = set()
    for step in range(max(len(own), len(others))):
        other, place = others[step % len(others)], own[step % len(own)]
        selected.add((*other[:longest], place, *other[longest:]))
    several = len(names.split(",")) > len(values)
    cases = []
    for case in itertools.product(*places):
        chosen = [axis[place] for axis, place in zip(values, case, strict=True)]
        flat = [part for value in chosen for part in (value if several and isinstance(value, tuple) else (value,))]
        cases.append(pytest.param(*flat, marks=[] if case in selected else pytest.mark.slow))
    return pytest.mark.parametrize(names, cases, ids=ids)


def every(step: int, values: Sequence[Any]) -> list[Any]:
    """Parameters, of which the first of every few is in the quick tier, and the others are slow. A tuple is several."""
    slow = pytest.mark.slow
    several = [value if type(value) is tuple else (value,) for value in values]
    return [pytest.param(*value, marks=slow if place % step else []) for place, value in enumerate(several)]
