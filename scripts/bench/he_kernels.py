"""Rows of scripts/bench/he.py: each kernel of homomorphic layers alone, on one thread.

A time is the least of several calls, divided by what the call does: by one transform of one prime, or by one
ciphertext of N = 2048 and two primes (decrypt and decode: one prime, what comes back from a server). The marks were
measured with a sketch of these kernels on one Zen 4 core; SEAL's times are those of TenSEAL there, at these parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hummingbird.he.scheme import packing
from hummingbird.he.scheme.ckks import Coins, SecretKey, expand
from hummingbird.he.scheme.params import choose
from hummingbird.kernels.ciphertexts import linear, pack, switch, unpack
from hummingbird.kernels.cpu import library
from scripts.program import best

DEGREE, PRIMES, COUNT = 2048, 2, 256
# Microseconds: with AVX-512, with AVX2, in plain torch; and SEAL's.
_MARKS: dict[str, tuple[float, float, float]] = {
    "transform": (2.3, 6.9, 0.0),
    "encode": (5, 5, 5),
    "encrypt": (19, 30, 147),
    "decrypt": (19, 28, 104),
    "decode": (4, 4, 4),
}
_SEAL = {"encode": 58, "encrypt": 183, "decrypt": 10, "decode": 85}


def mark(kernel: str) -> float | None:
    """The kernel's mark for the instructions in use, microseconds."""
    found = _MARKS.get(kernel.partition(",")[0])
    if found is None:
        return None
    place = {"avx512": 0, "avx2": 1}.get(library.isa(), 2) if library.available() else 2
    return found[place] or None


def cases() -> Iterator[tuple[str, Callable[[], object], float]]:
    """Name, a call, and how many units it does."""
    generator = torch.Generator().manual_seed(0)
    key = SecretKey(choose(DEGREE, PRIMES))
    ring = key.ring
    values = torch.rand(COUNT, DEGREE, generator=generator) * 2 - 1
    message = packing.encode(values, "coefficients", DEGREE, 2.0**20)
    seed, body = key.encrypt(message, Coins(ring, COUNT), "mixed")
    ciphertexts = torch.stack([body, expand(ring, seed, COUNT)], 1)
    small = switch(ring, ciphertexts, "mixed")
    data, phases = pack(ring, body), key.decrypt(small, "mixed")
    yield "transform", lambda: ring.ntt(body), COUNT * PRIMES
    yield "inverse transform", lambda: ring.intt(body), COUNT * PRIMES
    yield "encode", lambda: packing.encode(values, "coefficients", DEGREE, 2.0**20), COUNT
    yield "encode, complex slots", lambda: packing.encode(values, "complex", DEGREE, 2.0**20), COUNT
    yield "draw", lambda: Coins(ring, COUNT), COUNT
    yield "encrypt", lambda: key.encrypt(message, Coins(ring, COUNT), "mixed"), COUNT
    yield "pack", lambda: pack(ring, body), COUNT
    yield "unpack", lambda: unpack(ring, data, body.shape), COUNT
    yield "expand", lambda: expand(ring, seed, COUNT), COUNT
    yield "switch", lambda: switch(ring, ciphertexts, "mixed"), COUNT
    yield "decrypt", lambda: key.decrypt(small, "mixed"), COUNT
    yield "decode", lambda: packing.decode(phases, "coefficients"), COUNT
    yield "decode, complex slots", lambda: packing.decode(phases, "complex"), COUNT


def product_rows() -> Iterator[dict[str, Any]]:
    """The matrix product of CryptoNets' first linear layer, 845 ciphertexts to 100, with zeros among its weights and
    without, and torch's of the same size.
    """
    generator = torch.Generator().manual_seed(0)
    ring = choose(DEGREE, PRIMES).ring
    x = torch.randint(-(1 << 24), 1 << 24, (845, 2, PRIMES, DEGREE), dtype=torch.int32, generator=generator)
    weights = torch.randint(-(1 << 14), 1 << 14, (1, 100, 845), generator=generator).double()
    index = torch.arange(845, dtype=torch.int32).view(1, 1, -1)
    columns = x.view(845, -1).double()
    work = 100 * 845 * columns.shape[1]
    order = torch.rand(weights.shape, generator=generator)
    for zeros in (0.5, 0.9, 0.95):
        pruned = weights.where(order >= zeros, 0)
        seconds = best(lambda pruned=pruned: linear(ring, pruned, index, x), 1.0)  # type: ignore[misc]
        yield {"kernel": f"product, {zeros:.0%} zeros", "milliseconds": 1e3 * seconds}
    for name, run in (
        ("product", lambda: linear(ring, weights, index, x)),
        ("torch.mm in float64, without reduction", lambda: torch.mm(weights[0], columns)),
    ):
        seconds = best(run, 1.0)
        yield {"kernel": name, "milliseconds": 1e3 * seconds, "g_multiply_adds_per_second": work / seconds / 1e9}


def measure(advance: Callable[[], object]) -> list[dict[str, Any]]:
    """All rows; `advance` is called after each."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, run, units in cases():
        rows.append(
            {
                "kernel": name,
                "microseconds": 1e6 * best(run) / units,
                "mark_microseconds": mark(name),
                "seal_microseconds": _SEAL.get(name.partition(",")[0]),
            }
        )
        advance()
    for row in product_rows():
        rows.append(row)
        advance()
    return rows


STEPS = 18  # how often `advance` is called
