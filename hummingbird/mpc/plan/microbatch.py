"""Cuts a batch into slices that fit in memory. graph/rowwise.py says for which nets this is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hummingbird.mpc.session.sharing import Shared

_IN_FLIGHT, _ON_GPUS = 2, 3  # slices that run at a time: one computes, one sends, and on GPUs one is being copied
SLICE_BYTES = 2 << 30  # memory for one slice's largest layer: shares, material, columns of a convolution
ELEMENT_BYTES = 200  # memory for each value: a table of 32 bytes, ten words of 8, and temporary copies


def in_flight(device: torch.device) -> int:
    """Return how many slices of a batch run interleaved on a device: one computes while the messages of others travel.

    The number follows from the device's type alone, which is the same at all parties.
    """
    return _ON_GPUS if device.type == "cuda" else _IN_FLIGHT


class Slice(NamedTuple):
    """A part of a batch that runs at once: images `start` to `start + images` - 1, padded with zeros to `shape`."""

    start: int
    images: int
    shape: tuple[int, ...]

    def of(self, x: Shared) -> Shared:
        """Return the rows of a shared batch that belong to this slice, padded with zeros."""
        return Shared(self.rows(x.share), x.scale)

    def rows(self, x: Tensor) -> Tensor:
        """Return the rows of a plain batch that belong to this slice, padded with zeros."""
        part = x[self.start : self.start + self.images]
        missing = self.shape[0] - self.images
        return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part


def cut(shape: tuple[int, ...], largest: int, most: int | None) -> list[Slice]:
    """Cut a batch of this shape into slices that fit into `SLICE_BYTES` of memory, of equal size but for the last.

    largest: how many values the batch's largest layer works on at once.
    most: the most images in a slice; None for no limit.
    """
    fitting = max(1, min(SLICE_BYTES * shape[0] // max(1, largest * ELEMENT_BYTES), most or shape[0]))
    size = -(-shape[0] // -(-shape[0] // fitting))
    starts = range(0, shape[0], size)
    return [Slice(at, min(size, shape[0] - at), (min(size, shape[0] - at), *shape[1:])) for at in starts]


def fill(shape: tuple[int, ...], dealt: tuple[int, ...]) -> list[Slice]:
    """Cut a batch of this shape into slices of the shape `dealt`, for which a store has material; return the slices.

    The last one is padded.
    """
    return [Slice(at, min(dealt[0], shape[0] - at), dealt) for at in range(0, shape[0], dealt[0])]


def join(outputs: Sequence[Shared], slices: Sequence[Slice]) -> Shared:
    """Join the results of all slices to the result of the batch, without the padding, and return it.

    outputs, slices: in the same order.
    """
    if len(slices) == 1 and slices[0].images == slices[0].shape[0]:
        return outputs[0]
    shares = [out.share[: part.images] for out, part in zip(outputs, slices, strict=True)]
    return Shared(torch.cat(shares), outputs[0].scale)
