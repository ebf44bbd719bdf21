"""Accuracies given as tables, and small instances of the window search with their true optimum."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.search import (
    ComparingLayer,
    Group,
    bit_budget,
    group_layers,
    online_bytes,
    predicted_seconds,
    search_bits,
)
from hummingbird.search.tree import PRUNINGS

LOSSLESS = PRUNINGS - {"dominated"}
SUBSETS = [frozenset(names) for size in range(4) for names in itertools.combinations(sorted(LOSSLESS), size)]


def hashed(*what: object) -> random.Random:
    """Randomness that depends on the arguments alone, in every process."""
    return random.Random(hashlib.sha256(repr(what).encode()).digest())


class Table:
    """Accuracies in steps of 1/64, drawn for every prefix of windows: more bits help on the whole, but there is no
    order and no monotony, and there are many ties. 1 if exact.

    Below the floor it tells any lower number, as an evaluator may that stops early.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.calls = seed, 0

    def of(self, windows: Sequence[BitWindow]) -> float:
        used = [(window.k, window.m) for window in windows if window != EXACT]
        lost = 2 * sum(8 - k + m for k, m in used)
        return (64 - lost + hashed(self.seed, *used).randrange(min(9, lost))) / 64 if used else 1.0

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        self.calls += 1
        truths = [self.of([*prefix.values(), window]) for window in windows]
        return [truth if truth >= floor else hashed("below", truth, self.seed).random() * floor for truth in truths]


class Instance:
    """A random problem of three layers; `kind` of objective by turns."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.layers = [ComparingLayer(f"relu{i}", draw.randint(1, 99), draw.randint(2, 15), 8) for i in range(3)]
        self.groups = group_layers(self.layers, "layer")
        self.table, self.reach, self.margin = Table(seed), draw.randint(0, 2), draw.choice([0.4, 0.6, 0.75])
        self.objective = [
            bit_budget(self.layers),
            online_bytes("masked", 2),
            predicted_seconds("gmw", 3, bandwidth=1e5, rtt=0.01),
        ][seed % 3]
        self.widths = (2, 3, 4) if seed % 5 == 0 else None  # without 0 every group costs something
        self.windows = [group.windows(self.widths, self.reach, self.objective.least_width) for group in self.groups]
        prices = [[self.price(depth, window) for window in found] for depth, found in enumerate(self.windows)]
        least, most = sum(map(min, prices)), sum(map(max, prices))
        self.budget = least + (most - least) * Fraction(draw.randint(1, 9), 10)
        refused = {self.windows[1][-1], self.windows[2][1]} if seed % 4 == 0 else set()
        self.accepts: Callable[[BitConfig], bool] = lambda config: not refused & set(config.layers.values())
        self.refused = refused

    def price(self, depth: int, window: BitWindow) -> Fraction:
        return self.objective.price(self.layers[depth], window)

    def search(self, prunings: frozenset[str] = PRUNINGS, **options: Any) -> BitConfig | None:
        fixed = {"objective": self.objective, "margin": self.margin, "reach": self.reach}
        fixed |= {"widths": self.widths, "accepts": self.accepts, "thrifty": True}
        try:
            return search_bits(self.groups, self.table, self.budget, prunings=prunings, **(fixed | options))
        except ConfigError as error:
            if "keeps a score of" not in error.what:
                raise
            return None

    def brute(self, dominated: bool) -> tuple[BitWindow, ...] | None:
        """Every assignment of prices, with the windows that its prefixes fix; the best by the rules of tree.py."""
        exact = self.table.of(())
        dearest = [max(self.price(depth, window) for window in found) for depth, found in enumerate(self.windows)]
        found = []

        def walk(chosen: tuple[BitWindow, ...], score: float, spent: Fraction, order: tuple[Any, ...]) -> None:
            depth = len(chosen)
            if depth == 3:
                if spent <= self.budget and score >= exact - self.margin:
                    found.append((-score, order, chosen))
                return
            share = (self.budget - spent) * dearest[depth] / sum(dearest[depth:])
            children: dict[Fraction, tuple[float, int, int]] = {}
            for window in self.windows[depth]:
                if window not in self.refused:
                    entry = (self.table.of((*chosen, window)), window.k, -window.m)
                    price = self.price(depth, window)
                    children[price] = max(entry, children.get(price, entry))
            for price, (accuracy, k, minus_m) in children.items():
                cheaper = [other[0] for other_price, other in children.items() if other_price < price]
                if dominated and any(other >= min(accuracy, score) for other in cheaper):
                    continue
                step = (abs(price - share), price)
                walk((*chosen, BitWindow(k, -minus_m)), min(score, accuracy), spent + price, (*order, step))

        walk((), exact, Fraction(0), ())
        return min(found)[2] if found else None


def windows_of(config: BitConfig | None) -> tuple[BitWindow, ...] | None:
    return None if config is None else tuple(config.layers.values())
