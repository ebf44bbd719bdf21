"""Programs that run as parties in tests of failures: `python -m tests.jobs.failures JOB WORDS`."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hummingbird
from hummingbird.__main__ import parser
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands import infer
from hummingbird.commands.party import run_party
from hummingbird.errors import ConfigError, HummingbirdError, InputError
from hummingbird.mpc.session import launch
from hummingbird.mpc.session import session as sessions
from tests.jobs import gathering, stores
from tests.jobs.lanes import lanes
from tests.support.patience import HANG, NEVER

SECRET = "4711.25"  # party 0's, in the text of an exception that no other party may read
DIGITS = ["--model", "models:get_model", "digits", "10", "--data", "torch:zeros", "120", "1", "8", "8"]


def net(seed: int = 0, width: int = 8) -> nn.Sequential:
    """A small net for rows of 6; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 3)).eval()


def rows(count: int = 5) -> torch.Tensor:
    """Input for `net`."""
    torch.manual_seed(1)
    return torch.randn(count, 6)


def infer_once(rank: int, x: torch.Tensor | None = None, model: nn.Module | None = None, **options: Any) -> Any:
    """Convert and run, with the result opened to all parties."""
    private = hummingbird.convert_model(net() if model is None else model, **options)
    shared = hummingbird.cryptensor((rows() if x is None else x) if rank == 0 else None, src=0)
    return private(shared).get_plain_text()


# Failures among living parties ---------------------------------------------------------------------------------------


def _without_a_layer(rank: int) -> None:
    """Party 0 applies two nets, the other party only the second one."""
    first, second = (hummingbird.convert_model(nn.Sequential(nn.ReLU(), nn.Flatten())) for _ in range(2))
    x = hummingbird.cryptensor(rows() if rank == 0 else None, src=0)
    second(first(x) if rank == 0 else x).get_plain_text()


def _other_operation(rank: int) -> None:
    x = hummingbird.cryptensor(rows() if rank == 0 else None, src=0)
    (x.square() if rank == 0 else x.relu()).get_plain_text()


def _large_against_small(rank: int) -> None:
    """Both are sending more than the sockets buffer when they see that the other sends something else."""
    count = 3_000_000 if rank == 0 else 1_000_000
    sessions.current().channel.exchange(torch.zeros(count, dtype=torch.int64))


def _large_to_a_party_that_fails(rank: int) -> None:
    """A write fails before the reason is read."""
    session = sessions.current()
    session.channel.exchange_text("go")
    if rank == 1:
        raise InputError("party 1 is out of paper", where="the printer", hint="buy some")
    session.channel.exchange(torch.zeros(3_000_000, dtype=torch.int64))


def _own_exception(rank: int) -> None:
    hummingbird.convert_model(net())
    if rank == 0:
        raise ZeroDivisionError(f"{SECRET} / 0")
    hummingbird.cryptensor(None, src=0)


def _version(rank: int) -> None:
    """init() again, with another version at party 1."""
    hummingbird.uninit()
    true, launch.VERSION = launch.VERSION, "9.9.9" if rank == 1 else launch.VERSION
    try:
        hummingbird.init(timeout=NEVER, dealer=os.environ["DEALER"])
    finally:
        launch.VERSION = true


def _twice(rank: int) -> None:
    hummingbird.init()


def _ended(rank: int) -> None:
    """Party 1 leaves in an orderly way, too early."""
    if rank == 1:
        hummingbird.uninit()
        raise HummingbirdError("party 1 has finished")
    infer_once(rank)


BAD_INPUTS = {
    "NaN": rows().masked_fill(rows() > 1, float("nan")),
    "range": rows() * 2.0**31,
    "dtype": rows().long(),
    "nine dimensions": torch.zeros([1] * 9),
    "no tensor": rows().numpy(),
}
FAILURES: dict[str, Callable[[int], Any]] = {
    "weights": lambda rank: infer_once(rank, model=net(seed=rank)),
    "architecture": lambda rank: infer_once(rank, model=net(width=8 + rank)),
    "bits": lambda rank: infer_once(rank, bits=BitWindow(20 + rank, 4)),
    "bits of a layer": lambda rank: infer_once(
        rank, bits=BitConfig(layers={"1": BitWindow(20, 4), **({"3": BitWindow(18, 2)} if rank else {})})
    ),
    "aim": lambda rank: infer_once(rank, aim="throughput" if rank else "latency"),
    "owner": lambda rank: infer_once(rank, weights=rank % 2),
    "owner or public": lambda rank: infer_once(rank, weights=0 if rank else "public"),
    "batch": lambda rank: hummingbird.cryptensor(rows(5 - rank), src=0).get_plain_text(),
    "layer skipped": _without_a_layer,
    "other operation": _other_operation,
    "large messages": _large_against_small,
    "large message": _large_to_a_party_that_fails,
    "version": _version,
    "twice": _twice,
    "exception": _own_exception,
    "ended": _ended,
    "net's input": lambda rank: infer_once(rank, x=torch.zeros(5, 7)),
    **{
        name: lambda rank, x=x: hummingbird.cryptensor(x if rank == 0 else None, src=0)
        for name, x in BAD_INPUTS.items()
    },
}


