"""Which form of a smooth function moves the fewest bits: a table of polynomials, or a spline of comparisons.

A table (tabulated.py) takes one round and few bits of the parties, and kilobytes of the dealer for each value. A spline
(smooth.py) on the same masked comparisons takes some 24 step tables and a product: more of the parties, some five more
rounds, and less than half of all bits. With aim "throughput" the cheaper is taken, by the price of a value between an
input and an output, where no more than 2^(FINE - 16) is left undecided: that enters a spline squared, below 2^-15, so
splines are as exact as tables, which the plaintext twin has (docs/limits.md). In coarser windows tables remain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hummingbird.bits import BitWindow
from hummingbird.cost import FREE
from hummingbird.graph import Ref, Step
from hummingbird.mpc.functions import smooth
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers import activations
from hummingbird.mpc.layers.layer import Layer, Spec
from hummingbird.mpc.plan.rounding_plan import Built, Planner
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.table_choice import ROUND_BITS, TableChoice
from hummingbird.ring import SCALE

FINE = 8  # the lowest bit that decides, at most
_PARTIES, _VALUES = 2, 1 << 14  # of the prices that are compared: the same whoever asks, as parties plan alike


def smooth_layer(name: str, comparison: Comparison) -> Layer:
    """The layer of "sigmoid", "tanh", "silu", "gelu-none" or "gelu-tanh"."""
    window, aim = comparison.window, comparison.aim
    if not comparison.looks_up:
        return spline(name, comparison)
    tables = aim.name == "latency" or comparison.drops or window.q or window.low > FINE
    if tables or not _splines_move_less(name, comparison.name, window, aim):
        return Tabulated(name, comparison)
    return spline(name, comparison)


def spline(name: str, comparison: Comparison) -> Layer:
    """The function as a spline."""
    if name in ("sigmoid", "tanh"):
        return activations.Smooth(name, smooth.squashing(name), comparison)
    return activations.EvenSmooth(name, smooth.even(name), comparison)


@functools.cache
def _splines_move_less(name: str, protocol: str, window: BitWindow, aim: TableChoice) -> bool:
    """Whether a spline's bits of all parties and the dealer, counted as the aim does, are fewer."""

    def moved(make: Callable[[str, Comparison], Layer]) -> float:
        def build(step: Step) -> Built:
            if step.op != "smooth":
                return Built(None, None, SCALE if step.op == "output" else 62, step.op == "output")
            layer = make(name, named(protocol)(window, aim=aim))
            return Built(layer, None, layer.input_limit, layer.whole_input)

        steps = [Step("x", "input", (), {}), Step("f", "smooth", (Ref(0),), {}), Step("y", "output", (Ref(1),), {})]
        total, plan = FREE, Planner(build, protocol).plan(steps)
        for step in plan:
            if isinstance(step.layer, Layer):
                specs = [Spec((_VALUES,), plan[ref.index].scale) for ref in step.inputs]
                total += step.layer.cost(specs, _PARTIES)
        return _PARTIES * total.bits + aim.dealer * total.offline_bits + ROUND_BITS * _VALUES * total.rounds

    return moved(spline) < moved(Tabulated)
