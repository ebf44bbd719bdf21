"""A table's records spread over worker processes.

Every worker maps the file and prepares its own range of leaves (shards.py), so all workers together hold the table
once. A query goes to all workers, and their answers are combined. A worker ends when its pipe closes. If a worker dies,
the server ends too, because an incomplete table gives wrong answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.errors import EnvironmentProblem, HummingbirdError, InputError, PeerError
from hummingbird.pir.messages import as_bytes
from hummingbird.pir.serving.shards import TableShard, cut, joined
from hummingbird.pir.table import Source
from hummingbird.rpc.frame import pack_tensors, unpack_tensors

_FRAME = struct.Struct("<Q")
_LOAD_SECONDS = 3600.0  # for a worker to load its part
_WORK_SECONDS = 300.0  # for one answer
_WRITE = -1  # instead of a width: write records


class Workers:
    """A table in a file, spread over `count` processes with one thread each.

    Raises EnvironmentProblem if the processes cannot start, InputError if the file is not valid.
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
        """Send a message to every worker; returns their answers, in order.

        Closes all workers after a failure, because answers to this message may still be in the pipes.
        """
        try:
            for worker in self._workers:
                worker.send(message)
            return [worker.receive(_WORK_SECONDS)[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        for worker in self._workers:
            worker.check()

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
    """Receive the next message; returns None at the end of the pipe."""
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
    """Run a worker process: load rows, send their digests, then answer until the pipe on stdin ends.

    job: path, tensor, first and last row, as JSON.
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
