"""Run a program as all parties on this host, until each has ended: `python -m hummingbird run`.

The processes inherit standard input and output. Each has a session of its own: this process gets a Ctrl-C and passes it
on. If one fails, all others are ended, and all are started again as often as allowed, with a new store, so that none
waits for a process that has ended.

All processes share a terminal, and the first one that fails is the cause. So all inherit a pipe that holds one byte:
the process that reads it may print its error; the others, which have only lost a party, end silently.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from hummingbird.launching import host
from hummingbird.mpc.session.lanes import LanePosition

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL = 0.1  # seconds between two looks at whether a process has ended
_GRACE = 30.0  # seconds for the others to end once one has failed, as torchrun has it
_STORE = 300.0  # seconds of the store's own waits
_WORD = "HUMMINGBIRD_WORD"  # environment variable: the pipe with the one byte
_DEATH = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Failure:
    """A failed process of a run. code: its exit status, or minus the number of the signal that killed it.

    told: whether `run` had received a signal before, and passed it on to all processes.
    """

    name: str
    code: int
    told: bool

    @property
    def how(self) -> str:
        """Return a sentence on how the process ended."""
        if self.code < 0:
            return f"{self.name} was killed by {host.signal_name(-self.code)}"
        return f"{self.name} ended with exit status {self.code}"


def run(words: Sequence[str], parties: int, lanes: int, restarts: int, say: Callable[[str], object]) -> Failure | None:
    """Run `python WORDS` as all parties; return the failure of the last start, None if all ended with status 0.

    restarts: how often all may be started again. say: called with a message before each restart. SIGTERM and SIGINT are
    passed on to all processes, and prevent restarts. Raises ConfigError for wrong numbers, EnvironmentProblem inside a
    party.
    """
    host.check(parties, lanes, "run")
    host.refuse_inside_a_run("run", "start a run from a shell")
    with _noted() as signals:
        for life in range(restarts + 1):
            with host.store(_STORE) as port, _Life(words, host.places(parties, lanes), port, life) as started:
                failure = started.follow(signals)
            if failure is None or failure.told or life == restarts:
                return failure
            say(f"{failure.how}: all parties begin anew, {life + 1} of at most {restarts} times")
    return None


def may_speak() -> bool:
    """Whether this process may print its error: under `run`, only the first process that asks; else always."""
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
    """The signals that this process has received. came: whether there was one."""

    def __init__(self) -> None:
        self.came, self._waiting = False, list[int]()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Note that a signal has come; used as the handler for `signal.signal`."""
        self.came = True
        self._waiting.append(number)

    def taken(self) -> list[int]:
        """Return the signals that have come since the last call."""
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
    """All processes of a run, from one start to their end, as a context: at its end all have ended.

    life: how often the processes were started before.
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
                variables = host.variables(place, port)
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
        """Pass signals on until all processes have ended or one has failed; return the failure, or None."""
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
        """End all running processes, by SIGTERM first, then by SIGKILL."""
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
