"""How long tests wait: generously, for a wait ends as soon as what it waits for happens. No test asserts a speed.

A bound on a wait costs nothing where all is well: it only says when a test gives up. The bounds here hold while eight
other programs keep two cores busy. A timeout that is itself under test is one of two: short, where it must run out, and
then of the one who is to run into it alone; or `NEVER`, where something else must end the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 300.0  # seconds after which one step hangs: a message, a thread, the end of a process
PROGRAM = 600.0  # and a whole program; pytest ends a test after 1800 (pyproject.toml)
NEVER = 3600.0  # above that: a timeout that cannot be what ended a test


def until(condition: Callable[[], object], what: str = "what was to happen") -> None:
    """Return when `condition()` is true; AssertionError after `HANG` seconds."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"waited {HANG:g} s in vain for {what}"
        time.sleep(0.01)
