"""A session's folder: slots dealt once and used once, across processes that end anywhere, and what damages it."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hummingbird.errors import DiskError, HummingbirdError, StoreError
from hummingbird.hybrid import store
from hummingbird.hybrid.store import Header, Store
from hummingbird.slots import looked_at
from tests.support import python
from tests.support.disk import Order
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

SEED = bytes(range(16))
HEADER = Header("data", "ab" * 16, "cd" * 32)
MATERIAL = [torch.arange(4), torch.zeros(3, dtype=torch.uint8)]


def slot_of(number: int) -> list[torch.Tensor]:
    return [torch.full((5, 2), number), torch.arange(7, dtype=torch.uint8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with slots 0, 1 and 3 ready; 2 was cut short."""
    with Store.create(tmp_path / "s", HEADER, SEED, MATERIAL) as made:
        for number in range(4):
            assert made.deal() == number
            if number != 2:
                made.keep(number, slot_of(number))
    return tmp_path / "s"


def test_slots_are_dealt_and_used_once_also_after_a_restart(folder: Path) -> None:
    with Store(folder) as opened:
        assert (opened.header, opened.seed, opened.ready) == (HEADER, SEED, [0, 1, 3])
        assert all(torch.equal(a, b) for a, b in zip(opened.material, MATERIAL, strict=True))
        number, tensors = opened.use()
        assert number == 0 and all(torch.equal(a, b) for a, b in zip(tensors, slot_of(0), strict=True))
        assert not opened._path(0).exists()
        for again in (0, 2, 9):
            with pytest.raises(StoreError, match=f"slot {again} is not ready"):
                opened.use(again)
        with pytest.raises(StoreError, match="slot 2 has been handed out already"):
            opened.deal(2)
        assert opened.use(3)[0] == 3 and opened.ready == [1]
    with Store(folder) as opened:  # what lies before a used slot is burned
        assert opened.ready == [] and not list(folder.glob("slot-*"))
        with pytest.raises(StoreError, match="no slot is ready"):
            opened.use()
        assert opened.deal() == 4
        with pytest.raises(StoreError, match="handed out"):
            opened.deal(3)


def test_a_file_of_a_used_slot_that_a_crash_has_left_is_removed(folder: Path) -> None:
    data = (folder / "slot-0000000").read_bytes()
    with Store(folder) as opened:
        opened.use()
    (folder / "slot-0000000").write_bytes(data)
    (folder / "slot-0000009").write_bytes(data)  # never dealt
    (folder / "slot-x").write_bytes(data)
    with Store(folder) as opened:
        assert opened.ready == [1, 3]
    assert sorted(path.name for path in folder.glob("slot-*")) == ["slot-0000001", "slot-0000003"]


def test_a_slot_that_the_other_side_lacks_is_burned(folder: Path) -> None:
    with Store(folder) as opened:
        opened.discard(0)
        opened.discard(0)
        assert opened.ready == [1, 3] and opened.bytes == sum(p.stat().st_size for p in folder.glob("slot-*"))
        assert looked_at(folder / store.USED) == 1  # marked: a file that comes back would not be ready
        opened.discard_before(3)
        assert opened.ready == [3] and looked_at(folder / store.USED) == 2


def test_numbers_beyond_a_session_are_refused(folder: Path) -> None:
    with Store(folder) as opened:
        for number in (-1, store.MAX_SLOTS, 1 << 60):
            with pytest.raises(StoreError, match="used up"):
                opened.deal(number)


