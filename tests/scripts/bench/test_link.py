"""Links between network namespaces: what they carry, how fast, and that nothing of them stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from hummingbird.errors import EnvironmentProblem, InputError
from scripts.bench import link
from scripts.bench.link import Link, places
from tests.support.paths import ROOT
from tests.support.patience import HANG

WHY_NOT = link.obstacle(Link.parse("100mbit"))
NO_DELAY = WHY_NOT or link.obstacle(Link(round_trip_seconds=0.02))
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=f"no network namespaces here: {WHY_NOT}")
needs_netem = pytest.mark.skipif(bool(NO_DELAY), reason=f"no netem here: {NO_DELAY}")

# Party 0 takes a connection from each of the others in turn, answers a byte, reads to the end, and prints seconds: from
# before its answer, so that a process that stands still makes a link slower, never faster.
SERVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    connection, _ = server.accept()
    byte = connection.recv(1)
    started = time.perf_counter()
    connection.sendall(byte)
    while connection.recv(1 << 20):
        pass
    print(time.perf_counter() - started, flush=True)
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
started = time.perf_counter()
connection.sendall(b"x")
connection.recv(1)
print(time.perf_counter() - started)
connection.sendall(bytes(int(sys.argv[2])))
"""


def transfer(where: list[link.Place], size: int) -> list[tuple[float, float]]:
    """Send `size` bytes from each other party to party 0: seconds for a byte there and back, and for the rest."""
    address = where[0].environment["MASTER_ADDR"]
    server = subprocess.Popen(
        [*where[0].prefix, sys.executable, "-c", SERVE, address, str(len(where) - 1)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        out = []
        for place in where[1:]:
            command = [*place.prefix, sys.executable, "-c", SEND, address, str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANG, check=True)
            out.append((float(done.stdout), float(server.stdout.readline())))
        assert server.wait(HANG) == 0
        return out
    finally:
        server.kill()
        server.communicate()


def ours() -> set[str]:
    return {name for name in link._existing() if name.startswith(f"{link.PREFIX}-")}


# Names ----------------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert Link.parse("loopback") == Link() and str(Link()) == "loopback"
    assert Link.parse("352mbit") == Link(352e6) and str(Link(352e6)) == "352 Mb/s"
    assert Link.parse("10gbit") == Link(1e10) and str(Link(1e10).with_round_trip(0.02)) == "10 Gb/s + 20 ms"
    assert Link.parse("0.5kbit").bits_per_second == 500


@pytest.mark.parametrize("text", ["", "10", "10Gb", "-1gbit", "0mbit", "gbit", "1gbit 2gbit"])
def test_what_is_no_link(text: str) -> None:
    with pytest.raises(InputError, match="is no link"):
        Link.parse(text)


# Where there are no namespaces ----------------------------------------------------------------------------------------


def test_loopback_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert link.obstacle(Link()) == ""
    with places(Link(), 3) as where:
        assert len(where) == 3 and not where[0].prefix
        assert len(transfer(where[:2], 1000)) == 1


def test_other_users_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert link.obstacle(Link(1e9)) == "network namespaces are for root"


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert link.obstacle(Link(1e9)) == "no program 'ip'"


# Where there are ------------------------------------------------------------------------------------------------------


@needs_namespaces
def test_the_rate_is_what_was_asked_for() -> None:
    """1448 of 1514 bytes of a frame are payload (TCP, 1500-byte packets); a full bucket passes 16 KiB at once."""
    size = 2 << 20
    for rate in (50e6, 200e6):
        with places(Link(rate), 2) as where:
            ((_, seconds),) = transfer(where, size)
        most = rate * 1448 / 1514 / (1 - (16 << 10) / size)
        assert 0.02 * most < 8 * size / seconds < 1.02 * most, (rate, seconds)  # a busy machine is slower


@pytest.mark.slow
@needs_namespaces
def test_three_parties_are_joined() -> None:
    with places(Link(100e6), 3) as where:
        assert len(transfer(where, 10_000)) == 2
        assert len({place.prefix[-1] for place in where}) == 3
        with places(Link(100e6), 2) as others:  # two links at a time do not meet
            assert not {place.prefix[-1] for place in where} & {place.prefix[-1] for place in others}
            assert len(transfer(others, 10_000)) == 1


@needs_netem
def test_the_delay_is_what_was_asked_for() -> None:
    with places(Link(1e9, 0.04), 2) as where:
        ((there_and_back, _),) = transfer(where, 1000)
    assert 0.04 <= there_and_back < 4.0  # a busy machine is slower


@needs_namespaces
def test_nothing_is_left_after_an_error() -> None:
    before, handler = ours(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), places(Link(1e9), 3):
        assert len(ours() - before) == 4  # a hub beside the parties
        raise ZeroDivisionError
    assert ours() == before and signal.getsignal(signal.SIGTERM) is handler


@needs_namespaces
def test_nothing_is_left_when_making_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ours()
    monkeypatch.setattr(link, "_NETWORK", "10.999.0")
    with pytest.raises(EnvironmentProblem, match="10.999.0.1"), places(Link(1e9), 2):
        pass
    assert ours() == before


HOLD = """
import time
from scripts.bench.link import Link, places
with places(Link(1e9), 2):
    print("ready", flush=True)
    time.sleep(3600)
"""


def holding() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@needs_namespaces
def test_nothing_is_left_after_sigterm_and_what_a_kill_leaves_is_removed_by_the_next() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = holding()
        mine = {f"{link.PREFIX}-{process.pid}-0-{rank}" for rank in range(2)}
        assert mine <= ours()
        process.send_signal(number)
        code = process.wait(HANG)
        process.communicate()
        if number == signal.SIGTERM:
            assert code == 128 + number and not mine & ours()
        else:
            assert code == -number and mine <= ours()
            with places(Link(1e9), 2):
                assert not mine & ours()


# Ports ----------------------------------------------------------------------------------------------------------------

# Draws the port that it is given first, and says which one it has got.
DRAWS = """
import random, sys
from types import SimpleNamespace
from scripts.bench import link
first, randrange = [int(sys.argv[1])], random.SystemRandom().randrange
drawn = SimpleNamespace(randrange=lambda least, most: first.pop() if first else randrange(least, most))
link.random = SimpleNamespace(SystemRandom=lambda: drawn)
print(link.free_port(), first)
"""


def test_the_port_of_a_run_on_loopback_is_held_from_its_choice_on() -> None:
    """Nobody listens on it yet, and another program that draws it goes on to the next."""
    with places(Link(), 2) as where:
        port = where[1].environment["MASTER_PORT"]
        command = [sys.executable, "-c", DRAWS, port]
        drawn = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG)
    assert re.fullmatch(r"\d+ \[\]\n", drawn.stdout) and drawn.stdout.split()[0] != port, drawn


def test_no_program_lets_a_port_go_before_it_is_used() -> None:
    """One that asks the system for a port keeps the socket, as a server does that says where it listens."""
    asking = {path.name for path in (ROOT / "scripts").rglob("*.py") if "getsockname" in path.read_text()}
    assert asking == {"relay.py"}
