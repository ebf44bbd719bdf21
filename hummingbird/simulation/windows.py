"""The comparing layers of a net with changing windows: built once, planned again in milliseconds.

A plan has no weights, and layers of its own, as the layers of an earlier plan may still be in use.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from hummingbird import convert, graph
from hummingbird.bits import EXACT, BitConfig
from hummingbird.errors import ConfigError, ModelError
from hummingbird.graph.steps import Step, refs
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.net import PlanStep
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.mpc.plan.rounding_plan import Built, Planner
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import LATENCY, TableChoice
from hummingbird.simulation.compare import Compare
from hummingbird.simulation.layers import Twin, build


def check_protocol(protocol: str, parties: int) -> None:
    """Raise ConfigError for an unknown protocol, or fewer than two parties."""
    named(protocol)
    if type(parties) is not int or parties < 2:
        raise ConfigError(f"{parties!r} parties", where="parties", hint="an integer from 2")


def traced(net: nn.Module, example: Any = None) -> list[Step]:
    """Trace a net that can be converted; returns its steps. Raises ModelError, with all problems, for any other net."""
    if problems := convert.validate_model(net, example):
        raise ModelError(problems, hint="replace these layers, or teach them with register_converter")
    return graph.trace(net, custom=tuple(builders.CUSTOM), example=example)


class Windows:
    """Makes plans of one net with changing windows, without weights, in milliseconds.

    steps: of `graph.trace`. The attributes `steps` and `names` are in the order in which parties compute them.
    """

    def __init__(self, steps: Sequence[Step], protocol: str) -> None:
        self.protocol = protocol
        self.order = Rewritten.of(steps, protocol)
        self.steps = [builders.bare(step) for step in self.order.steps]
        make = builders.builder(protocol, BitConfig(EXACT), None)
        self._built: dict[str, Built] = {}
        for step in self.order.steps:
            built = self._built[step.name] = make(step)
            if isinstance(built.layer, Linear):
                built.layer.to("meta")
        self.names = [
            name
            for name, built in self._built.items()
            if isinstance(built.layer, Layer) and built.layer.comparison is not None
        ]

    def plan(self, config: BitConfig, aim: TableChoice = LATENCY) -> list[PlanStep]:
        """Make the plan with these windows and this aim; ConfigError, naming the layer, for windows that do not fit."""
        builders.check_rows(config, self.steps)
        built, config = dict(self._built), self.order.windows(config)
        for name in self.names:
            old = self._built[name]
            layer = copy.copy(old.layer)
            assert isinstance(layer, Layer)
            layer.comparison = named(self.protocol)(config.window(name), aim=aim)
            built[name] = Built(layer, old.function, old.limit, old.whole)
        make, anew = builders.builder(self.protocol, config, None, aim), builders.ON_ROWS.keys() | builders.SMOOTH
        built |= {step.name: make(step) for step in self.steps if step.op in anew}
        return Planner(lambda step: built[step.name], self.protocol).plan(self.steps)


def comparisons(plan: Sequence[PlanStep]) -> Iterator[tuple[PlanStep, Comparison]]:
    """Yield the comparing steps of a plan, each with its comparison."""
    for step in plan:
        if isinstance(step.layer, Layer) and step.layer.comparison is not None:
            yield step, step.layer.comparison


def twins(plan: Sequence[PlanStep], steps: Mapping[str, Step], parties: int, compare: Compare) -> dict[str, Twin]:
    """Make the simulated layers of a plan's comparing layers and norms, by name. steps: the net's steps, by name."""
    found = {}
    for step in plan:
        if isinstance(step.layer, Norm) or (isinstance(step.layer, Layer) and step.layer.comparison is not None):
            scale = plan[next(refs(step.inputs)).index].scale
            found[step.name] = build(step.layer, steps.get(step.name), scale, parties, compare)
    return found
