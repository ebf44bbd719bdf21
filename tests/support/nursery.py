"""Parties forked from one process (tests/jobs/failures.py), a dealer for them, and what a failure must look like."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.ports import free_port


@dataclass
class Party:
    """A forked process: its id, its files."""

    nursery: Nursery
    pid: int
    variables: dict[str, str]
    out: Path
    err: Path

    def wait(self) -> int:
        """The exit code; a party that runs on is killed, and the test fails."""
        code = self.nursery.ask({"wait": self.pid, "seconds": PROGRAM})
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.nursery.ask({"wait": self.pid, "seconds": HANG})
            raise AssertionError(f"a party hangs:\n{self.err.read_text()}")
        return int(code)

    def until(self, text: str) -> None:
        """Wait for its output."""
        until(lambda: text in self.out.read_text() or not alive(self.pid), f"{text!r} of a party")
        assert text in self.out.read_text(), f"a party ended without {text!r}:\n{self.err.read_text()}"

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


class Nursery:
    """The process that parties are forked from."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.failures"],
            cwd=ROOT,
            env=environment(0, 1, 1),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"  # what tests measure does not include its imports

    def ask(self, request: dict[str, object]) -> int | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: int | None = json.loads(self.process.stdout.readline())
        return answer

    def fork(self, job: Sequence[str], rank: int, parties: int, port: int, **variables: str) -> Party:
        self.count += 1
        out, err = self.folder / f"{self.count}.out", self.folder / f"{self.count}.err"
        for path in (out, err):
            path.touch()
        pid = self.ask(
            {
                "job": list(job),
                "out": str(out),
                "err": str(err),
                "environment": {**environment(rank, parties, port), "TMPDIR": str(self.folder), **variables},
            }
        )
        assert pid is not None
        return Party(self, pid, variables, out, err)

    def start(self, job: Sequence[str], world: int, **variables: str) -> list[Party]:
        """All processes of a run: a party each, or several if HUMMINGBIRD_LANES is among the variables."""
        port = free_port()
        return [self.fork(job, rank, world, port, **variables) for rank in range(world)]


@contextlib.contextmanager
def open_nursery() -> Iterator[Nursery]:
    """A nursery, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    here = Nursery(folder)
    yield here
    assert here.process.stdin is not None and here.process.stdout is not None
    here.process.stdin.close()
    here.process.wait(HANG)
    here.process.stdout.close()
    shutil.rmtree(folder)


@contextlib.contextmanager
def open_dealer() -> Iterator[str]:
    """The address of one dealer for many runs, until the end of the block."""
    folder = tempfile.mkdtemp(prefix="hb")
    address = f"unix:{folder}/d"
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
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
