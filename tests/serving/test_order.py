"""Party 0's order: what runs together, what is dropped, and that nothing waits for a request that is half there."""

from __future__ import annotations

import os
import threading
import time

import pytest

from hummingbird.serving.order import Action, Claim, Decision, Order, error_of
from tests.support.patience import HANG, NEVER


def claim(images: int = 1, owner: int = 7, left: float = NEVER) -> Claim:
    return Claim(images, owner, left)


def held(order: Order, *images: int, parties: int = 2) -> list[bytes]:
    """Requests that all parties hold."""
    ids = [os.urandom(16) for _ in images]
    for id, count in zip(ids, images, strict=True):
        for rank in range(parties):
            order.hold(rank, id, claim(count))
    return ids


def run(ids: list[bytes]) -> list[Decision]:
    return [Decision(id, Action.RUN) for id in ids]


def test_what_waits_while_the_parties_are_idle_runs_at_once_and_together() -> None:
    order = Order(2, most=8, wait=NEVER)
    ids = held(order, 1, 2, 3)
    assert order.next(NEVER) == run(ids) and order.empty


def test_a_batch_is_full_or_waits_for_others_when_one_has_just_run() -> None:
    order = Order(2, most=4, wait=NEVER)
    held(order, 1)
    order.next(NEVER)
    first = held(order, 1)
    assert order.next(0) == []  # fewer than four images, which have not waited
    order.wake()
    assert order.next(NEVER) == [] and not order.empty
    ids = first + held(order, 2, 2)
    assert order.next(NEVER) == run(ids[:2])  # five are more than fit
    assert order.next(0) == []
    short = Order(2, most=4, wait=0.01)
    held(short, 1)
    short.next(NEVER)
    ids = held(short, 1)
    assert short.next(NEVER) == run(ids)  # after its wait


def test_requests_of_nets_that_mix_images_run_alone() -> None:
    order = Order(2, most=8, wait=NEVER, alone=True)
    ids = held(order, 1, 2)
    assert [order.next(NEVER), order.next(NEVER)] == [run(ids[:1]), run(ids[1:])]


def test_a_request_that_some_hold_delays_nobody_and_says_who_never_got_it() -> None:
    order = Order(3, most=8, wait=NEVER)
    half, others = os.urandom(16), held(order, 1, 1, parties=3)
    order.hold(0, half, claim(left=0.05))
    order.hold(2, half, claim(left=NEVER))  # the earliest deadline counts
    assert order.next(NEVER) == run(others)
    assert order.next(NEVER) == [Decision(half, Action.MISSING, 1)] and order.empty


def test_requests_that_differ_between_parties_are_dropped_at_once() -> None:
    for other in (claim(images=2), claim(owner=8)):
        order, id = Order(2, most=8, wait=NEVER), os.urandom(16)
        order.hold(0, id, claim())
        order.hold(1, id, other)
        assert order.next(NEVER) == [Decision(id, Action.UNLIKE, 1)] and order.empty
    assert "under one name" in error_of(Action.UNLIKE, 1).hint  # files of tokens may name a client differently


def test_what_was_dropped_stays_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a party would be ordered to run what it was told to drop, which ends the session of all."""
    order, id = Order(2, most=8, wait=NEVER), os.urandom(16)
    order.hold(0, id, claim(left=0.0))
    missing = Decision(id, Action.MISSING, 1)
    assert order.next(NEVER) == [missing]
    order.hold(1, id, claim())  # sent before party 1 heard of that
    order.hold(0, id, claim())  # the client once more, when party 0 has forgotten the id
    assert order.next(NEVER) == [missing] and order.empty
    later = time.monotonic() + 601.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    for rank in range(2):
        order.hold(rank, id, claim())
    assert order.next(NEVER) == run([id]) and not order._dropped


def test_a_request_that_is_late_or_given_up_leaves_its_place() -> None:
    order = Order(2, most=3, wait=NEVER)
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
    order, id, found = Order(2, most=8, wait=NEVER), os.urandom(16), []
    order.hold(0, id, claim())
    thread = threading.Thread(target=lambda: found.append(order.next(NEVER)))
    thread.start()
    time.sleep(0.05)
    order.hold(1, id, claim())
    thread.join(HANG)
    assert found == [run([id])]
