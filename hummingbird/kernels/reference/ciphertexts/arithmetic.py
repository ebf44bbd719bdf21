"""Arithmetic on ciphertexts in plain torch: linear layers, sums and products, monomials, and BFV's operations.

kernels/ciphertexts/arithmetic.py has the equations and the bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import arithmetic
from hummingbird.kernels.ciphertexts.ring import Ring, centred
from hummingbird.kernels.reference.ciphertexts.ring import carry
from hummingbird.kernels.registry import implements

_CPU_NUMBERS, _GPU_NUMBERS = 1 << 16, 1 << 24  # float64 numbers per buffer: 4 fit a second-level cache; a full GPU
_LEAST_WIDTH = 128  # columns of a matrix product: with fewer it is slow
_FEW_ROWS = 8  # up to here rows of several places are joined; from about 16 rows on a product has its full speed


@implements(arithmetic.linear, "reference")
def linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor, steps: int) -> None:
    """Implement `kernels.ciphertexts.arithmetic.linear` in plain torch; the result goes to `out`, which may be strided.

    A few places and columns are computed at a time, so that all buffers stay in the cache. steps: how many steps the
    reduction of the largest sum takes, 1 or 2 (`_reduce`).
    """
    (groups, rows, terms), places = weights.shape, index.shape[1]
    numbers = _CPU_NUMBERS if x.is_cpu else _GPU_NUMBERS
    width = ring.degree  # of the columns: as wide as fits, as memory is read fastest in long runs
    while width > _LEAST_WIDTH and width * max(rows, terms) > numbers:
        width //= 2
    lines = x.shape[1:-1].numel()
    flat_x, flat_out = x.view(-1, lines, ring.degree), out.view(groups, rows, places, lines, ring.degree)
    for group, place, factors, sources in _pieces(weights, index, max(1, numbers // (max(rows, terms) * width))):
        count, _, across = sources.shape
        absent = (sources.reshape(-1) < 0).nonzero()[:, 0]
        read = sources.reshape(-1).clamp(min=0)
        words = torch.empty((read.numel(), width), dtype=torch.int32, device=x.device)
        sums = torch.empty((count, factors.shape[1], across * width), dtype=torch.float64, device=x.device)
        room = sums.new_empty(max(words.numel(), sums.numel()))  # for columns, and then for quotients
        columns, spare = room[: words.numel()].view(words.shape), room[: sums.numel()].view(sums.shape)
        results = sums.view(count, -1, rows, across, width).transpose(1, 2).flatten(2, 3)
        for line in range(lines):
            prime = float(ring.primes[line % len(ring.primes)])
            for start in range(0, ring.degree, width):
                here = slice(start, start + width)
                torch.index_select(flat_x[:, line, here], 0, read, out=words)
                columns.copy_(words)
                if absent.numel():
                    columns.index_fill_(0, absent, 0.0)
                torch.bmm(factors, columns.view(count, -1, across * width), out=sums)
                _reduce(sums, prime, steps, spare)
                flat_out[group, :, place, line, here].copy_(results)


_Piece = tuple[slice, slice, Tensor, Tensor]


def _pieces(weights: Tensor, index: Tensor, most: int) -> Iterator[_Piece]:
    """Split the linear combinations of `linear` into matrix products that fit the cache.

    weights, index: as for `linear`. most: how many places a product may have. Yields for each product the range of
    groups and the range of places that it computes, its matrices (one for each group), and the numbers of the
    ciphertexts by which they are multiplied, (groups, ciphertexts, columns). Usually a product has a column for each
    place. But where a layer has so few rows that reading the columns would take most of the time, a few places that
    read mostly the same ciphertexts share one larger matrix, and there is one column (`_stacked`).
    """
    (groups, rows, _), places = weights.shape, index.shape[1]
    runs = _runs(index[0]) if index.device.type == "cpu" and rows <= _FEW_ROWS else []
    if max(runs, default=1) > 1:
        for group in range(groups):
            start = 0
            for count in runs:
                here = slice(start, start + count)
                yield slice(group, group + 1), here, *_stacked(weights[group], index[group, here])
                start += count
        return
    group_step, place_step = max(1, most // places), min(places, most)
    for group in range(0, groups, group_step):
        for start in range(0, places, place_step):
            some, here = slice(group, group + group_step), slice(start, start + place_step)
            yield some, here, weights[some], index[some, here].transpose(1, 2)


def _runs(index: Tensor) -> list[int]:
    """Divide the places of a linear layer, in order, into runs of up to 4 that read mostly the same ciphertexts.

    index: the ciphertexts that each place reads, (places, K). Returns the number of places in each run. A place joins a
        run if earlier places of the run read at least half of its ciphertexts too. So a run of 4 reads at most 2.5 K
        ciphertexts, and computing it as one matrix product takes at most 2.5 times as many multiplications.
    """
    runs: list[int] = []
    seen: set[int] = set()
    for read in index.tolist():
        fresh = set(read) - seen
        if runs and runs[-1] < 4 and 2 * len(fresh) <= len(read):
            runs[-1] += 1
            seen |= fresh
        else:
            runs.append(1)
            seen = set(read)
    return runs


def _stacked(weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Make one matrix that computes the sums of n places at once, and list the ciphertexts by which it is multiplied.

    weights: of the sums, (rows, K). index: for each of the n places the ciphertexts that its sums read, (n, K). Returns
    the matrix (1, n rows, u) and the numbers of the u ciphertexts, (1, u, 1).
    """
    used, position = index.reshape(-1).unique(return_inverse=True)
    places, terms = index.shape
    matrix = weights.new_zeros(places, weights.shape[0], used.numel())
    where = position.view(places, 1, terms).expand(-1, weights.shape[0], -1)
    matrix.scatter_add_(2, where, weights.expand(places, -1, -1))
    return matrix.view(1, -1, used.numel()), used.view(1, -1, 1)


