"""How long tests wait: generously, for a wait ends as soon as what it waits for happens. No test asserts a speed.

A bound on a wait costs nothing where all is well: it only says when a test gives up. The bounds here hold while eight
other programs keep two cores busy. A timeout that is itself under test is one of two: short, where it must run out, and
then of the one who is to run into it alone; or `NEVER`, where something else must end the wait.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

HANG = 300.0  # seconds after which one step hangs: a message, a thread, the end of a process
PROGRAM = 600.0  # and a whole program; pytest ends a test after 1800 (pyproject.toml)
NEVER = 3600.0  # above that: a timeout that cannot be what ended a test


def until(condition: Callable[[], object], what: str = "what was to happen") -> None:
    """Return when `condition()` is true; AssertionError after `HANG` seconds."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"waited {HANG:g} s in vain for {what}"
        time.sleep(0.01)


def suspend(pid: int) -> None:
    """Stop a process until SIGCONT; every thread of it stands still when this returns, also on a busy machine."""
    os.kill(pid, signal.SIGSTOP)

    def still() -> bool:
        try:
            threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        except FileNotFoundError:  # a thread has just ended
            return False
        return all(text.rpartition(")")[2].split()[0] == "T" for text in threads)

    until(still, f"process {pid} to stop")
