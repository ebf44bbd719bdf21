"""A client of `hummingbird serve`: its images leave this process as shares, one for each party.

Party N - 1 receives words that are uniform to anyone who lacks one of the other parties' seeds; each other party
receives a seed. Each sends back a uniform share of the result. Only all N parties together can read an image or a
result. A request takes one round trip; rounds, masks and windows concern the parties alone.

When a party dies, the session of its service ends, and the parties meet again within seconds. The client therefore
repeats a request that was refused as UNAVAILABLE until its timeout, under another id and with fresh shares, which
together reveal no more than each alone. An answer may then be computed twice, but is never mixed from two runs. A
request that was refused for lack of room goes to another service, or is repeated at the time that the refusal names.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import wait
from dataclasses import fields, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
import torch
from grpc import aio
from torch import Tensor
from typing_extensions import Self

from hummingbird import inputs, ring
from hummingbird.errors import AgreementError, ConfigError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.rpc.async_client import AsyncClient, compute, run, running
from hummingbird.rpc.client import Retry
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain
from hummingbird.serving.description import MOST_PARTIES, Described, ServiceDescription
from hummingbird.serving.message import ID_BYTES, MAX_BYTES, MOST_SECONDS, Question, Request, clock, joined
from hummingbird.structure import Result

# The parties of one service: their description of it, and one request to all of them ---------------------------------

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
        self._joined: Joined | None = None
        self._closed = False
        self.sent_bytes = self.received_bytes = 0  # of messages, requests and their answers only

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

    async def join(self, timeout: float) -> Joined:
        """Connect to these parties, unless it is done already, and return what they serve (`Joined`).

        timeout: seconds. Raises PeerError, AgreementError for parties of different services, InputError after `close`.
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
        """Let the next request ask for the description again: these parties may serve another net by now."""
        self._joined = None

    async def request(self, joint: Joined, question: Question, timeout: float) -> Tensor:
        """Send the images of `question` to all parties in one request; return the net's result, float32 (images, ...).

        Id, shares and keys are fresh. joint: as `join` has returned it. timeout: seconds to the deadline, at most 590.
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

    async def _describe(self, here: _Lines, timeout: float) -> Joined:
        """Ask all parties for their description of the service; return it with their order and clocks (`Joined`).

        here: the connections. timeout: seconds. Raises AgreementError unless all descriptions are equal.
        """
        began = clock()
        asked = [_Asked(address, line, b"") for address, line in zip(self.addresses, here.lines, strict=True)]
        answers = await self._call("Describe", asked, timeout)
        found = [Described.read(answer, address) for answer, address in zip(answers, self.addresses, strict=True)]
        service, ranks = found[0].service, [described.rank for described in found]
        for described, address in zip(found, self.addresses, strict=True):
            if described.service != service:
                differ = difference(service, described.service)
                what = f"{self.addresses[0]} and {address} belong to different services: {differ}"
                raise AgreementError(what, where="Client", hint="name the parties of one run, all of the same release")
        if sorted(ranks) != list(range(service.parties)):
            what = f"the addresses are those of parties {ranks}, the service has parties 0 to {service.parties - 1}"
            raise AgreementError(what, where="Client", hint="name every party once")
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return Joined(service, order, [found[place].clock - began for place in order])

    async def _call(self, method: str, asked: Sequence[_Asked], timeout: float) -> list[bytes]:
        """Call a method of each party with its message; return a list of the answers, in the order of `asked`.

        The first failure cancels all calls, and is raised. timeout: seconds.
        """
        calls: list[aio.UnaryUnaryCall] = []
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
                except grpc.RpcError as error:
                    raise explain(error, asked[ended].address) from None
                except asyncio.CancelledError:  # the call's own, which has ended
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
    """Return the results of a request, float32 (images, ...): the sum of the shares in all parties' answers."""
    return ring.decode(joined(answers, images, service), service.result_scale)


def difference(one: ServiceDescription, other: ServiceDescription) -> str:
    """Return the first field in which two descriptions differ, with both values, as text for an error."""
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if ours != theirs:
            return f"{field.name} {str(ours)[:60]} and {str(theirs)[:60]}"
    return "no difference"


# The client ----------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")
_IN_FLIGHT = 2  # requests of one call under way at a time
_PAUSES = (0.1, 1.0)  # seconds before the next attempt: at first, and at most
_GLANCE = 3.0  # seconds for a group to answer where there are several


