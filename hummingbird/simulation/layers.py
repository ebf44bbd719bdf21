"""Simulated comparing layers, on real tensors: the private layers' own formulas, over the law of their protocol.

A simulated layer uses the private layer itself, so that windows, knots, pooling positions and rounded constants are the
same. mpc/layers/arithmetic.py has the operations of formulas. `Windows` plans the layers of a net again and again, with
changing windows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import convert
from hummingbird.bits import EXACT, BitConfig, Rows
from hummingbird.errors import ConfigError, ModelError
from hummingbird.graph import OPS
from hummingbird.graph.steps import Step, refs
from hummingbird.mpc.functions import polynomials
from hummingbird.mpc.functions.polynomials import PolynomialTable
from hummingbird.mpc.functions.tabulated import FunctionInRange, Tabulated
from hummingbird.mpc.layers.arithmetic import Arithmetic, Reals, Values
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.layers.selecting import AdaptiveMaxPool, Greater, MaxPool
from hummingbird.mpc.layers.softmax import Argmax
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.ranges import check_rows
from hummingbird.mpc.plan.rewritten import NO_ROWS, Rewritten
from hummingbird.mpc.plan.rounding_plan import Built, Planner
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import LATENCY, TableChoice
from hummingbird.ring import SCALE
from hummingbird.simulation.compare import Compare

# Simulated layers -----------------------------------------------------------------------------------------------------

Twin = Callable[..., Tensor]  # a simulated layer: (value, the slopes of a PReLU) -> value


class Simulated(Reals):
    """The operations of private layers' formulas on real tensors, with comparisons that decide as the protocol does on
    shares.

    A layer's formula calls them in place of those on shares. comparison: the layer's, with its window. scale: bits of
    fraction of the compared values. decide: simulates the comparisons.
    """

    def __init__(self, comparison: Comparison, scale: int, parties: int, decide: Compare) -> None:
        self.scale, self.parties, self.decide = scale, parties, decide
        self.law = comparison.law(scale, parties)

    def relu(self, x: Tensor) -> Tensor:
        return self.decide.relu(x, self.law)

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.decide.both(x, self.law)

    def maximum(self, x: Tensor) -> Tensor:
        # Every difference lies within the spread of all values. If no sign can be wrong, the tree computes a maximum,
        # and torch's own is used, as it does not round a - b (say for 1 and -10^9).
        if not self.law.draws and x.numel() and self.surely(x):
            return x.amax(0)
        return super().maximum(x)

    def surely(self, x: Tensor) -> bool:
        """Return whether the protocol is certain to decide rightly when it compares any two of these values."""
        least, most = (float(end) for end in torch.aminmax(x.detach()))
        return self.law.holds(least - most, most - least)

    def above(self, x: Tensor, knots: Sequence[float]) -> tuple[Values, Tensor]:
        u = self.decide.draw() if self.law.draws else None  # the same u for all knots (protocols/law.py)
        knots = knots if len(knots) == 1 else [self.law.near(knot) for knot in knots]
        rounding = self.decide.draw() if self.law.disturbances else None  # one opening for all knots
        first, z = self.decide.both(x - knots[0], self.law, u, rounding)
        return [first, *(self.decide.both(x - knot, self.law, u, rounding)[0] for knot in knots[1:])], z

    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        return Simulated(comparison, scale, self.parties, self.decide)

    def polynomial(self, x: Tensor, table: PolynomialTable, bits: int, whole: bool = False) -> Tensor:
        return polynomials.evaluate(table, self.decide.moved(x, -table.most, table.most), self.decide.random)

    def precise(self, x: Tensor, fraction: int) -> Tensor:
        return x.to(torch.float32 if fraction <= SCALE else torch.float64)


class RingUnits(Reals):
    """The operations of private layers' formulas on plain integers: int64, in units of 2^-16.

    A layer's formula calls them in place of those on shares. Comparisons decide by the rule of the protocol, without
    random numbers, so that all windows must have m = 0.
    """

    def __init__(self, comparison: Comparison, parties: int) -> None:
        self.parties, self.law = parties, comparison.law(SCALE, parties)

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        bit, z = self.law.decide(x, torch.zeros_like(x))
        return z * bit, z

    def with_comparison(self, comparison: Comparison, scale: int = SCALE) -> Arithmetic:
        return RingUnits(comparison, self.parties)

    def units(self, numbers: Tensor) -> Tensor:
        return numbers

    def times(self, x: Tensor, number: int, fraction: int) -> Tensor:
        return x * number


def build(layer: Layer, step: Step | None, scale: int, parties: int, decide: Compare) -> Twin:
    """Return a function that simulates one private layer on real tensors: it takes what the layer takes.

    step: the net's step of the same name; None if there is none, as one call of the net became several layers. scale:
    bits of fraction of the layer's input. decide: simulates the comparisons.
    """
    if isinstance(layer, FunctionInRange) and layer.rows is None:
        assert step is not None
        return lambda x, *_: OPS[step.op](step.attrs, x)  # during a search for windows, which it does not have
    if isinstance(layer, FunctionInRange):
        table, exact = layer, Simulated(layer.exact, SCALE, parties, decide)
        return lambda x, *_: table.formula(exact, x)
    if isinstance(layer, Norm):
        norm, exact = layer, Simulated(layer.exact, SCALE, parties, decide)
        return lambda *x: norm.formula(exact, *x)
    assert isinstance(layer, Comparing), f"no simulation of {type(layer).__name__}"
    if layer.comparison.drops:
        return lambda x, *_: layer.dropped(x).clone()
    if isinstance(layer, (Argmax, Greater)):
        return _in_units(layer, RingUnits(layer.comparison, parties))
    n = Simulated(layer.comparison, scale, parties, decide)
    if isinstance(layer, (MaxPool, AdaptiveMaxPool)):
        assert step is not None, "a pool is a call of its own"
        return _max_pool(layer, step, n)
    return lambda x, *weight: layer.formula(n, x, *weight)


def on_live(
    twins: Mapping[str, Twin], plan: Sequence[PlanStep], passed: Mapping[str, Sequence[str]]
) -> dict[str, Twin]:
    """Adapt simulated layers, made for the private form of a net, to the plain net's own modules; return them by name.

    twins: the simulated layers, by name. plan: that of the private form. passed: for each max pooling, by name, the
    ReLUs in front of it that the private form computes behind it.
    The two nets differ in values: the private form's weights take means away before norms, which in the plain net are
    still there. They differ in order, too: a ReLU that was exchanged with max poolings is computed behind the last of
    these poolings. And they differ in clamps: of what a recurrent layer's input adds to the argument of a function.
    """
    found = dict(twins)
    last = {relu: pool for pool in (step.name for step in plan) for relu in passed.get(pool, ())}
    places = [step.name for step in plan]
    for pool in set(last.values()):
        relus = sorted((relu for relu, at in last.items() if at == pool), key=places.index)
        found[pool] = _one_by_one([twins[pool], *(twins[relu] for relu in relus)])
    found |= dict.fromkeys(last, _as_it_is)
    for step in plan:
        if isinstance(step.layer, Norm) and step.layer.attrs.get("centered"):
            found[step.name] = _less_mean(twins[step.name])
        if isinstance(step.layer, Tabulated) and step.layer.rows is not None and step.layer.rows.state is not None:
            found[step.name] = _within(step.layer.rows, twins[step.name])
    return found


def _as_it_is(x: Tensor, *_: Tensor) -> Tensor:
    return x


def _one_by_one(functions: Sequence[Twin]) -> Twin:
    def run(x: Tensor, *_: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return run


def _less_mean(twin: Twin) -> Twin:
    return lambda x, *_: twin(x - x.mean(-1, keepdim=True))


def _within(rows: Rows, twin: Twin) -> Twin:
    """Clamp the argument of a function whose tails are constant, where its layer's input is clamped in private."""
    return lambda x, *_: twin(x.clamp(rows.least, rows.most))


