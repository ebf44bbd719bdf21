"""Evaluators tell a search how good windows are: a plain function, or an object that also has a cheap first look.

Answers are either kept or not; their number is small where windows are good, and mostly luck on a few thousand images.
So a score has a second part that moves before any answer does (cached.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hummingbird.bits import BitConfig
from hummingbird.errors import InputError


class Score(NamedTuple):
    """answers: the share that is right, or kept. fine: what windows are ranked by. Both from 0 to 1, high is good."""

    answers: float
    fine: float


@runtime_checkable
class Evaluator(Protocol):
    """Scores that depend on the config alone: randomness comes from a seed and the windows."""

    def coarse(self, config: BitConfig) -> float:
        """A `fine` score by which windows are ranked before any of them is tried in full."""

    def full(self, config: BitConfig, floor: float) -> Score:
        """The score that decides. If its answers are below the floor, any number below it will do for them."""


class FunctionEvaluator:
    """An evaluator of `evaluate(config) -> accuracy`; it caches nothing."""

    def __init__(self, evaluate: Callable[[BitConfig], float]) -> None:
        self.evaluate = evaluate

    def coarse(self, config: BitConfig) -> float:
        return self.evaluate(config)

    def full(self, config: BitConfig, floor: float) -> Score:
        accuracy = self.evaluate(config)
        return Score(accuracy, accuracy)


def checked(value: Any, where: str) -> float:
    """The number; InputError unless it is one from 0 to 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value) or not 0 <= value <= 1:
        hint = "the fraction of right answers, from 0 to 1, not percent"
        raise InputError(f"evaluate gave an accuracy of {value!r}", where=where, hint=hint)
    return float(value)
