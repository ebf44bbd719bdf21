"""Parties of an object store: each slot of each set is used once, by both or by neither, and costs what is written."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hummingbird.channel import meter
from hummingbird.errors import AgreementError, DealerError, InputError
from hummingbird.mpc.dealer import bucket_store
from hummingbird.mpc.dealer.bucket import PART, Bucket
from hummingbird.mpc.dealer.sealing import new_key
from hummingbird.mpc.dealer.store import StoreDealer
from tests.support.bucketing import BucketParties, Keys
from tests.support.keeping import FACTS, REQUEST, SHAPE, SLOTS
from tests.support.object_server import ObjectServer, served
from tests.support.parties import together
from tests.support.patience import until

URL = "s3://place-{rank}/nets/squares"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ObjectServer]:
    with served() as server:
        yield server


@pytest.fixture
def server(shared_server: ObjectServer) -> Iterator[ObjectServer]:
    shared_server.begin("place-0", "place-1")
    yield shared_server


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return Keys(tmp_path)


def left(rank: int) -> set[str]:
    """The ids of the sets in a party's bucket."""
    return {name for page in Bucket(URL, rank).names() for name in page}


def files(keys: Keys) -> list[str]:
    """The names of files in the folder for temporary files."""
    return [path.name for path in (keys.folder / "temporary").rglob("*") if path.is_file()]


def test_one_set_after_the_other(server: ObjectServer, keys: Keys) -> None:
    """Whatever number of slices is asked for at a time; what is there is told; and nothing is left on the disk."""
    keys.deal(URL, 5)
    assert len(left(0)) == 5 and left(0) == left(1) and files(keys) == []
    parties = BucketParties(URL, keys)
    used: list[tuple[str, int]] = []
    for slices in (1, 2, 1, 5, 2):
        assert [store.slots_left for store in parties.stores] == [5 * SLOTS - len(used)] * 2
        used += parties.use(slices)
    assert len(set(used)) == len(used) == 11
    assert [slot for _, slot in used] == [*range(3), *range(3), *range(3), 0, 1]
    assert len({name for name, _ in used}) == 4 and not {name for name, _ in used} & left(0)
    parties.close()
    assert files(keys) == []
    again = BucketParties(URL, keys)  # what the first run had claimed is gone
    assert [store.slots_left for store in again.stores] in ([0, 0], [SLOTS] * 2)
    again.close()


def test_requests_and_bytes(server: ObjectServer, keys: Keys) -> None:
    """A run of one batch: at each party 4 requests for the check, 2 for what is dealt, and 3 a set, 1 list a party."""
    keys.deal(URL, 3)
    assert server.counts["PUT sets"] == 6 and server.counts["PUT nets"] == 2 and server.counts["LIST nets"] == 4
    sizes = [_sizes(rank) for rank in range(2)]
    assert max(max(each.values()) for each in sizes) < PART
    server.counts.clear()
    parties = BucketParties(URL, keys)
    names = {name for name, _ in parties.use(2 * SLOTS)}
    parties.close()
    assert server.counts["LIST sets"] in (2, 3, 4)  # and one for each second in which no set was known
    del server.counts["LIST sets"]
    sets = 2
    check = Counter({"PUT claims": 2, "GET claims": 1, "DELETE": 1})
    each = Counter({"LIST nets": 1, "GET nets": 1}) + check
    expected = Counter({"PUT claims": 2 * sets, "GET sets": 2 * sets, "DELETE": 2 * sets}) + each + each
    assert server.counts == expected
    assert len(names) == sets and server.sent == sum(each[name] for each in sizes for name in names)


def _sizes(rank: int) -> dict[str, int]:
    """Bytes of each set in a party's bucket."""
    import obstore

    pages = obstore.list(Bucket(URL, rank)._store, "sets")
    return {each["path"].rpartition("/")[2]: each["size"] for page in pages for each in page}


