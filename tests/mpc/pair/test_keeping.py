"""Stores that two parties make together: their material, what they agree on, and what ends before its time."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from hummingbird.errors import DealerError, DiskError, HummingbirdError, InputError, PeerError
from hummingbird.mpc.correlations.request import Material
from hummingbird.mpc.dealer.deal import SetWriter
from hummingbird.mpc.dealer.folder import CORRECTIONS, Header, read_header
from hummingbird.mpc.dealer.kept import DEALING, DESCRIPTION, numbers, set_folder
from hummingbird.mpc.dealer.kept_store import KeptStore
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.mpc.pair import keeping
from hummingbird.mpc.pair.dealer import PairDealer
from hummingbird.mpc.pair.keeping import PairKeeper, slot_bytes, slots_of_a_set
from hummingbird.mpc.pair.material import RECIPES, offline_bits
from hummingbird.mpc.protocols.weight_mask import weights_digest
from hummingbird.mpc.session.rendezvous import open_store
from tests.mpc.pair.test_material import REQUESTS as EVERY
from tests.mpc.pair.test_owned import requests as owned
from tests.mpc.pair.test_owned import weights_of, wrong
from tests.support import keeping as dealers
from tests.support.covering import every
from tests.support.pair_keeping import FACTS, PLACES, REQUESTS, SHAPE, made, make, parts, use
from tests.support.parties import channels, together
from tests.support.patience import HANG


def ids(roots: list[Path]) -> list[set[str]]:
    """The ids of each party's sets."""
    return [{read_header(set_folder(root, number))[0].set_id for number in numbers(root)} for root in roots]


def errors(found: list[Any]) -> list[str]:
    """The texts of both parties' errors."""
    assert all(isinstance(each, HummingbirdError) for each in found), found
    return [str(each) for each in found]


# What is made ---------------------------------------------------------------------------------------------------------


def test_sets_of_both_parties_fit_together_and_are_used_once(tmp_path: Path) -> None:
    roots = made(tmp_path, 3)
    assert numbers(roots[0]) == numbers(roots[1]) == [1, 2, 3]
    first, second = ids(roots)
    assert first == second and len(first) == 3
    size = (set_folder(roots[0], 1) / CORRECTIONS).stat().st_size
    assert size == (set_folder(roots[1], 1) / CORRECTIONS).stat().st_size == 2 * slot_bytes(REQUESTS)
    assert not [root for root in roots if (root / DEALING).exists()]
    used = use(roots, 3)
    assert numbers(roots[0]) == numbers(roots[1]) == [2, 3]  # the first set is used up, and erased
    used += use(roots, 3)
    assert len(set(used)) == 6 and {name for name, _ in used} == first
    assert numbers(roots[0]) == []


@pytest.mark.slow
def test_material_of_every_kind_is_kept(tmp_path: Path) -> None:
    """One request of each kind; the shares have the form in which two parties make them, and so do their counts."""
    kinds = [kind for kind in RECIPES if kind != "owned"]  # which holds for the weights of a session alone
    chosen = [next(each for each in EVERY if each.kind == kind and each.share_bytes) for kind in kinds]
    matrices = [each for each in EVERY if each.kind == "additive" and each.params["op"] != "mul"]
    requests = [*chosen, matrices[0], matrices[2]]
    roots = made(tmp_path, 1, requests=requests, slots=1)
    use(roots, 1, requests)
    roots = made(tmp_path, 1, requests=requests, slots=1)
    stores = [StoreDealer(set_folder(root, 1), rank=rank, parties=2) for rank, root in enumerate(roots)]
    slot = stores[1].reserve(requests)
    for request in requests:
        material = slot.correlation(request)
        assert material.offline_bits == offline_bits([request]) == 2 * material.received_bits
    assert stores[0].aim == "pair"
    for store in stores:
        store.close()


