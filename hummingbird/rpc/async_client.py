"""Calls of services from coroutines, one message each way, on gRPC's asyncio channels; and a background event loop for
callers without one.

    logits = async_client.run(client.ask(images))

Concurrent calls share one thread, which saves a fifth of a busy client's processor time against channels with threads.
Errors are those of client.py.
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
from hummingbird.rpc import spans
from hummingbird.rpc.client import Patience, channel_credentials, channel_options
from hummingbird.rpc.security import HEADER, Tls
from hummingbird.rpc.service import PREFIX

# The loop -------------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")
_SMALL = 1 << 17  # bytes that take less than a millisecond to encrypt, pack or decode
_LOOK = 0.2  # seconds until Ctrl-C is seen if another thread got the signal, which ends no wait without a timeout
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on this package's background event loop; wait for its result, and return it.

    It serves code that is no coroutine. An interrupt of the caller cancels the coroutine. Raises InputError if called
    on the background loop itself, which would then wait for itself.
    """
    loop = _own()
    if running() is loop:
        coroutine.close()
        what = "a blocking call on the event loop that must answer it"
        raise InputError(
            what, where="hummingbird.rpc.async_client", hint="await the coroutine (client.ask), or use a thread"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        while True:
            try:
                return future.result(_LOOK)
            except futures.TimeoutError:
                if future.done():  # it has ended meanwhile, or with a TimeoutError of its own
                    return future.result()
    except BaseException:
        future.cancel()
        raise


def running() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def compute(size: int, function: Callable[..., _T], *args: Any) -> _T:
    """Return function(*args), without blocking the event loop if the function works on much data.

    size: bytes of the data. If they are many, the function runs in a thread, and the event loop goes on meanwhile.
    """
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
    """Drop the background event loop in a process that was just forked, so that the next use makes a new one.

    The forked process lacks the loop's thread, and may find the loop's lock held; the lock is made anew, too.
    """
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


# The client -----------------------------------------------------------------------------------------------------------


@cache
def _started() -> int:
    """Start gRPC's event thread for asyncio, once in this process; return the process's id.

    The thread then lasts until the process ends: otherwise the last channel to close would stop it under a running
    loop. A forked process sees from the id that it is not the one that has started the thread.
    """
    aio.init_grpc_aio()
    return os.getpid()


class AsyncClient:
    """A client of one service for coroutines: it sends messages and awaits answers.

    It is bound to the event loop that runs when it is made. The service need not listen yet. address: HOST:PORT or
    unix:PATH. tls: certificate files; None for plain text. token: of a caller without a certificate. largest: most
    bytes of a message, in either direction. Raises InputError, TrustError and EnvironmentProblem for arguments that
    `rpc.client.dial` refuses, and EnvironmentProblem in a process that was forked from one which has called services.
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
        self._metadata = () if token is None else ((HEADER, f"Bearer {token}"),)
        self._methods: dict[str, aio.UnaryUnaryMultiCallable] = {}

    def begin(self, method: str, message: bytes, timeout: float) -> aio.UnaryUnaryCall:
        """Begin a call of a service's method with one message; return gRPC's call object at once.

        Awaiting the object gives the answer as bytes, or raises grpc.RpcError, which `status.explain` translates.
        method: its name. timeout: seconds.
        """
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(PREFIX + method)
        return self._methods[method](message, timeout=timeout, metadata=(*self._metadata, *spans.header()))

    async def answered(self, timeout: float) -> None:
        """Wait until the service answers: send it small calls again and again, for at most `timeout` seconds.

        Raises AccessError for a caller that the service does not know, PeerError if it does not answer, and
        aio.UsageError if another coroutine has closed this client.
        """
        patience = Patience(self._address, timeout)
        while True:
            asked = asyncio.ensure_future(self.begin("Ping", b"", patience.glance))
            try:
                await asyncio.wait([asked])
            finally:
                asked.cancel()  # if this coroutine is cancelled
            if asked.cancelled():
                raise aio.UsageError("the channel is closed")
            try:
                asked.result()
                return
            except grpc.RpcError as error:
                pause = patience.bear(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Disconnect from the service; calls under way are cancelled."""
        await self._channel.close()
