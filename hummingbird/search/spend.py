"""What a search leaves of its budget buys wider windows, as long as the accuracy does not fall below the score.

The tree takes the cheapest window that loses nothing on the images it is shown, so a small validation set that is
nearly all right leaves much of a budget. The bits that it does not ask for help others: first upper bits, as a value
beyond the window is a large error, then lower ones. Groups take turns, a bit at a time, first group first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from hummingbird.bits import BitWindow
from hummingbird.search.objective import Objective
from hummingbird.search.problem import Group
from hummingbird.search.tree import Full, Measure


def spend(
    found: Full,
    groups: Sequence[Group],
    objective: Objective,
    budget: Fraction,
    measure: Measure,
    accepts: Callable[[Sequence[BitWindow]], bool],
) -> Full:
    """`found` with windows that contain its own, within the budget, and an accuracy not below its score.

    A direction in which a group is too dear, cannot be run or loses is not tried again.
    """
    closed: set[tuple[int, str]] = set()

    def widened(full: Full, depth: int) -> Full | None:
        before = full.windows[depth]
        for direction, window in _wider(before, groups[depth].top):
            if (depth, direction) in closed:
                continue
            windows = (*full.windows[:depth], window, *full.windows[depth + 1 :])
            layers = groups[depth].layers
            price = full.price - objective.total(layers, before) + objective.total(layers, window)
            if price <= budget and accepts(windows):
                accuracy = measure(windows[:-1], windows[-1:], full.score)[0]
                if accuracy >= full.score:
                    return Full(windows, price, accuracy, full.score)
            closed.add((depth, direction))
        return None

    turns = list(range(len(groups)))
    while turns:
        for depth in tuple(turns):
            wider = widened(found, depth)
            if wider is None:
                turns.remove(depth)
            else:
                found = wider
    return found


def _wider(window: BitWindow, top: int) -> Iterator[tuple[str, BitWindow]]:
    """One bit more above, then one more below; an identity stays one."""
    if 0 < window.k < top:
        yield "up", BitWindow(window.k + 1, window.m)
    if window.m > 0:
        yield "down", BitWindow(window.k, window.m - 1)