def test_sets_of_several_dealers(server: ObjectServer, keys: Keys) -> None:
    """They deal at the same time, each with a key of its own, and the parties accept both."""
    other = new_key(keys.folder / "second.key")
    accepted = [keys.dealer.public, other.public]
    keys.parties = [new_key(keys.folder / f"{rank}.key", accepted) for rank in range(2)]
    together([lambda: keys.deal(URL, 3), lambda: keys.deal(URL, 3, other)])
    parties = BucketParties(URL, keys)
    assert len(set(parties.use(6 * SLOTS))) == 6 * SLOTS and left(0) == left(1) == set()
    parties.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_set_that_one_party_does_not_get_is_burned(server: ObjectServer, keys: Keys, rank: int) -> None:
    """It is gone in one bucket, or claimed there by somebody else; the parties use the others."""
    keys.deal(URL, 4)
    gone, claimed, *good = sorted(left(0))
    Bucket(URL, rank).delete(gone)
    assert Bucket(URL, rank).claim(claimed)
    parties = BucketParties(URL, keys)
    used = parties.use(2 * SLOTS)
    assert {name for name, _ in used} == set(good)
    with pytest.raises(DealerError, match="0 more slices"):
        for store in parties.stores:
            store._timeout = 0.5
        parties.admit()
    assert [store.burned for store in parties.stores] == [2 if rank else 0] * 2
    parties.close()


def test_groups_take_different_sets(server: ObjectServer, keys: Keys) -> None:
    keys.deal(URL, 8)
    groups = [BucketParties(URL, keys) for _ in range(3)]
    used = [slot for _ in range(2) for group in groups for slot in group.use(SLOTS)]
    assert len(set(used)) == len(used) == 6 * SLOTS
    for group in groups:
        group.close()


