"""Arithmetic on ciphertexts, coefficient by coefficient: integer matrix products, sums, ring products, modulus switch.

A ciphertext of CKKS in RNS is an int32 tensor (size, L, N): `size` ring elements, their residues modulo L primes, N
coefficients or NTT values each; residues are centred, |x| <= (q - 1) / 2. One weight times a ciphertext is one integer
times each residue (batch-axis packing: Boemer et al., nGraph-HE2, WAHC 2019, section 4.2), so a linear layer is

    out[row, place] = sum_k weights[row, k] x[index[place, k]] mod q

for every residue alike: a matrix product whose columns are the residues. It is summed in float64, which is exact while
||weights[row]||_1 (q - 1) / 2 + q <= 2^53, in any order; the one rounding is the division by q. See also ePrint
2024/1284 and arXiv 2503.16080 on homomorphic products by plain ones.

Modulo q a sum s is s - q round(s / q). The computed quotient is off by at most |s / q| 2^-52, and s / q is 1 / 2q or
more from a tie (q is odd), so the rounding is the exact one for |s| < 2^51; for larger s it may be the neighbour's, and
a second step, whose |s| < q, puts that right. q round(s / q) is within q of s, so it is an exact product.

The torch versions are the definition and run on any device; csrc/ciphertexts.cpp has the same for CPUs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.cpu import library
from hummingbird.kernels.ntt import Ring, reference_carry

EXACT = 2**53  # float64 holds every integer up to here
_ONE_STEP = 2**51  # below it, one step of the reduction is right
_MOST_PRODUCTS = 8  # 8 products of residues, each below q^2 / 4 < 2^50, and q more are below 2^53
_CPU_NUMBERS, _CUDA_NUMBERS = 1 << 16, 1 << 24  # float64 numbers per buffer: four fit a second-level cache; a full GPU
_LEAST_WIDTH = 128  # columns of a matrix product: with fewer it is slow
_FEW_ROWS = 8  # from some 16 on a product is as fast as it gets


def linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Integer combinations of ciphertexts: out[g rows + r, p] = sum_k weights[g, r, k] x[index[g, p, k]] mod q.

    weights: float64 (G, rows, K), integers. index: int32 (G, places, K), which of x's ciphertexts each term reads, -1
    for none. x: int32 (inputs, ..., L, N), centred. Returns int32 (G rows, places, ..., L, N), written to `out` if
    given, whose first two dimensions may be strided: places can be done in slices. Uses torch.get_num_threads().
    InputError for other types or shapes, for an index out of range, and for a row whose sums could be inexact:
    ||weights[g, r]||_1 (q - 1) / 2 + q must not exceed 2^53 (about 2^28 for 26-bit primes).

        linear(ring, torch.tensor([[[2.0, -1.0]]]).double(), torch.tensor([[[0, 1]]]).int(), x)[0, 0]  # 2 x[0] - x[1]
    """
    where = "kernels.linear"
    ring.check(x, f"{where}(x)")
    if x.dim() < 3:
        raise InputError(f"x is {tuple(x.shape)}", where=f"{where}(x)", hint="x is (inputs, ..., L, N)")
    _check_like(f"{where}(weights)", weights, torch.float64, x)
    _check_like(f"{where}(index)", index, torch.int32, x)
    if weights.dim() != 3 or index.dim() != 3 or weights.shape[::2] != index.shape[::2]:
        shapes = f"weights {tuple(weights.shape)}, index {tuple(index.shape)}"
        raise InputError(shapes, where=where, hint="weights are (groups, rows, K), index is (groups, places, K)")
    if index.numel() and not -1 <= int(index.min()) <= int(index.max()) < x.shape[0]:
        what = f"indices from {int(index.min())} to {int(index.max())} of {x.shape[0]} ciphertexts"
        raise InputError(what, where=f"{where}(index)", hint="0 to inputs - 1, or -1 for none")
    largest = _check_exact(ring, weights)
    shape = (weights.shape[0] * weights.shape[1], index.shape[1], *x.shape[1:])
    if out is None:
        out = torch.empty(shape, dtype=torch.int32, device=x.device)
    else:
        _check_like(f"{where}(out)", out, torch.int32, x)
        if out.shape != shape or (out.numel() and not out[0, 0].is_contiguous()):
            raise InputError(f"out is {tuple(out.shape)}, strides {out.stride()}", where=where, hint=f"give {shape}")
    if not weights.shape[2] or not x.shape[0]:
        return out.zero_()
    if out.numel():
        run = _native_linear if _is_native(x) else reference_linear
        run(ring, weights.contiguous(), index.contiguous(), x.contiguous(), out, 1 if largest < _ONE_STEP else 2)
    return out


