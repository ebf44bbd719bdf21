"""The plan of a private net: which layer runs on what, at which scale, and with how many valid bits.

A first pass goes with the data. A linear layer leaves the 16 bits of fraction that its weights add; where a reader
cannot take them, the value is rescaled: "gmw" opens 64 bits for it, "masked" rounds every share on its own, which is
    free
and costs as many valid bits (mpc/compare.py). A reader that needs the whole ring, such as the output, gets it back by
an opening. A second pass goes backwards and finds how many low bits of each value anybody looks at, so that a masked
ReLU is dealt no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import Ref, Step
from hummingbird.graph.steps import refs
from hummingbird.mpc.layer import Layer, Lift, LocalRescale, Rescale
from hummingbird.mpc.net import PlanStep
from hummingbird.ring import SCALE


class Built:
    """What a graph step becomes: a layer or a plain function, and what it asks of its inputs."""

    def __init__(self, layer: nn.Module | None, function: Callable[..., Any] | None, limit: int, whole: bool) -> None:
        self.layer, self.function = layer, function
        self.limit = limit  # the highest scale it takes
        self.whole = whole  # whether it needs all 64 bits of the shares


@dataclass
class Planner:
    """Plan steps from graph steps; `build` knows the layers."""

    build: Callable[[Step], Built]
    protocol: str

    def plan(self, steps: Sequence[Step]) -> list[PlanStep]:
        """Raises ConfigError for a window that does not fit, naming the layer."""
        self._plan: list[PlanStep] = []
        self._place: dict[int, int] = {}  # graph step -> plan step
        self._rescaled: dict[tuple[int, bool], int] = {}
        for index, step in enumerate(steps):
            built = self.build(step)
            inputs = self._arguments(steps, step.inputs, built)
            places = [ref.index for ref in refs(inputs)]
            scales = [self._plan[place].scale for place in places]
            valid = [self._plan[place].valid for place in places]
            try:
                scale, low = _result(step, built.layer, scales, valid)
            except (InputError, ConfigError) as error:
                raise ConfigError(error.what, where=step.name, hint=error.hint) from None
            self._add(index, PlanStep(step.name, step.op, built.layer, built.function, inputs, scale, index, low))
        _settle_rings(self._plan)
        return self._plan

    def _add(self, index: int, step: PlanStep) -> int:
        self._plan.append(step)
        self._place[index] = len(self._plan) - 1
        return self._place[index]

    def _arguments(self, steps: Sequence[Step], value: Any, built: Built) -> Any:
        if isinstance(value, Ref):
            return self._fitted(steps, value.index, built)
        return tuple(self._arguments(steps, item, built) for item in value) if isinstance(value, tuple) else value

    def _fitted(self, steps: Sequence[Step], index: int, built: Built) -> Ref:
        """The value of a graph step in a form that its reader takes."""
        at = self._place[index]
        step = self._plan[at]
        if step.scale <= built.limit and (step.valid == 64 or not built.whole):
            return Ref(at)
        key = index, built.whole
        if key not in self._rescaled:
            layer: Layer
            if step.valid < 64:
                layer = Lift(step.valid)
            elif self.protocol == "masked" and not built.whole:
                layer = LocalRescale()
            else:
                layer = Rescale()
            name = f"{steps[index].name}.{'lift' if isinstance(layer, Lift) else 'rescale'}"
            low = layer.valid([step.scale], [step.valid])
            self._plan.append(PlanStep(name, "rescale", layer, None, (Ref(at),), SCALE, index, low))
            self._rescaled[key] = len(self._plan) - 1
        return Ref(self._rescaled[key])


def _result(step: Step, layer: nn.Module | None, scales: list[int], valid: list[int]) -> tuple[int, int]:
    """Scale and valid bits of a step's result; tells a comparing layer how many its inputs have, and checks."""
    if step.op in ("size", "int") or not scales:
        return SCALE, 64
    if not isinstance(layer, Layer):
        return scales[0], valid[0]
    if layer.comparison is not None:
        layer.comparison.valid = min(valid)
        layer.comparison.check(max(scales))
    return layer.out_scale(scales), layer.valid(scales, valid)


def _settle_rings(plan: Sequence[PlanStep]) -> None:
    """From the output backwards: how many low bits of each value are looked at; comparisons lift to that."""
    later = [0] * len(plan)
    later[-1] = 64
    for number in reversed(range(len(plan))):
        step = plan[number]
        places = [ref.index for ref in refs(step.inputs)]
        needed = later[number] if step.layer is None else 64
        if isinstance(step.layer, Layer) and step.op != "custom":
            if step.layer.comparison is not None:
                step.layer.comparison.ring = 64 if step.layer.whole_ring else later[number]
            needed = step.layer.needs([plan[place].scale for place in places], later[number])
        for place in places:
            later[place] = max(later[place], needed)
