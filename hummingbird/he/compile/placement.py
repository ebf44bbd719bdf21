"""Placement of steps: the turn of each step, at the client on plain values or at the server on ciphertexts.

The server has the parameters, so it computes every step with parameters. Other steps run where their inputs are. If the
client knows the inputs, it computes steps without parameters exactly and at no cost. If the server has computed the
inputs:

client-aided: the server computes pools with a single divisor and sums of values of the same turn, because they make the
answer smaller. The client computes all other steps; it receives the value at the end of the turn. A layer directly
after a layer needs a refresh: the client decrypts and encrypts again. The client computes a sum with a value that it
knows (it could subtract that value anyway), and a sum of values of different turns, whose scales are unrelated.

polynomial: there is one turn. The server computes every step that polynomials can express. Other steps run at the
client if all later steps do too, such as a last softmax; otherwise they are a problem.

Reshaping, and in polynomial mode also signs and factors, is "free": it changes the description of ciphertexts but not
the ciphertexts, and is applied by the role that needs the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import Problem
from hummingbird.graph import Ref, Step
from hummingbird.graph.ops import elementwise
from hummingbird.graph.steps import compact, map_refs, refs
from hummingbird.he.compile.im2col import SUMS, VIEWS, is_weighted, linear_map

CLIENT, SERVER, FREE = "client", "server", "free"
Shapes = Sequence[Any]  # of every step for one image; None for tuples and sizes

_MOST_POWER = 64  # no parameters have enough primes for a higher power
_HINT = 'use x * x, or mode="client-aided", where the client computes it on plain values'


def _power(step: Step) -> int:
    """Return n for a step x ** n with an integer n from 2 to 64; 0 for other steps."""
    if step.op != elementwise.OP or step.attrs["function"] != "pow" or len(step.inputs) != 2:
        return 0
    base, exponent = step.inputs
    whole = isinstance(base, Ref) and isinstance(exponent, (int, float)) and exponent in range(2, _MOST_POWER + 1)
    return int(exponent) if whole else 0


def is_view(step: Step) -> bool:
    """Return whether the step only reorders its inputs' values, perhaps with added zeros."""
    return step.op in VIEWS or (step.op == "pad" and step.attrs["value"] == 0)


def prepared(steps: Sequence[Step], shapes: Shapes, mode: str) -> list[Step]:
    """Return a net's steps rewritten for placement: without arithmetic on sizes, and with each PReLU as two ReLUs.

    A PReLU becomes relu(x) - slope relu(-x), where the server has the slope. In polynomial mode integer powers become
    products. shapes: of each step's value for one image.
    """
    out: list[Step] = []
    number: dict[int, int] = {}

    def emit(name: str, op: str, *inputs: Any, **attrs: Any) -> Ref:
        out.append(Step(name, op, inputs, attrs))
        return Ref(len(out) - 1)

    for index, step in enumerate(steps):
        inputs = map_refs(step.inputs, lambda ref: Ref(number[ref.index]))
        x = inputs[0] if inputs else None
        if step.op == "reshape":  # a size may be the batch's; the rest of the shape is known
            emit(step.name, "reshape", x, -1, *shapes[index])
        elif step.op == "expand":
            emit(step.name, "expand", x, -1, *shapes[index])
        elif step.op == "resize" and len(inputs) > 1:
            emit(step.name, "resize", x, *shapes[index][1 - len(inputs) :], **step.attrs)
        elif step.op == "prelu":
            slope = step.attrs["weight"].view(-1, *(1,) * (len(shapes[index]) - 1))
            minus = emit(f"{step.name}.relu_minus", "relu", emit(f"{step.name}.minus", "neg", x))
            scaled = emit(f"{step.name}.slope", "mul", minus, value=slope)
            emit(step.name, "sub", emit(f"{step.name}.relu", "relu", x), scaled)
        elif mode == "polynomial" and (exponent := _power(step)):
            power, reached = x, 1
            for bit in bin(exponent)[3:]:  # from the second bit on: squared, and times x where it is a one
                power, reached = emit(f"{step.name}.{2 * reached}", "square", power), 2 * reached
                if bit == "1":
                    power, reached = emit(f"{step.name}.{reached + 1}", "mul", power, x), reached + 1
        else:
            out.append(replace(step, inputs=inputs))
        number[index] = len(out) - 1
    return compact(out)