class Client(Generic[Result]):
    """A client of N parties: `client(images)`, from any thread. Use it as a context manager, or `close` it.

    parties: the parties' addresses, HOST:PORT or unix:PATH, in any order; or several such lists, one for each group of
        parties that serve the same net: requests go to the first group that serves and has room.
    tls: certificates; required for parties on other hosts. token: the token of a client without a certificate.
    timeout: seconds for connecting, and for each request, which is repeated while parties are lost, stopping or full.
    Each request of n images takes one round trip: N - 1 seeds, one copy of the images' low bits, the keys of lookups.
    Raises PeerError (UnavailableError, OverloadError, AccessError) for a party that does not answer or refuses,
    AgreementError for parties of different services, and InputError for images that the net cannot take.

    >>> import subprocess, sys
    >>> run = "-m hummingbird run --parties 2 -- -m hummingbird serve --model models:get_model digits 10 --input 1x8x8"
    >>> parties = subprocess.Popen([sys.executable, *run.split(), "--listen", "unix:{rank}.sock"])
    >>> with hummingbird.Client(["unix:0.sock", "unix:1.sock"], timeout=120) as client:
    ...     print(client(torch.rand(5, 1, 8, 8)).shape)
    torch.Size([5, 10])
    >>> parties.terminate(), parties.wait()
    (None, 0)
    """

    def __init__(
        self,
        parties: Sequence[str] | Sequence[Sequence[str]],
        tls: Tls | None = None,
        timeout: float = 60.0,
        *,
        token: str | None = None,
    ) -> None:
        claim = new_seed()
        self._groups = [PartyGroup(addresses, tls, token, claim) for addresses in _groups_of(parties)]
        self._at = 0  # the group that requests go to
        self._net: str | None = None  # fingerprint of the net served first, which all groups must serve
        self._timeout = timeout
        if running() is None:  # never block an event loop: there the first request raises the same errors
            try:
                self.service  # noqa: B018 - raises at once if the parties are not of one service
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({' or '.join(map(repr, self._groups))})"

    def close(self) -> None:
        """Disconnect this client from all parties; may be called twice."""
        for group in self._groups:
            group.close()

    @property
    def service(self) -> ServiceDescription:
        """The parties' description of the service, with `inputs` and `outputs`; asked for anew after a failure."""
        return run(self._described())

    @property
    def addresses(self) -> list[str]:
        """The addresses of the parties to which this client's requests go, as a list by rank."""

        async def addresses(group: PartyGroup, joint: Joined, left: float) -> list[str]:
            return [group.addresses[place] for place in joint.order]

        return run(self._attempts(addresses))

    @property
    def sent_bytes(self) -> int:
        """Bytes of all requests that this client has sent so far, to all parties together."""
        return sum(group.sent_bytes for group in self._groups)

    @property
    def received_bytes(self) -> int:
        """Bytes of all answers that this client has received so far."""
        return sum(group.received_bytes for group in self._groups)

    def __call__(self, *inputs: Tensor, progress: Callable[[int], None] | None = None, **named: Tensor) -> Result:
        """Return the net's results, float32 (n, ...), for n images; wait until they have come.

        inputs, named: tensors (n, ...), one for each of `service.inputs`, in their order or by name. They are floating
        point, or int64 row numbers for a net with lookups (hummingbird/lookup.py). Several results have the structure
        that the net returns, a tuple or a dict, and the type in `Client[tuple[Tensor, Tensor]](..)`; for a dataclass,
        `result.logits` is `result["logits"]`. More than `service.most` images go in several requests, two under way at
        a time. progress: called from another thread with numbers of newly finished images.
        """
        return run(self.ask(*inputs, progress=progress, **named))

    async def ask(self, *inputs: Tensor, progress: Callable[[int], None] | None = None, **named: Tensor) -> Result:
        """Return the net's results, as a call of this client with these arguments does; this is a coroutine."""
        service = await self._described()
        given = _ordered(inputs, named, service)
        parts = await compute(sum(x.nbytes for x in given if isinstance(x, Tensor)), _parts, given, service)
        try:
            outputs = await self._answers(parts, service, progress)
        except PeerError:
            self._groups[self._at].forget()  # the parties may be others by now
            raise
        return service.parted(torch.cat(outputs))

    async def _answers(
        self, parts: list[Question], service: ServiceDescription, progress: Callable[[int], None] | None
    ) -> list[Tensor]:
        """Send requests for `parts`, at most `_IN_FLIGHT` at a time; return a list of their results, in their order.

        service: the parties' description. progress: called with the number of images of each finished request.
        """
        room, outputs = asyncio.Semaphore(_IN_FLIGHT), list[Tensor]()

        async def answer(part: Question) -> Tensor:
            async with room:
                return await self._request(part, service)

        tasks = [asyncio.ensure_future(answer(part)) for part in parts]
        try:
            for part, task in zip(parts, tasks, strict=True):
                outputs.append(await task)
                if progress is not None:
                    progress(len(part))
        finally:
            for task in tasks:
                task.cancel()
        return outputs

    async def _described(self) -> ServiceDescription:
        async def service(group: PartyGroup, joint: Joined, left: float) -> ServiceDescription:
            return joint.service

        return await self._attempts(service)

    async def _request(self, question: Question, service: ServiceDescription) -> Tensor:
        """Send the images of `question` to the parties in one request; return its result, float32 (images, ...).

        service: the description that the caller has used. Raises AgreementError if the parties now serve another net.
        """

        async def request(group: PartyGroup, joint: Joined, left: float) -> Tensor:
            now = joint.service
            if now is not service and (now := replace(now, session=service.session)) != service:
                what = f"the service has changed since this call began: {difference(service, now)}"
                raise AgreementError(what, where="Client", hint="call again")
            return await group.request(joint, question, left)

        return await self._attempts(request)

    async def _attempts(self, attempt: Callable[[PartyGroup, Joined, float], Awaitable[_T]]) -> _T:
        """Call `attempt` for one group of parties after another until it succeeds; return its result.

        attempt: a coroutine function of a group, of the `Joined` service of this group, and of the seconds left. While
        no group serves and has room, attempts go on until the client's timeout; then the last error is raised.
        """
        retry = Retry(self._timeout, _PAUSES, places=len(self._groups), first=self._at)
        while True:
            at = retry.place
            try:
                joint = await self._join(at, retry.left)
                out = await attempt(self._groups[at], joint, retry.left)
            except PeerError as error:
                if isinstance(error, UnavailableError):
                    self._groups[at].forget()
                await asyncio.sleep(retry.failed(error))
            else:
                self._at = at
                return out

    async def _join(self, at: int, left: float) -> Joined:
        """Connect to the parties of group number `at` within `left` seconds; return their `Joined` service.

        If there are other groups, a PeerError is raised as an UnavailableError (an OverloadError as it is), so that
        they are tried next. Raises AgreementError if this group serves another net than the first one that answered.
        """
        group, several = self._groups[at], len(self._groups) > 1
        try:
            joint = await group.join(min(left, _GLANCE) if several else left)
        except PeerError as error:
            if not several or isinstance(error, (UnavailableError, OverloadError)):
                raise
            raise UnavailableError(error.what, where=str(group), hint=error.hint) from None
        self._net = self._net or joint.service.net
        if several and self._net != joint.service.net:
            what = f"the parties at {group} serve another net than the parties that this client asked before"
            raise AgreementError(what, where="Client", hint="name groups that serve the same net, windows included")
        return joint


