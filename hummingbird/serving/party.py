"""A party of a service: gRPC's threads queue the clients' requests, the main thread runs the batches of party 0.

    party = join(private, (3, 32, 32), session)
    methods.open(party)                   # `Methods`: the calls of clients
    party.run()                           # until `party.end()` at any party, and all queued requests are answered

Clients reach the process of a party's lane 0, a `Party`. Each further lane of a party is a process, a `Lane`, that runs
batches as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from torch import Tensor

from hummingbird.errors import ConfigError, HummingbirdError, InputError, PeerError, UnavailableError
from hummingbird.mpc.plan.decoder import PrivateDecoder
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.rendezvous import beside
from hummingbird.mpc.session.session import Session
from hummingbird.prg import new_seed
from hummingbird.rpc import spans
from hummingbird.rpc.admission import caller_name, note
from hummingbird.rpc.security import Tls
from hummingbird.rpc.server import GRACE, ServiceProgram
from hummingbird.rpc.service import Brief, Method
from hummingbird.serving.description import CHANGES, LOAD, MOST_TITLE
from hummingbird.serving.dispatcher import Counts, LocalDispatcher, unavailable
from hummingbird.serving.lane_server import Invitation, LaneServer, RemoteDispatcher
from hummingbird.serving.lines_file import LinesFile
from hummingbird.serving.message import Request, clock, digest_of
from hummingbird.serving.models import Listed, Models, ServedModel
from hummingbird.serving.plan import ServedTable, describe
from hummingbird.serving.request_queue import QueueLimits
from hummingbird.serving.worker import Worker

if TYPE_CHECKING:
    from hummingbird.serving.figures import Figures

MAX_BATCH, MAX_WAIT = 64, 0.005
_LOOK = 1.0  # seconds between two checks whether a caller is still connected


def figures_of(program: ServiceProgram) -> Figures | None:
    """Return an object that counts what a party does, in the program's metrics; None if the program shows none."""
    if program.metrics is None:
        return None
    from hummingbird.serving.figures import Figures  # needs prometheus-client

    return Figures(program.metrics.registry)


def join(
    net: PrivateNet | PrivateDecoder | LinesFile[dict[str, Listed]],
    shape: Sequence[int] | Sequence[Sequence[int]] | None,
    session: Session,
    *,
    table: Tensor | None = None,
    aim: str | None = None,
    group: int = 0,
    most: int = MAX_BATCH,
    wait: float = MAX_WAIT,
    tls: Tls | None = None,
    limits: QueueLimits | None = None,
    grace: float = GRACE,
    figures: Figures | None = None,
    restocked: Callable[[], object] = lambda: None,
    told: Callable[[str, bool | None, str], object] = lambda title, ready, why: None,
) -> Party | Lane:
    """Join a service with this process, which is one lane of a party; return a `Party` at lane 0, else a `Lane`.

    Takes a few rounds. net: one that is set up in the session; a decoder, for a service that generates text; or a file
    of models (models.py). shape: shape of one image; for a net with several inputs, one for each; None for a decoder or
    a file. table: rows (rows, dim) for lookups, for a net of rows and weights (hummingbird/lookup.py). aim: of the
    conversion of a file's models; None: the session's. group: its number. most: most images of a batch, and of a
    request. wait: seconds for which a request may wait for others to share its batch. tls: certificates for further
    channels, of reports on requests and between lanes on several hosts, as in `init`. limits: bounds on the queued
    requests and on conversations. grace: seconds for waiting requests when the service is to end. figures: counts what
    this party does; None: nothing is counted. restocked: called when it has changed whether some lane has material.
    told: called when a model of a file becomes ready, or is not, as `Models` calls it.
    Raises errors of `plan.describe` and of `Models.begin`, AgreementError if parties or lanes differ in these options,
    ConfigError for a file of models with a store or several lanes, and PeerError.
    """
    rows = None if table is None else ServedTable(table, session)

    def one(private: PrivateNet | PrivateDecoder, name: str) -> ServedModel:
        return ServedModel(private, describe(private, shape, most, session, name, rows, group), rows)

    if session.lane and not isinstance(net, LinesFile):
        invitation = Invitation.wait(session)
        model = one(net, invitation.name)
        worker = Worker(Models(session, invitation.name, fixed=model), session)
        return Lane(worker, RemoteDispatcher(invitation, model.service, session, worker.slots, tls))
    own, channel = new_seed().hex(), session.channel
    name = ({session.rank: own} | channel.exchange_text(own))[0]
    if isinstance(net, LinesFile):
        _check_for_models(session)
        models = Models(session, name, net, aim=aim, most=most, group=group, told=told)
    else:
        models = Models(session, name, fixed=one(net, name))
    worker = Worker(models, session)
    control = beside(session, tls)
    how: dict[str, Any] = {
        "beat": worker.beat,
        "limits": limits,
        "grace": grace,
        "figures": figures,
        "restocked": restocked,
    }
    dispatcher = LocalDispatcher(models.offer, session, control, wait=wait, **how)
    dispatcher.slots[0] = worker.slots
    models.watch(dispatcher.change, dispatcher.retire)
    try:
        return Party(worker, dispatcher, LaneServer(dispatcher, models.offer.services[0], session, tls))
    except HummingbirdError as error:
        models.close()
        dispatcher.close(unavailable(error))
        raise


