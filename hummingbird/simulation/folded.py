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

from hummingbird.graph import OPS, Interpreter, Step, calls
from hummingbird.mpc.plan.rewritten import Rewritten
from hummingbird.ring import SCALE
from hummingbird.simulation import rounding
from hummingbird.simulation.windows import traced


class FoldedState(NamedTuple):
    """The progress of a run of a `FoldedNet`: the number of steps done, and the values that later steps read."""

    place: int
    values: Mapping[int, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the values; memory that two values share is counted twice."""
        return sum(value.nbytes for value in self.values.values() if isinstance(value, Tensor))


class FoldedNet:
    """A copy of a net as steps with folded batch norms, in the order in which a protocol's parties compute them.

    It can run from any step to any later one. `traced`: the steps of `graph.trace`. scales: name of a step -> fraction
    bits of its weights, if windows reduce them (`rounding.weight_scales`). Raises ModelError for a net that cannot be
    converted.
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
        """All steps by their names."""
        return {step.name: step for step in self._steps}

    def start(self, x: Tensor, *public: Tensor) -> FoldedState:
        """Make the state before the first step. x: a batch, rounded here as for shares. public: the public inputs."""
        placed = [value.to(self.device) for value in public]
        shared = x.to(self.device, torch.float32).mul(2.0**SCALE).round_().mul_(2.0**-SCALE)
        return FoldedState(0, self._interpreter.start(shared, *placed))

    def advance(
        self, state: FoldedState, instead: Mapping[str, Callable[..., Any]], stop: str | None = None
    ) -> FoldedState:
        """Run from a state up to the step named `stop`, or to the end. Returns the new state; the old one stays valid.

        instead: functions, by name of a comparing step, that replace these steps. A function takes what the step takes,
            and for a PReLU also its weight.
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
        """Run from a state to the end; returns the net's output. instead: as for `advance`."""
        return self.advance(state, instead).values[len(self._steps) - 1]

    def result(self, out: Tensor, shape: Sequence[int]) -> Any:
        """Convert the output to the structure of forward()'s result. shape: the shape of the input."""
        return calls.unpacked(self._steps, out, calls.shapes_for(self._steps, shape), lambda part: part)
