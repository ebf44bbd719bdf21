"""The assignments with the least sums of losses within a budget: a knapsack with one choice for every group.

Branch and bound, depth first (Land and Doig, 1960), over tables that are measured before: no net runs here. Two
prunings, and neither can lose a solution:

    budget    what is spent and the cheapest choices of all groups to come exceed the budget. Every completion costs at
              least that.
    bound     what is lost and the least that the groups to come can lose with what is left of the budget are not below
              the worst of the solutions found, when there are as many as wanted. That least is of a relaxation: a group
              may mix two of its choices. Every completion is a mixture, so none loses less.

The relaxed least (Sinha and Zoltners, "The multiple-choice knapsack problem", 1979): each group's choices are cut down
to the lower convex hull of (price, loss), and the steps of all hulls are bought in the order of what they gain for
their price.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple


class Item(NamedTuple):
    """A choice of a group: its price and its loss, 0 or more."""

    price: Fraction
    loss: float


def least_sums(
    tables: Sequence[Sequence[Item]],
    budget: Fraction,
    count: int,
    accepts: Callable[[tuple[int, ...]], bool] = lambda places: True,
) -> list[tuple[int, ...]]:
    """The `count` assignments, a place in every table, of the least sums of losses with prices within the budget, the
    least first; of equal sums any. All there are, if there are fewer. accepts: what may be among them.
    """
    cheapest = [min(item.price for item in table) for table in tables]
    rest = [*accumulate(reversed(cheapest), initial=Fraction(0))][::-1]
    bounds = [_Relaxed(tables[depth:]) for depth in range(len(tables) + 1)]
    found: list[tuple[float, tuple[int, ...]]] = []

    def hopeless(least: float) -> bool:
        # Sums of the same losses in another order differ by less than 2^-40 of them.
        return len(found) == count and least >= found[-1][0] * (1 - 2**-40)

    def visit(places: tuple[int, ...], left: Fraction, lost: float) -> None:
        depth = len(places)
        if depth == len(tables):
            if not hopeless(lost) and accepts(places):
                insort(found, (lost, places))
                del found[count:]
            return
        children = [
            (lost + loss + bounds[depth + 1].least(left - price), place)
            for place, (price, loss) in enumerate(tables[depth])
            if price + rest[depth + 1] <= left
        ]
        for least, place in sorted(children):
            if hopeless(least):
                break  # and so are those behind it
            price, loss = tables[depth][place]
            visit((*places, place), left - price, lost + loss)

    visit((), budget, 0.0)
    return [places for _, places in found]


class _Relaxed:
    """The least sum of losses of groups whose choices may be mixed, for any budget that pays for the cheapest ones."""

    def __init__(self, tables: Sequence[Sequence[Item]]) -> None:
        hulls = [_hull(table) for table in tables]
        steps = list(heapq.merge(*(_steps(hull) for hull in hulls), key=lambda step: step[0]))
        starts = sum(float(hull[0].price) for hull in hulls)
        self._paid = [*accumulate((price for _, price, _ in steps), initial=starts)]
        self._lost = [*accumulate((-gain for _, _, gain in steps), initial=sum(hull[0].loss for hull in hulls))]

    def least(self, budget: Fraction) -> float:
        money = float(budget) * (1 + 2**-40)  # sums of prices round by less: a bound may be too low, never too high
        place = bisect_right(self._paid, money) - 1
        if place == len(self._paid) - 1:
            return max(0.0, self._lost[-1])
        part = (money - self._paid[place]) / (self._paid[place + 1] - self._paid[place])
        return max(0.0, self._lost[place] + part * (self._lost[place + 1] - self._lost[place]))


def _hull(table: Sequence[Item]) -> list[Item]:
    """The lower convex hull of (price, loss), from the cheapest choice to the one that loses least."""
    hull: list[Item] = []
    for item in sorted(table):
        if hull and item.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _slope(hull[-2], item) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(item)
    return hull


def _slope(one: Item, other: Item) -> float:
    return (other.loss - one.loss) / float(other.price - one.price)


def _steps(hull: Sequence[Item]) -> Iterator[tuple[float, float, float]]:
    """(slope, price, gain) of each step, steepest first."""
    for one, other in pairwise(hull):
        yield _slope(one, other), float(other.price - one.price), one.loss - other.loss