def _check_for_models(session: Session) -> None:
    """Raise ConfigError unless several models can share a session: one lane, and material of a dealer or of a pair."""
    if session.dealer.slice_shape is not None:
        what = "a store holds material for one net, and a file of models has several"
        raise ConfigError(what, where="--store", hint="use a dealer, or --dealer pair")
    if session.lanes > 1:
        what = f"{session.lanes} lanes serve one net, and a file of models has several"
        raise ConfigError(what, where="--lanes", hint="start a group of parties for each GPU, with --group")


class Party:
    """Lane 0 of a party, in one session: it answers clients, and runs batches.

    worker: computes the batches. dispatcher: holds the requests. lane_server: the connections to other lanes.
    """

    def __init__(self, worker: Worker, dispatcher: LocalDispatcher, lane_server: LaneServer) -> None:
        self._worker, self._dispatcher, self._lane_server = worker, dispatcher, lane_server
        self.rank = dispatcher.rank

    @property
    def counts(self) -> Counts:
        """How many batches and images all lanes of this party have computed, as `Counts`."""
        return self._dispatcher.counts

    @property
    def stocked(self) -> bool:
        """Whether some lane has material for a request, by what the lanes last reported to lane 0."""
        return self._dispatcher.stocked

    @property
    def load(self) -> int:
        """How many images wait or run at this party; clients choose between groups by it."""
        return self._dispatcher.queue.images

    def ask(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer a call of the method Ask: wait until the request is computed; return this party's part of the answer.

        message: this party's part of the request. context: gRPC's, of the call. Raises InputError for a malformed
        request, errors of `RequestQueue.put`, and those with which party 0 drops a request.
        """
        service, began = self._dispatcher.offer.named(digest_of(message)), time.monotonic()
        request = Request.read(message, service, self.rank)
        note(context, request=request.id.hex())
        entry = self._dispatcher.queue.put(caller_name(context) or request.claim.hex(), message, request)
        if not context.add_callback(lambda: self._dispatcher.left(request.id, entry)):  # the call has ended meanwhile
            self._dispatcher.left(request.id, entry)
            return b""
        while not entry.done.wait(_LOOK):
            if not context.is_active():
                return b""
        context.set_trailing_metadata(((LOAD, str(self.load)), (CHANGES, str(self._dispatcher.offer.changes))))
        if entry.arrived >= began:  # not for a repeat
            taken = entry.finished if entry.taken is None else entry.taken
            spans.of(context).part("queue", entry.arrived, taken)
            if entry.taken is not None:
                spans.of(context).part("batch", taken, entry.finished)
            note(context, queued_ms=round(1e3 * entry.queued, 3), computed_ms=round(1e3 * entry.computed, 3))
        if isinstance(entry.outcome, bytes):
            return entry.outcome
        assert entry.outcome is not None
        raise entry.outcome.with_traceback(None)

    def describe(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer a call of the method Describe: return the description of the net that a client asks for.

        message: NAME@VERSION or NAME of a model; empty for the only one. context: gRPC's, of the call. Raises errors of
        `Offer.choose`, InputError for a text that is no name.
        """
        if len(message) > MOST_TITLE or not message.isascii():
            raise InputError("this is no name of a model", where="model", hint="NAME, or NAME@VERSION")
        offer = self._dispatcher.offer
        changes = offer.changes  # before the choice: a client that misses a change asks again
        return offer.choose(message.decode()).answer(self.rank, clock(), self.load, changes)

    def end(self) -> None:
        """Begin to end the service, at all parties: refuse new requests, and let the lanes compute those that wait.

        `run` then returns, after `grace` seconds (of `join`) at the latest. May be called from any thread, but not from
        a signal handler.
        """
        self._dispatcher.end()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Refuse waiting requests, and close the parties' channel for reports on requests; may be called twice.

        reason: the error that clients get; None: that the service has stopped.
        """
        self._dispatcher.close(reason)

    def run(self) -> None:
        """Run batches until the service ends, which a call of `end` at any party brings about.

        After an error of the net's run, or PeerError, waiting requests are refused, and the error is raised.
        """
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
    """One lane of a party other than lane 0, in one session: it runs batches. No client connects to it.

    worker: computes the batches. dispatcher: passes its questions to lane 0.
    """

    def __init__(self, worker: Worker, dispatcher: RemoteDispatcher) -> None:
        self._worker, self._dispatcher = worker, dispatcher
        self.counts, self.stocked = Counts(), True  # lane 0 counts for all lanes

    def end(self) -> None:
        """Begin to end the service: lane 0 hears of it, refuses new requests, and lets the waiting ones finish."""
        self._dispatcher.end()

    def close(self, reason: HummingbirdError | None = None) -> None:
        """Tell lane 0 for what reason this lane ends, and disconnect from it; may be called twice."""
        self._dispatcher.fail(reason or PeerError("it ended"))

    def run(self) -> None:
        """Run batches until the service ends, then take leave of lane 0. After an error lane 0 is told."""
        try:
            self._worker.run(self._dispatcher)
            self._dispatcher.bye()
        except BaseException as error:
            self._dispatcher.fail(error)
            raise


# The methods that clients call, which outlive the parties' sessions --------------------------------------------------

_Asked = Callable[[Party, bytes, grpc.ServicerContext], bytes]


class Methods:
    """The methods Describe and Ask by which clients reach a party; they outlive the party's sessions.

    A call is passed on to the current `Party`, or refused while there is none. ready: called at every change with
    whether there is a party that takes requests and has material. In a process with a `Lane` there is no server, and no
    call comes.
    """

    def __init__(self, ready: Callable[[bool], object] = lambda yes: None) -> None:
        self.party: Party | Lane | None = None
        self._ready, self._draining = ready, False
        self._reason = UnavailableError("the parties have not met yet", hint="try again in a few seconds")

    def open(self, party: Party | Lane) -> None:
        """Pass clients' calls on to `party` from now on.

        Also calls `ready` with whether the party takes requests and has material.
        """
        self.party = party
        self.look()

    def look(self) -> None:
        """Call `ready` with whether there is now a party that takes requests and has material."""
        party = self.party
        self._ready(party is not None and party.stocked and not self._draining)

    def shut(self, reason: UnavailableError) -> None:
        """Refuse all calls of clients from now on. reason: the error that they get."""
        self.party, self._reason = None, reason
        self.look()

    def drain(self) -> bool:
        """Let the current party answer its queued requests and then end; return whether there is a party."""
        self._draining = True
        self.look()
        party = self.party
        if party is not None:
            party.end()
        return party is not None

    def handlers(self) -> dict[str, Method | Brief]:
        """Return the methods Describe and Ask, by name, as `rpc.server.ServiceProgram.serve` takes them."""
        return {"Describe": Brief(self._by(Party.describe)), "Ask": self._by(Party.ask)}

    def _by(self, method: _Asked) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(message: bytes, context: grpc.ServicerContext) -> bytes:
            party = self.party
            if not isinstance(party, Party):
                raise self._reason.with_traceback(None)
            return method(party, message, context)

        return call
