"""The documentation's pages: their text, their blocks of code, their command lines, and a program run as they say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

README, BENCHMARKS, COMMAND_PAGE, LIMITS, QUICKSTART, REFERENCE = (
    ROOT / name
    for name in (
        "README.md",
        "docs/benchmarks.md",
        "docs/commands.md",
        "docs/limits.md",
        "docs/quickstart.md",
        "docs/reference.md",
    )
)


PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "checkpoints/README.md")),
    *PAGES,
]


OTHER = re.compile(r"from hummingbird import (he|pir)\n")  # run in documents/test_companions.py
FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a snippet that is a file of the reader's own


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(path), re.MULTILINE | re.DOTALL)


def shell_lines(paths: Sequence[Path] = DOCUMENTS) -> list[str]:
    """Every command of the pages' `sh` blocks, and of the checkpoints' table."""
    shown = [line for path in paths for block in blocks(path, "sh") for line in block.splitlines()]
    lines = [line.split("  #")[0].strip() for line in shown]
    if ROOT / "checkpoints/README.md" in paths:
        lines += re.findall(r"`([A-Z_]+=\S+ python -m [^`]*)`", text_of(ROOT / "checkpoints/README.md"))
    return [line for line in lines if line and not line.startswith("#")]


def run(words: list[str], folder: Path) -> str:
    """A program's output, run in `folder` with the project on its path and without a launcher's variables."""
    keep = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    done = python.run(
        words,
        cwd=folder,
        env={**keep, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROGRAM,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
