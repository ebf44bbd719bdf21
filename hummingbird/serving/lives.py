"""A party's lives: one session after the other behind the same methods, until it is told to end.

When a party or the dealer dies, the session of all others is over. Those that live refuse what waits, go on listening,
and meet again as soon as all are there (mpc/meeting.py): with fresh seeds, fresh material, private weights shared anew,
and a new name of the service, so that no request of one session is run in the next. For others a party waits as long as
it takes; any other failure ends its process, which a launcher may start again.
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
from hummingbird.serving.desk import Counts, unavailable
from hummingbird.serving.methods import Methods
from hummingbird.serving.party import Lane, Party

_PAUSES = (0.5, 15.0)  # seconds before the next meeting: after a life, and at most after failures to begin one
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Lives:
    """`run` is a party's main thread. begin: joins a session, converts the net, and returns the party's part.

    begun: called when clients are answered, in every life.
    """

    def __init__(self, methods: Methods, begin: Callable[[], Party | Lane], begun: Callable[[], object]) -> None:
        self._methods, self._begin, self._begun = methods, begin, begun
        self._stopping = False
        self.count, self.counts = 0, Counts()  # of all lives

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, after which what waits is still answered. Raises what is no failure of another
        party or of the dealer.
        """
        before = [signal.signal(number, self._stop) for number in _SIGNALS]
        try:
            self._go_on()
        except PeerError:
            if not self._stopping:
                raise
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def _go_on(self) -> None:
        pause = _PAUSES[0]
        while not self._stopping:
            count = self.count
            try:
                self._live()
            except (PeerError, DealerError) as error:
                if not self._stopping:
                    _say(f"interrupted: {str(error).splitlines()[0]}; meeting the others again")
            pause = _PAUSES[0] if self.count > count else min(2 * pause, _PAUSES[1])
            if not self._stopping:
                time.sleep(pause)

    def _live(self) -> None:
        """Meet, serve, and leave; without an error if some party was told to end: the others wait for its return."""
        party = None
        try:
            party = self._begin()
            self._methods.open(party)
            self.count += 1
            self._begun()
            party.run()
        except HummingbirdError as error:
            self._methods.shut(unavailable(error))
            launch.abort(error)
            raise
        else:
            self._methods.shut(UnavailableError("a party is leaving this service", hint="try again in a few seconds"))
            launch.uninit()
        finally:
            if party is not None:
                self.counts += party.counts

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: drain, or end at once where there is nothing to drain. A second one changes nothing, for a
        service manager and a launcher may both send one.
        """
        self._stopping = True
        if self._methods.party is not None:
            # From a thread: the one that the signal interrupts may hold a lock that this takes.
            threading.Thread(target=self._methods.drain, daemon=True).start()
        else:
            raise PeerError("this party was told to stop", where=launch.name(), hint="its operator knows why")


def _say(text: str) -> None:
    """One line, in one write: several parties may share a terminal."""
    sys.stderr.write(f"[{launch.name()}] {text}\n")
    sys.stderr.flush()
