"""Requests as a party keeps them: ids belong to who used them first, nothing is computed twice, all is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hummingbird.errors import AccessError, HummingbirdError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.serving import message as messages
from hummingbird.serving import request_queue
from hummingbird.serving.message import Request, clock
from hummingbird.serving.request_queue import QueuedRequest, QueueLimits, RequestQueue
from tests.support.patience import NEVER

NOW = 1_000_000.0


def at(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Give inboxes another clock: theirs alone, for other threads of this process read the time, too."""
    monkeypatch.setattr(request_queue, "time", SimpleNamespace(monotonic=clock))


class Kept:
    """A request queue, and what was told of it."""

    def __init__(self, **limits: int) -> None:
        self.arrived: list[bytes] = []
        self.queue = RequestQueue(QueueLimits(**limits), lambda id, entry: self.arrived.append(id))

    def put(self, id: bytes, message: bytes = b"shares", owner: str = "alice", seconds: float = 60.0) -> QueuedRequest:
        return self.queue.put(owner, message, request(id, seconds), NOW)


def request(id: bytes, seconds: float = 60.0) -> Request:
    return Request(id, bytes(16), int(1e3 * (NOW + seconds)), 1, b"body")


def test_a_repeat_gets_the_same_answer_and_is_not_computed_again() -> None:
    kept, id = Kept(), new_seed()
    first = kept.put(id)
    assert kept.put(id) is first and kept.arrived == [id]  # while it waits
    assert kept.queue.take(id) is not None
    kept.queue.finish(id, b"answer")
    again = kept.put(id)
    assert again.outcome == b"answer" and again.done.is_set() and kept.arrived == [id]
    assert kept.queue.take(id) is None and kept.queue.finish(id, b"another") is None
    assert again.outcome == b"answer"


def test_an_id_belongs_to_its_first_client_and_its_first_bytes() -> None:
    kept, id = Kept(), new_seed()
    kept.put(id)
    with pytest.raises(AccessError, match="belongs to another client"):
        kept.put(id, owner="bob")
    with pytest.raises(InputError, match="known with other shares"):
        kept.put(id, message=b"other shares")
    kept.queue.finish(id, b"answer")
    with pytest.raises(AccessError):
        kept.put(id, owner="bob")


def test_ids_are_known_until_their_deadline_and_then_refused_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, id = Kept(), new_seed()
    kept.put(id, seconds=10.0)
    waiting = new_seed()
    kept.put(waiting, seconds=10.0)
    kept.queue.finish(id, b"answer")
    began = time.monotonic()
    at(monkeypatch, lambda: began + 13)  # another party's clock may be a little behind
    assert kept.queue.put("alice", b"shares", request(id, 10.0), NOW + 13).outcome == b"answer"
    at(monkeypatch, lambda: began + 100)
    with pytest.raises(PeerError, match="deadline passed 90.0 s ago"):  # forgotten, and not taken for a new one
        kept.queue.put("alice", b"shares", request(id, 10.0), NOW + 100)
    assert kept.queue.take(waiting) is not None  # party 0 has still to say what becomes of it
    assert len(kept.queue._entries) == 1


@pytest.mark.parametrize("seconds, error, words", [(-1.0, PeerError, "passed 1.0 s ago"), (NEVER, InputError, "600 s")])
def test_deadlines_are_in_the_near_future(seconds: float, error: type[HummingbirdError], words: str) -> None:
    with pytest.raises(error, match=words):
        Kept().put(new_seed(), seconds=seconds)


def test_what_waits_is_bounded_by_client_and_in_all() -> None:
    for limits, words in (
        ({"requests_each": 2}, "2 requests of yours are waiting"),
        ({"bytes_each": 12}, "12 bytes of yours"),
    ):
        kept = Kept(**limits)
        ids = [new_seed(), new_seed()]
        for id in ids:
            kept.put(id)
        with pytest.raises(OverloadError, match=words):
            kept.put(new_seed())
        kept.put(new_seed(), owner="bob")  # another client is not concerned
        kept.queue.finish(ids[0], b"answer")
        kept.put(new_seed())
    for limits, words in (
        ({"requests": 2}, "2 requests are waiting, the most"),
        ({"requests": 4}, "3 requests are waiting; the room that is left is for callers with few"),
        ({"bytes": 28}, "18 bytes are waiting; the room that is left is for callers with few"),
        ({"bytes": 17}, "17 bytes are waiting, the most"),
    ):
        kept = Kept(**limits)
        with pytest.raises(OverloadError, match=words):
            for owner in ("alice", "bob", "alice", "bob", "alice"):
                kept.put(new_seed(), owner=owner)
        assert len(kept.arrived) == kept.queue.waiting
    kept = Kept(requests=4)
    for owner in ("alice", "alice", "alice", "bob"):
        kept.put(new_seed(), owner=owner)


