"""`launch`: run a function as all parties, each a process of this host, and return their results.

One loop in the caller's thread reads the pipes of all processes, so that Ctrl-C interrupts it. Each process has a
session of its own, so that a Ctrl-C reaches only the caller, which ends them.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import torch
from typing_extensions import TypeVarTuple, Unpack

from hummingbird.errors import EnvironmentProblem, InputError, LaunchError
from hummingbird.launching import host, party, sending
from hummingbird.mpc.session.launch import DEFAULT_TIMEOUT, check_options
from hummingbird.mpc.session.session import Session, current, is_initialized

# The processes: pass on their output, notice the end of each, and leave none running ---------------------------------

Arguments = TypeVarTuple("Arguments")
Returned = TypeVar("Returned")
_POLL = 0.05  # seconds between two looks at whether a process has ended
_GRACE = 10.0  # seconds for the others to report, once one has failed
_LEAVE = 30.0  # seconds for a process to end after its report
_CLOSE = 5.0  # seconds for a process to end after SIGTERM, and for its children to end with it
_PIECE = 1 << 16
_ROOT = str(Path(__file__).resolve().parents[2])


class Process:
    """One process that `launch` has started for a party or a lane: it calls the function, and reports its end.

    name: as errors name it, such as "party 1". call: the function call, packed by `packed_call`. environment: the
    process's environment variables.
    """

    def __init__(self, name: str, call: bytes, environment: dict[str, str]) -> None:
        self.name = name
        self.up = False
        self.late = False  # killed here, as it did not start in time
        self.stopped = False  # ended here
        self.ended: float | None = None  # time of its end, of time.monotonic
        self._reported = 0.0
        self._content = bytearray()
        self._report, theirs = os.pipe()
        try:
            path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
            self.popen = subprocess.Popen(
                [sys.executable, "-m", party.__name__, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs],
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._report)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._report, False)
        threading.Thread(target=self._send, args=(call,), daemon=True).start()

    def _send(self, call: bytes) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the process has ended; its report says why
            self.popen.stdin.write(len(call).to_bytes(party.LENGTH, "little") + call)
            self.popen.stdin.flush()

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """The pipes from which this process's stdout and stderr are read, in this order."""
        assert self.popen.stdout is not None and self.popen.stderr is not None
        return self.popen.stdout, self.popen.stderr

    def fileno(self) -> int:
        """Return the file descriptor of the pipe of this process's report, for a selector to watch."""
        return self._report

    def read(self) -> bool:
        """Read and keep the new bytes of this process's report; return False at the end of the pipe, else True."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._report, _PIECE):
                self.up = True
                self._content += piece
            self._reported = self._reported or time.monotonic()
            return False
        return True

    def look(self) -> None:
        """Note the end of this process if it has ended; kill it if it still runs some seconds after its report.

        The report is the result or error of the function, so nothing is left to do then.
        """
        if self.popen.poll() is not None:
            self._signal(signal.SIGKILL)  # processes that the function left running; the dealer is not in the group
            self.read()  # the last part of its report
            self.ended = time.monotonic()
        elif self._reported and time.monotonic() > self._reported + _LEAVE:
            self.kill()

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        """The report of this process, once it has ended: a dict with the function's "result", or with its "error".

        It is empty if the process wrote no report.
        """
        content = bytes(self._content.removeprefix(party.UP))
        with contextlib.suppress(Exception):  # truncated
            return dict(sending.unpacked_result(content)) if content else {}
        return {}

    @property
    def failed(self) -> bool:
        """Whether this process has ended without a result of the function."""
        return self.ended is not None and "result" not in self.report

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to this process and its children. number: of the signal; by default it kills them."""
        if self.ended is None:
            self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the second: on macOS, if it has just ended
            os.killpg(self.popen.pid, number)

    def close(self) -> None:
        """Close this process's pipes, once it has ended."""
        os.close(self._report)
        for pipe in (self.popen.stdin, *self.pipes):
            with contextlib.suppress(OSError):  # unsent data is of no use any more
                if pipe is not None:
                    pipe.close()