def _in_units(layer: Argmax | Greater, n: RingUnits) -> Twin:
    # Values below 2^30 as reals, so that the formula's bits fit the ring.
    return lambda *x: (layer.formula(n, *(n.law.ring(v.detach()) for v in x)) * 2.0**-SCALE).to(x[0].dtype)


def _max_pool(layer: Comparing, step: Step, n: Simulated) -> Twin:
    def max_pool(x: Tensor) -> Tensor:
        # As in `maximum`: torch's own pooling then equals the tree.
        if not n.law.draws and x.numel() and n.surely(x):
            return OPS[step.op](step.attrs, x)
        return layer.formula(n, x)

    return max_pool


# The layers of a net with changing windows ----------------------------------------------------------------------------
#
# They are built once, and planned again in milliseconds. A plan has no weights, and layers of its own, as the layers of
# an earlier plan may still be in use.


def check_protocol(protocol: str, parties: int) -> None:
    """Raise ConfigError for an unknown protocol, or fewer than two parties."""
    named(protocol)
    if type(parties) is not int or parties < 2:
        raise ConfigError(f"{parties!r} parties", where="parties", hint="an integer from 2")


def traced(net: nn.Module, example: Any = None) -> list[Step]:
    """Trace a net that can be converted; returns its steps. Raises ModelError, with all problems, for any other net."""
    steps, problems = convert.examined(net, example)
    if problems:
        raise ModelError(problems, hint="replace these layers, or teach them with register_converter")
    return steps


