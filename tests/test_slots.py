"""The ledger of a store: a line that reaches the disk in part costs a slot at most, and none is used twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hummingbird import slots
from hummingbird.errors import DealerError
from hummingbird.mpc.dealer.folder import LEDGER
from hummingbird.slots import Ledger

SET = "ab" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / LEDGER).write_bytes(slots.beginning(SET))
    return tmp_path


def reopened(folder: Path) -> int:
    opened = Ledger(folder / LEDGER, SET)
    opened.close()
    return opened.next


def short(count: int) -> Callable[[int, bytes], int]:
    """A write that a full disk takes `count` bytes of."""
    real = os.write
    return lambda file, data: real(file, data[:count])


def refusing(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", [*(short(count) for count in (0, 1, 8, 11)), refusing])
def test_a_line_that_is_written_in_part_is_taken_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, bytes], int]
) -> None:
    """Without that the next mark would be joined to the torn line, count as one slot, and slot 9 be used again."""
    opened, before = Ledger(folder / LEDGER, SET), (folder / LEDGER).read_bytes()
    for action in (lambda: opened.use(3), lambda: opened.bind("weights", b"digest")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(DealerError, match="cannot be written: No space left") as caught:
                action()
        assert "nothing was handed out" in caught.value.hint
        assert (folder / LEDGER).read_bytes() == before
    opened.use(9)
    opened.bind("weights", b"digest")
    opened.close()
    assert reopened(folder) == 10
    again = Ledger(folder / LEDGER, SET)
    with pytest.raises(DealerError, match="other private weights"):
        again.bind("weights", b"other")
    again.close()


def test_a_torn_line_that_cannot_be_taken_back_ends_the_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Ledger(folder / LEDGER, SET)
    opened.use(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short(5))
        patch.setattr(os, "ftruncate", refusing)
        with pytest.raises(DealerError, match="cannot be written"):
            opened.use(7)
    for action in (lambda: opened.use(8), lambda: opened.bind("weights", b"digest")):
        with pytest.raises(DealerError, match="an earlier piece was cut off"):
            action()
    opened.close()
    assert (folder / LEDGER).read_bytes().endswith(b'{"use')
    assert reopened(folder) == 2  # slot 0, and one for the torn line, of which nothing was handed out


def test_a_mark_that_is_not_flushed_is_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Ledger(folder / LEDGER, SET)
    calls, real = iter([refusing, os.fsync]), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: next(calls, real)(file))
    with pytest.raises(DealerError, match="cannot be written"):
        opened.use(0)
    opened.use(0)
    opened.close()
    assert reopened(folder) == 1


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"used": -5}', '{"used": "0"}', '{"used": true}', '{"used": 1e999}', "[]", '"used"', ""]
)
def test_lines_that_say_nothing_count_as_one_slot(folder: Path, line: str) -> None:
    path = folder / LEDGER
    path.write_bytes(path.read_bytes() + b'{"used": 0}\n' + line.encode() + b'\n{"bound": "x", "digest": "00"}\n')
    assert reopened(folder) == 2


def test_a_foreign_ledger_is_refused_unread_and_unchanged(folder: Path) -> None:
    """Its content may be a digest, and errors are told to the other parties."""
    path = folder / LEDGER
    content = json.dumps({"bound": "weights", "digest": "5ec2e7"})
    path.write_text(content)
    with pytest.raises(DealerError, match="first line does not name this store") as caught:
        Ledger(folder / LEDGER, SET)
    assert "5ec2e7" not in str(caught.value) and path.read_text() == content


def test_marks_out_of_order_forget_no_slot(folder: Path) -> None:
    """Lanes that work at once mark slots as they come: the highest mark counts, not the last one."""
    path = folder / LEDGER
    opened = Ledger(path, SET)
    for slot in (5, 2):
        opened.use(slot)
    opened.close()
    assert reopened(folder) == 6 and slots.looked_at(path) == 6


def test_a_ledger_that_is_replaced_before_it_is_locked_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marks would go to a file that no name leads to, and the next process would not see them."""
    real = fcntl.flock

    def replaced(file: int, how: int) -> None:
        (folder / "other").write_bytes(slots.beginning(SET))
        (folder / "other").replace(folder / LEDGER)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(DealerError, match="another process is using this store"):
        Ledger(folder / LEDGER, SET)
    monkeypatch.undo()
    assert reopened(folder) == 0
