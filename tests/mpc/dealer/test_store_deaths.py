"""kill -9 at random moments, of a party, of the whole run, of the dealer: who is left says so and ends,
and no stored material is handed out twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from hummingbird.mpc.dealer.store import StoreDealer
from tests.jobs.stores import SLICE, net, rows, write_store
from tests.mpc.session.test_deaths import dealing
from tests.support.nursery import Nursery, Party, all_fail
from tests.support.patience import NEVER, until

MOMENTS = 20
STREAMING = 4  # of them with a dealer online, which is the one that is killed
SLOTS = 1000


def handed_out(party: Party) -> list[int]:
    """The slots that a party named before it handed anything out of them."""
    return [int(line.split()[1]) for line in party.out.read_text().splitlines() if line.startswith("slot ")]


def marked(out: Path, rank: int, lane: int = 0) -> list[int]:
    entries = map(json.loads, (out / f"party-{rank}" / f"lane-{lane}" / "ledger").read_text().splitlines())
    return [entry["used"] for entry in entries if "used" in entry]


def kill_and_look(nursery: Nursery, out: Path, victims: list[int]) -> list[set[int]]:
    """One run that ends by force; the slots that each party has handed out in it."""
    run = nursery.start(["stored", str(out), "0"], 2)
    run[0].until("joined")
    before = random.randrange(10)  # slots
    until(lambda: len(handed_out(run[0])) >= before, f"{before} slots")
    time.sleep(random.random() / 20)
    for victim in victims:
        os.kill(run[victim].pid, signal.SIGKILL)
    if len(victims) == 1:
        (text,) = all_fail([run[1 - victims[0]]], f"kill -9 of party {victims[0]}")
        assert f"party {victims[0]} closed the connection: it ended or was killed" in text, text
    for victim in victims:
        assert run[victim].wait() == -signal.SIGKILL
    return [set(handed_out(party)) for party in run]


@pytest.mark.slow
def test_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    random.seed(seed)
    write_store(tmp_path, SLOTS)
    used: set[int] = set()
    for number in range(MOMENTS - STREAMING):
        slots = kill_and_look(nursery, tmp_path, [[0], [1], [0, 1]][number % 3])
        # One party may have begun a slot that the other has not; between runs nothing is shared.
        assert abs(max(slots[0], default=-1) - max(slots[1], default=-1)) <= 1 or not (slots[0] and slots[1]), slots
        assert not used & (slots[0] | slots[1]), "a slot was handed out in two runs"
        used |= slots[0] | slots[1]
        for rank in range(2):
            entries = marked(tmp_path, rank)
            assert len(set(entries)) == len(entries) and slots[rank] <= set(entries), "handed out before it was marked"
    assert len(used) > MOMENTS, "the runs were killed before they began"
    # The rest is usable, and by both. A party may have been killed after its mark and before it named the slot.
    last = max(max(marked(tmp_path, rank)) for rank in range(2))
    assert last in (max(used), max(used) + 1)
    final = nursery.start(["stored", str(tmp_path), str(10 * SLICE[0])], 2)
    assert [party.wait() for party in final] == [0, 0], [party.err.read_text() for party in final]
    rest = [handed_out(party) for party in final]
    assert {min(slots) for slots in rest} == {last + 1} and {len(slots) for slots in rest} == {10}
    with torch.no_grad():
        expected = net()(rows(10 * SLICE[0]))
    assert float((torch.tensor(json.loads(final[0].out.read_text().splitlines()[-1])) - expected).abs().max()) < 0.02
    print(f"MEASURED {len(used)} of {max(used) + 1} slots in {MOMENTS - STREAMING} killed runs")


@pytest.mark.slow
def test_a_dealer_killed_at_random_moments(nursery: Nursery) -> None:
    """While both parties work ahead."""
    for _ in range(STREAMING):
        with dealing(nursery) as dealer:
            parties = nursery.start(["forever", f"{NEVER:g}"], 2, DEALER=dealer.variables["DEALER"])
            for party in parties:
                party.until("running")
            time.sleep(random.random() / 2)
            os.kill(dealer.pid, signal.SIGKILL)
            texts = all_fail(parties, "kill -9 of the dealer")
        # Whoever notices first says so to the others.
        assert all("the connection is lost" in text for text in texts), texts


def test_a_party_killed_between_its_mark_and_the_hand_out(nursery: Nursery, tmp_path: Path) -> None:
    """The mark is on the disk before `take` goes on: a process that dies right there has used the slot."""
    write_store(tmp_path, 2)
    assert nursery.fork(["dies_at_mark", str(tmp_path)], 1, 2, 1).wait() == -signal.SIGKILL
    store = StoreDealer(tmp_path, rank=1, parties=2)  # the dead process holds no lock
    assert store.next_slot == 1
    store.close()