def _reduce(sums: Tensor, prime: float, steps: int, spare: Tensor) -> None:
    """Reduce `sums`, float64 integers, to centred residues modulo the prime, in place.

    steps: 1 for sums below 2^51, 2 for sums below 2^53 - q. spare: memory of the shape of `sums`, which is overwritten.
    """
    for _ in range(steps):
        torch.mul(sums, 1.0 / prime, out=spare).round_()
        sums.sub_(spare, alpha=prime)


# One residue at a time, in float64 -----------------------------------------------------------------------------------


def _by_residue(ring: Ring, sizes: int, steps: int, function: Callable[..., object], *tensors: Tensor) -> Tensor:
    """Apply a function to the residues of ciphertexts, one prime after the other, in float64; returns the reduced
    results.

    tensors: ciphertexts, int32 (n, ..., L, N), of which a few are converted at a time. function: called with the number
    of the prime, an output, and the residues (n, ..., N) of each tensor; it writes its results, `sizes` ring elements
    for each ciphertext, to the output, and may overwrite the residues. steps: of the reduction of its results
    (`_reduce`). Returns int32 (n, sizes, L, N), centred.
    """
    like, count = tensors[0], tensors[0].shape[0]
    out = torch.empty((count, sizes, len(ring.primes), ring.degree), dtype=torch.int32, device=like.device)
    parts = [t.shape[1] for t in tensors]
    most = max(sizes, sum(parts))
    step = max(1, (_CPU_NUMBERS if like.is_cpu else _GPU_NUMBERS) // (ring.degree * most))
    room = torch.empty(2, min(step, count) * most * ring.degree, dtype=torch.float64, device=like.device)
    ends = [0, *itertools.accumulate(parts)]
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        each = (some.stop - start) * ring.degree
        # Quotients overwrite the residues, which are not needed any more then.
        values, spare = (half[: sizes * each].view(-1, sizes, ring.degree) for half in room)
        residues = [room[1, a * each : b * each].view(-1, b - a, ring.degree) for a, b in itertools.pairwise(ends)]
        for i, prime in enumerate(ring.primes):
            for residue, t in zip(residues, tensors, strict=True):
                residue.copy_(t[some, :, i])
            function(i, values, *residues)
            _reduce(values, float(prime), steps, spare)
            out[some, :, i] = values
    return out


@implements(arithmetic.add, "reference")
def add(ring: Ring, x: Tensor, y: Tensor, factor: int) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.add` in plain torch: add two ciphertexts, one times a factor."""
    flat = (x.shape[:-2].numel(), 1, *x.shape[-2:])
    left, right = x.view(flat), y.view(flat)  # |x + factor y| < 2^25 + 2^24 2^25 < 2^50
    sums = _by_residue(ring, 1, 1, lambda _, out, a, b: torch.add(a, b, alpha=factor, out=out), left, right)
    return sums.view(x.shape)


@implements(arithmetic.shift, "reference")
def shift(ring: Ring, x: Tensor, constants: Tensor, moduli: Tensor, step: int) -> None:
    """Implement `kernels.ciphertexts.arithmetic.shift` in plain torch: add constants to ciphertexts.

    constants: residues 0 .. q - 1. moduli: the primes, int32 (L,).
    """
    moduli, part = moduli[:, None], x[:, :, 0, :, ::step]
    count = max(1, (_CPU_NUMBERS if x.is_cpu else _GPU_NUMBERS) // part[0, 0].numel())
    for row, constant in zip(part, constants[..., None], strict=True):
        for piece in row.split(count):
            piece += constant
            piece -= (moduli // 2 - piece).bitwise_right_shift_(31).bitwise_and_(moduli)  # q where it is above q/2


@implements(arithmetic.multiply, "reference")
def multiply(ring: Ring, x: Tensor, y: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.multiply` in plain torch: multiply ciphertexts."""
    a, b = x.shape[1], y.shape[1]
    steps = 1 if min(a, b) <= 2 else 2  # two products of residues are below q^2 / 2 < 2^51
    if x is y:
        return _by_residue(ring, 2 * a - 1, steps, lambda _, out, part: _products(out, part, part), x)
    return _by_residue(ring, a + b - 1, steps, lambda _, out, *parts: _products(out, *parts), x, y)


def _products(out: Tensor, x: Tensor, y: Tensor) -> None:
    """Multiply ciphertexts x (n, a, N) and y (n, b, N) as polynomials in the secret, into `out` (n, a + b - 1, N).

    All three have residues modulo one prime q. Each result is a sum of at most 8 products below q^2 / 4, and so below
    2^53 - q.
    """
    a, b = x.shape[1], y.shape[1]
    torch.mul(x[:, :1], y, out=out[:, :b])
    torch.mul(x[:, 1:], y[:, b - 1 :], out=out[:, b:])
    for i in range(1, a):
        out[:, i : i + b - 1].addcmul_(x[:, i : i + 1], y[:, : b - 1])


@implements(arithmetic.switch, "reference")
def switch(ring: Ring, x: Tensor, plain: int, inverses: list[int]) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.switch` in plain torch: divide ciphertexts by the last prime.

    plain: how many of the first elements of a ciphertext are coefficients; the others are NTT values. inverses: of the
    last prime modulo each other prime.
    """
    head, spread = ring.take(len(inverses)), _spread(ring, x, plain)  # |spread| <= (p - 1) / 2 < 2^25
    # |x - spread| < 2^26 and |inverse| < 2^25: the product is below 2^51.
    return _by_residue(head, x.shape[1], 1, lambda i, out, a, b: torch.mul(a.sub_(b), inverses[i], out=out), x, spread)


def _spread(ring: Ring, x: Tensor, plain: int) -> Tensor:
    """Convert integers, given by their centred residues modulo the last prime, to residues modulo each of the other
    primes.

    x: ciphertexts, int32 (n, size, L, N), of which only the residues modulo the last prime are read. plain: how many of
    a ciphertext's first elements are coefficients; the others are NTT values, in x and in the result. Returns int32 (n,
    size, L - 1, N).
    """
    (n, size, _, degree), count = x.shape, len(ring.primes) - 1
    dropped = x[:, :, count]
    spread = x.new_empty(n, size, count, degree)
    spread[:, :plain] = dropped[:, :plain, None]
    values = carry(dropped[:, plain:].reshape(-1, degree), ring.primes[count], ring.take(count))
    spread[:, plain:] = values.view(n, size - plain, count, degree)
    return spread


# Monomials and BFV, in int64 -----------------------------------------------------------------------------------------


@implements(arithmetic.taps, "reference")
def taps(ring: Ring, x: Tensor, first: Tensor, inputs: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.taps` in plain torch; int64 holds all sums, which are below 2^53."""
    ends, degree = first.tolist(), ring.degree
    out = torch.zeros(len(ends) - 1, *x.shape[1:], dtype=torch.int64, device=x.device)
    for sums, start, stop in zip(out, ends[:-1], ends[1:], strict=True):
        terms = zip(*(t[start:stop].tolist() for t in (inputs, shifts, factors)), strict=True)
        for number, shift, factor in terms:
            sign = 1 - 2 * (shift // degree)  # X^N = -1
            shift %= degree
            sums[..., shift:].add_(x[number, ..., : degree - shift], alpha=sign * factor)
            sums[..., :shift].sub_(x[number, ..., degree - shift :], alpha=sign * factor)
    for i, q in enumerate(ring.primes):
        out[..., i, :] = centred(out[..., i, :], q)
    return out.int()


@implements(arithmetic.encode, "reference")
def encode(ring: Ring, x: Tensor, k: int, error: Tensor, factor: int, inverses: list[int]) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.encode` in plain torch: encode numbers mod 2^k for encryption.

    factor: Q mod 2^k, Q the product of the primes. inverses: 2^-k modulo each prime, centred.
    """
    v = (x * factor) << (64 - k) >> (64 - k)  # mod 2^64, then the low k bits with their sign
    residues = [centred(error - v * inverse, q) for q, inverse in zip(ring.primes, inverses, strict=True)]  # below 2^57
    return torch.stack(residues, 1).int()


@implements(arithmetic.accumulate, "reference")
def accumulate(ring: Ring, weights: Tensor, x: Tensor, order: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.accumulate` in plain torch, with the weights sorted by their outputs.

    order, inputs: for each term, the number of its weight and of its input. first: for each output, the number of its
    first term. So output o is the sum of weights[order[t]] x[inputs[t]] over first[o] <= t < first[o + 1].
    """
    out = torch.empty(len(first) - 1, *x.shape[1:], dtype=torch.int32, device=x.device)
    for number, (start, end) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
        total = torch.zeros(x.shape[1:], dtype=torch.int64, device=x.device)
        for weight, source in zip(order[start:end].tolist(), inputs[start:end].tolist(), strict=True):
            total += weights[weight].long() * x[source]
        for i, q in enumerate(ring.primes):
            out[number, :, i] = centred(total[:, i], q)
    return out