def test_a_set_is_read_ahead_within_a_bound(server: ObjectServer, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """None in a run of one batch; from the second batch on one set, unless it is too large."""
    keys.deal(URL, 6)
    parties = BucketParties(URL, keys)
    parties.use()
    assert [len(left(rank)) for rank in range(2)] == [5, 5]
    parties.use()
    until(lambda: [len(left(rank)) for rank in range(2)] == [4, 5], "party 0 to read a set ahead")
    parties.use()
    until(lambda: [len(left(rank)) for rank in range(2)] == [4, 4], "party 1 to read it too")
    parties.close()
    monkeypatch.setattr(bucket_store, "AHEAD_BYTES", 1)
    parties = BucketParties(URL, keys)
    for _ in range(SLOTS):
        parties.use()
    assert [len(left(rank)) for rank in range(2)] == [3, 3]
    parties.close()


def test_each_set_takes_a_few_rounds(server: ObjectServer, keys: Keys) -> None:
    """The messages are counted, as predicted; a batch from a set that all have takes none."""
    keys.deal(URL, 2)
    parties = BucketParties(URL, keys)
    with meter.meter() as counted:
        parties.admit()
    (row,) = counted.rows.values() if isinstance(counted.rows, dict) else counted.rows
    assert row.bits_sent == row.bits_predicted and row.rounds == row.rounds_predicted > 0
    with meter.meter() as counted:
        parties.admit()
    assert not counted.rows
    parties.close()


def test_parties_wait_for_a_set(server: ObjectServer, keys: Keys) -> None:
    keys.deal(URL, 1)
    parties = BucketParties(URL, keys)
    parties.use(SLOTS)
    assert [store.slots_left for store in parties.stores] == [0, 0]
    later = threading.Timer(0.5, keys.deal, [URL])
    later.start()
    assert [slot for _, slot in parties.use()] == [0]
    later.join()
    for _ in range(2):
        keys.deal(URL)
    parties.use(SLOTS - 1)

    def seen() -> bool:
        together([store.stay for store in parties.stores])  # as a service that has nothing to do
        return [store.slots_left for store in parties.stores] == [2 * SLOTS] * 2

    until(seen, "the parties to see the sets")
    parties.close()


def test_lanes_have_sets_of_their_own(server: ObjectServer, keys: Keys) -> None:
    keys.deal(URL, 2, lanes=2)
    lanes = [BucketParties(URL, keys, lane=lane, lanes=2) for lane in range(2)]
    used = [slot for lane in lanes for slot in lane.use(2 * SLOTS)]
    assert len(set(used)) == 4 * SLOTS
    for lane in lanes:
        lane.close()
    with pytest.raises(DealerError, match="2 parties of 2 lanes, this run has 2 of 1"):
        BucketParties(URL, keys)


def test_what_does_not_fit_is_refused(server: ObjectServer, keys: Keys) -> None:
    with pytest.raises(DealerError, match=r"(?s)nothing is dealt here.*python -m hummingbird deal"):
        BucketParties(URL, keys)
    keys.deal(URL, 1)
    for changed in ({"slots": 5}, {"facts": FACTS | {"bits": "c"}}, {"steps": [[REQUEST] * 3]}, {"lanes": 2}):
        with pytest.raises(InputError, match="sets for another net, or of another size, are dealt here"):
            keys.deal("s3://place-{rank}/nets/squares", 1, **changed)
    assert len(left(0)) == len(left(1)) == 1
    BucketParties(URL, keys).close()
    Bucket(URL, 0).add_net("0" * 32, b"by another dealer, at the same moment")
    with pytest.raises(DealerError, match="sets for 2 nets are dealt here"):
        BucketParties(URL, keys)
    with pytest.raises(InputError, match="sets for another net"):
        keys.deal(URL, 1)
    other = Keys(_folder(keys, "other"))
    server.add("place-0", "place-1")
    keys.deal(URL, 1)
    with pytest.raises(DealerError, match="is sealed to the key"):
        BucketParties(URL, other)
    keys.parties.reverse()
    with pytest.raises(DealerError, match="is sealed to the key"):
        BucketParties(URL, keys)
    keys.parties.reverse()
    parties = BucketParties(URL, keys)
    with pytest.raises(DealerError, match="dealt for bits b, this net has c"):
        together([lambda store=store: store.admit(FACTS | {"bits": "c"}, [SHAPE]) for store in parties.stores])
    parties.close()
    server.ignores = True
    with pytest.raises(DealerError, match="would let two processes use one set"):
        BucketParties(URL, keys)


def _folder(keys: Keys, name: str) -> Path:
    (keys.folder / name).mkdir()
    return keys.folder / name


def test_parties_of_different_stores(server: ObjectServer, keys: Keys) -> None:
    """Each party's bucket is right in itself."""
    keys.deal("s3://place-0/a-{rank}", 1)
    keys.deal("s3://place-0/b-{rank}", 1, slots=4)

    class Mixed(str):
        def replace(self, old: str, new: str, count: int = -1) -> str:  # type: ignore[override]
            return f"s3://place-0/{'ab'[int(new)]}-{new}"

    with pytest.raises(AgreementError, match="kept store"):
        BucketParties(Mixed("s3://place-0/{rank}"), keys)


@pytest.mark.parametrize("how", ["cut", "changed", "renamed"])
def test_a_damaged_set_ends_the_run_and_the_next_one_goes_on(server: ObjectServer, keys: Keys, how: str) -> None:
    import obstore

    keys.deal(URL, 1)
    (name,) = left(1)
    store: Any = Bucket(URL, 1)._store
    path = f"sets/lane-0/{name}"
    data = bytes(obstore.get(store, path).bytes())
    if how == "renamed":
        keys.deal(URL, 1)
        (other,) = left(1) - {name}
        data = bytes(obstore.get(store, f"sets/lane-0/{other}").bytes())
        Bucket(URL, 0).delete(other)
    obstore.put(store, path, data[:-9] if how == "cut" else data[:-9] + bytes(9) if how == "changed" else data)
    parties = BucketParties(URL, keys, timeout=5.0)
    with pytest.raises(DealerError, match="this object is (damaged|named)"):
        parties.admit()
    parties.close()
    assert files(keys) == []
    keys.deal(URL, 1)
    parties = BucketParties(URL, keys)
    assert name not in {used for used, _ in parties.use(SLOTS)}
    parties.close()


def test_a_lost_answer_costs_no_slot(server: ObjectServer, keys: Keys) -> None:
    """Every second request is carried out and answered with an error; the clients repeat it."""
    keys.deal(URL, 2)
    server.loses = lambda kind, number: number % 2 == 1
    parties = BucketParties(URL, keys)
    assert len(set(parties.use(2 * SLOTS))) == 2 * SLOTS and [store.burned for store in parties.stores] == [0, 0]
    parties.close()


def test_a_server_that_is_away_for_a_while_is_waited_for(server: ObjectServer, keys: Keys) -> None:
    """Every request fails for two seconds, and nothing is carried out."""
    keys.deal(URL, 2)
    parties = BucketParties(URL, keys)
    server.away = True
    threading.Timer(2.0, lambda: setattr(server, "away", False)).start()
    assert len(set(parties.use(2 * SLOTS))) == 2 * SLOTS
    parties.close()


def test_a_set_that_is_open_has_no_files(server: ObjectServer, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first slot is marked as used."""
    mark, seen = StoreDealer.mark, []

    def watched(self: StoreDealer, slot: int) -> None:
        seen.append(files(keys))
        mark(self, slot)

    monkeypatch.setattr(StoreDealer, "mark", watched)
    keys.deal(URL, 2)
    parties = BucketParties(URL, keys)
    parties.use(2 * SLOTS)
    parties.close()
    assert len(seen) == 4 * SLOTS and not any(seen)
