"""Stores: what is dealt is what is taken, once; and every wrong, damaged, foreign or empty one is refused in words."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird import slots
from hummingbird.__main__ import main
from hummingbird.bits import BitWindow
from hummingbird.errors import ConfigError, DealerError, InputError
from hummingbird.mpc.correlations.request import received_by
from hummingbird.mpc.dealer import folder
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.store import StoreDealer, material_facts
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.protocols.truncation import Truncation
from hummingbird.prg import CIPHERS
from tests.jobs.stores import SLICE, net, rows, write_store
from tests.support.correlation_checks import CASES, columns
from tests.support.covering import covering, every
from tests.support.nursery import Nursery, all_fail

SLOTS = 3
KINDS = [case for case in CASES if case[0].kind not in ("fixed", "linear")]
BATCH = [request for request, _ in KINDS]
FACTS = {"architecture": "a", "bits": "b", "plan": "p", "aim": "latency", "protocol": "gmw", "weights": "public"}


def dealt(out: Path, parties: int = 2, slots: int = SLOTS, **options: Any) -> Path:
    given = {"setup": [], "steps": [BATCH], "shape": (4, 6), "facts": FACTS, **options}
    deal(out, slots=slots, parties=parties, **given)
    return out


def opened(out: Path, parties: int = 2) -> list[StoreDealer]:
    return [StoreDealer(out, rank=rank, parties=parties) for rank in range(parties)]


def closing(stores: list[StoreDealer]) -> None:
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("parties", "cipher"), every(2, [(3, "aes-128-ctr"), (1, "aes-128-ctr"), (2, "chacha20"), (2, "aes-128-ctr")])
)
def test_a_store_holds_every_correlation(tmp_path: Path, parties: int, cipher: str) -> None:
    stores = opened(dealt(tmp_path, parties, cipher=cipher), parties)
    assert (stores[0].folder / folder.SEED).stat().st_size == CIPHERS[cipher]
    seen, taken = [], []
    for _ in range(SLOTS):
        slots = [store.reserve(None) for store in stores]
        for request, verify in KINDS:
            materials = [slot.correlation(request) for slot in slots]
            parts = columns(request, materials)
            verify(parts, **request.params)
            taken.append(materials)
            seen.append([share.tolist() for column in parts for share in column])
    assert len({str(part) for part in seen}) == len(seen)  # nothing twice
    bits = [request.correction_bits for request in BATCH] * SLOTS
    for rank, materials in enumerate(zip(*taken, strict=True)):
        assert [material.offline_bits for material in materials] == bits
        received = sum(request.correction_bits for request in received_by(rank, parties, BATCH))
        assert sum(material.received_bits for material in materials) == SLOTS * received
        assert all(material.waiting_seconds > 0 and material.expanding_seconds > 0 for material in materials)
        # A slot's first piece tells of the dealer's work on all of it.
        told = [material.dealer_seconds for material in materials]
        assert sum(told) == pytest.approx(stores[0].header.seconds) and sum(second > 0 for second in told) == SLOTS
    with pytest.raises(DealerError, match="all 3 slots of the store are used"):
        stores[0].reserve(None)
    closing(stores)


def test_two_slices_in_turns(tmp_path: Path) -> None:
    stores = opened(dealt(tmp_path))
    pairs = [[store.reserve(BATCH), store.reserve(BATCH)] for store in stores]
    for request, verify in KINDS:
        for number in (1, 0):
            verify(columns(request, [pair[number].correlation(request) for pair in pairs]), **request.params)
    assert [entry["used"] for entry in ledger_of(tmp_path)[1:]] == [1, 0]  # both, in the order of their first takes
    for slot in (0, 1):
        with pytest.raises(DealerError, match=f"slot {slot} has been handed out already"):
            stores[0].mark(slot)
    closing(stores)


def test_setup_is_the_same_in_every_run_and_nobody_writes_into_it(tmp_path: Path) -> None:
    setup = [SquarePair((5,)), Truncation(4, shift=3)]
    dealt(tmp_path, setup=setup)
    taken = []
    for _ in range(2):
        stores = opened(tmp_path)
        for _ in range(2):
            squares, _ = [[store.correlation(request).shares for store in stores] for request in setup]
            r, squared = (sum(shares[name] for shares in squares) for name in ("r", "square"))
            assert torch.equal(squared, r * r)
            taken.append(r)
            squares[0]["square"].zero_()
        with pytest.raises(DealerError, match="nothing for square .*9.* outside of a net's slices, at this place"):
            stores[0].correlation(SquarePair((9,)))
        closing(stores)
    assert all(torch.equal(r, taken[0]) for r in taken)


def test_the_folders_are_for_their_user_alone_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the mask, and with no moment at which a seed can be read: nothing is made private afterwards."""
    for function in ("chmod", "fchmod"):
        monkeypatch.delattr(os, function)
    before = os.umask(0)
    try:
        dealt(tmp_path / "store")
    finally:
        os.umask(before)
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_the_folders_hold(tmp_path: Path) -> None:
    out = dealt(tmp_path / "new" / "store")
    names = ["checksums", "corrections", "header.json", "ledger", "seed"]
    for rank in range(2):
        assert sorted(path.name for path in (out / f"party-{rank}" / "lane-0").iterdir()) == names
    for path in out.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    seeds = [(out / f"party-{rank}" / "lane-0" / "seed").read_bytes() for rank in range(2)]
    assert seeds[0] != seeds[1] and all(len(seed) == 16 for seed in seeds)
    assert not any(seed in path.read_bytes() for seed in seeds for path in out.glob("*/*/*") if path.name != "seed")
    parts = [received_by(rank, 2, BATCH) for rank in range(2)]
    for rank, part in enumerate(parts):
        _, size = folder.places(part)
        assert (out / f"party-{rank}" / "lane-0" / "corrections").stat().st_size == SLOTS * size
    bits = [sum(request.correction_bits for request in part) for part in parts]
    assert abs(bits[0] - bits[1]) <= max(request.correction_bits for request in BATCH)
    with pytest.raises(InputError, match="the folder is not empty"):
        dealt(out)


