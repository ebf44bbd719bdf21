"""Conversations: masks of their own, steps in order, each once, and none after a failure; what is opened, by mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.errors import InputError
from hummingbird.mpc.plan.dry_run import Zeros
from hummingbird.mpc.protocols import cached_rows
from hummingbird.mpc.protocols.cached_rows import CachedRows, cached
from hummingbird.mpc.session.conversation import Conversation
from hummingbird.mpc.session.session import Session
from tests.support.conversations import FACTS, PLACES, STEPS, outputs, run_step, steps_of, wanted
from tests.support.parties import sessions as make_sessions
from tests.support.parties import together


def converse(session: Session, seed: int, steps: Any = None, count: int = len(STEPS)) -> list[Tensor]:
    """One conversation of this many steps, and this party's shares of each step's result."""
    conversation = Conversation(session, FACTS, steps)
    out = []
    for number in range(count):
        with conversation.step() as inner:
            out.append(run_step(inner, number, seed))
    return out


def together_with(sessions: list[Session], party: Any) -> list[Any]:
    return together([lambda s=session: party(s) for session in sessions])


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_words_one_after_the_other(running: Any, parties: int, known: bool) -> None:
    """With a dealer: what all steps compute is what plain torch computes, in two conversations at the same time."""
    sessions = make_sessions(parties)
    for session, client in zip(sessions, running.all(parties), strict=True):
        session.dealer = client
    steps = steps_of(parties) if known else None

    def party(session: Session) -> list[list[Tensor]]:
        both = [Conversation(session, FACTS, steps) for _ in range(2)]
        out: list[list[Tensor]] = [[], []]
        for number in range(len(STEPS)):
            for at, conversation in enumerate(both):
                with conversation.step() as inner:
                    out[at].append(run_step(inner, number, at))
        return out

    parts = together_with(sessions, party)
    for at in range(2):
        found = outputs([part[at] for part in parts])
        assert all(torch.equal(x, y) for x, y in zip(found, wanted(at), strict=True))


@pytest.mark.parametrize("local", [False, True])
def test_no_two_conversations_have_a_mask_in_common(running: Any, local: bool) -> None:
    sessions = make_sessions(2)
    if not local:
        for session, client in zip(sessions, running.all(2), strict=True):
            session.dealer = client

    def party(session: Session) -> list[Tensor]:
        masks = []
        for _ in range(3):
            conversation = Conversation(session, FACTS, None)
            with conversation.step() as inner:
                masks += [cached(inner, (2, PLACES, 4), key, 40).mask for key in (0, 1)]
        return masks

    for masks in together_with(sessions, party):
        for number, mask in enumerate(masks):
            assert not any(bool((mask == other).any()) for other in masks[number + 1 :])


def test_requests_are_the_same_in_every_conversation() -> None:
    assert [list(map(str, each)) for each in steps_of(2)] == [list(map(str, each)) for each in steps_of(2)]
    kinds = [[request.kind for request in each] for each in steps_of(2)]
    assert kinds[0] == ["cached_rows", "cached_matmul"] * 2
    assert kinds[1:] == [["cached_matmul"] * 2] * (len(STEPS) - 1)


def test_a_step_costs_what_it_is_priced() -> None:
    sessions = make_sessions(2)
    with meter.meter() as counted:
        together_with(sessions, lambda session: converse(session, 0))
    new = sum(count for count, _ in STEPS)
    price = sum(
        (cached_rows.price(request, 2) for each in steps_of(2) for request in each if request.kind == "cached_matmul"),
        cached_rows.price(steps_of(2)[0][1], 2) * 0,
    )
    rows = 2 * 2 * (new * 4 * 40 // 8) * 8  # two caches, two stacks, 4 values of 40 bits each: every piece fills bytes
    assert counted.total.rounds == 2 * price.rounds
    assert counted.total.bits_sent == 2 * (price.bits + rows)


def test_a_conversation_ends_with_its_last_step() -> None:
    (session,) = make_sessions(1)
    conversation = Conversation(session, FACTS, steps_of(1))
    for number in range(len(STEPS)):
        assert (conversation.taken, conversation.left) == (number, len(STEPS) - number)
        with conversation.step() as inner:
            run_step(inner, number, 0)
    with pytest.raises(InputError, match="all 4 steps of this conversation are taken") as caught, conversation.step():
        pass
    assert "more places" in caught.value.hint


def test_what_failed_is_over() -> None:
    """Whatever fails, no row is opened again: neither by the same step nor by a further one."""
    (session,) = make_sessions(1)
    conversation = Conversation(session, FACTS, steps_of(1))
    with conversation.step() as inner:
        run_step(inner, 0, 0)
    with pytest.raises(OSError, match="lost"), conversation.step() as inner:
        raise OSError("lost")
    assert conversation.left == 0 and not conversation.caches
    for _ in range(2):
        with pytest.raises(InputError, match="a step of this conversation has failed") as caught, conversation.step():
            pass
        assert "another conversation" in caught.value.hint


def test_one_step_at_a_time_and_none_after_the_end() -> None:
    (session,) = make_sessions(1)
    conversation = Conversation(session, FACTS, None)
    with pytest.raises(InputError, match="is running"), conversation.step():
        with conversation.step():
            pass
    other = Conversation(session, FACTS, None)
    other.close()
    other.close()
    with pytest.raises(InputError, match="this conversation is closed"), other.step():
        pass


def test_rows_outside_of_a_conversation_and_under_one_key_are_refused() -> None:
    (session,) = make_sessions(1)
    with pytest.raises(InputError, match="outside of a conversation"):
        cached(session, (2, PLACES, 4), 0, 40)
    with Conversation(session, FACTS, None).step() as inner:
        first = cached(inner, (2, PLACES, 4), 0, 40)
        assert cached(inner, (2, PLACES, 4), 0, 40) is first
        for shape, bits in (((2, PLACES, 5), 40), ((2, PLACES, 4), 41)):
            with pytest.raises(InputError, match="were begun under key 0"):
                cached(inner, shape, 0, bits)


def test_a_dry_run_finds_the_requests() -> None:
    (session,) = make_sessions(1)
    dealer = Zeros((1,))
    session.dealer = dealer
    conversation = Conversation(session, FACTS, None)
    for number in range(len(STEPS)):
        with conversation.step() as inner:
            run_step(inner, number, 0)
            assert list(map(str, inner.requests)) == list(map(str, steps_of(1)[number]))
    assert [type(rows) for rows in conversation.caches.values()] == [CachedRows] * 2
