"""An event loop of this process, on a thread of its own: callers that have none run their coroutines there.

    logits = loop.run(client.ask(images))

All their calls under way then share one thread, which costs less than one for each.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any, TypeVar

from hummingbird.errors import InputError

_T = TypeVar("_T")
_SMALL = 1 << 17  # bytes: within a millisecond they are encrypted, packed or decoded
_LOOK = 0.2  # seconds until Ctrl-C is seen where another thread got the signal: it wakes nobody who waits without end
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine, which runs on this process's own loop; whoever is interrupted cancels it.

    InputError where that loop itself would wait.
    """
    loop = _own()
    if running() is loop:
        coroutine.close()
        what = "a call that waits, from within another one: nothing would answer"
        raise InputError(
            what, where="hummingbird.rpc.event_loop", hint="await the coroutine (client.ask), or use a thread"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        while True:
            try:
                return future.result(_LOOK)
            except futures.TimeoutError:
                if future.done():  # by now, or with such an error of its own
                    return future.result()
    except BaseException:
        future.cancel()
        raise


def running() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def compute(size: int, function: Callable[..., _T], *args: Any) -> _T:
    """The result of function(*args), for data of so many bytes: in a thread where others would wait for it."""
    return function(*args) if size <= _SMALL else await asyncio.to_thread(function, *args)


def _own() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="hummingbird-loop", daemon=True).start()
            atexit.register(_loop.call_soon_threadsafe, _loop.stop)
        return _loop


def _forget() -> None:
    """A forked process has the loop without its thread, and the lock as its parent's threads had it."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
