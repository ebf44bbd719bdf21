"""The parties that serve one net together, as a client sees them: addresses, connections, and their description.

`Client` (client.py) sends them requests, and chooses between several groups of parties.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

import grpc
from grpc import aio
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import AgreementError, InputError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.rpc.async_client import AsyncClient, compute, running
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain
from hummingbird.serving.description import CHANGES, LOAD, Described, ServiceDescription
from hummingbird.serving.message import ID_BYTES, MAX_BYTES, MOST_SECONDS, Question, Request, clock, joined

_DIGITS = 12  # of a number that a party reports
_LAST = 2.0  # seconds for another thread's loop to disconnect
_MARGIN = 10.0  # seconds beyond a request's deadline, for the parties to report its outcome


class Joined(NamedTuple):
    """The facts on a group's parties that a client knows once all of them have answered with equal descriptions.

    service: the description. order: for each rank, the index of this party in the group's addresses. clocks: for each
    rank, the seconds by which the party's clock is ahead of the client's.
    """

    service: ServiceDescription
    order: list[int]
    clocks: list[float]


class _Asked(NamedTuple):
    """A message to one party: the party's address, the connection to it, and the bytes to send."""

    address: str
    line: AsyncClient
    message: bytes


class _Lines:
    """The connections of one event loop to all parties of a group.

    lines: one client for each party, in the order of the addresses. joining: a lock, held by the coroutine that
    connects. joined: whether all parties have answered.
    """

    def __init__(self, lines: list[AsyncClient]) -> None:
        self.lines, self.joining, self.joined = lines, asyncio.Lock(), False

    async def close(self) -> None:
        for line in self.lines:
            await line.close()