class Processes:
    """All processes that a call of `launch` starts, for a `with` block: at its end, none of them is left running.

    names: a name for each process, by rank, for errors. call: the function call that each runs, packed by
    `packed_call`. environment: returns the environment variables of the process with this rank.
    """

    def __init__(self, names: Sequence[str], call: bytes, environment: Callable[[int], dict[str, str]]) -> None:
        self.all: list[Process] = []
        self._selector = selectors.DefaultSelector()
        self._lines: list[_Lines] = []
        last = {"stdout": "\n", "stderr": "\n"}
        try:
            for rank, name in enumerate(names):
                self.all.append(Process(name, call, environment(rank)))
                self._selector.register(self.all[-1], selectors.EVENT_READ, self.all[-1])
                for pipe, stream in zip(self.all[-1].pipes, ("stdout", "stderr"), strict=True):
                    os.set_blocking(pipe.fileno(), False)
                    self._lines.append(_Lines(pipe, stream, f"[{name}] " if rank else "", last))
                    self._selector.register(pipe, selectors.EVENT_READ, self._lines[-1])
        except BaseException:
            self._end()
            raise

    def follow(self, timeout: float) -> None:
        """Pass on the processes' output until all have ended; once one has failed, the others get some more seconds.

        timeout: seconds within which each process must be ready to call the function, its imports done; otherwise it is
        killed.
        """
        begun = time.monotonic()
        stop = float("inf")
        while self._running() and time.monotonic() < stop:
            self._step()
            if time.monotonic() > begun + timeout:
                for process in self._running():
                    if not process.up:
                        process.late = True
                        process.kill()
            if stop == float("inf") and any(process.failed for process in self.all):
                stop = time.monotonic() + _GRACE

    def _running(self) -> list[Process]:
        return [process for process in self.all if process.ended is None]

    def _step(self) -> None:
        for key, _ in self._selector.select(_POLL):
            if not key.data.read():
                self._selector.unregister(key.fileobj)
        for process in self._running():
            process.look()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """End all processes: by SIGTERM first, which also ends their children and the dealer, then by SIGKILL."""
        try:
            for process in self._running():
                process.stopped = True
                process.kill(signal.SIGTERM)
            self._until(lambda: not self._running())
        finally:
            for process in self.all:
                process.kill()
            for process in self.all:
                process.popen.wait()
            try:
                self._until(lambda: not self._selector.get_map())  # a process that has inherited a pipe keeps it open
                for lines in self._lines:
                    lines.flush()
            finally:
                self._selector.close()
                for process in self.all:
                    process.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _CLOSE
        while not condition() and time.monotonic() < deadline:
            self._step()


class _Lines:
    """Passes on the output of one process, stdout or stderr, to the stream of the same name of this process.

    pipe: where the process's output is read. stream: "stdout" or "stderr". prefix: text to put in front of every line;
    "": the output passes unchanged. last: for each stream's name, the text that was last passed on by any process: if
    it has not ended its line, a line with a prefix begins on a new one.
    """

    def __init__(self, pipe: IO[bytes], stream: str, prefix: str, last: dict[str, str]) -> None:
        self._pipe, self._stream, self._prefix, self._last = pipe, stream, prefix, last
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def read(self) -> bool:
        """Pass on what the process has written since the last call; return False at the end of its pipe, else True."""
        try:
            piece = os.read(self._pipe.fileno(), _PIECE)
        except BlockingIOError:
            return True
        text = self._begun + self._decoder.decode(piece, final=not piece)
        if self._prefix:
            *lines, self._begun = text.split("\n")
            text = "".join(f"{self._prefix}{line}\n" for line in lines)
        self._write(text)
        return bool(piece)

    def flush(self) -> None:
        """Pass on the last line of the process's output, if the process has ended without ending the line."""
        self._write(f"{self._prefix}{self._begun}\n" if self._begun else "")
        self._begun = ""

    def _write(self, text: str) -> None:
        if text:
            begun = self._prefix and not self._last[self._stream].endswith("\n")
            self._last[self._stream] = text
            stream = getattr(sys, self._stream)
            stream.write("\n" + text if begun else text)
            stream.flush()


