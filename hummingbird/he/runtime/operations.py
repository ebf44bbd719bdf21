"""Four server operations on registers, which are arrays of ciphertexts (n, size, primes, N).

A turn is a list of operations. Register 0 holds the received ciphertexts; an operation reads registers and makes a new
one. An operation runs at once, or tile by tile, where a tile is a range of places of all rows: a result that is only
sent back is never in memory completely. Operations compute on integers; only the plan knows scales. A constant is added
to every `apart`-th residue of component 0, the positions of the ones in the encoding of 1 (`packing.constant_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.kernels import ciphertexts
from hummingbird.kernels.ciphertexts import Ring

TILE_BYTES = 32 << 20  # of ciphertexts in one tile


@dataclass(frozen=True)
class Form:
    """The form of a register, which is an array of ciphertexts at the server.

    count: number of ciphertexts. size: number of components of each ciphertext. primes: number of primes of their
    modulus.
    """

    count: int
    size: int
    primes: int

    def bytes(self, degree: int) -> int:
        """Return the size of the register in bytes. degree: number of coefficients of a ciphertext's polynomials."""
        return 4 * self.count * self.size * self.primes * degree


@dataclass(frozen=True)
class Gather:
    """A table that says for each weight of a layer which ciphertext it multiplies, in a form that takes little memory.

    Term k of the sum for row group g and output place p reads ciphertext number flat[groups[g] + places[p] + taps[k]];
    a place is a position of the output, such as a pixel.
    flat: numbers of ciphertexts, -1 for a zero, int32 (n,). groups, places, taps: offsets into `flat`, int64,
    one-dimensional.
    """

    flat: Tensor
    groups: Tensor
    places: Tensor
    taps: Tensor

    def table(self, start: int, stop: int) -> Tensor:
        """Return which ciphertext each weight multiplies, for output places start .. stop - 1; -1 stands for a zero.

        A place is a position of the output, such as a pixel. The result is int32 (groups, places, terms of a sum).
        """
        where = self.groups[:, None, None] + self.places[start:stop, None] + self.taps
        return self.flat[where.reshape(-1)].view(where.shape)

    @property
    def most(self) -> int:
        """The largest number of input values that one output adds up; zeros from padding do not count."""
        cuts = range(0, self.places.numel(), 64)
        return max(int((self.table(i, min(i + 64, self.places.numel())) >= 0).sum(-1).max()) for i in cuts)


@dataclass(frozen=True, eq=False)
class Linear:
    """An operation of the server for a layer: it makes a register of sums of integer weights times ciphertexts.

    source: number of the register that it reads. gather: which ciphertext of this register each weight multiplies.
    parts: the weights, float64 (groups, rows, terms), cut along the terms into pieces that float64 computes exactly.
    The sums of all pieces are added modulo each prime.
    one: position in the register of the encrypted constant 1, which the weights' last column multiplies; None without
    such a column.
    constants: residues that are added to all results of a row, int32 (groups * rows, primes), or None.
    """

    source: int
    gather: Gather
    parts: tuple[Tensor, ...]
    one: int | None
    constants: Tensor | None

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def rows(self) -> int:
        return self.parts[0].shape[0] * self.parts[0].shape[1]

    @property
    def places(self) -> int:
        return self.gather.places.numel()

    def form(self, forms: Sequence[Form]) -> Form:
        """Return the form (numbers of ciphertexts, of components and of primes) of the register that this operation
        makes.

        forms: the forms of all registers made before, by number.
        """
        return Form(self.rows * self.places, forms[self.source].size, forms[self.source].primes)

    def tile(
        self, ring: Ring, registers: dict[int, Tensor], start: int, stop: int, apart: int, out: Tensor | None = None
    ) -> Tensor:
        """Compute the operation for output places start .. stop - 1: int32 (rows, stop - start, components, primes, N).

        A place is a position of the output, such as a pixel. registers: the ciphertexts of each register, by number.
        apart: constants are added to every `apart`-th coefficient, beginning with the first.
        out: a tensor for the result, or None to make one.
        """
        x = registers[self.source]
        index = self.gather.table(start, stop)
        if self.one is not None:
            index = torch.cat([index, index.new_full((*index.shape[:2], 1), self.one)], 2)
        columns = index.split([part.shape[2] for part in self.parts], 2)
        out = ciphertexts.linear(ring, self.parts[0], columns[0].contiguous(), x, out)
        for weights, read in zip(self.parts[1:], columns[1:], strict=True):
            out.copy_(ciphertexts.add(ring, out, ciphertexts.linear(ring, weights, read.contiguous(), x)))
        if self.constants is not None:
            ciphertexts.shift(ring, out, self.constants[:, : out.shape[3]].contiguous(), apart)
        return out


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """An operation of the server: it computes factors[0] a + factors[1] b, for each ciphertext of two registers a and
    b.

    a, b: numbers of the registers, which have one form. factors: two integers.
    """

    a: int
    b: int
    factors: tuple[int, int]

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.a, self.b)

    def form(self, forms: Sequence[Form]) -> Form:
        return forms[self.a]

    def run(self, ring: Ring, registers: dict[int, Tensor], apart: int) -> Tensor:
        a, b = (times(ring, registers[i], f) for i, f in zip(self.sources, self.factors, strict=True))
        return ciphertexts.add(ring, a, b)


