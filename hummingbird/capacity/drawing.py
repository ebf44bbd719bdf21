"""Seeded draws: a generator for each purpose, so that a draw more of one thing changes no other. They hide nothing."""

from __future__ import annotations

import hashlib

import torch

from hummingbird.capacity.system import Floats, Ints


def generator(seed: int, purpose: str) -> torch.Generator:
    """A generator that differs for every seed and purpose."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def exponential(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Exponential numbers of mean 1."""
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator(seed, purpose)).numpy()


def uniform(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Numbers in [0, 1)."""
    return torch.empty(shape, dtype=torch.float64).uniform_(generator=generator(seed, purpose)).numpy()


def gamma(shape: tuple[int, ...], form: float, seed: int, purpose: str) -> Floats:
    """Numbers of mean 1 of a gamma distribution of that form (its "shape"): of variance 1 / form."""
    forms = torch.full(shape, form, dtype=torch.float64)
    return (torch._standard_gamma(forms, generator=generator(seed, purpose)) / form).numpy()


def choices(count: int, shape: tuple[int, ...], seed: int, purpose: str) -> Ints:
    """Whole numbers below `count`, all as likely."""
    return torch.empty(shape, dtype=torch.int64).random_(0, count, generator=generator(seed, purpose)).numpy()
