"""Files that a command writes: all of them or none, each on the disk as a whole (hummingbird/disk.py)."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hummingbird import disk
from hummingbird.errors import InputError


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write all of these files or none: an error or Ctrl-C on the way leaves what was there before.

    Raises InputError for a place that cannot be written. A process killed between two renames leaves the old files
    that it had moved away as `NAME.old`.
    """
    before = [path for path in contents if path.is_file()]
    begun: list[Path] = []
    try:
        for path, content in contents.items():
            _beside(path, "new").unlink(missing_ok=True)
            disk.create(_beside(path, "new"), [content])
            _beside(path, "old").unlink(missing_ok=True)
        for path in contents:
            begun.append(path)
            if path in before:
                disk.rename(path, _beside(path, "old"))
            disk.rename(_beside(path, "new"), path)
        for folder in {path.parent for path in contents}:
            disk.sync(folder)
    except BaseException as problem:
        for path in begun:
            if path not in before:
                path.unlink(missing_ok=True)
            elif _beside(path, "old").is_file():
                disk.rename(_beside(path, "old"), path)
        if isinstance(problem, OSError):
            hint = "name a file in a folder that can be written"
            raise InputError(f"cannot write: {problem.strerror}", where=str(problem.filename), hint=hint) from None
        raise
    finally:
        for path in contents:
            _beside(path, "new").unlink(missing_ok=True)
            _beside(path, "old").unlink(missing_ok=True)


def write_json(path: Path, figures: Any) -> None:
    """Write figures, a flat object or a list of flat rows, as the value of --json; errors of `write_together`."""
    write_together({path: (json.dumps(figures, indent=2) + "\n").encode()})


def check_writable(path: Path, where: str) -> None:
    """InputError, said before hours of work, if `path`, the value of the option `where`, is no place for a file."""
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=where, hint="make it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=where, hint="name a file in it")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} cannot be written", where=where, hint="name a file in another folder")


def check_outputs(args: argparse.Namespace) -> None:
    """`check_writable` of --out, --json and --plot, those of them that are options of a program and given."""
    for name in ("out", "json", "plot"):
        path = getattr(args, name, None)
        if path is not None:
            check_writable(path, f"--{name}")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")
