"""Parties that run the programs of tests/jobs/failures.py, a dealer for them, and what a failure must look like."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import python
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port


@dataclass
class Party:
    """A forked process, its files."""

    process: subprocess.Popen[bytes]
    variables: dict[str, str]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        """The exit code; a party that runs on is killed, and the test fails."""
        try:
            return self.process.wait(PROGRAM)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(HANG)
            raise AssertionError(f"a party hangs:\n{self.err.read_text()}") from None

    def until(self, text: str) -> None:
        """Wait for its output."""
        until(lambda: text in self.out.read_text() or not alive(self.pid), f"{text!r} of a party")
        assert text in self.out.read_text(), f"a party ended without {text!r}:\n{self.err.read_text()}"

    def children(self) -> list[int]:
        pids = map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        return [pid for pid in pids if not python.beside(pid)]


class Nursery:
    """A folder of parties' output, and their start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def fork(self, job: Sequence[str], rank: int, parties: int, port: int, **variables: str) -> Party:
        self.count += 1
        out, err = self.folder / f"{self.count}.out", self.folder / f"{self.count}.err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = (python.Popen if rank else python.Parent)(  # the first one may start a dealer
                [sys.executable, "-m", "tests.jobs.failures", *job],
                cwd=ROOT,
                env={**environment(rank, parties, port), "TMPDIR": str(self.folder), **variables},
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
            )
        return Party(process, variables, out, err)

    def start(self, job: Sequence[str], world: int, **variables: str) -> list[Party]:
        """All processes of a run: a party each, or several if HUMMINGBIRD_LANES is among the variables."""
        port = free_port()
        return [self.fork(job, rank, world, port, **variables) for rank in range(world)]


@contextlib.contextmanager
def open_nursery() -> Iterator[Nursery]:
    """A nursery, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    yield Nursery(folder)
    shutil.rmtree(folder)


@contextlib.contextmanager
def open_dealer() -> Iterator[str]:
    """The address of one dealer for many runs, until the end of the block."""
    folder = tempfile.mkdtemp(prefix="hb")
    address = f"unix:{folder}/d"
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", address]
    with python.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield address
        process.terminate()
    shutil.rmtree(folder)


def error_of(party: Party, code: int) -> str:
    """The one error message of a party that has failed as it should."""
    text = party.err.read_text()
    assert code == 1, (code, text)
    assert "Traceback" not in text and text.count("] error: ") == 1, text
    assert re.search(r"^\[party \d(, lane \d)?\] error: .+ \(at .+\)\nhint: .+$", text, re.MULTILINE), text
    return text


def all_fail(parties: Sequence[Party], what: str) -> list[str]:
    """Every party says one error and ends; prints how long both took (pytest -rP)."""
    started = time.monotonic()
    until(lambda: all("] error: " in party.err.read_text() or not alive(party.pid) for party in parties), what)
    said = time.monotonic() - started
    messages = [error_of(party, party.wait()) for party in parties]
    print(f"MEASURED {what}: said after {said:.2f} s, ended after {time.monotonic() - started:.2f} s")
    return messages


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
