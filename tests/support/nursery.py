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

from tests.support.parties import environment, free_port
from tests.support.paths import ROOT

# Seconds until a failure that the operating system reports (a closed connection) must be told: 0.05 on a quiet machine.
SOON = 5.0
# And from there to the process's end: 2 s for parties that read no more, 2 s for a dealer that is not there, 5 s for a
# dealer that was started here and does not end.
ENDING = 9.0 + SOON


@dataclass
class Party:
    """A forked process: its id, its files."""

    nursery: Nursery
    pid: int
    variables: dict[str, str]
    out: Path
    err: Path

    def wait(self, seconds: float) -> int:
        """The exit code; a party that runs on is killed, and the test fails."""
        code = self.nursery.ask({"wait": self.pid, "seconds": seconds})
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.nursery.ask({"wait": self.pid, "seconds": 5})
            raise AssertionError(f"a party hangs:\n{self.err.read_text()}")
        return int(code)

    def until(self, text: str, seconds: float = 60.0) -> None:
        """Wait for its output."""
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            assert time.monotonic() < deadline, f"no {text!r}:\n{self.err.read_text()}"
            time.sleep(0.01)

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

    def start(self, job: Sequence[str], parties: int, **variables: str) -> list[Party]:
        """All parties of a run."""
        port = free_port()
        return [self.fork(job, rank, parties, port, **variables) for rank in range(parties)]


@contextlib.contextmanager
def open_nursery() -> Iterator[Nursery]:
    """A nursery, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    here = Nursery(folder)
    yield here
    assert here.process.stdin is not None and here.process.stdout is not None
    here.process.stdin.close()
    here.process.wait(10)
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
    assert re.search(r"^\[party \d\] error: .+ \(at .+\)\nhint: .+$", text, re.MULTILINE), text
    return text


def all_fail(parties: Sequence[Party], seconds: float, what: str, since: float | None = None) -> list[str]:
    """Every party says one error and ends within this time; prints how long both took (pytest -rP)."""
    started = time.monotonic() if since is None else since
    while time.monotonic() - started < seconds:
        if all("] error: " in party.err.read_text() for party in parties):
            break
        time.sleep(0.01)
    said = time.monotonic() - started
    assert said < seconds, [party.err.read_text() for party in parties]
    messages = [error_of(party, party.wait(ENDING)) for party in parties]
    print(f"MEASURED {what}: said after {said:.2f} s, ended after {time.monotonic() - started:.2f} s")
    return messages


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True
