"""Cutting a batch into slices: how many images fit in memory (graph/rowwise.py: which nets may be cut)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.mpc.session.sharing import Shared

_IN_FLIGHT, _ON_GPUS = 2, 3  # slices under way at a time: one computes, one is on the wire, and one is being copied
SLICE_BYTES = 2 << 30  # of memory for one slice's largest layer: shares, material, columns of a convolution
ELEMENT_BYTES = 200  # of these per value: a table of 32, ten words of 8, and what passes through


def in_flight(device: torch.device) -> int:
    """Number of slices under way at a time (channel/interleave.py), the same at all parties: their devices are of one
    type.
    """
    return _ON_GPUS if device.type == "cuda" else _IN_FLIGHT


class Slice(NamedTuple):
    """Images start .. start + images of a batch, filled up with zeros to `shape`."""

    start: int
    images: int
    shape: tuple[int, ...]

    def of(self, x: Shared) -> Shared:
        """This slice of a shared batch."""
        return Shared(self.rows(x.share), x.scale)

    def rows(self, x: Tensor) -> Tensor:
        """This slice of a plain batch."""
        part = x[self.start : self.start + self.images]
        missing = self.shape[0] - self.images
        return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part


def cut(shape: tuple[int, ...], largest: int, most: int | None) -> list[Slice]:
    """Equal slices of at most `SLICE_BYTES` and `most` images; `largest`: breadth of the batch's largest layer."""
    fitting = max(1, min(SLICE_BYTES * shape[0] // max(1, largest * ELEMENT_BYTES), most or shape[0]))
    size = -(-shape[0] // -(-shape[0] // fitting))
    starts = range(0, shape[0], size)
    return [Slice(at, min(size, shape[0] - at), (min(size, shape[0] - at), *shape[1:])) for at in starts]


def fill(shape: tuple[int, ...], dealt: tuple[int, ...]) -> list[Slice]:
    """Slices of the shape that there is material for; the last one is filled up."""
    return [Slice(at, min(dealt[0], shape[0] - at), dealt) for at in range(0, shape[0], dealt[0])]


def join(outputs: Sequence[Shared], slices: Sequence[Slice]) -> Shared:
    """The results of all slices as those of one batch."""
    if len(slices) == 1 and slices[0].images == slices[0].shape[0]:
        return outputs[0]
    shares = [out.share[: part.images] for out, part in zip(outputs, slices, strict=True)]
    return Shared(torch.cat(shares), outputs[0].scale)
