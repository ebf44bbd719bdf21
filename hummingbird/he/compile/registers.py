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
    """Where the ciphertexts of a value are at the server: in which register, an array of ciphertexts, and where in it.

    register: its number. index: for each number of the value the position of its ciphertext in the register, int64 in
    the value's shape; -1 for a zero.
    unit: in polynomial mode, the real number that an integer 1 of the value stands for. In client-aided mode this
    number is unit * 2^-s, where the client encrypts at scale 2^s.
    """

    register: int
    index: Tensor
    unit: Fraction

    def is_whole(self, count: int) -> bool:
        """Return whether the value's ciphertexts are the whole register of `count` ciphertexts, in its order."""
        flat = self.index.reshape(-1)
        return flat.numel() == count and bool((flat == torch.arange(count)).all())


class Registers:
    """The operations of a server's turn while it is planned. Each operation makes a register, an array of ciphertexts.

    Register 0 comes from the client; operation k makes register k + 1. received: the form of register 0.
    """

    def __init__(self, received: Form) -> None:
        self.received = received
        self.operations: list[Operation] = []

    def program(self, returns: Sequence[int] = (), masks: Sequence[Mask] = ()) -> Program:
        """Return all operations added so far as a `Program`, the server's computation in one turn.

        returns: numbers of the registers that are sent back. masks: the noise for each of them, if answers are masked.
        """
        return Program(self.received, tuple(self.operations), tuple(returns), tuple(masks))

    def form(self, located: Located) -> Form:
        """Return the form (number of ciphertexts, of components and of primes) of the register that a value is in."""
        return self.program().forms()[located.register]

    def add(self, operation: Operation, shape: Sequence[int], unit: Fraction, linear: Map | None = None) -> Located:
        """Add an operation, whose result becomes the next register; return where the result is.

        shape: of the result for one image. unit: the real number that an integer 1 of the result stands for.
        linear: the `Map` that the operation computes, None if it computes something else.
        """
        self.operations.append(operation)
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        return Located(len(self.operations), natural(shape, rows, last), unit)

    def pick(
        self, registers: tuple[int, ...], index: Tensor, factors: tuple[int, ...], unit: Fraction, *,
        constants: Tensor | None = None, size: int = 0, primes: int = 0,
    ) -> Located:  # fmt: skip
        """Add an operation that copies ciphertexts from some registers into a new register; return where the copies
        are.

        registers: numbers of the registers that are read.
        index: which ciphertexts to copy, int64 in the shape of the new value. Positions count through the registers one
        after another; -1 inserts a zero.
        factors: an integer for each register, by which its ciphertexts are multiplied.
        unit: the real number that an integer 1 of the result stands for.
        constants: residues to add to the copies, int32 (copies, primes), or None.
        size, primes: components and primes of each new ciphertext; 0: the most components and the fewest primes that
        any of the registers has.
        """
        all_forms = self.program().forms()
        forms = [all_forms[register] for register in registers]
        size, primes = size or max(form.size for form in forms), primes or min(form.primes for form in forms)
        operation = Pick(registers, index.reshape(-1).int(), factors, size, primes, constants)
        return self.add(operation, index.shape, unit)

    def own(self, located: Located, shape: Sequence[int], size: int = 0, primes: int = 0) -> Located:
        """Bring a value, broadcast to `shape`, into a register that holds nothing else; return where it is then.

        If the value is in such a register already, nothing is copied. located: where the value is now.
        size, primes: how many components and primes each ciphertext of the new register has; 0: as many as now.
        """
        spread = replace(located, index=located.index.expand(tuple(shape)))
        form = self.form(located)
        same = size in (0, form.size) and primes in (0, form.primes)
        if same and spread.is_whole(form.count):
            return spread
        return self.pick((located.register,), spread.index, (1,), located.unit, size=size, primes=primes)

    def stream(self, located: Located, linear: Map | None, degree: int) -> tuple[int, int, int, bool]:
        """Return in which order a value's ciphertexts are sent to the client, as four fields of a `Return`.

        They are `rows`, `places` and `tile` (three ints), and `last` (a bool).
        located: where the value is. linear: the linear step that computes the value; None if another operation does.
        degree: number of coefficients of a ciphertext's polynomials.
        """
        rows, last = (1, False) if linear is None else (linear.rows, linear.last)
        places = located.index.numel() // rows
        tile = places if linear is None else self.program().tile(located.register - 1, degree)
        return rows, places, min(tile, places), last
