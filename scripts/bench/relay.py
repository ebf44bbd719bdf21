"""A link between a client and a server on one host, where tc cannot make one: a delay, a rate, or both.

    python -m scripts.bench.relay --listen 127.0.0.1:0 --to unix:gc.sock --delay 10     # a round trip takes 20 ms more
    python -m scripts.bench.relay --listen unix:far.sock --to unix:dealer.sock --delay 0 --rate 352e6

Each connection to --listen is carried on to --to. What is read in either direction is written --delay milliseconds
later, in order, and how much is held has no limit. With --rate each direction of a connection is read no faster, in
bits per second, so that who sends has to wait. TCP itself sees no delay: its slow start does not grow with the round
trip as on a long line, flow control above it (HTTP/2's) does.

The first line on stdout says where it listens. It ends with its stdin: with whoever has started it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from hummingbird.errors import HummingbirdError
from scripts.program import ROOT, new_parser

CHUNK = 1 << 18
READY = "relay listening on "
_GRACE = 10.0  # seconds to end in


def carry(source: socket.socket, sink: socket.socket, delay: float, rate: float | None = None) -> None:
    """Write the bytes of `source` to `sink`, `delay` seconds later, to their end, which is passed on.

    rate: bits per second that are read at most; None: all that come.
    """
    held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def write() -> None:
        with contextlib.suppress(OSError):  # who reads is gone
            while True:
                due, chunk = held.get()
                time.sleep(max(0.0, due - time.monotonic()))  # to 0.1 ms; asyncio's would be whole milliseconds
                if not chunk:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(chunk)

    threading.Thread(target=write, daemon=True).start()
    chunk, free = b"+", 0.0  # free: when the last chunk has passed
    while chunk:
        try:
            chunk = source.recv(CHUNK)
        except OSError:
            chunk = b""
        if rate is not None:
            free = max(free, time.monotonic()) + 8 * len(chunk) / rate
            time.sleep(max(0.0, free - time.monotonic()))
        held.put((time.monotonic() + delay, chunk))


def serve(listener: socket.socket, target: str, delay: float, rate: float | None = None) -> None:
    """Carry every connection to `target`, "unix:PATH" or "HOST:PORT", and back, each way with this delay and rate."""
    while True:
        here, _ = listener.accept()
        try:
            there = _connected(target)
        except OSError:  # nobody listens: the caller's connection ends
            here.close()
            continue
        for end in (here, there):
            if end.family == socket.AF_INET:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((here, there), (there, here)):
            threading.Thread(target=carry, args=(source, sink, delay, rate), daemon=True).start()


def _connected(target: str) -> socket.socket:
    if target.startswith("unix:"):
        there = socket.socket(socket.AF_UNIX)
        there.connect(target.removeprefix("unix:"))
        return there
    host, _, port = target.rpartition(":")
    return socket.create_connection((host, int(port)))


def _listening(address: str) -> socket.socket:
    if address.startswith("unix:"):
        return socket.create_server(address.removeprefix("unix:"), family=socket.AF_UNIX)
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)))


@contextlib.contextmanager
def relayed(
    target: str, delay: float, port: int = 0, *, listen: str | None = None, rate: float | None = None
) -> Iterator[str]:
    """The address of a relay to `target`, a process that ends with the block.

    delay: of each way, seconds. rate: of each way, bits per second. listen: "unix:PATH"; None: on a port of loopback.
    """
    words = ["--listen", listen or f"127.0.0.1:{port}", "--to", target, "--delay", str(1e3 * delay)]
    words += [] if rate is None else ["--rate", str(rate)]
    command = [sys.executable, "-m", "scripts.bench.relay", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith(READY):
            raise HummingbirdError("the relay did not start; its error is above", where=target)
        yield said.removeprefix(READY).strip()
        process.stdin.close()
        process.wait(_GRACE)
    finally:
        process.kill()
        process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the program until its stdin ends."""
    p = new_parser(__doc__)
    p.add_argument("--listen", required=True, metavar="ADDRESS", help="HOST:PORT, 0 for any that is free, or unix:PATH")
    p.add_argument("--to", required=True, metavar="ADDRESS", help="unix:PATH or HOST:PORT")
    p.add_argument("--delay", required=True, type=float, metavar="MS", help="of each way")
    p.add_argument("--rate", type=float, metavar="BITS/S", help="of each way of a connection (default: no limit)")
    args = p.parse_args(arguments)
    with _listening(args.listen) as listener:
        name = listener.getsockname()
        print(f"{READY}{f'unix:{name}' if isinstance(name, str) else f'{name[0]}:{name[1]}'}", flush=True)
        words = (listener, args.to, args.delay / 1e3, args.rate)
        threading.Thread(target=serve, args=words, daemon=True).start()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
