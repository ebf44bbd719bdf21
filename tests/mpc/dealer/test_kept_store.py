"""Parties of a kept store: each slot of each set is used once, by all of them or by none, and then erased."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import threading
import time
import weakref
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hummingbird.channel import interleave, meter
from hummingbird.errors import AgreementError, DealerError, HummingbirdError
from hummingbird.mpc.dealer import folder
from hummingbird.mpc.dealer.folder import lane_folder
from hummingbird.mpc.dealer.kept import erase, numbers, set_folder
from hummingbird.mpc.dealer.kept_store import Set
from hummingbird.mpc.dealer.store import StoreDealer
from tests.support.keeping import FACTS, REQUEST, SHAPE, SLOTS, Parties, dealt, keeper
from tests.support.parties import together


def part(root: Path, number: int, rank: int) -> Path:
    return lane_folder(set_folder(root, number), rank, 0)


def used_by(root: Path, number: int, rank: int, slots: int) -> None:
    """A party that was killed when it had used so many slots of a set."""
    store = StoreDealer(set_folder(root, number), rank=rank, parties=2)
    for slot in range(slots):
        store.mark(slot)
    store.close()


def test_one_set_after_the_other(tmp_path: Path) -> None:
    """Whatever number of slices is asked for at a time; what is left is told, sets that wait included."""
    parties = Parties(dealt(tmp_path, 4))
    used = []
    for slices in (1, 2, 1, 5, 2):
        assert [store.slots_left for store in parties.stores] == [4 * SLOTS - len(used)] * 2
        used += parties.use(slices)
    assert len(set(used)) == len(used) == 11
    assert [slot for _, slot in used] == [*range(3), *range(3), *range(3), 0, 1]
    assert numbers(tmp_path) == [4]
    parties.close()
    again = Parties(tmp_path)
    assert again.use() == [(used[-1][0], 2)]
    again.close()
    assert numbers(tmp_path) == []


@pytest.mark.parametrize(("first", "second"), list(product(range(SLOTS + 1), repeat=2)))
def test_a_slot_that_one_has_used_is_used_by_none(tmp_path: Path, first: int, second: int) -> None:
    dealt(tmp_path, 2)
    used_by(tmp_path, 1, 0, first)
    used_by(tmp_path, 1, 1, second)
    parties = Parties(tmp_path)
    left = 2 * SLOTS - max(first, second)
    assert [store.slots_left for store in parties.stores] == [left] * 2
    used = parties.use(left)
    assert [slot for _, slot in used] == [*range(max(first, second), SLOTS), *range(SLOTS)]
    parties.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_set_that_one_has_erased_is_used_by_none(tmp_path: Path, rank: int) -> None:
    """The other one was killed when it had marked one slot of it, and none of the next set."""
    dealt(tmp_path, 3)
    used_by(tmp_path, 1, 1 - rank, 1)
    erase(part(tmp_path, 1, rank))
    used_by(tmp_path, 2, rank, 1)
    parties = Parties(tmp_path)
    assert [slot for _, slot in parties.use(2)] == [1, 2]
    assert numbers(tmp_path) == [2, 3]
    parties.close()


@pytest.mark.parametrize("left", [(folder.SEED, folder.CORRECTIONS, folder.LEDGER), (folder.LEDGER,), ()])
def test_what_a_killed_party_was_erasing_is_erased(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Also where nothing but its empty folder is left; the other party, which has used nothing of that set, follows."""
    dealt(tmp_path, 2)
    for file in part(tmp_path, 1, 0).iterdir():
        if file.name not in left:
            file.unlink()
    parties = Parties(tmp_path)
    assert numbers(tmp_path) == [2]
    assert [slot for _, slot in parties.use()] == [0]
    parties.close()


def test_seeds_are_overwritten(tmp_path: Path) -> None:
    dealt(tmp_path / "kept", 1)
    os.link(part(tmp_path / "kept", 1, 0) / folder.SEED, tmp_path / "seed")
    assert any((tmp_path / "seed").read_bytes())
    erase(part(tmp_path / "kept", 1, 0))
    assert (tmp_path / "seed").read_bytes() == bytes(16)
    assert not part(tmp_path / "kept", 1, 0).exists() and part(tmp_path / "kept", 1, 1).exists()


