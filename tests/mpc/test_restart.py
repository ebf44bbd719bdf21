"""`torchrun --max-restarts`: the parties of a second life meet each other, not the dead of the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


@pytest.mark.slow
def test_torchrun_restarts_the_parties(tmp_path: Path) -> None:
    """Party 1 dies after the meeting; torchrun's store, which outlives it, still holds both parties' addresses."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, "-m", "tests.jobs.restart"]
    ended = subprocess.run(command, cwd=ROOT, env=variables, text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"party {rank}, life 1: [3.0, -4.0]" for rank in range(2)]
