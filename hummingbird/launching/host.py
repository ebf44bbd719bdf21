"""Parties of one host: how they find each other, and `python -m hummingbird run`, which runs a program as all of them.

The parties meet in a store on loopback only, by torchrun's environment variables.

The processes of `run` inherit standard input and output. Each has a session of its own: this process gets a Ctrl-C and
passes it on. If one fails, all others are ended, and all are started again as often as allowed, with a new store, so
that none waits for a process that has ended.

All processes share a terminal, and the first one that fails is the cause. So all inherit a pipe that holds one byte:
the process that reads it may print its error; the others, which have only lost a party, end silently.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import torch.distributed as dist

from hummingbird.errors import ConfigError, EnvironmentProblem
from hummingbird.kernels.devices import processors
from hummingbird.mpc.session.lanes import VARIABLE, LanePosition

# The store, and torchrun's environment variables ---------------------------------------------------------------------

KILLED = "the system may have ended it, for memory or from outside: look at this host's log"
_HOST = "127.0.0.1"


def check(parties: object, lanes: object, where: str) -> None:
    """Raise ConfigError unless `parties` is an int of 2 or more, and `lanes` an int of 1 or more.

    where: the command or function, for the error.
    """
    for name, value, least, hint in (
        ("parties", parties, 2, "a whole number from 2; one party alone needs no launch: call hummingbird.init()"),
        ("lanes", lanes, 1, "processes of each party, one for each of its GPUs: a whole number from 1"),
    ):
        if type(value) is not int or value < least:
            raise ConfigError(f"{name}={value!r}", where=where, hint=hint)


def refuse_inside_a_run(where: str, hint: str) -> None:
    """Raise EnvironmentProblem if this process is already a party of a run. where, hint: of the error."""
    if "RANK" in os.environ:
        what = f"RANK={os.environ['RANK']}: this process is a party of a run already"
        raise EnvironmentProblem(what, where=where, hint=f"{hint}; in a party, call hummingbird.init()")


def positions(parties: int, lanes: int) -> list[LanePosition]:
    """Return the position (party and lane) of each process of a run, as a list in the order of ranks."""
    return [LanePosition(rank // lanes, parties, rank % lanes, lanes) for rank in range(parties * lanes)]


@contextlib.contextmanager
def store(timeout: float) -> Iterator[int]:
    """Serve a torch store, by which the processes of a run find each other, in a `with` block; the block gets its port.

    The store listens on loopback only. timeout: seconds that a process waits for a value of the store. torchrun does
    the same in its own way.
    """
    server = socket.create_server((_HOST, 0))
    port = server.getsockname()[1]
    wait = datetime.timedelta(seconds=timeout)
    held = dist.TCPStore(
        _HOST, port, is_master=True, wait_for_workers=False, timeout=wait, master_listen_fd=server.detach()
    )
    try:
        yield port
    finally:
        del held  # it listens as long as it is referenced, and a notebook keeps the frames of the last error


def environment_of(place: LanePosition, port: int) -> dict[str, str]:
    """Return the environment variables with which a process of a run is started, as a dict.

    They are those of this process, with torchrun's own for the rank of `place` (party and lane). port: the port of the
    store by which the processes find each other.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {
        "OMP_NUM_THREADS": str(max(1, processors() // place.world)),
        **kept,
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists: rank 0 must not open one
        VARIABLE: str(place.lanes),
    }


def signal_name(number: int) -> str:
    """Return the name of a signal, "SIGKILL" for 9; "signal 65" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# A run ---------------------------------------------------------------------------------------------------------------

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL = 0.1  # seconds between two looks at whether a process has ended
_GRACE = 30.0  # seconds for the others to end once one has failed, as torchrun has it
_STORE = 300.0  # seconds of the store's own waits
_WORD = "HUMMINGBIRD_WORD"  # environment variable: the pipe with the one byte
_DEATH = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Failure:
    """The failure of one process of a run.

    name: the process, such as "party 1". code: its exit status, or minus the number of the signal that killed it. told:
    whether a signal had come to the launching process before, which passes it on to all processes; the run is then not
    started again.
    """

    name: str
    code: int
    told: bool

    @property
    def how(self) -> str:
        """A sentence that says how this process ended: by which signal, or with which exit status."""
        if self.code < 0:
            return f"{self.name} was killed by {signal_name(-self.code)}"
        return f"{self.name} ended with exit status {self.code}"


def run(words: Sequence[str], parties: int, lanes: int, restarts: int, say: Callable[[str], object]) -> Failure | None:
    """Run `python WORDS` as all parties of a run; return the failure that ended the last start, or None.

    None means that all processes ended with status 0. words: the command line after `python`. lanes: processes of each
    party. restarts: how often all processes may be started again after a failure. say: called with a message, as text,
    before each restart. SIGTERM and SIGINT are passed on to all processes, and prevent restarts. Raises ConfigError for
    wrong numbers, EnvironmentProblem inside a party.
    """
    check(parties, lanes, "run")
    refuse_inside_a_run("run", "start a run from a shell")
    with _noted() as signals:
        for life in range(restarts + 1):
            with store(_STORE) as port, _Life(words, positions(parties, lanes), port, life) as started:
                failure = started.follow(signals)
            if failure is None or failure.told or life == restarts:
                return failure
            say(f"{failure.how}: all parties begin anew, {life + 1} of at most {restarts} times")
    return None


def may_speak() -> bool:
    """Return whether this process may print its error.

    A process that `hummingbird run` has started may only if it is the first of the run to ask, so that one error is
    printed, and not one for every party. Any other process may.
    """
    pipe = os.environ.get(_WORD)
    if pipe is None:
        return True
    try:
        return bool(os.read(int(pipe), 1))
    except BlockingIOError:
        return False
    except (OSError, ValueError):  # the variable is not from `run`
        return True


class _Signals:
    """Collects the signals that come to this process, so that a loop can pass them on to other processes.

    came: whether there was any so far.
    """

    def __init__(self) -> None:
        self.came, self._waiting = False, list[int]()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Keep a signal that has come; this is the handler that `signal.signal` gets.

        number: of the signal. frame: of the interrupted code, ignored.
        """
        self.came = True
        self._waiting.append(number)

    def taken(self) -> list[int]:
        """Return the numbers of the signals that have come since the last call of this method, as a list."""
        found, self._waiting = self._waiting, []
        return found


@contextlib.contextmanager
def _noted() -> Iterator[_Signals]:
    signals = _Signals()
    before = [signal.signal(number, signals.note) for number in _SIGNALS]
    try:
        yield signals
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)


class _Life:
    """The processes of a run, one for each position, from their start until all have ended; for a `with` block.

    Making it starts them; at the end of the block none is running. words: the command line after `python`. places: the
    position (party and lane) of each process. port: of the store by which the processes find each other. life: how
    often the processes were started before.
    """

    def __init__(self, words: Sequence[str], places: Sequence[LanePosition], port: int, life: int) -> None:
        self._names = [place.name for place in places]
        self._all: list[subprocess.Popen[bytes]] = []
        self._word, into = os.pipe()
        os.write(into, b"!")
        os.close(into)
        os.set_blocking(self._word, False)
        try:
            for place in places:
                variables = environment_of(place, port)
                variables |= {"TORCHELASTIC_RESTART_COUNT": str(life), _WORD: str(self._word)}
                self._all.append(
                    subprocess.Popen(
                        [sys.executable, "-u", *words],
                        env=variables,
                        pass_fds=[self._word],
                        start_new_session=True,
                        preexec_fn=_end_with_parent,
                    )
                )
        except BaseException:
            self._end()
            raise

    def follow(self, signals: _Signals) -> Failure | None:
        """Wait until all processes have ended or one has failed; return how that one failed, or None.

        signals: the signals that come to this process meanwhile, which are passed on to all of them.
        """
        while True:
            for number in signals.taken():
                self._tell(number)
            running = [process for process in self._all if process.poll() is None]
            failed = [number for number, process in enumerate(self._all) if process.returncode]
            if failed:
                first = min(failed, key=lambda number: self._all[number].returncode > 0)  # a killed process is a cause
                return Failure(self._names[first], self._all[first].returncode, signals.came)
            if not running:
                return None
            time.sleep(_POLL)

    def __enter__(self) -> _Life:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """End the processes that still run: by SIGTERM first, after some seconds by SIGKILL."""
        self._tell(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for process in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._tell(signal.SIGKILL)
        for process in self._all:
            process.wait()
        os.close(self._word)

    def _tell(self, number: int) -> None:
        for process in self._all:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the second: on macOS, while it ends
                    os.killpg(process.pid, number)


def _end_with_parent() -> None:
    """Ask the system to end this process when the process that started it is gone (Linux only)."""
    if _PRCTL is not None:
        _PRCTL(_DEATH, signal.SIGTERM)


_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