def test_material_for_private_weights_serves_no_others(tmp_path: Path) -> None:
    """Its owner notices it, in whatever order: when the sets are open already, and for sets that come later."""
    wanted = owned(owner=1, bits=28, weight=8)[:2]
    weights, facts = [weights_of(request) for request in wanted], {**FACTS, "weights": "private"}

    def prepare(rank: int, dealer: PairDealer) -> None:
        dealer.admit({**FACTS, "aim": dealer.aim, "weights": "private to party 1"}, [])
        if rank == 1:
            for request, weight in zip(wanted, weights, strict=True):
                dealer.own(request.key, weight)
            dealer.bind("weights 0", weights_digest(weights))

    roots = made(tmp_path, 2, prepare=prepare, requests=wanted, slots=1, facts=facts)

    def run(rank: int, codes: list[Tensor], owner: int) -> list[Material] | str:
        store = KeptStore(ends[rank], roots[rank], PLACES[rank], timeout=1.0)
        try:
            store.admit({**facts, "weights": f"private to party {owner}"}, [])
            if rank == owner:
                store.bind("weights 0", weights_digest(codes))
            store.admit({**facts, "weights": f"private to party {owner}"}, [SHAPE])
            slot = store.reserve(wanted)
            return [slot.correlation(request) for request in wanted]
        except DealerError as error:
            ends[rank].abort(str(error))
            return str(error)
        except PeerError as error:
            return str(error)
        finally:
            store.close()
            ends[rank].close()

    def refused(codes: list[Tensor], owner: int) -> list[str]:
        return [str(each) for each in together([partial(run, rank, codes, owner) for rank in range(2)])]

    ends = channels(2, HANG)
    assert all("the store was used with another owner of the weights" in text for text in refused(weights, 0))
    assert numbers(roots[0]) == numbers(roots[1]) == [1, 2]  # nothing was used
    ends = channels(2, HANG)
    assert (
        "the store was used with other private weights (weight 0, counted from 0)"
        in refused([weights[0], weights[1] + 1], 1)[1]
    )
    assert numbers(roots[1]) == [1, 2]  # the other party may have used its slot of the first set: then nobody else does
    ends = channels(2, HANG)
    mine, theirs = together([partial(run, rank, weights, 1) for rank in range(2)])
    assert isinstance(mine, list) and isinstance(theirs, list), (mine, theirs)
    for request, weight, *both in zip(wanted, weights, mine, theirs, strict=True):
        assert not wrong(request, both, weight), request
    changed = weights[0].clone()
    changed.view(-1)[0] += 1
    assert wrong(wanted[0], [mine[0], theirs[0]], changed), "the check can fail"


def test_no_two_runs_have_an_id_in_common(tmp_path: Path) -> None:
    roots = [made(tmp_path / name, 2) for name in ("one", "other")]
    found = [each for two in roots for each in ids(two)]
    assert found[0] == found[1] and found[2] == found[3] and not found[0] & found[2]
    kept = [json.loads((root / DESCRIPTION).read_text())["id"] for two in roots for root in two]
    assert kept[0] == kept[1] != kept[2] == kept[3]


def test_a_folder_is_continued(tmp_path: Path) -> None:
    """Behind the highest number of either party; by the same arguments only, and slots stay those of the first run."""
    roots = made(tmp_path, 2)
    use(roots, 1)
    assert numbers(made(tmp_path, 1, slots=7)[0]) == [1, 2, 3]
    assert len(set(use(roots, 5))) == 5
    found = make(roots, 1, facts={**FACTS, "plan": "another"})
    assert all("kept for other facts" in text and "another" in text for text in errors(found))
    found = make(roots, 1, requests=REQUESTS[:1])
    assert all("kept for other requests" in text for text in errors(found))


def test_sets_are_made_while_others_are_used(tmp_path: Path) -> None:
    """Parties that need more than there is wait for it."""
    roots = made(tmp_path, 1)
    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use, roots, 6, timeout=HANG)
        made(tmp_path, 2)
        assert len(set(using.result())) == 6
    assert numbers(roots[0]) == numbers(roots[1]) == []


