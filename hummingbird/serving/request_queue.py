"""The requests of clients at one party: waiting requests, their answers, and every id until its deadline has passed.

An id belongs to the client that used it first, with the bytes of that message. A repeat of the same bytes waits for the
same answer or gets it again, any other message with the id is refused, and no id is computed twice. Waiting requests
and known ids are bounded for each client and in all; answers are kept while there is room. gRPC's threads wait here;
the thread that runs the batches takes shares out and puts answers in.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hummingbird.errors import AccessError, HummingbirdError, InputError, PeerError
from hummingbird.rpc.admission import Quota
from hummingbird.serving.message import MAX_BYTES, MOST_SECONDS, Request, clock

_LINGER = 5.0  # seconds for which an id is kept beyond its deadline: the parties' clocks differ slightly


@dataclass(frozen=True)
class QueueLimits:
    """Limits on the requests and answers that a party keeps.

    requests, bytes: waiting requests, and the bytes of their messages, in all. requests_each, bytes_each: those of one
    client. named: for some clients, a limit of their own in place of `requests_each`. answers, answer_bytes: answers
    that are kept for clients that ask again. ids, ids_each: request ids that are known, in all and of one client; an id
    is known until 5 seconds after its request's deadline. The last quarter of each bound is for clients that hold
    little (`rpc.admission.Quota`). conversations: open ones, in a service that generates text; one client has at most a
    quarter of them. idle: seconds without a step after which a conversation is ended.
    """

    requests: int = 512
    requests_each: int = 64  # of one client
    bytes: int = 256 << 20
    bytes_each: int = 2 * MAX_BYTES  # a client has two requests under way
    answers: int = 4096
    answer_bytes: int = 256 << 20
    ids: int = 1 << 18
    ids_each: int = 1 << 16
    conversations: int = 8
    idle: float = 600.0
    named: Mapping[str, int] = field(default_factory=dict)

    @property
    def conversations_each(self) -> int:
        """How many conversations of one client may be open."""
        return max(1, self.conversations // 4)


@dataclass(eq=False, repr=False)
class QueuedRequest:
    """A party's entry for a request that it has received: the request, and later its outcome, an answer or an error.

    owner: a text that tells the client from others. digest: of the message. size: bytes of the message. ends: monotonic
    time of the deadline. request: None once it is computed or dropped. done: set once there is an outcome. waiters: how
    many calls wait for it. arrived, taken, finished: monotonic times of its arrival, of its batch's begin (None
    before), and of its outcome.
    """

    owner: str
    digest: bytes  # of the message
    size: int
    ends: float  # monotonic time of its deadline
    request: Request | None  # None once it is computed or dropped
    outcome: bytes | HummingbirdError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    waiters: int = 1  # calls that wait for the outcome
    arrived: float = field(default_factory=lambda: time.monotonic())
    taken: float | None = None  # when it was put into a batch
    finished: float = 0.0

    @property
    def queued(self) -> float:
        """Seconds from this request's arrival until it was put into a batch, or dropped."""
        return (self.finished if self.taken is None else self.taken) - self.arrived

    @property
    def computed(self) -> float:
        """Seconds that this request's batch took to compute; 0 if the request was dropped."""
        return 0.0 if self.taken is None else self.finished - self.taken