class PartyGroup:
    """The parties that serve one net together, as a client sees them: it sends requests to all of them.

    addresses: of the N parties, in any order. tls, token: as for `Client`. claim: random bytes by which the parties
    recognise the client. `join` and `request` are coroutines, for any event loop.
    """

    def __init__(self, addresses: Sequence[str], tls: Tls | None, token: str | None, claim: bytes) -> None:
        self.addresses, self._tls, self._token, self._claim = list(addresses), tls, token, claim
        self._lock = threading.Lock()
        self._lines: dict[asyncio.AbstractEventLoop, _Lines] = {}
        self._joined: dict[str, Joined] = {}  # by the model that was asked for
        self._changes = 0  # how often the parties' models had changed when they were asked last
        self._met = False  # whether these addresses have been those of one service
        self._closed = False
        self.sent_bytes = self.received_bytes = 0  # of messages, requests and their answers only
        # For `Groups`, which chooses between groups: images and requests that this client has under way here; the
        # images that the parties have reported, and when; the monotonic time until which this group rests.
        self.images = self.users = 0
        self._load, self.reported, self.rests = 0, -math.inf, -math.inf

    def __repr__(self) -> str:
        return ", ".join(self.addresses)

    def close(self) -> None:
        """Disconnect from these parties; requests under way get an error. May be called twice."""
        with self._lock:
            self._closed, lines = True, dict(self._lines)
            self._lines.clear()
        for loop, there in lines.items():
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(there.close(), loop)
                if loop is not running():
                    wait([closing], _LAST)

    @property
    def work(self) -> int:
        """How many images this client has under way here, and the parties have reported."""
        return self.images + self._load

    async def join(self, timeout: float, model: str, fresh: float = math.inf) -> Joined:
        """Connect to these parties, unless it is done already, and return what they serve (`Joined`).

        timeout: seconds. model: NAME@VERSION, or NAME for its newest version; "": their only one. fresh: seconds for
        which the last report of the parties' work holds; after that they are asked anew.
        Raises PeerError (NotFoundError for a model that they do not have), AgreementError for parties of different
        services, InputError after `close`.
        """
        here, known = self._here(), self._joined.get(model)
        if here.joined and known is not None and time.monotonic() <= self.reported + fresh:
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
            known = self._joined.get(model)
            if known is None or time.monotonic() > self.reported + fresh:
                known = await self._describe(here, model, max(1.0, deadline - time.monotonic()))
                self._joined[model] = known
            return known

    def forget(self) -> None:
        """Let the next request ask for the description again: these parties may serve another net by now."""
        self._joined = {}

    async def request(self, joint: Joined, question: Question, timeout: float) -> Tensor:
        """Send the images of `question` to all parties in one request; return the net's result, float32 (images, ...).

        Id, shares and keys are fresh. joint: as `join` has returned it. timeout: seconds to the deadline, at most 590.
        """
        messages = await self.messages(joint, new_seed(ID_BYTES), question, timeout)
        return await self.answers(joint, messages, len(question), timeout)

    async def messages(self, joint: Joined, id: bytes, question: Question, timeout: float) -> list[bytes]:
        """Return the messages of one request, for each rank, with fresh shares and keys of the images of `question`.

        joint, timeout: as for `request`. id: of the request.
        """
        service, timeout = joint.service, min(timeout, MOST_SECONDS - _MARGIN)
        size = question.units.nbytes + len(question) * service.parties * service.key_bytes
        bodies, messages = await compute(size, question.bodies, service), []
        for rank, body in enumerate(bodies):
            deadline = int(1e3 * (clock() + joint.clocks[rank] + timeout))
            messages.append(Request(id, self._claim, deadline, len(question), body).to_bytes(service, rank))
        return messages

    async def answers(self, joint: Joined, messages: list[bytes], results: int, timeout: float) -> Tensor:
        """Send the messages of one request to the parties; return its results, float32 (results, ...).

        joint, messages: as `join` and `messages` have returned them. results: how many there are, the first dimension.
        """
        lines = self._here().lines
        ranked = zip(joint.order, messages, strict=True)
        asked = [_Asked(self.addresses[place], lines[place], message) for place, message in ranked]
        answers = await self._call("Ask", asked, min(timeout, MOST_SECONDS - _MARGIN) + _MARGIN)
        with self._lock:
            self.sent_bytes += sum(map(len, messages))
            self.received_bytes += sum(map(len, answers))
        return await compute(sum(map(len, answers)), _opened, answers, results, joint.service)

    def _report(self, images: int) -> None:
        """Note how many images the parties have to compute. images: the largest number that one of them reports."""
        self._load, self.reported = images, time.monotonic()

    def _here(self) -> _Lines:
        """Return the connections to the parties for the event loop that runs now; make them at the first call."""
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

    async def _describe(self, here: _Lines, model: str, timeout: float) -> Joined:
        """Ask all parties for their description of the service; return it with their order and clocks (`Joined`).

        here: the connections. model: the one that is asked for. timeout: seconds. Raises AgreementError unless all
        descriptions are equal.
        """
        began = clock()
        asked = [
            _Asked(address, line, model.encode()) for address, line in zip(self.addresses, here.lines, strict=True)
        ]
        answers = await self._call("Describe", asked, timeout)
        found = [Described.read(answer, address) for answer, address in zip(answers, self.addresses, strict=True)]
        service, ranks = found[0].service, [described.rank for described in found]
        for described, address in zip(found, self.addresses, strict=True):
            if described.service != service:
                if self._met and replace(described.service, session=service.session) == service:
                    raise UnavailableError("the parties are about to meet again", where=str(self), hint="try again")
                if described.service.session == service.session and described.service.model != service.model:
                    raise UnavailableError("the parties change their models", where=str(self), hint="try again")
                differ = difference(service, described.service)
                what = f"{self.addresses[0]} and {address} belong to different services: {differ}"
                raise AgreementError(what, where="Client", hint="name the parties of one run, all of the same release")
        if sorted(ranks) != list(range(service.parties)):
            what = f"the addresses are those of parties {ranks}, the service has parties 0 to {service.parties - 1}"
            raise AgreementError(what, where="Client", hint="name every party once")
        self._met = True
        self._changes = min(described.changes for described in found)
        self._report(max(described.load for described in found))
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return Joined(service, order, [found[place].clock - began for place in order])

    async def _call(self, method: str, asked: Sequence[_Asked], timeout: float) -> list[bytes]:
        """Call a method of each party with its message; return a list of the answers, in the order of `asked`.

        The first failure cancels all calls, and is raised. timeout: seconds.
        """
        calls: list[aio.UnaryUnaryCall] = []
        loads: list[int] = []  # that the parties report with their answers
        changes = 0  # likewise: how often their models have changed
        over: asyncio.Queue[int | None] = asyncio.Queue()  # indices of calls that have ended
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
                    told = dict(await calls[ended].trailing_metadata() or ())
                    loads += _number(told.get(LOAD))
                    changes = max([changes, *_number(told.get(CHANGES))])
                except grpc.RpcError as error:
                    raise explain(error, asked[ended].address) from None
                except asyncio.CancelledError:  # the call's own, which has ended
                    if not self._closed:
                        raise
                    raise _over() from None
            if loads:
                self._report(max(loads))
            if changes > self._changes:  # another version may be the newest now
                self.forget()
            return [await call for call in calls]
        except aio.UsageError:  # another thread has closed the channels
            raise _over() from None
        finally:
            late.cancel()
            for call in calls:
                call.cancel()


def _over() -> InputError:
    return InputError("this client is closed", where="Client", hint="ask within its `with`, or make another")


def _number(told: object) -> list[int]:
    """Return the number that a party has told in the metadata of an answer, in a list; an empty list without one."""
    text = str(told)
    return [int(text)] if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else []


def _put(over: asyncio.Queue[int | None], place: int, call: object) -> None:
    over.put_nowait(place)


def _opened(answers: list[bytes], images: int, service: ServiceDescription) -> Tensor:
    """Return the results of a request, float32 (images, ...): the sum of the shares in all parties' answers."""
    return ring.decode(joined(answers, images, service), service.result_scale)


def difference(one: ServiceDescription, other: ServiceDescription) -> str:
    """Return the first field in which two descriptions differ, with both values, as text for an error."""
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if ours != theirs:
            return f"{field.name} {str(ours)[:60]} and {str(theirs)[:60]}"
    return "no difference"
