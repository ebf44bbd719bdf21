"""The meeting in a store: everybody gets the same roll, and none that the dead have left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch.distributed as dist

from hummingbird.errors import AgreementError
from hummingbird.mpc.meeting import Card, Late, Meeting, attend, read_roll
from tests.support.parties import together
from tests.support.patience import HANG, until


def arrive(store: dist.Store, rank: int, world: int, seconds: float = HANG, lanes: int = 1) -> tuple[Card, Meeting]:
    """One process at the meeting: its card, and what it gets."""
    card = Card(f"127.0.0.1:{7000 + rank}", lanes)
    return card, attend(store, rank, world, card, time.monotonic() + seconds, lambda: "unix:/dealer")


def arriving(store: dist.Store, ranks: list[int], world: int) -> list[Callable[[], Any]]:
    return [lambda rank=rank: arrive(store, rank, world) for rank in ranks]  # type: ignore[misc]


def test_all_get_the_same_roll() -> None:
    came = together(arriving(dist.HashStore(), [2, 0, 3, 1], 4))
    for _, meeting in came:
        assert meeting.cards == [came[place][0] for place in (1, 3, 0, 2)]
        assert (meeting.token, meeting.dealer) == (came[0][1].token, "unix:/dealer")
    assert came[0][0].endpoint == ("127.0.0.1", 7002)


def test_no_two_meetings_have_anything_in_common() -> None:
    """`init` again, in the same processes."""
    store = dist.HashStore()
    meetings = [together(arriving(store, [0, 1], 2))[0][1] for _ in range(2)]
    assert meetings[0].token != meetings[1].token
    meetings[0].store.set("note", "of the first")
    assert not meetings[1].store.check(["note"])


def test_who_comes_back_is_not_taken_in_by_the_meeting_of_the_dead() -> None:
    """Rank 1 has died after the meeting and is back before rank 0 has noticed: it waits for rank 0 to call again."""
    store = dist.HashStore()
    (_, dead), _ = together(arriving(store, [0, 1], 2))

    def rank_0() -> Any:
        until(lambda: json.loads(dead.store.get("card/1"))["nonce"] != dead.cards[1].nonce, "rank 1 to come back")
        return arrive(store, 0, 2)

    (card, first), (other, second) = together([lambda: arrive(store, 1, 2), rank_0])
    assert first.token == second.token != dead.token and first.cards == [other, card]


def test_a_card_of_the_dead_is_replaced() -> None:
    """Rank 1 has died, and is back, while rank 0 still waits for rank 2."""
    store = dist.HashStore()
    here = dist.PrefixStore("1", store)
    dead = Card("127.0.0.1:1", 1)

    def rank_1() -> Any:
        until(lambda: here.check(["card/0"]), "rank 0's call")
        here.set("card/1", json.dumps(asdict(dead)))
        return arrive(store, 1, 3)

    def rank_2() -> Any:
        until(lambda: here.check(["card/1"]) and json.loads(here.get("card/1"))["nonce"] != dead.nonce, "rank 1")
        return arrive(store, 2, 3)

    first, second, third = together([*arriving(store, [0], 3), rank_1, rank_2])
    assert first[1].cards == second[1].cards == third[1].cards == [first[0], second[0], third[0]]


def test_the_missing_are_named() -> None:
    store, seconds = dist.HashStore(), 0.2
    with pytest.raises(Late, match=r"\[0\]"):  # nobody has called
        arrive(store, 2, 4, seconds)
    dist.PrefixStore("1", store).set("card/2", json.dumps(CARD))
    for rank in (0, 2):
        with pytest.raises(Late) as caught:
            arrive(store, rank, 4, seconds)
        assert caught.value.missing == [1, 3]


CARD = asdict(Card("127.0.0.1:7000", 2))
ROLLS: dict[str, Any] = {
    "no JSON": "}",
    "no object": [],
    "too few": {"cards": [CARD], "token": "00" * 16, "dealer": ""},
    "a short token": {"cards": [CARD] * 2, "token": "00", "dealer": ""},
    "no port": {"cards": [CARD, CARD | {"address": "127.0.0.1"}], "token": "00" * 16, "dealer": ""},
    "a port above all": {"cards": [CARD, CARD | {"address": "127.0.0.1:65536"}], "token": "00" * 16, "dealer": ""},
    "lanes in words": {"cards": [CARD, CARD | {"lanes": "2"}], "token": "00" * 16, "dealer": ""},
    "no dealer": {"cards": [CARD] * 2, "token": "00" * 16, "dealer": None},
}


@pytest.mark.parametrize("name", ROLLS)
def test_a_malformed_roll_is_refused(name: str) -> None:
    store, roll = dist.HashStore(), ROLLS[name]
    store.set("roll", roll if isinstance(roll, str) else json.dumps(roll))
    with pytest.raises(AgreementError, match="a list of 2 processes"):
        read_roll(store, 2)


def test_a_roll_is_read() -> None:
    store = dist.HashStore()
    store.set("roll", json.dumps({"cards": [CARD] * 2, "token": "00" * 16, "dealer": ""}))
    assert read_roll(store, 2).cards == [Card(**CARD)] * 2
