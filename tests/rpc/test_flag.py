"""A flag that a signal's handler may set."""

from __future__ import annotations

import subprocess
import sys
import threading

from hummingbird.rpc.signals import Flag
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

# With threading.Event in place of Flag this hangs: sooner or later a signal comes while `wait` holds the event's lock.
_SIGNALS = """
import random, signal
from hummingbird.rpc.signals import Flag
for _ in range(5000):
    flag = Flag()
    signal.signal(signal.SIGALRM, lambda *_: flag.set())
    signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-4 * random.random())
    while not flag.wait(1e-6):
        pass
"""


def test_signals_may_come_at_any_moment() -> None:
    subprocess.run([sys.executable, "-c", _SIGNALS], cwd=ROOT, check=True, timeout=PROGRAM)


def test_another_thread_ends_a_wait() -> None:
    flag = Flag()
    assert not flag.is_set() and not flag.wait(0.0)
    thread = threading.Thread(target=flag.set)
    thread.start()
    thread.join()
    assert flag.is_set() and flag.wait(60.0)