# The call ------------------------------------------------------------------------------------------------------------

_LEFT = "the function, or a library that it calls, has ended the process (os._exit); what it printed may say why"


def launch(
    fn: Callable[[Session, Unpack[Arguments]], Returned],
    *args: Unpack[Arguments],
    parties: int = 2,
    lanes: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    device: torch.device | str = "cpu",
) -> list[Returned]:
    """Call `fn(session, *args)` as each party, in processes of this host, and return the results by party.

    For notebooks, scripts and tests. All processes belong to the same user, and each gets `fn` with everything that it
    uses and all arguments, images too: nothing is secret from the caller. Parties that do not trust each other must run
    on hosts of their own.

    Each process is a fresh interpreter that calls `hummingbird.init`, with a dealer on this host, and then `fn` with
    the session; `fn` must not call `init`. It may be defined in a notebook's cell, and may use nets, classes, tensors
    and registered converters of the notebook. These are sent by value (cloudpickle), so changes that `fn` makes to them
    stay in its process. `session.rank` is the party's number.

    fn: returns tensors, numbers, text, None, meters, or tuples, lists or dicts of them; tensors arrive on the CPU.
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

    >>> def infer(session, net, images):
    ...     private = hummingbird.convert_model(net, bits=BitWindow(20, 0))
    ...     shared = hummingbird.cryptensor(images if session.rank == 0 else None, src=0)
    ...     return private(shared).get_plain_text(dst=0)
    >>> logits, nothing = hummingbird.launch(infer, net, images)
    >>> bool((logits.argmax(1) == net(images).argmax(1)).all()), nothing
    (True, None)
    """
    if not callable(fn):
        hint = "launch(fn, *args) calls fn(session, *args) at each party"
        raise InputError(f"expected a function, got {type(fn).__name__}", where="launch", hint=hint)
    host.check(parties, lanes, "launch")
    check_options(None, None, timeout, device, where="launch")
    _refuse_inside_a_run()
    call = sending.packed_call(fn, args, {"lanes": lanes, "timeout": timeout, "device": str(device)})
    places = host.positions(parties, lanes)
    names = [place.name for place in places]
    with (
        host.store(timeout) as port,
        Processes(names, call, lambda rank: host.environment_of(places[rank], port)) as started,
    ):
        started.follow(timeout)
    if failed := [process for process in started.all if process.failed]:
        raise _failure(failed, parties * lanes, timeout)
    return [process.report["result"] for process in started.all[::lanes]]


def _refuse_inside_a_run() -> None:
    """Raise EnvironmentProblem if this process is a party of a run already, or has a session."""
    host.refuse_inside_a_run("launch", "call launch in a notebook or a script that `python` runs")
    if is_initialized():
        what = f"this process has a session of its own, {current()!r}, which the launched parties cannot use"
        raise EnvironmentProblem(what, where="launch", hint="call hummingbird.uninit() first")


# Errors of failed processes ------------------------------------------------------------------------------------------


def _failure(failed: list[Process], count: int, timeout: float) -> LaunchError:
    """Return the LaunchError for processes that have failed; its text begins with the one that failed first.

    Processes that failed only because they lost another party come later. count: how many processes were started.
    timeout: seconds that each had to start, for the text.
    """
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
    """Return a key by which failed processes are sorted, the first cause of the failure first.

    Processes that failed by themselves come first, then those that lost a party, then those that were stopped. A
    process that died without a report comes before errors, as its death is noticed late; errors are sorted by time.
    """
    error = process.report.get("error")
    consequence = 2 * process.stopped if error is None else int(error["type"] == "PeerError")
    return consequence, error is not None, error["when"] if error else process.ended or 0.0


def _told(process: Process, timeout: float) -> str:
    """Return a sentence that says how a process failed. timeout: seconds that it had to start, for the text."""
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
    """Return the traceback of a process's error as text, from the caller's function on.

    error: the "error" of the process's report. Lines of the source are shown for files, and for notebook cells, which
    this process knows.
    """
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in error.get("frames", ())]
    return "".join(traceback.format_list(frames)).rstrip()
