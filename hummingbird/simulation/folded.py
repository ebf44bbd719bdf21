"""The net as private inference has it, batch norms folded, on real tensors, run from anywhere to anywhere.

What the steps of `graph.trace` compute, in float32, with constants rounded as private inference rounds them, and with
given functions in place of the layers that compare. A state
is where a run stands: no step writes into what it reads, so one state may be gone on from several times. Folded
convolutions take about two thirds of the time of convolutions and batch norms (ResNet-18, one CPU core).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hummingbird.graph import OPS, Interpreter, Step, calls
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.ring import SCALE
from hummingbird.simulation import rounding
from hummingbird.simulation.windows import traced


class FoldedState(NamedTuple):
    """The number of steps made, and the values that later ones read."""

    place: int
    values: Mapping[int, Any]

    @property
    def nbytes(self) -> int:
        """Memory of the values; what two of them share is counted twice."""
        return sum(value.nbytes for value in self.values.values() if isinstance(value, Tensor))


class FoldedNet:
    """A net's steps, on its device, in the order of a protocol's parties; the net is copied.

    traced: as `graph.trace` gives them. scales: bits of fraction of weights, by the name of their step, where windows
    leave them fewer (`rounding.weight_scales`). Raises ModelError for a net that cannot be converted.
    """

    def __init__(
        self, net: nn.Module, protocol: str, example: Any = None, scales: Mapping[str, int] = rounding.ALL_BITS
    ) -> None:
        self.device = next((tensor.device for tensor in (*net.parameters(), *net.buffers())), torch.device("cpu"))
        self.traced = traced(net, example)
        self._after = {step.name: corrected for step in self.traced if (corrected := rounding.after(step)) is not None}
        self._steps = [
            replace(step, attrs={key: self._placed(x) for key, x in step.attrs.items()})
            for step in (rounding.rounded_step(step, scales) for step in Rewritten.of(self.traced, protocol).steps)
        ]
        self._interpreter = Interpreter(self._steps)
        self._places = {step.name: number for number, step in enumerate(self._steps)}

    def _placed(self, value: Any) -> Any:
        if isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.is_floating_point()):
            return value.to(self.device, torch.float32)
        return value.to(self.device) if isinstance(value, Tensor) else value

    @property
    def steps(self) -> dict[str, Step]:
        """All steps, by name."""
        return {step.name: step for step in self._steps}

    def start(self, x: Tensor, *public: Tensor) -> FoldedState:
        """Before the first step, with this batch as the net's input, rounded as it is shared, and its public ones."""
        placed = [value.to(self.device) for value in public]
        shared = x.to(self.device, torch.float32).mul(2.0**SCALE).round_().mul_(2.0**-SCALE)
        return FoldedState(0, self._interpreter.start(shared, *placed))

    def advance(
        self, state: FoldedState, instead: Mapping[str, Callable[..., Any]], stop: str | None = None
    ) -> FoldedState:
        """Go on up to the step of this name, or to the end; `instead[name](tensor, weight of a PReLU)` for those
        that compare. The state given stays as it is.
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
        """The net's output."""
        return self.advance(state, instead).values[len(self._steps) - 1]

    def result(self, out: Tensor, shape: Sequence[int]) -> Any:
        """The output in the structure of forward()'s; shape: of the input."""
        return calls.unpacked(self._steps, out, calls.shapes_for(self._steps, shape), lambda part: part)
