"""Dealers, sessions and parties that several test files share."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hummingbird
from hummingbird.mpc.plan import builders
from hummingbird.mpc.session import session as sessions
from tests.support import python
from tests.support.dealers import Running
from tests.support.nursery import Nursery, open_dealer, open_nursery
from tests.support.parties import init_alone
from tests.support.paths import ROOT
from tests.support.patience import HANG

# Workers of pytest share the cores: more threads than cores wait for each other.
if WORKERS := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
    torch.set_num_threads(THREADS)
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

# Where there is no GPU, PyTorch keeps every seed for one that may come, with the text of the whole stack: milliseconds.
for backend in (torch.cuda, torch.xpu):
    if not backend.is_available():
        backend.manual_seed_all = lambda seed: None

# A shell without job control starts what runs in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def seed_of(name: str) -> int:
    """The seed of a test's draws: of its name and HUMMINGBIRD_TEST_SEED, so the same alone and among others."""
    text = f"{os.environ.get('HUMMINGBIRD_TEST_SEED', '0')} {name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest) -> None:
    """Begin all generators that nobody else seeds at the test's own seed."""
    seed = seed_of(request.node.nodeid)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Set the number of threads back: a program's `main` may raise it, and OpenMP's threads wait by spinning."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which would look at all of them again and again and free nothing."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter free at its end all that was collected: libraries say what is left then."""
    gc.unfreeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Name the seed beside a failure."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        base = os.environ.get("HUMMINGBIRD_TEST_SEED", "0")
        report.sections.append(("seed", f"{seed_of(item.nodeid)}, by HUMMINGBIRD_TEST_SEED={base}"))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    here = Running(tmp_path_factory.mktemp("dealer"))
    yield here
    for client in here.clients:
        client.close()
    here.server.stop(0).wait()


@pytest.fixture(scope="module")
def process():
    """One dealer in a process of its own, without --sessions, for several tests."""
    folder = Path(tempfile.mkdtemp())  # pytest's own may be too long for a socket's path
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", f"unix:{folder}/d.sock"]
    child = python.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == f"dealer listening on unix:{folder}/d.sock\n"
    yield f"unix:{folder}/d.sock"
    child.send_signal(signal.SIGTERM)
    assert child.wait(HANG) == 0
    child.stdout.close()
    assert not (folder / "d.sock").exists()
    folder.rmdir()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[sessions.Session]:
    """A session of one party."""
    monkeypatch.delenv("RANK", raising=False)
    yield init_alone()
    hummingbird.uninit()


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Every test begins and ends without a session and with the converters it found."""
    assert not sessions.is_initialized()
    before = dict(builders.CUSTOM)
    torch.manual_seed(0)
    yield
    assert not sessions.is_initialized()
    builders.CUSTOM.clear()
    builders.CUSTOM.update(before)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with open_nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def dealer() -> Iterator[str]:
    with open_dealer() as address:
        yield address
