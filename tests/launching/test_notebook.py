"""`launch` in a notebook's kernel: functions of cells, an error's lines, and the button that interrupts."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from tests.launching.test_launch import alive
from tests.support.paths import ROOT
from tests.support.patience import HANG

CELL = """
import os, time, torch, hummingbird

def forever(session):
    print(f"pid {os.getpid()}")
    time.sleep(3600)

def fails(session):
    if session.rank == 1:
        raise ValueError("of party 1")
    hummingbird.cryptensor(None, src=1)
"""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=HANG)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def messages(client: Any, until: str) -> Iterator[dict[str, Any]]:
    """Messages of the kernel, to the first of this type; AssertionError if it does not come."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        yield message
        if message["msg_type"] == until:
            return
    raise AssertionError(f"no {until}")


@pytest.mark.slow
def test_a_kernel_shows_the_cells_line_and_can_be_interrupted(kernel: Any) -> None:
    manager, client = kernel
    # With stop_on_error the kernel would drop the next request too, if that comes soon enough after the error.
    client.execute(f"{CELL}\nhummingbird.launch(fails, timeout=3600)", stop_on_error=False)
    error = [*messages(client, "error")][-1]["content"]
    assert error["ename"] == "LaunchError" and error["evalue"].startswith("party 1 failed: ValueError: of party 1\n")
    assert 'raise ValueError("of party 1")' in error["evalue"] and "\nthen party 0: PeerError: " in error["evalue"]

    client.execute("hummingbird.launch(forever, timeout=3600)")
    told, pids = "", set()
    for message in messages(client, "error"):
        if message["msg_type"] == "stream":
            told += message["content"]["text"]
            known, pids = pids, {int(found) for found in re.findall(r"pid (\d+)\n", told)}
            if len(known) < 2 == len(pids):  # once
                manager.interrupt_kernel()
    assert message["content"]["ename"] == "KeyboardInterrupt"
    assert len(pids) == 2 and not any(map(alive, pids)) and "[party 1] pid" in told
