"""A service whose processes die and come back: each party's torchrun and the dealer, started again as systemd would."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hummingbird.serving.client import Client
from tests.support import python
from tests.support.nursery import alive
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, suspend, until
from tests.support.ports import free_port

_RESTARTS = 1000


class Hosts:
    """A dealer and two parties on as many hosts, each a torchrun of its own on this one.

    options: of `serve`. store: of dealt material, in place of the dealer. lanes: processes of a party.
    """

    def __init__(self, *options: str, store: Path | None = None, lanes: int = 1) -> None:
        self.lanes = lanes
        self.folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
        self.addresses = [f"unix:{self.folder}/{rank}" for rank in range(2)]
        self._port, self._options = free_port(), options
        self._log = (self.folder / "log").open("wb")
        self._source = ["--dealer", f"unix:{self.folder}/d"] if store is None else ["--store", str(store)]
        if store is None:
            self.dealer = self.start_dealer()
        self.launchers = [self.start_host(rank) for rank in range(2)]

    def start_dealer(self) -> subprocess.Popen[bytes]:
        """A dealer at the one address, after the last one."""
        command = [sys.executable, "-m", "hummingbird", "dealer", "--listen", f"unix:{self.folder}/d"]
        self.dealer = self._start(command)
        return self.dealer

    def start_host(self, rank: int) -> subprocess.Popen[bytes]:
        """One party's torchrun."""
        where = ["--nnodes=2", f"--node_rank={rank}", f"--nproc_per_node={self.lanes}", "--master_addr=127.0.0.1"]
        torchrun = ["-m", "torch.distributed.run", *where, f"--master_port={self._port}", f"--max-restarts={_RESTARTS}"]
        serve = ["-m", "tests.jobs.one_host", "serve", *self._options, *self._source]
        listen = ["--listen", f"unix:{self.folder}/{{rank}}", "--timeout", str(HANG), "--lanes", str(self.lanes)]
        return self._start([sys.executable, *torchrun, *serve, *listen])

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
        }
        return python.Parent(command, cwd=ROOT, env=variables, stdout=self._log, stderr=self._log)

    def party(self, rank: int, lane: int = 0) -> int:
        """The process of a party's lane, as soon as its torchrun has started all of them."""
        launcher, found = self.launchers[rank].pid, list[int]()

        def look() -> bool:
            found[:] = children(launcher)
            return len(found) == self.lanes

        until(look, f"party {rank} to start")
        return sorted(found)[lane]  # torchrun starts them in this order

    def kill_party(self, rank: int, lane: int = 0) -> int:
        """Kill a lane of a party, and return its process, which has ended."""
        pid = self.party(rank, lane)
        kill(pid)
        return pid

    def kill_host(self, rank: int) -> None:
        """Kill a party and its torchrun."""
        launcher, before = self.launchers[rank], offspring(os.getpid())
        if launcher.poll() is None:
            suspend(launcher.pid)  # so that it starts no other meanwhile
            parties = children(launcher.pid)
            launcher.kill()
            for pid in parties:
                kill(pid)
        launcher.wait(HANG)

        def gone() -> bool:
            """Kill what was being forked for the launcher: it has become an orphan, and so a child of this process."""
            late = [pid for pid in offspring(os.getpid()) if pid not in before and alive(pid)]
            for pid in late:
                if not python.beside(pid):  # which ends by itself
                    kill(pid)
            return not late

        until(gone, f"all processes of party {rank} to end")

    def client(self, timeout: float = HANG) -> Client:
        """A client of its own."""
        return Client(self.addresses, timeout=timeout)

    @property
    def said(self) -> str:
        """The output of all processes."""
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """End everything: parties in an orderly way."""
        for launcher in self.launchers:
            launcher.send_signal(signal.SIGTERM)
        for launcher in self.launchers:
            try:
                launcher.wait(PROGRAM)
            except subprocess.TimeoutExpired:
                for pid in children(launcher.pid):
                    kill(pid)
                launcher.kill()
        if "--dealer" in self._source:
            self.dealer.kill()
            self.dealer.wait(HANG)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def hasty(addresses: Sequence[str]) -> Client:
    """A client that waits for nobody to come back, though it may take long to connect."""
    client = Client(addresses, timeout=HANG)
    client._groups.timeout = 0.2
    return client


def offspring(pid: int) -> list[int]:
    """All children of a process, of its threads too; none if it has ended."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            found += map(int, task.read_text().split())
    return found


def children(pid: int) -> list[int]:
    """Processes that a process has started and that run."""
    return [child for child in offspring(pid) if alive(child) and not python.beside(child)]


def kill(pid: int) -> None:
    """End a process at once; returns when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), f"process {pid} to end")
