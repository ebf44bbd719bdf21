"""Nonnegative least squares: seconds of each kind of work, from measured seconds of mixtures."""

from __future__ import annotations

import torch
from torch import Tensor


def nonnegative(rows: Tensor) -> Tensor:
    """Fit a model of times: return the coefficients c >= 0, float64 (terms,), that minimise the norm |rows c - 1|.

    rows: float64 (n, terms), for each measurement the amount of each kind of work (term), divided by the measured
    seconds; so the relative error is the least. A term that is 0 in all rows gets 0.
    """
    from scipy.optimize import nnls  # loads in a fifth of a second

    scale = rows.norm(dim=0).clamp_min(1e-300)
    return torch.from_numpy(nnls((rows / scale).numpy(), torch.ones(len(rows), dtype=rows.dtype).numpy())[0]) / scale