class RequestQueue:
    """The requests that one party has received, by id, with their outcomes. Any thread may call any method.

    limits: how much it keeps. arrived: called with the id and the entry of each new request.
    """

    def __init__(self, limits: QueueLimits, arrived: Callable[[bytes, QueuedRequest], None]) -> None:
        self.limits, self._arrived = limits, arrived
        self._lock = threading.Lock()
        self._entries: dict[bytes, QueuedRequest] = {}
        self._ends: list[tuple[float, bytes]] = []
        self._answered: dict[bytes, int] = {}  # bytes of the answers that are kept, by id, the oldest first
        self._answer_bytes = 0  # of all of them
        self._ids = Quota("ids", "known", limits.ids, limits.ids_each)
        self._requests = Quota("requests", "waiting", limits.requests, limits.requests_each, limits.named)
        self._bytes = Quota("bytes", "waiting", limits.bytes, limits.bytes_each)
        self.images = 0  # of the requests without an outcome
        self._shut: HummingbirdError | None = None

    def put(self, owner: str, message: bytes, request: Request, now: float | None = None) -> QueuedRequest:
        """Add a request, or find the one with its id if it is known already; return its `QueuedRequest`.

        owner: a text that tells the client from others. message: the bytes from which `request` was read. now: the time
        by `message.clock`; None: read the clock.
        Raises AccessError or InputError for an id that is known with another client or other bytes, PeerError for a
        deadline that has passed, OverloadError beyond the limits, and the error that was given to `shut` or `fail`.
        """
        digest = hashlib.blake2b(message, digest_size=16).digest()
        left = request.deadline / 1e3 - (clock() if now is None else now)
        with self._lock:
            self._forget()
            known = self._entries.get(request.id)
            if known is not None:
                return self._again(known, owner, digest)
            if self._shut is not None:
                raise self._shut.with_traceback(None)
            self._check(owner, len(message), left)
            entry = QueuedRequest(owner, digest, len(message), time.monotonic() + left, request)
            self._entries[request.id] = entry
            self.images += request.images
            heapq.heappush(self._ends, (entry.ends + _LINGER, request.id))
            self._ids.enter(owner)
            self._requests.enter(owner)
            self._bytes.enter(owner, entry.size)
        self._arrived(request.id, entry)
        return entry

    def _again(self, known: QueuedRequest, owner: str, digest: bytes) -> QueuedRequest:
        if known.owner != owner:
            hint = "ids are 128 random bits: draw a fresh one for every request"
            raise AccessError("this id belongs to another client", where="request", hint=hint)
        if known.digest != digest:
            hint = "a repeat has the same bytes; another input needs a fresh id and fresh shares"
            raise InputError("this id is known with other shares", where="request", hint=hint)
        known.waiters += 1
        return known

    def _check(self, owner: str, size: int, left: float) -> None:
        clocks = "is this host's clock right? Describe tells the party's"
        if left <= 0:
            raise PeerError(f"its deadline passed {-left:.1f} s ago", where="request", hint=clocks)
        if left > MOST_SECONDS:
            what = f"its deadline is in {left:.0f} s, and at most {MOST_SECONDS:.0f} s are allowed"
            raise InputError(what, where="request", hint=clocks)
        self._requests.check(owner)
        self._bytes.check(owner, size)
        self._ids.check(owner)

    # The thread that runs batches -----------------------------------------------------------------------------------

    def take(self, id: bytes) -> Request | None:
        """Return the request `id`, whose computation begins now; None if this party does not hold it."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.request is None:
                return None
            entry.taken = time.monotonic()
            return entry.request

    def finish(self, id: bytes, outcome: bytes | HummingbirdError) -> QueuedRequest | None:
        """Give the request `id` its outcome, so that calls that wait for it return; return its entry.

        outcome: the answer's bytes, or the error by which the request is refused. Does nothing, and returns None, if
        the request has an outcome already or is unknown.
        """
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.outcome is not None or entry.request is None:
                return None
            self.images -= entry.request.images
            entry.outcome, entry.request, entry.finished = outcome, None, time.monotonic()
            self._requests.leave(entry.owner)
            self._bytes.leave(entry.owner, entry.size)
            if isinstance(outcome, bytes):
                self._answered[id] = len(outcome)
                self._answer_bytes += len(outcome)
                self._forget_answers()
        entry.done.set()
        return entry

    def leave(self, entry: QueuedRequest) -> bool:
        """Note that one of the calls that wait for a request has ended; return whether the request is now abandoned.

        It is if no other call waits for it, and it has no outcome yet.
        """
        with self._lock:
            entry.waiters -= 1
            return entry.waiters == 0 and entry.outcome is None

    def shut(self, reason: HummingbirdError) -> None:
        """Refuse new requests from now on, with the error `reason`; those that wait are still answered."""
        with self._lock:
            self._shut = reason

    def fail(self, reason: HummingbirdError) -> None:
        """Refuse all waiting requests and all new ones, with the error `reason`; answers that are kept remain."""
        self.shut(reason)
        with self._lock:
            waiting = [id for id, entry in self._entries.items() if entry.outcome is None]
        for id in waiting:
            self.finish(id, reason)

    @property
    def waiting(self) -> int:
        """How many requests have no outcome yet."""
        with self._lock:
            return self._requests.taken

    def _forget(self) -> None:
        """Forget answered and refused requests, with their ids, some seconds after their deadlines."""
        now, kept = time.monotonic(), []
        while self._ends and self._ends[0][0] < now:
            _, id = heapq.heappop(self._ends)
            if self._entries[id].outcome is None:  # party 0 has not decided on it yet
                kept.append((now + _LINGER, id))
                continue
            self._ids.leave(self._entries.pop(id).owner)
            self._answer_bytes -= self._answered.pop(id, 0)
        for item in kept:
            heapq.heappush(self._ends, item)

    def _forget_answers(self) -> None:
        """Drop the oldest answers until the limits hold, but no answer for which a call still waits."""
        limits, count, size = self.limits, len(self._answered), self._answer_bytes
        going = []
        for id, octets in self._answered.items():
            if count <= limits.answers and size <= limits.answer_bytes:
                break
            if not self._entries[id].waiters:
                going.append(id)
                count, size = count - 1, size - octets
        for id in going:
            self._answer_bytes -= self._answered.pop(id)
            hint = "an answer is kept for a while only: ask again under a fresh id"
            self._entries[id].outcome = PeerError("this request was answered", where="request", hint=hint)