def test_the_size_of_sets() -> None:
    assert slots_of_a_set(1000, 1 << 16) == 500 and slots_of_a_set(7, 1 << 40) == 1 and slots_of_a_set(7, 0) == 7
    assert [slots_of_a_set(n, 8 << 20) for n in (1, 4, 5, 9)] == [1, 4, 3, 3]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"requests": REQUESTS[1:]}, {"facts": {**FACTS, "plan": "q"}}, {"slots": 3}])
def test_parties_that_make_other_things(tmp_path: Path, changed: dict[str, Any]) -> None:
    name = {"facts": "plan"}.get(*changed, *changed)
    for text in errors(make(parts(tmp_path), 1, {}, changed)):
        assert f"the parties disagree on {name}" in text


def test_parties_that_want_another_number_of_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sets = PairKeeper.make
    monkeypatch.setattr(PairKeeper, "make", lambda self, sets, **how: make_sets(self, sets + self._place.party, **how))
    for text in errors(make(parts(tmp_path), 1)):
        assert "party 0 makes 1 more sets, party 1 makes 2" in text
    assert not numbers(parts(tmp_path)[0])


def opened(*roots: Path, timeout: float = 1.0) -> list[str]:
    """Errors of two parties that open these stores."""
    ends = channels(2, HANG)

    def run(rank: int) -> str:
        with pytest.raises(HummingbirdError) as raised:
            open_store(ends[rank], roots[rank], PLACES[rank], timeout)
        ends[rank].abort(str(raised.value))
        return str(raised.value)

    return together([lambda rank=rank: run(rank) for rank in range(2)])


def test_the_store_of_another_pair_is_refused(tmp_path: Path) -> None:
    """To use it, and to add sets to it: both errors name both stores."""
    one, other = made(tmp_path / "one", 1), made(tmp_path / "other", 1)
    names = [json.loads((root / DESCRIPTION).read_text())["id"] for root in (one[0], other[1])]
    for texts in (opened(one[0], other[1]), errors(make([one[0], other[1]], 1))):
        for text in texts:
            assert "the parties disagree on" in text and all(name in text for name in names), text
    for text in errors(make([one[0], tmp_path / "new"], 1)):
        assert f"party 0 has the store {names[0]}, party 1 has no store" in text
    assert len(use(one, 2)) == 2  # they are as they were


def test_a_store_of_a_dealer_and_one_of_a_pair_do_not_mix(tmp_path: Path) -> None:
    roots = made(tmp_path / "pair", 1)
    kept = dealers.dealt(tmp_path / "kept", 1, facts=FACTS, steps=[REQUESTS], slots=2)
    once = set_folder(kept, 1) / "party-1" / "lane-0"
    for dealt in (kept, once, set_folder(kept, 1)):
        for text in opened(roots[0], dealt):
            assert "store's maker: party 0 has pair, party 1 has dealer" in text or (
                "store's maker: party 1 has dealer, party 0 has pair" in text
            )


def test_another_party_s_folder_is_refused(tmp_path: Path) -> None:
    roots = made(tmp_path, 1)
    assert "this store is for party 0, this process is for party 1" in opened(roots[0], roots[0])[1]
    shutil.copytree(roots[0], tmp_path / "copy")
    assert "this store is for party 0, this process is for party 1" in opened(roots[0], tmp_path / "copy")[1]