def test_material_in_use_outlives_its_set(tmp_path: Path) -> None:
    """Slots are taken from in turns, some after a set was passed by, and none is erased before its last piece."""
    dealt(tmp_path, 3)
    parties = Parties(tmp_path)
    parties.admit(3)
    kept = [[store.reserve(None) for store in parties.stores] for _ in range(3)]
    parties.use(2)  # of the next set, while the first one's slots are under way
    assert numbers(tmp_path) == [1, 2, 3]
    for _ in range(2):
        for pair in kept:
            mine, theirs = (slot.correlation(REQUEST).shares for slot in pair)
            assert ((mine["r"] + theirs["r"]) ** 2).equal(mine["square"] + theirs["square"])
    for store in parties.stores:
        store.stay()  # as a party of a service that has nothing to do
    assert numbers(tmp_path) == [2, 3]
    parties.close()


def test_parties_wait_for_a_set(tmp_path: Path) -> None:
    """At their start, and when all are used up; other computations take their turns meanwhile."""
    one = keeper(tmp_path)
    later = threading.Timer(0.6, one.add)
    later.start()
    parties = Parties(tmp_path)
    parties.use(SLOTS)
    assert [store.slots_left for store in parties.stores] == [0, 0]
    later = threading.Timer(0.6, one.add)
    later.start()
    began = time.monotonic()
    assert [slot for _, slot in parties.use()] == [0] and time.monotonic() - began > 0.3
    later.join()
    parties.close()
    one.close()


def test_no_set_in_time_is_an_error_at_both(tmp_path: Path) -> None:
    dealt(tmp_path, 1)
    parties = Parties(tmp_path, timeout=0.5)
    errors = []

    def admit(rank: int) -> None:
        with pytest.raises(DealerError, match="for 3 more slices of 4, 4 are needed, and no set came") as caught:
            parties.stores[rank].admit(FACTS, [SHAPE] * (SLOTS + 1))
        errors.append(caught.value)

    together([lambda: admit(0), lambda: admit(1)])
    assert all("deal --keep" in error.hint for error in errors)
    parties.use(SLOTS)  # what is there can be used
    parties.close()
    keeper(tmp_path / "new").close()
    with pytest.raises(DealerError, match="0 more slices of 4, 1 are needed"):
        Parties(tmp_path / "new", timeout=0.5)


def test_two_computations_in_turns_go_on_to_the_same_sets(tmp_path: Path) -> None:
    """Both want a set at the same time, in the middle of each other's rounds."""
    dealt(tmp_path, 4)
    parties = Parties(tmp_path)
    taken: list[list[tuple[int, int]]] = [[], []]

    def compute(rank: int) -> None:
        channel, store = parties.channels[rank], parties.stores[rank]

        def work(slices: int) -> None:
            for _ in range(2):
                channel.exchange(torch.zeros(3))
                store.admit(FACTS, [SHAPE] * slices)
                for slot in [store.reserve(None) for _ in range(slices)]:
                    assert isinstance(slot._use._store, Set)
                    taken[rank].append((slot._use._store.number, slot.number))
                    slot.correlation(REQUEST)
                    channel.exchange(torch.zeros(2))
                    slot.correlation(REQUEST)

        interleave.Interleave().run([lambda: work(2), lambda: work(3)])

    together([lambda: compute(0), lambda: compute(1)])
    assert taken[0] == taken[1] and sorted(taken[0]) == [*product(range(1, 4), range(SLOTS)), (4, 0)]
    parties.close()


def test_the_rounds_are_predicted(tmp_path: Path) -> None:
    dealt(tmp_path, 2)
    parties = Parties(tmp_path)
    with meter.meter() as opened:
        parties.admit(SLOTS + 1)
    row = opened.rows["store"]
    assert row.rounds == row.rounds_predicted == 2  # one at each of two parties, which share a process here
    assert row.bits_sent == row.bits_predicted == 2 * 8 * (20 + 32)
    parties.close()