@dataclass(frozen=True)
class StepPlace:
    """The role that computes a step, and the turn in which it does.

    side: CLIENT, SERVER, or FREE for a step that changes no ciphertexts, such as a reshape. turn: for the server, the
    turn in which it computes the step; for FREE, the turn of the ciphertexts; for the client, the turn before which it
    has the value.
    """

    side: str
    turn: int


@dataclass
class Placement:
    """Says for each step of a net which role computes it, the client or the server, and in which turn.

    steps, shapes: the net's steps, and the shape of each step's value for one image.
    places: the role and the turn of each step.
    `demand` fills in four lists. Each has one list of step numbers for every turn:
    client: the client's steps; its last entry is for the steps after the last turn.
    sends: the values that the client encrypts. served: the server's steps. returns: the values that the server sends
    back.
    """

    steps: Sequence[Step]
    shapes: Shapes
    places: list[StepPlace]
    client: list[list[int]] = field(default_factory=list)
    sends: list[list[int]] = field(default_factory=list)
    served: list[list[int]] = field(default_factory=list)
    returns: list[list[int]] = field(default_factory=list)

    def known(self, index: int) -> int:
        """Return the number of the first turn at whose start the client has the value of step `index` in the clear."""
        place = self.places[index]
        return place.turn + (place.side != CLIENT)

    def passes(self, index: int, turn: int) -> bool:
        """Return whether the server gets a step's value in a turn by moving or rescaling the ciphertexts of the step's
        inputs.

        If not, the server computes the value, or the client encrypts it. A reshape or a pad of a value that the client
        knows passes: the client encrypts the input, and so no zeros. A slice of such a value does not pass, as its
        input is larger.
        index: of the step. turn: number of the turn.
        """
        place, step = self.places[index], self.steps[index]
        if place.turn == turn and place.side != CLIENT:
            return place.side == FREE
        if not is_view(step) or step.op in ("cat", "stack") or self.shapes[index] is None:
            return False
        before = self.shapes[step.inputs[0].index]
        return before is not None and math.prod(before) <= math.prod(self.shapes[index])

    def demand(self) -> None:
        """Find the steps that the output needs, and fill in the lists `client`, `sends`, `served` and `returns`."""
        turns = max(self.known(len(self.steps) - 1), 0)
        client, sends, served, returns = (set[int]() for _ in range(4))
        seen: set[tuple[int, int]] = set()

        def know(index: int) -> None:
            if (index, -1) in seen:
                return
            seen.add((index, -1))
            if self.places[index].side == SERVER:
                returns.add(index)
                cipher(index, self.places[index].turn)
                return
            client.add(index)
            for ref in refs(self.steps[index].inputs):
                know(ref.index)

        def cipher(index: int, turn: int) -> None:
            if (index, turn) in seen:
                return
            seen.add((index, turn))
            place = self.places[index]
            if place.side == SERVER and place.turn == turn:
                served.add(index)
            elif not self.passes(index, turn):
                sends.add(index)
                know(index)
                return
            for ref in refs(self.steps[index].inputs):
                cipher(ref.index, turn)

        know(len(self.steps) - 1)
        self.client = [sorted(i for i in client if self.known(i) == turn) for turn in range(turns + 1)]
        self.sends = [sorted(i for i in sends if self.known(i) == turn) for turn in range(turns)]
        self.served = [sorted(i for i in served if self.places[i].turn == turn) for turn in range(turns)]
        self.returns = [[i for i in served if i in returns] for served in self.served]


