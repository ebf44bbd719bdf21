"""Ciphertexts in C++ (csrc/ntt, ciphertexts, bfv, monomials), on torch.get_num_threads() threads."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from hummingbird.kernels.ciphertexts import arithmetic, polynomials
from hummingbird.kernels.ciphertexts import ring as ring_module
from hummingbird.kernels.ciphertexts.polynomials import packed_bytes
from hummingbird.kernels.ciphertexts.ring import Ring, centred, exponents, powers
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.reference.ciphertexts.polynomials import inverses, moduli
from hummingbird.kernels.registry import implements


@implements(ring_module.transform, "cpu")
def transform(ring: Ring, x: Tensor, inverse: bool) -> Tensor:
    """Implement `kernels.ciphertexts.ring.transform` in C++: transform polynomials to NTT values or back."""
    out, table, (primes, degree) = torch.empty_like(x), _table(ring), x.shape[-2:]
    arguments = (x.data_ptr(), x.numel() // (primes * degree), not inverse, torch.get_num_threads(), out.data_ptr())
    handle().hb_transform(table.data_ptr(), primes, degree, *arguments)
    return out


@lru_cache(maxsize=128)
def _factors(degree: int, q: int, inverse: bool) -> Tensor:
    """Compute the factors by which the steps of a transform modulo the prime q multiply: float64 (N,).

    X^N + 1 is split into halves, X^m - w^2 = (X^{m/2} - w)(X^{m/2} + w), until all parts are linear; the factors are
    the numbers w. They lie in the order of csrc/ntt.h. degree: N. inverse: return 1/w mod q in place of w.
    """
    table = powers(degree, q)

    def level(groups: int) -> Tensor:
        e = exponents(degree, groups) // 2
        return table[-e % (2 * degree) if inverse else e]

    first = torch.cat([torch.ones(1, dtype=torch.int64)] + [level(1 << j) for j in range(degree.bit_length() - 4)])
    if inverse:
        first[:2] = centred(first[:2] * pow(degree, -1, q), q)  # the last step divides by N
    last = torch.cat([level(degree >> 3 - j).view(-1, 8, 1 << j) for j in range(3)], 2)  # (N/64, groups, 7)
    return torch.cat([first, last.transpose(1, 2).flatten()]).double()


@lru_cache(maxsize=32)
def _table(ring: Ring) -> Tensor:
    """Make the table of constants that the transform in csrc/ntt.cpp reads: float64 (L, 8 + 2 N), for L primes.

    A row has the prime, the factors of the transform (`_factors`), and the factors of the inverse transform.
    """
    rows = []
    for q in ring.primes:
        head = torch.zeros(8, dtype=torch.float64)
        head[0] = q
        rows.append(torch.cat([head, *(_factors(ring.degree, q, inverse) for inverse in (False, True))]))
    return torch.stack(rows)


@implements(arithmetic.linear, "cpu")
def linear(ring: Ring, weights: Tensor, index: Tensor, x: Tensor, out: Tensor, steps: int) -> None:
    """Implement `kernels.ciphertexts.arithmetic.linear` in C++, which writes the result to `out`, also a strided one.

    steps: 1 if all sums are below 2^51, so that one reduction mod q centres them; else 2.
    """
    lines, degree = x.shape[1:-1].numel(), ring.degree
    sizes = (*weights.shape, index.shape[1], x.shape[0], lines, len(ring.primes), degree, *out.stride()[:2])
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)  # struct Sizes of csrc/ciphertexts.cpp
    pointers = [t.data_ptr() for t in (weights, index, x)]
    handle().hb_linear(*pointers, numbers, _primes(ring), steps, torch.get_num_threads(), out.data_ptr())


def _primes(ring: Ring) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(ring.primes))(*ring.primes)


@implements(arithmetic.add, "cpu")
def add(ring: Ring, x: Tensor, y: Tensor, factor: int) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.add` in C++: add two ciphertexts, one times a factor."""
    return _combine(ring, x, y, [1] * len(ring.primes), [factor] * len(ring.primes))


def _combine(ring: Ring, x: Tensor, y: Tensor, a: Sequence[int], b: Sequence[int]) -> Tensor:
    """Compute a x + b y modulo each prime: int32 (..., L, N), for L primes and N residues of each ring element.

    a, b: one integer for each prime. |a x + b y| must be below 2^51. x may have further primes, whose residues are
    ignored.
    """
    out, count = torch.empty_like(y), len(ring.primes)
    sizes = y.shape[:-2].numel(), count, x.shape[-2], ring.degree
    factors = [(ctypes.c_double * count)(*values) for values in (a, b, ring.primes)]
    threads = torch.get_num_threads()
    handle().hb_combine(x.data_ptr(), y.data_ptr(), *sizes, *factors, threads, out.data_ptr())
    return out


