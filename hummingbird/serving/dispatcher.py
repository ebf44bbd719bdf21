"""A party's dispatcher, in the process of its lane 0: it holds the clients' requests and hands them to the lanes.

gRPC's threads put requests into the queue (request_queue.py), and party 0's scheduler assigns requests to lanes, the
same lane at all parties (scheduler.py). A lane fetches the next list of requests (at party 0 alone), fetches the
requests of a list, and delivers answers. Lane 0 calls the dispatcher in its own process, the others call it over a
Unix socket, or over TLS from other hosts (lane_server.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, HummingbirdError, UnavailableError
from hummingbird.mpc.dealer.kept_store import STORES, SetStore
from hummingbird.mpc.session.session import Session
from hummingbird.rpc.admission import Limits as WireLimits
from hummingbird.rpc.server import GRACE
from hummingbird.serving.control import PeerReader, Teller
from hummingbird.serving.description import ServiceDescription, word_of
from hummingbird.serving.message import Request, body_bytes, pack_answer
from hummingbird.serving.models import Offer
from hummingbird.serving.request_queue import QueuedRequest, QueueLimits, RequestQueue
from hummingbird.serving.scheduler import Action, Claim, Conversations, Decision, Rules, Scheduler, error_of

if TYPE_CHECKING:
    from hummingbird.serving.figures import Figures

_PATIENCE = 1.0  # seconds for which a request waits for a keeper to deal another set
# A client sends all parties their parts at once, over open connections. The parts arrive at different times because the
# largest one takes longer on a slow link, a packet is lost, or a connection is new.
_SENDING, _SLOWEST = 10.0, 1 << 16  # seconds; bytes per second
_LONGEST = WireLimits.stall  # the admission waits no longer for a message


class Dispatcher(Protocol):
    """The interface by which a lane of a party gets requests to compute and returns the answers to them.

    A `Worker` calls it. `LocalDispatcher` implements it in the process of lane 0, `RemoteDispatcher` in the other
    lanes. If any part of the service has failed, methods raise the first failure.
    """

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """Return what party 0 decides next for a lane: a list of decisions on requests, and whether it is the last.

        Only party 0 calls this. lane: its number. idle: seconds to wait for a decision, at most. room: how many images
        the lane has material for. The list holds requests to drop, then requests to run as one batch.
        """

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Carry out party 0's decisions for a lane: refuse the requests to drop, and return a list of those to run.

        lane: its number. last: whether these are the last decisions. slots: unused slots of the lane's store; NaN with
        a dealer.
        """

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """Answer the requests of a batch that a lane has computed.

        lane: its number. answers: for each request its id, and the message to its client. images: how many the batch
        had. padding: how many rows of its slices held no image.
        """


@dataclass
class Counts:
    """How many batches were computed, how many images they had, and how many rows of padding.

    Padding is rows of slices that hold no image; it occurs only with a store, whose slices have a fixed size.
    """

    batches: int = 0
    images: int = 0
    padding: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.batches + other.batches, self.images + other.images, self.padding + other.padding)