def _is_native(x: Tensor) -> bool:
    return library.available() and x.device.type == "cpu"


def _check_like(where: str, tensor: Tensor, dtype: torch.dtype, like: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.device != like.device:
        got = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"expected {dtype} on {like.device}, got {got}", where=where, hint="convert it with .to()")


def _primes(ring: Ring) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(ring.primes))(*ring.primes)


def _check_exact(ring: Ring, weights: Tensor) -> int:
    """The largest sum that can occur; InputError where it is not exact."""
    if not weights.numel():
        return 0
    if not bool((weights == weights.round()).all()):  # NaN differs from itself; infinity fails below
        raise InputError("weights are not integers", where="kernels.linear(weights)", hint="scale and round them first")
    prime = max(ring.primes)
    most = (EXACT - prime) // ((prime - 1) // 2)
    norms = weights.abs().sum(-1)
    worst = int(norms.argmax())
    norm = float(norms.flatten()[worst])
    if not norm <= most:
        group, row = divmod(worst, weights.shape[1])
        raise InputError(
            f"row {row} of group {group}: the weights' absolute values sum to {norm:.0f}, exact are sums up to {most}",
            where="kernels.linear(weights)",
            hint="use a smaller weight scale, or split the inner dimension and add the parts",
        )
    return int(norm) * ((prime - 1) // 2)


def _native_linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor, steps: int) -> None:
    lines, degree = x.shape[1:-1].numel(), ring.degree
    sizes = (*weights.shape, index.shape[1], x.shape[0], lines, len(ring.primes), degree, *out.stride()[:2])
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)  # struct Sizes of csrc/ciphertexts.cpp
    pointers = [t.data_ptr() for t in (weights, index, x)]
    library.handle().hb_linear(*pointers, numbers, _primes(ring), steps, torch.get_num_threads(), out.data_ptr())


def reference_linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor, steps: int) -> None:
    """`linear` in plain torch, unchecked: some places and columns at a time, so that all buffers stay in the cache."""
    (groups, rows, terms), places = weights.shape, index.shape[1]
    numbers = _CUDA_NUMBERS if x.is_cuda else _CPU_NUMBERS
    width = ring.degree  # of the columns: wide ones first, as memory is read in long runs
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
        room = sums.new_empty(max(words.numel(), sums.numel()))  # for columns, and quotients when they are done with
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
    """Cut the work up: groups, their places, matrices (g, n rows, u) and what their columns read, (g, u, p).

    Either up to `most` places stand side by side, n = 1, or n places that share what they read one below the other,
    p = 1: of a convolution with few filters, a matrix so small that reading its columns would take most of the time.
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
    """Cut (places, K) into runs of up to 4 places, each of which reads at least half of what those before it read.

    A run of 4 reads at most 2.5 K ciphertexts, so its products are at most 2.5 times as many.
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
    """A matrix for n places at once, (1, n rows, u), of weights (rows, K); which ciphertexts it reads, (1, u, 1)."""
    used, position = index.reshape(-1).unique(return_inverse=True)
    places, terms = index.shape
    matrix = weights.new_zeros(places, weights.shape[0], used.numel())
    where = position.view(places, 1, terms).expand(-1, weights.shape[0], -1)
    matrix.scatter_add_(2, where, weights.expand(places, -1, -1))
    return matrix.view(1, -1, used.numel()), used.view(1, -1, 1)


