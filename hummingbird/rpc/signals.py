"""Signals that end a program: a flag that a handler may set, and an exception for programs that look at none.

`Flag`: the handler runs wherever the main thread is, also in the middle of `threading.Event.wait` or `Thread.start`,
which hold a lock for a moment: `Event.set` and another `Thread.start` would then wait for the thread that they have
interrupted, and the program would never end; an exception that the handler raises may come out of any line. So a
handler sets a flag and does no more, and whoever waits for long looks at it.

`Stop`: a program that is not ours computes, or sleeps, and hears of nothing but an exception: a flag would be seen when
it comes back to us, if ever, and launchers wait for half a minute. So SIGTERM gives it an exception, as Ctrl-C does, in
the middle of its own code or of ours, and its `finally` runs. But not at any line: in `Thread.start` it ends the new
thread with a KeyError, in a condition it may leave the lock in the wrong hands, in a destructor it is dropped. And a
handler that has interrupted these can neither take a lock nor start a thread. So the handler notes the signal and no
more. A thread that is there already asks for the reason, and then urges the main thread by a second signal, again and
again, until that is elsewhere, or waits, or stands still.
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

_LOOK = 0.1  # seconds between two looks
_ending: list[Flag] = []


class Flag:
    """Set once, from any thread or a signal's handler, and never cleared."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Set it."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Let so much time pass, unless it is set meanwhile; whether it is set then."""
        ends = time.monotonic() + seconds
        while not self._set and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))
        return self._set


@contextmanager
def ends_waits(flag: Flag) -> Iterator[None]:
    """Within, waits for other processes that call `check` end when the flag is set."""
    _ending.append(flag)
    try:
        yield
    finally:
        _ending.remove(flag)


def check() -> None:
    """PeerError where this process has been told to end; for each turn of a wait for another process."""
    if any(flag.is_set() for flag in _ending):
        raise PeerError("this process was told to stop", hint="its operator knows why")


# SIGTERM as an exception ----------------------------------------------------------------------------------------------

_URGE = signal.SIGURG  # ignored where nobody handles it, so that one too many does nothing
_STEP = 0.02  # seconds between two
# Beginnings of files whose lines have locks, or the entries of tables, in their hands.
_DELICATE = (
    *(str(module.__file__) for module in (threading, queue, weakref, contextlib)),
    *(os.path.dirname(str(module.__file__)) + os.sep for module in (logging, concurrent.futures)),
    __file__,
    "<frozen importlib",
    "<frozen _weakrefset",
)
_GRPC = f"{os.sep}grpc{os.sep}"  # in the names of its files: not everybody who can be stopped has loaded it

# Lines of threading.py where all that waits for another thread does wait: it expects exceptions there.
_WAITS = re.compile(r"waiter\.acquire\(|lock\.acquire\(block, timeout\)|_handle\.join\(")
_waits = {n for n, line in enumerate(linecache.getlines(str(threading.__file__)), 1) if _WAITS.search(line)}


class Stop:
    """The handler of SIGTERM from now on, until `close`: the main thread gets an exception, once; to be made there.

    reason: makes it, in another thread, and may take its time. over: asked in the main thread; says that nobody needs
    the exception any more. then: the handler of a second SIGTERM; by default it ends the process at once. A process
    that is forked from this one ends as if there were no handler.
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
        """Put the handlers back that were there before; once, in the main thread."""
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
    """Whether Python would drop an exception, as of every destructor."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False
