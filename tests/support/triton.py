"""Triton's kernels without a GPU: run in its interpreter, in a process of their own, as its variable is read once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from tests.support.paths import ROOT


def interpret(program: str, *words: str) -> str:
    """Run a program with Triton's interpreter; what it prints. Skips the test where there is no Triton."""
    pytest.importorskip("triton")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": cache}
        return run(program, *words, environment=environment)


def run(program: str, *words: str, environment: dict[str, str] | None = None) -> str:
    """Run a program in a process of its own; what it prints."""
    command = [sys.executable, "-c", program, *words]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
