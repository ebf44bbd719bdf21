"""Several ranks on this host, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


def command(count: int, *words: str) -> list[str]:
    """torchrun's line for a module of tests/jobs and its arguments."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    return [*torchrun, "-m", f"tests.jobs.{words[0]}", *words[1:]]


def environment(path: Path = ROOT) -> dict[str, str]:
    """One thread for each rank; no variables of another torchrun; path: a folder with modules of the user's."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{path}"}


def run(count: int, *words: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The program at so many ranks, to its end."""
    line, env = command(count, *words), environment(path)
    return python.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PROGRAM)