@dataclass(frozen=True, eq=False)
class Product:
    """An operation of the server: it multiplies the ciphertexts of register a by those of register b, one by one.

    If a and b are one register, it squares. a, b: numbers of the registers. The ciphertexts' components must all be NTT
    values.
    """

    a: int
    b: int

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.a, self.b)

    def form(self, forms: Sequence[Form]) -> Form:
        a, b = forms[self.a], forms[self.b]
        return Form(a.count, a.size + b.size - 1, a.primes)

    def run(self, ring: Ring, registers: dict[int, Tensor], apart: int) -> Tensor:
        if self.a == self.b:
            return ciphertexts.square(ring, registers[self.a])
        return ciphertexts.multiply(ring, registers[self.a], registers[self.b])


@dataclass(frozen=True, eq=False)
class Pick:
    """An operation of the server: it copies ciphertexts from some registers into a new one, and may add constants.

    sources: numbers of the registers that are read.
    index: which ciphertexts to copy, int32 (n,). Positions count through the registers one after another; -1 inserts a
    zero.
    factors: an integer for each register, by which its ciphertexts are multiplied.
    size, primes: number of components and primes of each new ciphertext.
    constants: residues to add, int32 (n, primes), or None.
    """

    sources: tuple[int, ...]
    index: Tensor
    factors: tuple[int, ...]
    size: int
    primes: int
    constants: Tensor | None = None

    def form(self, forms: Sequence[Form]) -> Form:
        return Form(self.index.numel(), self.size, self.primes)

    def run(self, ring: Ring, registers: dict[int, Tensor], apart: int) -> Tensor:
        ring = ring.take(self.primes)
        out = registers[self.sources[0]].new_zeros(self.index.numel(), self.size, self.primes, ring.degree)
        first = 0
        for source, factor in zip(self.sources, self.factors, strict=True):
            part = registers[source]
            where = ((self.index >= first) & (self.index < first + len(part))).nonzero()[:, 0]
            # Fewer primes are the same integers modulo their product: nothing is divided.
            found = part[self.index[where] - first, :, : self.primes]
            out[where, : part.shape[1]] = times(ring, found, factor)
            first += len(part)
        if self.constants is not None:
            ciphertexts.shift(ring, out[:, None], self.constants[:, : self.primes].contiguous(), apart)
        return out


Operation = Linear | WeightedSum | Product | Pick


def switched(ring: Ring, x: Tensor, primes: int, kind: str) -> Tensor:
    """Divide ciphertexts by their last primes, one after another, until `primes` of them are left; return the
    ciphertexts.

    x: int32 (n, components, primes so far, N).
    kind: "mixed" if component 0 is given as coefficients and the others are transformed (NTT), "ntt" if all are
    transformed. The result has this form too.
    """
    while x.shape[-2] > primes:
        x = ciphertexts.switch(ring.take(x.shape[-2]), x, kind)
    return x


def times(ring: Ring, x: Tensor, factor: int) -> Tensor:
    """Multiply polynomials modulo L primes by an integer: return int32 (..., L, N).

    x: int32 (..., L, N). factor: an integer of at most 20 significant bits.
    """
    while factor != 1:
        shift = max(0, abs(factor).bit_length() - 24)
        step = factor >> shift if shift <= 24 else 1 << 24
        x = ciphertexts.add(ring, torch.zeros_like(x), x, step)
        factor //= step
    return x
