"""Notes between the lanes of all parties, in torchrun's store: why a run has failed, and who has come to its end.

Only lane g of the parties hear of each other through their channel. When a lane dies, a launcher tells the others of
its host to stop, without a reason. The lane that sees it first writes it down here, and those that are stopped say so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hummingbird.errors import PeerError
from hummingbird.mpc.session.lanes import LanePosition

_POLL = 0.05  # seconds between two looks into the store
_ANSWER = 2.0  # seconds for the store to answer


class LaneNotes:
    """The notes of one run, in its meeting's store. timeout: the longest wait for another lane, seconds."""

    def __init__(self, store: dist.Store, place: LanePosition, timeout: float) -> None:
        self._store, self._place, self._timeout = store, place, timeout

    def failed(self, reason: str) -> None:
        """Note why this lane stops, unless another one was first; never raises."""
        self._ask(lambda: self._store.compare_set("failure", "", reason))

    def first_failure(self, seconds: float, seen: Callable[[], str] = str) -> str | None:
        """The first line of the reason of the first lane that failed; None if none is noted within so many seconds.

        seen: words for a failure that this lane can see by itself, "" for none; they are noted.
        """
        deadline = time.monotonic() + seconds
        while not self._has("failure"):
            if words := seen():
                self.failed(words)
                return words
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)
        reason = self._ask(lambda: self._store.get("failure"))
        return reason.decode(errors="replace").partition("\n")[0] if reason else None

    def left(self) -> None:
        """Note that this lane of party 0 has left; at rank 0, whose dealer the others need to the end, wait for them.

        PeerError if one of them fails, or does not come within the timeout.
        """
        here, deadline = self._place, time.monotonic() + self._timeout
        if here.party != 0:
            return
        self._ask(lambda: self._store.set(f"left/{here.lane}", "1"))
        waiting = list(range(here.lanes)) if here.rank == 0 else []
        while waiting := [lane for lane in waiting if not self._has(f"left/{lane}")]:
            why, late = self.first_failure(0), time.monotonic() > deadline
            if why or late:
                what = f"{' and '.join(map(here.name_of, waiting))} did not come to the end"
                raise PeerError(
                    what + (f", after a failure: {why}" if why else f" within {self._timeout:g} s after {here.name}"),
                    where=here.name,
                    hint="its own output says why; hummingbird.init(timeout=...) takes more seconds",
                )
            time.sleep(_POLL)

    def _has(self, key: str) -> bool:
        return bool(self._ask(lambda: self._store.check([key])))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer; None if it is gone or does not answer: a call of the store itself would wait on."""
        answers: list[Any] = []

        def call() -> None:
            with contextlib.suppress(RuntimeError):
                answers.append(question())

        thread = threading.Thread(target=call, daemon=True)
        try:
            thread.start()
            thread.join(_ANSWER)
        except RuntimeError:  # Python 3.12 starts no thread at the interpreter's end
            call()
        return answers[0] if answers else None