def _ordered(given: Sequence[Tensor], named: dict[str, Tensor], service: ServiceDescription) -> list[Tensor]:
    """Return a list of the net's inputs in the order of `service.inputs`. Raises InputError unless each is given once.

    given: inputs by place, in this order. named: inputs by name.
    """
    names = [part.name for part in service.inputs]
    by_place = dict(zip(names, given, strict=False))
    found = by_place | named
    if len(given) > len(names) or by_place.keys() & named or found.keys() != set(names):
        got = ", ".join([f"{len(given)} by place", *map(repr, named)])
        what = f"the net takes {len(names)} inputs, {', '.join(map(repr, names))}; got {got}"
        raise InputError(what, where="Client", hint="one tensor for each, in this order or by name")
    return [found[name] for name in names]


def _parts(tensors: Sequence[Tensor], service: ServiceDescription) -> list[Question]:
    """Encode a client's inputs as ring elements, and divide them into questions of at most `service.most` images each.

    tensors: one for each of `service.inputs`. Raises InputError for inputs that do not fit the net.
    """
    units, places = [], None
    for part, x in zip(service.inputs, tensors, strict=True):
        shown, where = ("images", "Client") if len(tensors) == 1 else (repr(part.name), f"Client({part.name})")
        if isinstance(x, Tensor) and (tuple(x.shape[1:]) != part.shape or not x.dim() or not len(x)):
            what = f"expected {shown} ({', '.join(map(str, ('n', *part.shape)))}), got {tuple(x.shape)}"
            raise InputError(what, where=where, hint="the first dimension is the batch")
        if part.rows:
            places = inputs.numbered(x, where, part.rows)
        else:
            units.append(inputs.encoded(x, where, service.limit))
        if len(x) != len(tensors[0]):
            what = f"{shown} is a batch of {len(x)}, and {service.inputs[0].name!r} one of {len(tensors[0])}"
            raise InputError(what, where=where, hint="the first dimension of every input is the batch")
    together = units[0] if len(units) == 1 else torch.cat([x.reshape(len(x), -1) for x in units], 1)
    if not service.rowwise and len(together) > service.most:
        what = f"{len(together)} images, and this net computes images together, of which a request holds {service.most}"
        raise InputError(
            what, where="Client", hint="ask for fewer at a time: results depend on the images in a request"
        )
    return Question(together, places).split(service.most)


def _groups_of(parties: Any) -> list[list[str]]:
    """Return a list of groups, each a list of addresses, from `parties`: one list of addresses, or several such lists.

    Raises ConfigError for anything else, and for a group of fewer than two parties or too many.
    """
    several = _is_list(parties) and any(map(_is_list, parties))
    groups = list(parties) if several else [parties]
    for group in groups:
        good = _is_list(group) and all(isinstance(address, str) for address in group)
        if not good or not 2 <= len(group) <= MOST_PARTIES:
            hint = "a list of two addresses or more, one for each party; or a list of such lists"
            raise ConfigError(f"parties={parties!r}", where="Client", hint=hint)
    return [list(group) for group in groups]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
