"""Stores for parties of several lanes: nothing in common between lanes; each finds its own folder, or says why not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import chain
from pathlib import Path

import pytest
import torch

from hummingbird.__main__ import main
from hummingbird.errors import DealerError
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.folder import lane_folder
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.protocols.beaver import SquarePair
from tests.jobs.stores import net, rows, write_store
from tests.mpc.dealer.test_store_deaths import handed_out, marked
from tests.support.nursery import Nursery
from tests.support.patience import until

PARTIES, LANES, SLOTS = 2, 2, 2
REQUEST = SquarePair((64,))
FACTS = {"architecture": "a", "bits": "b", "plan": "p", "protocol": "gmw", "weights": "public"}


def dealt(out: Path, lanes: int = LANES) -> Path:
    deal(out, setup=[], steps=[[REQUEST]], shape=(4, 6), slots=SLOTS, parties=PARTIES, facts=FACTS, lanes=lanes)
    return out


def opened(out: Path | str, rank: int = 0, lane: int = 0, lanes: int = LANES) -> StoreDealer:
    return StoreDealer(out, rank=rank, parties=PARTIES, lane=lane, lanes=lanes)


def test_material_of_a_run_is_brought_before_it(tmp_path: Path) -> None:
    """It is there when `bring` returns, more than is kept otherwise, and is what the slots have without it."""
    dealt(tmp_path / "2")
    shutil.copytree(tmp_path / "2", tmp_path / "0")
    taken = []
    for slots in (2, 0):
        store = StoreDealer(tmp_path / str(slots), rank=0, parties=PARTIES, lane=0, lanes=LANES, buffer_bytes=1)
        store.bring(slots)
        assert [len(supply.work.ready) for supply in store._upcoming] == [1] * slots
        taken.append([store.reserve([REQUEST]).correlation(REQUEST).shares for _ in range(SLOTS)])
        with pytest.raises(DealerError, match="all 2 slots of the store are used"):
            store.reserve([REQUEST])
        store.close()
    assert all(one[name].equal(other[name]) for one, other in zip(*taken, strict=True) for name in one)


def test_every_lane_has_its_own_material_and_slots(tmp_path: Path) -> None:
    """Both lanes use slots 0 and 1 at the same time, and no value of one is a value of the other."""
    dealt(tmp_path)
    stores = [[opened(tmp_path, rank, lane) for rank in range(PARTIES)] for lane in range(LANES)]
    seen: list[int] = []
    for _ in range(SLOTS):
        for pair in stores:
            mine, theirs = (store.reserve(None).correlation(REQUEST).shares for store in pair)
            r = mine["r"] + theirs["r"]
            assert (r * r).equal(mine["square"] + theirs["square"])
            seen += [*mine["r"].tolist(), *theirs["r"].tolist()]
    assert len(set(seen)) == len(seen) == 64 * PARTIES * LANES * SLOTS  # 64-bit words: a chance of 2^-46
    assert (
        len({store.facts["store"] for store in chain(*stores)}) == LANES
    )  # one for each lane, the same at its parties
    for lane, rank in ((0, 0), (1, 1)):
        with pytest.raises(DealerError, match=f"all {SLOTS} slots of the store are used"):
            stores[lane][rank].reserve(None)
    for store in chain(*stores):
        store.close()
    for rank in range(PARTIES):
        assert [opened(tmp_path, rank, lane).next_slot for lane in range(LANES)] == [SLOTS] * LANES


def test_a_store_for_another_number_of_lanes(tmp_path: Path) -> None:
    """Also where this lane has no folder in it."""
    for dealt_for, lane, lanes in ((2, 0, 1), (2, 1, 3), (2, 2, 3), (1, 0, 2), (1, 1, 2)):
        path = tmp_path / f"{dealt_for} {lane} {lanes}"
        dealt(path, dealt_for)
        words = f"this store was dealt with --lanes {dealt_for}, this run has lanes={lanes}"
        with pytest.raises(DealerError, match=words) as caught:
            opened(path, lane=lane, lanes=lanes)
        assert f"lanes={dealt_for}" in caught.value.hint and f"--lanes {lanes}" in caught.value.hint


def test_folders_of_another_lane_are_refused(tmp_path: Path) -> None:
    """A copy of lane 0 in the place of lane 1 would use every slot twice."""
    dealt(tmp_path / "copied")
    shutil.rmtree(lane_folder(tmp_path / "copied", 0, 1))
    for copy in (False, True):
        if copy:
            shutil.copytree(*(lane_folder(tmp_path / "copied", 0, lane) for lane in range(LANES)))
        with pytest.raises(DealerError, match="this store is for lane 0, this process is for lane 1"):
            opened(tmp_path / "copied", lane=1)
    dealt(tmp_path / "unfinished")
    (lane_folder(tmp_path / "unfinished", 1, 1) / "header.json").unlink()
    with pytest.raises(DealerError, match="this store was not dealt to its end"):
        opened(tmp_path / "unfinished", rank=1, lane=1)


def test_a_party_needs_its_own_folder_only(tmp_path: Path) -> None:
    dealt(tmp_path)
    for path in (tmp_path / "party-1", f"{tmp_path}/party-{{rank}}", tmp_path):
        store = opened(path, rank=1, lane=1)
        assert store.folder == lane_folder(tmp_path, 1, 1)
        store.close()


def test_the_command_splits_the_images_over_lanes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """10 images over 3 lanes are 4, 3 and 3: 2 slices of 2 in each lane."""
    out = tmp_path / "store"
    options = ["--model", "models:get_model", "digits", "10", "--input", "2x1x8x8", "--images", "10", "--lanes", "3"]
    assert main(["deal", *options, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 slices of 2 images for 2 parties and each of 3 lanes" in printed and "a lane" in printed
    assert sorted(path.name for path in (out / "party-0").iterdir()) == ["lane-0", "lane-1", "lane-2"]
    for lane in range(3):
        store = opened(out, lane=lane, lanes=3)
        assert (store.header.lane, store.header.lanes, store.header.slots) == (lane, 3, 2)
        store.close()


@pytest.mark.slow
def test_a_killed_run_goes_on_with_slots_that_no_lane_has_used(nursery: Nursery, tmp_path: Path) -> None:
    """Two parties of two lanes, killed while each lane is at a slot of its own; then 8 rows in every lane."""
    write_store(tmp_path, 1000, lanes=LANES)
    places = [(rank, lane) for rank in range(PARTIES) for lane in range(LANES)]
    run = nursery.start(["stored", str(tmp_path), "0"], len(places), HUMMINGBIRD_LANES=str(LANES))
    until(lambda: all(len(handed_out(party)) > 2 for party in run), "three slots of every lane")
    for party in run:
        os.kill(party.pid, signal.SIGKILL)
    assert {party.wait() for party in run} == {-signal.SIGKILL}
    used = {place: handed_out(party) for place, party in zip(places, run, strict=True)}
    again = nursery.start(["stored", str(tmp_path), "8"], len(places), HUMMINGBIRD_LANES=str(LANES))
    assert [party.wait() for party in again] == [0] * len(places), [party.err.read_text() for party in again]
    with torch.no_grad():
        plain = net()(rows(8))
    for (rank, lane), party in zip(places, again, strict=True):
        new = handed_out(party)
        # From the first slot that neither party has marked in this lane, whatever the other lane has used.
        start = max(slot for peer in range(PARTIES) for slot in marked(tmp_path, peer, lane) if slot not in new) + 1
        assert new == [start, start + 1] and not set(new) & set(used[rank, lane])
        entries = marked(tmp_path, rank, lane)
        assert len(set(entries)) == len(entries) and {*new, *used[rank, lane]} <= set(entries)
        out = torch.tensor(json.loads(party.out.read_text().splitlines()[-1]))
        assert float((out - plain).abs().max()) < (16 * 2 + PARTIES) * (1 + 4 + 16) * 2.0**-16  # as in test_store.py
