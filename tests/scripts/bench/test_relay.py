"""The relay that delays what passes: how long at least, in order, all of it, and that it ends with who started it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hummingbird.errors import HummingbirdError
from scripts.bench.relay import READY, relayed
from tests.support import python
from tests.support.paths import ROOT
from tests.support.patience import HANG

DELAY = 0.03  # of each way, seconds


@contextmanager
def echoing(address: str | tuple[str, int], family: int = socket.AF_INET) -> Iterator[str]:
    """The address of a server that answers one connection by what it reads, and ends when that does."""
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.settimeout(HANG)

        def serve() -> None:
            connection, _ = server.accept()
            while chunk := connection.recv(1 << 16):
                connection.sendall(chunk)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix:{address}" if isinstance(address, str) else f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(HANG)
        assert not thread.is_alive()


def connected(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=HANG)


def test_a_byte_there_and_back_takes_both_delays(tmp_path: Path) -> None:
    with echoing(str(tmp_path / "echo"), socket.AF_UNIX) as target, relayed(target, DELAY) as address:
        with connected(address) as near:
            for _ in range(3):
                started = time.monotonic()
                near.sendall(b"x")
                assert near.recv(1) == b"x" and time.monotonic() - started >= 2 * DELAY


def test_a_rate_is_kept_over_sockets_with_a_path(tmp_path: Path) -> None:
    """Two MB there, in 0.1 s; what comes back is under way meanwhile."""
    sent, rate = bytes(2_000_000), 160e6
    with (
        echoing(str(tmp_path / "echo"), socket.AF_UNIX) as target,
        relayed(target, 0.0, listen=f"unix:{tmp_path / 'far'}", rate=rate) as address,
        socket.socket(socket.AF_UNIX) as near,
    ):
        near.settimeout(HANG)
        near.connect(address.removeprefix("unix:"))
        started = time.monotonic()
        threading.Thread(target=near.sendall, args=(sent,), daemon=True).start()
        got = 0
        while got < len(sent):
            got += len(near.recv(1 << 16))
        assert time.monotonic() - started >= 8 * len(sent) / rate


def test_all_bytes_pass_in_order_and_the_end_after_them() -> None:
    sent = bytes(range(256)) * 16384  # 4 MiB, more than any socket holds: the relay takes all of it at once
    with echoing(("127.0.0.1", 0)) as target, relayed(target, DELAY) as address, connected(address) as near:
        near.sendall(sent)
        near.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: near.recv(1 << 16), b""))
    assert got == sent


def test_it_ends_with_its_stdin_and_says_where_it_failed() -> None:
    words = [
        sys.executable,
        "-m",
        "scripts.bench.relay",
        "--listen",
        "127.0.0.1:0",
        "--to",
        "unix:none",
        "--delay",
        "1",
    ]
    process = python.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None and process.stdout.readline().startswith(READY)
    process.stdin.close()
    assert process.wait(HANG) == 0
    with pytest.raises(HummingbirdError, match="did not start"), relayed("unix:none", 0.001, port=1 << 17):
        pass
