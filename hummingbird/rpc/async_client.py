"""Services that coroutines call: one message each way, on gRPC's asyncio channels; and an event loop for callers
without one, on a thread of its own.

    logits = async_client.run(client.ask(images))

Many calls at once cost their caller less than on channels of threads, by a fifth of a busy client's processor time: all
that are under way share one thread. The same errors travel.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from functools import cache
from typing import Any, TypeVar

import grpc
from grpc import aio

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.rpc.client import Patience, channel_credentials, channel_options
from hummingbird.rpc.security import HEADER, Tls
from hummingbird.rpc.service import PREFIX

# The loop -------------------------------------------------------------------------------------------------------------

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
            what, where="hummingbird.rpc.async_client", hint="await the coroutine (client.ask), or use a thread"
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


# The client -----------------------------------------------------------------------------------------------------------


@cache
def _started() -> int:
    """The process whose gRPC has begun to wait for events, which it does from now until it ends: the last channel that
    closes would stop it beneath a loop that is at work.
    """
    aio.init_grpc_aio()
    return os.getpid()


class AsyncClient:
    """A service that nobody may listen at yet, for coroutines of the loop that runs now.

    tls, token, largest: as of `rpc.client.connect`, which also names the errors; EnvironmentProblem in a fork of a
    process that has called services.
    """

    def __init__(self, address: str, tls: Tls | None, token: str | None, largest: int) -> None:
        if _started() != os.getpid():
            hint = 'start processes with multiprocessing.get_context("spawn"), or make the first client after the fork'
            raise EnvironmentProblem("gRPC's channels do not outlive a fork", where=address, hint=hint)
        credentials, options = channel_credentials(address, tls), channel_options(address, largest)
        if credentials is None:
            self._channel = aio.insecure_channel(address, options=options)
        else:
            self._channel = aio.secure_channel(address, credentials, options=options)
        self._address = address
        self._metadata = None if token is None else ((HEADER, f"Bearer {token}"),)
        self._methods: dict[str, aio.UnaryUnaryMultiCallable] = {}

    def begin(self, method: str, message: bytes, timeout: float) -> aio.UnaryUnaryCall:
        """A call that has begun; awaiting it gives the answer, or grpc.RpcError, which `explain` puts in words."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(PREFIX + method)
        return self._methods[method](message, timeout=timeout, metadata=self._metadata)

    async def answered(self, timeout: float) -> None:
        """Return when the service has answered; keeps trying for `timeout` seconds. Raises as `connect`, and
        aio.UsageError once another coroutine has closed the channel.
        """
        patience = Patience(self._address, timeout)
        while True:
            asked = asyncio.ensure_future(self.begin("Ping", b"", patience.glance))
            try:
                await asyncio.wait([asked])
            finally:
                asked.cancel()  # where it is this coroutine that is cancelled
            if asked.cancelled():
                raise aio.UsageError("the channel is closed")
            try:
                asked.result()
                return
            except grpc.RpcError as error:
                pause = patience.bear(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Disconnect; calls under way end."""
        await self._channel.close()
