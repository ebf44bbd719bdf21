"""Room for a number of turns at a time, shared fairly: who has the fewest at work is next, then who came first."""

from __future__ import annotations

import threading
from collections import Counter

from hummingbird.rpc.admission import NamedSlots

RETRY = 5.0  # seconds after which a client that found no room may try again


class RoundAdmission:
    """`places` for turns at work, and calls that wait for one: `calls` in all. Callers without a name are all alike."""

    def __init__(self, places: int, calls: int) -> None:
        self.places, self.calls = places, NamedSlots(calls, "turns", "he", RETRY)
        self._at_work: Counter[str | None] = Counter()
        self._waiting: list[WaitingCall] = []
        self.changed = threading.Condition()

    @property
    def at_work(self) -> int:
        """Places that are taken."""
        return sum(self._at_work.values())

    @property
    def waiting(self) -> int:
        """Turns that wait for a place."""
        return len(self._waiting)

    def enter(self, caller: str | None) -> WaitingCall:
        """Come in with a call, which may `wait` for a place, and must `leave`. OverloadError where too many are here,
        or too many of one name.
        """
        self.calls.enter(caller)
        return WaitingCall(self, caller)

    def ask(self, place: WaitingCall) -> None:
        """Give a place, now or later."""
        self._waiting.append(place)
        self._assign()

    def leave(self, place: WaitingCall) -> None:
        """Take a call out, and its place back."""
        with self.changed:
            if place.taken:
                self._at_work[place.caller] -= 1
            elif place in self._waiting:
                self._waiting.remove(place)
            if not self._at_work[place.caller]:  # names that are gone take no memory
                del self._at_work[place.caller]
            self._assign()
        self.calls.leave(place.caller)

    def _assign(self) -> None:
        while self._waiting and self.at_work < self.places:
            chosen = min(self._waiting, key=lambda place: self._at_work[place.caller])  # of equals the first
            self._waiting.remove(chosen)
            chosen.taken = True
            self._at_work[chosen.caller] += 1
        self.changed.notify_all()


class WaitingCall:
    """A call's place: not asked for, awaited, or taken."""

    def __init__(self, room: RoundAdmission, caller: str | None) -> None:
        self._room, self.caller = room, caller
        self.asked = self.taken = False

    def wait(self, timeout: float) -> bool:
        """Whether the call has its place, at the latest after so many seconds."""
        with self._room.changed:
            if not self.asked:
                self.asked = True
                self._room.ask(self)
            return self._room.changed.wait_for(lambda: self.taken, timeout)

    def leave(self) -> None:
        """Give it back, or stop waiting; once."""
        self._room.leave(self)