def test_chunks_of_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of many chunks, whose ends do not meet those of tensors."""
    monkeypatch.setattr(folder, "CHUNK", 3000)
    monkeypatch.setattr(folder, "_PIECE", 700)
    monkeypatch.setattr("hummingbird.mpc.dealer.deal.CHUNK", 3000)
    stores = opened(dealt(tmp_path))
    slots = [store.reserve(None) for store in stores]
    for request, verify in KINDS:
        verify(columns(request, [slot.correlation(request) for slot in slots]), **request.params)
    closing(stores)


# Single use ----------------------------------------------------------------------------------------------------------


def ledger_of(out: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"party-{rank}" / "lane-0" / "ledger").read_text().splitlines()]


def test_a_slot_is_marked_at_its_first_take_and_not_before(tmp_path: Path) -> None:
    dealt(tmp_path)
    (first, _) = stores = opened(tmp_path)
    slot = first.reserve(None)
    assert ledger_of(tmp_path)[1:] == []
    slot.correlation(BATCH[0])
    slot.correlation(BATCH[1])
    assert ledger_of(tmp_path)[1:] == [{"used": 0}]
    closing(stores)
    again = StoreDealer(tmp_path, rank=0, parties=2)
    assert (again.next_slot, again.slots_left) == (1, 2)
    again.skip_to(0)  # another party has used less: what this one has used stays used
    assert (again.next_slot, again.slots_left) == (1, 2)
    again.skip_to(2)
    again.reserve(None).correlation(BATCH[0])
    again.close()
    assert StoreDealer(tmp_path, rank=0, parties=2).slots_left == 0


@pytest.mark.parametrize("rest", ['{"us', "\0\0\0", '{"used": 1}'])
def test_a_mark_that_a_crash_has_cut_off_counts(tmp_path: Path, rest: str) -> None:
    path = dealt(tmp_path) / "party-0" / "lane-0" / "ledger"
    path.write_text(path.read_text() + '{"used": 0}\n' + rest)
    for _ in range(2):
        store = StoreDealer(tmp_path, rank=0, parties=2)
        assert store.next_slot == 2
        store.close()
    store = StoreDealer(tmp_path, rank=0, parties=2)
    store.reserve(None).correlation(BATCH[0])
    store.close()
    assert StoreDealer(tmp_path, rank=0, parties=2).next_slot == 3


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    stores = opened(dealt(tmp_path))
    with pytest.raises(DealerError, match="another process is using this store") as caught:
        StoreDealer(tmp_path, rank=1, parties=2)
    assert "party-1" in str(caught.value) and caught.value.hint
    closing(stores)
    closing(opened(tmp_path))


def test_what_the_weights_are_is_told_to_nobody(tmp_path: Path) -> None:
    """A digest without a key would let the other parties, who read this error, test guesses of the weights."""
    dealt(tmp_path / "a", facts={**FACTS, "weights": "private"})
    dealt(tmp_path / "b", facts={**FACTS, "weights": "private"})
    digests = b"w" * 32, b"x" * 32
    kept = []
    for name in ("a", "b"):
        store = StoreDealer(tmp_path / name, rank=0, parties=2)
        store.bind("weights", digests[0])
        with pytest.raises(DealerError, match="used with other private weights") as caught:
            store.bind("weights", digests[1])
        kept.append((tmp_path / name / "party-0" / "lane-0" / "ledger").read_text())
        bound = next(entry["digest"] for entry in ledger_of(tmp_path / name) if "bound" in entry)
        for text in (str(caught.value), kept[-1]):
            assert not any(digest.hex()[:8] in text for digest in digests)
        assert bound[:8] not in str(caught.value) and bound[-8:] not in str(caught.value)
        store.close()
    assert kept[0].splitlines()[1] != kept[1].splitlines()[1]  # one key a store


def test_masks_of_weights_meet_one_secret_only(tmp_path: Path) -> None:
    dealt(tmp_path, facts={**FACTS, "weights": "private"})
    for _ in range(2):
        store = StoreDealer(tmp_path, rank=0, parties=2)
        store.bind("weights", b"w" * 16)
        store.admit({**FACTS, "weights": "private to party 1"}, [])
        with pytest.raises(DealerError, match="used with other private weights") as caught:
            store.bind("weights", b"x" * 16)
        assert "reveal" in caught.value.hint
        with pytest.raises(DealerError, match="another owner of the weights"):
            store.admit({**FACTS, "weights": "private to party 0"}, [])
        store.close()
    assert sum("bound" in entry for entry in ledger_of(tmp_path)) == 2


# Wrong stores --------------------------------------------------------------------------------------------------------


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(16))


BAD = {
    "no folder": (lambda p: shutil.rmtree(p), "there is no store here"),
    "not dealt to its end": (lambda p: (p / "header.json").unlink(), "this store was not dealt to its end"),
    "no JSON": (lambda p: cut(p / "header.json", 100), "malformed header: it is no JSON"),
    "another format": (lambda p: edit(p / "header.json", format="zip"), "this is 'zip', format 7; this release reads"),
    "another format version": (lambda p: edit(p / "header.json", format_version=8), "format 8; this release reads"),
    "an older format": (
        lambda p: edit(p / "header.json", format_version=4),
        "format 4; this release reads 'hummingbird store', format 7",
    ),
    "header changed": (lambda p: edit(p / "header.json", slots=99), "header and seed do not fit each other"),
    "seed changed": (lambda p: flip(p / "seed", 3), "header and seed do not fit each other"),
    "seed cut off": (lambda p: cut(p / "seed", 9), "header and seed do not fit each other"),
    "no seed": (lambda p: (p / "seed").unlink(), "the header is damaged: No such file"),
    "corrections cut off": (lambda p: cut(p / "corrections", 1000), "1,000 bytes instead of"),
    "corrections too long": (lambda p: grow(p / "corrections"), "cut off, or not this store's"),
    "no corrections": (lambda p: (p / "corrections").unlink(), "No such file"),
    "checksums changed": (lambda p: flip(p / "checksums", 5), "the checksums are damaged"),
    "checksums cut off": (lambda p: cut(p / "checksums", 16), "the checksums are damaged"),
    "no ledger": (lambda p: (p / "ledger").unlink(), "the ledger of used slots is damaged: No such file"),
    "an empty ledger": (lambda p: cut(p / "ledger", 0), "the ledger of used slots is damaged: its first line"),
    "another store's ledger": (
        lambda p: (p / "ledger").write_text('{"store": "00"}\n'),
        "the ledger of used slots is damaged: its first line",
    ),
}


@covering("name, rank", BAD, range(2))
def test_bad_stores_are_refused_when_they_are_opened(tmp_path: Path, name: str, rank: int) -> None:
    spoil, message = BAD[name]
    spoil(dealt(tmp_path) / f"party-{rank}" / "lane-0")
    with pytest.raises(DealerError, match=message) as caught:
        StoreDealer(tmp_path, rank=rank, parties=2)
    assert str(tmp_path) in str(caught.value) and caught.value.hint


def test_a_store_of_another_release_or_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt(tmp_path)
    with pytest.raises(DealerError, match="for party 1, this process is for party 0"):
        StoreDealer(tmp_path / "party-1", rank=0, parties=2)
    with pytest.raises(DealerError, match="for a run of size 2, this process is for a run of size 3"):
        StoreDealer(tmp_path, rank=0, parties=3)
    closing([StoreDealer(str(tmp_path / "party-{rank}"), rank=1, parties=2)])
    monkeypatch.setattr(slots, "VERSION", "9.9.9")
    with pytest.raises(DealerError, match="this store was made by version .*, this is version 9.9.9"):
        StoreDealer(tmp_path, rank=0, parties=2)


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_damaged_chunk_is_found_before_any_correction_of_its_slot_is_used(
    tmp_path: Path, slot: int, rank: int
) -> None:
    """And the slot is skipped by the next run."""
    _, size = folder.places(received_by(rank, 2, BATCH))
    flip(dealt(tmp_path) / f"party-{rank}" / "lane-0" / "corrections", slot * size + 50)
    store = StoreDealer(tmp_path, rank=rank, parties=2)
    for number in range(SLOTS):
        supply = store.reserve(None)
        if number == slot:
            with pytest.raises(DealerError, match=f"bytes {slot * size:,} to .* are damaged"):
                for request in BATCH[: rank + 1]:  # the first request is party 0's, the second one party 1's
                    supply.correlation(request)
            break
        for request in BATCH:
            supply.correlation(request)
    store.close()
    again = StoreDealer(tmp_path, rank=rank, parties=2)
    assert again.next_slot == slot + 1
    for _ in range(again.slots_left):
        supply = again.reserve(None)
        for request in BATCH:
            supply.correlation(request)
    again.close()


def test_other_nets_bits_and_shapes_are_refused(tmp_path: Path) -> None:
    store = opened(dealt(tmp_path))[0]
    store.admit(FACTS, [(4, 6)] * 3)
    for name in FACTS:
        with pytest.raises(DealerError, match=f"dealt for {name} {FACTS[name]}, this net has"):
            store.admit({**FACTS, name: "private to party 0" if name == "weights" else "other"}, [])
    with pytest.raises(DealerError, match=r"slices of shape \(4, 6\), this one has \(5, 6\)"):
        store.admit(FACTS, [(5, 6)])
    with pytest.raises(DealerError, match="material for 3 more slices of 4, 4 are needed"):
        store.admit(FACTS, [(4, 6)] * 4)
    with pytest.raises(DealerError, match="other requests than this net makes"):
        store.reserve(BATCH[1:])
    with pytest.raises(DealerError, match="was reserved at this place"):
        store.reserve(None).correlation(SquarePair((99,)))


def test_facts_do_not_depend_on_weights() -> None:
    first, second = net(), net()
    torch.nn.init.ones_(second[0].weight)
    plans = [hummingbird.convert_model(model, BitWindow(20, 0), protocol="gmw") for model in (first, second)]
    assert plans[0].facts != plans[1].facts
    assert material_facts(plans[0].facts) == material_facts(plans[1].facts)


def test_exactly_one_of_dealer_and_store() -> None:
    with pytest.raises(ConfigError, match="a dealer and a store are given"):
        hummingbird.init(dealer="unix:/nowhere", store="/nowhere")


# Whole runs ----------------------------------------------------------------------------------------------------------


def logits(nursery: Nursery, parties: int, *arguments: str) -> torch.Tensor:
    run = nursery.start(["stored", *arguments], parties)
    assert [party.wait() for party in run] == [0] * parties, [party.err.read_text() for party in run]
    return torch.tensor([json.loads(party.out.read_text().splitlines()[-1]) for party in run])


@pytest.mark.parametrize(
    "protocol, weights, parties, runs",
    [
        pytest.param("gmw", "public", 3, 1, marks=pytest.mark.slow),
        pytest.param("gmw", "1", 2, 1, marks=pytest.mark.slow),
        ("masked", "0", 2, 2),
    ],
)
def test_runs_from_a_store(
    nursery: Nursery, tmp_path: Path, protocol: str, weights: str, parties: int, runs: int
) -> None:
    """10 rows in slices of 4 take 3 slots of every run; the results are right at all parties, until it is used up."""
    owner: str | int = int(weights) if weights.isdigit() else weights
    write_store(tmp_path, 3 * runs, parties, owner, protocol)
    with torch.no_grad():
        plain = net()(rows(10))
    for _ in range(runs):
        out = logits(nursery, parties, str(tmp_path), "10", weights, "20:0", protocol)
        # Three products of at most 16 terms, factors below 2; an error grows at most by 16 weights of 1/4 per layer,
        # and a rounding is off by at most `parties` units of 2^-16.
        assert float((out - plain).abs().max()) < (16 * 2 + parties) * (1 + 4 + 16) * 2.0**-16
    for rank in range(parties):
        assert [entry["used"] for entry in ledger_of(tmp_path, rank) if "used" in entry] == list(range(3 * runs))
    texts = all_fail(nursery.start(["stored", str(tmp_path), "4", weights, "20:0", protocol], parties), "exhausted")
    assert all("the store holds material for 0 more slices of 4, 1 are needed" in text for text in texts)


@pytest.mark.parametrize("count", every(2, [2, 9]))
def test_wrong_stores_are_errors_at_all_parties(nursery: Nursery, tmp_path: Path, count: int) -> None:
    """Parts of two stores, a damaged one, one for another aim, and others; right ones are used then."""
    write_store(tmp_path / "one", 2)
    write_store(tmp_path / "two", 2)
    if count > 2:
        write_store(tmp_path / "thrifty", 2, protocol="masked", aim="throughput")
    shutil.copytree(tmp_path / "one" / "party-0", tmp_path / "mixed" / "party-0")
    shutil.copytree(tmp_path / "two" / "party-1", tmp_path / "mixed" / "party-1")
    shutil.copytree(tmp_path / "one", tmp_path / "damaged")
    cut(tmp_path / "damaged" / "party-0" / "lane-0" / "corrections", 5)
    for arguments, message in (
        (["mixed", "4"], "store: party 0 has "),
        (["damaged", "4"], "5 bytes instead of"),
        (["thrifty", "4", "public", "20:0", "masked"], "dealt for aim throughput, this net has latency"),
        (["one/party-0", "4"], "for party 0, this process is for party 1"),
        (["one", "4", "public", "19:0"], "the store was dealt for bits"),
        (["one", "4", "public", "20:0", "masked"], "the store was dealt for protocol gmw, this net has masked"),
        (["one", "4", "0"], "the store was dealt for weights public, this net has private"),
        (["one", "12"], "material for 2 more slices of 4, 3 are needed"),
        (["nowhere", "4"], "there is no store here"),
    )[:count]:
        run = nursery.start(["stored", str(tmp_path / arguments[0]), *arguments[1:]], 2)
        for text in all_fail(run, message):
            assert message in text or message.replace("party 0 has", "party 1 has") in text, text
        assert all(len(ledger_of(tmp_path / "one", rank)) == 1 for rank in range(2)), arguments  # nothing was used
    assert logits(nursery, 2, str(tmp_path / "one"), "8").shape == (2, 8, 3)
    if count > 2:
        thrifty = logits(nursery, 2, str(tmp_path / "thrifty"), "8", "public", "20:0", "masked", "throughput")
        with torch.no_grad():
            assert float((thrifty - net()(rows(8))).abs().max()) < 0.01


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "models:get_model", "digits", "10", "--input", f"{SLICE[0]}x1x8x8", "--images", "10"]
    assert main(["deal", *options, "--out", str(tmp_path / "s"), "--parties", "3", "--private-weights"]) == 0
    printed = capsys.readouterr().out
    assert "3 slices of 4 images for 3 parties" in printed and "secure channel" in printed
    stores = opened(tmp_path / "s", 3)
    header = stores[0].header
    assert (header.slots, header.shape, header.facts["weights"]) == (3, (4, 1, 8, 8), "private") and header.setup
    closing(stores)
    assert main(["deal", *options, "--out", str(tmp_path / "s")]) == 1
    assert "error: the folder is not empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["deal", "--help"])
    assert "two parties can read everything" in " ".join(capsys.readouterr().out.split())
