"""`launch`: run a function as the parties of a run, each a process of this host, and return what they return."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hummingbird.errors import ConfigError, EnvironmentProblem, InputError, LaunchError
from hummingbird.kernels.devices import processors
from hummingbird.launching import sending
from hummingbird.launching.processes import Process, Processes
from hummingbird.mpc.lanes import Place
from hummingbird.mpc.launch import DEFAULT_TIMEOUT, check_options
from hummingbird.mpc.session import current, is_initialized

_HOST = "127.0.0.1"
_KILLED = "the system may have ended it, for memory or from outside: look at this host's log"
_LEFT = "the function, or a library that it calls, has ended the process (os._exit); what it printed may say why"


def launch(
    fn: Callable[..., Any],
    *args: Any,
    parties: int = 2,
    lanes: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    device: torch.device | str = "cpu",
) -> list[Any]:
    """Call `fn(session, *args)` as each party of a run, in processes of this host; returns their results by party.

        def infer(session, net, images):
            private = hummingbird.convert_model(net, bits=hummingbird.BitWindow(20, 0))
            shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
            return private(shared).get_plain_text(dst=0)

        logits, nothing = hummingbird.launch(infer, net.eval(), images)

    For notebooks, scripts and tests. Every process belongs to the same user, and each gets `fn` with all that it uses
    and all arguments, images too: nothing is hidden from who calls this. Parties that do not trust each other start on
    hosts of their own (torchrun).

    Each process is a fresh interpreter that calls `hummingbird.init`, with a dealer on this host, and then `fn` with
    the session: `fn` calls no `init`. It may be defined in a notebook's cell, and may use nets, classes and tensors
    defined there, and converters registered there: they are sent by value (cloudpickle), so changes that `fn` makes to
    them stay in its process. `session.rank` tells the parties apart.

    fn: returns tensors, numbers, text, None, or tuples, lists or dicts of them; tensors arrive on the CPU.
    parties: two or more. lanes: processes of each party; the result of a party is that of its lane 0.
    timeout: seconds, for a process to start and for the longest silence of another party, as in `init`. How long `fn`
        may take has no limit: Ctrl-C ends all processes.
    device: as in `init`.

    What party 0 prints appears as it is, other parties' lines with their name in front. The processors are divided:
    each process has as many threads as there are processors for it, unless OMP_NUM_THREADS is set. Starting takes some
    seconds, for each process imports torch.

    Raises ConfigError and InputError for arguments, EnvironmentProblem inside a party or a session, and LaunchError,
    which names each party that failed, the first cause first, with its error, or the signal that ended it. Whatever
    happens, no process is left, also if this one is killed: what `fn` has started ends with its party.
    """
    _check(fn, parties, lanes)
    check_options(None, None, timeout, device, where="launch")
    _refuse_inside_a_run()
    call = sending.packed(fn, args, {"lanes": lanes, "timeout": timeout, "device": str(device)})
    places = [Place(rank // lanes, parties, rank % lanes, lanes) for rank in range(parties * lanes)]
    names = [place.name for place in places]
    with _store(timeout) as port, Processes(names, call, lambda rank: _environment(places[rank], port)) as started:
        started.follow(timeout)
    if failed := [process for process in started.all if process.failed]:
        raise _failure(failed, parties * lanes, timeout)
    return [process.report["result"] for process in started.all[::lanes]]


def _check(fn: object, parties: object, lanes: object) -> None:
    if not callable(fn):
        hint = "launch(fn, *args) calls fn(session, *args) at each party"
        raise InputError(f"expected a function, got {type(fn).__name__}", where="launch", hint=hint)
    for name, value, least, hint in (
        ("parties", parties, 2, "a whole number from 2; one party alone needs no launch: call hummingbird.init()"),
        ("lanes", lanes, 1, "processes of each party, one for each of its GPUs: a whole number from 1"),
    ):
        if type(value) is not int or value < least:
            raise ConfigError(f"{name}={value!r}", where="launch", hint=hint)


def _refuse_inside_a_run() -> None:
    """EnvironmentProblem in a process that is a party, or has a session."""
    if "RANK" in os.environ:
        what = f"RANK={os.environ['RANK']}: this process is a party of a run already, by torchrun or by launch"
        hint = "call launch in a notebook or a script that `python` runs; in a party, call hummingbird.init()"
        raise EnvironmentProblem(what, where="launch", hint=hint)
    if is_initialized():
        what = f"this process has a session of its own, {current()!r}, which the launched parties cannot use"
        raise EnvironmentProblem(what, where="launch", hint="call hummingbird.uninit() first")


@contextlib.contextmanager
def _store(timeout: float) -> Iterator[int]:
    """The port of the store in which the processes meet, as torchrun's agent has one; on this host's loopback only."""
    server = socket.create_server((_HOST, 0))
    port = server.getsockname()[1]
    wait = datetime.timedelta(seconds=timeout)
    store = dist.TCPStore(
        _HOST, port, is_master=True, wait_for_workers=False, timeout=wait, master_listen_fd=server.detach()
    )
    try:
        yield port
    finally:
        del store  # it listens while anybody knows it, and a notebook keeps the last error's frames


def _environment(place: Place, port: int) -> dict[str, str]:
    """torchrun's variables for one process."""
    return {
        "OMP_NUM_THREADS": str(max(1, processors() // place.world)),
        **os.environ,
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # it is there: rank 0 must not open one
    }


# What is told of processes that failed ------------------------------------------------------------------------------


def _failure(failed: list[Process], count: int, timeout: float) -> LaunchError:
    """The error for processes that failed, causes before those who only lost another party."""
    failed = sorted(failed, key=_order)
    told = {process.name: _told(process, timeout) for process in failed}
    first, *others = told.items()
    error = failed[0].report.get("error", {})
    lines = [f"{first[0]} failed: {first[1]}", _trace(error)]
    lines += [f"then {name}: {text.splitlines()[0]}" for name, text in others]
    hint = error.get("hint", "") if error or failed[0].late else _KILLED if failed[0].popen.returncode < 0 else _LEFT
    return LaunchError("\n".join(filter(None, lines)), told, hint=hint)


def _order(process: Process) -> tuple[int, bool, float]:
    """Causes first: a lost party is a consequence, and a process that was told to end comes last. A death without a
    word, which is noticed a little late, goes before errors, and those are in the order of time.
    """
    error = process.report.get("error")
    consequence = 2 * process.stopped if error is None else int(error["type"] == "PeerError")
    return consequence, error is not None, error["when"] if error else process.ended or 0.0


def _told(process: Process, timeout: float) -> str:
    """How one process failed."""
    if error := process.report.get("error"):
        return f"{error['type']}: {error['text']}" if error["text"] else str(error["type"])
    if process.late:
        return f"it did not start within {timeout:g} s"
    if process.stopped:
        return "it was stopped, because another one had failed"
    code = process.popen.returncode
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}" if code >= -64 else f"it was killed by signal {-code}"
    return f"it ended with exit status {code} before the function had returned"


def _trace(error: dict[str, Any]) -> str:
    """The lines of the function and of what it called, with their text where this process knows it (cells)."""
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in error.get("frames", ())]
    return "".join(traceback.format_list(frames)).rstrip()
