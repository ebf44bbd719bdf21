"""The server by which the other lanes of a party use lane 0's dispatcher, with a thread for each lane.

If all lanes are on one host, lane 0 makes a folder of mode 0700 with a Unix socket, and tells the lanes its path
through their store. Lanes on several hosts get a second connection each, under the party's certificate. A lane joins
after it has agreed with the same lane of all other parties. So once all lanes of a party have joined, all lanes of all
parties are running.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hummingbird import records
from hummingbird.errors import AgreementError, HummingbirdError, InputError, PeerError
from hummingbird.mpc.session.lanes import PATIENCE
from hummingbird.mpc.session.launch import reason_of
from hummingbird.mpc.session.rendezvous import lanes_beside
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.shared_port import listen
from hummingbird.rpc.security import check_address, check_own_folder
from hummingbird.rpc.service import Tls
from hummingbird.rpc.signals import check
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.dispatcher import LocalDispatcher
from hummingbird.serving.message import ID_BYTES, Request
from hummingbird.serving.scheduler import Action, Decision

# The connection between two lanes of one party: messages over a Unix socket, or two TLS ones of one direction each ----
#
# A message has a kind, fields, and bodies of bytes. On the wire it is the length of a head, the head as JSON with the
# bodies' sizes, and the bodies one after the other. The last message of a lane that fails holds the reason.

_LENGTH = struct.Struct("!I")
_MOST = 1 << 30  # bytes of a head, and of a body
_FIELDS = records.mapping(records.anything(), 16)
_SIZES = records.many(records.whole(0, _MOST), 1 << 24)
_LAST = 2.0  # seconds for the other side to take the reason of a failure
_FAILED = "failed"
_ASK = "its own output says why"


class Message(NamedTuple):
    """A question or an answer between two lanes of a party.

    kind: what it asks or answers, such as "next". fields: values of JSON, by name. bodies: parts that are plain bytes.
    """

    kind: str
    fields: dict[str, Any]
    bodies: list[bytes]


class LaneLink:
    """One side of a connection between two lanes of a party, by which they exchange messages. For one thread at a time.

    sockets: on which this side sends, and on which it receives; a Unix socket is both. mine, other: names of the two
    sides, for errors. timeout: the longest silence of the other side, seconds; None: no limit while the other side
    lives.
    """

    def __init__(
        self, sockets: tuple[socket.socket, socket.socket], mine: str, other: str, timeout: float | None
    ) -> None:
        self.sockets, self._mine, self.other = sockets, mine, other
        self._timeout = timeout
        for connection in sockets:
            connection.settimeout(timeout)

    def send(self, kind: str, bodies: Iterable[bytes] = (), **fields: Any) -> None:
        """Send a message to the other lane. Raises PeerError if that lane has gone.

        kind: of message, such as "next". bodies: bytes to send along. fields: further values, by name, which JSON can
        hold.
        """
        bodies = list(bodies)
        head = json.dumps({"kind": kind, "sizes": [len(body) for body in bodies], **fields}).encode()
        try:
            self.sockets[0].sendall(b"".join([_LENGTH.pack(len(head)), head, *bodies]))
        except OSError as error:
            raise self._lost(error) from None

    def receive(self) -> Message:
        """Wait for the next message of the other lane, and return it.

        Raises PeerError if that lane has gone, is silent, or reports its failure; AgreementError for bytes that are no
        message.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        try:
            fields = records.read(self._read(length), _FIELDS, name="message", most=_MOST)
            kind = records.of(fields.pop("kind", None), records.text(64), name="message")
            sizes = records.of(fields.pop("sizes", None), _SIZES, name="message")
        except InputError:
            what = f"{self.other} sent bytes that are no message"
            raise AgreementError(what, where=self._mine, hint="install the same release everywhere") from None
        if kind == _FAILED:
            what, _, hint = str(fields.get("reason")).partition("\nhint: ")
            raise PeerError(f"{self.other} stopped: {what}", where=self._mine, hint=hint or _ASK)
        return Message(kind, fields, [self._read(size) for size in sizes])

    def field(self, message: Message, name: str, kind: records.Kind) -> Any:
        """Return the field `name` of a message that the other lane has sent.

        kind: type and limits that the value must have. Raises AgreementError for a missing field, or another value.
        """
        hint = "install the same release everywhere"
        value = message.fields.get(name)
        return records.of(
            value, kind, name=f"{name} of {self.other}", where=self._mine, hint=hint, error=AgreementError
        )

    def ask(self, kind: str, bodies: Iterable[bytes] = (), **fields: Any) -> Message:
        """Send a message to the other lane, wait for its answer, and return it.

        kind: of question, such as "next". bodies: bytes to send along. fields: further values, by name, which JSON can
        hold.
        """
        self.send(kind, bodies, **fields)
        return self.receive()

    def fail(self, error: BaseException) -> None:
        """Tell the other lane with which error this side stops, and close the connection; never raises."""
        with contextlib.suppress(HummingbirdError, OSError):
            self.sockets[0].settimeout(_LAST)
            self.send(_FAILED, reason=reason_of(error))
        self.close()

    def close(self) -> None:
        """Close this side's connection to the other lane; may be called twice."""
        for connection in self.sockets:
            connection.close()

    def _read(self, size: int) -> bytes:
        if not 0 <= size <= _MOST:
            raise AgreementError(f"{self.other} sent a message of {size} bytes", where=self._mine)
        data = bytearray(size)
        view, done = memoryview(data), 0
        try:
            while done < size:
                count = self.sockets[1].recv_into(view[done:])
                if not count:
                    raise ConnectionResetError
                done += count
        except OSError as error:
            raise self._lost(error) from None
        return bytes(data)

    def _lost(self, error: OSError) -> PeerError:
        if isinstance(error, TimeoutError):
            what = f"{self.other} sent or took nothing for {self._timeout:g} s"
            return PeerError(what, where=self._mine, hint="is it still running? --timeout takes more seconds")
        what = f"{self.other} closed the connection: it ended or was killed"
        return PeerError(what, where=self._mine, hint=_ASK)