def test_files_are_for_this_user_only(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_second_process_is_refused(folder: Path) -> None:
    code = "import sys; from pathlib import Path; from hummingbird.hybrid.store import Store; Store(Path(sys.argv[1]))"
    with Store(folder):
        ended = python.run(
            [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM
        )
    assert ended.returncode and "StoreError: another process is using this store" in ended.stderr
    Store(folder).close()


def test_a_second_session_in_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="there is a session already"):
        Store.create(folder, HEADER, SEED, MATERIAL)
    (folder / store.HEADER).unlink()  # as when its set-up was cut short
    Store.create(folder, HEADER, SEED, MATERIAL).close()


@pytest.mark.parametrize("name", ["slot-0000000", "material", "header.json", "seed"])
def test_damage_is_an_error(folder: Path, name: str) -> None:
    path, rng = folder / name, random.Random(name)
    whole = path.read_bytes()
    cases = [b"", whole[:-1], whole + b"x", b"[" * 100_000]
    for _ in range(20):
        at = rng.randrange(len(whole))
        cases.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    for case in cases:
        path.write_bytes(case)
        with pytest.raises(StoreError) as caught:
            read(folder)
        assert SEED.hex() not in str(caught.value)
        with suppress(FileNotFoundError):
            (folder / "used").write_bytes((folder / "used").read_bytes().split(b"\n")[0] + b"\n")


def read(folder: Path) -> None:
    """Open a store and use the first slot, which a test may have damaged."""
    with Store(folder) as opened:
        opened.use()


def test_the_slot_after_a_damaged_one_is_used(folder: Path) -> None:
    (folder / "slot-0000000").write_bytes(b"x" * 100)
    with Store(folder) as opened:
        with pytest.raises(StoreError, match=r"slot-0000000 is damaged.*\n.*the next one serves"):
            opened.use()
        assert opened.use()[0] == 1


def test_a_slot_in_the_place_of_another_is_damage(folder: Path) -> None:
    (folder / "slot-0000000").write_bytes((folder / "slot-0000001").read_bytes())
    with pytest.raises(StoreError, match="wrong checksum"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text.replace(b"two-party", b"other"), "this release reads"),
        (
            lambda text: text.replace(b'"hummingbird_version": "', b'"hummingbird_version": "9'),
            "made by version 9",
        ),
        (lambda text: text.replace(b'"side": "data"', b'"side": "model"'), "do not fit"),
        (lambda text: b"[]", "malformed header: it is a list of 0 items, not an object"),
    ],
)
def test_headers_of_others_are_refused(folder: Path, change: Callable[[bytes], bytes], match: str) -> None:
    path = folder / store.HEADER
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(StoreError, match=match):
        Store(folder)


def test_a_full_disk_is_an_error_that_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Store(folder) as opened:
        number = opened.deal()
        before = sorted(folder.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(DiskError, match="No space left") as caught:
                opened.keep(number, slot_of(number))
            with pytest.raises(DiskError, match="No space left"):
                opened.deal()
            with pytest.raises(DiskError, match="No space left"):
                opened.use()
        assert caught.value.hint == "make room, and run again"
        assert sorted(folder.iterdir()) == before
        assert opened.ready == [1, 3]  # slot 0 may have been marked
    with pytest.raises(HummingbirdError, match="cannot be written"):
        Store.create(folder / "seed" / "below", HEADER, SEED, MATERIAL)


def test_the_order_in_which_a_session_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made: the header last. Dealt: the mark, then the slot, and each file whole before its name. Used and discarded:
    the mark before the slot's end.
    """
    order, at = Order(monkeypatch, tmp_path / "s"), -1
    with Store.create(tmp_path / "s", HEADER, SEED, MATERIAL) as made:
        for name in (store.SEED, store.MATERIAL, store.DEALT, store.USED, store.HEADER):
            at = order.place("fsync", f"{name}.new", after=at)
            at = order.place("rename", f"{name}.new", name, after=at)
            at = order.place("fsync", ".", after=at)
        for number in range(2):
            slot = made._path(made.deal()).name
            at = order.place("fsync", store.DEALT, after=at)
            made.keep(number, slot_of(number))
            at = order.place("fsync", f"{slot}.new", after=at)
            at = order.place("rename", f"{slot}.new", slot, after=at)
            at = order.place("fsync", ".", after=at)
        for end in (lambda: made.use(0), lambda: made.discard(1)):
            slot = made._path(made.ready[0]).name
            end()
            at = order.place("fsync", store.USED, after=at)
            at = order.place("unlink", slot, after=at)
    assert at == len(order.calls) - 1
