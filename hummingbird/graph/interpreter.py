"""The walk over a net's steps, in the manner of torch.fx.Interpreter, and the net's value in plain torch (`run`).

Each step gets the values that it reads, and a value is dropped after its last reader. Steps are those of a graph or of
a plan; the caller says what a step computes, so tensors, shares and shapes all take the same walk.

    net = Interpreter(steps)
    values = net.start(x)
    net.run(values, lambda number, step, arguments: OPS[step.op](step.attrs, *arguments))
    output = values[len(steps) - 1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.ops.op import like
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.steps import Step, map_refs, refs

INPUTS = ("input", "public")  # operations whose values the caller supplies


class _Step(Protocol):
    @property
    def op(self) -> str: ...

    @property
    def inputs(self) -> tuple[Any, ...]: ...


S = TypeVar("S", bound=_Step)


def arguments(step: _Step, values: Mapping[int, Any] | Sequence[Any]) -> tuple[Any, ...]:
    """Return a step's inputs, with the value of the earlier step in place of each reference.

    values: the values of the steps, by number.
    """
    found: tuple[Any, ...] = map_refs(step.inputs, lambda ref: values[ref.index])
    return found


class Interpreter(Generic[S]):
    """Runs steps one after the other; the caller keeps their values in a dict: step number -> value.

    order: numbers of the steps in the order in which they run; None: from the first to the last.
    keep: keep every value. Otherwise a value is dropped once the last step in `order` that reads it has run; a value
        that no step reads is a result and stays.
    """

    def __init__(self, steps: Sequence[S], order: Iterable[int] | None = None, *, keep: bool = False) -> None:
        self.steps = steps
        self._order = range(len(steps)) if order is None else tuple(order)
        self._inputs = [number for number, step in enumerate(steps) if step.op in INPUTS]
        self._dead: list[list[int]] = [[] for _ in steps]
        if not keep:
            last = {ref.index: number for number in self._order for ref in refs(steps[number].inputs)}
            for index, number in last.items():
                self._dead[number].append(index)

    def start(self, *inputs: Any) -> dict[int, Any]:
        """Return the dict of values, by number of the step, with which a run begins.

        inputs: the net's private input, then its public ones.
        Raises InputError for a wrong number of inputs.
        """
        if len(inputs) != len(self._inputs):
            public = sum(self.steps[number].op == "public" for number in self._inputs)
            what = f"the net takes {len(self._inputs)} input(s), got {len(inputs)}"
            hint = f"{public} of them are public, and enter with every call" if public else ""
            raise InputError(what, where="inputs", hint=hint)
        return dict(zip(self._inputs, inputs, strict=True))

    def run(
        self,
        values: dict[int, Any],
        compute: Callable[[int, S, tuple[Any, ...]], Any],
        numbers: Iterable[int] | None = None,
    ) -> None:
        """Run steps in order, and add the value of each to the dict `values`, which `start` has made.

        compute: takes a step's number, the step and its arguments, and returns the step's value. An input step has its
        value in `values` already, and gets it as its only argument. numbers: the steps to run; None: those of `order`.
        Unless the interpreter keeps everything, a value is deleted from the dict after the last step that reads it. To
        run twice from the same point, pass a copy of the dict: no value is modified in place.
        """
        for number in self._order if numbers is None else numbers:
            step = self.steps[number]
            given = (values[number],) if step.op in INPUTS else arguments(step, values)
            values[number] = compute(number, step, given)
            self.drop(values, number)

    def drop(self, values: dict[int, Any], number: int) -> None:
        """Delete from `values` every value whose last reader is step `number`."""
        for index in self._dead[number]:
            del values[index]


# Plain torch ---------------------------------------------------------------------------------------------------------

# What each operation computes, OPS[op](attrs, *values), as `ops/` defines it; all private versions follow it.
OPS: dict[str, Callable[..., Any]] = {name: op.meaning for name, op in OPERATIONS.items() if op.meaning is not None}


def run(steps: Sequence[Step], *inputs: Tensor) -> Tensor:
    """Run a net's steps in plain torch, and return the net's output.

    inputs: the net's private input, then its public ones. Raises InputError for a wrong number of inputs, or a wrong
        number of dimensions.
    """
    net = Interpreter(steps)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    output: Tensor = values[len(steps) - 1]
    return output


def run_all(steps: Sequence[Step], *inputs: Tensor) -> list[Any]:
    """Run a net's steps in plain torch, and return a list with the value of every step. Raises as `run`.

    inputs: the net's private input, then its public ones. A value is a tensor, a tuple of tensors (chunk, split), a
        shape or an int.
    """
    net = Interpreter(steps, keep=True)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    return [values[number] for number in range(len(steps))]


def _evaluate(x: Tensor, number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
    """Return a step's value, computed in plain torch; a step "constant" gets the device and type of the net's input x.

    number: the step's number. step: the step. arguments: the values of its inputs.
    """
    value = OPS[step.op](step.attrs, *arguments)
    return like(value, x) if step.op == "constant" else value
