"""Dealers that many tests share."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.dealers import Running


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    here = Running(tmp_path_factory.mktemp("dealer"))
    yield here
    for client in here.clients:
        client.close()
    here.server.stop(0).wait()


@pytest.fixture(scope="module")
def process():
    """One dealer in a process of its own, without --once, for several tests."""
    folder = Path(tempfile.mkdtemp())  # pytest's own may be too long for a socket's path
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", f"unix:{folder}/d.sock"]
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert child.stdout is not None
    assert child.stdout.readline() == f"dealer listening on unix:{folder}/d.sock\n"
    yield f"unix:{folder}/d.sock", time.monotonic() - started
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    child.stdout.close()
    assert not (folder / "d.sock").exists()
    folder.rmdir()
