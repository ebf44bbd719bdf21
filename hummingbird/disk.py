"""Files that a crash leaves as a whole or not at all: the only module that flushes, renames and locks files.

A file's content is on the disk after fsync(2) of the file, and its name after fsync(2) of its folder; rename(2) swaps
names in one step (POSIX). So a file is written under another name beside its place, flushed, renamed, and the folder
flushed. Every function raises OSError as the system does: the callers know what the file was for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO

PRIVATE, SHARED = 0o600, 0o666  # modes of new files: the user's alone; as the user's umask lets others read


def save(path: Path, pieces: Iterable[bytes], *, mode: int = SHARED) -> int:
    """Write a file, with its name on the disk when this returns; its size in bytes.

    Until the last step the old file, or none, is there; the draft is `NAME.new`, and nothing is left of it on an error.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        size = create(draft, pieces, mode=mode)
        publish(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return size


def create(path: Path, pieces: Iterable[bytes], *, mode: int = SHARED) -> int:
    """Write a new file; its size. FileExistsError if there is one. Its name is on the disk after `sync` of its folder.

    Nothing is left of it on an error.
    """
    file = opened(path, mode=mode)
    try:
        with file:
            size = sum(file.write(piece) for piece in pieces)
            flush(file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return size


def opened(path: Path, *, mode: int = SHARED) -> BinaryIO:
    """A new file to write to, which `flush` brings to the disk. FileExistsError if there is one."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def append(path: Path, pieces: Iterable[bytes]) -> None:
    """Add to a file, made if it is not there; on the disk when this returns. `Appended` locks it, and undoes a part."""
    with open(path, "ab") as file:
        file.writelines(pieces)
        flush(file)


def flush(file: IO[Any]) -> None:
    """Bring all that was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Bring a file's content, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(draft: Path, path: Path) -> None:
    """Give a file, or a folder, its name in one step; a file of that name goes. A crash may still undo it."""
    os.replace(draft, path)


def publish(draft: Path, path: Path) -> None:
    """`rename`, with the name on the disk when this returns. What is in a folder must be there already."""
    rename(draft, path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there; its name is gone from the disk when this returns."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def overwrite(path: Path) -> None:
    """Write zeros over a file's content, on the disk when this returns. A disk may keep old blocks all the same."""
    with open(path, "r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
        flush(file)


class Appended:
    """A file locked for this process, to which whole pieces are added, each on the disk when `append` returns.

    create: make it if it is not there, empty. OSError where it cannot be opened, BlockingIOError where another process
    has it.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._torn = False
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(path, flags, PRIVATE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file), os.stat(path)):  # replaced while this one was opened
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file).st_size

    def append(self, piece: bytes) -> None:
        """Add a piece. OSError where the disk does not take it: the file is as it was, or takes no more pieces."""
        if self._torn:
            raise OSError(errno.EIO, "an earlier piece was cut off")
        size = self.size
        try:
            if os.write(self._file, piece) != len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):
                self.cut(size)
                self._torn = False
            raise

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes only."""
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def read(self, count: int, at: int) -> bytes:
        """Up to `count` bytes, from byte `at` on; fewer at the end of the file only."""
        data = os.pread(self._file, count, at)
        while len(data) < count and (more := os.pread(self._file, count - len(data), at + len(data))):
            data += more
        return data

    def close(self) -> None:
        """Close the file, which gives the lock back; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
