"""Every failure is one clear error at every living party, within the timeout, with a code that is not 0; none hangs.

Real processes over real sockets, with a real dealer. Most parties are forks of one process that has imported torch
already (tests/failure_jobs.py); torchrun itself starts those of the last tests.
"""

from __future__ import annotations

import json
import os
import random
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

import pytest

from tests.failure_jobs import BAD_INPUTS, FAILURES, SECRET, TIMEOUT
from tests.parties import ROOT, environment, free_port

# A failure that the operating system reports (a closed connection) is told within this time, seconds; the machine may
# be busy. Silence is one only after TIMEOUT, and two waits may follow one another, the second of at most 4 s: the
# last words of a dealer (2 s) and of the party that waited for it (2 s).
SOON = 6.0
SILENCE = TIMEOUT + 4.0 + SOON


@dataclass
class Party:
    """A forked process: its id, its files."""

    nursery: Nursery
    pid: int
    out: Path
    err: Path

    def wait(self, seconds: float) -> int:
        """The exit code; a party that runs on is killed, and the test fails."""
        code = self.nursery.ask({"wait": self.pid, "seconds": seconds})
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.nursery.ask({"wait": self.pid, "seconds": 5})
            pytest.fail(f"a party hangs:\n{self.err.read_text()}")
        return int(code)

    def until(self, text: str, seconds: float = 30.0) -> None:
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
            [sys.executable, "-m", "tests.failure_jobs"],
            cwd=ROOT,
            env=environment(0, 1, 1),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

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
        return Party(self, pid, out, err)

    def start(self, job: Sequence[str], parties: int, **variables: str) -> list[Party]:
        """All parties of a run."""
        port = free_port()
        return [self.fork(job, rank, parties, port, **variables) for rank in range(parties)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    folder = Path(tempfile.mkdtemp(prefix="hb"))  # pytest's own may be too long for a socket's path
    here = Nursery(folder)
    yield here
    assert here.process.stdin is not None and here.process.stdout is not None
    here.process.stdin.close()
    here.process.wait(10)
    here.process.stdout.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def dealer() -> Iterator[str]:
    """The address of one dealer for many runs."""
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
    assert "Traceback" not in text and text.count("error: ") == 1, text
    assert re.search(r"^\[party \d\] error: .+ \(at .+\)\nhint: .+$", text, re.MULTILINE), text
    return text


def all_fail(parties: Sequence[Party], seconds: float, what: str) -> list[str]:
    """Every party ends with one error within this time; prints how long it took (pytest -rP)."""
    started = time.monotonic()
    messages = [error_of(party, party.wait(max(0.0, started + seconds - time.monotonic()))) for party in parties]
    print(f"{what}: {time.monotonic() - started:.1f} s")
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


# Living parties that differ
# --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(nursery: Nursery, dealer: str) -> list[dict[str, tuple[str, str, float]]]:
    """Every failure of `FAILURES`, as each of two parties sees it."""
    parties = nursery.start(["failures", *FAILURES], 2, DEALER=dealer)
    for party in parties:
        code = party.wait(60)
        assert code == 0, party.err.read_text()
    out = [json.loads(party.out.read_text()) for party in parties]
    for name in FAILURES:
        print(f"{name}: {', '.join(f'{one[name][2]:.2f}' for one in out)} s")
    return out


AGREEMENT = {
    "weights": "disagree on net",
    "architecture": "disagree on net",
    "bits": "disagree on bits",
    "bits of a layer": "disagree on bits",
    "owner": "disagree on weights",
    "owner or public": "disagree on",
    "version": "disagree on hummingbird version: party {me} has {mine}",
    "other operation": "at different places: party {me}",
    "layer skipped": "at different places",
    "large messages": "at different places: party {me}",
}


@pytest.mark.parametrize("name", AGREEMENT)
def test_what_parties_must_agree_on(seen, name):
    for me in (0, 1):
        kind, text, seconds = seen[me][name]
        assert kind == "AgreementError" and seconds < SOON, (kind, text)
        assert AGREEMENT[name].split("{")[0] in text
        assert "party 0" in text and "party 1" in text and "\nhint: all parties must" in text
