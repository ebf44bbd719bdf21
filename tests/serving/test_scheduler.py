"""Party 0's order: what runs together, what is dropped, and that nothing waits for a request that is half there."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hummingbird.channel import meter
from hummingbird.cost import FREE
from hummingbird.errors import AgreementError
from hummingbird.serving.control import receive_list, send_list
from hummingbird.serving.description import ServiceDescription, TensorSpec
from hummingbird.serving.dispatcher import seconds_to_send
from hummingbird.serving.scheduler import Action, Claim, Decision, Rules, Scheduler, error_of
from hummingbird.structure import TENSOR
from hummingbird.version import VERSION
from tests.support.parties import channels
from tests.support.patience import HANG, NEVER


def claim(images: int = 1, owner: int = 7, left: float = NEVER, model: int = 0) -> Claim:
    return Claim(images, owner, left, model)


def scheduler(
    parties: int,
    most: int,
    wait: float,
    alone: bool = False,
    sending: Callable[[int], float] = lambda images: math.inf,
    **how: Any,
) -> Scheduler:
    """A scheduler of requests for one model, or for several that are alike."""
    return Scheduler(parties, lambda model: Rules(most, alone, sending), wait, **how)


def held(order: Scheduler, *images: int, parties: int = 2, model: int = 0) -> list[bytes]:
    """Requests that all parties hold."""
    ids = [os.urandom(16) for _ in images]
    for id, count in zip(ids, images, strict=True):
        for rank in range(parties):
            order.hold(rank, id, claim(count, model=model))
    return ids


def run(ids: list[bytes]) -> list[Decision]:
    return [Decision(id, Action.RUN) for id in ids]


def test_what_waits_while_the_parties_are_idle_runs_at_once_and_together() -> None:
    order = scheduler(2, most=8, wait=NEVER)
    ids = held(order, 1, 2, 3)
    assert order.next(NEVER) == run(ids) and order.empty


def test_a_batch_is_full_or_waits_for_others_when_one_has_just_run() -> None:
    order = scheduler(2, most=4, wait=NEVER)
    held(order, 1)
    order.next(NEVER)
    first = held(order, 1)
    assert order.next(0) == []  # fewer than four images, which have not waited
    order.wake()
    assert order.next(NEVER) == [] and not order.empty
    ids = first + held(order, 2, 2)
    assert order.next(NEVER) == run(ids[:2])  # five are more than fit
    assert order.next(0) == []
    short = scheduler(2, most=4, wait=0.01)
    held(short, 1)
    short.next(NEVER)
    ids = held(short, 1)
    assert short.next(NEVER) == run(ids)  # after its wait


def test_requests_of_nets_that_mix_images_run_alone() -> None:
    order = scheduler(2, most=8, wait=NEVER, alone=True)
    ids = held(order, 1, 2)
    assert [order.next(NEVER), order.next(NEVER)] == [run(ids[:1]), run(ids[1:])]


def test_clients_take_turns() -> None:
    """A client with a long line of large requests does not keep others waiting until all of them have run."""
    order, ids = scheduler(2, most=4, wait=NEVER), [os.urandom(16) for _ in range(7)]

    def put(number: int, owner: int, images: int) -> None:
        for rank in range(2):
            order.hold(rank, ids[number], claim(images, owner))

    for number in range(3):
        put(number, owner=1, images=4)
    assert order.next(NEVER) == run(ids[:1])
    put(3, owner=2, images=1)
    put(4, owner=2, images=3)
    put(5, owner=2, images=4)
    put(6, owner=3, images=4)
    following = [order.next(NEVER) for _ in range(6)]  # of equals who came first
    assert following == [run([ids[number]]) for number in (3, 1, 4, 6, 2, 5)]
    assert order.empty


def test_a_request_that_some_hold_delays_nobody_and_says_who_never_got_it() -> None:
    order = scheduler(3, most=8, wait=NEVER)
    half, others = os.urandom(16), held(order, 1, 1, parties=3)
    order.hold(0, half, claim(left=0.05))
    order.hold(2, half, claim(left=NEVER))  # the earliest deadline counts
    assert order.next(NEVER) == run(others)
    assert order.next(NEVER) == [Decision(half, Action.MISSING, 1)] and order.empty


def test_a_half_request_is_dropped_when_its_client_has_had_time_to_send_it() -> None:
    """Also where it may wait long for its answer once it is whole."""
    asked: list[int] = []

    def sending(images: int) -> float:
        asked.append(images)
        return 0.05 if images == 1 else NEVER

    order, half, slow = scheduler(2, most=8, wait=NEVER, sending=sending), os.urandom(16), os.urandom(16)
    held(order, 1)
    order.next(NEVER)
    order.hold(1, half, claim())
    order.hold(0, slow, claim(2))  # a large one takes longer
    whole = held(order, 1)
    time.sleep(0.1)
    assert order.next(0) == [Decision(half, Action.MISSING, 0)]
    order.hold(1, slow, claim(2))
    assert order.next(0) == [] and len(order._ready) == 2 and set(asked) == {1, 2}
    order.give_up(whole[0])
    assert order.next(NEVER) == [Decision(whole[0], Action.GIVEN_UP)]


def test_the_time_to_send_a_request_is_that_of_a_slow_link() -> None:
    def seconds(size: int, images: int) -> float:
        parts = (TensorSpec("x", (size,)),), (TensorSpec("y", (10,)),)
        service = ServiceDescription(VERSION, "ab", 0, "cd", *parts, TENSOR, None, 16, 64, 16, 64, 2, 1 << 20, True)
        return seconds_to_send(service, images)

    assert seconds(64, 1) == pytest.approx(10, abs=0.1)
    assert seconds(3072, 64) == pytest.approx(10 + 3072 * 64 * 8 / 65536, abs=0.1)  # 34 s
    assert seconds(1 << 16, 64) == 120.0  # the gate waits no longer for a message


def test_requests_that_differ_between_parties_are_dropped_at_once() -> None:
    for other in (claim(images=2), claim(owner=8), claim(model=1)):
        order, id = scheduler(2, most=8, wait=NEVER), os.urandom(16)
        order.hold(0, id, claim())
        order.hold(1, id, other)
        assert order.next(NEVER) == [Decision(id, Action.UNLIKE, 1)] and order.empty
    assert "under one name" in error_of(Action.UNLIKE, 1).hint  # files of tokens may name a client differently


def test_what_was_dropped_stays_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a party would be ordered to run what it was told to drop, which ends the session of all."""
    order, id = scheduler(2, most=8, wait=NEVER), os.urandom(16)
    order.hold(0, id, claim(left=0.0))
    missing = Decision(id, Action.MISSING, 1)
    assert order.next(NEVER) == [missing]
    order.hold(1, id, claim())  # sent before party 1 heard of that
    order.hold(0, id, claim())  # the client once more, when party 0 has forgotten the id
    assert order.next(NEVER) == [missing] and order.empty
    later = time.monotonic() + 601.0
    monkeypatch.setattr("hummingbird.serving.scheduler.time", SimpleNamespace(monotonic=lambda: later))
    for rank in range(2):
        order.hold(rank, id, claim())
    assert order.next(NEVER) == run([id]) and not order._dropped


