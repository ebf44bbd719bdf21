"""The third knob q: how many bits of fraction the results of each group's layers do without, for fewer bytes in all.

k and m stay as the search has found them. A group goes through steps, q = 0 and every q that takes fewer bits in all
than any lower one: with "masked" all that leave its windows the least width, with "gmw", whose cut of q costs an
opening, few or none.

1. The largest q for all groups that keeps the accuracy: each group is at its last step up to it.
2. From there groups go up, a step at a time: first the one that saves most bits for what it loses of the score that
   ranks. One whose step does not keep the accuracy stays where it is.

"Keeps the accuracy" is what windows without q are held to, on all images and with several seeds (`budgeted.holds`):
not behind the best uniform window, in right answers within the margin and in the finer score; eco's windows not behind
the exact net, a uniform window not behind itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.window_search.budgeted import Found, holds
from hummingbird.window_search.evaluator import Questions, Score
from hummingbird.window_search.objective import Objective
from hummingbird.window_search.problem import Group

_MOST = 16  # bits of fraction, all that q can round away
_NOTHING = 1e-6  # losses below it are chance: of them, those that save most come first
Windows = Mapping[str, BitWindow]


@dataclass
class Rounding:
    """One search for q, from `found`, windows without it; afterwards `found` is the best so far.

    in_all: bits of all parties and the dealer with these windows. accepts: whether the net runs windows. held: the
    score that windows with q must not be behind.
    """

    groups: Sequence[Group]
    found: Found
    objective: Objective
    questions: Questions
    in_all: Callable[[Windows], int]
    accepts: Callable[[Windows], bool]
    held: Score

    def search(self) -> Found:
        """The result; windows without q if none saves bits and keeps the accuracy."""
        self._plain, self._bits = self.found.windows, self.in_all(self.found.windows)
        self._steps = [self._worth_it(group) for group in self.groups]
        places = self._common()
        gains = {number: self._gain(places, number) for number in self._open(places)}
        while gains:
            number = max(gains, key=lambda each: gains[each])
            del gains[number]
            if self._try(higher := _raised(places, number)):
                places = higher
                if number in self._open(places):
                    gains[number] = self._gain(places, number)
        return self.found

    def _worth_it(self, group: Group) -> list[int]:
        """Values of q, 0 first, each of fewer bits in all than those before, and of no higher price."""
        plain = [self._plain[layer.name] for layer in group.layers]
        widths = [window.k - self.objective.least_width for window in plain if window.w]
        steps, bits, price = [0], self._bits, self.objective.total(group.layers, plain)
        for q in range(1, min([_MOST, *widths]) + 1 if widths else 0):
            rounded = group.named(_with(window, q) for window in plain)
            windows = {**self._plain, **rounded}
            if not self.accepts(windows) or self.objective.total(group.layers, rounded.values()) > price:
                continue
            if (now := self.in_all(windows)) < bits:
                steps, bits = [*steps, q], now
        return steps

    def _common(self) -> list[int]:
        """Each group's place among its steps for the largest common q that keeps the accuracy."""
        tried = []
        for q in range(max(steps[-1] for steps in self._steps), 0, -1):
            places = [sum(step <= q for step in steps) - 1 for steps in self._steps]
            if places not in tried:
                tried.append(places)
                if self._try(places):
                    return places
        return [0] * len(self._steps)

    def _open(self, places: Sequence[int]) -> list[int]:
        """Numbers of the groups that have a step more."""
        return [number for number, place in enumerate(places) if place + 1 < len(self._steps[number])]

    def _gain(self, places: Sequence[int], number: int) -> float:
        """Bits that a group's next step saves, for what it loses of the score that ranks."""
        here, next_ = self._windows(places), self._windows(_raised(places, number))
        lost = self.questions.coarse(here) - self.questions.coarse(next_)
        return (self.in_all(here) - self.in_all(next_)) / max(lost, _NOTHING)

    def _windows(self, places: Sequence[int]) -> dict[str, BitWindow]:
        pairs = zip(self.groups, self._steps, places, strict=True)
        return {
            layer.name: _with(self._plain[layer.name], steps[place])
            for group, steps, place in pairs
            for layer in group.layers
        }

    def _try(self, places: Sequence[int]) -> bool:
        """Take these steps if the net runs them, they save bits and keep the accuracy."""
        windows = self._windows(places)
        if not self.accepts(windows) or (bits := self.in_all(windows)) >= self._bits:
            return False
        score = self.questions.full(windows, self.held.answers)
        if not holds(score, self.held):
            return False
        layers = [layer for group in self.groups for layer in group.layers]
        price = self.objective.total(layers, [windows[layer.name] for layer in layers])
        self.found, self._bits = Found(windows, price, score), bits
        return True


def without_q(config: BitConfig) -> BitConfig:
    """The same windows, whose results keep all bits of fraction."""
    layers = {name: replace(w, q=0) for name, w in config.layers.items()}
    return BitConfig(replace(config.default, q=0), layers, rows=config.rows)


def check_knobs(knobs: object) -> None:
    """ConfigError unless it is one of `KNOBS`, or None."""
    if knobs is not None and knobs not in KNOBS:
        hint = 'knobs="q": windows get q as well; k and m are always chosen'
        raise ConfigError(f"unknown knob {knobs!r}", where="knobs", hint=hint)


KNOBS = ("q",)


def _with(window: BitWindow, q: int) -> BitWindow:
    """The window with this q; one without bits stays as it is."""
    return replace(window, q=q) if window.w else window


def _raised(places: Sequence[int], number: int) -> list[int]:
    return [place + (each == number) for each, place in enumerate(places)]
