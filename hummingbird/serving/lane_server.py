"""How the other lanes of a party come to the desk of its lane 0: a thread for each, which asks the desk in its name.

Lane 0 makes a folder of mode 0700 with a Unix socket, whose path the lanes hear by the store of their process group. A
lane joins when it has agreed with the same lane of all other parties, so that when all have joined, all are there.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hummingbird import records
from hummingbird.errors import AgreementError, HummingbirdError, PeerError
from hummingbird.mpc.session.gathering import PATIENCE
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.shared_port import listen
from hummingbird.rpc.flag import check
from hummingbird.rpc.trust import check_address
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.dispatcher import LocalDispatcher
from hummingbird.serving.lane_link import LaneLink, Message, reach
from hummingbird.serving.message import ID_BYTES, Request
from hummingbird.serving.scheduler import Action, Decision

_LOOK = 0.5  # seconds between two looks for a lane that has failed
_AMOUNT = records.through(records.text(64), float, str)  # infinite without a limit, NaN where nobody knows
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
    """At lane 0: the links to the other lanes, once all of them have joined.

    Raises PeerError for a lane that fails or does not come, and AgreementError for one with another net.
    """

    def __init__(self, desk: LocalDispatcher, service: ServiceDescription, session: Session) -> None:
        self._desk, self._service, self._session = desk, service, session
        self._threads: list[threading.Thread] = []
        if session.lanes == 1:
            return
        folder = tempfile.mkdtemp(prefix="hummingbird-lanes-")  # mode 0700
        try:
            path, server = listen(folder, "desk")
            with server:
                session.gathering.told("desk", json.dumps(_INVITATION.plain((path, service.session))))
                self._gather(server)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _gather(self, server: socket.socket) -> None:
        links: dict[int, LaneLink] = {}
        deadline = time.monotonic() + PATIENCE
        server.settimeout(_LOOK)
        try:
            while missing := set(range(1, self._session.lanes)) - set(links):
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    check()
                    why = self._session.failure()
                    if why or time.monotonic() > deadline:
                        names = " and ".join(self._name(lane) for lane in sorted(missing))
                        what = f"{names} did not join" + (f", after a failure: {why}" if why else "")
                        raise PeerError(what, where=self._name(0), hint="its own output says why") from None
                else:
                    lane, link = self._greet(connection, missing)
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

    def _greet(self, connection: socket.socket, missing: set[int]) -> tuple[int, LaneLink]:
        link = LaneLink(connection, self._name(0), "another lane of this party", self._session.channel.timeout)
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
        self._desk.slots[lane] = link.field(hello, "slots", _AMOUNT)
        # What a lane does between two questions, other lanes of its number wait for: they miss it if it hangs.
        return lane, LaneLink(connection, self._name(0), self._name(lane), None)

    def _attend(self, lane: int, link: LaneLink) -> None:
        """Ask the desk what a lane asks, until it leaves."""
        try:
            while (question := link.receive()).kind != "bye":
                if link.field(question, "ending", records.flag()):
                    self._desk.end()
                self._answer(lane, link, question)
            link.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the lane's requests will have no answer
            what = f"{link.other} asked what cannot be answered: {type(error).__name__}"
            known = error if isinstance(error, HummingbirdError) else AgreementError(what, where=self._name(0))
            link.fail(known)
            if self._desk.failure is None:
                self._desk.lost_lane(known)

    def _answer(self, lane: int, link: LaneLink, question: Message) -> None:
        kind, fields, bodies = question
        if kind == "next":
            idle, room = (link.field(question, name, _AMOUNT) for name in ("idle", "room"))
            decisions, last = self._desk.next(lane, idle, room)
            link.send("list", decisions=_DECISIONS.plain(decisions), last=last)
        elif kind == "take":
            decisions = [*link.field(question, "decisions", _DECISIONS)]
            last, slots = link.field(question, "last", records.flag()), link.field(question, "slots", _AMOUNT)
            requests = self._desk.take(lane, decisions, last, slots)
            link.send("requests", [request.to_bytes(self._service, self._session.rank) for request in requests])
        elif kind == "finish":
            ids = link.field(question, "ids", _IDS)
            images, padding = (link.field(question, name, records.whole()) for name in ("images", "padding"))
            self._desk.finish(lane, list(zip(ids, bodies, strict=True)), images, padding)
            link.send("done")
        else:
            raise AgreementError(f"{link.other} asks {kind[:40]!r}", where=self._name(0))

    def wait(self) -> None:
        """Return when all other lanes have left in an orderly way; raises the failure of one of them."""
        going = True
        while going:
            going = any(thread.is_alive() for thread in self._threads)
            if self._desk.failure is not None:  # looked at last: a lane's thread may have ended with one by now
                raise self._desk.failure.with_traceback(None)
            for thread in self._threads:
                thread.join(_LOOK)


@dataclass(frozen=True)
class Invitation:
    """Where a lane finds its party's desk, and how the parties name this run of the service."""

    path: str
    name: str

    @classmethod
    def wait(cls, session: Session) -> Invitation:
        """Lane 0's invitation, at another lane of its party; PeerError if it fails before."""
        text = session.gathering.told("desk")
        where, hint = session.place.name, "install the same release everywhere"
        path, name = records.read(text, _INVITATION, name="invitation", where=where, hint=hint, error=AgreementError)
        return cls(path, name)


class RemoteDispatcher:
    """The desk of a party, as one of its other lanes sees it. `end` may be called from any thread.

    slots: material in this lane's store. Raises PeerError where lane 0 has failed or refuses this one.
    """

    def __init__(self, invitation: Invitation, service: ServiceDescription, session: Session, slots: float) -> None:
        place = session.place
        self._service, self._rank, self._ending = service, session.rank, False
        lane_0 = place.name_of(place.party * place.lanes)
        check_address(f"unix:{invitation.path}", None)
        self._link = reach(invitation.path, place.name, lane_0, session.channel.timeout)
        self._link.ask("hello", lane=place.lane, service=service.digest.hex(), slots=_AMOUNT.plain(slots))

    def next(self, lane: int, idle: float, room: float) -> tuple[list[Decision], bool]:
        """See `Desk`."""
        told = self._ask("next", idle=_AMOUNT.plain(idle), room=_AMOUNT.plain(room))
        decisions, last = (
            self._link.field(told, "decisions", _DECISIONS),
            self._link.field(told, "last", records.flag()),
        )
        return [*decisions], last

    def take(self, lane: int, decisions: Sequence[Decision], last: bool, slots: float) -> list[Request]:
        """See `Desk`."""
        bodies = self._ask("take", decisions=_DECISIONS.plain(decisions), last=last, slots=_AMOUNT.plain(slots)).bodies
        return [Request.read(body, self._service, self._rank) for body in bodies]

    def finish(self, lane: int, answers: Sequence[tuple[bytes, bytes]], images: int, padding: int) -> None:
        """See `Desk`."""
        ids = _IDS.plain([id for id, _ in answers])
        self._ask("finish", [answer for _, answer in answers], ids=ids, images=images, padding=padding)

    def _ask(self, kind: str, bodies: Sequence[bytes] = (), **fields: object) -> Message:
        return self._link.ask(kind, bodies, ending=self._ending, **fields)

    def end(self) -> None:
        """Have the service end, as `LocalDispatcher.end`; said with the next question."""
        self._ending = True

    def bye(self) -> None:
        """Leave in an orderly way."""
        self._link.send("bye")
        self._link.close()

    def fail(self, error: BaseException) -> None:
        """Say why this lane stops, and leave; never raises."""
        self._link.fail(error)