def _reduce(sums: Tensor, prime: float, steps: int, spare: Tensor) -> None:
    """`sums` modulo the prime, centred, in place: float64 integers, below 2^51 for one step, up to 2^53 - q for two."""
    for _ in range(steps):
        torch.mul(sums, 1.0 / prime, out=spare).round_()
        sums.sub_(spare, alpha=prime)


# ---- one residue at a time


def _by_residue(ring: Ring, sizes: int, steps: int, function: Callable[..., object], *tensors: Tensor) -> Tensor:
    """A function of float64 residues modulo one prime (n, ..., N), reduced in `steps`, a few ciphertexts at a time.

    It is given the prime's number, where to write `sizes` parts of each ciphertext, of values that `_reduce` allows,
    and the residues, which it may overwrite.
    """
    like, count = tensors[0], tensors[0].shape[0]
    out = torch.empty((count, sizes, len(ring.primes), ring.degree), dtype=torch.int32, device=like.device)
    parts = [t.shape[1] for t in tensors]
    most = max(sizes, sum(parts))
    step = max(1, (_CUDA_NUMBERS if like.is_cuda else _CPU_NUMBERS) // (ring.degree * most))
    room = torch.empty(2, min(step, count) * most * ring.degree, dtype=torch.float64, device=like.device)
    ends = [0, *accumulate(parts)]
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        each = (some.stop - start) * ring.degree
        # Quotients go where the residues were, which are done with by then.
        values, spare = (half[: sizes * each].view(-1, sizes, ring.degree) for half in room)
        residues = [room[1, a * each : b * each].view(-1, b - a, ring.degree) for a, b in pairwise(ends)]
        for i, prime in enumerate(ring.primes):
            for residue, t in zip(residues, tensors, strict=True):
                residue.copy_(t[some, :, i])
            function(i, values, *residues)
            _reduce(values, float(prime), steps, spare)
            out[some, :, i] = values
    return out


def add(ring: Ring, x: Tensor, y: Tensor, factor: int = 1) -> Tensor:
    """x + factor y mod q, residue by residue.

    x, y: int32 (..., L, N), of one shape. factor: a whole number, at most 2^24 in absolute value. Returns int32 of that
    shape. InputError for anything else.
    """
    ring.check(x, "kernels.add(x)")
    ring.check(y, "kernels.add(y)")
    _check_like("kernels.add(y)", y, torch.int32, x)
    if x.shape != y.shape:
        raise InputError(f"{tuple(x.shape)} plus {tuple(y.shape)}", where="kernels.add", hint="give equal shapes")
    if not isinstance(factor, int) or abs(factor) > 1 << 24:
        raise InputError(f"factor {factor}", where="kernels.add(factor)", hint="a whole number, at most 2^24")
    x, y = x.contiguous(), y.contiguous()
    if not _is_native(x):
        flat = (x.shape[:-2].numel(), 1, *x.shape[-2:])
        left, right = x.view(flat), y.view(flat)  # |x + factor y| < 2^25 + 2^24 2^25 < 2^50
        sums = _by_residue(ring, 1, 1, lambda _, out, a, b: torch.add(a, b, alpha=factor, out=out), left, right)
        return sums.view(x.shape)
    return _native_combine(ring, x, y, [1] * len(ring.primes), [factor] * len(ring.primes))


def _native_combine(ring: Ring, x: Tensor, y: Tensor, a: Sequence[int], b: Sequence[int]) -> Tensor:
    """a x + b y mod q with factors for each prime, |a x + b y| < 2^51: (..., L, N); of x, the first L primes count."""
    out, count = torch.empty_like(y), len(ring.primes)
    sizes = y.shape[:-2].numel(), count, x.shape[-2], ring.degree
    factors = [(ctypes.c_double * count)(*values) for values in (a, b, ring.primes)]
    threads = torch.get_num_threads()
    library.handle().hb_combine(x.data_ptr(), y.data_ptr(), *sizes, *factors, threads, out.data_ptr())
    return out


def shift(ring: Ring, x: Tensor, constants: Tensor, step: int) -> None:
    """Add a constant to every `step`-th residue of part 0 of ciphertexts, modulo each prime, in place.

    x: int32 (rows, places, size, L, N), centred; its first two dimensions may be strided. constants: int32 (rows, L),
    centred, those of a row's ciphertexts. step: 1 .. N. InputError for anything else.
    """
    where, primes = "kernels.shift", len(ring.primes)
    ring.check(x, f"{where}(x)", 5)
    _check_like(f"{where}(constants)", constants, torch.int32, x)
    if constants.shape != (x.shape[0], primes) or not 1 <= step <= ring.degree:
        what = f"constants {tuple(constants.shape)}, step {step}, x {tuple(x.shape)}"
        raise InputError(what, where=where, hint="constants are (rows, L), step is from 1 to N")
    if not x.numel():
        return
    if not x[0, 0].is_contiguous():
        raise InputError(f"x has strides {x.stride()}", where=f"{where}(x)", hint="a ciphertext is contiguous")
    moduli = torch.tensor(ring.primes, dtype=torch.int32, device=x.device)
    lifted = constants + (constants >> 31 & moduli)  # 0 .. q - 1: no sum is below -q/2
    if _is_native(x):
        sizes = (ctypes.c_int64 * 7)(*x.shape[:2], *x.stride()[:2], primes, ring.degree, step)
        library.handle().hb_shift(x.data_ptr(), sizes, lifted.data_ptr(), moduli.data_ptr(), torch.get_num_threads())
        return
    moduli, part = moduli[:, None], x[:, :, 0, :, ::step]
    count = max(1, (_CUDA_NUMBERS if x.is_cuda else _CPU_NUMBERS) // part[0, 0].numel())
    for row, constant in zip(part, lifted[..., None], strict=True):
        for piece in row.split(count):
            piece += constant
            piece -= (moduli // 2 - piece).bitwise_right_shift_(31).bitwise_and_(moduli)  # q where it is above q/2


def multiply(ring: Ring, x: Tensor, y: Tensor) -> Tensor:
    """Products of ciphertexts, one by one: part k is sum_i x_i y_{k-i} mod q.

    x: int32 (n, a, L, N), y: int32 (n, b, L, N), all parts transformed, 1 <= a, b and the smaller of them at most 8.
    Returns int32 (n, a + b - 1, L, N). InputError for anything else.
    """
    ring.check(x, "kernels.multiply(x)", 4)
    ring.check(y, "kernels.multiply(y)", 4)
    _check_like("kernels.multiply(y)", y, torch.int32, x)
    a, b = x.shape[1], y.shape[1]
    if x.shape[0] != y.shape[0] or not 1 <= min(a, b) <= _MOST_PRODUCTS:
        hint = "as many ciphertexts on both sides, at most 8 parts on one"
        raise InputError(f"{tuple(x.shape)} times {tuple(y.shape)}", where="kernels.multiply", hint=hint)
    x, y = x.contiguous(), y.contiguous()
    if not _is_native(x):
        steps = 1 if min(a, b) <= 2 else 2  # two products of residues are below q^2 / 2 < 2^51
        if x is y:
            return _by_residue(ring, 2 * a - 1, steps, lambda _, out, part: _products(out, part, part), x)
        return _by_residue(ring, a + b - 1, steps, lambda _, out, *parts: _products(out, *parts), x, y)
    out = torch.empty((x.shape[0], a + b - 1, *x.shape[2:]), dtype=torch.int32)
    sizes, threads = (x.shape[0], a, b, len(ring.primes), ring.degree), torch.get_num_threads()
    library.handle().hb_multiply(x.data_ptr(), y.data_ptr(), *sizes, _primes(ring), threads, out.data_ptr())
    return out


def _products(out: Tensor, x: Tensor, y: Tensor) -> None:
    """To `out`, of x (n, a, N) and y (n, b, N): sums of at most 8 products of less than q^2 / 4, below 2^53 - q."""
    a, b = x.shape[1], y.shape[1]
    torch.mul(x[:, :1], y, out=out[:, :b])
    torch.mul(x[:, 1:], y[:, b - 1 :], out=out[:, b:])
    for i in range(1, a):
        out[:, i : i + b - 1].addcmul_(x[:, i : i + 1], y[:, : b - 1])


def square(ring: Ring, x: Tensor) -> Tensor:
    """`multiply` of ciphertexts by themselves: int32 (n, size, L, N), transformed, to (n, 2 size - 1, L, N)."""
    return multiply(ring, x, x)


def switch(ring: Ring, x: Tensor, form: str) -> Tensor:
    """Divide by the last prime p and drop it: (x - [x]_p) / p, the nearest integer, modulo each other prime.

    x: int32 (n, size, L, N), L >= 2. form: "ntt" where all parts are transformed, "mixed" where part 0 is coefficients.
    Returns int32 (n, size, L - 1, N) of the same form, of the ring `ring.take(L - 1)`. The rounding adds at most 1/2 in
    each coefficient of each part. Costs L transforms for each transformed part. InputError for anything else.
    """
    ring.check(x, "kernels.switch(x)", 4)
    if form not in ("mixed", "ntt"):
        raise InputError(f"form {form!r}", where="kernels.switch(form)", hint='"mixed" or "ntt"')
    count = len(ring.primes) - 1
    if not count:
        raise InputError("one prime is left", where="kernels.switch(ring)", hint="keep more primes until here")
    head = ring.take(count)
    plain = 1 if form == "mixed" else 0  # parts that are coefficients
    spread = (_native_spread if _is_native(x) else _reference_spread)(ring, x, plain)  # of |.| <= (p - 1) / 2 < 2^25
    inverses = [(pow(ring.primes[count], -1, q) + q // 2) % q - q // 2 for q in head.primes]
    # |x - spread| < 2^26 and |inverse| < 2^25: the product is below 2^51.
    if _is_native(x):
        return _native_combine(head, x.contiguous(), spread, inverses, [-i for i in inverses])
    return _by_residue(head, x.shape[1], 1, lambda i, out, a, b: torch.mul(a.sub_(b), inverses[i], out=out), x, spread)


def _native_spread(ring: Ring, x: Tensor, plain: int) -> Tensor:
    """[x]_p, residues modulo the last prime, modulo the others: of the same form."""
    count = len(ring.primes) - 1
    dropped = x[:, :, count:].contiguous()
    if plain < x.shape[1]:
        last = Ring.of(ring.degree, ring.primes[count:])
        dropped[:, plain:] = last.intt(dropped[:, plain:].contiguous())
    spread = dropped.expand(-1, -1, count, -1).contiguous()
    if plain < x.shape[1]:
        spread[:, plain:] = ring.take(count).ntt(spread[:, plain:].contiguous())
    return spread


def _reference_spread(ring: Ring, x: Tensor, plain: int) -> Tensor:
    """See `_native_spread`."""
    (n, size, _, degree), count = x.shape, len(ring.primes) - 1
    dropped = x[:, :, count]
    spread = x.new_empty(n, size, count, degree)
    spread[:, :plain] = dropped[:, :plain, None]
    values = reference_carry(dropped[:, plain:].reshape(-1, degree), ring.primes[count], ring.take(count))
    spread[:, plain:] = values.view(n, size - plain, count, degree)
    return spread
