"""Registers of a server's turn during planning: register 0 is received, and each operation makes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from hummingbird.he.compile.im2col import Map, natural
from hummingbird.he.runtime.operations import Form, Operation, Pick
from hummingbird.he.runtime.program import Program
from hummingbird.he.scheme.masking import Mask


@dataclass(frozen=True, eq=False)
class Located:
    """Location of a value's ciphertexts: positions in a register, int64 in the value's shape, -1 for zero.

    The value is an integer times `unit`; in a client-aided turn also times 2^-s, for the client's scale s.
    """

    register: int
    index: Tensor
    unit: Fraction

    def is_whole(self, count: int) -> bool:
        """Whether the value is its whole register of `count` ciphertexts, in order."""
        flat = self.index.reshape(-1)
        return flat.numel() == count and bool((flat == torch.arange(count)).all())


class Registers:
    """The operations of a turn so far. received: the form of register 0."""

    def __init__(self, received: Form) -> None:
        self.received = received
        self.operations: list[Operation] = []

    def program(self, returns: Sequence[int] = (), masks: Sequence[Mask] = ()) -> Program:
        """The operations so far as a program that sends these registers back."""
        return Program(self.received, tuple(self.operations), tuple(returns), tuple(masks))

    def form(self, located: Located) -> Form:
        """Form of the register that a value is in."""
        return self.program().forms()[located.register]

    def add(self, operation: Operation, shape: Sequence[int], unit: Fraction, linear: Map | None = None) -> Located:
        """Add an operation; returns the location of its result, of this shape. linear: the map that it computes."""
        self.operations.append(operation)
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        return Located(len(self.operations), natural(shape, rows, last), unit)

    def pick(
        self, registers: tuple[int, ...], index: Tensor, factors: tuple[int, ...], unit: Fraction, *,
        constants: Tensor | None = None, size: int = 0, primes: int = 0,
    ) -> Located:  # fmt: skip
        """Copy ciphertexts from concatenated registers to a new one, by default of the largest size and fewest
        primes.
        """
        all_forms = self.program().forms()
        forms = [all_forms[register] for register in registers]
        size, primes = size or max(form.size for form in forms), primes or min(form.primes for form in forms)
        operation = Pick(registers, index.reshape(-1).int(), factors, size, primes, constants)
        return self.add(operation, index.shape, unit)

    def own(self, located: Located, shape: Sequence[int], size: int = 0, primes: int = 0) -> Located:
        """Give the value its own register, broadcast to `shape`, in this form; without a copy if it already has one."""
        spread = replace(located, index=located.index.expand(tuple(shape)))
        form = self.form(located)
        same = size in (0, form.size) and primes in (0, form.primes)
        if same and spread.is_whole(form.count):
            return spread
        return self.pick((located.register,), spread.index, (1,), located.unit, size=size, primes=primes)

    def stream(self, located: Located, linear: Map | None, degree: int) -> tuple[int, int, int, bool]:
        """The order in which a value is sent back: `rows`, `places`, `tile` and `last` of a `Return`."""
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        places = located.index.numel() // rows
        tile = places if linear is None else self.program().tile(located.register - 1, degree)
        return rows, places, min(tile, places), last
