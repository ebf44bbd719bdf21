"""A party of a service: gRPC's threads park what clients send, the main thread runs what party 0 orders.

    party = join(private, (3, 32, 32), session)
    methods.open(party)                   # methods.py: what clients call
    party.run()                           # until `party.end()` at any of the parties, and what waits is answered

Clients reach the process of a party's lane 0, a `Party`. Where it has more lanes, each has a process that runs batches
as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from torch import Tensor

from hummingbird.errors import HummingbirdError, PeerError
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.rendezvous import beside
from hummingbird.mpc.session.session import Session
from hummingbird.prg import new_seed
from hummingbird.rpc.admission import caller_name, note
from hummingbird.rpc.security import Tls
from hummingbird.rpc.server import GRACE
from hummingbird.serving.dispatcher import Counts, LocalDispatcher, unavailable
from hummingbird.serving.figures import Figures
from hummingbird.serving.lane_server import Invitation, LaneServer, RemoteDispatcher
from hummingbird.serving.message import Request
from hummingbird.serving.plan import describe
from hummingbird.serving.request_queue import QueueLimits
from hummingbird.serving.served_table import ServedTable
from hummingbird.serving.worker import Worker

MAX_BATCH, MAX_WAIT = 64, 0.005
_LOOK = 1.0  # seconds between looks at whether a caller is still there


def join(
    private: PrivateNet,
    shape: Sequence[int] | Sequence[Sequence[int]],
    session: Session,
    *,
    table: Tensor | None = None,
    most: int = MAX_BATCH,
    wait: float = MAX_WAIT,
    tls: Tls | None = None,
    limits: QueueLimits | None = None,
    grace: float = GRACE,
    figures: Figures | None = None,
    restocked: Callable[[], object] = lambda: None,
) -> Party | Lane:
    """This process's part in a service, from a private net that is set up in a session. A few rounds.

    shape: of one image; of a net with several inputs, one for each. table: rows (rows, dim) that clients look up, for a
    net of rows and weights (hummingbird/lookup.py). most: images of a batch, and of a request. wait: seconds for which
    a request may wait for others to share its batch. tls: for the parties' second channel, as in `init`. grace: seconds
    for what waits when a service is told to end. restocked: called when `Party.stocked` has changed. Raises what
    `plan.describe` does, AgreementError where parties or lanes differ in these options, and PeerError.
    """
    rows = None if table is None else ServedTable(table, session)
    if session.lane:
        invitation = Invitation.wait(session)
        service = describe(private, shape, most, session, invitation.name, rows)
        worker = Worker(private, service, session, rows)
        return Lane(worker, RemoteDispatcher(invitation, service, session, worker.slots))
    own, channel = new_seed().hex(), session.channel
    name = ({session.rank: own} | channel.exchange_text(own))[0]
    service = describe(private, shape, most, session, name, rows)
    worker = Worker(private, service, session, rows)
    control = beside(session, tls)
    how: dict[str, Any] = {
        "beat": worker.beat,
        "limits": limits,
        "grace": grace,
        "figures": figures,
        "restocked": restocked,
    }
    dispatcher = LocalDispatcher(service, session, control, wait=wait, **how)
    dispatcher.slots[0] = worker.slots
    try:
        return Party(worker, dispatcher, LaneServer(dispatcher, service, session))
    except HummingbirdError as error:
        dispatcher.close(unavailable(error))
        raise


class Party:
    """Lane 0 of a party, which clients reach."""

    def __init__(self, worker: Worker, dispatcher: LocalDispatcher, lane_server: LaneServer) -> None:
        self._worker, self._dispatcher, self._lane_server = worker, dispatcher, lane_server
        self.service, self.rank = dispatcher.service, dispatcher.rank

    @property
    def counts(self) -> Counts:
        """The batches of all lanes of this party."""
        return self._dispatcher.counts

    @property
    def stocked(self) -> bool:
        """Whether there is material for a request, as far as is known."""
        return self._dispatcher.stocked

    def ask(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """This party's answer to its part of a request, once it is computed; the errors of `Request.read`,
        `RequestQueue.put`, and those with which party 0 drops a request.
        """
        request, began = Request.read(message, self.service, self.rank), time.monotonic()
        note(context, request=request.id.hex())
        entry = self._dispatcher.queue.put(caller_name(context) or request.claim.hex(), message, request)
        if not context.add_callback(lambda: self._dispatcher.left(request.id, entry)):  # the call has ended meanwhile
            self._dispatcher.left(request.id, entry)
            return b""
        while not entry.done.wait(_LOOK):
            if not context.is_active():
                return b""
        if entry.arrived >= began:  # and is no repeat
            note(context, queued_ms=round(1e3 * entry.queued, 3), computed_ms=round(1e3 * entry.computed, 3))
        if isinstance(entry.outcome, bytes):
            return entry.outcome
        assert entry.outcome is not None
        raise entry.outcome.with_traceback(None)

    def end(self) -> None:
        """Refuse new requests from now on; `run` returns at all parties when those inside are answered, after `grace`
        seconds at the latest. From any thread, but not from a signal's handler.
        """
        self._dispatcher.end()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse what waits, and close the second channel; may be called twice."""
        self._dispatcher.close(reason)

    def run(self) -> None:
        """Run batches until `end`. Raises what a run of the net does, and PeerError; what waits is then refused."""
        try:
            self._worker.run(self._dispatcher)
            self._lane_server.wait()
            self.close()
        except HummingbirdError as error:
            self.close(unavailable(error))
            raise
        except BaseException:
            self.close()
            raise


class Lane:
    """Another lane of a party, which runs batches and no client reaches."""

    def __init__(self, worker: Worker, dispatcher: RemoteDispatcher) -> None:
        self._worker, self._dispatcher = worker, dispatcher
        self.counts, self.stocked = Counts(), True  # lane 0 counts for all

    def end(self) -> None:
        """As `Party.end`."""
        self._dispatcher.end()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Leave; may be called twice."""
        self._dispatcher.fail(reason or PeerError("it ended"))

    def run(self) -> None:
        """As `Party.run`."""
        try:
            self._worker.run(self._dispatcher)
            self._dispatcher.bye()
        except BaseException as error:
            self._dispatcher.fail(error)
            raise
