"""A party's dispatcher, in the process of its lane 0: it holds the clients' requests and hands them to the lanes.

gRPC's threads put requests into the queue (request_queue.py), and party 0's scheduler assigns requests to lanes, the
same lane at all parties (scheduler.py). A lane fetches the next list of requests (at party 0 alone), fetches the
requests of a list, and delivers answers. Lane 0 calls the dispatcher in its own process, the others call it over a
Unix socket (lane_server.py).
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, HummingbirdError, UnavailableError
from hummingbird.mpc.dealer.kept_store import STORES, KeptStore
from hummingbird.mpc.session.session import Session
from hummingbird.rpc.admission import Limits as WireLimits
from hummingbird.rpc.server import GRACE
from hummingbird.serving.control import PeerReader, Teller
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.message import Request, body_bytes
from hummingbird.serving.request_queue import QueuedRequest, QueueLimits, RequestQueue
from hummingbird.serving.scheduler import Action, Claim, Decision, Scheduler, error_of

if TYPE_CHECKING:
    from hummingbird.serving.figures import Figures

_PATIENCE = 1.0  # seconds for which a request waits for a keeper to deal another set
# A client sends all parties their parts at once, over open connections. The parts arrive at different times because the
# largest one takes longer on a slow link, a packet is lost, or a connection is new.
_SENDING, _SLOWEST = 10.0, 1 << 16  # seconds; bytes per second
_LONGEST = WireLimits.stall  # the admission waits no longer for a message


class Dispatcher(Protocol):
    """The interface by which a lane of a party gets the batches to compute, and hands back the answers to requests.

    Implemented by `LocalDispatcher` in the process of lane 0, and by `RemoteDispatcher` elsewhere. If any part of the
    service has failed, methods raise the first failure.
    """

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """Return party 0's next list of decisions for a lane, and whether the list is the last; called at party 0 only.

        idle: seconds to wait for a decision, at most. room: how many images the lane has material for. See
        `Scheduler.next`.
        """

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Carry out a list of decisions by party 0: refuse the requests to drop, and return those to run.

        last: whether it is the last list. slots: unused slots of the lane's store; NaN with a dealer.
        """

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """Answer the requests of a batch that the lane has computed.

        answers: for each request its id, and the message to its client. images: their number in the batch. padding:
        rows of the batch's slices that hold no image.
        """


@dataclass
class Counts:
    """The numbers of batches computed, of their images, and of padding: rows of their slices that hold no image.

    There is padding only with a store, whose slices have a fixed size.
    """

    batches: int = 0
    images: int = 0
    padding: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.batches + other.batches, self.images + other.images, self.padding + other.padding)


class LocalDispatcher:
    """The dispatcher of this party for all lanes of the session, in the process of lane 0.

    control: the parties' second channel (control.py). wait: seconds for which a request waits for others to share its
    batch. beat: seconds between two empty reports of this party. limits: bounds on the queued requests. grace: seconds
    within which waiting requests must be answered once the service is to end. restocked: called when `stocked`, whether
    some lane has material, has changed.
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
        self._ending: float | None = None  # the time at which `end` was called
        self._last: set[int] = set()  # lanes whose last list has arrived, or is on its way
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
        """Note that a client's call for a request has ended.

        If the request has no other call and is not answered, report that its client is gone, so that party 0 drops it.
        """
        if self.queue.leave(entry):
            (self._order if self._teller is None else self._teller).give_up(id)

    # Ending -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Refuse new requests from now on, and end the service once the queued requests are answered.

        The lanes then get their last lists, after `grace` seconds at the latest. May be called from any thread, but not
        from a signal handler.
        """
        if self._ending is None:
            self._ending = time.monotonic()
            self.queue.shut(UnavailableError("this service is stopping", hint="try again when it is back"))
            if self._teller is not None:
                self._teller.end()
            self._order.wake()

    def fail(self, error: HummingbirdError) -> None:
        """End the session's service after the failure of a part: every method raises this error from now on."""
        if self.failure is None:
            self.failure = error
            self.queue.fail(unavailable(error))
            self._order.wake()

    def _lost(self, error: HummingbirdError) -> None:
        """End the service with this error because the parties' second channel (control.py) is lost.

        Does nothing if all lanes have got their last lists of decisions: the parties then end one after the other
        anyway.
        """
        if len(self._last) < self._lanes:
            self.fail(error)

    def lost_lane(self, error: HummingbirdError) -> None:
        """End the service with this error because a lane of this party is lost; tell the other parties the error."""
        self.fail(error)
        self._control.abort(str(error))

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse waiting requests and the lanes' calls, and close the parties' second channel; may be called twice.

        reason: the error that clients and lanes get; None: that the service has stopped.
        """
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
        """Do as `Dispatcher.next` says; only party 0 calls this."""
        decisions = self._order.next(idle, lane, room)
        self._check()
        over = self._ending is not None and time.monotonic() > self._ending + self._grace
        last = self._ending is not None and (self._order.empty or over)
        if last:
            self._last.add(lane)
        return decisions, last

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Do as `Dispatcher.take` says. Raises AgreementError for a request that this party does not hold."""
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
        """Do as `Dispatcher.finish` says, and count the batch."""
        with self._counting:
            self.counts += Counts(1, images, padding)
        if self._figures is not None:
            self._figures.batch(lane, images, padding)
        for id, answer in answers:
            entry = self.queue.finish(id, answer)
            if self._figures is not None and entry is not None:
                self._figures.answered(entry.queued, entry.computed)

    def _look_at_stock(self) -> None:
        """Update `stocked`, whether some lane has material; call `restocked` if it has changed.

        With a dealer it is always true. With a store that `deal --keep` fills again, it stays true for `_PATIENCE`
        seconds after the last slot was used.
        """
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
    """Return the seconds that a client may take, at most, to send all parties their parts of a request.

    images: their number in the request.
    """
    return min(_SENDING + body_bytes(service, service.parties - 1, images) / _SLOWEST, _LONGEST)


def unavailable(error: HummingbirdError) -> UnavailableError:
    """Return the error with which requests are refused after a failure.

    Its text does not tell clients on what the parties disagree.
    """
    what = "the parties do not agree on what they serve" if isinstance(error, AgreementError) else error.what
    return UnavailableError(f"the service is interrupted: {what}", hint="try again in a few seconds")
