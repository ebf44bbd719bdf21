"""Rewrites of recurrent layers, which are lists of steps for each time step (graph/ops/recurrent.py); results stay.

by_time        a linear layer on all time steps of a recurrent layer becomes one for each time step
clamped        terms of a recurrent layer's input are clamped, for all time steps at once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from hummingbird.graph.properties import ranks
from hummingbird.graph.steps import Ref, Step, compact, map_refs, refs

# Stacked recurrent layers, step by step in time -----------------------------------------------------------------------
#
# A recurrent layer multiplies its input by weights for all time steps at once. If the input is the states of another
# recurrent layer, this product waits for the last one of them. Taken for each time step by itself, it waits for one
# state only: step t of the upper layer and step t + 1 of the lower one do not depend on each other, and open their
# values in the same rounds. So L layers over T time steps are T + L - 1 steps deep, not T L.


def by_time(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with a linear layer on a stack of recurrent states divided into one for each state.

    The new steps have the linear layer's name and the number of the time step: "lstm.linear_161.0".
    """
    steps, known = list(steps), ranks(steps)
    readers: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for ref in refs(step.inputs):
            readers[ref.index].append(number)
    forward: dict[int, int] = {}
    for number, unbind in enumerate(steps):
        if unbind.op != "unbind" or (linear := steps[source := unbind.inputs[0].index]).op != "linear":
            continue
        taken = all(steps[at].op == "getitem" and type(steps[at].attrs["index"]) is int for at in readers[number])
        stack = _stack(steps, linear.inputs[0].index, unbind.attrs["dim"])
        if stack is None or known[stack] != 3 or readers[source] != [number] or not taken:
            continue
        states = [ref.index for ref in refs(steps[stack].inputs)]
        if not _in_sequence(steps, states):
            continue
        first: dict[int, int] = {}
        for at in readers[number]:
            time = steps[at].attrs["index"] % len(states)
            steps[at] = Step(f"{linear.name}.{time}", "linear", (Ref(states[time]),), linear.attrs)
            forward[at] = first.setdefault(time, at)
    return compact(steps, forward) if forward else steps


def _stack(steps: Sequence[Step], number: int, dim: int) -> int | None:
    """Return the number of the "stack" along dimension `dim`, 0 or 1, whose result is step `number`'s; else None.

    Between both the two first dimensions may be exchanged, and one of size 1 be put in and taken out again, as between
    two recurrent layers of an ONNX file.
    """
    while (step := steps[number]).op != "stack":
        before = steps[step.inputs[0].index] if step.inputs and isinstance(step.inputs[0], Ref) else step
        if (step.op, *step.attrs.items()) in _EXCHANGES:
            dim = 1 - dim
        elif step.op == "squeeze" and before.op == "unsqueeze" and before.attrs == step.attrs:
            step = before
        else:
            return None
        number = step.inputs[0].index
    return number if step.attrs["dim"] == dim and dim in (0, 1) else None


_EXCHANGES = [
    ("transpose", ("dim0", 0), ("dim1", 1)),
    ("transpose", ("dim0", 1), ("dim1", 0)),
    ("permute", ("dims", (1, 0, 2))),
]


def _in_sequence(steps: Sequence[Step], states: Sequence[int]) -> bool:
    """Whether the value of one of the steps `states` depends on that of another one."""
    last, least, others = max(states), min(states), set(states)
    others.discard(last)
    left, seen = [last], set[int]()
    while left:
        for ref in refs(steps[left.pop()].inputs):
            if ref.index in others:
                return True
            if ref.index > least and ref.index not in seen:
                seen.add(ref.index)
                left.append(ref.index)
    return False


# Inputs of recurrent layers, clamped ---------------------------------------------------------------------------------
#
# A function of a recurrent layer reads a + b, where the input adds a, and the state adds b. a is known for all steps of
# time at once. It may lie far beyond the numbers between which a sigmoid or a tanh bends; b does not, or not as far. A
# table for all values of a + b would be large, and a clamp of a + b would take rounds in every step of time. So a is
# clamped.


class InputTerm(NamedTuple):
    """Where the argument a + b of a function of a recurrent layer comes from.

    source: the number of the "linear" step that gives a, for all time steps. start, stop: the columns of its result.
    total: the number of the "add" step that gives a + b; None if there is no b. own: which input of `total` is a.
    first, last: the columns of the result of `total` that the function reads.
    """

    source: int
    start: int
    stop: int
    total: int | None = None
    own: int = 0
    first: int = 0
    last: int = 0

    @property
    def columns(self) -> tuple[int, int, int]:
        """The source, and its columns."""
        return self.source, self.start, self.stop


def input_terms(steps: Sequence[Step]) -> dict[str, InputTerm]:
    """Return the terms of the steps whose argument is a sum with a term of all time steps' inputs, by the steps' names.

    Only time steps of one function, "name", "name#1" and so on, read the columns of a term.
    """
    known, found, others = ranks(steps), dict[str, InputTerm](), set[int]()
    for step in steps:
        for ref in refs(step.inputs):
            term = _term(steps, ref.index)
            if term is None or known[term.source] != 3:
                others.update(_passed_by(steps, step, ref.index))
            elif not (_cuts(step) or _part(step) or _sum_with(steps, step) is not None):
                # A step with several inputs is no function of a + b alone.
                others.update([term.source] if step.name in found or len(step.inputs) > 1 else [])
                found[step.name] = term
    names: dict[tuple[int, int, int], set[str]] = {}
    for name, term in found.items():
        names.setdefault(term.columns, set()).add(name.partition("#")[0])
    cut = [columns for columns in names if columns[0] not in others]
    for source, start, stop in names:
        crossed = [one for one in cut if one[0] == source and one[1] < stop and start < one[2]]
        if len(crossed) > 1 or len(names[source, start, stop]) > 1:
            cut = [columns for columns in cut if columns not in crossed]
    return {name: term for name, term in found.items() if term.columns in cut}


