"""Signals that end a program: a flag for programs that check it, and an exception for programs that do not.

`Flag`: a signal handler interrupts the main thread at any line, also within `threading.Event.wait` or `Thread.start`,
which hold a lock for a moment. `Event.set` or another `Thread.start` in the handler would then wait for the thread that
it has interrupted, for ever, and an exception raised by the handler may come out of any line. So a handler only sets a
flag, and long waits check it.

`Stop`: a program that is not ours computes or sleeps, and only an exception reaches it: it would see a flag only when
it calls us again, if ever, and launchers wait for half a minute. So SIGTERM raises an exception, as Ctrl-C does, in the
middle of its code or of ours, and its `finally` blocks run. But not at any line: in `Thread.start` an exception ends
the new thread with a KeyError, in a condition it may leave the lock with the wrong owner, in a destructor it is
dropped. And a handler that has interrupted these can neither take a lock nor start a thread. So the handler only notes
the signal. A thread that already runs finds the reason, and then sends the main thread a second signal, again and
again, until that has left these lines, or waits, or makes no progress.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import linecache
import logging
import os
import queue
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hummingbird.errors import PeerError

_LOOK = 0.1  # seconds between two checks of the flag
_ending: list[Flag] = []


class Flag:
    """A flag by which a signal handler or a thread tells loops to end; once set, it stays set."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Set this flag; a signal handler may call this."""
        self._set = True

    def is_set(self) -> bool:
        """Return whether this flag is set."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait until this flag is set, at most `seconds`; return whether it is set."""
        ends = time.monotonic() + seconds
        while not self._set and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))
        return self._set


@contextmanager
def ends_waits(flag: Flag) -> Iterator[None]:
    """Return a context in which `check` raises PeerError once `flag` is set.

    Loops that wait for another process call `check`, so that they end when this process is told to stop.
    """
    _ending.append(flag)
    try:
        yield
    finally:
        _ending.remove(flag)


def check() -> None:
    """Raise PeerError if this process was told to stop; loops that wait for another process call this.

    It was told so if a flag that was passed to `ends_waits` is set.
    """
    if any(flag.is_set() for flag in _ending):
        raise PeerError("this process was told to stop", hint="its operator knows why")


# SIGTERM as an exception ----------------------------------------------------------------------------------------------

_URGE = signal.SIGURG  # ignored by default, so that one too many has no effect
_STEP = 0.02  # seconds between two of them
# Prefixes of files in whose lines an exception would leave a lock or a table in a wrong state.
_DELICATE = (
    *(str(module.__file__) for module in (threading, queue, weakref, contextlib)),
    *(os.path.dirname(str(module.__file__)) + os.sep for module in (logging, concurrent.futures)),
    __file__,
    "<frozen importlib",
    "<frozen _weakrefset",
)
_GRPC = f"{os.sep}grpc{os.sep}"  # in the names of gRPC's files, which a program need not have loaded

# Lines of threading.py at which waits for another thread block: threading expects exceptions there.
_WAITS = re.compile(r"waiter\.acquire\(|lock\.acquire\(block, timeout\)|_handle\.join\(")
_waits = {n for n, line in enumerate(linecache.getlines(str(threading.__file__)), 1) if _WAITS.search(line)}


class Stop:
    """Handles SIGTERM until `close`: the first one raises an exception in the main thread.

    Make the object in the main thread. reason: returns the exception to raise; it runs in another thread, and may take
    long. over: called in the main thread; if it returns True, the exception is not needed any more, and is not raised.
    then: the handler of a second SIGTERM; by default it ends the process at once. A process forked from this one ends
    at SIGTERM as if there were no handler.
    """

    def __init__(
        self,
        reason: Callable[[], BaseException],
        over: Callable[[], bool] = lambda: False,
        then: signal.Handlers = signal.SIG_DFL,
    ) -> None:
        self.raised = False
        self._reason, self._over, self._then = reason, over, then
        self._error: BaseException | None = None
        self._seen: tuple[FrameType, int] | None = None
        self._pid, self._main = os.getpid(), threading.get_ident()
        self._closed = False
        reader, self._writer = os.pipe()
        threading.Thread(target=self._urge, args=(reader,), name="hummingbird-stop", daemon=True).start()
        self._before = {_URGE: signal.getsignal(_URGE), signal.SIGTERM: signal.signal(signal.SIGTERM, self._noted)}

    def close(self) -> None:
        """Stop handling SIGTERM, and restore the former handlers; call this once, in the main thread."""
        self._closed = True
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._writer)  # ends the thread

    def _noted(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, self._then if os.getpid() == self._pid else signal.SIG_DFL)
        if os.getpid() != self._pid:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        signal.signal(_URGE, self._urged)
        os.write(self._writer, b"!")

    def _urge(self, reader: int) -> None:
        told = os.read(reader, 1)
        os.close(reader)
        self._error = self._reason() if told else None
        while self._error is not None and not self._closed:
            signal.pthread_kill(self._main, _URGE)
            time.sleep(_STEP)

    def _urged(self, number: int, frame: FrameType | None) -> None:
        error, place = self._error, None if frame is None else (frame, frame.f_lasti)
        if error is None or frame is None:
            return
        if self._over():
            self._error = None
            return
        if _in_destructor(frame) or (_is_delicate(frame) and place != self._seen):
            self._seen = place
            return
        self._error, self._seen, self.raised = None, None, True
        raise error


def _is_delicate(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    waits = file == threading.__file__ and frame.f_lineno in _waits
    return not waits and (file.startswith(_DELICATE) or _GRPC in file)


def _in_destructor(frame: FrameType | None) -> bool:
    """Return whether a frame of Python code, or one that called it, belongs to a destructor.

    A signal handler asks this, because Python drops exceptions in destructors.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False