def test_old_answers_are_let_go_and_their_ids_are_not() -> None:
    kept, ids = Kept(answers=1), [new_seed(), new_seed()]
    for id in ids:
        entry = kept.put(id)
        kept.queue.finish(id, b"answer")
        kept.queue.leave(entry)
    assert kept.put(ids[1]).outcome == b"answer"
    assert "was answered" in str(kept.put(ids[0]).outcome) and len(kept.arrived) == 2


def test_answers_that_are_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, ids = Kept(answer_bytes=20), [new_seed() for _ in range(4)]
    entries = [kept.put(id, seconds=10.0) for id in ids[:3]]
    kept.queue.finish(ids[0], b"8 octets")
    kept.queue.leave(entries[0])
    for id in ids[1:3]:
        kept.queue.finish(id, b"16 octets of it.")
    assert "was answered" in str(kept.put(ids[0]).outcome)
    assert entries[1].outcome == entries[2].outcome == b"16 octets of it."  # both are still to be sent
    later = time.monotonic() + 100
    at(monkeypatch, lambda: later)
    kept.put(ids[3])  # by which the others are forgotten
    kept.queue.finish(ids[3], b"all the 20 there are")
    assert kept.put(ids[3]).outcome == b"all the 20 there are" and len(kept.queue._entries) == 1


def test_bytes_of_answers_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later answers are kept as the first were, when some were let go, and others were forgotten with their ids."""

    def answered(count: int) -> list[bytes]:
        """Requests with 8 bytes of answer each, whose calls have left."""
        ids = [new_seed() for _ in range(count)]
        for id in ids:
            entry = kept.put(id, seconds=10.0)
            kept.queue.finish(id, b"8 octets")
            kept.queue.leave(entry)
        return ids

    def there(ids: list[bytes]) -> list[bool]:
        found = []
        for id in ids:
            entry = kept.put(id, seconds=10.0)
            found.append(entry.outcome == b"8 octets")
            kept.queue.leave(entry)
        return found

    kept, now = Kept(answer_bytes=24), [time.monotonic()]
    at(monkeypatch, lambda: now[0])
    assert there(answered(9)) == [False] * 6 + [True] * 3  # six were let go
    for _ in range(3):
        now[0] += 100.0
        assert there(answered(3)) == [True] * 3  # those before are forgotten


def test_one_client_cannot_use_up_all_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is dropped at once leaves an id for ten minutes: so many of one client would keep others out."""
    kept = Kept(ids=5, ids_each=2)
    for _ in range(2):
        kept.put(new_seed(), seconds=10.0)
        kept.queue.finish(kept.arrived[-1], PeerError("its client has left"))
    with pytest.raises(OverloadError, match="2 ids of yours are known"):
        kept.put(new_seed())
    for owner in ("bob", "bob", "carol"):
        kept.put(new_seed(), owner=owner)
    with pytest.raises(OverloadError, match="5 ids are known"):
        kept.put(new_seed(), owner="carol")
    later = time.monotonic() + 100
    at(monkeypatch, lambda: later)
    kept.put(new_seed())


def test_the_time_until_a_batch_is_told_from_the_time_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, now = Kept(), [100.0]
    at(monkeypatch, lambda: now[0])
    run, dropped = kept.put(id := new_seed()), kept.put(other := new_seed())
    now[0] = 103.0
    kept.queue.take(id)
    now[0] = 108.0
    kept.queue.finish(id, b"answer")
    kept.queue.finish(other, PeerError("its client has left"))
    assert (run.queued, run.computed, dropped.queued, dropped.computed) == (3.0, 5.0, 8.0, 0.0)


def test_an_inbox_that_fails_refuses_what_waits_and_what_comes() -> None:
    kept, ids = Kept(), [new_seed(), new_seed()]
    waiting, answered = kept.put(ids[0]), kept.put(ids[1])
    kept.queue.finish(ids[1], b"answer")
    kept.queue.fail(UnavailableError("party 1 was lost"))
    assert waiting.done.is_set() and "party 1 was lost" in str(waiting.outcome) and answered.outcome == b"answer"
    with pytest.raises(UnavailableError, match="party 1 was lost"):
        kept.put(new_seed())
    assert kept.queue.waiting == 0


def test_nobody_waits_when_the_last_call_has_left() -> None:
    kept, id = Kept(), new_seed()
    entry = kept.put(id)
    kept.put(id)
    assert not kept.queue.leave(entry) and kept.queue.leave(entry)
    done = kept.put(new_seed())
    kept.queue.finish(kept.arrived[-1], b"answer")
    assert not kept.queue.leave(done)


@pytest.mark.parametrize("later", [0.0, 4e9])
def test_a_host_whose_clock_is_set_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    """A host that starts without a clock gets the time when it reaches a server: what clients know of it stays true."""
    told = clock()
    monkeypatch.setattr(messages, "time", SimpleNamespace(time=lambda: later, monotonic=time.monotonic))
    kept, id = Kept(), new_seed()
    asked = Request(id, bytes(16), int(1e3 * (told + 60)), 1, b"body")
    assert 0 < kept.queue.put("alice", b"shares", asked).ends - time.monotonic() <= 60
