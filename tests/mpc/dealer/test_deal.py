"""Dealing in advance: it looks at the disk first, and nothing is left of what fails. What is dealt: test_store.py."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hummingbird import disk
from hummingbird.__main__ import main
from hummingbird.mpc.dealer.deal import size_of
from tests.mpc.dealer.test_store import BATCH, SLOTS, dealt
from tests.support.covering import every
from tests.support.paths import ROOT


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_left_of_what_fails_or_is_interrupted(tmp_path: Path, there: bool) -> None:
    """In the middle of the second lane; a folder that was there stays, and takes the store that follows."""
    out, done = tmp_path / "made" / "store", list[int]()
    if there:
        out.mkdir(parents=True)

    def stop(images: int) -> None:
        done.append(images)
        if len(done) == SLOTS + 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dealt(out, lanes=2, progress=stop)
    assert out.exists() == there and not (there and any(out.iterdir()))
    dealt(out)


def test_the_disk_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, of the disk on which the folder is to be; nothing is written if it is too full."""
    size = size_of([], [BATCH], SLOTS, 2, 2)
    asked: list[Path] = []

    def usage(free: int) -> Any:
        def look(folder: Path) -> Any:
            asked.append(folder)
            return SimpleNamespace(free=free)

        return look

    monkeypatch.setattr(shutil, "disk_usage", usage(size - 1))
    with pytest.raises(OSError, match=r"the store takes [\d.]+ MB, and [\d.]+ MB are free") as caught:
        dealt(tmp_path / "new" / "store", lanes=2)
    assert caught.value.errno == errno.ENOSPC and asked == [tmp_path] and not any(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", usage(size))
    dealt(tmp_path / "new" / "store", lanes=2)
    corrections = list((tmp_path / "new" / "store").glob("*/*/corrections"))
    assert len(corrections) == 4 and sum(path.stat().st_size for path in corrections) == size


@pytest.mark.parametrize("number", every(2, [signal.SIGTERM, signal.SIGINT]))
def test_deal_that_has_no_room_or_is_told_to_end_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = ["deal", "--model", "models:get_model", "digits", "10", "--weights", "checkpoints/digits.pt"]
    words += ["--input", "5x1x8x8", "--images", "10", "--out", str(tmp_path / "store")]
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
        assert main(words) == 1
        told = capsys.readouterr().err
        assert re.match(r"error: the store takes [\d.]+ MB, and 0.0 MB are free \(at .*store\)\nhint: ", told)
        patched.undo()
        create, went_on = disk.create, list[Path]()

        def killed(path: Path, pieces: Iterable[bytes], *, mode: int = disk.SHARED) -> int:
            size = create(path, pieces, mode=mode)
            os.kill(os.getpid(), number)
            went_on.append(path)  # a handler that raised would raise here, or in the middle of Thread.start
            return size

        patched.setattr(disk, "create", killed)
        assert main(words) == 128 + number and went_on
    assert capsys.readouterr().out.splitlines()[-1] == "stopped: nothing is left of what was begun"
    assert not any(tmp_path.iterdir()) and (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
