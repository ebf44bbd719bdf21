"""Three groups of parties behind one file of groups, each with a dealer: kills at random moments in two of them.

HUMMINGBIRD_KILLS: how many (default 30).
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hummingbird.serving.client import Client
from tests.serving.test_kills import Clients, victims
from tests.serving.test_serving import CLOSE, digits
from tests.support.patience import HANG, suspend
from tests.support.rebirth import Hosts
from tests.support.serving import DIGITS

KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "30"))


def line(hosts: Hosts) -> str:
    return " ".join(hosts.addresses) + "\n"


@pytest.mark.slow
def test_kills_in_two_groups_spoil_no_answer_and_leave_the_third_alone(tmp_path: Path) -> None:
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")
    with ExitStack() as stack:
        groups = []
        for number in range(3):
            groups.append(Hosts(*DIGITS, "--max-batch", "12", "--group", str(number)))
            stack.callback(groups[-1].close)
        path = tmp_path / "groups"
        path.write_text("".join(map(line, groups)))
        images, expected = digits(3)
        with Client.from_file(path, timeout=HANG) as client:
            clients = Clients(tmp_path / "asked", [str(path)], 0.1)
            stack.callback(clients.close)
            choices = [kill for hosts in groups[:2] for kill in victims(hosts, clients, dealer=True)]
            with groups[2].client() as alone:
                assert (alone(images) - expected).abs().max() < CLOSE
            calm = [groups[2].party(rank) for rank in range(2)]
            for _ in range(KILLS):
                assert (client(images) - expected).abs().max() < CLOSE
                time.sleep(3 * random.random())
                random.choice(choices)()
                for hosts in groups[:2]:
                    for rank, launcher in enumerate(hosts.launchers):
                        if launcher.poll() is not None:
                            hosts.launchers[rank] = hosts.start_host(rank)
            assert (client(images) - expected).abs().max() < CLOSE
        clients.stop()
        found = clients.outcomes()
        print(found)
        assert not [text for text in found if not text.startswith(("right", "refused"))], found
        assert found["right"] > KILLS
        assert calm == [groups[2].party(rank) for rank in range(2)] and "interrupted" not in groups[2].said


@pytest.mark.slow
def test_a_group_that_is_stopped_delays_nobody_else(tmp_path: Path) -> None:
    """One group's processes stand still for 20 seconds, with their connections; requests to others go on meanwhile."""
    with ExitStack() as stack:
        groups = []
        for number in range(3):
            groups.append(Hosts(*DIGITS, "--group", str(number)))
            stack.callback(groups[-1].close)
        images, expected = digits(3)
        for hosts in groups:
            with hosts.client() as alone:
                assert (alone(images) - expected).abs().max() < CLOSE
        with Client([hosts.addresses for hosts in groups], timeout=HANG) as client:
            client(images)
            pids = [groups[1].party(rank) for rank in range(2)]
            for pid in pids:
                suspend(pid)
            try:
                began, seconds = time.monotonic(), list[float]()
                while time.monotonic() < began + 20:
                    asked = time.monotonic()
                    assert (client(images) - expected).abs().max() < CLOSE
                    seconds.append(time.monotonic() - asked)
            finally:
                for pid in pids:
                    os.kill(pid, 18)  # SIGCONT
            print(f"{len(seconds)} requests, longest {max(seconds):.2f} s")
            assert len(seconds) > 20
            assert (client(images) - expected).abs().max() < CLOSE