def _kept_alive(sockets: tuple[socket.socket, socket.socket]) -> tuple[socket.socket, socket.socket]:
    """Let TCP notice within two minutes that the other host has vanished; returns the sockets."""
    for connection in sockets:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, name):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sockets


def reach(path: str, mine: str, other: str, timeout: float) -> LaneLink:
    """Connect to the Unix socket of another process of this user, and return the connection as a `LaneLink`.

    path: of the socket, in a folder as `mpc.session.shared_port.listen` needs it. mine, other: names of the two sides,
    for errors. timeout: seconds. Raises PeerError, and TrustError for a folder that other users can enter.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        check_own_folder(path, mine)
        connection.settimeout(timeout)
        connection.connect(path)
    except OSError as error:
        connection.close()
        what = f"cannot connect to {other}: {error.strerror or error}"
        raise PeerError(what, where=mine, hint="did it end?") from None
    except HummingbirdError:
        connection.close()
        raise
    return LaneLink((connection, connection), mine, other, timeout)


# The server, and the lanes' side of it -------------------------------------------------------------------------------

_LOOK = 0.5  # seconds between two checks for a lane that has failed
_AMOUNT = records.through(records.text(64), float, str)  # infinite without a limit, NaN where unknown
_IDS = records.many(records.hexadecimal(ID_BYTES), 1 << 20)
_DECISION = records.row(records.hexadecimal(ID_BYTES), records.one_of([*map(int, Action)]), records.whole())
_DECISIONS = records.many(
    records.through(
        _DECISION,
        lambda row: Decision(row[0], Action(row[1]), row[2]),
        lambda decision: (decision.id, int(decision.action), decision.detail),
    ),
    1 << 20,
)
_INVITATION = records.row(records.text(4096), records.text(4096))


class LaneServer:
    """Lane 0's connections to the other lanes of its party, whose questions it answers by calls of its dispatcher.

    Making it returns once all lanes have joined. dispatcher: the party's. service: what is served, which all lanes must
    agree on. tls: certificates, for lanes on several hosts. Raises PeerError for a lane that fails or does not join,
    and AgreementError for a lane with another net.
    """

    def __init__(
        self, dispatcher: LocalDispatcher, service: ServiceDescription, session: Session, tls: Tls | None = None
    ) -> None:
        self._dispatcher, self._service, self._session = dispatcher, service, session
        self._threads: list[threading.Thread] = []
        self._links: dict[int, LaneLink] = {}  # lanes that have joined
        if session.lanes == 1:
            return
        if session.place.spread:
            self._invite("")
            channel = lanes_beside(session, tls)
            try:
                self._begin(_kept_alive(channel.sockets(lane)) for lane in channel.others)
            except BaseException as error:
                channel.abort(reason_of(error))
                raise
            return
        folder = tempfile.mkdtemp(prefix="hummingbird-lanes-")  # mode 0700
        try:
            path, server = listen(folder, "dispatcher")
            with server:
                self._invite(path)
                self._begin(self._accepted(server))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _invite(self, path: str) -> None:
        text = json.dumps(_INVITATION.plain((path, self._service.session)))
        self._session.gathering.told("dispatcher", text)

    def _accepted(self, server: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
        """Accept connections until all lanes have joined; yield the sockets of each, as `LaneLink` takes them."""
        deadline = time.monotonic() + PATIENCE
        server.settimeout(_LOOK)
        while missing := set(range(1, self._session.lanes)) - set(self._links):
            try:
                connection, _ = server.accept()
            except TimeoutError:
                check()
                links = self._session.links
                why = self._session.failure() or (links.channel.loss() if links else None)
                if why or time.monotonic() > deadline:
                    names = " and ".join(self._name(lane) for lane in sorted(missing))
                    what = f"{names} did not join" + (f", after a failure: {why}" if why else "")
                    raise PeerError(what, where=self._name(0), hint="its own output says why") from None
            else:
                yield connection, connection

    def _begin(self, joining: Iterable[tuple[socket.socket, socket.socket]]) -> None:
        """Greet the lanes that join, and begin to answer their questions, each in a thread."""
        links = self._links
        try:
            for sockets in joining:
                lane, link = self._greet(sockets)
                links[lane] = link
            for link in links.values():
                link.send("welcome")
        except BaseException as error:
            for link in links.values():
                link.fail(error)
            raise
        for lane, link in links.items():
            name = f"hummingbird-lane-{lane}"
            self._threads.append(threading.Thread(target=self._attend, args=(lane, link), name=name, daemon=True))
            self._threads[-1].start()

    def _name(self, lane: int) -> str:
        place = self._session.place
        return place.name_of(place.party * place.lanes + lane)

    def _greet(self, sockets: tuple[socket.socket, socket.socket]) -> tuple[int, LaneLink]:
        link = LaneLink(sockets, self._name(0), "another lane of this party", self._session.channel.timeout)
        missing = set(range(1, self._session.lanes)) - set(self._links)
        try:
            hello = link.receive()
            lane = hello.fields.get("lane")
            if hello.kind != "hello" or lane not in missing:
                what = f"a process joins as lane {lane}"
                raise AgreementError(what, where=self._name(0), hint="start each lane once")
            if hello.fields.get("service") != self._service.digest.hex():
                what = f"{self._name(lane)} has another net, other bits or another release than {self._name(0)}"
                hint = "all lanes must run the same program with the same files"
                raise AgreementError(what, where="serve", hint=hint)
        except HummingbirdError as error:
            link.fail(error)
            raise
        self._dispatcher.slots[lane] = link.field(hello, "slots", _AMOUNT)
        # No timeout: while a lane works between two questions, the same lane of the other parties waits for it, and
        # notices if it hangs.
        return lane, LaneLink(sockets, self._name(0), self._name(lane), None)

    def _attend(self, lane: int, link: LaneLink) -> None:
        """Answer the questions of one lane by calls of the dispatcher, until the lane leaves; runs in a thread.

        lane: its number. link: the connection to it. After a failure the whole service ends.
        """
        try:
            while (question := link.receive()).kind != "bye":
                if link.field(question, "ending", records.flag()):
                    self._dispatcher.end()
                self._answer(lane, link, question)
            link.close()
        except Exception as error:  # noqa: BLE001 - after any failure the lane's requests have no answer
            what = f"{link.other} sent a question that cannot be answered: {type(error).__name__}"
            known = error if isinstance(error, HummingbirdError) else AgreementError(what, where=self._name(0))
            link.fail(known)
            if self._dispatcher.failure is None:
                self._dispatcher.lost_lane(known)

    def _answer(self, lane: int, link: LaneLink, question: Message) -> None:
        kind, fields, bodies = question
        if kind == "next":
            idle, room = (link.field(question, name, _AMOUNT) for name in ("idle", "room"))
            decisions, last = self._dispatcher.next(lane, idle, room)
            link.send("list", decisions=_DECISIONS.plain(decisions), last=last)
        elif kind == "take":
            decisions = [*link.field(question, "decisions", _DECISIONS)]
            last, slots = link.field(question, "last", records.flag()), link.field(question, "slots", _AMOUNT)
            requests = self._dispatcher.take(lane, decisions, last, slots)
            link.send("requests", [request.to_bytes(self._service, self._session.rank) for request in requests])
        elif kind == "finish":
            ids = link.field(question, "ids", _IDS)
            images, padding = (link.field(question, name, records.whole()) for name in ("images", "padding"))
            self._dispatcher.finish(lane, list(zip(ids, bodies, strict=True)), images, padding)
            link.send("done")
        else:
            raise AgreementError(f"{link.other} asks {kind[:40]!r}", where=self._name(0))

    def wait(self) -> None:
        """Wait until all other lanes of this party have left. Raises the failure of a lane."""
        going = True
        while going:
            going = any(thread.is_alive() for thread in self._threads)
            if self._dispatcher.failure is not None:  # checked last: a thread may just have ended with a failure
                raise self._dispatcher.failure.with_traceback(None)
            for thread in self._threads:
                thread.join(_LOOK)


@dataclass(frozen=True)
class Invitation:
    """A message that lane 0 of a party sends to its other lanes at the start of a session, so that they can join.

    path: of the Unix socket at which lane 0's dispatcher listens; "" for lanes on several hosts. name: of the session,
    as clients see it.
    """

    path: str
    name: str

    @classmethod
    def wait(cls, session: Session) -> Invitation:
        """Wait until lane 0 of this party has sent its invitation, and return it; every other lane calls this.

        Raises PeerError if lane 0 fails before.
        """
        text = session.gathering.told("dispatcher")
        where, hint = session.place.name, "install the same release everywhere"
        path, name = records.read(text, _INVITATION, name="invitation", where=where, hint=hint, error=AgreementError)
        return cls(path, name)


class RemoteDispatcher:
    """The dispatcher at a lane other than 0: it passes every call on to that of lane 0, and returns its answer.

    invitation: where lane 0 listens. slots: unused slots of this lane's store. tls: certificates, for lanes on several
    hosts. Raises PeerError if lane 0 has failed or refuses this lane. Any thread may call `end`.
    """

    def __init__(
        self,
        invitation: Invitation,
        service: ServiceDescription,
        session: Session,
        slots: float,
        tls: Tls | None = None,
    ) -> None:
        place = session.place
        self._service, self._rank, self._ending = service, session.rank, False
        lane_0 = place.name_of(place.party * place.lanes)
        if place.spread:
            sockets = lanes_beside(session, tls).sockets(0)
            self._link = LaneLink(sockets, place.name, lane_0, session.channel.timeout)
        else:
            check_address(f"unix:{invitation.path}", None)
            self._link = reach(invitation.path, place.name, lane_0, session.channel.timeout)
        self._link.ask("hello", lane=place.lane, service=service.digest.hex(), slots=_AMOUNT.plain(slots))

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """Ask lane 0 for party 0's next decisions for this lane, and whether they are the last; return both.

        lane: of no effect; lane 0 knows who asks. idle: seconds to wait for a decision, at most. room: how many images
        this lane has material for.
        """
        told = self._ask("next", idle=_AMOUNT.plain(idle), room=_AMOUNT.plain(room))
        decisions, last = (
            self._link.field(told, "decisions", _DECISIONS),
            self._link.field(told, "last", records.flag()),
        )
        return [*decisions], last

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """Let lane 0 carry out party 0's decisions: it refuses requests, and returns a list of those to run here.

        lane: of no effect; lane 0 knows who asks. last: whether these are the last decisions. slots: unused slots of
        this lane's store; NaN with a dealer.
        """
        bodies = self._ask("take", decisions=_DECISIONS.plain(decisions), last=last, slots=_AMOUNT.plain(slots)).bodies
        return [Request.read(body, self._service, self._rank) for body in bodies]

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """Let lane 0 answer the requests of a batch that this lane has computed.

        lane: of no effect; lane 0 knows who asks. answers: for each request its id, and the message to its client.
        images: how many the batch had. padding: how many rows of its slices held no image.
        """
        ids = _IDS.plain([id for id, _ in answers])
        self._ask("finish", [answer for _, answer in answers], ids=ids, images=images, padding=padding)

    def _ask(self, kind: str, bodies: Sequence[bytes] = (), **fields: object) -> Message:
        return self._link.ask(kind, bodies, ending=self._ending, **fields)

    def end(self) -> None:
        """Begin to end the service: lane 0 hears of it with this lane's next question, and acts on it."""
        self._ending = True

    def bye(self) -> None:
        """Tell lane 0 that this lane has done its work, and disconnect."""
        self._link.send("bye")
        self._link.close()

    def fail(self, error: BaseException) -> None:
        """Tell lane 0 why this lane stops, and disconnect; never raises."""
        self._link.fail(error)