def test_a_folder_with_other_files_and_a_second_process(tmp_path: Path) -> None:
    roots = parts(tmp_path)
    roots[1].mkdir(parents=True)
    (roots[1] / "a").touch()
    found = make(roots, 1, timeout=5.0)
    assert isinstance(found[1], InputError) and "the folder is not empty" in str(found[1])
    assert isinstance(found[0], PeerError) and "the folder is not empty" in str(found[0])
    (roots[1] / "a").unlink()

    def again(rank: int, number: int, ended: threading.Event) -> None:
        if rank == 1:
            with pytest.raises(DealerError, match="another keeper is at work here"):
                PairKeeper(
                    channels(2)[1], None, roots[1], PLACES[1], requests=REQUESTS, shape=SHAPE, slots=2, facts=FACTS
                )  # type: ignore[arg-type]

    assert not [each for each in make(roots, 1, at=again) if isinstance(each, BaseException)]


def test_a_damaged_set_is_noticed(tmp_path: Path) -> None:
    roots = made(tmp_path, 1)
    path = set_folder(roots[1], 1) / CORRECTIONS
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DealerError, match=r"damaged \(wrong checksum\)"):
        use(roots, 1)


# What ends before its time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_set_that_one_party_has_alone_is_burned(tmp_path: Path, lacks: int) -> None:
    """As after a kill between the two names; the sets before and after it serve."""
    roots = made(tmp_path, 2)
    whole = ids(roots)[0]
    shutil.rmtree(set_folder(roots[lacks], 2))
    made(tmp_path, 1)
    assert [numbers(root) for root in roots] == [[1, 2, 3], [1, 3]][:: 1 if lacks else -1]
    used = use(roots, 4)
    assert len(set(used)) == 4 and len(whole & {name for name, _ in used}) == 1
    assert not numbers(roots[1 - lacks])


def test_an_unfinished_set_is_deleted(tmp_path: Path) -> None:
    roots = made(tmp_path, 1)
    shutil.copytree(set_folder(roots[0], 1), roots[0] / DEALING)
    made(tmp_path, 1)
    assert not (roots[0] / DEALING).exists() and len(set(use(roots, 4))) == 4


@pytest.mark.parametrize("full", every(2, [0, 1]))
def test_a_full_disk_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    """Before a set, when there is no room; and in the middle of it, when the disk refuses. Whole sets stay."""
    roots = made(tmp_path, 1)
    before = ids(roots)
    usage = shutil.disk_usage
    room = lambda path: usage(path)._replace(free=1000) if path == roots[full] else usage(path)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(keeping.shutil, "disk_usage", room)
        texts = errors(found := make(roots, 1))
    assert all(isinstance(each, DiskError) for each in found)
    assert "the disk is full" in texts[full] and f"the disk of party {full} is full" in texts[1 - full]
    add, calls = SetWriter.add, []

    def refuses(self: SetWriter, tensors: list[Tensor]) -> None:
        calls.append(self)
        header: Header = self._header
        if header.rank == full and len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, tensors)

    with monkeypatch.context() as patched:
        patched.setattr(SetWriter, "add", refuses)
        texts = errors(found := make(roots, 1))
    assert isinstance(found[full], DiskError) and "cannot be written: No space left on device" in texts[full]
    assert f"party {full}" in texts[1 - full] and ("No space" in texts[1 - full] or "closed" in texts[1 - full])
    assert ids(roots) == before and not [root for root in roots if (root / DEALING).exists()]
    made(tmp_path, 1)
    assert len(set(use(roots, 4))) == 4


@pytest.mark.parametrize("silent", every(2, [0, 1]))
def test_a_party_that_says_nothing(tmp_path: Path, silent: int) -> None:
    """It stops for longer than the other one's timeout, after a set: the other one says so, and keeps the set."""

    def stops(rank: int, number: int, ended: threading.Event) -> None:
        if rank == silent:
            assert ended.wait(HANG)

    roots = parts(tmp_path)
    text = errors(make(roots, 2, timeout=2.0, at=stops))[1 - silent]
    assert f"party {silent} sent or took nothing for 2 s" in text and "hint: " in text
    assert numbers(roots[0]) == numbers(roots[1]) == [1]
    assert len(use(roots, 2)) == 2
