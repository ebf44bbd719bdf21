"""`launch`: run a function as the parties of a run, each a process of this host, and return what they return."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from hummingbird.errors import EnvironmentProblem, InputError, LaunchError
from hummingbird.launching import host, sending
from hummingbird.launching.processes import Process, Processes
from hummingbird.mpc.session.launch import DEFAULT_TIMEOUT, check_options
from hummingbird.mpc.session.session import current, is_initialized

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
    hosts of their own.

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
    if not callable(fn):
        hint = "launch(fn, *args) calls fn(session, *args) at each party"
        raise InputError(f"expected a function, got {type(fn).__name__}", where="launch", hint=hint)
    host.check(parties, lanes, "launch")
    check_options(None, None, timeout, device, where="launch")
    _refuse_inside_a_run()
    call = sending.packed(fn, args, {"lanes": lanes, "timeout": timeout, "device": str(device)})
    places = host.places(parties, lanes)
    names = [place.name for place in places]
    with (
        host.store(timeout) as port,
        Processes(names, call, lambda rank: host.variables(places[rank], port)) as started,
    ):
        started.follow(timeout)
    if failed := [process for process in started.all if process.failed]:
        raise _failure(failed, parties * lanes, timeout)
    return [process.report["result"] for process in started.all[::lanes]]


def _refuse_inside_a_run() -> None:
    """EnvironmentProblem in a process that is a party, or has a session."""
    host.refuse_inside_a_run("launch", "call launch in a notebook or a script that `python` runs")
    if is_initialized():
        what = f"this process has a session of its own, {current()!r}, which the launched parties cannot use"
        raise EnvironmentProblem(what, where="launch", hint="call hummingbird.uninit() first")


# What is told of processes that failed ------------------------------------------------------------------------------


def _failure(failed: list[Process], count: int, timeout: float) -> LaunchError:
    """The error for processes that failed, causes before those who only lost another party."""
    failed = sorted(failed, key=_order)
    told = {process.name: _told(process, timeout) for process in failed}
    first, *others = told.items()
    error = failed[0].report.get("error", {})
    lines = [f"{first[0]} failed: {first[1]}", _trace(error)]
    lines += [f"then {name}: {text.splitlines()[0]}" for name, text in others]
    hint = (
        error.get("hint", "") if error or failed[0].late else host.KILLED if failed[0].popen.returncode < 0 else _LEFT
    )
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
        return f"it was killed by {host.signal_name(-code)}"
    return f"it ended with exit status {code} before the function had returned"


def _trace(error: dict[str, Any]) -> str:
    """The lines of the function and of what it called, with their text where this process knows it (cells)."""
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in error.get("frames", ())]
    return "".join(traceback.format_list(frames)).rstrip()
