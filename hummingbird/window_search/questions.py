"""The search's questions to the evaluator: checked, counted, written down, and told to whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.window_search.evaluator import Evaluator, Score, checked
from hummingbird.window_search.journal import Journal


class Progress(NamedTuple):
    """Where a search stands: configs tried, and the share of right answers and the price of the best one so far."""

    evaluations: int
    accuracy: float | None
    price: float | None


class Questions:
    """Scores of windows, all other layers exact. names: of all layers, in order."""

    def __init__(self, names: Sequence[str], evaluator: Evaluator, journal: Journal) -> None:
        self.names, self.evaluator, self.journal = names, evaluator, journal
        self.evaluations = 0
        self.watch: Callable[[], None] = lambda: None

    def config(self, windows: Mapping[str, BitWindow]) -> BitConfig:
        """A configuration that names every layer: relu#1 without an entry would take the window of relu."""
        return BitConfig(EXACT, {**dict.fromkeys(self.names, EXACT), **windows})

    def coarse(self, windows: Mapping[str, BitWindow]) -> float:
        """The score that ranks."""
        config = self.config(windows)
        return self._ask("coarse", config, 0.0, lambda: [self.evaluator.coarse(config)])[0]

    def full(self, windows: Mapping[str, BitWindow], floor: float = 0.0) -> Score:
        """The score that decides; any lower number for answers below `floor`."""
        config = self.config(windows)
        return Score(*self._ask("full", config, floor, lambda: list(self.evaluator.full(config, floor))))

    def _ask(self, what: str, config: BitConfig, floor: float, evaluate: Callable[[], list[float]]) -> list[float]:
        asked = [config.layers[name] for name in self.names]
        windows = [[w.k, w.m] + ([w.q] if w.q else []) for w in asked]
        question = {"asked": what, "windows": windows, "floor": floor}

        def answer() -> list[float]:
            return [checked(value, what) for value in evaluate()]

        found = [checked(value, "the search's state") for value in self.journal.ask(question, answer)]
        self.evaluations += 1
        self.watch()
        return found
