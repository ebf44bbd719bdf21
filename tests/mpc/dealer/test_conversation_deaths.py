"""kill -9 at random moments within conversations from a store: no mask of a party hides two messages, in any run."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hummingbird.mpc.dealer.deal import deal
from tests.mpc.dealer.test_store_deaths import marked
from tests.support.conversations import FACTS, SHAPE, STEPS, steps_of
from tests.support.nursery import Nursery, Party, all_fail
from tests.support.patience import until

EACH = 15  # conversations in the store for each killed run: it has 20 ms or so for one


def said(party: Party) -> list[tuple[str, int, int]]:
    """The masks that a party named before it sent anything behind them: digest, conversation and step."""
    lines = (line.split() for line in party.out.read_text().splitlines() if line.startswith("mask "))
    return [(digest, int(slot), int(step)) for _, digest, slot, step in (line for line in lines if len(line) == 4)]


def kill_and_look(nursery: Nursery, out: Path, victims: list[int]) -> list[list[tuple[str, int, int]]]:
    """One run of conversations that ends by force; the masks that each party has used in it."""
    run = nursery.start(["talks", str(out), "0"], 2)
    run[0].until("joined")
    before = random.randrange(40)
    until(lambda: len(said(run[0])) >= before, f"{before} masks")
    time.sleep(random.random() / 50)
    for victim in victims:
        os.kill(run[victim].pid, signal.SIGKILL)
    if len(victims) == 1:
        all_fail([run[1 - victims[0]]], f"kill -9 of party {victims[0]}")
    for victim in victims:
        assert run[victim].wait() == -signal.SIGKILL
    return [said(party) for party in run]


def killed(nursery: Nursery, out: Path, moments: int) -> None:
    """Runs that are killed, each from where the one before has left the store; then one that is not."""
    deal(out, setup=[], steps=steps_of(2), shape=SHAPE, slots=EACH * moments + 20, parties=2, facts=FACTS)
    seen: list[dict[str, int]] = [{}, {}]
    used: set[int] = set()
    broken = 0
    for moment in range(moments):
        masks = kill_and_look(nursery, out, [[0], [1], [0, 1]][moment % 3])
        slots = {slot for each in masks for _, slot, _ in each}
        assert not used & slots, "a conversation was gone on with in another run"
        used |= slots
        for rank, each in enumerate(masks):
            for digest, slot, _ in each:
                assert digest not in seen[rank], f"a mask of conversations {seen[rank][digest]} and {slot}"
                seen[rank][digest] = slot
            entries = marked(out, rank)
            assert len(set(entries)) == len(entries)
            assert {slot for _, slot, _ in each} <= set(entries), "a conversation was begun before it was marked"
            broken += bool(each) and each[-1][2] < len(STEPS)
    assert len(used) > moments / 2 and broken, "the runs were killed before they began, or only between conversations"
    free = 1 + max(
        slot for rank in range(2) for slot in marked(out, rank)
    )  # a killed party may mark one and not use it
    final = nursery.start(["talks", str(out), "3"], 2)
    assert [party.wait() for party in final] == [0, 0], [party.err.read_text() for party in final]
    for rank, party in enumerate(final):
        assert party.out.read_text().count("right") == 3
        assert not {digest for digest, _, _ in said(party)} & set(seen[rank])
        assert {slot for _, slot, _ in said(party)} == set(range(free, free + 3))
    print(f"MEASURED {len(used)} conversations in {moments} killed runs, {broken} cut off within a conversation")


def test_no_mask_hides_two_messages(nursery: Nursery, tmp_path: Path) -> None:
    killed(nursery, tmp_path, 6)


@pytest.mark.slow
def test_no_mask_hides_two_messages_in_many_runs(nursery: Nursery, tmp_path: Path) -> None:
    killed(nursery, tmp_path, 200)
