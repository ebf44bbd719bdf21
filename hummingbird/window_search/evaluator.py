"""Evaluators, which score windows for a search: a plain function, or an object that also has a cheap coarse score.

An answer is either kept or not. With good windows few answers change, and on a few thousand images their number is
mostly noise. So a score has a second, finer part that changes before any answer does (cached.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import InputError
from hummingbird.window_search.journal import Journal


class Score(NamedTuple):
    """A score of windows, both parts from 0 to 1; higher is better.

    answers: the proportion of answers that are right, or equal to the exact net's. fine: a finer score, which changes
    before any answer does, and by which windows are ranked.
    """

    answers: float
    fine: float


@runtime_checkable
class Evaluator(Protocol):
    """Interface of an object that scores windows.

    A score depends on the windows alone: randomness comes from a seed.
    """

    def coarse(self, config: BitConfig) -> float:
        """Return a quick score, such as `Score.fine` on a few images, by which a search ranks windows.

        Only the best of these windows are then scored by `full`.
        """

    def full(self, config: BitConfig, floor: float) -> Score:
        """Return the score of windows on all images, by which a search decides between windows.

        A search need not know how far the proportion of right answers is below `floor`: any number below may be
        returned.
        """


class FunctionEvaluator:
    """An evaluator that calls a function `evaluate(config) -> accuracy`; it caches nothing."""

    def __init__(self, evaluate: Callable[[BitConfig], float]) -> None:
        self.evaluate = evaluate

    def coarse(self, config: BitConfig) -> float:
        return self.evaluate(config)

    def full(self, config: BitConfig, floor: float) -> Score:
        accuracy = self.evaluate(config)
        return Score(accuracy, accuracy)


def checked(value: Any, where: str) -> float:
    """Convert a score to float. Raises InputError, naming `where`, unless it is a number from 0 to 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value) or not 0 <= value <= 1:
        hint = "the fraction of right answers, from 0 to 1, not percent"
        raise InputError(f"evaluate gave an accuracy of {value!r}", where=where, hint=hint)
    return float(value)


# The search's questions to an evaluator ------------------------------------------------------------------------------


class Progress(NamedTuple):
    """The progress of a search: the number of configs tried; the best one's proportion of right answers and price."""

    evaluations: int
    accuracy: float | None
    price: float | None


class Questions:
    """Asks an evaluator for scores on behalf of the search; answers are checked, counted, and written to the journal.

    names: names of all layers, in order; layers without a window in a question are exact. `watch` is called after
    every answer.
    """

    def __init__(self, names: Sequence[str], evaluator: Evaluator, journal: Journal) -> None:
        self.names, self.evaluator, self.journal = names, evaluator, journal
        self.evaluations = 0
        self.watch: Callable[[], None] = lambda: None

    def config(self, windows: Mapping[str, BitWindow]) -> BitConfig:
        """Make a configuration that names a window for every layer; layers without one in `windows` are exact.

        If names were left out, a second call of a layer (relu#1) would take the window of the first (relu).
        """
        return BitConfig(EXACT, {**dict.fromkeys(self.names, EXACT), **windows})

    def coarse(self, windows: Mapping[str, BitWindow]) -> float:
        """Ask for the score that ranks windows; see `Evaluator.coarse`."""
        config = self.config(windows)
        return self._ask("coarse", config, 0.0, lambda: [self.evaluator.coarse(config)])[0]

    def full(self, windows: Mapping[str, BitWindow], floor: float = 0.0) -> Score:
        """Ask for the score that decides; see `Evaluator.full`."""
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
