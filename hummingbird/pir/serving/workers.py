"""The records of a table, ready for queries: on one device, in parts on several, or spread over worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, PeerError
from hummingbird.kernels import lookups as kernel
from hummingbird.kernels.keywords import SEGMENTS
from hummingbird.kernels.lookups import LEAF_ROWS, leaves_of
from hummingbird.pir.messages import as_bytes
from hummingbird.pir.prepared import leaf_digests
from hummingbird.pir.table import Source
from hummingbird.rpc.frame import pack_tensors, unpack_tensors

# Shards: ranges of leaves ---------------------------------------------------------------------------------------------
#
# A part is a range of leaves. A query goes to all parts, and each part expands its own leaves of the keys. The
# selection over all rows is the union of the parts' selections, so the answers are combined by addition mod 2^width, or
# by XOR.


Changes = Callable[[], AbstractContextManager[Iterable[tuple[Tensor, Tensor]]]]
"""A function that returns a context in which no update is applied; its value are the changes made so far, in order:
numbers of rows, int64 (n,), and their records, uint8 (n, record_bytes).
"""


class Shard(Protocol):
    """Interface of an object that holds the records of a table, or a part of them, and combines those that keys select.

    The records are in the memory of a device, of several devices, or of several processes. digests: of the leaves,
    which are blocks of 1024 rows, as they were loaded.
    """

    digests: list[bytes]  # of the leaves, as they were loaded

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise InputError if this object cannot answer such keys: a GPU, for example, takes only some kinds.

        keys: uint8 (B, key_bytes), of a format that was checked before. width: bits of the words that are added; 0:
        records are combined by XOR.
        """

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Combine, for each key, the records that it selects; returns uint8 (B, record_bytes).

        keys: uint8 (B, key_bytes). width: bits of the words that are added; 0: the records are combined by XOR.
        """

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Replace the records of some rows.

        indices: numbers of the rows, int64 (n,). records: uint8 (n, record_bytes).
        """

    def check(self) -> bool:
        """Return whether queries can be answered now: not while a process that holds records is being replaced.

        Raises PeerError if such a process has ended for good.
        """

    def follow(self, changes: Changes) -> None:
        """Note where all changes of the records since they were loaded can be read again, if a part of them is lost.

        A server calls this once, when it has applied its journal.
        """

    def close(self) -> None:
        """Free the memory, and end the threads and processes that hold records; may be called twice."""


class InProcess:
    """The parts of a `Shard` that need no work where all records are in this process, which loses none."""

    def check(self) -> bool:
        """Return True, because there are no processes to lose."""
        return True

    def follow(self, changes: Changes) -> None:
        """Do nothing, because no records are lost."""

    def close(self) -> None:
        """Do nothing, because only memory is held."""


