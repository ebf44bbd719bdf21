"""Files that are complete or absent after a crash: the only module that flushes, renames and locks files.

A file's content is on the disk after fsync(2) of the file, and its name after fsync(2) of its folder; rename(2)
replaces a name atomically (POSIX). So a file is written under another name in the same folder, flushed and renamed, and
then the folder is flushed. Every function raises the system's OSError: the callers know the purpose of the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO

PRIVATE, SHARED = 0o600, 0o666  # modes of new files: for this user alone; for others too, as far as the umask allows


def save(path: Path, pieces: Iterable[bytes], *, mode: int = SHARED) -> int:
    """Write a file of these pieces of bytes, new or in place of an old one; return its size in bytes.

    Content and name are on the disk when this returns; until the last step an old file remains as it was. The new
    content is first written to `NAME.new`, which an error removes. mode: the file's permissions, as of chmod(2).
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
    """Write a new file of these pieces of bytes; return its size in bytes.

    Its content is then on the disk, its name only after `sync` of the folder. mode: the file's permissions, as of
    chmod(2). Raises FileExistsError if the file exists. An error while the file is written removes it.
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
    """Create a file, and return it open for writing; `flush` brings to the disk what was written.

    path: of the file. mode: its permissions, as of chmod(2). Raises FileExistsError if it exists.
    """
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def append(path: Path, pieces: Iterable[bytes], *, mode: int = SHARED) -> None:
    """Add pieces to the end of a file, which is created if it is missing; the content is on the disk when this returns.

    mode: permissions of a file that is created, as of chmod(2). Unlike the class `Appended`, this takes no lock, and
    does not undo a piece that was written in part.
    """
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.writelines(pieces)
        flush(file)


def flush(file: IO[Any]) -> None:
    """Wait until everything that was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until the content of the file `path` is on the disk; for a folder, the names of the files in it."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(draft: Path, path: Path) -> None:
    """Rename the file or folder `draft` to `path`, atomically; it replaces a file at `path`.

    A crash may undo the renaming until `sync` of the folder.
    """
    os.replace(draft, path)


def publish(draft: Path, path: Path) -> None:
    """Rename the file or folder `draft` to `path`, atomically; the new name is on the disk when this returns.

    It replaces a file at `path`. If `draft` is a folder, its contents must be on the disk before.
    """
    rename(draft, path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file if it exists; its name is gone from the disk when this returns."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def overwrite(path: Path) -> None:
    """Replace the content of a file by zeros, in place; they are on the disk when this returns.

    It makes secrets unreadable, but a disk may still keep the old blocks.
    """
    with open(path, "r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
        flush(file)


class Appended:
    """A file that this process has locked, and to which it appends pieces of bytes, each one completely or not at all.

    It is for journals, which must hold what was written before a crash: a piece is on the disk when `append` returns.
    create: whether to create an empty file if there is none. Raises OSError if the file cannot be opened,
    BlockingIOError if another process has locked it.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._torn = False
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(path, flags, PRIVATE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file), os.stat(path)):  # the file was replaced meanwhile
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """The size of this file in bytes."""
        return os.fstat(self._file).st_size

    def append(self, piece: bytes) -> None:
        """Add a piece of bytes to the end of this file, and wait until it is on the disk.

        Raises OSError if the disk does not take all of the piece. The file then has its former content; if even that
        could not be restored, every later call raises an error.
        """
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
        """Shorten this file to its first `size` bytes."""
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def read(self, count: int, at: int) -> bytes:
        """Return `count` bytes of this file from offset `at`, or fewer if the file ends before."""
        data = os.pread(self._file, count, at)
        while len(data) < count and (more := os.pread(self._file, count - len(data), at + len(data))):
            data += more
        return data

    def close(self) -> None:
        """Close this file, which releases its lock; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
