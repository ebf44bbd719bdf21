"""kill -9 at random moments of two parties that make their material: while they run a net, while they make a store, and
while they use it. Who is left says so and ends, no slot and no mask serves twice, no answer is wrong, and what is whole
at both parties stays usable.

HUMMINGBIRD_KILLS: how many (default 200).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hummingbird.mpc.dealer.folder import LEDGER, read_header
from hummingbird.mpc.dealer.kept import is_there, numbers, set_folder
from hummingbird.slots import looked_at
from tests.support.nursery import Nursery, Party, alive, error_of
from tests.support.pair_keeping import parts
from tests.support.patience import until

KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "200"))
VICTIMS = ([0], [1], [0, 1])


def said(party: Party, word: str) -> list[str]:
    lines = (line.split() for line in party.out.read_text().splitlines())
    return [words[-1] for words in lines if words[:1] == [word]]


def unused(root: Path) -> set[str]:
    """The ids of the sets, of one slot each, that both parties have whole and neither has used."""
    found = []
    for folder in parts(root):
        there = [set_folder(folder, number) for number in numbers(folder)] if folder.exists() else []
        there = [each for each in there if is_there(each)]  # a party may be killed while it erases a used set
        found.append({read_header(each)[0].set_id for each in there if not looked_at(each / LEDGER)})
    return found[0] & found[1]


class Killed:
    """Runs that end by force, one after the other, on one store; what each of them used."""

    def __init__(self, nursery: Nursery, root: Path) -> None:
        self.nursery, self.root = nursery, root
        self.slots: list[set[str]] = [set(), set()]
        self.masks: list[set[str]] = [set(), set()]
        self.answers = 0

    def run(self, job: list[str], victims: list[int], word: str, least: int = 0, within: float = 0.5) -> None:
        """Start a run, and kill parties within so many seconds after party 0 has said `word` `least` times or more."""
        run, before = self.nursery.start(job, 2), least + random.randrange(4)
        for party in run:
            party.until("joined")
        until(lambda: len(said(run[0], word)) >= before or not alive(run[0].pid), f"{before} times {word}")
        time.sleep(within * random.random())
        for victim in victims:
            assert alive(run[victim].pid), run[victim].err.read_text()
            os.kill(run[victim].pid, signal.SIGKILL)
        for rank, party in enumerate(run):
            code = party.wait()
            if rank not in victims:
                assert f"party {victims[0]} closed the connection: it ended or was killed" in error_of(party, code)
        self.note(run)

    def note(self, run: list[Party]) -> None:
        """Compare what a run used with all earlier runs."""
        slots, masks = ([set(said(party, word)) for party in run] for word in ("slot", "mask"))
        for rank, party in enumerate(run):
            for found, before, word in ((slots, self.slots, "slot"), (masks, self.masks, "mask")):
                assert len(found[rank]) == len(said(party, word)), f"a {word} was handed out twice in a run"
                assert not found[rank] & before[rank], f"a {word} was handed out in two runs"
            assert not slots[rank] & self.slots[1 - rank], "a slot that the other party had used"
        self.slots = [self.slots[rank] | slots[rank] for rank in range(2)]
        self.masks = [self.masks[rank] | masks[rank] for rank in range(2)]
        self.answers += len(said(run[0], "right"))

    def fill(self, sets: int) -> None:
        """Make sets without a kill."""
        ended = self.nursery.start(["pair_makes", str(self.root), str(sets)], 2)
        assert [party.wait() for party in ended] == [0, 0], [party.err.read_text() for party in ended]

    def empty(self) -> None:
        """Use every set that is whole at both parties, and no other."""
        whole, before = unused(self.root), self.slots[0]
        assert whole
        ended = self.nursery.start(["pair_runs", str(self.root), str(len(whole))], 2)
        assert [party.wait() for party in ended] == [0, 0], [party.err.read_text() for party in ended]
        self.note(ended)
        assert {slot.partition(":")[0] for slot in self.slots[0] - before} == whole
        assert said(ended[0], "right") == ["right"] * len(whole)

    def three(self, victims: list[int]) -> None:
        """One kill in each: a run that makes its material meanwhile, one that fills the store, one that uses it."""
        self.run(["pair_runs", "", "1000000"], victims, "right")
        self.run(["pair_makes", str(self.root), "1000000"], victims, "set")
        if len(unused(self.root)) < 100:
            self.fill(100)
        self.run(["pair_runs", str(self.root), "100"], victims, "right")


@pytest.mark.slow
def test_killed_once_in_each_phase(nursery: Nursery, tmp_path: Path) -> None:
    killed = Killed(nursery, tmp_path)
    killed.run(["pair_runs", "", "1000000"], [0], "right")
    killed.run(["pair_makes", str(tmp_path), "1000000"], [1], "set", least=8)
    killed.run(["pair_runs", str(tmp_path), "1000000"], [0], "mask", within=0.1)
    killed.empty()


@pytest.mark.slow
def test_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")
    killed = Killed(nursery, tmp_path)
    for number in range(-(-KILLS // 3)):
        killed.three(VICTIMS[number % 3])
    killed.fill(5)
    killed.empty()
    used = killed.slots[0] | killed.slots[1]
    assert killed.answers > KILLS / 3
    print(f"MEASURED {KILLS} killed runs: {len(used)} slots, {len(killed.masks[0])} masks, {killed.answers} answers")
