"""Plans as data: for every turn the messages and the server's program, and for every step a line of the report.

he/compile makes plans; the modules that run, price or report a net read them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird.graph import Step
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.operations import TILE_BYTES, Form, Linear, Operation
from hummingbird.he.scheme import masking
from hummingbird.he.scheme.masking import Mask

Data = TypeVar("Data")


@dataclass(frozen=True)
class Program:
    """The server's computation in one turn: a list of operations on registers, which are arrays of ciphertexts.

    received: form of register 0, which the client sends. Operation k makes register k + 1.
    returns: numbers of the registers to send back, in order.
    masks: the noise that hides the weights, one `Mask` for each returned register; empty if answers are not masked.
    With masks, the last ciphertext from the client encrypts a zero.
    """

    received: Form
    operations: tuple[Operation, ...]
    returns: tuple[int, ...]
    masks: tuple[Mask, ...] = ()

    def forms(self) -> list[Form]:
        """List the forms (numbers of ciphertexts, of components and of primes) of all registers, in order."""
        forms = [self.received]
        for operation in self.operations:
            forms.append(operation.form(forms))
        return forms

    def last_use(self, register: int) -> int:
        """Return the number of the last operation that reads a register; -1 if none does."""
        return max((k for k, op in enumerate(self.operations) if register in op.sources), default=-1)

    def tile(self, number: int, degree: int) -> int:
        """Return how many output places of a layer the server computes at once, as one tile; a place is a pixel, for
        example.

        number: of the operation, which must be a `Linear`. degree: number of coefficients of a ciphertext's
        polynomials.
        """
        operation, made = self.operations[number], self.forms()[number + 1]
        assert isinstance(operation, Linear)
        return max(1, TILE_BYTES // Form(operation.rows, made.size, made.primes).bytes(degree))

    def memory(self, degree: int) -> int:
        """Return the predicted peak bytes of ciphertexts in this turn.

        While an operation runs, these count: the registers that it or a later operation reads, and the register that it
        makes. If that is computed and sent back tile by tile (`streams`), two tiles count in its place.
        degree: number of coefficients of a ciphertext's polynomials.
        """
        forms, live, most = self.forms(), {0}, self.received.bytes(degree)
        for k, operation in enumerate(self.operations):
            made = self.held(k + 1, degree) * (1 + self.streams(k))  # the modulus switch copies a tile
            most = max(most, made + sum(forms[register].bytes(degree) for register in live))
            live -= {register for register in operation.sources if self.last_use(register) == k}
            live |= {k + 1} if self.last_use(k + 1) >= 0 else set()
        return most

    def held(self, register: int, degree: int) -> int:
        """Return how many bytes of a register are held while the operation that makes it runs.

        A result that is computed and sent back tile by tile (`streams`) counts as one tile, others as whole registers.
        register: its number. degree: number of coefficients of a ciphertext's polynomials.
        """
        form, k = self.forms()[register], register - 1
        if not self.streams(k):
            return form.bytes(degree)
        operation = self.operations[k]
        assert isinstance(operation, Linear)
        return form.bytes(degree) // operation.places * min(operation.places, self.tile(k, degree))

    def streams(self, number: int) -> bool:
        """Return whether the result of an operation is only sent back, so that it is computed and sent tile by tile."""
        is_linear = isinstance(self.operations[number], Linear)
        return is_linear and number + 1 in self.returns and self.last_use(number + 1) < 0


@dataclass(frozen=True)
class ReportLine:
    """A line of the report, for one step of the net.

    name, op: of the step.
    side: who computes it: "encrypted" (the server), "client", or "free", which costs nothing on either side.
    turn: the turn in which the server runs the step, or before which the client runs it.
    register: number of the server's register with the result, 0 for none.
    level: number of primes that are left in the modulus. scale: log2 of the scale of the result's integers.
    margin: log2 of the largest sum of |weights| that float64 computes exactly over the layer's own; None for other
    steps.
    down: bytes that the server sends back for this step.
    rms, error: root mean square of the value, and of its predicted error.
    """

    name: str
    op: str
    side: str
    turn: int
    register: int = 0
    level: int = 0
    scale: float = 0.0
    margin: float | None = None
    down: int = 0
    rms: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A complete plan for encrypted inference, as the server has it.

    public: the part that the client may know. steps: the net's steps with weights, to compare with the net in the
    clear. programs: what the server computes, one for each turn of `public`. lines: the lines of the report. basis:
    where sizes and ranges come from, in words.

    >>> plan = he.make_plan(net, (4,))
    >>> he.HEModel(plan)(images).shape
    torch.Size([20, 3])
    """

    public: Public
    steps: tuple[Step, ...]
    programs: tuple[Program, ...]
    lines: tuple[ReportLine, ...]
    basis: str

    def distance_bits(self) -> float:
        """Return -log2 of the statistical distance between a batch's answers and answers made without the weights.

        Such answers could be simulated from the outputs alone. The plan must have one turn, whose answers are all
        masked (he/scheme/masking.py).
        """
        (turn,), (program,), degree = self.public.turns, self.programs, self.public.parameters.degree
        distances = (
            2.0 ** -masking.distance_bits(mask.flood, degree, back.size, back.count)
            for back, mask in zip(turn.returns, program.masks, strict=True)
        )
        return -math.log2(sum(distances))


def moved(data: Data, device: torch.device) -> Data:
    """Return dataclasses, tuples and dictionaries with all their tensors on a device.

    Tensors that are there already are not copied.
    """
    out: Any = data
    if isinstance(data, Tensor):
        out = data.to(device)
    elif isinstance(data, tuple):
        out = tuple(moved(item, device) for item in data)
    elif isinstance(data, dict):
        out = {key: moved(value, device) for key, value in data.items()}
    elif is_dataclass(data) and not isinstance(data, type):
        out = replace(data, **{field.name: moved(getattr(data, field.name), device) for field in fields(data)})
    return out
