"""SIGTERM as an exception of the main thread: wherever it strikes it does no harm, and is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
import torch

from hummingbird.errors import PeerError
from tests.support.parties import channels
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

# What the main thread does while it is told to stop. An exception in the wrong line of it shows: a thread that has not
# started cannot be joined, or ends with a KeyError; a lock is left, or given back twice; an entry is lost.
BUSY = {
    "starts threads": """
threads.append(threading.Thread(target=time.monotonic))
threads[-1].start()
""",
    "waits for a condition": """
with condition:
    condition.wait(1e-5)
""",
    "uses a queue": """
entries.put(1)
assert entries.get() == 1
""",
    "waits for a pool": """
assert pool.submit(time.monotonic).result(60)
""",
    "logs": """
log.warning("x")
""",
    "computes": """
sum(range(100))
""",
}
LOOP = """
import concurrent.futures, io, logging, os, queue, random, signal, sys, threading, time
from hummingbird.errors import PeerError
from hummingbird.rpc.signals import Stop
random.seed(1)
log = logging.getLogger("x")
log.addHandler(logging.StreamHandler(io.StringIO()))
log.propagate = False
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
for _ in range(int(sys.argv[1])):
    condition, entries, threads = threading.Condition(), queue.Queue(), []
    pool = concurrent.futures.ThreadPoolExecutor(2)
    stop = Stop(lambda: PeerError("told to stop"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3 + 5e-3 * random.random())
        while True:
            BUSY
    except PeerError as error:
        assert str(error) == "told to stop" and stop.raised
    stop.close()
    for thread in threads[:-1]:
        thread.join(60)
    assert not threads or not threads[-1].ident or threads[-1].join(60) is None
    assert condition.acquire(timeout=60)
    pool.submit(entries.put, 1).result(60)
    pool.shutdown()
"""
# Told to stop once, here; what waits for ever must end, in words.
ONCE = """
import os, signal, socket, subprocess, sys, threading, time
from hummingbird.errors import PeerError
from hummingbird.rpc.signals import Stop
def reason():
    assert threading.current_thread() is not threading.main_thread()
    time.sleep(0.2)
    return PeerError("told to stop")
stop = Stop(reason)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
try:
    WAIT
except PeerError as error:
    print(error)
"""
WAITS = {
    "sleep": "time.sleep(3600)",
    "event": "threading.Event().wait()",
    "join": "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start(); threading.enumerate()[-1].join()",
    "receive": "pair = socket.socketpair(); pair[0].recv(1)",
    "process": "subprocess.run(['sleep', '3600'])",
    "compute": "any(sum(range(n)) < 0 for n in iter(lambda: 9, 1))",
}


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM
    )


def indented(code: str, spaces: int) -> str:
    return code.strip().replace("\n", "\n" + " " * spaces)


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("busy", BUSY)
def test_it_strikes_where_it_does_no_harm(busy: str, times: int) -> None:
    ended = run(LOOP.replace("BUSY", indented(BUSY[busy], 12)), str(times // 10 if busy == "uses a queue" else times))
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("wait", WAITS)
def test_it_ends_every_wait(wait: str) -> None:
    ended = run(ONCE.replace("WAIT", WAITS[wait]))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "told to stop\n", "")


def test_a_destructor_does_not_swallow_it() -> None:
    code = """class Slow:
        def __del__(self):
            ends = time.monotonic() + 1.0
            while time.monotonic() < ends: pass
    del Slow
    time.sleep(3600)"""
    ended = run(ONCE.replace("WAIT", code.replace("del Slow\n", "Slow()\n")))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "told to stop\n", "")


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start(); time.sleep(3600)"
    ended = run(ONCE.replace("time.sleep(0.2)\n", "time.sleep(3600)\n").replace("WAIT", code))
    assert ended.returncode == -signal.SIGTERM and not ended.stdout


def test_a_forked_process_ends_alone() -> None:
    """As the workers of a DataLoader do, which are ended by SIGTERM: this process is not told."""
    code = """
import os, signal, time
from hummingbird.rpc.signals import Stop
stop = Stop(lambda: ValueError("told to stop"))
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.write(writer, b"!")  # a signal that comes before is lost: Python drops those that wait when it forks
    time.sleep(3600)
os.read(reader, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
time.sleep(0.3)
print("goes on")
"""
    ended = run(code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{-signal.SIGTERM}\ngoes on\n", ""), ended


def test_when_it_is_over_nothing_comes_and_handlers_are_as_before() -> None:
    code = """
import os, signal, threading, time
from hummingbird.rpc.signals import Stop
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGURG)
stop = Stop(lambda: ValueError("told to stop"), over=lambda: True, then=signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.3)
assert not stop.raised
stop.close()
assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGURG))
assert not any(thread.name == "hummingbird-stop" for thread in threading.enumerate())
"""
    ended = run(code)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


def test_a_channel_closes_after_a_signal_has_struck_while_a_thread_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(self: threading.Thread) -> None:
        raise PeerError("told to stop")

    a, b = channels(2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", struck)
        with pytest.raises(PeerError, match="told to stop"):
            a.send(1, torch.zeros(1 << 20))
    a.abort("told to stop")
    assert a.closed
    b.close()
