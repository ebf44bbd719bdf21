"""A net with folded batch norms on real tensors, which can run from any step to any other.

It computes the steps of `graph.trace` in float32, with constants rounded as in private inference, and with functions of
the caller in place of comparing layers. A state is the progress of a run: no step modifies its inputs, so a run can
continue several times from one state. Folded convolutions take about two thirds of the time of convolutions and batch
norms (ResNet-18, one CPU core).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird.bits import EXACT, Rows
from hummingbird.graph import OPS, Interpreter, Step, calls
from hummingbird.mpc.layers.averaging import AdaptiveAvgPool, AvgPool, Mean, Resize
from hummingbird.mpc.layers.constants import Scale
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.layers.linear import Linear
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.columns import WEIGHTS
from hummingbird.mpc.plan.rewritten import NO_ROWS, Rewritten
from hummingbird.mpc.plan.steps import PlanStep
from hummingbird.mpc.protocols.gmw import Gmw
from hummingbird.ring import SCALE
from hummingbird.simulation.layers import traced

# Constants rounded as in private inference, to the fraction bits of their layers --------------------------------------
#
# Rounding changes weights before windows by at most 2^-10 of the largest weight, other weights by 2^-14, factors by
# 2^-18 of themselves unless the ring has too few bits (`ring.fraction`), and a mean's reciprocal by 2^-8. With these
# roundings and that of the inputs, a simulation differs from private inference only by the rounding of values between
# layers to 2^-16.

After = Callable[[Tensor, Tensor], Tensor]  # (input of a step, its result) -> its result with rounded constants
ALL_BITS: Mapping[str, int] = {}  # all weights have the bits that they have before exact comparisons
_MEANS = frozenset({"avg_pool", "adaptive_avg_pool", "mean"})


def rounded(x: Tensor, bits: int) -> Tensor:
    """Round x to the nearest multiple of 2^-bits, in x's type."""
    unit = 2.0**bits
    return ((x.double() * unit).round() / unit).to(x.dtype)


def rounded_step(step: Step, scales: Mapping[str, int] = ALL_BITS) -> Step:
    """Return a step whose weights, or whose factor, are rounded as in private inference.

    A step without weights is returned unchanged. scales: name of a step -> fraction bits of its weights, if a window
    reduces them; other weights keep the bits that their layer gives them.
    """
    name = WEIGHTS.get(step.op)
    if name is None or name not in step.attrs or "halved" in step.attrs:
        return step
    layer, value = _layer(step), step.attrs[name]
    if isinstance(layer, Scale):
        return replace(step, attrs=step.attrs | {name: layer.integer * 2.0**-layer.fraction})
    assert isinstance(layer, Linear)
    fraction = scales.get(step.name, layer.fraction)
    value = rounded(value, layer.fraction)
    if fraction < layer.fraction:
        value = ((value.double() * 2.0**fraction + 0.5).floor() / 2.0**fraction).to(value.dtype)
    return replace(step, attrs=step.attrs | {name: value})


def weight_scales(plan: Sequence[PlanStep]) -> dict[str, int]:
    """Return how many bits of fraction the weights of each linear layer in a plan have, by the layer's name."""
    return {step.name: step.layer.fraction for step in plan if isinstance(step.layer, Linear)}


def after(step: Step) -> After | None:
    """Return a function that corrects a step's exact result where private inference rounds the step's constants.

    The function takes the step's input and its exact result. For a mean it multiplies the result by (rounded
    reciprocal) / (exact reciprocal) of the count; for a resizing it computes the result with rounded weights. Returns
    None if the step has no rounded constants.
    """
    if step.op not in (*_MEANS, "resize"):
        return None
    layer = _layer(step)
    if isinstance(layer, Resize):
        return lambda x, out: layer.real(x, out.shape[2:])
    if isinstance(layer, AvgPool):
        division = layer.division
        ratio = division.integer * 2.0**-division.fraction / division.factor
        return None if ratio == 1 or not layer.uniform else lambda x, out: out * ratio
    assert isinstance(layer, (AdaptiveAvgPool, Mean))

    def corrected(x: Tensor, out: Tensor) -> Tensor:
        ratio = layer.rounded(x.shape)
        return out if bool((ratio == 1).all()) else out * ratio.to(out)

    return corrected


