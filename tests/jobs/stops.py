"""Stops of a service, or of a plain run, under load, one after the other: COUNT SEED [run].

Each time two parties and a client that asks without a pause are forked from this process, which has imported all that
they need, and SIGTERM goes to both at moments of chance: while they meet, while they convert, while they answer. Prints
a line for each party that ends with another code than 0, or that writes a traceback, and at last how many stopped.

run: the parties run a program of their own, which computes, starts threads and waits in turn, and gets an exception: it
ends with code 1 and one error in two lines.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

import hummingbird
import hummingbird.commands.serve  # noqa: F401 - before the forks
import hummingbird.mpc.dealer.client  # noqa: F401
from hummingbird.__main__ import main as command
from hummingbird.commands.party import run_party
from hummingbird.errors import HummingbirdError
from hummingbird.serving.client import Client
from tests.support.parties import environment
from tests.support.patience import HANG, NEVER, until
from tests.support.ports import free_port
from tests.support.serving_nets import doubled

NET = ("--model", "tests.support.serving_nets:doubled", "--input", "4", "--window", "30:0")


def forked(run: Callable[[], int], output: Path) -> int:
    """A process that runs a function, and ends with its code; its output goes to a file."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = run()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def party(rank: int, port: int, folder: Path) -> int:
    """A party of the service."""
    os.environ.update(environment(rank, 2, port))
    listen = ["--listen", f"unix:{folder}/{{rank}}", "--dealer", f"unix:{folder.parent}/dealer"]
    return command(["serve", *NET, *listen, "--max-batch", "8"])


def program(rank: int, port: int, folder: Path) -> int:
    """Run as a party without `serve`, until SIGTERM ends the run."""
    os.environ.update(environment(rank, 2, port))

    def main() -> None:
        session = hummingbird.init(dealer=f"unix:{folder.parent}/dealer", timeout=NEVER)
        private = hummingbird.convert_model(doubled(), bits=hummingbird.BitWindow(30, 0))
        print("listening", flush=True)
        while True:
            x = torch.rand(3, 4) if session.rank == 0 else None
            private(hummingbird.cryptensor(x, src=0)).get_plain_text(dst=0)
            threads = [threading.Thread(target=time.sleep, args=(1e-4,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    run_party(main)
    return 0


def asker(folder: Path) -> int:
    """A client that asks until it is killed."""
    while True:
        try:
            with Client([f"unix:{folder}/{rank}" for rank in range(2)], timeout=2.0) as client:
                while True:
                    client(torch.rand(3, 4))
        except HummingbirdError:
            pass


def stopped_run(number: int, root: Path) -> int:
    """Stop one plain run, by one of its parties or both; returns how many parties have ended as they should."""
    folder = root / str(number)
    folder.mkdir()
    port = free_port()
    outputs = [folder / f"{rank}.out" for rank in range(2)]
    parties = [
        forked(lambda rank=rank: program(rank, port, folder), outputs[rank])  # type: ignore[misc]
        for rank in range(2)
    ]
    until(lambda: all(path.exists() and "listening" in path.read_text() for path in outputs), "a run")
    time.sleep(0.3 * random.random())
    for rank in random.choice(((0,), (1,), (0, 1), (1, 0))):
        os.kill(parties[rank], signal.SIGTERM)
    good = 0
    for rank, pid in enumerate(parties):
        status, said = code(pid), outputs[rank].read_text()
        if status == 1 and re.fullmatch(rf"listening\n\[party {rank}\] error: .+\nhint: .+\n", said):
            good += 1
        else:
            print(f"--- stop {number}, party {rank}: code {status}\n{said}", flush=True)
    return good


def stopped(number: int, root: Path) -> int:
    """Stop one service; returns how many of its parties have ended as they should."""
    folder = root / str(number)
    folder.mkdir()
    port = free_port()
    parties = [
        forked(lambda rank=rank: party(rank, port, folder), folder / f"{rank}.out")  # type: ignore[misc]
        for rank in range(2)
    ]
    client = forked(lambda: asker(folder), folder / "asker.out")
    try:
        until(lambda: all((folder / str(rank)).exists() for rank in range(2)), "the parties to listen")
        if random.random() < 0.5:
            until(lambda: all("listening" in (folder / f"{rank}.out").read_text() for rank in range(2)), "an answer")
        time.sleep(random.random())
        for rank in random.sample(range(2), 2):
            for _ in range(random.choice((1, 1, 2))):
                os.kill(parties[rank], signal.SIGTERM)
                time.sleep(random.choice((0.0, 0.0, 0.05)) * random.random())
        ended = [code(pid) for pid in parties]
    finally:
        os.kill(client, signal.SIGKILL)
        os.waitpid(client, 0)
    good = 0
    for rank, status in enumerate(ended):
        said = (folder / f"{rank}.out").read_text()
        if status == 0 and not re.search("Traceback|Exception (ignored )?in", said):
            good += 1
        else:
            print(f"--- stop {number}, party {rank}: code {status}\n{said}", flush=True)
    return good


def code(pid: int) -> int | str:
    """How a process has ended; one that does not is killed."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "none: it did not end"


def main() -> None:
    """Stop services, and count."""
    count, seed, stop = int(sys.argv[1]), int(sys.argv[2]), stopped_run if sys.argv[3:] == ["run"] else stopped
    random.seed(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hb") as name:
        root = Path(name)
        dealer = subprocess.Popen([sys.executable, "-m", "hummingbird", "dealer", "--listen", f"unix:{root}/dealer"])
        try:
            good = sum(stop(number, root) for number in range(count))
        finally:
            dealer.terminate()
            dealer.wait(HANG)
    print(f"seed {seed}: {good} of {2 * count} parties stopped in an orderly way", flush=True)


if __name__ == "__main__":
    main()
