"""The keeper: sets appear whole, as many as are asked for; it goes on where another one was killed, one at a time."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hummingbird.__main__ import main
from hummingbird.errors import DealerError, InputError
from hummingbird.mpc.dealer import kept as keeping
from hummingbird.mpc.dealer.folder import CORRECTIONS, HEADER, LEDGER, SEED, lane_folder
from hummingbird.mpc.dealer.kept import DEALING, DESCRIPTION, erase, keep, numbers, set_folder
from hummingbird.slots import Ledger
from tests.support import python
from tests.support.disk import Order
from tests.support.keeping import SLOTS, Parties, dealt, keeper
from tests.support.pages import shell_lines
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, until
from tests.support.ports import free_port


def set_id(root: Path, rank: int) -> str:
    """The id of the first set, as a party's ledger begins with it."""
    first = (lane_folder(set_folder(root, 1), rank, 0) / LEDGER).read_text().splitlines()[0]
    return str(json.loads(first)["store"])


class Enough(Exception):
    """A keeper has nothing to do."""


def kept(root: Path, slots: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    """Run a keeper until there are so many slots; the lines that it says."""
    said: list[str] = []

    def sleep(seconds: float) -> None:
        if seconds == keeping.LOOK:
            raise Enough

    monkeypatch.setattr(keeping, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(keeping, "_IDLE", 0)  # however slow a count is
    one = keeper(root)
    with pytest.raises(Enough):
        keep(one, slots, lambda images: None, said.append, **options)
    one.close()
    monkeypatch.undo()
    return said


def test_it_deals_while_fewer_slots_are_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = kept(tmp_path, 2 * SLOTS + 1, monkeypatch)
    assert [text.split(":")[0] for text in said] == ["set 1", "set 2", "set 3"]
    assert said[-1].endswith(f"{3 * SLOTS} slots unused")
    assert numbers(tmp_path) == [1, 2, 3]
    assert kept(tmp_path, 3 * SLOTS, monkeypatch) == []
    parties = Parties(tmp_path)
    parties.use(SLOTS - 1)
    one = keeper(tmp_path)
    assert one.unused() == 2 * SLOTS + 1  # counted from the ledgers, while the parties hold their locks
    parties.use(3)  # the rest of the first set, which is erased with the next beginning, and two of the second
    parties.admit()
    assert one.unused() == SLOTS + 1 and numbers(tmp_path) == [2, 3]
    one.close()
    assert len(kept(tmp_path, 3 * SLOTS, monkeypatch)) == 2
    assert numbers(tmp_path) == [2, 3, 4, 5]
    parties.close()


def test_the_lane_that_has_least_counts(tmp_path: Path) -> None:
    one = keeper(tmp_path, lanes=2)
    one.add()
    parties = Parties(tmp_path, lane=1, lanes=2)
    parties.use(2)
    assert one.unused() == 1
    parties.use(1)
    parties.close()
    assert one.unused() == 0
    assert lane_folder(set_folder(tmp_path, 1), 0, 0).is_dir()  # the other lane has not begun
    one.close()


def test_what_a_killed_keeper_was_dealing_is_dealt_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt(tmp_path, 1)
    shutil.copytree(set_folder(tmp_path, 1), tmp_path / DEALING)
    lane_folder(tmp_path / DEALING, 1, 0).joinpath("header.json").unlink()
    assert len(kept(tmp_path, 2 * SLOTS, monkeypatch)) == 1
    assert numbers(tmp_path) == [1, 2] and not (tmp_path / DEALING).exists()
    parties = Parties(tmp_path)
    assert len({set_id for set_id, _ in parties.use(2 * SLOTS)}) == 2
    parties.close()


def test_a_description_that_is_cut_off_before_the_first_set_is_written_again(tmp_path: Path) -> None:
    one = keeper(tmp_path)
    line = one.kept.line()
    one.close()
    (tmp_path / DESCRIPTION).write_bytes(line[:100])
    one = keeper(tmp_path)
    one.add()
    one.close()
    assert len((tmp_path / DESCRIPTION).read_bytes()) == len(line)
    (tmp_path / DESCRIPTION).write_bytes(line[:100])  # and not where there are sets: which parties would they be for?
    with pytest.raises(DealerError, match="malformed description of a kept store"):
        keeper(tmp_path)


def test_two_keepers_and_other_folders_are_refused(tmp_path: Path) -> None:
    first = keeper(tmp_path / "kept")
    with pytest.raises(DealerError, match="another keeper is at work here"):
        keeper(tmp_path / "kept")
    first.close()
    for name, other in (("shape", (5, 6)), ("slots", 4), ("parties", 3), ("facts", {"bits": "c"}), ("steps", [[]])):
        with pytest.raises(InputError, match=f"kept for other {'requests' if name == 'steps' else name}"):
            keeper(tmp_path / "kept", **{name: other})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis").touch()
    with pytest.raises(InputError, match="not empty"):
        keeper(tmp_path / "other")
    fields = json.loads((tmp_path / "kept" / DESCRIPTION).read_text())
    for change, words in (
        ({"hummingbird_version": "0.0.1"}, "kept by version 0.0.1"),
        ({"format_version": 3}, "kept in sets of format 3, this release reads 7"),
        ({"format_version": None}, "kept in sets of format before 4, this release reads 7"),
        ({"lanes": "1"}, "malformed description of a kept store: lanes is '1', not a whole number"),
    ):
        (tmp_path / "kept" / DESCRIPTION).write_text(json.dumps({**fields, **change}) + "\n")
        with pytest.raises(DealerError, match=words):
            keeper(tmp_path / "kept")


def test_a_full_disk_is_said_once_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written where the set does not fit beside what parties need, and while it is written."""
    usage, write, tries = shutil.disk_usage, keeping.deal, []

    def fuller(path: Path) -> Any:
        tries.append("look")
        return usage(path)._replace(free=1000) if len(tries) < 3 else usage(path)

    def refused(out: Path, **what: Any) -> float:
        seconds = write(out, **what)
        tries.append("deal")
        if tries.count("deal") < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))
        return seconds

    monkeypatch.setattr(keeping.shutil, "disk_usage", fuller)
    monkeypatch.setattr(keeping, "deal", refused)
    ready: list[bool] = []
    said = kept(tmp_path, 1, monkeypatch, ready=ready.append)
    assert ready == [True, *[False] * 4, True]
    assert len(said) == 2 and said[0].startswith("the disk is full: a set takes") and said[1].startswith("set 1")
    assert tries.count("look") == 5 + 3 and tries.count("deal") == 3
    assert numbers(tmp_path) == [1] and not (tmp_path / DEALING).exists()


OPTIONS = ["--model", "tests.support.serving_nets:doubled", "--input", "4x4", "--images", "12"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_keeper_that_is_told_to_stop_is_nowhere_interrupted(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends after the slice that it is at: an exception of a signal's handler may come out of any line."""
    real, went_on = keeping.deal, list[bool]()

    def told(*arguments: Any, **options: Any) -> float:
        signal.raise_signal(number)
        went_on.append(True)
        return real(*arguments, **options)

    monkeypatch.setattr(keeping, "deal", told)
    monkeypatch.chdir(ROOT)
    assert main(["deal", *OPTIONS, "--keep", "4", "--out", str(tmp_path / "kept")]) == 0
    assert went_on and not numbers(tmp_path / "kept")
    assert capsys.readouterr().out.splitlines()[-1] == "stopped: 0 slots unused, no set half dealt"


def test_the_command_keeps_until_it_is_told_to_stop(tmp_path: Path) -> None:
    line = next(line for line in shell_lines() if "--keep" in line and "--weights" in line)
    port = free_port()
    command = [sys.executable, *shlex.split(line)[1:-1], str(tmp_path / "kept"), "--metrics", str(port)]
    with open(tmp_path / "said", "w") as out:
        process = python.Popen(command, cwd=ROOT, env=environment(0, 1, 1), stdout=out, stderr=out)
    until(lambda: "20 slots unused" in (tmp_path / "said").read_text() or process.poll() is not None, "two sets")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as page:
        lines = page.read().decode().splitlines()
    found = {name: float(value) for name, _, value in (text.rpartition(" ") for text in lines if text[:1] != "#")}
    assert (found["hummingbird_keeper_slots_unused"], found["hummingbird_keeper_slots_wanted"]) == (20, 15)
    assert found["hummingbird_keeper_sets_total"] == 2 and found["hummingbird_keeper_set_seconds"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG) == 0, (tmp_path / "said").read_text()
    said = (tmp_path / "said").read_text().splitlines()
    assert said[0] == "sets of 10 slices of 8 images for 2 parties: 9.9 MB for all parties", said
    assert said[-1] == "stopped: 20 slots unused, no set half dealt"


@pytest.mark.parametrize("owner", [[], ["--private-weights"]])
def test_the_command_refuses_what_it_cannot_keep(
    tmp_path: Path, owner: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "kept" if not owner else tmp_path / "kept"
    assert main(["deal", *OPTIONS, *owner, "--keep", "4", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert ("masks of private weights are not kept" if owner else "Not a directory") in error and "hint: " in error
    assert main(["deal", *OPTIONS, *owner, "--log", "-", "--out", str(out)]) == 1
    assert "--metrics and --log need --keep" in capsys.readouterr().err


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_party_that_has_used_most_counts(tmp_path: Path, ahead: int) -> None:
    """A slot that one party has marked is used, whatever the other's ledger says."""
    one = keeper(tmp_path)
    one.add()
    for rank, used in ((ahead, 2), (1 - ahead, 1)):
        ledger = Ledger(lane_folder(set_folder(tmp_path, 1), rank, 0) / LEDGER, set_id(tmp_path, rank), DealerError)
        for slot in range(used):
            ledger.use(slot)
        ledger.close()
    assert one.unused() == SLOTS - 2
    one.close()


def test_a_set_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, then their folders from the inmost, then the name, then the folder that holds the name."""
    one = keeper(tmp_path)
    order = Order(monkeypatch, tmp_path)
    one.add()
    monkeypatch.undo()
    one.close()
    named = order.place("rename", DEALING, set_folder(tmp_path, 1).name)
    for folder, _, files in os.walk(set_folder(tmp_path, 1)):
        inside = os.path.relpath(folder, set_folder(tmp_path, 1))
        where = os.path.normpath(f"{DEALING}/{inside}")
        flushed = max(number for number, call in enumerate(order.calls[:named]) if call == ("fsync", where))
        for file in files:
            under = f"{file}.new" if file == HEADER else file  # renamed when it is whole
            assert order.place("fsync", f"{where}/{under}") < flushed, file
    order.place("fsync", ".", after=named)


def test_a_used_set_loses_its_header_then_its_seed_then_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between leaves no part that is taken for one to use, and no seed beside its corrections."""
    one = keeper(tmp_path)
    one.add()
    one.close()
    folder = lane_folder(set_folder(tmp_path, 1), 0, 0)
    order = Order(monkeypatch, folder)
    erase(folder)
    header = order.place("unlink", HEADER)
    gone = order.place("fsync", ".", after=header)
    overwritten = order.place("fsync", SEED, after=gone)
    for name in (SEED, CORRECTIONS, LEDGER):
        assert order.place("unlink", name) > overwritten