def _layer(step: Step) -> Layer:
    return builders.BUILDERS[step.op](step, Gmw(EXACT), None)


# The net --------------------------------------------------------------------------------------------------------------


class FoldedState(NamedTuple):
    """The progress of a run of a `FoldedNet`: the number of steps done, and the values that later steps read."""

    place: int
    values: Mapping[int, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the values; memory that two values share is counted twice."""
        return sum(value.nbytes for value in self.values.values() if isinstance(value, Tensor))


class FoldedNet:
    """A copy of a net as a list of steps, with folded batch norms, which can run from any step to any later one.

    Simulations and searches of windows use it. The steps are in the order in which a protocol's parties compute them.
    `traced`: the net's steps as `graph.trace` returns them. scales: name of a step -> fraction bits of its weights, if
    windows reduce them (`weight_scales`). rows: those of the configuration (`BitConfig.rows`). Raises ModelError for a
    net that cannot be converted.
    """

    def __init__(
        self,
        net: nn.Module,
        protocol: str,
        example: Any = None,
        scales: Mapping[str, int] = ALL_BITS,
        rows: Mapping[str, Rows] = NO_ROWS,
    ) -> None:
        self.device = next((tensor.device for tensor in (*net.parameters(), *net.buffers())), torch.device("cpu"))
        self.traced = traced(net, example)
        self._after = {step.name: corrected for step in self.traced if (corrected := after(step)) is not None}
        self._steps = [
            replace(step, attrs={key: self._placed(x) for key, x in step.attrs.items()})
            for step in (rounded_step(step, scales) for step in Rewritten.of(self.traced, protocol, rows=rows).steps)
        ]
        self._interpreter = Interpreter(self._steps)
        self._places = {step.name: number for number, step in enumerate(self._steps)}

    def _placed(self, value: Any) -> Any:
        if isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.is_floating_point()):
            return value.to(self.device, torch.float32)
        return value.to(self.device) if isinstance(value, Tensor) else value

    @property
    def steps(self) -> dict[str, Step]:
        """All steps of the net, by their names."""
        return {step.name: step for step in self._steps}

    def start(self, x: Tensor, *public: Tensor, rounds: bool = True) -> FoldedState:
        """Return the state of a run before its first step.

        x: a batch of inputs. public: the public inputs. rounds: whether x is rounded to multiples of 2^-16, as shares
        are.
        """
        placed = [value.to(self.device) for value in public]
        x = x.to(self.device, torch.float32)
        shared = x.mul(2.0**SCALE).round_().mul_(2.0**-SCALE) if rounds else x
        return FoldedState(0, self._interpreter.start(shared, *placed))

    def advance(
        self, state: FoldedState, instead: Mapping[str, Callable[..., Any]], stop: str | None = None
    ) -> FoldedState:
        """Run the net from a state up to the step named `stop`, not included, or to the end; return the new state.

        The old state stays valid. instead: functions, by name of a comparing step, that replace these steps. Such a
        function takes what the step takes, and for a PReLU also its weight.
        """

        def compute(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
            if step.name not in instead:
                value = OPS[step.op](step.attrs, *arguments)
                return self._after[step.name](arguments[0], value) if step.name in self._after else value
            if step.op == "prelu":
                return instead[step.name](*arguments, step.attrs["weight"])
            return instead[step.name](*arguments)

        values = dict(state.values)
        end = len(self._steps) if stop is None else self._places[stop]
        self._interpreter.run(values, compute, range(state.place, end))
        return FoldedState(end, values)

    def finish(self, state: FoldedState, instead: Mapping[str, Callable[..., Any]]) -> Any:
        """Run the net from a state to the end; return its output, a tensor.

        instead: functions that replace comparing steps, by name of the step; each takes what its step takes, and for a
        PReLU also its weight.
        """
        return self.advance(state, instead).values[len(self._steps) - 1]

    def result(self, out: Tensor, shape: Sequence[int]) -> Any:
        """Return the net's results in the structure that forward() returns, from the output of `finish`.

        shape: the shape of the input.
        """
        return calls.unpacked(self._steps, out, calls.shapes_for(self._steps, shape), lambda part: part)
