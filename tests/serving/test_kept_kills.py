"""Kills at random moments of a service's parties and of the keeper of its store: answers are right or refused with a
reason, no slot is used twice, and the service comes back.

HUMMINGBIRD_KILLS: how many (default 12).
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hummingbird.mpc.dealer.kept import numbers
from hummingbird.serving.client import Client
from tests.serving.test_kills import KILLS, Clients
from tests.serving.test_serving import CLOSE, digits
from tests.serving.test_stores import patiently
from tests.support import python
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, until
from tests.support.rebirth import Hosts
from tests.support.serving import DIGITS


class KeptHosts(Hosts):
    """Two parties on a kept store, and its keeper, which keeps ten slots in sets of five."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        super().__init__(*DIGITS, "--max-batch", "12", store=kept)

    def start_keeper(self) -> None:
        deal = [*DIGITS[:-1], "6x1x8x8", "--images", "30", "--keep", "10", "--out", str(self._kept)]
        self.keeper = self._start([sys.executable, "-m", "hummingbird", "deal", *deal])

    def kill_keeper(self) -> None:
        self.keeper.kill()
        self.keeper.wait(HANG)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return super()._start([word.replace("jobs.one_host", "jobs.kept_host") for word in command])


@pytest.mark.slow
def test_whatever_is_killed_no_slot_is_used_twice(tmp_path: Path) -> None:
    random.seed(seed := time.time_ns() % 10**6)
    print("seed", seed)
    kept = tmp_path / "kept"
    first = [*DIGITS[:-1], "6x1x8x8", "--images", "30", "--keep", "10", "--out", str(kept)]
    keeper = python.Popen([sys.executable, "-m", "hummingbird", "deal", *first], cwd=ROOT, env=environment(0, 1, 1))
    until(lambda: kept.is_dir() and numbers(kept) or keeper.poll() is not None, "a set")
    keeper.kill()
    keeper.wait(HANG)
    hosts = KeptHosts(kept)
    hosts.start_keeper()
    clients = Clients(tmp_path / "asked", hosts.addresses, 0.2)
    images, expected = digits(3)

    def ask() -> None:
        with Client(hosts.addresses, timeout=HANG) as client:
            assert (patiently(client, images, []) - expected).abs().max() < CLOSE

    try:
        for number in range(KILLS):
            if number == 0 or random.random() < 0.4:
                ask()
            time.sleep(random.choice((0.3, 3.0, 10.0)) * random.random())
            if random.random() < 0.5:
                hosts.kill_keeper()
                time.sleep(3 * random.random())
                hosts.start_keeper()
            else:
                hosts.kill_party(random.randrange(2))
            for rank, launcher in enumerate(hosts.launchers):
                if launcher.poll() is not None:
                    hosts.launchers[rank] = hosts.start_host(rank)
        ask()
        clients.stop()
    finally:
        clients.close()
        said = hosts.said
        hosts.close()
        hosts.kill_keeper()
    found = clients.outcomes()
    print("\n".join(f"{count:6} {text}" for text, count in found.most_common()))
    assert not [text for text in found if text.startswith(("wrong", "unclear"))] and found["right"] > 0
    for rank in range(2):
        slots = re.findall(rf"party {rank} uses (\w+:\d+)", said)
        assert slots and len(slots) == len(set(slots))
        print(f"MEASURED party {rank}: {len(slots)} slots of {len({slot.split(':')[0] for slot in slots})} sets")
