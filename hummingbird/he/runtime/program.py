"""A plan is data: for every turn, what crosses and what the server does; for every step, a line of the report.

he/compile makes it, and everything that runs, prices or prints a net reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hummingbird.graph import Step
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.operations import TILE_BYTES, Form, Linear, Operation
from hummingbird.he.scheme import masking
from hummingbird.he.scheme.masking import Mask


@dataclass(frozen=True)
class Program:
    """One turn of the server. Operation number k makes register k + 1. returns: the registers sent back, in order.

    masks: for the registers sent back, where answers are masked (he/scheme/masking.py): then the last ciphertext
    received encrypts zero.
    """

    received: Form
    operations: tuple[Operation, ...]
    returns: tuple[int, ...]
    masks: tuple[Mask, ...] = ()

    def forms(self) -> list[Form]:
        """Forms of all registers."""
        forms = [self.received]
        for operation in self.operations:
            forms.append(operation.form(forms))
        return forms

    def last_use(self, register: int) -> int:
        """The number of the last operation that reads a register; -1 where none does."""
        return max((k for k, op in enumerate(self.operations) if register in op.sources), default=-1)

    def tile(self, number: int, degree: int) -> int:
        """Places of a `Linear` that are made at a time."""
        operation, made = self.operations[number], self.forms()[number + 1]
        assert isinstance(operation, Linear)
        return max(1, TILE_BYTES // Form(operation.rows, made.size, made.primes).bytes(degree))

    def memory(self, degree: int) -> int:
        """The most bytes of ciphertexts at a time: registers still to be read, and what is being made."""
        forms, live, most = self.forms(), {0}, self.received.bytes(degree)
        for k, operation in enumerate(self.operations):
            made = self.held(k + 1, degree) * (1 + self.streams(k))  # a tile is there twice, when switched
            most = max(most, made + sum(forms[register].bytes(degree) for register in live))
            live -= {register for register in operation.sources if self.last_use(register) == k}
            live |= {k + 1} if self.last_use(k + 1) >= 0 else set()
        return most

    def held(self, register: int, degree: int) -> int:
        """Bytes of a register while its operation runs: of a tile where it is only sent back."""
        form, k = self.forms()[register], register - 1
        if not self.streams(k):
            return form.bytes(degree)
        operation = self.operations[k]
        assert isinstance(operation, Linear)
        return form.bytes(degree) // operation.places * min(operation.places, self.tile(k, degree))

    def streams(self, number: int) -> bool:
        """Whether an operation's result is only sent back, so that it is made tile by tile and never held."""
        is_linear = isinstance(self.operations[number], Linear)
        return is_linear and number + 1 in self.returns and self.last_use(number + 1) < 0


@dataclass(frozen=True)
class ReportLine:
    """A line of the report, for one step. side: "encrypted", "client", or "free", which costs nothing on either side.

    turn: of the server, or the one before which the client does it. register: of the result at the server, 0 for none.
    level: primes left. scale: log2 of the integer scale. margin: bits left below the exactness bound. down: bytes sent
    back. rms: of the value; error: predicted, of the value, root mean square.
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
    """steps: the net's, weights included, for comparison in the clear. programs: one for each turn of `public`.

    basis: what sizes and ranges were taken from, in words.
    """

    public: Public
    steps: tuple[Step, ...]
    programs: tuple[Program, ...]
    lines: tuple[ReportLine, ...]
    basis: str

    def distance_bits(self) -> float:
        """-log2 of the statistical distance of a batch's masked answers from ones made of the outputs alone.

        Of a plan of one exchange, whose answers are all masked (he/scheme/masking.py).
        """
        (turn,), (program,), degree = self.public.turns, self.programs, self.public.parameters.degree
        distances = (
            2.0 ** -masking.distance_bits(mask.flood, degree, back.size, back.count)
            for back, mask in zip(turn.returns, program.masks, strict=True)
        )
        return -math.log2(sum(distances))
