"""Random choices for one operation on a value whose shape and magnitude are known (tests/fuzz/grammar.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

HIGHEST = 2.0**18  # what factors aim below, a quarter of the range that is promised
LOWEST = 2.0**-6  # and above: a net of zeros shows nothing
ELEMENTS, COMPARISONS = 70_000, 100_000  # of one operation: seconds, not minutes


class Impossible(Exception):
    """The operation does not take a value of this shape."""


class Draw:
    """Random choices for one operation on a value of this shape whose largest magnitude is `size`.

    same, parts: names of earlier values of this shape, and of those that differ along dimension 1 only.
    fresh: whether the value may be written in place. init: the lines for `__init__` drawn so far. highest: what
    factors aim below.
    """

    def __init__(
        self, rng: random.Random, shape: tuple[int, ...], size: float, number: int, highest: float = HIGHEST
    ) -> None:
        self.rng, self.shape, self.size, self.number = rng, shape, max(size, 1e-6), number
        self.highest = highest
        self.same: list[str] = []
        self.parts: list[str] = []
        self.fresh = False
        self.init: list[str] = []

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def need(self, condition: bool) -> None:
        if not condition:
            raise Impossible

    def pick(self, *texts: str) -> str:
        return self.rng.choice(texts)

    def spelled(self, *texts: str, inplace: Sequence[str] = ()) -> str:
        """One of the spellings; those that write into the value only where that is not the net's input."""
        return self.rng.choice([*texts, *(inplace if self.fresh else ())])

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def module(self, text: str, gain: float | None = None, **more: float) -> str:
        """A call of a new submodule; with a gain, its tensors are drawn anew (`filled`)."""
        name = f"m{self.number}" if not self.init else f"m{self.number}_{len(self.init)}"
        if gain is not None:
            extra = "".join(f", {key}={value!r}" for key, value in more.items())
            text = f"filled({text}, {gain!r}, {self.rng.randrange(10**6)}{extra})"
        self.init.append(f"self.{name} = {text}")
        return f"self.{name}({{x}})"

    def constant(self, shape: Sequence[int], gain: float, kind: str = "Parameter", positive: bool = False) -> str:
        name = f"p{self.number}_{len(self.init)}"
        text = f"normal({tuple(shape)}, {gain!r}, {self.rng.randrange(10**6)})" + (".exp()" if positive else "")
        self.init.append(f"self.{name} = nn.{kind}({text})")
        return f"self.{name}"

    def log(self, low: float, high: float) -> float:
        low = min(low, high)
        return float(f"{math.exp(self.rng.uniform(math.log(low), math.log(high))):.3g}")

    def gain(self, fan: float, low: float = 1e-4, high: float = 1e2) -> float:
        """A magnitude of weights that keeps a sum of `fan` products between LOWEST and `highest`, if any does."""
        per = self.size * math.sqrt(fan) * 3
        return self.log(max(low, LOWEST / per), max(low, min(high, self.highest / per)))

    def factor(self) -> float:
        """A number to multiply with: often round, else of any magnitude from 1e-6 to 1e4."""
        if self.chance(0.25):
            c = self.rng.choice((0.5, 2.0, 3.0, -1.0, 0.125, 1 / 3, 1 / 255, 10.0, -0.1))
            if abs(c) * self.size < self.highest:
                return c
        return self.gain(1 / 9, 1e-6, 1e4) * self.rng.choice((1, -1))

    def spatial(self, at_least: int = 1) -> int:
        n = len(self.shape) - 2
        self.need(n in (1, 2, 3) and min(self.shape[2:]) >= at_least)
        return n

    def compares(self, per_element: float) -> None:
        self.need(self.numel * per_element <= COMPARISONS)

    def dim(self) -> int:
        """A dimension, seldom the batch's."""
        self.need(len(self.shape) > 0)
        d = self.rng.randrange(len(self.shape)) if self.chance(0.1) else self.rng.randrange(1, max(2, len(self.shape)))
        self.need(d < len(self.shape))
        return d - len(self.shape) if self.chance(0.3) else d
