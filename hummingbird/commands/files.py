"""The files that a command writes: all or none of them, each completely (hummingbird/disk.py)."""

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
    """Write all of these files or none: an error or Ctrl-C restores the files that were there before.

    contents: what to write, by path. Raises InputError for a path that cannot be written. A process that is killed
    between two renames leaves old files as `NAME.old`.
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
    """Write figures to the file of the option --json. figures: a flat object, or a list of flat rows.

    Raises the errors of `write_together`.
    """
    write_together({path: (json.dumps(figures, indent=2) + "\n").encode()})


def check_writable(path: Path, where: str) -> None:
    """Raise InputError if no file can be written at `path`; called before hours of work.

    where: the option that names it.
    """
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=where, hint="make it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=where, hint="name a file in it")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} cannot be written", where=where, hint="name a file in another folder")


def check_outputs(args: argparse.Namespace) -> None:
    """Raise InputError if a file that --out, --json or --plot names cannot be written; called before hours of work.

    A program may have only some of these options.
    """
    for name in ("out", "json", "plot"):
        path = getattr(args, name, None)
        if path is not None:
            check_writable(path, f"--{name}")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")