class TableShard(InProcess):
    """Records `first` to `last` - 1 of a table, in this process; they are zeros before `load`.

    source: the table. first: a multiple of 1024. last: None for the end of the table. device: "cpu", "cuda" or
    "cuda:1". Raises EnvironmentProblem if the device has too little memory.
    """

    def __init__(self, source: Source, first: int = 0, last: int | None = None, *, device: str = "cpu") -> None:
        last = source.facts.rows if last is None else last
        self._source, self._first, self._last = source, first, last
        self._leaf = first // LEAF_ROWS
        self.digests: list[bytes] = []
        mapped = source.mapped(first, last) if device == "cpu" else None
        self._loaded = mapped is not None
        self._table = mapped or kernel.Table(last - first, source.facts.record_bytes, device)

    def load(self) -> None:
        """Read the records from the source, and compute the digests of their leaves (blocks of 1024 rows).

        A prepared file is mapped already, and has the digests.
        """
        if self._loaded and self._source.digests is not None:
            self.digests = [*self._source.digests[self._first // LEAF_ROWS : leaves_of(self._last)]]
            return
        for start, rows in self._source.parts(self._first, self._last):
            rows = np.ascontiguousarray(rows)
            self.digests += leaf_digests(rows)
            self._table.fill(start - self._first, torch.from_numpy(rows))

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


class Split(InProcess):
    """A table that is divided into parts of about equal size, one on each of several devices, which answer in parallel.

    source: the table. devices: their names, such as "cuda:0". Raises InputError if there are more devices than leaves
    (blocks of 1024 rows), or a device is missing; EnvironmentProblem if a device has too little memory. All of this is
    checked before any row is read.
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

    def close(self) -> None:
        self._pool.shutdown()


class Segments(InProcess):
    """The segments of a table by keyword, in this process on the CPU: a query has a key for each, in turns.

    source: the table.
    """

    def __init__(self, source: Source) -> None:
        size = self._size = source.facts.domain
        runs = [(number * size, (number + 1) * size) for number in range(SEGMENTS)]
        mapped = [table for run in runs if (table := source.mapped(*run)) is not None]
        self._tables = mapped or [kernel.Table(size, source.facts.record_bytes) for _ in runs]
        self.digests = [*(source.digests or ())]
        if mapped:
            return
        self.digests = []
        for start, rows in source.parts(0, source.facts.rows):
            rows = np.ascontiguousarray(rows)
            self.digests += leaf_digests(rows)
            self._each(torch.arange(start, start + len(rows)), torch.from_numpy(rows))

    def _each(self, indices: Tensor, records: Tensor) -> None:
        for number, table in enumerate(self._tables):
            own = indices // self._size == number
            if bool(own.any()):
                table.update(indices[own] - number * self._size, records[own])

    def accept(self, keys: Tensor, width: int) -> None:
        """Raise InputError unless there are as many keys for each segment."""
        if len(keys) % SEGMENTS:
            hint = "client and servers need the same release"
            raise InputError(f"a keyword has {SEGMENTS} keys, the query {len(keys)}", hint=hint)

    def answer(self, keys: Tensor, width: int) -> Tensor:
        records = kernel.answer_each(self._tables, keys.view(-1, SEGMENTS, keys.shape[1]).transpose(0, 1), width)
        return records.transpose(0, 1).reshape(len(keys), -1)

    def write(self, indices: Tensor, records: Tensor) -> None:
        self._each(indices, records)


def opened(source: Source, device: str) -> Shard:
    """Load a table on one device, as with "cpu" or "cuda", or in parts on several, as with "cuda:0,cuda:1".

    Returns the object that combines its records. Raises the errors of `TableShard` and `Split`, and InputError for a
    table by keyword on another device than "cpu".
    """
    names = device.split(",")
    if source.facts.keywords:
        if names != ["cpu"]:
            raise whole_only(f"on {device}")
        return Segments(source)
    if len(names) > 1:
        return Split(source, names)
    whole = TableShard(source, device=device)
    whole.load()
    return whole


def whole_only(where: str) -> InputError:
    """Return the error for a table by keyword that is to be divided, or put on a GPU. where: as the user has it."""
    hint = "serve it in one process, on the CPU: without --workers, --ray, --plan and --device"
    return InputError(f"a table by keyword {where}", where="pir-server", hint=hint)


def cut(rows: int, count: int, where: str) -> list[tuple[int, int]]:
    """Divide the rows of a table into `count` ranges of leaves: blocks of 1024 rows; the last block may be shorter.

    rows: number of rows. Returns pairs (first row, last row + 1). Raises InputError, naming `where`, if there are fewer
    leaves than ranges.
    """
    leaves = leaves_of(rows)
    if not 0 < count <= leaves:
        hint = f"each has whole leaves of {LEAF_ROWS} rows, of which this table has {leaves}"
        raise InputError(f"{count} parts for {rows:,} rows", where=where, hint=hint)
    ends = [min(rows, leaves * number // count * LEAF_ROWS) for number in range(count + 1)]
    return list(zip(ends, ends[1:], strict=False))


def joined(answers: Sequence[Tensor], width: int) -> Tensor:
    """Combine the answers that all parts of a table give to B keys to the answers of the table, uint8 (B,
    record_bytes).

    answers: of each part, uint8 (B, record_bytes). width: bits of the words that are added, mod 2^width; 0: the answers
    are combined by XOR.
    """
    total = answers[0].view(kernel.WIDTHS[width or 8])
    for part in answers[1:]:
        total = total + part.view(total.dtype) if width else total ^ part.view(total.dtype)
    return total.view(torch.uint8)


# Worker processes -----------------------------------------------------------------------------------------------------
#
# Every worker maps the file and prepares its own range of leaves, so all workers together hold the table
# once. A query goes to all workers, and their answers are combined. A worker ends when its pipe closes. If a worker
# dies, the server ends too, because an incomplete table gives wrong answers.

_FRAME = struct.Struct("<Q")
_LOAD_SECONDS = 3600.0  # for a worker to load its part
_WORK_SECONDS = 300.0  # for one answer
_WRITE = -1  # instead of a width: write records


class Workers:
    """A table in a file, divided among `count` processes with one thread each.

    path: the file. tensor: the table's name, if the file holds several. Raises EnvironmentProblem if the processes
    cannot start, InputError if the file is not valid.
    """

    def __init__(self, path: Path, tensor: str | None, count: int) -> None:
        runs = cut(Source.open(path, tensor).facts.rows, count, "workers")
        self._workers: list[_Worker] = []
        try:
            for first, last in runs:
                self._workers.append(_Worker(path, tensor, first, last))
            parts = [worker.receive(_LOAD_SECONDS) for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.digests = [row.numpy().tobytes() for (digests,) in parts for row in digests]

    def accept(self, keys: Tensor, width: int) -> None:
        pass

    def answer(self, keys: Tensor, width: int) -> Tensor:
        return joined(self._ask([torch.tensor([width]), keys]), width)

    def write(self, indices: Tensor, records: Tensor) -> None:
        self._ask([torch.tensor([_WRITE]), indices, records])

    def _ask(self, message: list[Tensor]) -> list[Tensor]:
        """Send a message to every worker process; returns one answer of each, in order.

        After a failure all processes are ended, because answers to this message may still be in the pipes.
        """
        try:
            for worker in self._workers:
                worker.send(message)
            return [worker.receive(_WORK_SECONDS)[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise

    def check(self) -> bool:
        for worker in self._workers:
            worker.check()
        return True

    def follow(self, changes: Changes) -> None:
        pass

    def close(self) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.wait()


class _Worker:
    """The server's connection to one worker process: it starts the process, sends messages and receives answers."""

    def __init__(self, path: Path, tensor: str | None, first: int, last: int) -> None:
        self._name = f"the worker for rows {first} to {last - 1}"
        self._socket, other = socket.socketpair()
        root = str(Path(__file__).resolve().parents[3])
        python_path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        job = json.dumps([str(path), tensor, first, last])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, job],
                stdin=other.fileno(),
                env={**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C goes to the server only, which finishes its queue first
            )
        except OSError as error:
            self._socket.close()
            raise EnvironmentProblem(f"cannot start a worker: {error.strerror}", where=self._name) from None
        finally:
            other.close()

    def send(self, tensors: list[Tensor]) -> None:
        self._socket.settimeout(_WORK_SECONDS)
        try:
            _send(self._socket, tensors)
        except OSError:
            raise self._lost() from None

    def receive(self, seconds: float) -> list[Tensor]:
        self._socket.settimeout(seconds)
        try:
            answer = _receive(self._socket)
        except OSError:
            answer = None
        if answer is None:
            raise self._lost()
        if len(answer) == 2:  # what, hint
            what, hint = (part.numpy().tobytes().decode() for part in answer)
            raise InputError(what, where=self._name, hint=hint)
        return answer

    def check(self) -> None:
        if self._process.poll() is not None:
            raise self._lost()

    def _lost(self) -> PeerError:
        return PeerError(f"{self._name} has ended or does not answer", hint="start this server again")

    def hang_up(self) -> None:
        self._socket.close()

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait(5.0)


def _send(pipe: socket.socket, tensors: list[Tensor]) -> None:
    frame = pack_tensors(tensors)
    pipe.sendall(_FRAME.pack(len(frame)))
    pipe.sendall(frame)


def _receive(pipe: socket.socket) -> list[Tensor] | None:
    """Receive the next message from a pipe, as a list of tensors; returns None if the pipe has ended."""
    head = _read(pipe, _FRAME.size)
    if head is None:
        return None
    data = _read(pipe, _FRAME.unpack(head)[0])
    return None if data is None else unpack_tensors(data, max_tensors=3)


def _read(pipe: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = pipe.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return data


_TEXT = records.text(1 << 16)
_JOB = records.row(_TEXT, records.maybe(_TEXT), records.whole(), records.whole())


def work(job: str) -> None:
    """Run a worker process: load a part of a table, and answer messages until the pipe on stdin ends.

    job: JSON text of a list: path of the file, name of the tensor, first row, last row + 1. The first answer has the
    digests of the part's leaves, which are blocks of 1024 rows.
    """
    path, tensor, first, last = records.read(job, _JOB, name="job")
    pipe = socket.socket(fileno=os.dup(0))
    torch.set_num_threads(1)
    try:
        part = TableShard(Source.open(path, tensor), first, last)
        part.load()
    except HummingbirdError as error:
        _send(pipe, [as_bytes(error.what.encode()), as_bytes(error.hint.encode())])
        return
    _send(pipe, [torch.stack([as_bytes(digest) for digest in part.digests])])
    while (message := _receive(pipe)) is not None:
        width, *rest = message
        if int(width) == _WRITE:
            part.write(rest[0], rest[1])
            _send(pipe, [width])
        else:
            _send(pipe, [part.answer(rest[0], int(width))])


if __name__ == "__main__":
    work(sys.argv[1])
    os._exit(0)  # nothing to save, and torch's teardown is slow
