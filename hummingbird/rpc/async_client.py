"""Services that coroutines call: one message each way, on gRPC's asyncio channels.

Many calls at once cost their caller less than on channels of threads, by a fifth of a busy client's processor time. The
same errors travel.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache

import grpc
from grpc import aio

from hummingbird.errors import EnvironmentProblem
from hummingbird.rpc.service import PAUSE, PREFIX, Patience, channel_credentials, channel_options
from hummingbird.rpc.tokens import HEADER
from hummingbird.rpc.trust import Tls


@cache
def _started() -> int:
    """The process whose gRPC has begun to wait for events, which it does from now until it ends: the last channel that
    closes would stop it beneath a loop that is at work.
    """
    aio.init_grpc_aio()
    return os.getpid()


class AsyncClient:
    """A service that nobody may listen at yet, for coroutines of the loop that runs now.

    tls, token, largest: as of `rpc.service.connect`, which also names the errors; EnvironmentProblem in a fork of a
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
        patience = Patience(self._address, time.monotonic() + timeout)
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
                patience.bear(error)
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        """Disconnect; calls under way end."""
        await self._channel.close()
