"""Kills of either side anywhere: no slot is dealt or answered twice, nobody hangs, the rest of the store works."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from hummingbird.hybrid.client import RemoteNet
from tests.hybrid.test_arithmetic import images
from tests.jobs.two_parties import client, server, started
from tests.support.covering import every
from tests.support.hybrid import close, model
from tests.support.patience import HANG, until


@pytest.mark.parametrize(
    ("garbler", "kills"),
    every(4, [("data", 4), ("model", 4), ("data", 100), ("model", 100)]),
)
def test_slots_are_dealt_and_answered_once_whoever_is_killed(tmp_path: Path, garbler: str, kills: int) -> None:
    rng, events = random.Random(kills), tmp_path / "events"
    with tempfile.TemporaryDirectory() as place:
        address = f"unix:{place}/gc.sock"
        roles = {role: started(role, address, tmp_path, garbler) for role in (server, client)}
        try:
            for _ in range(kills):
                seen = lines(events)
                until(lambda seen=seen: len(lines(events)) > len(seen) + 4, "work to go on")
                time.sleep(rng.random() * 0.3)
                victim = rng.choice([server, client])
                roles[victim].kill()
                roles[victim].join(HANG)
                roles[victim] = started(victim, address, tmp_path, garbler)
            count = lines(events).count("right")
            until(lambda: lines(events).count("right") > count, "images to be right again")
            roles[client].kill()
            roles[client].join(HANG)
            with RemoteNet(address, tmp_path / "d", timeout=HANG) as net:
                net.prepare(1)
                x = images(net.ready).float()
                assert close(net(x), model(garbler), x)
                assert not net.offline["conv: Enc(r)"] > 60_000  # but for that one, slots of before
        finally:
            for process in roles.values():
                process.kill()
    found = Counter(line for line in lines(events) if line.startswith(("dealt", "used")))
    assert found and set(found.values()) == {1}, [line for line, times in found.items() if times > 1]
    assert "wrong" not in lines(events)
    for line in lines(events):
        assert not line.startswith("told") or line.split()[1] in ("PeerError", "UnavailableError", "StoreError"), line


def lines(path: Path) -> list[str]:
    """Lines that the two sides have written so far."""
    return path.read_text().splitlines() if path.exists() else []