@implements(arithmetic.shift, "cpu")
def shift(ring: Ring, x: Tensor, constants: Tensor, moduli: Tensor, step: int) -> None:
    """Implement `kernels.ciphertexts.arithmetic.shift` in C++: add constants to ciphertexts.

    constants: residues 0 .. q - 1. moduli: the primes, int32 (L,).
    """
    sizes = (ctypes.c_int64 * 7)(*x.shape[:2], *x.stride()[:2], len(ring.primes), ring.degree, step)
    handle().hb_shift(x.data_ptr(), sizes, constants.data_ptr(), moduli.data_ptr(), torch.get_num_threads())


@implements(arithmetic.multiply, "cpu")
def multiply(ring: Ring, x: Tensor, y: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.multiply` in C++: multiply ciphertexts."""
    a, b = x.shape[1], y.shape[1]
    out = torch.empty((x.shape[0], a + b - 1, *x.shape[2:]), dtype=torch.int32)
    sizes, threads = (x.shape[0], a, b, len(ring.primes), ring.degree), torch.get_num_threads()
    handle().hb_multiply(x.data_ptr(), y.data_ptr(), *sizes, _primes(ring), threads, out.data_ptr())
    return out


@implements(arithmetic.switch, "cpu")
def switch(ring: Ring, x: Tensor, plain: int, inverses: list[int]) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.switch` in C++: divide ciphertexts by the last prime.

    plain: how many of the first elements of a ciphertext are coefficients; the others are NTT values. inverses: of the
    last prime modulo each other prime.
    """
    # |x - spread| < 2^26 and |inverse| < 2^25: the product is below 2^51.
    return _combine(ring.take(len(inverses)), x, _spread(ring, x, plain), inverses, [-i for i in inverses])


def _spread(ring: Ring, x: Tensor, plain: int) -> Tensor:
    """Convert integers, given by their centred residues modulo the last prime, to residues modulo each of the other
    primes.

    x: ciphertexts, int32 (n, size, L, N), of which only the residues modulo the last prime are read. plain: how many of
    a ciphertext's `size` components, from the first, are coefficients; the others are NTT values, in x and in the
    result. Returns int32 (n, size, L - 1, N).
    """
    count = len(ring.primes) - 1
    dropped = x[:, :, count:].contiguous()
    if plain < x.shape[1]:
        last = Ring.of(ring.degree, ring.primes[count:])
        dropped[:, plain:] = transform(last, dropped[:, plain:].contiguous(), True)
    spread = dropped.expand(-1, -1, count, -1).contiguous()
    if plain < x.shape[1]:
        spread[:, plain:] = transform(ring.take(count), spread[:, plain:].contiguous(), False)
    return spread


@implements(arithmetic.taps, "cpu")
def taps(ring: Ring, x: Tensor, first: Tensor, inputs: Tensor, shifts: Tensor, factors: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.taps` in C++: sum ciphertexts multiplied by monomials."""
    out = torch.empty(len(first) - 1, *x.shape[1:], dtype=torch.int32)
    sizes = (ctypes.c_int64 * 5)(out.shape[0], *x.shape)  # struct TapSizes of csrc/monomials.cpp
    terms, threads = [t.data_ptr() for t in (first, inputs, shifts, factors)], torch.get_num_threads()
    handle().hb_taps(x.data_ptr(), sizes, *terms, _primes(ring), threads, out.data_ptr())
    return out


@implements(polynomials.encrypt, "cpu")
def encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.encrypt` in C++: encrypt messages."""
    return _encrypt(ring, message, noise, a, secret, False)


@implements(polynomials.encrypt_ntt, "cpu")
def encrypt_ntt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.encrypt_ntt` in C++: encrypt messages, as NTT values."""
    return _encrypt(ring, message, noise, a, secret, True)


def _encrypt(ring: Ring, message: Tensor, noise: Tensor, a: Tensor, secret: Tensor, values: bool) -> Tensor:
    out, table, inputs = torch.empty_like(a), _table(ring), [t.data_ptr() for t in (message, noise, a, secret)]
    settings = (a.shape[0], values, torch.get_num_threads(), out.data_ptr())
    handle().hb_encrypt(table.data_ptr(), *a.shape[1:], *inputs, *settings)
    return out


@implements(polynomials.phase, "cpu")
def phase(ring: Ring, c: Tensor, secret: Tensor, form: str) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.phase` in C++: decrypt ciphertexts."""
    out, table = torch.empty(c.shape[0], *c.shape[2:], dtype=torch.int32), _table(ring)
    inputs, settings = (c.data_ptr(), c.shape[1], secret.data_ptr()), (c.shape[0], form == "ntt")
    shape = (table.data_ptr(), len(ring.primes), ring.degree)
    handle().hb_phase(*shape, *inputs, *settings, torch.get_num_threads(), out.data_ptr())
    return out


@implements(polynomials.compose, "cpu")
def compose(ring: Ring, x: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.compose` in C++: combine residues to integers."""
    out = torch.empty(x.shape[0], ring.degree, dtype=torch.float64)
    table = torch.tensor([*ring.primes, *itertools.chain(*inverses(ring.primes))], dtype=torch.float64)
    handle().hb_compose(x.data_ptr(), *x.shape, table.data_ptr(), out.data_ptr())
    return out


@implements(polynomials.pack, "cpu")
def pack(ring: Ring, x: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.pack` in C++: pack residues in 26 bits each."""
    out, table = torch.empty(packed_bytes(x.shape), dtype=torch.uint8), moduli(ring)
    sizes = (x.shape[:-2].numel(), *x.shape[-2:])
    handle().hb_pack(x.data_ptr(), *sizes, table.data_ptr(), out.data_ptr())
    return out


@implements(polynomials.unpack, "cpu")
def unpack(ring: Ring, data: Tensor, shape: Sequence[int]) -> tuple[Tensor, bool]:
    """Implement `kernels.ciphertexts.polynomials.unpack` in C++: unpack residues of 26 bits.

    The second result is True if all values are below their primes.
    """
    out, table = torch.empty(tuple(shape), dtype=torch.int32), moduli(ring)
    sizes = (out.shape[:-2].numel(), len(ring.primes), ring.degree)
    right = handle().hb_unpack(data.data_ptr(), *sizes, table.data_ptr(), out.data_ptr())
    return out, bool(right)


@implements(polynomials.uniform, "cpu")
def uniform(x: Tensor, moduli: Tensor) -> Tensor:
    """Convert random words to centred residues in place; returns which of them must be drawn again.

    x: the words, int32 (n, L, N). moduli: the primes, int32 (L,). The result is int64: indices into the flattened x.
    """
    places = torch.empty(x.numel(), dtype=torch.int64)  # few of its pages are ever touched
    count = handle().hb_uniform(x.data_ptr(), *x.shape, moduli.data_ptr(), places.data_ptr())
    return places[:count]


@implements(polynomials.noise, "cpu")
def noise(words: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.noise` in C++: draw random errors from words.

    words: random, int64 (n, degree).
    """
    out = torch.empty(words.shape, dtype=torch.int32)
    handle().hb_noise(words.data_ptr(), words.numel(), out.data_ptr())
    return out


@implements(polynomials.wide, "cpu")
def wide(ring: Ring, words: Tensor, spare: int) -> Tensor:
    """Implement `kernels.ciphertexts.polynomials.wide` in C++: make residues of random integers.

    words: random, int32 (digits, n, N), the highest first. spare: how many bits of the highest word are not used.
    """
    (digits, n, degree), primes = words.shape, len(ring.primes)
    out = torch.empty(n, primes, degree, dtype=torch.int32)
    handle().hb_wide(words.data_ptr(), digits, spare, n, primes, degree, _primes(ring), out.data_ptr())
    return out


@implements(arithmetic.encode, "cpu")
def encode(ring: Ring, x: Tensor, k: int, error: Tensor, factor: int, inverses: list[int]) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.encode` in C++: encode numbers mod 2^k for encryption.

    factor: Q mod 2^k, Q the product of the primes. inverses: 2^-k modulo each prime, centred.
    """
    out, count = torch.empty(x.shape[0], len(ring.primes), ring.degree, dtype=torch.int32), len(ring.primes)
    sizes, factors = (x.shape[0], count, ring.degree, k, factor), (ctypes.c_double * count)(*inverses)
    handle().hb_encode(x.data_ptr(), error.data_ptr(), *sizes, factors, _primes(ring), out.data_ptr())
    return out


@implements(arithmetic.accumulate, "cpu")
def accumulate(ring: Ring, weights: Tensor, x: Tensor, order: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """Implement `kernels.ciphertexts.arithmetic.accumulate` in C++, with the weights sorted by their outputs.

    order, inputs: for each term, the number of its weight and of its input. first: for each output, the number of its
    first term. So output o is the sum of weights[order[t]] x[inputs[t]] over first[o] <= t < first[o + 1].
    """
    out = torch.empty(len(first) - 1, *x.shape[1:], dtype=torch.int32)
    sizes = (ctypes.c_int64 * 5)(out.shape[0], *x.shape)  # struct Sizes of csrc/bfv.cpp
    lists = [t.data_ptr() for t in (order, inputs, first)]
    threads = torch.get_num_threads()
    handle().hb_accumulate(weights.data_ptr(), x.data_ptr(), *lists, sizes, _primes(ring), threads, out.data_ptr())
    return out