def test_of_what_was_dropped_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose requests have the shortest of deadlines cannot fill party 0's memory."""
    monkeypatch.setattr("hummingbird.serving.scheduler._MOST_KEPT", 3)
    order, ids = scheduler(2, most=8, wait=NEVER), [os.urandom(16) for _ in range(9)]
    for at in range(0, len(ids), 2):
        for id in ids[at : at + 2]:
            order.hold(0, id, claim(left=0.0))
        assert len(order.next(NEVER)) == len(ids[at : at + 2])
        assert list(order._dropped) == ids[: at + 2][-3:]


def test_a_request_that_is_late_or_given_up_leaves_its_place() -> None:
    order = scheduler(2, most=3, wait=NEVER)
    held(order, 1)
    order.next(NEVER)  # not idle
    late, gone = os.urandom(16), os.urandom(16)
    for rank in range(2):
        order.hold(rank, late, claim(2, left=0.05))
        order.hold(rank, gone, claim(1))
    order.give_up(gone)
    order.give_up(os.urandom(16))  # known to nobody
    decisions = order.next(NEVER)
    while len(decisions) < 2:
        decisions += order.next(NEVER)
    assert set(decisions) == {Decision(gone, Action.GIVEN_UP), Decision(late, Action.LATE)}
    ids = held(order, 1, 1, 1)
    assert order.next(NEVER) == run(ids) and order.empty  # the count of images is right


def test_a_wait_ends_when_a_request_is_whole() -> None:
    order, id, found = scheduler(2, most=8, wait=NEVER), os.urandom(16), []
    order.hold(0, id, claim())
    thread = threading.Thread(target=lambda: found.append(order.next(NEVER)))
    thread.start()
    time.sleep(0.05)
    order.hold(1, id, claim())
    thread.join(HANG)
    assert found == [run([id])]


# Lanes ----------------------------------------------------------------------------------------------------------------


def test_an_idle_lane_takes_at_once_what_a_busy_one_would_let_wait() -> None:
    order = scheduler(2, most=4, wait=NEVER, lanes=2)
    first = held(order, 1)
    assert order.next(NEVER, lane=0) == run(first)
    second = held(order, 1)
    assert order.next(0, lane=0) == []  # is at work, and the batch is small
    assert order.next(NEVER, lane=1) == run(second)
    held(order, 1)
    assert order.next(0, lane=0) == order.next(0, lane=1) == []
    full = [*held(order, 4)]
    assert len(order.next(0, lane=1)) == 1 and order.next(0, lane=0) == run(full)  # busy lanes take what is full


