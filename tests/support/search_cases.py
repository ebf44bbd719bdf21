"""Accuracies given as tables, and small instances of the window search with every assignment listed."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.window_search import (
    ComparingLayer,
    bit_budget,
    group_layers,
    online_bytes,
    predicted_seconds,
    search_bits,
)

EVERY = 1 << 20  # trials: all assignments of an instance


def hashed(*what: object) -> random.Random:
    """Randomness that depends on the arguments alone, in every process."""
    return random.Random(hashlib.sha256(repr(what).encode()).digest())


class Table:
    """Accuracies in steps of 1/64, drawn for every config: more bits help on the whole, but there is no order and no
    monotony, and there are many ties. 1 if exact.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.calls = seed, 0

    def of(self, windows: Sequence[BitWindow]) -> float:
        used = [(place, window.k, window.m) for place, window in enumerate(windows) if window != EXACT]
        lost = sum(8 - k + m for _, k, m in used)
        return max(0, 64 - lost + hashed(self.seed, *used).randrange(min(9, lost))) / 64 if used else 1.0

    def __call__(self, config: BitConfig) -> float:
        self.calls += 1
        return self.of(list(config.layers.values()))


class Instance:
    """A random problem of three layers; `kind` of objective by turns."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.layers = [ComparingLayer(f"relu{i}", draw.randint(1, 99), draw.randint(2, 15), 8) for i in range(3)]
        self.groups = group_layers(self.layers, "layer")
        self.table: Any = Table(seed)
        self.headroom, self.reach, self.margin = draw.choice([0.0, 0.25]), draw.randint(0, 2), draw.choice([0.3, 0.5])
        self.objective = [
            bit_budget(self.layers),
            online_bytes("masked", 2),
            predicted_seconds("gmw", 3, bandwidth=1e5, rtt=0.01),
        ][seed % 3]
        self.widths = (2, 3, 4) if seed % 5 == 0 else None  # without 0 every group costs something
        every = self.assignments(self.reach + 1)
        prices = sorted(self.price(windows) for windows in every)
        least, most = prices[0], prices[-1]
        self.budget = least + (most - least) * Fraction(draw.randint(1, 9), 10)
        refused = {BitWindow(4, 1)} if seed % 4 == 0 else set()
        self.accepts: Callable[[BitConfig], bool] = lambda config: not refused & set(config.layers.values())
        self.refused = refused

    def price(self, windows: Sequence[BitWindow]) -> Fraction:
        return sum(map(self.objective.price, self.layers, windows), Fraction(0))

    def search(self, **options: Any) -> BitConfig | None:
        fixed = {"objective": self.objective, "margin": self.margin, "reach": self.reach, "headroom": self.headroom}
        fixed |= {"widths": self.widths, "accepts": self.accepts, "thrifty": True}
        try:
            return search_bits(self.groups, self.table, self.budget, **(fixed | options))
        except ConfigError as error:
            if "keeps a score of" not in error.what:
                raise
            return None

    # What is searched, spelled out once more
    # ---------------------------------------

    def assignments(self, level: int) -> list[tuple[BitWindow, ...]]:
        """All of them whose k are at most so many levels down, by the words of problem.py."""
        own = []
        for layer in self.layers:
            found = {BitWindow(0, 0)} if self.widths is None else set()
            for down in range(level + 1):
                for m in range(8):
                    if down == 0:
                        k = next(k for k in range(1, 65) if 2 ** (k - 1) > layer.largest * (1 + self.headroom))
                    else:
                        k = next(k for k in range(1, 65) if 2 ** (k - 1) > layer.largest) - (down - 1)
                    k = min(k, 8)
                    if k - m >= self.objective.least_width and (self.widths is None or k - m in self.widths):
                        found.add(BitWindow(k, m))
            own.append(sorted(found))
        return list(itertools.product(*own))

    def within(self, level: int) -> list[tuple[BitWindow, ...]]:
        """Those that the budget pays for and the net runs."""
        return [
            windows
            for windows in self.assignments(level)
            if self.price(windows) <= self.budget and not self.refused & set(windows)
        ]

    def uniforms(self) -> list[tuple[BitWindow, ...]]:
        """For every k the widest window that the budget pays for in all layers."""
        found = {}
        for k, m in itertools.product(range(1, 9), reversed(range(8))):
            if k - m >= self.objective.least_width and (self.widths is None or k - m in self.widths):
                window = BitWindow(k, m)
                if self.price((window,) * 3) <= self.budget and window not in self.refused:
                    found[k] = (window,) * 3
        # As far as the k of the layers reach, from that with headroom to that of the last level.
        uppers = [next(k for k in range(1, 65) if 2 ** (k - 1) > x.largest * (1 + self.headroom)) for x in self.layers]
        lowers = [next(k for k in range(1, 65) if 2 ** (k - 1) > x.largest) - self.reach for x in self.layers]
        return [windows for k, windows in found.items() if min(lowers) <= k <= max(uppers)]


def windows_of(config: BitConfig | None) -> tuple[BitWindow, ...] | None:
    return None if config is None else tuple(config.layers.values())
