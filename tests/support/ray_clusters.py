"""Scenarios of tests/jobs/ray_parts.py, each a process in a network of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

ALONE = ["unshare", "-rn"]  # a network with nothing but loopback, which needs no privileges


def lacking() -> str:
    """Why the scenarios cannot run here, or no text."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed (extra ray)"
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        return "no network namespaces here (unshare -rn), and Ray would listen on this host's outer address"
    return ""


clustered = pytest.mark.skipif(bool(why := lacking()), reason=why or "never")


def play(scenario: str, folder: Path, timeout: float = PROGRAM, **variables: str) -> str:
    """Run a scenario; return what it has printed, after it has passed."""
    words = [*ALONE, sys.executable, "-m", "tests.jobs.ray_parts", scenario, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    with tempfile.TemporaryDirectory(prefix="hb", ignore_cleanup_errors=True) as sockets:  # a short path
        environment["RAY_TMPDIR"] = sockets
        ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0 and "PASSED" in ended.stdout, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout
