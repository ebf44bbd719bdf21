"""The order in which a program brings things to the disk: what a crash may leave depends on nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Order:
    """The calls of `os` that order writes, from now on: ("fsync", name), ("rename", name, new name), ("unlink", name).

    Names are relative to `root`, which is "." itself. A file that has been written is not on the disk before its fsync,
    and no name is before that of its folder.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._root = root.resolve()
        fsync = os.fsync

        def flushed(file: int) -> None:
            self.calls.append(("fsync", self._name(f"/proc/self/fd/{file}")))
            fsync(file)

        patch.setattr(os, "fsync", flushed)
        for call, name in (("rename", "rename"), ("replace", "rename"), ("unlink", "unlink"), ("remove", "unlink")):
            patch.setattr(os, call, self._recorded(name, getattr(os, call)))

    def _recorded(self, name: str, real):  # type: ignore[no-untyped-def]
        def call(*paths, **options):  # type: ignore[no-untyped-def]
            self.calls.append((name, *(self._name(path) for path in paths)))
            return real(*paths, **options)

        return call

    def _name(self, path: str | Path) -> str:
        return os.path.relpath(os.path.realpath(path), self._root)

    def place(self, *call: str, after: int = -1) -> int:
        """The place of the first such call behind another one's; AssertionError where there is none."""
        found = [number for number, made in enumerate(self.calls) if made == call and number > after]
        assert found, f"no {' '.join(call)} behind number {after} of {self.calls}"
        return found[0]
