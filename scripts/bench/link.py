"""Links between parties on one host: loopback, or a network of their own with a rate (and a delay), for root on Linux.

Every party gets a network namespace, joined by a veth pair (by a bridge for more than two parties), and what it sends
is shaped as its network card would: `tc tbf` for the rate, `tc netem` for half of the round trip. Namespaces share the
file system, so that a dealer on a unix socket serves all parties. Loopback of a common kernel is some 30 Gb/s.

    with places(Link.parse("352mbit"), 2) as where:
        for rank, place in enumerate(where):
            subprocess.Popen([*place.prefix, "program"], env={**os.environ, **place.environment})

Namespaces are removed at the end of the block, also after an exception or SIGTERM, and those of a process that was
killed by the next one that makes some. `free_port` holds ports of loopback from their choice on.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hummingbird.errors import EnvironmentProblem, InputError

PREFIX = "hummingbird"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NETWORK = "10.251.0"  # inside the namespaces only: meets no network of the host
_PORT = 29500  # a new namespace has no other listener
_numbers = itertools.count()
_LEAST, _MOST = 15_000, 32_768  # ports below those that systems give to connections
_ours: set[int] = set()
_file = -1


def free_port() -> int:
    """A port of loopback on which nobody listens, and which no other process that asks here is given while this one
    lives.

    A lock on a byte of one file holds it: a socket that is bound and closed again would hold nothing, and the system
    gives such a port to whoever asks next.
    """
    global _file
    if _file < 0:
        path = Path(tempfile.gettempdir()) / f"hummingbird-ports-{os.getuid()}"
        _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        port = random.SystemRandom().randrange(_LEAST, _MOST)
        if port in _ours:
            continue
        with contextlib.suppress(OSError):
            fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            socket.create_server(("127.0.0.1", port)).close()
            _ours.add(port)
            return port


class Place(NamedTuple):
    """Where a party runs: words before its command, and variables for torchrun's rendezvous."""

    prefix: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Link:
    """bits_per_second: what each party can send, None on loopback; round_trip_seconds: there and back."""

    bits_per_second: float | None = None
    round_trip_seconds: float = 0.0

    @classmethod
    def parse(cls, text: str, where: str = "--links") -> Link:
        """`loopback`, or a rate in tc's units, such as `10gbit` or `352mbit`. InputError for anything else.

        where: the option that has the text.
        """
        if text == "loopback":
            return cls()
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text)
        if not found or not float(found[1]):
            raise InputError(f"{text!r} is no link", where=where, hint="loopback, or a rate such as 352mbit")
        return cls(float(found[1]) * _UNITS[found[2]])

    def with_round_trip(self, seconds: float) -> Link:
        return replace(self, round_trip_seconds=seconds)

    def __str__(self) -> str:
        rate = self.bits_per_second
        name = "loopback" if rate is None else f"{rate / 1e9:g} Gb/s" if rate >= 1e9 else f"{rate / 1e6:g} Mb/s"
        return f"{name} + {1e3 * self.round_trip_seconds:g} ms" if self.round_trip_seconds else name


def obstacle(link: Link) -> str:
    """Why this host cannot make such a link, "" if it can: found out by making one."""
    try:
        with places(link, 2):
            return ""
    except EnvironmentProblem as error:
        return error.what


@contextlib.contextmanager
def places(link: Link, parties: int) -> Iterator[list[Place]]:
    """A place for each party, until the end of the block.

    EnvironmentProblem where this user or kernel cannot make the link; loopback without a delay is always there.
    """
    if link == Link():
        yield [Place([], _rendezvous("127.0.0.1", free_port(), "lo"))] * parties
        return
    if os.geteuid():
        raise EnvironmentProblem("network namespaces are for root", hint="run as root, or use loopback")
    _remove_stale()
    base = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    names = [f"{base}-{rank}" for rank in range(parties)]
    with _removed_at_the_end([*names, f"{base}-hub"]):
        _join(names, f"{base}-hub")
        for name in names:
            _shape(name, link)
        variables = _rendezvous(_address(0), _PORT, "eth0")
        yield [Place(["ip", "netns", "exec", name], variables) for name in names]


