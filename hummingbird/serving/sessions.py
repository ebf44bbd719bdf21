"""A service's sessions, one after the other: parties that live on meet one that comes back, with fresh material.

A party or the dealer that dies ends the session at all parties. Each refuses what waits, and its front answers clients
with UNAVAILABLE and the reason. Then all meet again (mpc/meeting.py), the living in the same process: new seeds, new
material, new shares of private weights, and a new name of the service, so that no request of the last session is run in
the next one. Failures of others are waited for as long as it takes; anything else ends the process, which its launcher
may start again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from hummingbird.errors import DealerError, HummingbirdError, PeerError, UnavailableError
from hummingbird.mpc import launch
from hummingbird.serving.front import Front
from hummingbird.serving.party import Party, unavailable

_PAUSES = (0.5, 15.0)  # seconds before the next meeting: at first, and at most
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Sessions:
    """`run` is a party's main thread, until a signal.

    front: answers clients. begin: joins the other parties, and makes this party's part in a session of `launch.init`.
    ready: called whenever clients are answered.
    """

    def __init__(self, front: Front, begin: Callable[[], Party], ready: Callable[[], None]) -> None:
        self._front, self._begin, self._ready = front, begin, ready
        self._party: Party | None = None
        self._told = False  # to end, by a signal
        self.count = self.batches = self.images = self.padding = 0  # of all sessions

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, at which what waits is still answered. Raises what is no failure of another
        party or of the dealer.
        """
        before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        try:
            self._go_on()
        except PeerError:
            if not self._told:
                raise
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def _go_on(self) -> None:
        pause = _PAUSES[0]
        while not self._told:
            count = self.count
            try:
                self._session()
            except (PeerError, DealerError) as error:
                if not self._told:
                    _say(f"interrupted, and trying again: {str(error).splitlines()[0]}")
            pause = _PAUSES[0] if self.count > count else min(2 * pause, _PAUSES[1])
            if not self._told:
                time.sleep(pause)

    def _session(self) -> None:
        """Meet, serve, and leave."""
        try:
            party = self._party = self._begin()
            self._front.open(party)
            self.count += 1
            self._ready()
            party.run()
        except HummingbirdError as error:
            self._front.shut(unavailable(error))
            launch.abort(error)
            raise
        else:
            self._front.shut(UnavailableError("a party is leaving the service", hint="try again in a few seconds"))
            launch.uninit()
        finally:
            if self._party is not None:
                done = self._party.batches
                self.batches, self.images = self.batches + done.batches, self.images + done.images
                self.padding += done.padding
            self._party = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told = True
        if self._party is None:
            raise PeerError("this party was told to stop", where=launch.name(), hint="its operator knows why")
        # From a thread: the one that the signal interrupts may hold a lock that `end` takes.
        threading.Thread(target=self._party.end, daemon=True).start()


def _say(text: str) -> None:
    """One line, in one write: several parties may share a terminal."""
    sys.stderr.write(f"[{launch.name()}] {text}\n")
    sys.stderr.flush()