def place(steps: Sequence[Step], shapes: Shapes, mode: str) -> tuple[Placement, list[Problem]]:
    """Decide which role computes each step, and in which turn; return the placement, and a list of problems.

    steps: from `prepared`. shapes: of each step's value. mode: "client-aided" or "polynomial". There is a problem for
    every step that the mode cannot express.
    """
    decide = _aided if mode == "client-aided" else _polynomial
    placement, found = Placement(steps, shapes, []), _misplaced(steps)
    if found:
        return placement, found
    for index, step in enumerate(steps):
        inputs = [placement.places[ref.index] for ref in refs(step.inputs)]
        side = CLIENT if step.op in ("input", "output") else decide(step, inputs, placement)
        turn = max((p.turn + (p.side != CLIENT and side == CLIENT) for p in inputs), default=0)
        if mode == "client-aided" and is_weighted(step):
            turn = max(placement.known(ref.index) for ref in refs(step.inputs))
        if mode == "polynomial" and side != CLIENT and turn > 0:
            found += [_encrypted(steps, i, step.name) for i in _culprits(placement, index)]
            turn = 0
        placement.places.append(StepPlace(side, turn))
    if not found:
        placement.demand()
    return placement, list(dict.fromkeys(found))


def _encrypted(steps: Sequence[Step], index: int, reader: str) -> Problem:
    """Make the problem for a step that only the client can compute although a later step needs its result encrypted.

    index: of the step. reader: name of the later step. A PReLU was replaced by several steps; its name stands for them.
    """
    step = steps[index]
    name, op = step.name, step.attrs.get("function", step.op)
    whole = name.removesuffix(".relu_minus").removesuffix(".relu")
    if whole != name and any(other.name == f"{whole}.slope" for other in steps):
        what = "prelu of an encrypted value: its slopes are the server's, and nobody knows its signs"
        return Problem(whole, what, _HINT)
    return Problem(name, f"{op} of an encrypted value, which {reader!r} needs encrypted", _HINT)


def _misplaced(steps: Sequence[Step]) -> list[Problem]:
    """List a problem for each step with parameters that would have to run at the client.

    The client must not know parameters.
    """
    return [
        Problem(
            step.name, f"{step.op} of a tensor that the net holds", "add it, multiply by it, or put it into a layer"
        )
        for step in steps
        if any(isinstance(value, Tensor) for value in step.attrs.values()) and not is_weighted(step)
    ]


def _aided(step: Step, inputs: Sequence[StepPlace], placement: Placement) -> str:
    if is_weighted(step):
        return SERVER
    if not inputs or any(p.side == CLIENT for p in inputs) or len({p.turn for p in inputs}) > 1:
        return CLIENT
    if step.op in SUMS and _divides_evenly(step, placement):
        return SERVER
    if step.op in ("add", "sub") and len(inputs) == 2:
        return SERVER
    return FREE if is_view(step) and len(inputs) == 1 else CLIENT


def _polynomial(step: Step, inputs: Sequence[StepPlace], placement: Placement) -> str:
    if is_weighted(step):
        return SERVER
    if all(p.side == CLIENT for p in inputs) or any(p.side == CLIENT and p.turn > 0 for p in inputs):
        return CLIENT
    if step.op in SUMS or step.op in ("add", "sub", "square", "pad") or (step.op == "mul" and len(inputs) == 2):
        return FREE if is_view(step) else SERVER
    return FREE if is_view(step) or step.op in ("neg", "mul") else CLIENT


def _divides_evenly(step: Step, placement: Placement) -> bool:
    shape = placement.shapes[step.inputs[0].index]
    return linear_map(step, torch.arange(math.prod(shape)).view(shape)).weights is None


def _culprits(placement: Placement, index: int) -> list[int]:
    """List the numbers of the steps that only the client can compute although step `index` needs their results
    encrypted.

    They are steps on which step `index` depends, such as a ReLU between two layers in polynomial mode.
    """
    found, waiting = set(), [ref.index for ref in refs(placement.steps[index].inputs)]
    while waiting:
        i = waiting.pop()
        if placement.places[i].side == CLIENT and placement.places[i].turn > 0:
            step = placement.steps[i]
            before = [ref.index for ref in refs(step.inputs)]
            if _polynomial(step, [StepPlace(SERVER, 0)] * len(before), placement) == CLIENT:
                found.add(i)
            waiting += before
    return sorted(found)
