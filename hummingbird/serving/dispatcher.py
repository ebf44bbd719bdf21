"""A party's dispatcher, in the process of its lane 0: the requests of clients, and which lane runs them.

gRPC's threads put requests into the queue (request_queue.py), and party 0's scheduler decides which lane of all parties
runs which of them (scheduler.py). A lane asks for the next list of requests (lane 0 of party 0 makes it), asks for the
requests of a list, and delivers answers. Lane 0 asks in its own process, the others over a Unix socket
(lane_server.py).
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, HummingbirdError, UnavailableError
from hummingbird.mpc.dealer.kept_store import STORES, KeptStore
from hummingbird.mpc.session.session import Session
from hummingbird.rpc.admission import Limits as WireLimits
from hummingbird.rpc.server import GRACE
from hummingbird.serving.control import PeerReader, Teller
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.figures import Figures
from hummingbird.serving.message import Request, body_bytes
from hummingbird.serving.request_queue import QueuedRequest, QueueLimits, RequestQueue
from hummingbird.serving.scheduler import Action, Claim, Decision, Scheduler, error_of

_PATIENCE = 1.0  # seconds for which a request waits for a set of a kept store
# A client sends all parties their parts at once, over connections that it has. What one has before the others is the
# time that the largest part is on a slow link, and a lost packet or a new connection.
_SENDING, _SLOWEST = 10.0, 1 << 16  # seconds; bytes a second
_LONGEST = WireLimits.stall  # the gate waits no longer for a message


class Dispatcher(Protocol):
    """A party's dispatcher, as each of its lanes sees it. Raises the first failure of any part of the service."""

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """Party 0's next list for a lane, and whether it is the last: see `Scheduler.next`."""

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Carry out a list of party 0: the requests that are to be run; the others are refused.

        slots: material that is left in the lane's store; NaN for a dealer's.
        """

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """Answer the requests of a batch: ids and messages."""


@dataclass
class Counts:
    """Batches that are computed, their images, and rows of a store's slots that were no client's."""

    batches: int = 0
    images: int = 0
    padding: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.batches + other.batches, self.images + other.images, self.padding + other.padding)


class LocalDispatcher:
    """The dispatcher of this party, whose lanes are those of the session.

    control: the parties' second channel. wait: see `Scheduler`. grace: seconds for what waits once a service is told
    to end. beat: seconds between two words of this party. restocked: called when `stocked` has changed.
    """

    def __init__(
        self,
        service: ServiceDescription,
        session: Session,
        control: Channel,
        *,
        wait: float,
        beat: float,
        limits: QueueLimits | None = None,
        grace: float = GRACE,
        figures: Figures | None = None,
        restocked: Callable[[], object] = lambda: None,
    ) -> None:
        self.service, self.rank = service, session.rank
        self._name, self._lanes = session.channel.name, session.lanes
        self._control, self._grace, self._figures = control, grace, figures
        self._ending: float | None = None  # since when
        self._last: set[int] = set()  # lanes whose last list is there, or on its way
        self.failure: HummingbirdError | None = None
        self.counts, self._counting = Counts(), threading.Lock()
        self.slots = [math.nan] * session.lanes
        store = "dealt" if isinstance(session.dealer, STORES) else ""
        store = "kept" if isinstance(session.dealer, KeptStore) else store
        self.stocked, self._empty, self._restocked = True, math.inf, restocked
        self._patience = patience = _PATIENCE if store == "kept" else 0.0
        alone, sending = not service.rowwise, partial(seconds_to_send, service)
        self._order = Scheduler(session.parties, service.most, wait, alone, session.lanes, patience, sending)
        self.queue = RequestQueue(QueueLimits() if limits is None else limits, self._arrived)
        if figures is not None:
            figures.lives.inc()
            figures.watch(lambda: self.queue.waiting, lambda: sum(self.slots), store)
        self._teller: Teller | None = None
        if self.rank:
            self._teller = Teller(control, beat, self._lost)
        else:
            for peer in control.others:
                PeerReader(control, peer, self._order, self.end, self._lost)

    # gRPC's threads ---------------------------------------------------------------------------------------------------

    def _arrived(self, id: bytes, entry: QueuedRequest) -> None:
        assert entry.request is not None
        owner = hashlib.blake2b(entry.owner.encode(), digest_size=8).digest()
        left = entry.ends - time.monotonic()
        claim = Claim(entry.request.images, int.from_bytes(owner, "little", signed=True), left)
        if self._teller is None:
            self._order.hold(self.rank, id, claim)
        else:
            self._teller.hold(id, claim)

    def left(self, id: bytes, entry: QueuedRequest) -> None:
        """A call that waited for a request has ended."""
        if self.queue.leave(entry):
            (self._order if self._teller is None else self._teller).give_up(id)

    # Ending -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Refuse new requests from now on; the lanes' last lists come when those inside are answered, after `grace`
        seconds at the latest. From any thread, but not from a signal's handler.
        """
        if self._ending is None:
            self._ending = time.monotonic()
            self.queue.shut(UnavailableError("this service is stopping", hint="try again when it is back"))
            if self._teller is not None:
                self._teller.end()
            self._order.wake()

    def fail(self, error: HummingbirdError) -> None:
        """A part of the service is lost, and with it this life of all: every question raises the error from now on."""
        if self.failure is None:
            self.failure = error
            self.queue.fail(unavailable(error))
            self._order.wake()

    def _lost(self, error: HummingbirdError) -> None:
        """The second channel is lost, and with it a party; after the last lists the others may leave first."""
        if len(self._last) < self._lanes:
            self.fail(error)

    def lost_lane(self, error: HummingbirdError) -> None:
        """A lane of this party is lost: the other parties are told, whose messages this one may be waiting for."""
        self.fail(error)
        self._control.abort(str(error))

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse what waits, and what lanes ask, and close the second channel; may be called twice."""
        reason = reason or UnavailableError("this service has stopped", hint="try again when it is back")
        self.failure = self.failure or reason
        self.queue.fail(reason)
        self._order.wake()
        if self._teller is not None:
            self._teller.close()
        self._control.close()
        if self._figures is not None:
            self._figures.forget()

    # Lanes ------------------------------------------------------------------------------------------------------------

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """See `Dispatcher`."""
        decisions = self._order.next(idle, lane, room)
        self._check()
        over = self._ending is not None and time.monotonic() > self._ending + self._grace
        last = self._ending is not None and (self._order.empty or over)
        if last:
            self._last.add(lane)
        return decisions, last

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """See `Dispatcher`; AgreementError for a request that this party does not hold."""
        self.slots[lane] = slots
        self._look_at_stock()
        self._check()
        if last:
            self._last.add(lane)
        requests = []
        for id, action, detail in decisions:
            if action != Action.RUN:
                self.queue.finish(id, error_of(action, detail))
            elif (request := self.queue.take(id)) is None:
                what = f"party 0 orders a request that {self._name} does not hold"
                raise AgreementError(what, where="serve", hint="all parties must run the same release")
            else:
                requests.append(request)
        return requests

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """See `Dispatcher`."""
        with self._counting:
            self.counts += Counts(1, images, padding)
        if self._figures is not None:
            self._figures.batch(lane, images, padding)
        for id, answer in answers:
            entry = self.queue.finish(id, answer)
            if self._figures is not None and entry is not None:
                self._figures.answered(entry.queued, entry.computed)

    def _look_at_stock(self) -> None:
        """See whether there is material in some lane's store, or has been a moment ago where a keeper deals more."""
        now = time.monotonic()
        self._empty = min(self._empty, now) if sum(self.slots) == 0 else math.inf  # NaN with a dealer
        stocked = now < self._empty + self._patience
        if stocked != self.stocked:
            self.stocked = stocked
            self._restocked()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)


def seconds_to_send(service: ServiceDescription, images: int) -> float:
    """Seconds that a client may take to send all parties their parts of a request, the largest over a slow link."""
    return min(_SENDING + body_bytes(service, service.parties - 1, images) / _SLOWEST, _LONGEST)


def unavailable(error: HummingbirdError) -> UnavailableError:
    """The refusal of requests after a failure; on what parties disagree is for their operators to know."""
    what = "the parties do not agree on what they serve" if isinstance(error, AgreementError) else error.what
    return UnavailableError(f"the service is interrupted: {what}", hint="try again in a few seconds")
