"""A flag that a signal's handler may set.

The handler runs wherever the main thread is, also in the middle of `threading.Event.wait`, which holds the event's lock
for a moment: `Event.set` would then wait for the thread that it has interrupted, and the program would never end.
"""

from __future__ import annotations

import time


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
        """Let so much time pass, unless it is set; whether it is set then."""
        if not self._set:
            time.sleep(seconds)
        return self._set
