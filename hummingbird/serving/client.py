"""A client of `hummingbird serve`: its images leave this process as shares, one for each party.

Party N - 1 receives words that are uniform to anyone who lacks one of the other parties' seeds; each other party
receives a seed. Each sends back a uniform share of the result. Only all N parties together can read an image or a
result. A request takes one round trip; rounds, masks and windows concern the parties alone.

When a party dies, the session of its service ends, and the parties meet again within seconds. The client therefore
repeats a request that was refused as UNAVAILABLE until its timeout, under another id and with fresh shares, which
together reveal no more than each alone. An answer may then be computed twice, but is never mixed from two runs. A
request that was refused for lack of room is repeated at the time that the refusal names. Where several groups of
parties serve the net, another one is asked at once (groups.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic

import torch
from torch import Tensor
from typing_extensions import Self

from hummingbird import inputs
from hummingbird.errors import AgreementError, ConfigError, InputError, NotFoundError, PeerError
from hummingbird.prg import new_seed
from hummingbird.rpc import spans
from hummingbird.rpc.async_client import compute, run, running
from hummingbird.rpc.security import Tls
from hummingbird.serving.client_conversation import ClientConversation
from hummingbird.serving.description import MOST_TITLE, ServiceDescription
from hummingbird.serving.groups import Groups, check_groups, group_file
from hummingbird.serving.lines_file import LinesFile
from hummingbird.serving.message import Question
from hummingbird.serving.party_group import Joined, PartyGroup, difference
from hummingbird.structure import Result

_IN_FLIGHT = 2  # requests of one call under way at a time


class Client(Generic[Result]):
    """A client of N parties: `client(images)`, from any thread. Use it as a context manager, or `close` it.

    parties: the parties' addresses, HOST:PORT or unix:PATH, in any order; or several such lists, one for each group of
        parties that serve the same net: each request goes to the one of two random groups that has less work
        (groups.py). `from_file` reads them from a file.
    model: which of the parties' models to ask: NAME@VERSION; or NAME, for its newest version that is ready, call by
        call; "": the only one (docs/serving.md).
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
        model: str = "",
    ) -> None:
        self._begin(_groups_of(parties), tls, token, timeout, model)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        tls: Tls | None = None,
        timeout: float = 60.0,
        *,
        token: str | None = None,
        model: str = "",
    ) -> Self:
        """Return a client of all groups in a file: each line has the addresses of a group's parties.

        The file is read again when it has changed, so that groups come and go while the client runs. A `#` begins a
        comment. path: of the file. The other arguments, and the errors, are those of `Client`. Raises InputError for a
        file that cannot be read or has other lines; later such a change is a warning, and the groups stay.
        """
        client = cls.__new__(cls)
        client._begin(group_file(path), tls, token, timeout, model)
        return client

    def _begin(
        self,
        groups: LinesFile[list[list[str]]] | list[list[str]],
        tls: Tls | None,
        token: str | None,
        timeout: float,
        model: str,
    ) -> None:
        claim = new_seed()
        if not model.isascii() or len(model) > MOST_TITLE:
            hint = f"NAME or NAME@VERSION, of at most {MOST_TITLE} characters"
            raise InputError(f"no name of a model: {model[:MOST_TITLE]!r}", where="Client", hint=hint)
        self._groups = Groups(groups, timeout, lambda addresses: PartyGroup(addresses, tls, token, claim), model)
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
        return f"Client({self._groups})"

    def close(self) -> None:
        """Disconnect this client from all parties; may be called twice."""
        self._groups.close()

    @property
    def service(self) -> ServiceDescription:
        """The parties' description of the service, with `inputs` and `outputs`; asked for anew after a failure."""
        return run(self._groups.described())

    @property
    def sent_bytes(self) -> int:
        """Bytes of all requests that this client has sent so far, to all parties together."""
        return self._groups.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of all answers that this client has received so far."""
        return self._groups.received_bytes

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
        ends, reported = time.monotonic() + self._groups.timeout, _Progress(progress)
        while True:
            service = await self._groups.described()
            try:
                return await self._ask(inputs, named, service, reported)
            except NotFoundError:  # the version that this call has begun with has left: another one is the newest
                self._groups.forget()
                if service.model in ("", self._groups.model) or time.monotonic() > ends:
                    raise
                reported.again()

    async def _ask(
        self, inputs: Sequence[Tensor], named: dict[str, Tensor], service: ServiceDescription, progress: _Progress
    ) -> Result:
        """Return the net's results, all from the version of the net that `service` describes.

        Raises NotFoundError if the parties do not have it any more. The other arguments are those of `ask`.
        """
        if service.places:
            what = "this service generates text, word after word"
            raise InputError(what, where="Client", hint="with client.conversation() as talk: logits = talk(words)")
        given = _ordered(inputs, named, service)
        parts = await compute(sum(x.nbytes for x in given if isinstance(x, Tensor)), _parts, given, service)
        try:
            with spans.span("ask"):
                outputs = await self._answers(parts, service, progress)
        except PeerError:
            self._groups.forget()  # the parties may be others by now
            raise
        return service.parted(torch.cat(outputs))

    def conversation(self) -> ClientConversation:
        """Return a conversation with a service that generates text (`serve --prompt`); it begins with its prompt.

        Use it as a context manager, or `close` it, so that the parties forget it at once (`ClientConversation`).
        """
        return ClientConversation(self._groups)

    async def _answers(self, parts: list[Question], service: ServiceDescription, progress: _Progress) -> list[Tensor]:
        """Send requests for `parts`, at most `_IN_FLIGHT` at a time; return a list of their results, in their order.

        service: the parties' description. progress: gets the number of images of each finished request.
        """
        room, outputs = asyncio.Semaphore(_IN_FLIGHT), list[Tensor]()

        async def answer(part: Question) -> Tensor:
            async with room:
                return await self._request(part, service)

        tasks = [asyncio.ensure_future(answer(part)) for part in parts]
        try:
            for part, task in zip(parts, tasks, strict=True):
                outputs.append(await task)
                progress.done(len(part))
        finally:
            for task in tasks:
                task.cancel()
        return outputs

    async def _request(self, question: Question, service: ServiceDescription) -> Tensor:
        """Send the images of `question` to the parties in one request; return its result, float32 (images, ...).

        service: the description that the caller has used. Raises AgreementError if the parties now serve another net.
        """

        async def request(group: PartyGroup, joint: Joined, left: float) -> Tensor:
            now = joint.service
            if now is not service and (now := replace(now, session=service.session, group=service.group)) != service:
                what = f"the service has changed since this call began: {difference(service, now)}"
                raise AgreementError(what, where="Client", hint="call again")
            with spans.span("request", calls=True, group=now.group):
                return await group.request(joint, question, left)

        return await self._groups.attempts(request, len(question), service.model)


class _Progress:
    """Reports how many images of a call are done, each once, though a call may begin again.

    report: called with numbers of newly finished images; None: nothing is reported.
    """

    def __init__(self, report: Callable[[int], None] | None) -> None:
        self._report, self._done, self._told = report, 0, 0

    def done(self, images: int) -> None:
        self._done += images
        if self._report is not None and self._done > self._told:
            self._report(self._done - self._told)
            self._told = self._done

    def again(self) -> None:
        self._done = 0


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
        if not _is_list(group) or not all(isinstance(address, str) for address in group):
            hint = "a list of two addresses or more, one for each party; or a list of such lists"
            raise ConfigError(f"parties={parties!r}", where="Client", hint=hint)
    check_groups(groups, "Client")
    return [list(group) for group in groups]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
