"""The search's questions to the evaluator: checked, counted, written down, and told to whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hummingbird.bits import BitWindow
from hummingbird.search.evaluator import Evaluator, checked
from hummingbird.search.journal import Journal
from hummingbird.search.problem import Group


class Progress(NamedTuple):
    """Where a search stands: prefixes entered, windows tried, and accuracy and price of the best full assignment."""

    nodes: int
    evaluations: int
    accuracy: float | None
    price: float | None


class Questions:
    """Accuracies of windows for a group, behind those of the groups before it."""

    def __init__(self, groups: Sequence[Group], evaluator: Evaluator, journal: Journal) -> None:
        self.groups, self.evaluator, self.journal = groups, evaluator, journal
        self.evaluations = 0
        self.watch: Callable[[], None] = lambda: None

    def prefix(self, chosen: Sequence[BitWindow]) -> dict[str, BitWindow]:
        """Windows of the layers of the first groups, by name."""
        pairs = zip(self.groups, chosen, strict=False)  # fewer windows than groups
        return {layer.name: window for group, window in pairs for layer in group.layers}

    def ask(self, chosen: Sequence[BitWindow], windows: Sequence[BitWindow], floor: float) -> list[float]:
        """Accuracies of `windows` for the group after the chosen ones; any lower number for one below `floor`."""
        group = self.groups[len(chosen)]

        def evaluate() -> list[float]:
            found = self.evaluator.accuracy(self.prefix(chosen), group, windows, floor)
            return checked(found, len(windows), f"group {group.name}")

        accuracies = checked(self.journal.ask(chosen, windows, floor, evaluate), len(windows), "the search's state")
        self.evaluations += len(windows)
        self.watch()
        return accuracies
