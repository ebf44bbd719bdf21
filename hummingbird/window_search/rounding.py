"""The third knob q: how many fraction bits the results of each group's layers drop, for fewer bytes in all.

k and m stay as the search has found them. The steps of a group are q = 0 and every q with fewer bits in all than any
lower q: with "masked" every q that leaves its windows the least width; with "gmw", where cutting q bits costs an
opening, few or none.

1. Find the largest common q that keeps the accuracy: each group takes its last step up to that q.
2. From there raise groups one step at a time: first the group that saves most bits for its loss in the ranking score.
   A group whose step does not keep the accuracy stays where it is.

"Keeps the accuracy" is the condition for windows without q, on all images and with several seeds (`budgeted.holds`):
not worse than the best uniform window, in right answers within the margin and in the finer score; eco's windows not
worse than the exact net, a uniform window not worse than itself.
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

_MOST = 16  # fraction bits that q can round away
_NOTHING = 1e-6  # losses below it are noise: among them the groups that save most come first
Windows = Mapping[str, BitWindow]


@dataclass
class Rounding:
    """One search for q of each group: how many fraction bits its layers' results drop, so that fewer bytes are sent.

    found: windows without q, with which the search starts; it is replaced by the best windows so far. in_all: a
    function from windows, by layer name, to the bits that all parties and the dealer send. accepts: a function that
    returns whether the net can run windows. held: the score that windows with q must reach.
    """

    groups: Sequence[Group]
    found: Found
    objective: Objective
    questions: Questions
    in_all: Callable[[Windows], int]
    accepts: Callable[[Windows], bool]
    held: Score

    def search(self) -> Found:
        """Run the search; return the best windows found, which have q = 0 if no q saves bits and keeps the accuracy."""
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
        """Return the values of q (dropped fraction bits) that are worth a trial for a group, ascending, 0 first.

        With each of them the parties and the dealer send fewer bits in all than with every smaller value in the list,
        and the group's price in the objective is no higher than with q = 0.
        """
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
        """Find the largest q that all groups can have in common without losing accuracy.

        Each group has a list of the q that are worth a trial (`_worth_it`), and takes the largest one up to the common
        q. Returns for each group the index into its list.
        """
        tried = []
        for q in range(max(steps[-1] for steps in self._steps), 0, -1):
            places = [sum(step <= q for step in steps) - 1 for steps in self._steps]
            if places not in tried:
                tried.append(places)
                if self._try(places):
                    return places
        return [0] * len(self._steps)

    def _open(self, places: Sequence[int]) -> list[int]:
        """Return the numbers of the groups that have a larger q left to try.

        places: for each group, the index of its current q in its list (`_worth_it`).
        """
        return [number for number, place in enumerate(places) if place + 1 < len(self._steps[number])]

    def _gain(self, places: Sequence[int], number: int) -> float:
        """Return how many bits a group's next larger q saves, divided by the score that is lost by it.

        number: of the group. places: for each group, the index of its current q in its list (`_worth_it`). The score is
        the coarse one, which ranks windows.
        """
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
        """Try values of q on all images, and keep them as the result if they are better; return whether they are kept.

        They are better if the net can run them, they save bits and they keep the accuracy. places: for each group, the
        index of the tried q in its list (`_worth_it`).
        """
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
    """Return the windows of `config` with q = 0, so that no fraction bits of results are dropped."""
    layers = {name: replace(w, q=0) for name, w in config.layers.items()}
    return replace(config.windows, default=replace(config.default, q=0), layers=layers)


def check_knobs(knobs: object) -> None:
    """Raise ConfigError unless `knobs` is "q" or None.

    With "q" a search of windows chooses q, the dropped fraction bits, as well; k and m are always chosen.
    """
    if knobs is not None and knobs not in KNOBS:
        hint = 'knobs="q": windows get q as well; k and m are always chosen'
        raise ConfigError(f"unknown knob {knobs!r}", where="knobs", hint=hint)


KNOBS = ("q",)


def _with(window: BitWindow, q: int) -> BitWindow:
    """Return the window with this q (dropped fraction bits); a window without bits stays as it is."""
    return replace(window, q=q) if window.w else window


def _raised(places: Sequence[int], number: int) -> list[int]:
    return [place + (each == number) for each, place in enumerate(places)]