def failures(*names: str) -> None:
    """Run into each failure with a session of its own, tell the others as `run_party` does, and go on.

    Prints a JSON object: name -> [error's class, its text, seconds from the start of the failing program].
    """
    rank, seen = int(os.environ["RANK"]), {}
    for name in names:
        hummingbird.init(timeout=NEVER, dealer=os.environ["DEALER"])
        sessions.current().channel.exchange_text("start")
        started = time.perf_counter()
        try:
            FAILURES[name](rank)
            seen[name] = ("nothing", "", 0.0)
        except Exception as error:
            seen[name] = (type(error).__name__, str(error), time.perf_counter() - started)
            launch.abort(error)
    print(json.dumps(seen))


# Whole programs ------------------------------------------------------------------------------------------------------


def again() -> None:
    """Use before init, init, init again after uninit, with a dealer of its own each time: prints what came out."""
    out: list[Any] = []
    for use in (lambda: hummingbird.cryptensor(rows()), lambda: hummingbird.convert_model(net())(rows())):
        try:
            use()
        except HummingbirdError as error:
            out.append(str(error))
    for dealer in (None, os.environ["DEALER"], None):
        session = launch.init(timeout=HANG, dealer=dealer)
        out.append(infer_once(session.rank, weights=1).tolist())
        hummingbird.uninit()
        hummingbird.uninit()
    print(json.dumps(out))


def script() -> None:
    """A user's own program, which knows nothing of `run_party` and has a fault."""
    hummingbird.init(timeout=NEVER, dealer=os.environ["DEALER"])
    rank = sessions.current().rank
    infer_once(rank)
    if rank == 0:
        raise ZeroDivisionError(f"{SECRET} / 0")
    infer_once(rank)


def forever(timeout: str, listen: str | None = None) -> None:
    """Inference until somebody dies; large enough for messages that another thread sends. Says when it is under way.

    listen: where this process takes connections.
    """
    session = launch.init(timeout=float(timeout), dealer=os.environ.get("DEALER"), peer_listen=listen)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).eval()
    private = hummingbird.convert_model(model)
    x = torch.randn(64, 1, 8, 8)
    for number in range(10**6):
        private(hummingbird.cryptensor(x if session.rank == 0 else None, src=0)).get_plain_text(dst=0)
        if number == 0:
            print("running", flush=True)


def deal(version: str) -> None:
    """A dealer, as `python -m hummingbird dealer` runs it, of the version that is asked for."""
    from hummingbird.mpc.dealer import command, server

    server.VERSION = version or server.VERSION
    options = argparse.ArgumentParser()
    command.add_arguments(options)
    command.main(options.parse_args(["--listen", os.environ["DEALER"]]))


def meet(timeout: str) -> None:
    """Only init."""
    hummingbird.init(timeout=float(timeout), dealer=os.environ["DEALER"])


def blocked() -> None:
    """Party 0 gives up while it is sending to a party that stands still until the test wakes it: sys.exit, no word to
    anybody.
    """
    session = launch.init(timeout=NEVER, dealer=os.environ["DEALER"])
    session.channel.exchange_text("go")
    if session.rank == 0:
        session.channel._send([1], [torch.zeros(50_000_000, dtype=torch.uint8)])
        print("sending", flush=True)
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGSTOP)
    session.channel.receive(0, [torch.zeros(50_000_000, dtype=torch.uint8)])


class _Told(io.StringIO):
    """Standard error that sends SIGTERM to this process before it writes a text, a second later."""

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass  # lines at which a signal's exception may come
        assert sys.__stderr__ is not None
        return sys.__stderr__.write(text)


def told() -> None:
    launch.init(timeout=NEVER, dealer=os.environ["DEALER"])
    sys.stderr = _Told()
    raise ConfigError("the first reason", where="told", hint="none")


def arguments(*lines: str) -> None:
    """`infer` with one line of arguments after the other: prints the errors, as `failures` does."""
    seen = []
    words = ["infer", *DIGITS, "--timeout", str(NEVER), "--dealer", os.environ["DEALER"]]
    for line in lines:
        args = parser(["infer"]).parse_args([*words, *line.split()])
        started = time.perf_counter()
        try:
            infer.run(args)
            seen.append(("nothing", "", 0.0))
        except Exception as error:
            seen.append((type(error).__name__, str(error), time.perf_counter() - started))
            launch.abort(error)
    print(json.dumps(seen))


JOBS: dict[str, Callable[..., None]] = {
    "again": again,
    "arguments": arguments,
    "blocked": blocked,
    "deal": deal,
    "failures": failures,
    "forever": forever,
    "lanes": lanes,
    "meet": meet,
    "told": told,
    **gathering.JOBS,
    **stores.JOBS,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *words = sys.argv[1:]
    if name == "script":  # one that does not use run_party
        script()
    else:
        run_party(lambda: JOBS[name](*words))
