"""The records of a table, ready for queries: on one device, or in parts on several (worker processes: workers.py).

A part is a range of leaves. A query goes to all parts, and each part expands its own leaves of the keys. The selection
over all rows is the union of the parts' selections, so the answers are combined by addition mod 2^width, or by XOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels import lookups as kernel
from hummingbird.kernels.lookups import LEAF_ROWS, leaves_of
from hummingbird.pir.table import Source, leaf_digests


class Shard(Protocol):
    """Interface of what holds a table's records, or a part of them, and combines the records that keys select.

    The records are in the memory of a device, or of several processes.
    """

    digests: list[bytes]  # of the leaves, as they were loaded

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise InputError if `answer` does not support these keys with this width; their format was checked before."""

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Combine the records that each key selects, uint8 (B, record_bytes).

        width: bits of the words that are added; 0: the records are combined by XOR.
        """

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace the records, uint8 (n, record_bytes), of these rows, int64 (n,)."""

    def check(self) -> None:
        """Raise PeerError if one of the processes that hold the records has ended."""

    def close(self) -> None:
        """Free memory, threads and processes; may be called twice."""


class TableShard:
    """Records first to last - 1 of a table, in this process, all zero before `load`; `first` is a multiple of 1024.

    device: "cpu", "cuda" or "cuda:1". Raises EnvironmentProblem if the device has too little memory.
    """

    def __init__(self, source: Source, first: int = 0, last: int | None = None, *, device: str = "cpu") -> None:
        last = source.facts.rows if last is None else last
        self._source, self._first, self._last = source, first, last
        self._leaf = first // LEAF_ROWS
        self.digests: list[bytes] = []
        self._table = kernel.Table(last - first, source.facts.record_bytes, device)

    def load(self) -> None:
        """Read the records from the source, and compute the digests of their leaves (blocks of 1024 rows)."""
        for start, records in self._source.parts(self._first, self._last):
            records = np.ascontiguousarray(records)
            self.digests += leaf_digests(records)
            self._table.fill(start - self._first, torch.from_numpy(records))

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


class Split:
    """A table in parts of about equal size, one on each of several devices, which answer in parallel.

    Raises InputError if there are more devices than leaves (blocks of 1024 rows), or a device is missing;
    EnvironmentProblem if a device has too little memory; both before anything is read.
    """

    def __init__(self, source: Source, devices: Sequence[str]) -> None:
        runs = cut(source.facts.rows, len(devices), "device")
        self._parts = [TableShard(source, *run, device=name) for run, name in zip(runs, devices, strict=True)]
        for part in self._parts:
            part.load()
        self.digests = [digest for part in self._parts for digest in part.digests]
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="hummingbird-shard")

    def accept(self, keys: Tensor, width: int) -> None:
        for part in self._parts:
            part.accept(keys, width)

    def answer(self, keys: Tensor, width: int) -> Tensor:
        return joined([*self._pool.map(lambda part: part.answer(keys, width), self._parts)], width)

    def write(self, indices: Tensor, records: Tensor) -> None:
        for part in self._parts:
            part.write(indices, records)

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._pool.shutdown()


def opened(source: Source, device: str) -> Shard:
    """Load a table on one device, or in parts on several: "cpu", "cuda", "cuda:0,cuda:1".

    Raises the errors of `TableShard` and `Split`.
    """
    names = device.split(",")
    if len(names) > 1:
        return Split(source, names)
    whole = TableShard(source, device=device)
    whole.load()
    return whole


def cut(rows: int, count: int, where: str) -> list[tuple[int, int]]:
    """Divide `rows` rows into `count` ranges (first, last + 1) of whole leaves, blocks of 1024 rows.

    Raises InputError, naming `where`, if there are fewer leaves than ranges.
    """
    leaves = leaves_of(rows)
    if not 0 < count <= leaves:
        hint = f"each has whole leaves of {LEAF_ROWS} rows, of which this table has {leaves}"
        raise InputError(f"{count} parts for {rows:,} rows", where=where, hint=hint)
    ends = [min(rows, leaves * number // count * LEAF_ROWS) for number in range(count + 1)]
    return list(zip(ends, ends[1:], strict=False))


def joined(answers: Sequence[Tensor], width: int) -> Tensor:
    """Combine the answers of a table's parts, uint8 (B, record_bytes): sum mod 2^width, or XOR for width 0."""
    total = answers[0].view(kernel.WIDTHS[width or 8])
    for part in answers[1:]:
        total = total + part.view(total.dtype) if width else total ^ part.view(total.dtype)
    return total.view(torch.uint8)