@contextlib.contextmanager
def own_loopback(link: Link) -> Iterator[list[str]]:
    """Words before a command that runs where loopback is this link, for programs that trust nothing else unencrypted.

    Both directions share the rate. EnvironmentProblem as of `places`.
    """
    if link == Link():
        yield []
        return
    if os.geteuid():
        raise EnvironmentProblem("network namespaces are for root", hint="run as root, or use loopback")
    _remove_stale()
    name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}-0"
    with _removed_at_the_end([name]):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up")  # its own 64 kB would never pass the bucket
        _shape(name, link, "lo")
        yield ["ip", "netns", "exec", name]


def _rendezvous(address: str, port: int, interface: str) -> dict[str, str]:
    # Gloo would take the interface that the host's name leads to, which need not be this one.
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": interface}


def _address(rank: int) -> str:
    return f"{_NETWORK}.{rank + 1}"


def _join(names: list[str], hub: str) -> None:
    """Namespaces with an interface `eth0` each that reaches all others."""
    for name in names:
        _run("ip", "netns", "add", name)
    ends = "type veth peer name".split()
    if len(names) == 2:
        _run("ip", "-n", names[0], "link", "add", "eth0", *ends, "eth0", "netns", names[1])
    else:
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            _run("ip", "-n", name, "link", "add", "eth0", *ends, f"port{rank}", "netns", hub)
            _run("ip", "-n", hub, "link", "set", f"port{rank}", "master", "bridge", "up")
    for rank, name in enumerate(names):
        _run("ip", "-n", name, "addr", "add", f"{_address(rank)}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):  # lo carries what a party sends to its own address
            _run("ip", "-n", name, "link", "set", interface, "up")


def _shape(name: str, link: Link, interface: str = "eth0") -> None:
    """Delay, then rate, on what leaves this namespace by an interface."""
    below = ["root"]
    if link.round_trip_seconds:
        delay = f"{5e5 * link.round_trip_seconds:.0f}us"
        _run("tc", "-n", name, "qdisc", "add", "dev", interface, *below, "handle", "1:", "netem", "delay", delay)
        below = ["parent", "1:1"]
    if link.bits_per_second is not None:
        # The bucket lets this much pass unshaped after a pause: little beside a layer's message, but at least 100 us
        # of the rate, or the kernel's timer cannot keep it up (64 kB: 5.9 of 10 Gb/s, 128 kB: 9.5, headers aside).
        burst = max(16 << 10, int(link.bits_per_second * 105e-6 / 8))
        rate = f"{link.bits_per_second:.0f}bit"
        words = ["tbf", "rate", rate, "burst", str(burst), "limit", str(burst + (4 << 20))]
        _run("tc", "-n", name, "qdisc", "add", "dev", interface, *below, *words)


@contextlib.contextmanager
def _removed_at_the_end(names: list[str]) -> Iterator[None]:
    """Remove these namespaces, and the interfaces in them, however the block ends; SIGTERM ends it as an exit."""
    catches = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if catches else None
    if catches:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        if catches:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until all are removed
        for name in set(names) & set(_existing()):
            _run("ip", "netns", "delete", name)
        if catches:
            signal.signal(signal.SIGTERM, before)


def _existing() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _remove_stale() -> None:
    """Namespaces of processes that are no more."""
    for name in _existing():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-\d+-(\d+|hub)", name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            with contextlib.suppress(EnvironmentProblem):  # another process may be removing it, too
                _run("ip", "netns", "delete", name)


def _run(*words: str) -> str:
    """A command's output; EnvironmentProblem if it is not there or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise EnvironmentProblem(f"no program {words[0]!r}", hint="install iproute2") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise EnvironmentProblem(f"`{' '.join(words)}`: {said}", hint="does this kernel or container allow it?")
    return done.stdout
