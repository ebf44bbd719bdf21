"""Running a net's steps in plain torch: the value of its output, or of every step.

OPS[op](attrs, *values) is the meaning of every operation, which all private versions follow; `ops/` defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from hummingbird.graph.interpreter import Interpreter
from hummingbird.graph.ops.op import like
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.steps import Step

OPS: dict[str, Callable[..., Any]] = {name: op.meaning for name, op in OPERATIONS.items() if op.meaning is not None}


def run(steps: Sequence[Step], *inputs: Tensor) -> Tensor:
    """The net's output for one input, and its public ones; InputError for a wrong number of them, or a wrong rank."""
    net = Interpreter(steps)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    output: Tensor = values[len(steps) - 1]
    return output


def run_all(steps: Sequence[Step], *inputs: Tensor) -> list[Any]:
    """The value of every step: tensors, tuples of tensors (chunk, split), sizes and ints; errors as of `run`."""
    net = Interpreter(steps, keep=True)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    return [values[number] for number in range(len(steps))]


def _evaluate(x: Tensor, number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
    """The step's value; a constant is one beside the net's input `x`."""
    value = OPS[step.op](step.attrs, *arguments)
    return like(value, x) if step.op == "constant" else value
