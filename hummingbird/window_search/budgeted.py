"""HummingBird-b: the best windows within a budget, ranked by the losses of single groups, decided by full trials.

1. Uniform windows: for every k, one window [k:m) for all layers, as wide as the budget allows. The result must have at
   least as many right answers as the best of them.
2. Losses of single groups: each group's windows, with exact comparisons in all other groups. Errors of different
   groups, and of upper and lower bits, are nearly independent and small, and a score falls in proportion to their size:
   so the squares of losses add up.
3. The assignments with the least sums of squares within the budget (exactly the least), widened with the rest of the
   budget.
4. Full trials of the assignments with the smallest loss on the ranking images. Of those that are not worse than the
   best uniform window, in right answers and in the finer score, the one with the best finer score wins.

This is done level by level (problem.py). At first every k has its headroom. If no assignment tried is as good as the
best uniform window, the budget forces k down: groups may be one level lower. If no level has such an assignment, the
result is the best uniform window. So on the evaluator's images the result has at least as many right answers as any
uniform window.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, compress, pairwise
from typing import NamedTuple

from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError
from hummingbird.window_search.evaluator import Questions, Score
from hummingbird.window_search.objective import Objective
from hummingbird.window_search.problem import IDENTITY, Group, GroupWindows, named

# The assignments with the least sums of losses within a budget: a knapsack with one choice for every group.
#
# Branch and bound, depth first (Land and Doig, 1960), over tables that were measured before: no net runs here. Two
# prunings, neither of which can lose a solution:
#
#     budget    the price so far plus the cheapest choices of all remaining groups exceeds the budget; every completion
#               costs at least as much.
#     bound     `count` solutions are known, and the loss so far plus a lower bound for the remaining groups, with the
#               rest of the budget, is not below the worst of them. The bound is the least loss of a relaxed problem in
#               which a group may mix two of its choices; every completion is such a mixture.
#
# The relaxed problem (Sinha and Zoltners, "The multiple-choice knapsack problem", 1979): reduce each group's choices to
# the lower convex hull of (price, loss), and buy the steps of all hulls in the order of their gain per price.


class Item(NamedTuple):
    """The price and the loss, 0 or more, of one choice of windows for a group of layers."""

    price: Fraction
    loss: float


def least_sums(
    tables: Sequence[Sequence[Item]],
    budget: Fraction,
    count: int,
    accepts: Callable[[tuple[int, ...]], bool] = lambda places: True,
) -> list[tuple[int, ...]]:
    """Find the assignments with the least sums of losses whose prices are within the budget; return them, the least
    first.

    tables: for each group a table of choices, with price and loss. An assignment is a tuple with an index into every
    table. count: how many to find; there may be fewer. accepts: a function that returns whether an assignment is
    allowed. Of assignments with equal sums any may be returned.
    """
    cheapest = [min(item.price for item in table) for table in tables]
    rest = [*accumulate(reversed(cheapest), initial=Fraction(0))][::-1]
    bounds = [_Relaxed(tables[depth:]) for depth in range(len(tables) + 1)]
    found: list[tuple[float, tuple[int, ...]]] = []

    def hopeless(least: float) -> bool:
        # Sums of the same losses in different orders differ by less than 2^-40 of the sum.
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
                break  # and so are the later ones
            price, loss = tables[depth][place]
            visit((*places, place), left - price, lost + loss)

    visit((), budget, 0.0)
    return [places for _, places in found]


class _Relaxed:
    """Computes a lower bound on the sum of losses that some groups of layers must have within a budget.

    tables: the choices of windows of each group. `least(budget)` returns the least sum of losses if each group could
    mix two of its choices, which no real assignment can undercut. The budget must pay the cheapest choice of every
    group.
    """

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
    """Compute the lower convex hull of points (price, loss), from the cheapest choice to the one that loses least."""
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
    """Yield (slope, price, gain) for each pair of neighbours on a convex hull, steepest first.

    price: how much more the second point costs. gain: how much less it loses. slope: change of loss per price, below 0.
    """
    for one, other in pairwise(hull):
        yield _slope(one, other), float(other.price - one.price), one.loss - other.loss


# ---------------------------------------------------------------------------------------------------------------------

_HARDLY, _ALREADY = 1e-4, 0.25  # losses of lower ends are measured between these two
_ALIKE = 1e-3  # a difference of finer scores below this is no reason to force k down
_TOGETHER = 64  # assignments of a level that are ranked before some are tried in full
_TIES = 2.0**-40  # the price of the whole budget counts as this loss: of equal sums the cheaper one comes first


class Found(NamedTuple):
    """Windows that a search has found, by layer name, with their price and score."""

    windows: Mapping[str, BitWindow]
    price: Fraction
    score: Score


def holds(score: Score, other: Score) -> bool:
    """Return whether `score` is at least as good as `other`.

    It is, if its proportion of right answers is not lower, and its finer score lower by 0.001 at most (`_ALIKE`).
    """
    return score.answers >= other.answers and score.fine >= other.fine - _ALIKE


@dataclass
class Budgeted:
    """One search for the windows with the best score within a budget.

    First it measures how much score the windows of each group of layers lose alone; the layers of a `Group` drop the
    same low bits. For every assignment of windows to groups it adds up the squares of these losses. The assignments
    with the smallest sums then run on all images, and the best of them is the result. choices: for each group, the
    windows that are worth a trial. exact: the score without windows. accepts: a function of windows, by layer name,
    that returns whether the net can run them. The other fields are arguments of `search_bits`.
    """

    groups: Sequence[Group]
    choices: Sequence[Sequence[GroupWindows]]
    objective: Objective
    budget: Fraction
    questions: Questions
    accepts: Callable[[Mapping[str, BitWindow]], bool]
    exact: Score
    trials: int
    margin: float
    headroom: float
    reach: int
    widths: Sequence[int] | None
    thrifty: bool

    def __post_init__(self) -> None:
        self.best: Found | None = None
        self.uniform: Found | None = None
        self.held = Score(0.0, 0.0)  # the result must not be worse than this
        prices = [[self.objective.total(group.layers, c.windows) for c in found] for group, found in self._paired()]
        rest = sum(map(min, prices), Fraction(0))
        # Drop choices that leave too little for the cheapest choices of the other groups.
        kept = [[price + rest - min(found) <= self.budget for price in found] for found in prices]
        self.choices = [[*compress(*pair)] for pair in zip(self.choices, kept, strict=True)]
        self._prices = [[*compress(*pair)] for pair in zip(prices, kept, strict=True)]

    def search(self) -> Found:
        """Run the search; return the best windows found, with price and score.

        Raises ConfigError if no windows tried have enough right answers: the exact net's proportion, less `margin`.
        """
        self.uniform = self.best_uniform()
        least = self.exact.answers - self.margin
        floor = least if self.uniform is None else max(least, self.uniform.score.answers)
        rival = self.uniform if self.uniform is not None and self.uniform.score.answers >= least else None
        self.held = Score(floor, 0.0 if rival is None else rival.score.fine)
        self._most = self.questions.coarse({})
        losses = [self._losses(group, found) for group, found in self._paired()]
        for level in sorted({choice.level for found in self.choices for choice in found}):
            tried = [self._try(windows, floor) for windows in self._promising(losses, level)]
            if good := [found for found in tried if holds(found.score, self.held)]:
                self.best = max(good, key=lambda found: found.score.fine)
                break
        else:
            self.best = self.uniform or self.best
        if self.best is None or self.best.score.answers < least:
            raise ConfigError(
                f"found no assignment within {float(self.budget):g} {self.objective.unit} that keeps a score of "
                f"{least:.4f}: {self.exact.answers:.4f} for the exact net, less a margin of {self.margin:g}",
                where="budget",
                hint="allow a larger budget or margin, or smaller groups",
            )
        return self.best

    def _paired(self) -> Iterator[tuple[Group, Sequence[GroupWindows]]]:
        return zip(self.groups, self.choices, strict=True)

    def _try(self, windows: Mapping[str, BitWindow], floor: float) -> Found:
        score = self.questions.full(windows, floor)
        found = Found(windows, self._price(windows), score)
        if self.best is None or score > self.best.score:
            self.best = found
        return found

    def _price(self, windows: Mapping[str, BitWindow]) -> Fraction:
        layers = [layer for group in self.groups for layer in group.layers]
        return self.objective.total(layers, [windows[layer.name] for layer in layers])

    # 1. Uniform windows
    # ------------------

    def best_uniform(self) -> Found | None:
        """Find the best windows that are the same for all layers; return them, or None if the budget allows none.

        The best have the most right answers; among equals the best `Score.fine` counts.
        """
        windows = [*self._uniforms()]
        ranks = [self.questions.coarse(each) for each in windows]
        best: Found | None = None
        # High ranks first: their answers become the floor for the others.
        for number in sorted(range(len(windows)), key=lambda number: -ranks[number]):
            found = self._try(windows[number], 0.0 if best is None else best.score.answers)
            if best is None or found.score > best.score:
                best = found
        return best

    def _uniforms(self) -> Iterator[dict[str, BitWindow]]:
        """Yield uniform assignments: for every possible k, the widest window [k:m) that all layers can have.

        The budget and the net must allow the window. An assignment maps the layers' names to the window.
        """
        layers, least = [layer for group in self.groups for layer in group.layers], self.objective.least_width
        top = min(max(layer.upper(0, self.headroom) for layer in layers), *(layer.limit for layer in layers))
        low = min(layer.upper(1 + self.reach, self.headroom) for layer in layers)
        for k in range(top, max(low, least) - 1, -1):
            for m in range(k - least + 1):
                if self.widths is not None and k - m not in self.widths:
                    continue
                windows = {layer.name: BitWindow(k, m) for layer in layers}
                if self._price(windows) <= self.budget and self.accepts(windows):
                    yield windows
                    break

    # 2. Losses of single groups
    # --------------------------

    def _losses(self, group: Group, choices: Sequence[GroupWindows]) -> list[float]:
        """Return for each choice of windows [k:m) of a group the square of its loss: the score lost if only this group
        has windows.

        The square is the sum of two: of the loss by the lower end m, measured with all upper bits, and of the loss by
        the upper end k, measured with all lower bits. For windows without bits, or if the net cannot run with one end
        alone, the loss by the whole choice is measured.
        """
        ranked = [choice for choice in choices if choice.windows[0] != IDENTITY]
        lower = self._lower(group, sorted({choice.m for choice in ranked}))
        tops = sorted({choice.tops for choice in ranked if choice.level}, reverse=True)
        upper = {top: self._lost(group, self._windows(group, top, 0)) for top in tops}

        def loss(choice: GroupWindows) -> float:
            if choice.windows[0] != IDENTITY:
                ends = lower[choice.m] ** 2 + upper.get(choice.tops, 0.0) ** 2
                if ends < math.inf:
                    return ends
            return self._lost(group, choice.windows) ** 2

        return [loss(choice) for choice in choices]

    def _lower(self, group: Group, all_m: Sequence[int]) -> dict[int, float]:
        """Return for each m in `all_m` how much score a group loses by dropping the bits below m; k holds all values
        seen.

        Measuring begins at the middle m. A window that drops one bit less has at most half the loss, as it prunes
        values half as often, and half as large ones. So once a loss is small, smaller m are not measured: each gets
        half the loss of the next larger m. Once a loss is large, larger m get this loss without a measurement.
        """
        found, middle = {0: 0.0}, len(all_m) // 2
        _, top = group.tops(self.headroom, 0)[0]
        for m in reversed(all_m[:middle]):
            above = found.get(m + 1, 1.0)
            found.setdefault(m, above / 2 if above < _HARDLY else self._lost(group, self._windows(group, top, m)))
        for m in all_m[middle:]:
            below = found.get(m - 1, 0.0)
            enough = _ALREADY < below < math.inf
            found.setdefault(m, below if enough else self._lost(group, self._windows(group, top, m)))
        return found

    def _windows(self, group: Group, tops: Sequence[int], m: int) -> tuple[BitWindow, ...]:
        windows = group.windows(tops, m, self.objective.least_width)
        assert windows is not None  # a choice has these bits above m, and this k
        return windows

    def _lost(self, group: Group, windows: tuple[BitWindow, ...]) -> float:
        """Return how much score these windows of a group lose, if all other groups compare exactly.

        Returns infinity if the net cannot run them.
        """
        asked = group.named(windows)
        return max(0.0, self._most - self.questions.coarse(asked)) if self.accepts(asked) else math.inf

    # 3. Assignments
    # --------------

    def _promising(self, losses: Sequence[Sequence[float]], level: int) -> list[dict[str, BitWindow]]:
        """Return the assignments that are worth a run on all images, the windows of each by the layers' names.

        losses: for each group, the losses of its choices. level: only choices of this level or a lower one are used. No
        assignment occurs twice, and there are at most `trials`.
        """
        places = [
            [n for n, choice in enumerate(found) if choice.level <= level and lost[n] < math.inf]
            for found, lost in zip(self.choices, losses, strict=True)
        ]
        if not all(places):
            return []
        dearest = float(self.budget) or 1.0
        tables = [
            [Item(prices[n], lost[n] + _TIES * float(prices[n]) / dearest) for n in found]
            for found, prices, lost in zip(places, self._prices, losses, strict=True)
        ]

        def runs(chosen: Sequence[int]) -> bool:
            return self.accepts(named(self.groups, self._chosen(places, chosen)))

        found = [
            self._chosen(places, chosen)
            for chosen in least_sums(tables, self.budget, max(_TOGETHER, self.trials), runs)
        ]
        windows = [named(self.groups, chosen if self.thrifty else self._widened(chosen)) for chosen in found]
        once = [each for number, each in enumerate(windows) if each not in windows[:number]]
        if len(once) > self.trials:
            once.sort(key=lambda each: -self.questions.coarse(each))
        return once[: self.trials]

    def _chosen(self, places: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[GroupWindows]:
        return [found[own[n]] for found, own, n in zip(self.choices, places, chosen, strict=True)]

    def _widened(self, chosen: Sequence[GroupWindows]) -> list[GroupWindows]:
        """Return the chosen windows, widened as far as the rest of the budget allows.

        chosen: the choice of every group. Groups take turns, a bit at a time: each is widened upwards if that is
        possible, otherwise downwards.
        """
        found, turns = list(chosen), list(range(len(chosen)))
        while turns:
            for depth in tuple(turns):
                wider = self._wider(found, depth)
                if wider is None:
                    turns.remove(depth)
                else:
                    found[depth] = wider
        return found

    def _wider(self, chosen: Sequence[GroupWindows], depth: int) -> GroupWindows | None:
        """Return a wider choice of windows for group number `depth`: the next one that budget and net allow.

        Wider upwards comes first, then downwards. chosen: the present choice of every group. Returns None if there is
        no wider choice, or if the group's windows have no bits.
        """
        own = chosen[depth]
        over = [c for c in self.choices[depth] if c.m == own.m < 64 and c.tops != own.tops]
        above = [c for c in over if all(map(int.__ge__, c.tops, own.tops))]
        below = [c for c in self.choices[depth] if c.m < own.m < 64 and c.tops == own.tops]
        for wider in (*sorted(above, key=lambda c: sum(c.tops))[:1], *sorted(below, key=lambda c: -c.m)[:1]):
            windows = named(self.groups, [*chosen[:depth], wider, *chosen[depth + 1 :]])
            if self._price(windows) <= self.budget and self.accepts(windows):
                return wider
        return None
