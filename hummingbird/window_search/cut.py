"""Scores of windows for two parties without a dealer: the whole numbers of `simulate(cut=True)`, weights rounded too.

Everything is scored as in cached.py but the arithmetic: a plan is made for each assignment, and runs from the start. A
layer that an assignment leaves exact gets `WIDE` bits below its range: no gate takes 64, and these change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import ranks
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.hybrid.convert import TracedNet
from hummingbird.hybrid.ideal import Plain
from hummingbird.hybrid.lowering import moved
from hummingbird.simulation.cut import seeded, uniform_low
from hummingbird.window_search.cached import Assignment, CachedEvaluator, layer_seed
from hummingbird.window_search.problem import ComparingLayer

WIDE = 14  # bits: beside weights that are rounded to 1/55 of theirs, 2^-13 of a value's range is nothing
LIMIT = 32  # of k: a share has no more bits, at the unit of a window or a finer one


class CutEvaluator(CachedEvaluator):
    """An `Evaluator` as `CachedEvaluator`; largest: for each comparing layer the largest |x|, in ring units.

    Errors as of `CachedEvaluator` and `hybrid.make_plan`. Cost: the whole net on integers for every score.
    """

    def __init__(
        self, net: nn.Module, images: Tensor, labels: Tensor | None, largest: Mapping[str, int], **options: Any
    ) -> None:
        self._traced = TracedNet(net, images.shape[1:])
        self._range = max(abs(float(end)) for end in torch.aminmax(images))
        outputs, steps = self._traced.outputs, self._traced.steps
        derived = {steps[pool].name for pool in moved(steps).values()}  # as wide as the ReLU's window says
        self.layers = [
            ComparingLayer(name, outputs[name], most, LIMIT) for name, most in largest.items() if name not in derived
        ]
        self._wide: dict[str, BitWindow] = {}
        for layer in self.layers:
            k = layer.largest.bit_length() + 2
            self._wide[layer.name] = BitWindow(k, max(0, k - WIDE))
        self.plan(BitConfig())
        super().__init__(net.cpu(), images, labels, **options)

    def plan(self, config: BitConfig) -> Plain:
        """The plan under these windows. ConfigError where there is none."""
        windows = {name: config.window(name) for name in self._wide}
        windows = {name: self._wide[name] if window == EXACT else window for name, window in windows.items()}
        return Plain(self._traced.plan(BitConfig(EXACT, windows, input_range=self._range)))

    def accepts(self, config: BitConfig) -> bool:
        """Whether the net can be converted with these windows."""
        try:
            self.plan(config)
        except ConfigError:
            return False
        return True

    def _begin(self, windows: Assignment, question: str) -> None:
        ranks.agree(lambda: {"question": question})
        config = BitConfig(EXACT, dict(zip(self._windows.names, windows, strict=True)))
        self._plain = None if all(window == EXACT for window in windows) else self.plan(config)

    def _ran(self, number: int, seed: int) -> Tensor:
        images, public = self._inputs[number]
        if self._plain is None:
            return self._exact(images, public).cpu()
        plan = self._plain.plan
        low = uniform_low(plan, len(images), seeded(layer_seed(seed, "shares", number)))
        return plan.decode(self._plain(plan.encode(images), low))
