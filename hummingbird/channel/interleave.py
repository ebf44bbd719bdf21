"""Interleaved computations: one computes while the others' messages are on the wire.

Each computation has a thread of its own, but only one runs at a time: a computation that has sent its part of an
opening lets the next one run, and continues when all others have sent theirs. The order of all messages follows from
the program alone, so that it is the same at every party, and one channel serves all computations.

    Interleave().run([lambda: net(first), lambda: net(second)])     # Channel.exchange calls pass_on() after sending
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hummingbird.channel import meter
from hummingbird.kernels.devices import on_this_card


class Computation:
    """A computation that may be interleaved: one function that an `Interleave` runs, or all code outside (`OUTSIDE`).

    around: the computation that called `Interleave.run`. among: this `Interleave`. number: the function's index.
    session: the session that this computation has entered; None if it has entered none, and then computes in the
    session of `around`.
    """

    def __init__(self, around: Computation | None = None, among: Interleave | None = None, number: int = 0) -> None:
        self.session: Any = None
        self._around, self._among, self._number = around, among, number

    def entered(self) -> Any:
        """Return the session in which this computation runs; None if there is none.

        It is the session that the computation itself has entered. If it has entered none, it is the session of the code
        that called `Interleave.run`.
        """
        if self.session is not None or self._around is None:
            return self.session
        return self._around.entered()

    def pass_on(self) -> None:
        """Let each other computation of the same `Interleave` run until it must wait, or ends; then return."""
        if self._among is not None:
            started = time.perf_counter()
            self._among.pass_on_as(self._number)
            meter.away(time.perf_counter() - started)


OUTSIDE = Computation()
_computation: contextvars.ContextVar[Computation] = contextvars.ContextVar("computation", default=OUTSIDE)


def computation() -> Computation:
    """Return the interleaved computation to which the calling code belongs; `OUTSIDE` if it is none."""
    return _computation.get()


class _Stopped(BaseException):
    """Raised in a computation to end it when another one has failed; `Interleave` catches it."""


def pass_on() -> None:
    """Let each other interleaved computation run until it must wait, or ends; then return.

    A computation calls this when it has sent a message and must wait for the answers. Does nothing outside of
    `Interleave.run`.
    """
    computation().pass_on()


class Interleave:
    """Runs several functions as computations that take turns: while one waits for messages, the next one computes.

    Only one runs at a time; it passes its turn on where it would wait. The first error of a function ends all of them,
    and is raised.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[int] = []  # in the order of turns; the first one's turn it is
        self._failed: BaseException | None = None

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the functions, which take no argument, one at a time; return the list of their results, in their order.

        The first function runs on the calling thread, so that signals interrupt it; each other one has a thread of its
        own. Raises the first error of a function, which ends all others.
        """
        results: list[Any] = [None] * len(functions)
        around = computation()
        self._running = list(range(len(functions)))

        def work(number: int) -> None:
            _computation.set(Computation(around, self, number))
            try:
                self._await(number)
                results[number] = functions[number]()
            except _Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again below, on the calling thread
                self._failed = self._failed or error
            finally:
                with self._changed:
                    self._running.remove(number)
                    self._changed.notify_all()

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(on_this_card(work), number), daemon=True)
            for number in range(1, len(functions))
        ]
        for thread in threads:
            thread.start()
        contextvars.copy_context().run(work, 0)
        if self._failed is None or isinstance(self._failed, Exception):
            for thread in threads:
                thread.join()  # ends: a turn waits for a message at most, and that wait is bounded
        # A signal (Ctrl-C, SIGTERM) does not wait for a message: closing the channel ends the others too.
        if self._failed is not None:
            raise self._failed
        return results

    def _await(self, number: int) -> None:
        with self._changed:
            while self._failed is None and self._running[0] != number:
                self._changed.wait()
            if self._failed is not None:
                raise _Stopped

    def pass_on_as(self, number: int) -> None:
        """Let the next function run, and wait until it is this function's turn again.

        number: the index of the function that makes this call. Called by a function that `run` runs.
        """
        with self._changed:
            self._running.append(self._running.pop(0))
            self._changed.notify_all()
        self._await(number)
