"""`launch`: run a function as all parties, each a process of this host, and return their results."""

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
    """Call `fn(session, *args)` as each party, in processes of this host, and return the results by party.

        def infer(session, net, images):
            private = hummingbird.convert_model(net, bits=hummingbird.BitWindow(20, 0))
            shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
            return private(shared).get_plain_text(dst=0)

        logits, nothing = hummingbird.launch(infer, net.eval(), images)

    For notebooks, scripts and tests. All processes belong to the same user, and each gets `fn` with everything that it
    uses and all arguments, images too: nothing is secret from the caller. Parties that do not trust each other must run
    on hosts of their own.

    Each process is a fresh interpreter that calls `hummingbird.init`, with a dealer on this host, and then `fn` with
    the session; `fn` must not call `init`. It may be defined in a notebook's cell, and may use nets, classes, tensors
    and registered converters of the notebook. These are sent by value (cloudpickle), so changes that `fn` makes to them
    stay in its process. `session.rank` is the party's number.

    fn: returns tensors, numbers, text, None, or tuples, lists or dicts of them; tensors arrive on the CPU.
    parties: two or more. lanes: processes of each party; the result of a party is the result of its lane 0.
    timeout: seconds for a process to start, and for the longest silence of another party, as in `init`. `fn` itself has
        no time limit: Ctrl-C ends all processes.
    device: as in `init`.

    The output of party 0 is passed on as it is, other parties' lines with their name in front. Each process gets an
    equal share of the processors as threads, unless OMP_NUM_THREADS is set. The start takes some seconds, as each
    process imports torch.

    Raises ConfigError and InputError for wrong arguments, EnvironmentProblem inside a party or a session, and
    LaunchError with the error, or the signal, of each party that failed, the first cause first. In all cases no process
    is left running, even if this one is killed; processes that `fn` has started end with their party.
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
    """Raise EnvironmentProblem if this process is a party, or has a session."""
    host.refuse_inside_a_run("launch", "call launch in a notebook or a script that `python` runs")
    if is_initialized():
        what = f"this process has a session of its own, {current()!r}, which the launched parties cannot use"
        raise EnvironmentProblem(what, where="launch", hint="call hummingbird.uninit() first")


# Errors of failed processes ------------------------------------------------------------------------------------------


def _failure(failed: list[Process], count: int, timeout: float) -> LaunchError:
    """Make the error for failed processes: causes come first, then processes that only lost another party."""
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
    """Return a sort key for failed processes: causes, then processes that lost a party, then those that were stopped.

    A process that died without a report comes before errors, as its death is noticed late; errors are sorted by time.
    """
    error = process.report.get("error")
    consequence = 2 * process.stopped if error is None else int(error["type"] == "PeerError")
    return consequence, error is not None, error["when"] if error else process.ended or 0.0


def _told(process: Process, timeout: float) -> str:
    """Return a sentence on how a process failed. timeout: seconds that it had to start."""
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
    """Format the traceback of a process's error, from the caller's function on.

    Lines of the source are shown for files, and for notebook cells, which this process knows.
    """
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in error.get("frames", ())]
    return "".join(traceback.format_list(frames)).rstrip()
