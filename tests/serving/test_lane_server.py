"""A party's dispatcher and its other lanes, without a run: what crosses between them, and how one hears that
the other has ended.
"""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hummingbird.errors import AgreementError, EnvironmentProblem, HummingbirdError, PeerError, TrustError
from hummingbird.mpc.session.lanes import Gathering
from hummingbird.mpc.session.shared_port import listen
from hummingbird.prg import new_seed
from hummingbird.serving.dispatcher import Counts, LocalDispatcher
from hummingbird.serving.lane_server import Invitation, LaneLink, LaneServer, RemoteDispatcher, reach
from hummingbird.serving.message import Request
from hummingbird.serving.models import Offer
from hummingbird.serving.request_queue import QueuedRequest
from hummingbird.serving.scheduler import Action, Decision
from tests.serving.test_message import SERVICE
from tests.support.parties import channels, sessions
from tests.support.patience import HANG, NEVER, until


class Lanes:
    """The dispatcher of a lone party with some lanes, in one process; `lane_server` is there when all have joined."""

    def __init__(self, lanes: int, pool: ThreadPoolExecutor, said: dict[str, str]) -> None:
        self.sessions = [dataclasses.replace(sessions(1)[0], lane=lane, lanes=lanes) for lane in range(lanes)]
        (control,) = channels(1)
        self.dispatcher = LocalDispatcher(Offer(SERVICE), self.sessions[0], control, wait=0.0, beat=NEVER)
        self.said = said
        self.lane_server: Future[LaneServer] = pool.submit(LaneServer, self.dispatcher, SERVICE, self.sessions[0])

    def come(self, lane: int = 1, service: object = SERVICE) -> RemoteDispatcher:
        """Join as a lane."""
        session = self.sessions[lane]
        return RemoteDispatcher(Invitation.wait(session), service, session, 5.0)  # type: ignore[arg-type]

    def ask(self, seconds: float = HANG) -> tuple[Request, QueuedRequest]:
        """A client's request."""
        now = time.time()
        request = Request(new_seed(), new_seed(), int(1e3 * (now + seconds)), 1, new_seed(), SERVICE.digest)
        return request, self.dispatcher.queue.put("alice", request.to_bytes(SERVICE, 0), request, now)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Lanes]]:
    """Makes such a dispatcher, whose lanes hear each other without torchrun's store."""
    said: dict[str, str] = {}

    def told(self: Gathering, what: str, text: str = "") -> str:
        if self.place.lane == 0:
            said[what] = text
        until(lambda: what in said, "an invitation")
        return said[what]

    monkeypatch.setattr(Gathering, "told", told)
    opened: list[Lanes] = []
    with ThreadPoolExecutor(4) as pool:

        def make(lanes: int = 2) -> Lanes:
            opened.append(Lanes(lanes, pool, said))
            return opened[-1]

        yield make
        for lanes in opened:
            lanes.dispatcher.close()


def test_a_list_its_requests_and_their_answers_cross(made: Callable[..., Lanes]) -> None:
    lanes = made()
    far = lanes.come()
    lane_server = lanes.lane_server.result(HANG)
    assert not Path(json.loads(lanes.said["dispatcher"])[0]).parent.exists()  # nobody else is to come
    (request, entry), (late, refused) = lanes.ask(), lanes.ask(0.1)
    time.sleep(0.2)
    decisions, last = far.next(1, HANG, math.inf)
    assert set(decisions) == {Decision(request.id, Action.RUN), Decision(late.id, Action.LATE)} and not last
    assert far.take(1, decisions, last, 7.0) == [request] and lanes.dispatcher.slots[1] == 7.0
    assert isinstance(refused.outcome, PeerError) and entry.outcome is None
    far.finish(1, [(request.id, b"answer")], 1, 3)
    assert entry.outcome == b"answer" and lanes.dispatcher.counts == Counts(1, 1, 3)
    far.end()
    assert far.next(1, 0.0, math.inf) == ([], True)
    with pytest.raises(PeerError, match="this service is stopping"):
        lanes.ask()
    far.bye()
    lane_server.wait()


def test_requests_that_do_not_fit_a_lane_s_store_are_refused_when_no_other_has_room(made: Callable[..., Lanes]) -> None:
    lanes = made()
    far = lanes.come()
    request, _ = lanes.ask()
    assert far.next(1, 0.0, 0.0) == ([], False)
    assert lanes.dispatcher.next(0, 0.0, 0.0) == ([Decision(request.id, Action.LOW)], False)


@pytest.mark.parametrize("words", [True, False], ids=["in words", "killed"])
def test_a_lane_that_ends_is_named_and_what_waits_is_refused(made: Callable[..., Lanes], words: bool) -> None:
    lanes = made()
    far = lanes.come()
    lane_server = lanes.lane_server.result(HANG)
    _, entry = lanes.ask()
    if words:
        far.fail(PeerError("party 1, lane 1 closed the connection", hint="look there"))
    else:
        far._link.sockets[0].shutdown(socket.SHUT_RDWR)
    cause = "party 0, lane 1 " + ("stopped: party 1, lane 1 closed" if words else "closed the connection: it ended")
    with pytest.raises(PeerError, match=cause):
        lane_server.wait()
    assert entry.done.wait(HANG)
    assert isinstance(entry.outcome, HummingbirdError) and cause in str(entry.outcome)
    for ask in (
        lambda: lanes.dispatcher.next(0, NEVER, math.inf),
        lambda: lanes.dispatcher.take(0, [], False, math.nan),
    ):
        with pytest.raises(PeerError, match=cause):
            ask()


