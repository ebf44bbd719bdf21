"""A party's lives: one session after the other behind the same methods, until it is told to end.

When a party or the dealer dies, the session of all others is over. Those that live refuse what waits, go on listening,
and meet again as soon as all are there: with fresh seeds, fresh material, and no memory of what was asked before.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from hummingbird.errors import DealerError, PeerError
from hummingbird.mpc import launch
from hummingbird.serving.methods import Methods
from hummingbird.serving.party import Party, unavailable

_PAUSE = 1.0  # seconds between two attempts to meet


class Lives:
    """`run` serves; begin: joins a session, converts the net, and returns the party's part.

    The first life must begin, so that what is wrong from the start is told. Later ones are tried until they do.
    begun: called when the first one has.
    """

    def __init__(self, methods: Methods, begin: Callable[[], Party], begun: Callable[[], object]) -> None:
        self._methods, self._begin = methods, begin
        self._stopping = False
        self._begun, self._met = begun, False

    def run(self) -> Party:
        """The party of the last life, at an orderly end; raises what the first life does before it serves."""
        while True:
            try:
                party = self._begin()
                self._methods.open(party)
                if not self._met:
                    self._met = True
                    self._begun()
                party.run()
                return party
            except (PeerError, DealerError) as error:
                self._methods.shut(unavailable(error))
                if not self._met or self._stopping:
                    raise
                launch.abort(error)
                sys.stderr.write(f"[{launch.name()}] interrupted: {error.what}; meeting the others again\n")
                sys.stderr.flush()
                time.sleep(_PAUSE)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: drain, or end at once where there is nothing to drain."""
        self._stopping = True
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        if self._methods.party is None:
            raise SystemExit(0)
        # From a thread: the one that the signal interrupts may hold a lock that this takes.
        threading.Thread(target=self._methods.drain, daemon=True).start()
