"""kill -9 at random moments, of the keeper, of a party, of all: no slot is handed out twice, no answer is wrong, and
whoever comes next goes on.

HUMMINGBIRD_KILLS: how many (default 12).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hummingbird.mpc.dealer.kept import DESCRIPTION, numbers
from tests.support.nursery import Nursery, Party, alive, error_of
from tests.support.patience import until

KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "12"))
KEEP = 8  # slots of sets of three


def handed_out(party: Party) -> list[str]:
    return [line.split()[1] for line in party.out.read_text().splitlines() if line.startswith("slot ")]


def rights(party: Party) -> int:
    return party.out.read_text().splitlines().count("right")


def kill(party: Party) -> None:
    if alive(party.pid):
        os.kill(party.pid, signal.SIGKILL)
    party.wait()


def test_a_run_over_many_sets(nursery: Nursery, tmp_path: Path) -> None:
    """Batches begin in one set and end in the next, while the keeper deals; every slot is used once, and in order."""
    keeper = nursery.fork(["keeps", str(tmp_path), str(KEEP)], 0, 1, 1)
    keeper.until("keeping")
    parties = nursery.start(["kept", str(tmp_path), "8"], 2)
    assert [party.wait() for party in parties] == [0, 0], [party.err.read_text() for party in parties]
    kill(keeper)
    used = [handed_out(party) for party in parties]
    assert used[0] == used[1] and len(set(used[0])) == len(used[0]) == 12
    assert [int(slot.split(":")[1]) for slot in used[0]] == [*range(3)] * 4  # none left out
    assert all(number >= 5 for number in numbers(tmp_path))  # what is used up is gone; the next set may be unfinished


@pytest.mark.slow
def test_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")

    def start_keeper() -> Party:
        return nursery.fork(["keeps", str(tmp_path), str(KEEP)], 0, 1, 1)

    keeper = start_keeper()
    keeper.until("keeping")
    used: list[set[str]] = [set(), set()]
    answers = keepers = 0
    for number in range(KILLS):
        run = nursery.start(["kept", str(tmp_path), "1000000"], 2)
        before = random.randrange(12)
        until(lambda run=run, before=before: rights(run[0]) >= before or not alive(run[0].pid), f"{before} slices")  # type: ignore[misc]
        for _ in range(3):  # of the keeper, while the parties go on, or wait for its successor
            time.sleep(random.random() / 3)
            if random.random() < 0.5:
                kill(keeper)
                time.sleep(random.choice((0.0, 0.5)) * random.random())
                keeper, keepers = start_keeper(), keepers + 1
        victims = [[0], [1], [0, 1]][number % 3]
        for victim in victims:
            assert alive(run[victim].pid), run[victim].err.read_text()
            os.kill(run[victim].pid, signal.SIGKILL)
        for rank, party in enumerate(run):
            code = party.wait()
            if rank not in victims:
                assert f"party {victims[0]} closed the connection: it ended or was killed" in error_of(party, code)
            mine = handed_out(party)
            assert len(set(mine)) == len(mine) and not used[rank] & set(mine), "a slot was handed out twice"
            assert rank != 0 or not used[1] & set(mine), "one that the other party alone had used"
        used = [used[rank] | set(handed_out(run[rank])) for rank in range(2)]
        answers += rights(run[0])
    assert answers > KILLS
    last = nursery.start(["kept", str(tmp_path), "10"], 2)
    assert [party.wait() for party in last] == [0, 0], [party.err.read_text() for party in last]
    assert not (used[0] | used[1]) & set(handed_out(last[0]))
    assert len(numbers(tmp_path)) <= -(-KEEP // 3) + 2 and (tmp_path / DESCRIPTION).exists()
    kill(keeper)
    print(f"MEASURED {len(used[0] | used[1])} slots, {answers} right answers, {KILLS} killed runs, {keepers} keepers")
