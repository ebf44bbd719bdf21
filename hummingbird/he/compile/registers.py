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
    """The location of a value's ciphertexts at the server: a register, an array of ciphertexts, and positions in it.

    index: for each element of the value the position of its ciphertext in the register: int64 in the value's shape, -1
    for a zero. unit: the value is an encrypted integer times `unit`; in a client-aided turn it is the integer times
    `unit` times 2^-s, for the client's scale s.
    """

    register: int
    index: Tensor
    unit: Fraction

    def is_whole(self, count: int) -> bool:
        """Return whether the value's ciphertexts are the whole register of `count` ciphertexts, in its order."""
        flat = self.index.reshape(-1)
        return flat.numel() == count and bool((flat == torch.arange(count)).all())


class Registers:
    """The operations of a server's turn during planning; each makes the next register, an array of ciphertexts.

    received: the form of register 0, which the client sends.
    """

    def __init__(self, received: Form) -> None:
        self.received = received
        self.operations: list[Operation] = []

    def program(self, returns: Sequence[int] = (), masks: Sequence[Mask] = ()) -> Program:
        """Return all operations added so far as a `Program`, which sends the registers `returns` back under `masks`."""
        return Program(self.received, tuple(self.operations), tuple(returns), tuple(masks))

    def form(self, located: Located) -> Form:
        """Return the form of the register that a value is in."""
        return self.program().forms()[located.register]

    def add(self, operation: Operation, shape: Sequence[int], unit: Fraction, linear: Map | None = None) -> Located:
        """Add an operation, whose result becomes the next register; return where the result is.

        shape, unit: of the result. linear: the `Map` that the operation computes, None if it computes something else.
        """
        self.operations.append(operation)
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        return Located(len(self.operations), natural(shape, rows, last), unit)

    def pick(
        self, registers: tuple[int, ...], index: Tensor, factors: tuple[int, ...], unit: Fraction, *,
        constants: Tensor | None = None, size: int = 0, primes: int = 0,
    ) -> Located:  # fmt: skip
        """Add an operation that copies ciphertexts from other registers to a new one; return where the copies are.

        registers: the numbers of the registers to copy from. index: positions in these registers, joined to one array;
        -1 for zero. factors: for each register an integer to multiply by. unit: of the result. constants: residues to
        add, or None. size, primes: components and primes of the result's ciphertexts; 0 takes the largest size and the
        fewest primes of the registers.
        """
        all_forms = self.program().forms()
        forms = [all_forms[register] for register in registers]
        size, primes = size or max(form.size for form in forms), primes or min(form.primes for form in forms)
        operation = Pick(registers, index.reshape(-1).int(), factors, size, primes, constants)
        return self.add(operation, index.shape, unit)

    def own(self, located: Located, shape: Sequence[int], size: int = 0, primes: int = 0) -> Located:
        """Bring a value, broadcast to `shape`, into a register that holds nothing else; return where it is then.

        size, primes: how many components and primes the ciphertexts of the new register have; 0 for as many as now. If
        the value already is in such a register, nothing is copied.
        """
        spread = replace(located, index=located.index.expand(tuple(shape)))
        form = self.form(located)
        same = size in (0, form.size) and primes in (0, form.primes)
        if same and spread.is_whole(form.count):
            return spread
        return self.pick((located.register,), spread.index, (1,), located.unit, size=size, primes=primes)

    def stream(self, located: Located, linear: Map | None, degree: int) -> tuple[int, int, int, bool]:
        """Return the order in which a value's ciphertexts are sent: `rows`, `places`, `tile`, `last` of `Return`.

        linear: the linear step that computes the value, as a `Map`; None if another operation computes it. degree: of
        the ciphertexts.
        """
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        places = located.index.numel() // rows
        tile = places if linear is None else self.program().tile(located.register - 1, degree)
        return rows, places, min(tile, places), last
