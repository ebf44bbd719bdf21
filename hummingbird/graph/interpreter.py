"""The one walk over a net's steps: each step gets the values that it reads, and a value goes after its last reader.

As torch.fx.Interpreter does it for nodes. Steps are those of a graph or of a plan. What a step computes is the
caller's to say: tensors, shares and shapes all take the same walk.

    net = Interpreter(steps)
    values = net.start(x)
    net.run(values, lambda number, step, arguments: OPS[step.op](step.attrs, *arguments))
    output = values[len(steps) - 1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from hummingbird.errors import InputError
from hummingbird.graph.steps import map_refs, refs

INPUTS = ("input", "public")  # what the caller brings


class _Step(Protocol):
    @property
    def op(self) -> str: ...

    @property
    def inputs(self) -> tuple[Any, ...]: ...


S = TypeVar("S", bound=_Step)


def arguments(step: _Step, values: Mapping[int, Any] | Sequence[Any]) -> tuple[Any, ...]:
    """A step's inputs with values in place of references; `values`: of earlier steps, by number."""
    found: tuple[Any, ...] = map_refs(step.inputs, lambda ref: values[ref.index])
    return found


class Interpreter(Generic[S]):
    """Runs steps on values that the caller holds in a dict, by the number of the step that made them.

    order: numbers of steps, in the order in which they will run; None: from the first to the last.
    keep: keep every value. Otherwise a value is dropped once the last step in `order` that reads it has run; what no
        step reads is a result, and stays.
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
        """Values before the first step: of the net's input, then its public ones. InputError for a wrong number."""
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
        """Run steps, all or those of these numbers, in order; `values` gains theirs and loses what is read no more.

        compute: gives a step's value from its number, itself and its arguments; an input's argument is its own value.
        To go on from the same values twice, pass a copy of the dict: no value is written into.
        """
        for number in self._order if numbers is None else numbers:
            step = self.steps[number]
            given = (values[number],) if step.op in INPUTS else arguments(step, values)
            values[number] = compute(number, step, given)
            self.drop(values, number)

    def drop(self, values: dict[int, Any], number: int) -> None:
        """Drop the values that no step reads after this one."""
        for index in self._dead[number]:
            del values[index]
