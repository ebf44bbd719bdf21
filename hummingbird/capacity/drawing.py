"""Seeded draws for simulations: a generator for each purpose, so that further draws for one purpose leave the others
unchanged. These numbers are no secrets.
"""

from __future__ import annotations

import hashlib

import torch

from hummingbird.capacity.system import Floats, Ints


def generator(seed: int, purpose: str) -> torch.Generator:
    """Make a random generator whose seed follows from `seed` and `purpose`: each purpose has numbers of its own."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def exponential(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Draw exponentially distributed numbers of mean 1. seed, purpose: as for `generator`."""
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator(seed, purpose)).numpy()


def uniform(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Draw uniform numbers from 0 to below 1. seed, purpose: as for `generator`."""
    return torch.empty(shape, dtype=torch.float64).uniform_(generator=generator(seed, purpose)).numpy()


def gamma(shape: tuple[int, ...], form: float, seed: int, purpose: str) -> Floats:
    """Draw gamma-distributed numbers of mean 1 and variance 1 / form. form: the distribution's shape parameter.

    seed, purpose: as for `generator`.
    """
    forms = torch.full(shape, form, dtype=torch.float64)
    return (torch._standard_gamma(forms, generator=generator(seed, purpose)) / form).numpy()


def choices(count: int, shape: tuple[int, ...], seed: int, purpose: str) -> Ints:
    """Draw uniform integers from 0 to count - 1. seed, purpose: as for `generator`."""
    return torch.empty(shape, dtype=torch.int64).random_(0, count, generator=generator(seed, purpose)).numpy()
