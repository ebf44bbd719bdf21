"""A flag that a signal's handler may set.

The handler runs wherever the main thread is, also in the middle of `threading.Event.wait` or `Thread.start`, which hold
a lock for a moment: `Event.set` and another `Thread.start` would then wait for the thread that they have interrupted,
and the program would never end; an exception that the handler raises may come out of any line. So a handler sets a flag
and does no more, and whoever waits for long looks at it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hummingbird.errors import PeerError

_STEP = 0.1  # seconds between two looks
_ending: list[Flag] = []


class Flag:
    """Set once, from any thread or a signal's handler, and never cleared."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Set it."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Let so much time pass, unless it is set meanwhile; whether it is set then."""
        ends = time.monotonic() + seconds
        while not self._set and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, _STEP))
        return self._set


@contextmanager
def ends_waits(flag: Flag) -> Iterator[None]:
    """Within, waits for other processes that call `check` end when the flag is set."""
    _ending.append(flag)
    try:
        yield
    finally:
        _ending.remove(flag)


def check() -> None:
    """PeerError where this process has been told to end; for each turn of a wait for another process."""
    if any(flag.is_set() for flag in _ending):
        raise PeerError("this process was told to stop", hint="its operator knows why")
