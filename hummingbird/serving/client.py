"""A client of `hummingbird serve`: its images leave this process as shares, one for each party.

    client = hummingbird.Client(["localhost:9100", "localhost:9101"])
    logits = client(images)                                            # torch in, torch out
    logits = await client.ask(images)                                  # the same, for asyncio
    scores, boxes = client(images, sizes=sizes)                        # a net of two inputs and two results

What a party receives is a seed, or words that are uniform without all the others' seeds; what it sends back is a
uniform share of the result. Only all N parties together can read an image or a result. One round trip: rounds, masks
and windows are the parties' matter.

A party that dies ends its service's session, and all meet again within seconds. So a request that is refused as
UNAVAILABLE is asked again until its timeout: under another id and with other shares, which say no more together than
each alone. An answer can then be computed twice, and is never mixed from two runs. One that is refused for lack of room
is taken to another service, or asked again when the refusal says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird import inputs
from hummingbird.errors import AgreementError, ConfigError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.rpc.async_client import compute, run, running
from hummingbird.rpc.client import Retry
from hummingbird.rpc.security import Tls
from hummingbird.serving.description import MOST_PARTIES, ServiceDescription
from hummingbird.serving.group import Joined, PartyGroup, difference
from hummingbird.serving.message import Question

_T = TypeVar("_T")
_IN_FLIGHT = 2  # requests of one call under way at a time
_PAUSES = (0.1, 1.0)  # seconds before the next attempt: at first, and at most
_GLANCE = 3.0  # seconds for one of several groups to answer


class Client:
    """A client of N parties: `client(images)`, from any thread; a context manager, or `close`.

    parties: their addresses, HOST:PORT or unix:PATH, in any order; or several such lists, of groups of parties that
        serve the same net: requests go to the first that serves and has room.
    tls: needed off this host. token: of a client without a certificate.
    timeout: seconds for each request, and for the parties to answer at first. Until then the client tries again where
        parties are lost or stopping, and as refusals for lack of room say.
    Sends, for each request of n images, N - 1 seeds and one copy of their low bits, and keys of rows that are looked up
    (`cost.asking`); one round trip.
    Raises PeerError (UnavailableError, OverloadError, AccessError) for a party that does not answer or refuses,
    AgreementError for parties that are not of one service, and InputError for images that it cannot take.
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
        self._net: str | None = None  # that was served first, and that several groups serve alike
        self._timeout = timeout
        if running() is None:  # a loop is not held up; its first request says the same
            try:
                self.service  # noqa: B018 - says at once if the parties are not of one service
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({' or '.join(map(repr, self._groups))})"

    def close(self) -> None:
        """Disconnect; may be called twice."""
        for group in self._groups:
            group.close()

    @property
    def service(self) -> ServiceDescription:
        """The service as all parties describe it, `inputs` and `outputs` too; asked once, and again after a failure."""
        return run(self._described())

    @property
    def addresses(self) -> list[str]:
        """The addresses of the parties that requests go to, by rank."""

        async def addresses(group: PartyGroup, joint: Joined, left: float) -> list[str]:
            return [group.addresses[place] for place in joint.order]

        return run(self._attempts(addresses))

    @property
    def sent_bytes(self) -> int:
        """Bytes of all requests."""
        return sum(group.sent_bytes for group in self._groups)

    @property
    def received_bytes(self) -> int:
        """Bytes of all answers."""
        return sum(group.received_bytes for group in self._groups)

    def __call__(self, *inputs: Tensor, progress: Callable[[int], None] | None = None, **named: Tensor) -> Any:
        """The net's results, float32 (n, ...), of inputs (n, ...), one for each of `service.inputs`.

        They are floating point, but for row numbers of a net that looks them up (hummingbird/lookup.py), int64. They
        stand in that order, or have their names. Several results come as the net gives them, in a tuple or a dict; of
        a dataclass, `result.logits` is `result["logits"]`. More than `service.most` images go in several
        requests, two under way at a time. progress: called with the number of images whenever some are done, from
        another thread.
        """
        return run(self.ask(*inputs, progress=progress, **named))

    async def ask(self, *inputs: Tensor, progress: Callable[[int], None] | None = None, **named: Tensor) -> Any:
        """`client(...)` for asyncio, on the loop that awaits it."""
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
        """The results of requests, some under way at a time."""
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
        """One request to parties that serve the same as when the call began."""

        async def request(group: PartyGroup, joint: Joined, left: float) -> Tensor:
            now = joint.service
            if now is not service and (now := replace(now, session=service.session)) != service:
                what = f"the parties do not serve the same as when this call began: {difference(service, now)}"
                raise AgreementError(what, where="Client", hint="call again")
            return await group.request(joint, question, left)

        return await self._attempts(request)

    async def _attempts(self, attempt: Callable[[PartyGroup, Joined, float], Awaitable[_T]]) -> _T:
        """The result of attempt(group, joint, seconds left) at the first group that serves and has room; again until
        the timeout.
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
        """The service of a group. UnavailableError or OverloadError if it does not serve, and there are others."""
        group, several = self._groups[at], len(self._groups) > 1
        try:
            joint = await group.join(min(left, _GLANCE) if several else left)
        except PeerError as error:
            if not several or isinstance(error, (UnavailableError, OverloadError)):
                raise
            raise UnavailableError(error.what, where=str(group), hint=error.hint) from None
        self._net = self._net or joint.service.net
        if several and self._net != joint.service.net:
            what = f"the parties at {group} serve another net than those that this client has asked before"
            raise AgreementError(what, where="Client", hint="name groups that serve the same net, windows included")
        return joint


def _ordered(given: Sequence[Tensor], named: dict[str, Tensor], service: ServiceDescription) -> list[Tensor]:
    """The inputs in the service's order; InputError unless there is one of each."""
    names = [part.name for part in service.inputs]
    by_place = dict(zip(names, given, strict=False))
    found = by_place | named
    if len(given) > len(names) or by_place.keys() & named or found.keys() != set(names):
        got = ", ".join([f"{len(given)} by place", *map(repr, named)])
        what = f"the net takes {len(names)} inputs, {', '.join(map(repr, names))}; got {got}"
        raise InputError(what, where="Client", hint="one tensor for each, in this order or by name")
    return [found[name] for name in names]


def _parts(tensors: Sequence[Tensor], service: ServiceDescription) -> list[Question]:
    """The questions of each request; InputError for tensors that the net cannot take."""
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
        raise InputError(what, where="Client", hint="ask for fewer at a time: results depend on which are together")
    return Question(together, places).split(service.most)


def _groups_of(parties: Any) -> list[list[str]]:
    """The addresses of each group; ConfigError for something else than a list of addresses, or of such lists."""
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
