"""A text file of lines that is read again when it has changed: the groups of a client, the models of a party."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from hummingbird.errors import ConfigError, InputError

_T = TypeVar("_T")
_LOOK = 1.0  # seconds between two looks at a file
_MOST_BYTES = 1 << 20  # of a file


class LinesFile(Generic[_T]):
    """A text file that is read again when it has changed. Spaces separate the words of a line; `#` begins a comment.

    path: the file's path. read_lines: a function that makes a value of the lines. Its arguments are the words of each
    line that is not empty, and the file's name for errors, InputError or ConfigError. stays: the sentence that ends the
    warning of a change that cannot be read; it says what is used instead.
    """

    def __init__(
        self, path: str | os.PathLike[str], read_lines: Callable[[list[list[str]], str], _T], stays: str
    ) -> None:
        self._path, self._read_lines, self._stays, self._looked = Path(path), read_lines, stays, 0.0
        self._seen: tuple[int, ...] = ()  # identity, size and date of the file that was read last

    def read(self) -> _T:
        """Return the value of the lines. Raises InputError for a file that cannot be read, errors of `read_lines`."""
        where, self._looked = str(self._path), time.monotonic()
        try:
            found = os.stat(self._path)
            self._seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if found.st_size > _MOST_BYTES:
                raise InputError(f"{found.st_size:,} bytes", where=where, hint=f"a text of at most {_MOST_BYTES:,}")
            text = self._path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", where=where, hint="a text file in UTF-8") from None
        lines = [line.partition("#")[0].split() for line in text.splitlines()]
        return self._read_lines([line for line in lines if line], where)

    def changed(self) -> _T | None:
        """Return the value of the lines if the file has changed; None if not, or within a second of the last look.

        A file that cannot be read, or whose lines are wrong, causes a warning, once for each change.
        """
        if time.monotonic() < self._looked + _LOOK:
            return None
        self._looked = time.monotonic()
        try:
            found = os.stat(self._path)
            seen: tuple[int, ...] = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            seen = ()
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            return self.read()
        except (InputError, ConfigError) as error:
            warnings.warn(f"{error}\n{self._stays}", RuntimeWarning, stacklevel=2)
            return None
