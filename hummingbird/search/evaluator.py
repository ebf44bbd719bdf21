"""What answers the search: the accuracy of a net whose first groups have windows and whose others are exact.

An evaluator that keeps the activations before the current group pays the rest of the net only, and can run all
windows of one question in one pass. It may stop a window that cannot reach `floor` any more: with a floor of 0.92 on
1,000 images, 81 wrong ones are enough, so that bad windows cost little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import InputError
from hummingbird.search.problem import Group


@runtime_checkable
class Evaluator(Protocol):
    """Accuracies, from 0 to 1, that depend on the arguments alone: randomness comes from a seed and the windows.

    prefix: the windows of the layers of all earlier groups, by name. group: the next one. windows: for each of them,
    the accuracy with it in all layers of the group and exact comparisons after. Accuracies from `floor` upwards are
    told exactly; for one below it, any number from 0 to below the floor will do.
    """

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        """One accuracy for each window."""


class FunctionEvaluator:
    """An evaluator of `evaluate(config) -> accuracy`, one call per window; it caches nothing."""

    def __init__(self, evaluate: Callable[[BitConfig], float], groups: Sequence[Group]) -> None:
        self.evaluate = evaluate
        # All layers are named: relu#1 without an entry would take the window of relu.
        self.names = [layer.name for group in groups for layer in group.layers]

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        own = [{layer.name: window for layer in group.layers} for window in windows]
        return [self.evaluate(config_with(self.names, {**prefix, **layers})) for layers in own]


def config_with(names: Sequence[str], windows: Mapping[str, BitWindow]) -> BitConfig:
    """These windows, and exact comparisons in all other layers."""
    return BitConfig(EXACT, {**dict.fromkeys(names, EXACT), **windows})


def checked(accuracies: Sequence[float], count: int, where: str) -> list[float]:
    """The accuracies as floats; InputError unless there are `count` numbers from 0 to 1."""
    if not isinstance(accuracies, Sequence) or len(accuracies) != count:
        got = len(accuracies) if isinstance(accuracies, Sequence) else type(accuracies).__name__
        raise InputError(f"expected {count} accuracies, got {got}", where=where, hint="one for each window")
    for value in accuracies:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value) or not 0 <= value <= 1:
            hint = "the fraction of right answers, from 0 to 1, not percent"
            raise InputError(f"evaluate gave an accuracy of {value!r}", where=where, hint=hint)
    return [float(value) for value in accuracies]
