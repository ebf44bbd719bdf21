"""Seeded draws for simulations: a generator for each purpose, so that further draws for one purpose leave the others
unchanged. These numbers are no secrets.
"""

from __future__ import annotations

import hashlib

import torch

from hummingbird.capacity.system import Floats, Ints


def generator(seed: int, purpose: str) -> torch.Generator:
    """A generator whose seed follows from `seed` and `purpose`."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def exponential(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Exponential numbers of mean 1."""
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator(seed, purpose)).numpy()


def uniform(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Numbers in [0, 1)."""
    return torch.empty(shape, dtype=torch.float64).uniform_(generator=generator(seed, purpose)).numpy()


def gamma(shape: tuple[int, ...], form: float, seed: int, purpose: str) -> Floats:
    """Gamma-distributed numbers of mean 1 and variance 1 / form; form: the distribution's shape parameter."""
    forms = torch.full(shape, form, dtype=torch.float64)
    return (torch._standard_gamma(forms, generator=generator(seed, purpose)) / form).numpy()


def choices(count: int, shape: tuple[int, ...], seed: int, purpose: str) -> Ints:
    """Uniform integers in [0, count)."""
    return torch.empty(shape, dtype=torch.int64).random_(0, count, generator=generator(seed, purpose)).numpy()
