"""The parties of one service as a client sees them: what they say of it, and one request to all of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import fields
from functools import partial
from typing import NamedTuple

import grpc
from grpc import aio
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import AgreementError, InputError, PeerError
from hummingbird.prg import new_seed
from hummingbird.rpc.async_client import AsyncClient, compute, running
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain
from hummingbird.serving.description import Described, ServiceDescription
from hummingbird.serving.message import ID_BYTES, MAX_BYTES, MOST_SECONDS, Question, Request, clock, joined

_LAST = 2.0  # seconds for another thread's loop to disconnect
_MARGIN = 10.0  # seconds beyond the deadline, for the parties to say what has become of it


class Joined(NamedTuple):
    """A service that all parties have described alike.

    order: the parties by their ranks, as places among the group's addresses. clocks: seconds that each party's clock is
    ahead, by rank.
    """

    service: ServiceDescription
    order: list[int]
    clocks: list[float]


class _Asked(NamedTuple):
    """A message to a party."""

    address: str
    line: AsyncClient
    message: bytes


class _Lines:
    """The parties of a group, for coroutines of one loop. joining: held by who asks them first what they serve."""

    def __init__(self, lines: list[AsyncClient]) -> None:
        self.lines, self.joining, self.joined = lines, asyncio.Lock(), False

    async def close(self) -> None:
        for line in self.lines:
            await line.close()


class PartyGroup:
    """N parties, for coroutines of any loops. claim: the client's, by which parties tell it apart."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, token: str | None, claim: bytes) -> None:
        self.addresses, self._tls, self._token, self._claim = list(addresses), tls, token, claim
        self._lock = threading.Lock()
        self._lines: dict[asyncio.AbstractEventLoop, _Lines] = {}
        self._joined: Joined | None = None
        self._closed = False
        self.sent_bytes = self.received_bytes = 0  # of messages, requests and their answers only

    def __repr__(self) -> str:
        return ", ".join(self.addresses)

    def close(self) -> None:
        """Disconnect; who is asking gets an error. May be called twice."""
        with self._lock:
            self._closed = True
            lines = dict(self._lines)
            self._lines.clear()
        for loop, there in lines.items():
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(there.close(), loop)
                if loop is not running():
                    wait([closing], _LAST)

    async def join(self, timeout: float) -> Joined:
        """Connect if need be, and ask the parties what they serve, unless they have said so. timeout: seconds.

        Raises PeerError, AgreementError for parties that are not of one service, and InputError once it is closed.
        """
        here, known = self._here(), self._joined
        if here.joined and known is not None:
            return known
        deadline = time.monotonic() + timeout
        async with here.joining:
            if not here.joined:
                try:
                    for line in here.lines:
                        await line.answered(max(0.0, deadline - time.monotonic()))
                except aio.UsageError:
                    raise _over() from None
                here.joined = True
            if self._joined is None:
                self._joined = await self._describe(here, max(1.0, deadline - time.monotonic()))
            return self._joined

    def forget(self) -> None:
        """Ask again before the next request: the parties may serve something else by now."""
        self._joined = None

    async def request(self, joint: Joined, question: Question, timeout: float) -> Tensor:
        """One request, with an id, shares and keys of its own, to all parties, and the sum of their answers, float32.
        timeout: seconds to its deadline, somewhat less than ten minutes at most.
        """
        timeout = min(timeout, MOST_SECONDS - _MARGIN)
        service, lines = joint.service, self._here().lines
        size = question.units.nbytes + len(question) * service.parties * service.key_bytes
        id, bodies = new_seed(ID_BYTES), await compute(size, question.bodies, service)
        messages = []
        for rank, body in enumerate(bodies):
            deadline = int(1e3 * (clock() + joint.clocks[rank] + timeout))
            messages.append(Request(id, self._claim, deadline, len(question), body).to_bytes(service, rank))
        ranked = zip(joint.order, messages, strict=True)
        asked = [_Asked(self.addresses[place], lines[place], message) for place, message in ranked]
        answers = await self._call("Ask", asked, timeout + _MARGIN)
        with self._lock:
            self.sent_bytes += sum(map(len, messages))
            self.received_bytes += sum(map(len, answers))
        return await compute(sum(map(len, answers)), _opened, answers, len(question), service)

    def _here(self) -> _Lines:
        """The parties for the loop that runs now."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise _over()
            if loop not in self._lines:
                for ended in [other for other in self._lines if other.is_closed()]:
                    del self._lines[ended]
                made = [AsyncClient(address, self._tls, self._token, MAX_BYTES) for address in self.addresses]
                self._lines[loop] = _Lines(made)
            return self._lines[loop]

    async def _describe(self, here: _Lines, timeout: float) -> Joined:
        """Ask all parties, see that all say the same, and bring them into the order of their ranks."""
        began = clock()
        asked = [_Asked(address, line, b"") for address, line in zip(self.addresses, here.lines, strict=True)]
        answers = await self._call("Describe", asked, timeout)
        found = [Described.read(answer, address) for answer, address in zip(answers, self.addresses, strict=True)]
        service, ranks = found[0].service, [described.rank for described in found]
        for described, address in zip(found, self.addresses, strict=True):
            if described.service != service:
                differ = difference(service, described.service)
                what = f"{self.addresses[0]} and {address} are not of one service: {differ}"
                raise AgreementError(what, where="Client", hint="name the parties of one run, all of the same release")
        if sorted(ranks) != list(range(service.parties)):
            what = f"the addresses are those of parties {ranks}, the service has parties 0 to {service.parties - 1}"
            raise AgreementError(what, where="Client", hint="name every party once")
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return Joined(service, order, [found[place].clock - began for place in order])

    async def _call(self, method: str, asked: Sequence[_Asked], timeout: float) -> list[bytes]:
        """One message to each party, and its answer; the first failure ends all, and is raised."""
        calls: list[aio.UnaryUnaryCall] = []
        over: asyncio.Queue[int | None] = asyncio.Queue()  # places of calls that have ended
        late = asyncio.get_running_loop().call_later(timeout + _MARGIN, over.put_nowait, None)
        try:
            for place, each in enumerate(asked):
                calls.append(each.line.begin(method, each.message, timeout))
                calls[place].add_done_callback(partial(_put, over, place))
            for _ in calls:
                ended = await over.get()
                if ended is None:
                    raise PeerError("no answer in time", where=str(self))
                try:
                    await calls[ended]
                except grpc.RpcError as error:
                    raise explain(error, asked[ended].address) from None
                except asyncio.CancelledError:  # of the call, which has ended
                    if not self._closed:
                        raise
                    raise _over() from None
            return [await call for call in calls]
        except aio.UsageError:  # another thread has closed the channels
            raise _over() from None
        finally:
            late.cancel()
            for call in calls:
                call.cancel()


def _over() -> InputError:
    return InputError("this client is closed", where="Client", hint="ask within its `with`, or make another")


def _put(over: asyncio.Queue[int | None], place: int, call: object) -> None:
    over.put_nowait(place)


def _opened(answers: list[bytes], images: int, service: ServiceDescription) -> Tensor:
    """The results, float32 (images, ...), of all parties' answers."""
    return ring.decode(joined(answers, images, service), service.result_scale)


def difference(one: ServiceDescription, other: ServiceDescription) -> str:
    """The first field in which two descriptions differ, and both its values."""
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if ours != theirs:
            return f"{field.name} {str(ours)[:60]} and {str(theirs)[:60]}"
    return "no difference"