def test_a_failure_elsewhere_ends_the_wait_of_every_lane_with_its_reason(made: Callable[..., Lanes]) -> None:
    lanes = made(3)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lanes.come, (1, 2)))
        waits = [pool.submit(far.next, lane, NEVER, math.inf) for lane, far in enumerate(both, 1)]
        until(lambda: lanes.dispatcher._order._waiting == {1, 2}, "both lanes to wait")
        lanes.dispatcher.fail(PeerError("party 1 was lost", hint="wait"))
        for wait in waits:
            with pytest.raises(PeerError, match="party 0, lane 0 stopped: party 1 was lost"):
                wait.result(HANG)


def test_all_lanes_must_be_there(made: Callable[..., Lanes]) -> None:
    lanes = made(3)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lanes.come, 1)
        until(lambda: lanes.dispatcher.slots[1] == 5.0, "lane 1 to come")
        assert not lanes.lane_server.done() and not first.done()
        lanes.sessions[0].failure = lambda: "party 1, lane 2 closed the connection"
        with pytest.raises(PeerError, match=r"party 0, lane 2 did not join, after a failure: party 1, lane 2 closed"):
            lanes.lane_server.result(HANG)
        with pytest.raises(PeerError, match="party 0, lane 0 stopped: party 0, lane 2 did not join"):
            first.result(HANG)


def test_a_lane_joins_once(made: Callable[..., Lanes]) -> None:
    lanes = made(3)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lanes.come, 1)
        until(lambda: lanes.dispatcher.slots[1] == 5.0, "lane 1 to come")
        again = pool.submit(lanes.come, 1)
        for told in (again, first):
            with pytest.raises(PeerError, match="party 0, lane 0 stopped: a process joins as lane 1"):
                told.result(HANG)
    with pytest.raises(AgreementError, match="a process joins as lane 1") as caught:
        lanes.lane_server.result(HANG)
    assert caught.value.hint == "start each lane once"


def test_lanes_must_have_one_net(made: Callable[..., Lanes]) -> None:
    lanes = made()
    with pytest.raises(PeerError, match="party 0, lane 1 has another net"):
        lanes.come(service=dataclasses.replace(SERVICE, net="other"))
    with pytest.raises(AgreementError, match="party 0, lane 1 has another net"):
        lanes.lane_server.result(HANG)


def test_a_dispatcher_is_sought_in_a_folder_of_this_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    _, server = listen(str(tmp_path), "dispatcher")
    with server, pytest.raises(TrustError, match="is not a folder of this user alone"):
        reach(f"{tmp_path}/dispatcher", "party 0, lane 1", "party 0, lane 0", HANG)
    tmp_path.chmod(0o700)
    with pytest.raises(PeerError, match="cannot connect to party 0, lane 0"):
        reach(f"{tmp_path}/none", "party 0, lane 1", "party 0, lane 0", HANG)
    with pytest.raises(EnvironmentProblem, match="cannot listen"):
        listen(f"{tmp_path}/{'long' * 40}", "dispatcher")


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", 5) + b"words",
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 29) + b'{"kind": "done", "sizes": [1.]}',
        struct.pack("!I", 31) + b'{"kind": "done", "sizes": [-1]}',
        b"\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    mine, other = socket.socketpair()
    with mine, other:
        other.sendall(data)
        with pytest.raises(AgreementError):
            LaneLink((mine, mine), "party 0, lane 0", "party 0, lane 1", HANG).receive()


def test_a_silent_lane_0_is_named() -> None:
    mine, other = socket.socketpair()
    with mine, other, pytest.raises(PeerError, match=r"party 0, lane 0 sent or took nothing for 0.05 s"):
        LaneLink((mine, mine), "party 0, lane 1", "party 0, lane 0", 0.05).receive()


def test_a_dispatcher_knows_whether_there_is_material(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the stores of all lanes together; where a keeper deals more, a moment without is none without."""
    (control,), (session,) = channels(1), sessions(1)
    told, now = list[bool](), [100.0]
    monkeypatch.setattr("hummingbird.serving.dispatcher.time", SimpleNamespace(monotonic=lambda: now[0]))
    dispatcher = LocalDispatcher(
        Offer(SERVICE),
        dataclasses.replace(session, lanes=2),
        control,
        wait=0.0,
        beat=NEVER,
        restocked=lambda: told.append(dispatcher.stocked),
    )
    try:
        dispatcher.slots = [2, 1]
        for lane, slots in ((0, 0), (1, 0), (1, 3), (0, math.nan)):
            dispatcher.take(lane, [], False, slots)
        assert told == [False, True]
        dispatcher._patience = 1.0  # as with a kept store
        for slots, seconds in ((0, 0.9), (1, 0.9), (0, 0.9), (0, 0.05), (2, 0.0)):
            dispatcher.slots[0] = 0
            dispatcher.take(1, [], False, slots)
            now[0] += seconds
        assert told == [False, True]
        dispatcher.take(1, [], False, 0)
        now[0] += 1.5
        dispatcher.take(1, [], False, 0)
        dispatcher.take(1, [], False, 1)
        assert told == [False, True, False, True]
    finally:
        dispatcher.close()
