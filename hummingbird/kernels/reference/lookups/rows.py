"""Rows and their selection in plain torch."""

from __future__ import annotations

import mmap

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem
from hummingbird.kernels.lookups.dpf import leaves_of
from hummingbird.kernels.lookups.rows import WIDTHS, RowStore
from hummingbird.kernels.reference.lookups.dpf import expand
from hummingbird.kernels.registry import implements

_HUGE = 4 << 20  # bytes from which on a table uses large pages
_PIECE = 4096  # rows at a time: sums of 4096 < 2^24 bits are exact in float32


@implements(RowStore, "reference")
class PlainRows(RowStore):
    """The rows of a lookup table as plain bytes, one row after the other."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        self._data = zeros(rows * row_bytes).view(rows, row_bytes)
        self.nbytes = self._data.numel()

    def write(self, start: int, data: Tensor) -> None:
        self._data[start : start + len(data)] = data

    def replace(self, index: Tensor, rows: Tensor) -> None:
        for at, row in zip(index.tolist(), rows, strict=True):
            self._data[at] = row

    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        return self.select(expand(keys, leaf, leaves_of(len(self._data))), width)

    def select(self, bits: Tensor, width: int) -> Tensor:
        return select(bits, self._data, width)


def select(bits: Tensor, data: Tensor, width: int) -> Tensor:
    """Combine, for each query, the rows that its bits select: their XOR for width 0, else their sum.

    A sum is of words of `width` bits. bits: uint8 (B, n), packed, n >= ceil(rows / 8). data: uint8 (rows, row_bytes).
    Returns uint8 (B, row_bytes).
    """
    total = torch.zeros((len(bits), data.shape[1] * 8 // (width or 1)), dtype=torch.int64)
    for start in range(0, len(data), _PIECE):
        part = data[start : start + _PIECE]
        chosen = _unpack(bits[:, start // 8 : (start + len(part) + 7) // 8])[:, : len(part)]
        if width:
            total += chosen.long() @ part.contiguous().view(WIDTHS[width]).long()  # wraps mod 2^64
        else:
            total ^= (chosen.float() @ _unpack(part).float()).long()  # only the lowest bit is used
    if width:
        return total.to(WIDTHS[width]).view(torch.uint8)
    return ((total & 1).view(len(bits), -1, 8) << torch.arange(8)).sum(2).to(torch.uint8)


def _unpack(data: Tensor) -> Tensor:
    return ((data[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def zeros(size: int) -> Tensor:
    """Allocate zeros, uint8 (size,), at an address that is a multiple of 64.

    The memory is on large pages if there are any, which halve the cache misses.
    """
    try:
        if size < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.zeros(size, dtype=torch.uint8)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        message = f"no memory for a table of {size} bytes: {error}"
        raise EnvironmentProblem(message, where="kernels.rows.Table", hint="share it among more servers") from None
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
