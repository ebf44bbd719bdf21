"""Services on this host whose every request is timed: two parties on a kept store, and two servers of lookups.

Each has `ask`, which asks once and again where it is refused, the times of what was answered, in the order of its end,
and the core-seconds of its processes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hummingbird.capacity.system import Floats
from hummingbird.errors import HummingbirdError, OverloadError, PeerError
from hummingbird.pir import Client as Lookups
from hummingbird.serving.client import Client
from scripts.bench.link import Link, Place, places
from scripts.bench.serve_net import Net
from scripts.program import ROOT, single_threaded
from scripts.train.data import DATASETS

_START = 300.0  # seconds for a service to start, or a store to be filled
_SETTLED = 0.2  # seconds for a second keeper to end what the first one began
_AGAIN = 0.02  # seconds between looks at the store, and until a refused request is made again
_TICK = os.sysconf("SC_CLK_TCK")


class Watched(ABC):
    """A service of processes in a folder of its own, in memory where the host has one there. name: in the table.

    images: of a request. kept: slots that a store is kept at; 0: no store, or all dealt ahead. keepers: that deal a set
    each whenever a slot of it is used. at_once: requests under way.
    """

    name: str
    images = 1
    kept = 0
    keepers = 0
    at_once = 1

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        self._holder = tempfile.TemporaryDirectory(prefix="hb", dir=where)
        self.folder = Path(self._holder.name)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._at: dict[str, int] = {}  # bytes of each file that were read

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def ask(self, number: int) -> int:
        """Ask the request of this number; how often it was refused before it was answered."""

    @abstractmethod
    def close(self) -> None:
        """End all processes and delete the folder."""

    def fill(self, requests: int) -> tuple[float, ...]:
        """Have material for `requests` requests, and add none until `keep`; seconds of each set."""
        return ()

    def refill(self, sets: int) -> tuple[float, ...]:
        """Make room in a small store for one set more, `sets` times: seconds until it is there."""
        return ()

    def keep(self) -> None:  # noqa: B027 - not all have a store
        """Have the store kept as full as it should be."""

    @property
    def core_seconds(self) -> float:
        """Core-seconds of parties or servers so far."""
        return sum(self._spent(name) for name in self._processes if "keeper" not in name)

    def _spent(self, name: str) -> float:
        fields = Path(f"/proc/{self._processes[name].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def times(self) -> Floats:
        """When requests stood in line, were taken, and answered, (n, 3), by the last: those since the last call."""
        return _by_end(self._read("times.txt", 3))

    def sets(self) -> Floats:
        """When the dealing of sets began, and they were there, (n, 2): those since the last call."""
        return self._read("sets.txt", 2)

    def _read(self, name: str, width: int) -> Floats:
        path = self.folder / name
        if not path.exists():
            return np.empty((0, width))
        with open(path, "rb") as file:
            file.seek(self._at.get(name, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at[name] = self._at.get(name, 0) + len(whole)
        return np.array([line.split() for line in whole.splitlines()], dtype=np.float64).reshape(-1, width)

    def _start(
        self, name: str, times: str, words: list[str], entry: str = "main", prefix: Sequence[str] = (), **variables: str
    ) -> None:
        program = f"import sys; from scripts.bench.serve_timed import {entry}; sys.exit({entry}(sys.argv[1:]))"
        command = [*prefix, sys.executable, "-c", program, str(self.folder / times), *words]
        environment: Mapping[str, str] = single_threaded(**variables)
        with open(self.folder / f"{name}.said", "wb") as said:
            self._processes[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = (self.folder / f"{name}.said").read_text()[-2000:]
                raise HummingbirdError(f"the {name} has ended with code {process.returncode}:\n{said}")

    def _end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._holder.cleanup()


def _by_end(times: Floats) -> Floats:
    return times[times[:, 2].argsort(kind="stable")]


class Kept(Watched):
    """Two parties on a kept store, a request for each slot. slots: of a set; kept: slots to be kept, 0: all is dealt
    ahead. keepers: 2: another store on this host is kept too, that of a service which is asked as often. link: between
    the parties.
    """

    at_once = 2  # one computes while the other's openings are on the wire

    def __init__(self, net: Net, link: Link, slots: int, kept: int, keepers: int = 1) -> None:
        super().__init__()
        self.name = f"{net.name}, {link}, {'a full store' if not kept else f'a store of {kept}'}"
        self.name += ", another beside it" if keepers > 1 else ""
        self.images, self.kept, self._slots = net.request, kept, slots
        self.keepers = keepers if kept else 0
        self._ends = contextlib.ExitStack()
        self._counting = threading.Lock()
        self._unused = 0  # slots that were dealt, as far as was read, and not asked for
        shape = "x".join(map(str, DATASETS[net.dataset].shape))
        try:
            self._tell(0)
            images = ["--images", str(slots * net.request), "--input", f"{net.request}x{shape}"]
            words = ["deal", *net.words, *images, "--threads", "1", "--keep", "1", "--out"]
            self._start("keeper", "sets.txt", [*words, str(self.folder / "kept")])
            if self.keepers > 1:
                (self.folder / "begun").touch()
                self._start("second keeper", "others.txt", [*words, str(self.folder / "other")], "beside")
            self.fill(1)
            self._serve(net, self._ends.enter_context(places(link, 2)), shape)
        except BaseException:
            self.close()
            raise
        self._inputs = net.images()[0]

    def _serve(self, net: Net, where: Sequence[Place], shape: str) -> None:
        words = ["serve", *net.words, "--input", shape, "--max-batch", str(net.request)]
        words += ["--store", str(self.folder / "kept"), "--listen", f"unix:{self.folder}/{{rank}}"]
        for rank, place in enumerate(where):
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", **place.environment}
            self._start(f"party {rank}", "times.txt", words, prefix=place.prefix, **variables)
        deadline = time.monotonic() + _START
        while True:
            try:
                self._client = Client([f"unix:{self.folder}/{rank}" for rank in range(2)], timeout=120.0)
                return
            except PeerError:
                self._check()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _tell(self, slots: int, keepers: int = 1) -> None:
        new = self.folder / "keep.new"
        new.write_text(f"{slots} {int(keepers > 1)}")
        new.rename(self.folder / "sets.txt.keep")

    def fill(self, requests: int) -> tuple[float, ...]:
        self._tell(requests)
        deadline, seconds = time.monotonic() + _START, list[float]()
        self.sets()
        while self._unused < requests:
            self._check()
            if time.monotonic() > deadline:
                raise HummingbirdError(f"a store of {requests} slots was not dealt within {_START:.0f} s")
            time.sleep(_AGAIN)
            seconds += [there - began for began, there in self.sets()]
        self._tell(0)
        while not self._heard():  # a set may be under way
            self._check()
            if time.monotonic() > deadline:
                raise HummingbirdError(f"the keeper took no notice within {_START:.0f} s")
            time.sleep(_AGAIN)
        time.sleep(_SETTLED)
        self.sets()
        return tuple(seconds)

    def _heard(self) -> bool:
        """Whether the keeper knows what it was told last, and deals nothing that it was told before."""
        heard, told = (self.folder / f"sets.txt.{name}" for name in ("heard", "keep"))
        return heard.exists() and heard.read_text() == told.read_text()

    def refill(self, sets: int) -> tuple[float, ...]:
        seconds = []
        for _ in range(sets if self.kept else 0):
            self._tell(self._unused + 1)
            told = time.perf_counter()
            while not len(found := self.sets()):
                self._check()
                if time.perf_counter() > told + _START:
                    raise HummingbirdError(f"the keeper dealt no set within {_START:.0f} s")
                time.sleep(_AGAIN)
            seconds.append(float(found[-1, 1]) - told)
        self._tell(0)
        return tuple(seconds)

    def keep(self) -> None:
        self._tell(self.kept, self.keepers)

    def sets(self) -> Floats:
        found = super().sets()
        self._unused += self._slots * len(found)
        return found

    def ask(self, number: int) -> int:
        first = number * self.images % (len(self._inputs) - self.images)
        refused, deadline = 0, time.monotonic() + _START
        with self._counting:
            self._unused -= 1
        while True:
            try:
                self._client(self._inputs[first : first + self.images])
                return refused
            except OverloadError:
                if time.monotonic() > deadline:
                    raise
                refused += 1
                time.sleep(_AGAIN)

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        self._end()
        self._ends.close()


class Pair(Watched):
    """Two servers of lookups in a table of `rows` rows of 64 numbers, which take every query alone."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.name, self._rows = f"lookups, {rows:,} rows", rows
        try:
            table = np.lib.format.open_memmap(self.folder / "table.npy", "w+", np.float32, (rows, 64))
            table[:] = np.random.default_rng(0).standard_normal(table.shape, dtype=np.float32)
            del table
            addresses = [f"unix:{self.folder}/{party}" for party in (0, 1)]
            for party, address in enumerate(addresses):
                words = ["pir-server", "--table", str(self.folder / "table.npy"), "--party", str(party)]
                words += ["--listen", address, "--max-batch", "1", "--max-wait", "0", "--threads", "1"]
                self._start(f"server {party}", f"times{party or ''}.txt", words)
            self._client = Lookups(addresses, timeout=120.0)
        except BaseException:
            self.close()
            raise

    def times(self) -> Floats:
        """The later of both servers' times of each request: its answer needs both, which take requests alike, but
        where two of them come at once.
        """
        first, second = _by_end(self._read("times.txt", 3)), _by_end(self._read("times1.txt", 3))
        if len(first) != len(second):
            raise HummingbirdError(f"one server answered {len(first)} requests, the other {len(second)}")
        return np.maximum(first, second)

    def ask(self, number: int) -> int:
        self._client.rows(torch.tensor([number * 7919 % self._rows]))
        return 0

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        self._end()
