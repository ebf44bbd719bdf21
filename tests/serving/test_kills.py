"""Kills at random moments, of parties, their hosts, the dealer and clients, while clients ask: every request ends with
a right answer or a reason, nothing is used twice, and the service comes back each time.

HUMMINGBIRD_KILLS: how many (default 12).
"""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hummingbird.serving.client import Client
from tests.serving.test_serving import CLOSE, digits
from tests.support import python
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM
from tests.support.rebirth import Hosts
from tests.support.serving import DIGITS

KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "12"))
_BACK = 0.4  # chance that the service has come back before the next kill: others strike while it does


class Clients:
    """Three processes that ask, two of them with little time, and that are started again when they were killed."""

    def __init__(self, path: Path, addresses: list[str], pause: float) -> None:
        self._path, self._addresses, self._pause = path, addresses, pause
        self.killed: set[int] = set()
        self._seed = 0
        self._running = [self._start(place) for place in range(3)]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        self._seed += 1
        words = [str(self._path), str(self._seed), str((3.0, 8.0, HANG)[place]), str(self._pause), *self._addresses]
        return python.Popen([sys.executable, "-m", "tests.jobs.asking", *words], cwd=ROOT, env=environment(0, 1, 1))

    def kill(self) -> None:
        place = random.randrange(3)
        self.killed.add(self._running[place].pid)
        self._running[place].kill()
        self._running[place].wait(HANG)
        self._running[place] = self._start(place)

    def stop(self) -> None:
        """End all in an orderly way: none may hang in a request."""
        for client in self._running:
            client.terminate()
        assert [client.wait(PROGRAM) for client in self._running] == [0, 0, 0]

    def close(self) -> None:
        """End those that run."""
        for client in self._running:
            client.kill()
            client.wait(HANG)

    def outcomes(self) -> Counter[str]:
        """How requests ended; those of killed clients may have no end."""
        begun: set[str] = set()
        found: Counter[str] = Counter()
        for line in self._path.read_text().splitlines():
            pid, _, text = line.partition(" ")
            if text == "asks":
                assert pid not in begun, line
                begun.add(pid)
            else:
                begun.remove(pid)
                found[text] += 1
        assert begun <= {str(pid) for pid in self.killed}
        return found


def victims(hosts: Hosts, clients: Clients, dealer: bool) -> list[Callable[[], None]]:
    """Ways to kill something, and to start it again as a service manager does."""

    def host(rank: int) -> None:
        hosts.kill_host(rank)
        time.sleep(random.random())
        hosts.launchers[rank] = hosts.start_host(rank)

    def kill_dealer() -> None:
        hosts.dealer.kill()
        hosts.dealer.wait(HANG)
        time.sleep(3 * random.random())
        hosts.start_dealer()

    parties = [lambda rank=rank: hosts.kill_party(rank, random.randrange(hosts.lanes)) for rank in (0, 1)]
    whole = [lambda rank=rank: host(rank) for rank in (0, 1)]
    return [*parties, *parties, *whole, clients.kill, *[kill_dealer] * dealer]  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2], ids=["one lane", "two lanes"])
@pytest.mark.parametrize("source", ["dealer", "store"])
def test_whatever_is_killed_no_answer_is_wrong_and_the_service_comes_back(
    tmp_path: Path, source: str, lanes: int
) -> None:
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")
    store = None
    if source == "store":
        store = tmp_path / "store"
        count = str(6 * (200 + 40 * KILLS))
        deal = [*DIGITS[:-1], "6x1x8x8", "--lanes", str(lanes), "--images", count, "--out", str(store)]
        python.run([sys.executable, "-m", "hummingbird", "deal", *deal], cwd=ROOT, check=True, timeout=PROGRAM)
    hosts = Hosts(*DIGITS, "--max-batch", "12", store=store, lanes=lanes)
    clients, back = Clients(tmp_path / "asked", hosts.addresses, 1.0 if store else 0.1), []
    images, expected = digits(3)
    try:
        choices = victims(hosts, clients, store is None)
        for number in range(KILLS):
            if number == 0 or random.random() < _BACK:
                started = time.monotonic()
                with Client(hosts.addresses, timeout=HANG) as client:
                    assert (client(images) - expected).abs().max() < CLOSE
                back.append(time.monotonic() - started)
            time.sleep(random.choice((0.3, 3.0, 10.0)) * random.random())
            random.choice(choices)()
            for rank, launcher in enumerate(hosts.launchers):
                if launcher.poll() is not None:
                    hosts.launchers[rank] = hosts.start_host(rank)
        with Client(hosts.addresses, timeout=HANG) as client:
            assert (client(images) - expected).abs().max() < CLOSE
        clients.stop()
    finally:
        clients.close()
        said = hosts.said
        (tmp_path / "said").write_text(said)  # pytest keeps it
        hosts.close()
    found = clients.outcomes()
    print(f"{KILLS} kills; back {len(back)} times, after {', '.join(f'{seconds:.0f}' for seconds in back[1:])} s")
    print("\n".join(f"{count:6} {text}" for text, count in found.most_common()))
    assert not [text for text in found if text.startswith(("wrong", "unclear"))]
    assert found["right"] > 0
    # A client tries again within its time, and a party is back within a second: of few kills none may be noticed.
    assert KILLS < 100 or any(text.startswith("refused") for text in found)
    for rank, lane in itertools.product(range(2), range(lanes)) if store else ():
        slots = re.findall(rf"party {rank}, lane {lane} uses slot (\d+)", said)
        assert slots and len(slots) == len(set(slots))
