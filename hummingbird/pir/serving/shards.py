"""The records of a table, or of a part of it, made ready for queries (over worker processes: workers.py)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hummingbird.kernels.lookups import rows as kernel
from hummingbird.kernels.lookups.dpf import LEAF_ROWS
from hummingbird.pir.table import Source, leaf_digests


class Shard(Protocol):
    """Some records, ready for queries."""

    digests: list[bytes]  # of the leaves, as they were loaded

    def accept(self, keys: Tensor, width: int) -> None:
        """InputError for checked keys and a width that `answer` does not take."""

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Selected records' sum mod 2^width, or XOR for width 0: uint8 (B, record_bytes)."""

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace records by row number, int64 (n,); uint8 (n, record_bytes)."""

    def check(self) -> None:
        """PeerError if a process of it has ended."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


class Part:
    """Records first..last-1 of a table, in this process; `first` begins a leaf. device: "cpu" or "cuda"."""

    def __init__(self, source: Source, first: int = 0, last: int | None = None, *, device: str = "cpu") -> None:
        last = source.facts.rows if last is None else last
        self._first, self._last = first, last
        self._leaf = first // LEAF_ROWS
        self.digests: list[bytes] = []
        self._table = kernel.Table(last - first, source.facts.record_bytes, device)
        for start, records in source.parts(first, last):
            records = np.ascontiguousarray(records)
            self.digests += leaf_digests(records)
            self._table.fill(start - first, torch.from_numpy(records))

    def accept(self, keys: Tensor, width: int) -> None:
        self._table.accept(keys, width)

    def answer(self, keys: Tensor, width: int) -> Tensor:
        if width:
            return self._table.answer_sum(keys, width, first_leaf=self._leaf)
        return self._table.answer(keys, first_leaf=self._leaf)

    def write(self, indices: Tensor, records: Tensor) -> None:
        own = (indices >= self._first) & (indices < self._last)
        if bool(own.any()):
            self._table.update(indices[own] - self._first, records[own])

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