class Windows:
    """Makes plans of one net with changing windows, without weights, in milliseconds.

    steps: the net's, as `graph.trace` returns them. The attribute `steps` has them in the order in which parties
    compute them, `names` the names of the comparing layers in this order. rows: those of the configurations.
    """

    def __init__(self, steps: Sequence[Step], protocol: str, rows: Mapping[str, Rows] = NO_ROWS) -> None:
        self.protocol = protocol
        self.order = Rewritten.of(steps, protocol, rows=rows)
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
        """Make the plan of the net with these windows; return its steps.

        aim: for fewest rounds or fewest bytes, where a table can be cut in two ways. Raises ConfigError, naming the
        layer, for windows that do not fit.
        """
        check_rows(config, self.steps)
        built, config = dict(self._built), self.order.windows(config)
        for name in self.names:
            old = self._built[name]
            layer = copy.copy(old.layer)
            assert isinstance(layer, Layer)
            layer.comparison = named(self.protocol)(config.window(name), aim=aim)
            built[name] = Built(layer, old.function, old.limit, old.whole)
        make, anew = builders.builder(self.protocol, config, None, aim), builders.ON_ROWS.keys()
        built |= {step.name: make(step) for step in self.steps if step.op in anew}
        if config.weight_bits is not None:
            for name, old in self._built.items():
                if isinstance(old.layer, Linear):
                    built[name] = Built(old.layer.rounded(config.weight_bits), None, old.limit, old.whole)
        return Planner(lambda step: built[step.name], self.protocol).plan(self.steps)


def states(plan: Sequence[PlanStep]) -> dict[str, Rows]:
    """Return the rows that say what a recurrent layer's state adds (`Rows.state`), by the first time step's name."""
    layers = ((step.name.partition("#")[0], step.layer) for step in plan if isinstance(step.layer, Tabulated))
    return {name: layer.rows for name, layer in layers if layer.rows is not None and layer.rows.state is not None}


def comparisons(plan: Sequence[PlanStep]) -> Iterator[tuple[PlanStep, Comparison]]:
    """Yield the comparing steps of a plan, each with its comparison."""
    for step in plan:
        if isinstance(step.layer, Layer) and step.layer.comparison is not None:
            yield step, step.layer.comparison


def twins(plan: Sequence[PlanStep], steps: Mapping[str, Step], parties: int, compare: Compare) -> dict[str, Twin]:
    """Return simulated layers, functions on real tensors, for a plan's comparing layers and norms, by name.

    steps: the net's steps, by name. compare: simulates the comparisons.
    """
    found = {}
    for step in plan:
        if isinstance(step.layer, (FunctionInRange, Norm)) or (
            isinstance(step.layer, Layer) and step.layer.comparison is not None
        ):
            scale = plan[next(refs(step.inputs)).index].scale
            found[step.name] = build(step.layer, steps.get(step.name), scale, parties, compare)
    return found
