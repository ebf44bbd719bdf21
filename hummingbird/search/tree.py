"""The depth-first search over groups (HummingBird, section 4.3), first group first.

A node fixes the windows of the first groups; its accuracy is that of the net with exact comparisons after them. Among
the windows of one price, which for the paper's objective is one number of bits, the most accurate is the child. The
score of an assignment is the lowest accuracy on the way to it, the exact net's included: the most that a prefix
leaves to whatever follows. So luck later on does not count, and three prunings lose nothing:

    threshold    accuracy below the exact net's less the margin
    best         score not above that of the best full assignment so far
    budget       cost so far, and the least that the other groups can cost, above the budget

    dominated    accuracy not above that of a cheaper child of the same node, or of the node itself

The fourth loses nothing when the losses of groups add up, and is what makes the search short: nothing wider is run
once a child has lost nothing. Children that come nearest to an equal share of the remaining budget are visited first;
of equal scores the first one found counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from hummingbird.bits import BitWindow

PRUNINGS = frozenset({"threshold", "best", "budget", "dominated"})

# (windows of the earlier groups, windows to try, floor) -> accuracies; below the floor any lower number will do.
Measure = Callable[[Sequence[BitWindow], Sequence[BitWindow], float], list[float]]


class Child(NamedTuple):
    """A window for the next group, what it costs there, and the accuracy with exact comparisons after it."""

    window: BitWindow
    price: Fraction
    accuracy: float


class Full(NamedTuple):
    """A window for every group."""

    windows: tuple[BitWindow, ...]
    price: Fraction
    accuracy: float
    score: float


@dataclass
class Tree:
    """choices: for every group, the windows to try with their prices. exact: the accuracy without windows.

    accepts: whether the net can run these windows in the first groups, with exact comparisons after.
    """

    choices: Sequence[Sequence[tuple[Fraction, BitWindow]]]
    budget: Fraction
    exact: float
    threshold: float
    measure: Measure
    accepts: Callable[[Sequence[BitWindow]], bool]
    prunings: frozenset[str] = PRUNINGS

    def __post_init__(self) -> None:
        self.best: Full | None = None
        self.nodes = 0
        self._classes = [_by_price(choices) for choices in self.choices]
        cheapest = [classes[0][0] for classes in self._classes]
        dearest = [classes[-1][0] for classes in self._classes]
        self.least = [sum(cheapest[depth:], Fraction(0)) for depth in range(len(cheapest) + 1)]
        self._whole = [sum(dearest[depth:], Fraction(0)) for depth in range(len(dearest) + 1)]

    def search(self) -> Full | None:
        """The best full assignment within the budget and above the threshold, None if there is none."""
        self._visit((), Fraction(0), self.exact, self.exact)
        return self.best

    def _visit(self, chosen: tuple[BitWindow, ...], spent: Fraction, accuracy: float, score: float) -> None:
        self.nodes += 1
        if len(chosen) == len(self.choices):
            if spent <= self.budget and score >= self.threshold and (self.best is None or score > self.best.score):
                self.best = Full(chosen, spent, accuracy, score)
            return
        share = (self.budget - spent) * self._equal_share(len(chosen))
        children = self._children(chosen, spent, score)
        for child in sorted(children, key=lambda child: (abs(child.price - share), child.price)):
            reached = min(score, child.accuracy)
            if not self._hopeless(reached):
                self._visit((*chosen, child.window), spent + child.price, child.accuracy, reached)

    def _equal_share(self, depth: int) -> Fraction:
        """The part of what is left that the group at `depth` has if all keep the same part of their dearest window."""
        whole = self._whole[depth]
        return (whole - self._whole[depth + 1]) / whole if whole else Fraction(0)

    def _hopeless(self, score: float) -> bool:
        if "threshold" in self.prunings and score < self.threshold:
            return True
        return "best" in self.prunings and self.best is not None and score <= self.best.score

    def _children(self, chosen: tuple[BitWindow, ...], spent: Fraction, score: float) -> Iterator[Child]:
        """The best window of every price, cheap ones first, without those that the prunings rule out."""
        floor, near = self._floor(), 0
        for price, windows in self._classes[len(chosen)]:
            if "budget" in self.prunings and spent + price + self.least[len(chosen) + 1] > self.budget:
                return
            runnable = [window for window in windows if self.accepts((*chosen, window))]
            found = self._best(chosen, runnable, floor, near)
            if found is None:
                continue
            accuracy, window = found
            near = window.k
            yield Child(window, price, accuracy)
            if "dominated" in self.prunings:
                floor = max(floor, _above(accuracy))
                if accuracy >= score:
                    return

    def _best(
        self, chosen: Sequence[BitWindow], windows: Sequence[BitWindow], floor: float, near: int
    ) -> tuple[float, BitWindow] | None:
        """The most accurate window, of equals that with the highest k and then the lowest m; None below the floor.

        Windows whose k is near to a good one come first: they raise the floor for the others.
        """
        best: tuple[float, int, int] | None = None
        for window in sorted(windows, key=lambda window: (abs(window.k - near), -window.k, window.m)):
            rank = (window.k, -window.m)
            if best is not None:
                floor = best[0] if rank > best[1:] else _above(best[0])
            accuracy = self.measure(chosen, [window], floor)[0]
            if accuracy >= floor:
                best = (accuracy, *rank)
        return None if best is None else (best[0], BitWindow(best[1], -best[2]))

    def _floor(self) -> float:
        """Accuracies below this need not be known: their nodes are hopeless."""
        threshold = self.threshold if "threshold" in self.prunings else 0.0
        best = _above(self.best.score) if self.best is not None and "best" in self.prunings else 0.0
        return max(0.0, threshold, best)


def _above(accuracy: float) -> float:
    """The least number above it: a tie is pruned, and need not be told from what is worse."""
    return math.nextafter(accuracy, math.inf)


def _by_price(choices: Sequence[tuple[Fraction, BitWindow]]) -> list[tuple[Fraction, list[BitWindow]]]:
    """Windows of the same price together, cheap ones first."""
    found: dict[Fraction, list[BitWindow]] = {}
    for price, window in choices:
        found.setdefault(price, []).append(window)
    return sorted(found.items())
