"""The dealer as a program, `python -m hummingbird dealer --listen ...`, and as a process that party 0 starts.

Neither sees an input. But whoever controls the dealer and one party can read the secrets of that run. So party 0 should
start a dealer, on its own host, only if all parties share this host anyway.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hummingbird.errors import DealerError, HummingbirdError
from hummingbird.kernels import devices
from hummingbird.kernels.devices import find_device, processors
from hummingbird.mpc.dealer.server import IDLE_SECONDS, DealerService, handlers
from hummingbird.rpc.options import add_service, count, service_of
from hummingbird.rpc.programs import ServiceParts, run_service
from hummingbird.rpc.service import check_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_NAME = "dealer"
_READY = f"{_NAME} listening on "
_FOLDER = "hummingbird-"  # prefix of the directories of local dealers' sockets
_spawned: list[tuple[subprocess.Popen[bytes], Callable[[], None]]] = []  # each with the function that ends it
_CLOSED = 5.0  # seconds in which a dealer ends after it has closed its output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the program `hummingbird dealer` to a parser."""
    listen = "HOST:PORT or unix:PATH; another host than this one needs certificates, a party's for party-RANK"
    add_service(parser, listen=listen, tokens=False, grace=1.0)
    parser.add_argument("--parties", type=int, metavar="N", help="refuse sessions of another size")
    parser.add_argument("--device", default="cpu", help="cuda: deal there to parties on GPUs, as far as kernels allow")
    add_threads(parser)
    text = "end after N sessions, with the parent process, or with a pipe on stdin"
    parser.add_argument("--sessions", type=int, metavar="N", help=text)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option `--threads`, the number of threads that compute dealt material, to a parser."""
    text = "threads that deal (default: one for each processor of this process)"
    parser.add_argument("--threads", type=count, metavar="N", help=text)


def deal_on(threads: int | None) -> None:
    """Set with how many threads this process computes dealt material from now on; None: one for each processor."""
    torch.set_num_threads(threads or processors())


def main(args: argparse.Namespace) -> int:
    """Run a dealer until SIGTERM or SIGINT; return the exit status, 0.

    With `--sessions N` the dealer also ends after N sessions, with the process that started it, and when a pipe on its
    stdin is closed.
    args: the options of `add_arguments`.
    Raises the errors of `rpc.programs.run_service`.
    """
    config = service_of(args)
    # A party may leave a stream unread for as long as its session may be idle.
    config = replace(config, limits=replace(config.limits, stall=IDLE_SECONDS))
    devices.keep_freed_memory()
    deal_on(args.threads)
    parent = os.getppid()
    dealer = DealerService(parties=args.parties, device=find_device(args.device, "--device"))

    def over() -> bool:
        """Return whether this dealer is to end; always False without `--sessions N`.

        It is to end after N sessions, or once the process that started it is gone.
        """
        return bool(args.sessions) and (dealer.ended >= args.sessions or os.getppid() != parent or _stdin_closed())

    def measure(registry: CollectorRegistry) -> None:
        from hummingbird.mpc.dealer.figures import DealerFigures

        registry.register(DealerFigures(dealer))

    # A dealer that answers can deal: it is ready as soon as it listens.
    run_service(_NAME, config, ServiceParts([handlers(dealer)], measure, look=over))
    folder = Path(config.listen[0].removeprefix("unix:")).parent
    if args.sessions and folder.name.startswith(_FOLDER):
        # The parent removes this directory, unless it was killed. Other files in it stay.
        with contextlib.suppress(OSError):
            folder.rmdir()
    return 0


def _stdin_closed() -> bool:
    """Whether stdin is a pipe whose other end is closed, which shows that the parent process is gone.

    False for a stdin that is closed itself, /dev/null or a terminal: these tell nothing about a parent. Bytes that
    arrive on the pipe are read and dropped.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return False
    except OSError:
        return False
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def spawn_local(parties: int, timeout: float, sessions: int = 1) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a dealer process on this host for `sessions` sessions of `parties` parties.

    Returns the dealer's address and the process. The dealer listens on a unix socket in a new directory that only this
    user can enter. It ends with its last session or with this process, whichever ends first.
    timeout: seconds. Raises DealerError if the dealer ends before it listens, or does not listen within `timeout`.
    """
    _forget_ended()
    folder = tempfile.mkdtemp(prefix=_FOLDER)  # mode 0700
    address = f"unix:{folder}/dealer.sock"
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    # The dealer shares its processors with parties, so its threads must not spin while they wait, as OpenMP's do.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": path}
    try:
        check_address(address, None)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, "--listen", address, f"--parties={parties}", f"--sessions={sessions}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the parties only; their end also ends the dealer
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    clean_up = partial(_clean_up, process, folder)
    _spawned.append((process, clean_up))
    atexit.register(clean_up)
    try:
        _wait_until_ready(process, address, time.monotonic() + timeout, timeout)
    except BaseException:
        _clean_up(process, folder)
        raise
    return address, process


def _forget_ended() -> None:
    """Clean up after dealers of earlier sessions that have ended: reap the processes, remove their directories."""
    for pair in list(_spawned):
        process, clean_up = pair
        if process.poll() is not None:
            _spawned.remove(pair)
            atexit.unregister(clean_up)
            clean_up()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, deadline: float, timeout: float) -> None:
    assert process.stdout is not None
    output = b""
    while b"\n" not in output:
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise DealerError(
                f"the local dealer did not start within {timeout:.0f} s",
                where=address,
                hint="is the machine overloaded? hummingbird.init(timeout=...) takes more seconds",
            )
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            try:
                status = f"ended with exit status {process.wait(_CLOSED)}"
            except subprocess.TimeoutExpired:
                status = "closed its output"
            raise DealerError(
                f"the local dealer {status} before it listened",
                where=address,
                hint="its error message is above, on stderr",
            )
        output += piece
    if not output.decode(errors="replace").startswith(_READY):
        raise DealerError(f"the local dealer said {output[:200]!r}", where=address)


def _clean_up(process: subprocess.Popen[bytes], folder: str) -> None:
    """End a dealer process that `spawn_local` started, and remove the directory of its socket.

    Closing its stdin tells the dealer to end. If it has not ended after 5 seconds, it is killed. folder: the directory.
    """
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="dealer", description="Deal correlated randomness to the parties of a run.")
    add_arguments(_parser)
    try:
        sys.exit(main(_parser.parse_args()))
    except HummingbirdError as error:
        sys.exit(f"error: {error}")