def test_a_busy_lane_leaves_a_full_batch_to_one_that_waits() -> None:
    order, found = scheduler(2, most=1, wait=NEVER, lanes=2), list[list[Decision]]()
    (thread := threading.Thread(target=lambda: found.append(order.next(NEVER, lane=1)))).start()
    while 1 not in order._waiting:
        time.sleep(0.01)
    with order._changed:  # before lane 1 can wake up
        ids = held(order, 1)
        assert order.next(0, lane=0) == []
    thread.join(HANG)
    assert found == [run(ids)]
    ids = held(order, 1)
    assert order.next(0, lane=0) == run(ids)  # nobody waits


def test_what_does_not_fit_one_lane_s_material_is_left_to_another_and_dropped_where_none_has_it() -> None:
    order = scheduler(2, most=8, wait=0.0, lanes=2)
    small, large, more = held(order, 2, 5, 3)
    assert order.next(NEVER, lane=0, room=4) == run([small])  # and not three more
    assert order.next(0, lane=0, room=2) == []  # lane 1 may have material, and has said nothing yet
    assert order.next(NEVER, lane=1, room=5) == run([large])
    low = Decision(more, Action.LOW)
    assert order.next(0, lane=1, room=0) == [low] and order.empty
    (gone,) = held(order, 1)
    assert order.next(0, lane=1, room=0) == []
    assert order.next(NEVER, lane=0, room=2) == run([gone])


def test_lanes_whose_material_is_used_up_wait_without_turning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of theirs ends with it, not at every request that has waited long enough for the others."""
    order = scheduler(2, most=8, wait=0.0, lanes=2)
    held(order, 3)
    order.next(0, lane=1, room=0)
    waits, waited = order._changed.wait, list[float | None]()

    def wait(seconds: float | None = None) -> bool:
        waited.append(seconds)
        return waits(seconds)

    monkeypatch.setattr(order._changed, "wait", wait)
    assert order.next(0.2, lane=1, room=0) == [] and len(waited) <= 2  # a wait may end a little early
    assert len(order.next(0, lane=0)) == 1


def test_every_lane_is_woken_once() -> None:
    order = scheduler(2, most=8, wait=NEVER, lanes=2)
    order.wake()
    assert order.next(NEVER, lane=1) == order.next(NEVER, lane=0) == []
    ids = held(order, 1)
    assert order.next(NEVER, lane=1) == run(ids)


def test_a_store_that_was_filled_again_is_asked_before_a_request_is_dropped() -> None:
    order, found = scheduler(2, most=8, wait=0.0), list[list[Decision]]()
    (thread := threading.Thread(target=lambda: found.append(order.next(NEVER, room=0)))).start()
    while 0 not in order._waiting:
        time.sleep(0.01)
    ids = held(order, 1)
    thread.join(HANG)
    assert found == [[]] and order.next(NEVER, room=4) == run(ids)
    (id,) = held(order, 5)
    assert order.next(NEVER, room=4) == [Decision(id, Action.LOW)]


def test_a_request_waits_for_a_keeper_and_not_for_ever() -> None:
    order = scheduler(2, most=4, wait=NEVER, patience=NEVER)
    ids = held(order, 2)
    assert order.next(NEVER, room=0) == [] and not order.empty  # it is to tell its room again
    assert order.next(NEVER, room=2) == run(ids)
    order, began = scheduler(2, most=4, wait=NEVER, patience=0.3), time.monotonic()
    ids, found, words = held(order, 2), list[Decision](), 0
    while not found:
        found, words = order.next(NEVER, room=0), words + 1
    assert found == [Decision(ids[0], Action.LOW)] and order.empty
    assert time.monotonic() >= began + 0.3 and words < 50  # about thirty, each after a pause


def test_a_list_crosses_as_it_is_and_no_other_is_taken() -> None:
    made = [Decision(os.urandom(16), Action.LOW, 1500), Decision(os.urandom(16), Action.RUN)]
    zero, one = channels(2, HANG)
    for decisions, last in ((made, False), ([], True)):
        send_list(zero, decisions, last)
        assert receive_list(one) == (decisions, last)
    for count, rows, what in (
        (-1, [], "party 0 names -1 requests"),
        ((1 << 20) + 1, [], "party 0 names 1048577 requests"),
        (1, [[0, 0, 13, 0]], "a malformed list: 13 is not a valid Action"),
    ):
        with meter.layer("order", "list", FREE):
            for words in ([count, 0], rows):
                if words:
                    zero.send(1, torch.tensor(words))
        with pytest.raises(AgreementError, match=what):
            receive_list(one)
    for channel in (zero, one):
        channel.close()
