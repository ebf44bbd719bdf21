"""Nonnegative least squares: seconds of each kind of work, from measured seconds of mixtures."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor


def nonnegative(rows: Tensor) -> Tensor:
    """Fit a model of times: return the coefficients c >= 0, float64 (terms,), that minimise the norm |rows c - 1|.

    rows: float64 (n, terms), for each measurement the amount of each kind of work (term), divided by the measured
    seconds; so the relative error is the least. Solves a least-squares problem for every subset of terms, 2^terms in
    all, and takes the best. A term that is 0 in all rows gets 0.
    """
    terms = rows.shape[1]
    scale = rows.norm(dim=0).clamp_min(1e-300)
    best, least = torch.zeros(terms, dtype=torch.float64), torch.inf
    faces = [face for size in range(terms) for face in combinations(range(terms), size + 1)]
    for face in map(list, faces):
        part = (rows / scale)[:, face]
        found = torch.linalg.lstsq(part, torch.ones(len(part), 1, dtype=torch.float64), driver="gelsd").solution
        error = float((part @ found - 1).norm())
        if bool((found >= 0).all()) and error < least:
            best, least = torch.zeros(terms, dtype=torch.float64), error
            best[face] = found.flatten()
    return best / scale
