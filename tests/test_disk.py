"""Files that are there as a whole or not at all: the order of what reaches the disk, and what an error leaves."""

from __future__ import annotations

import ast
import errno
import os
import re
from pathlib import Path

import pytest

from hummingbird import disk
from tests.support.disk import Order
from tests.test_floors import PACKAGE, imported, nodes, offenders, parsed


def refusing(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def listed(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_saved_file_is_flushed_then_named_then_its_name_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(monkeypatch, tmp_path)
    assert disk.save(tmp_path / "a", [b"ab", b"c"], mode=disk.PRIVATE) == 3
    assert order.calls[-3:] == [("fsync", "a.new"), ("rename", "a.new", "a"), ("fsync", ".")]
    assert listed(tmp_path) == {"a": b"abc"} and (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("before", [{}, {"a": b"old"}])
def test_what_the_disk_refuses_leaves_the_old_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, before: dict[str, bytes]
) -> None:
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.new").write_bytes(b"the draft of a crash")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refusing)
        with pytest.raises(OSError, match="No space"):
            disk.save(tmp_path / "a", [b"new"])
    assert listed(tmp_path) == before
    disk.save(tmp_path / "a", [b"new"])
    assert listed(tmp_path) == {"a": b"new"}


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def pieces():  # type: ignore[no-untyped-def]
        yield b"some"
        raise KeyboardInterrupt

    for write in (disk.save, disk.create):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "a", pieces())
        assert listed(tmp_path) == {}


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    disk.create(tmp_path / "a", [b"first"], mode=disk.PRIVATE)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("a", "link"):
        with pytest.raises(FileExistsError):
            disk.create(tmp_path / name, [b"second"])
    assert (tmp_path / "a").read_bytes() == b"first" and not (tmp_path / "elsewhere").exists()


def test_what_is_added_or_overwritten_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(monkeypatch, tmp_path)
    for piece in (b"ab", b"c"):
        disk.append(tmp_path / "a", [piece])
    assert listed(tmp_path) == {"a": b"abc"}
    disk.overwrite(tmp_path / "a")
    assert listed(tmp_path) == {"a": bytes(3)}
    disk.remove(tmp_path / "a")
    disk.remove(tmp_path / "a")  # nothing to do
    assert order.calls[:3] == [("fsync", "a")] * 3 and listed(tmp_path) == {}
    assert order.place("unlink", "a") < order.place("fsync", ".")


def test_a_file_that_is_added_to_has_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    disk.append(tmp_path / "a", [b"a"], mode=disk.PRIVATE)
    assert (tmp_path / "a").stat().st_mode & 0o777 == disk.PRIVATE


def test_a_folder_is_published_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draft").mkdir()
    disk.create(tmp_path / "draft" / "a", [b"a"])
    order = Order(monkeypatch, tmp_path)
    disk.publish(tmp_path / "draft", tmp_path / "folder")
    assert order.calls == [("rename", "draft", "folder"), ("fsync", ".")]
    assert (tmp_path / "folder" / "a").read_bytes() == b"a"


def test_a_file_is_one_process_alone(tmp_path: Path) -> None:
    first = disk.Appended(tmp_path / "a", create=True)
    with pytest.raises(BlockingIOError):
        disk.Appended(tmp_path / "a")
    first.close()
    disk.Appended(tmp_path / "a").close()
    with pytest.raises(FileNotFoundError):
        disk.Appended(tmp_path / "b")


def by_hand(source: str) -> list[str]:
    """Calls that flush, rename or lock files, as `hummingbird.disk` does."""
    if not re.search(r"fcntl|rename|sync|lockf|replace", source):
        return []
    tree = parsed(source)
    found = [f"line {line}: {name}" for name, line in imported(tree) if name.split(".")[0] == "fcntl"]
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            always = node.attr in {"rename", "renames", "fsync", "fdatasync", "lockf"}
            if always or (node.attr == "replace" and ast.unparse(node) == "os.replace"):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
            words = [word.arg for word in node.keywords]
            if (len(node.args), words) in ((1, []), (0, ["target"])):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")  # Path.replace: that of texts takes two
    return found


def test_only_disk_flushes_renames_and_locks_files() -> None:
    assert {"fcntl", "os.fsync", "os.replace"} <= {
        use.split(": ")[1] for use in by_hand((PACKAGE / "disk.py").read_text())
    }
    found = offenders(lambda path: [use for use in by_hand(path.read_text()) if "disk.rename" not in use])
    assert set(found) == {"disk.py"}, found


def test_the_test_of_files_can_fail() -> None:
    for line in ("import fcntl", "from fcntl import flock", "os.fsync(f)", "os.replace(a, b)", "a.rename(b)"):
        assert by_hand(line), line
    assert by_hand("os.rename(a, b)") and by_hand("path.replace(other)") and by_hand("path.replace(target=other)")
    assert not by_hand("text.replace('a', 'b')") and not by_hand("os.open(path, os.O_RDONLY)")