def _part(step: Step) -> bool:
    """Whether a step takes one of the values of another step's list."""
    return step.op == "getitem" and type(step.attrs["index"]) is int


def _cuts(step: Step) -> bool:
    """Whether a step divides columns, of a value (N, columns)."""
    return step.attrs.get("dim") in (1, -1) and (step.op == "chunk" or type(step.attrs.get("sizes")) is tuple)


def _passed_by(steps: Sequence[Step], step: Step, read: int) -> list[int]:
    """Return the linear step whose result a step reads in another way than by time steps, in a list; [] if none.

    read: the number of an input of the step.
    """
    before = steps[read]
    if before.op == "linear" and step.op != "unbind":
        return [read]
    if before.op == "unbind" and not _part(step):
        return [before.inputs[0].index]
    return []


def _sum_with(steps: Sequence[Step], step: Step) -> int | None:
    """Return which input of an "add" step, 0 or 1, is a term of the input; None if none is, or both are.

    None also for other steps.
    """
    if step.op != "add":
        return None
    sources = [_of_time(steps, _cut_from(steps, ref.index)[0]) for ref in refs(step.inputs)]
    mine = [own for own, source in enumerate(sources) if source is not None]
    return mine[0] if len(mine) == 1 else None


def _term(steps: Sequence[Step], number: int) -> InputTerm | None:
    """Return the term of the input in the value of a step, whose number is given; None if it has none."""
    end, cuts = _cut_from(steps, number)
    own = _sum_with(steps, steps[end])
    at, more = (end, []) if own is None else _cut_from(steps, steps[end].inputs[own].index)
    source = _of_time(steps, at)
    if source is None:
        return None
    start, stop = _columns(more, len(steps[source].attrs["weight"]))
    first, last = _columns(cuts, stop - start)
    columns = start + first, start + last
    return InputTerm(source, *columns) if own is None else InputTerm(source, *columns, end, own, first, last)


def _cut_from(steps: Sequence[Step], number: int) -> tuple[int, list[tuple[Any, int]]]:
    """Follow a step back through divisions of columns; return the number of the step that they divide, and the cuts.

    A cut is the sizes, or the number of parts, and which part is taken; the first one that is made comes first.
    """
    cuts: list[tuple[Any, int]] = []
    while _part(step := steps[number]) and _cuts(before := steps[step.inputs[0].index]):
        cuts.insert(0, (before.attrs["sizes" if before.op == "split" else "chunks"], step.attrs["index"]))
        number = before.inputs[0].index
    return number, cuts


def _columns(cuts: Sequence[tuple[Any, int]], width: int) -> tuple[int, int]:
    """Return the first column that cuts leave of `width` columns, and the one behind the last."""
    start = 0
    for sizes, place in cuts:
        parts = sizes if isinstance(sizes, tuple) else [len(part) for part in torch.arange(width).chunk(sizes)]
        start += sum(parts[:place])
        width = parts[place]
    return start, start + width


def _of_time(steps: Sequence[Step], number: int) -> int | None:
    """Return the number of the linear step of whose result step `number` takes a time step; None if it does not."""
    step = steps[number]
    before = steps[step.inputs[0].index] if _part(step) else step
    if before.op != "unbind" or before.attrs["dim"] not in (0, 1):
        return None
    source: int = before.inputs[0].index
    return source if steps[source].op == "linear" else None


def clamped(steps: Sequence[Step], bounds: Mapping[str, tuple[float, float]]) -> list[Step]:
    """Return the steps with the input's terms of some functions clamped, for all time steps at once.

    bounds: the numbers to which they are clamped, by the names of the functions, each a key of `input_terms`. All time
    steps of a function have the same. A new step has the name of the first of its function's time steps, and ".input".
    """
    terms, parts = input_terms(steps), dict[int, dict[tuple[int, int], tuple[str, float, float]]]()
    for name, term in terms.items():
        if (first := name.partition("#")[0]) in bounds:  # the layer may be called on several inputs
            parts.setdefault(term.source, {}).setdefault((term.start, term.stop), (name, *bounds[first]))
    out, number = list[Step](), dict[int, int]()
    for index, step in enumerate(steps):
        out.append(replace(step, inputs=map_refs(step.inputs, lambda ref: Ref(number[ref.index]))))
        number[index] = len(out) - 1
        if index in parts:
            number[index] = _clamped_columns(out, parts[index])
    return out


def _clamped_columns(out: list[Step], parts: Mapping[tuple[int, int], tuple[str, float, float]]) -> int:
    """Append steps that clamp columns of the last step's result; return the number of the last one.

    parts: by columns, the name and the bounds of a clamp.
    """
    step, source = out[-1], Ref(len(out) - 1)
    edges = sorted({0, len(step.attrs["weight"]), *(edge for columns in parts for edge in columns)})
    pieces, columns = list[Ref](), list(zip(edges[:-1], edges[1:], strict=True))

    def emit(*made: Any) -> Ref:
        out.append(Step(*made))
        return Ref(len(out) - 1)

    cut = emit(f"{step.name}.columns", "split", (source,), {"sizes": tuple(b - a for a, b in columns), "dim": 2})
    for place, part in enumerate(columns):
        pieces.append(emit(f"{step.name}.columns_{place}", "getitem", (cut,), {"index": place}))
        if part in parts:
            name, low, high = parts[part]
            pieces[-1] = emit(f"{name}.input", "hardtanh", (pieces[-1],), {"low": low, "high": high})
    return emit(f"{step.name}.clamped", "cat", (tuple(pieces),), {"dim": 2}).index
