"""Resizing of images: every party multiplies its share by a public matrix for each spatial axis. Nothing is sent.

Weights are multiples of 2^-f, and each row of a matrix sums to the exact number: an image of one color keeps its color.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.graph.ops import resize
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.layer import Layer
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared

_BITS = 13  # of weights that few bits do not hold: for two axes together those of a mean's reciprocal


class Resize(Layer):
    """torch's interpolate (nearest, linear, bilinear, bicubic).

    attrs: the attributes of the op "resize" (graph/ops/resize.py).
    Weights are exact if few bits hold them, as for factors that are powers of two; others err by 2^-13 at most.
    """

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__()
        self.attrs = attrs
        exact = resize.exact_bits(attrs)
        axes = 1 if attrs["mode"] == "linear" else 2
        self.bits = _BITS if exact is None else exact
        self.fraction = axes * self.bits
        self.input_limit = 50 - self.fraction
        self.growth = 1 if attrs["mode"] == "bicubic" else 0  # |weights| sum to 1.5 at most, for each of two axes

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + 2 * self.growth

    def matrices(self, before: Sequence[int], after: Sequence[int]) -> list[Tensor]:
        """The matrix (out, size) of each spatial axis, int64 in units of 2^-bits."""
        return [
            _whole(resize.axis_matrix(self.attrs, size, out, axis, len(before)), self.bits)
            for axis, (size, out) in enumerate(zip(before, after, strict=True))
        ]

    def forward(self, session: Session, x: Shared, *sizes: Any) -> Shared:
        share = x.share
        after = resize.resize(self.attrs, torch.empty(share.shape, device="meta"), *sizes).shape[2:]
        for axis, matrix in enumerate(self.matrices(share.shape[2:], after)):
            share = _along(share, put(matrix, share.device), axis + 2)
        missing = self.fraction - self.bits * len(after)  # for modes with any number of axes
        return Shared(share << missing, x.scale + self.fraction)

    def real(self, x: Tensor, after: Sequence[int]) -> Tensor:
        """The layer's function on real numbers, with its rounded weights."""
        for axis, matrix in enumerate(self.matrices(x.shape[2:], after)):
            x = torch.tensordot(x, matrix.to(x.device, x.dtype) * 2.0**-self.bits, ([axis + 2], [1])).movedim(
                -1, axis + 2
            )
        return x

    def label(self) -> str:
        return self.attrs["mode"]


def _along(share: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Multiply a share along one dimension by a public matrix (out, size), exactly mod 2^64."""
    moved = share.movedim(dim, -1)
    out = ring.bilinear("matmul", moved.reshape(-1, moved.shape[-1]), matrix.t().contiguous())
    return out.view(*moved.shape[:-1], len(matrix)).movedim(-1, dim)


def _whole(matrix: Tensor, bits: int) -> Tensor:
    """Round a real matrix to int64 entries in units of 2^-bits, so that every row keeps its sum.

    The largest entry of each row takes up the rounding error of the row's sum.
    """
    units = (matrix * 2.0**bits).round()
    missing = (matrix.sum(1) * 2.0**bits).round() - units.sum(1)
    return units.scatter_add(1, units.abs().argmax(1, keepdim=True), missing[:, None]).long()
