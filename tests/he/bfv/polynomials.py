"""Exact products modulo X^N + 1, and a layer computed through them: slow and obvious."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.he.bfv.layout import Layout


def multiply(x: Tensor, w: Tensor) -> Tensor:
    """x w mod X^N + 1: int64 (N,) each, w best the sparser one."""
    degree, full = len(x), torch.zeros(2 * len(x), dtype=torch.int64)
    for place in w.nonzero().view(-1).tolist():
        full[place : place + degree] += w[place] * x
    return full[:degree] - full[degree:]


def replies(layout: Layout, x: Tensor, weights: Tensor) -> Tensor:
    """All coefficients of all replies: int64 (replies, N)."""
    inputs, polys = layout.pack_input(x), layout.pack_weights(weights)
    assert inputs.shape == (layout.inputs, layout.degree) and len(polys) == len(layout.pairs)
    tiles = layout.tiles
    out = torch.zeros(tiles, layout.replies // tiles, layout.degree, dtype=torch.int64)
    for sums, parts in zip(out, inputs.chunk(tiles), strict=True):
        for (number, reply), poly in zip(layout.pairs.tolist(), polys, strict=True):
            sums[reply] += multiply(parts[number], poly)
    return out.flatten(0, 1)