class LocalDispatcher:
    """The dispatcher of a party: it holds the clients' requests, for all lanes, in the process of lane 0.

    offer: the descriptions of what is served. control: the parties' channel for reports on requests, beside that of the
    session. wait: seconds for which a request waits for others to share its batch. beat: seconds between two empty
    reports of this party. limits: bounds on the queued requests. grace: seconds within which waiting requests must be
    answered once the service is to end. figures: counts what happens; None: nothing is counted. restocked: called when
    `stocked` has changed, which is whether some lane has material.
    """

    def __init__(
        self,
        offer: Offer,
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
        self.offer, self.rank = offer, session.rank
        self._name, self._lanes = session.channel.name, session.lanes
        self._control, self._grace, self._figures = control, grace, figures
        self._ending: float | None = None  # the time at which `end` was called
        self._last: set[int] = set()  # lanes whose last list has arrived, or is on its way
        self.failure: HummingbirdError | None = None
        self.counts, self._counting = Counts(), threading.Lock()
        self.slots = [math.nan] * session.lanes
        store = "dealt" if isinstance(session.dealer, STORES) else ""
        store = "kept" if isinstance(session.dealer, SetStore) else store
        self.stocked, self._empty, self._restocked = True, math.inf, restocked
        self._patience = patience = _PATIENCE if store == "kept" else 0.0
        limits, talks = QueueLimits() if limits is None else limits, None
        if text := [service for service in offer.services if service.places]:
            most, each, idle = limits.conversations, limits.conversations_each, limits.idle
            talks = Conversations(1 + text[0].places - text[0].most, most, each, idle)
        self._order = Scheduler(session.parties, self._rules, wait, session.lanes, patience, talks)
        self.queue = RequestQueue(limits, self._arrived)
        if figures is not None:
            figures.lives.inc()
            figures.watch(lambda: self.queue.waiting, lambda: sum(self.slots), store)
        self._retiring = threading.Lock()  # held while party 0 takes a request, or refuses further ones for a model
        self._teller: Teller | None = None
        if self.rank:
            self._teller = Teller(control, beat, self._lost)
        else:
            for peer in control.others:
                PeerReader(control, peer, self._order, self.end, self._lost)

    # gRPC's threads ---------------------------------------------------------------------------------------------------

    def _rules(self, model: int) -> Rules:
        service = self.offer.known(model)
        if service is None:  # another party's request for a net that this party does not serve: it never runs
            return Rules(1, True, lambda images: _LONGEST)
        return Rules(service.most, not service.rowwise, partial(seconds_to_send, service))

    def _arrived(self, id: bytes, entry: QueuedRequest) -> None:
        assert entry.request is not None
        owner = hashlib.blake2b(entry.owner.encode(), digest_size=8).digest()
        left = entry.ends - time.monotonic()
        digest = entry.request.digest
        claim = Claim(entry.request.images, int.from_bytes(owner, "little", signed=True), left, word_of(digest))
        with self._retiring if self._teller is None else contextlib.nullcontext():
            if self.offer.serves(digest):
                (self._order if self._teller is None else self._teller).hold(self.rank, id, claim)
                return
        what = "the net that this request is for has just left this service"
        hint = "ask for the description again, then with fresh shares"
        self.queue.finish(id, UnavailableError(what, where="request", hint=hint))

    def change(self) -> None:
        """Let all parties compare their lists of models: this one's has changed."""
        (self._order if self._teller is None else self._teller).change()

    def retire(self, service: ServiceDescription) -> None:
        """Refuse new requests for a model; party 0 has all parties forget it when no request for it waits any more."""
        with self._retiring:
            self.offer.retire(service)
        if self._teller is None:
            self._order.retire(service.word, service.digest)

    def left(self, id: bytes, entry: QueuedRequest) -> None:
        """Note that one of the calls by which a client waits for a request has ended.

        If no other call waits for it, and it has no outcome yet, party 0 is told, which drops it. id: of the request.
        entry: this party's entry for it.
        """
        if self.queue.leave(entry):
            (self._order if self._teller is None else self._teller).give_up(id)

    # Ending -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Begin to end the service: refuse new requests, and let the lanes compute those that wait.

        The lanes get their last decisions when no request waits any more, or `grace` seconds later. May be called from
        any thread, but not from a signal handler.
        """
        if self._ending is None:
            self._ending = time.monotonic()
            self.queue.shut(UnavailableError("this service is stopping", hint="try again when it is back"))
            if self._teller is not None:
                self._teller.end()
            self._order.wake()

    def fail(self, error: HummingbirdError) -> None:
        """End this party's service after a failure: refuse waiting requests, and raise `error` in every method."""
        if self.failure is None:
            self.failure = error
            self.queue.fail(unavailable(error))
            self._order.wake()

    def _lost(self, error: HummingbirdError) -> None:
        """End the service with an error, because the parties' channel for reports on requests is lost.

        If all lanes have got their last decisions, nothing is done: the parties then end one after the other anyway.
        """
        if len(self._last) < self._lanes:
            self.fail(error)

    def lost_lane(self, error: HummingbirdError) -> None:
        """End the service because a lane of this party has failed with `error`; tell the other parties the error."""
        self.fail(error)
        self._control.abort(str(error))

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse waiting requests and further calls of lanes; close the parties' channel for reports on requests.

        reason: the error that clients and lanes get; None: that the service has stopped. May be called twice.
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
        """Return party 0's next decisions for a lane, and whether they are the last; only party 0 calls this.

        lane: its number. idle: seconds to wait for a decision, at most. room: how many images the lane has material
        for.
        """
        decisions = self._order.next(idle, lane, room)
        self._check()
        over = self._ending is not None and time.monotonic() > self._ending + self._grace
        last = self._ending is not None and (self._order.empty or over)
        if last:
            self._last.add(lane)
        return decisions, last

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Refuse the requests that party 0 drops, and return a list of those that a lane is to run.

        lane: its number. decisions: party 0's. last: whether they are the last. slots: unused slots of the lane's
        store; NaN with a dealer. Raises AgreementError for a request that this party does not hold.
        """
        self.slots[lane] = slots
        self._look_at_stock()
        self._check()
        if last:
            self._last.add(lane)
        requests = []
        for id, action, detail in decisions:
            if action in (Action.CHANGE, Action.UNLOAD):
                continue
            if action == Action.END:
                self.queue.finish(id, pack_answer(torch.zeros(0, dtype=torch.int64), 1))
            elif action != Action.RUN:
                self.queue.finish(id, error_of(action, detail))
            elif (request := self.queue.take(id)) is None:
                what = f"party 0 orders a request that {self._name} does not hold"
                raise AgreementError(what, where="serve", hint="all parties must run the same release")
            else:
                requests.append(request)
        return requests

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """Answer the requests of a batch that a lane has computed, and count the batch.

        lane: its number. answers: for each request its id, and the message to its client. images: how many the batch
        had. padding: how many rows of its slices held no image.
        """
        with self._counting:
            self.counts += Counts(1, images, padding)
        if self._figures is not None:
            self._figures.batch(lane, images, padding)
        for id, answer in answers:
            entry = self.queue.finish(id, answer)
            if self._figures is not None and entry is not None:
                self._figures.answered(entry.queued, entry.computed)

    def _look_at_stock(self) -> None:
        """Find out whether some lane has material, for `stocked`, and call `restocked` if this has changed.

        With a dealer there is always material. With a store that `deal --keep` fills again, `stocked` stays true for
        `_PATIENCE` seconds after the last slot was used.
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
    """Return the seconds within which a client must have sent a request of `images` images to all parties.

    service: the description of what is served. Party 0 drops a request that only some parties have by then.
    """
    return min(_SENDING + body_bytes(service, service.parties - 1, images) / _SLOWEST, _LONGEST)


def unavailable(error: HummingbirdError) -> UnavailableError:
    """Return the error that clients get after a failure of the service, which `error` describes.

    Its text does not tell them on what the parties disagree.
    """
    what = "the parties do not agree on what they serve" if isinstance(error, AgreementError) else error.what
    return UnavailableError(f"the service is interrupted: {what}", hint="try again in a few seconds")