def differing(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of one description whose first sets were dealt apart."""
    dealt(tmp_path / "one", 0)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    return dealt(tmp_path / "one", 1), dealt(tmp_path / "other", 1)


def test_parties_with_different_sets_or_folders_are_told(tmp_path: Path) -> None:
    one, other = differing(tmp_path)
    with pytest.raises(AgreementError, match=r"set 1 is [0-9a-f]{32} at party \d, and [0-9a-f]{32} at party \d"):
        Parties(one, other)
    dealt(tmp_path / "third", 2)
    with pytest.raises(HummingbirdError, match="the parties disagree on kept store"):
        Parties(one, tmp_path / "third")
    assert numbers(one) == [1] and numbers(tmp_path / "third") == [1, 2]


def test_other_runs_and_nets_are_refused(tmp_path: Path) -> None:
    dealt(tmp_path / "lanes", 0, lanes=2)
    with pytest.raises(DealerError, match="kept for 2 parties of 2 lanes, this run has 2 of 1"):
        Parties(tmp_path / "lanes")
    parties = Parties(dealt(tmp_path / "kept", 1))
    with pytest.raises(DealerError, match="another process is using this store"):
        Parties(tmp_path / "kept")
    with pytest.raises(DealerError, match="dealt for bits b, this net has c"):
        parties.stores[0].admit({**FACTS, "bits": "c"}, [SHAPE])
    with pytest.raises(DealerError, match=r"slices of shape \(4, 6\), this one has \(5, 6\)"):
        parties.stores[0].admit(FACTS, [(5, 6)])
    with pytest.raises(DealerError, match="nothing for .* outside of a net's slices"):
        parties.stores[0].correlation(REQUEST)
    parties.close()


def test_a_set_of_another_store_is_refused(tmp_path: Path) -> None:
    dealt(tmp_path / "other", 1, slots=5)
    dealt(tmp_path / "kept", 0)
    shutil.copytree(set_folder(tmp_path / "other", 1), set_folder(tmp_path / "kept", 1))
    with pytest.raises(DealerError, match="set 1 was dealt for other things"):
        Parties(tmp_path / "kept")


@pytest.mark.parametrize("word", [[-1, 0, 0, 0], [1, -1, 0, 0], [1, SLOTS + 1, 0, 0], [-(2**63), 2**63 - 1, 0, 0]])
def test_a_party_that_says_nonsense_is_named(tmp_path: Path, word: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    parties = Parties(dealt(tmp_path, 2))

    def exchange(*tensors: Tensor) -> dict[int, list[Tensor]]:
        return {1: [torch.tensor(word)]}

    monkeypatch.setattr(parties.channels[0], "exchange", exchange)
    with pytest.raises(AgreementError, match=f"party 1 says that it has used {word[1]} slots of set {word[0]}"):
        parties.stores[0].admit(FACTS, [SHAPE] * (SLOTS + 1))
    parties.close()


def test_open_files_threads_and_memory_stay_as_sets_come_and_go(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def mine() -> tuple[int, int]:
        """Open files in this folder, erased ones too, and threads that have begun here."""
        links = []
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the folder itself, open for this loop
                links.append(os.readlink(path))
        files = sum(link.startswith(f"{tmp_path}/") for link in links)
        return files, len(set(threading.enumerate()) - before)

    parties, one = Parties(dealt(tmp_path, 1)), keeper(tmp_path)
    opened: list[weakref.ref[Set]] = []
    seen = []
    for _ in range(8):
        one.add()
        parties.use(SLOTS)
        opened += [weakref.ref(each) for store in parties.stores for each in store._sets]
        seen.append(mine())
    files, threads = seen[1]
    assert files > 0 and all(each[0] <= files and each[1] <= threads for each in seen[2:]), seen
    gc.collect()
    assert len(opened) >= 16 and sum(each() is not None for each in opened) <= 4
    assert len(numbers(tmp_path)) <= 2
    parties.close()
    one.close()


def test_a_ledger_that_is_being_written_counts(tmp_path: Path) -> None:
    one = keeper(tmp_path)
    one.add()
    with open(part(tmp_path, 1, 1) / folder.LEDGER, "ab") as ledger:
        ledger.write(json.dumps({"used": 0}).encode() + b"\n" + b'{"us')
        ledger.flush()
        assert one.unused() == SLOTS - 2
    one.close()
