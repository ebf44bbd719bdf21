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
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from hummingbird import inputs
from hummingbird.errors import (
    AgreementError,
    ConfigError,
    HummingbirdError,
    InputError,
    OverloadError,
    PeerError,
    UnavailableError,
)
from hummingbird.prg import new_seed
from hummingbird.rpc.async_client import compute, run, running
from hummingbird.rpc.client import Retry
from hummingbird.rpc.security import Tls
from hummingbird.serving.description import MOST_PARTIES, ServiceDescription
from hummingbird.serving.message import ATTEMPTS, END, TALK_BYTES, Question, step_id
from hummingbird.serving.party_group import Joined, PartyGroup, difference
from hummingbird.structure import Result

_T = TypeVar("_T")
_IN_FLIGHT = 2  # requests of one call under way at a time
_PAUSES = (0.1, 1.0)  # seconds before the next attempt: at first, and at most
_GLANCE = 3.0  # seconds for a group to answer where there are several
_LAST = 2.0  # seconds for the parties to hear that a conversation is over


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
        if service.places:
            what = "this service generates text, word after word"
            raise InputError(what, where="Client", hint="with client.conversation() as talk: logits = talk(words)")
        given = _ordered(inputs, named, service)
        parts = await compute(sum(x.nbytes for x in given if isinstance(x, Tensor)), _parts, given, service)
        try:
            outputs = await self._answers(parts, service, progress)
        except PeerError:
            self._groups[self._at].forget()  # the parties may be others by now
            raise
        return service.parted(torch.cat(outputs))

    def conversation(self) -> ClientConversation:
        """Return a conversation with a service that generates text (`serve --prompt`); it begins with its prompt.

        Use it as a context manager, or `close` it, so that the parties forget it at once (`ClientConversation`).
        """
        return ClientConversation(self)

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


class ClientConversation:
    """A conversation of a client: `talk(words)` reads the prompt, then one word after the other. For one thread.

    client: its service generates text. The parties keep keys and values as shares from step to step, until `close`, for
    as long as the conversation is not idle for too long. Each step takes one round trip. A step is repeated with the
    same bytes while connections are lost, so that it runs once, and its answer is that of the one run; it is tried anew
    while the service is full. After any other failure, and when the parties have met again, the conversation is over.

    >>> import subprocess, sys
    >>> run = "-m hummingbird run --parties 2 -- -m hummingbird serve --model models.gpt:Gpt 100 16 32 4 1"
    >>> run += " --input 16x32 --prompt 4 --listen unix:{rank}.talk"
    >>> parties = subprocess.Popen([sys.executable, *run.split()])
    >>> with hummingbird.Client(["unix:0.talk", "unix:1.talk"], timeout=120) as client:
    ...     with client.conversation() as talk:
    ...         print(talk(torch.rand(3, 32)).shape, talk.used)  # a prompt of three words
    ...         print(talk(torch.rand(1, 32)).shape, talk.left)
    torch.Size([100]) 4
    torch.Size([100]) 11
    >>> parties.terminate(), parties.wait()
    (None, 0)
    """

    def __init__(self, client: Client[Any]) -> None:
        self._client, self._talk = client, new_seed(TALK_BYTES)
        self._at = 0  # the group of parties that has this conversation, from its first step on
        self._service: ServiceDescription | None = None
        self._step, self._over, self._busy = 0, "", False
        self._known = False  # whether the parties may have it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def service(self) -> ServiceDescription:
        """The description of the service; raises InputError if it does not generate text."""
        if self._service is None:
            self._service = _of_text(self._client.service)
        return self._service

    @property
    def prompt(self) -> int:
        """How many places the prompt has: the most words of the first step, which takes all these places."""
        return self.service.most

    @property
    def places(self) -> int:
        """How many places a conversation has in all."""
        return self.service.places

    @property
    def width(self) -> int:
        """The width of a word vector."""
        return self.service.inputs[0].values

    @property
    def words(self) -> int:
        """How many words there are: the number of logits."""
        return self.service.results

    @property
    def input_range(self) -> float | None:
        """The largest |x| of word vectors that the net takes; None: the limit that holds in any net, 2^20."""
        return self.service.limit

    @property
    def used(self) -> int:
        """How many places are used, padding of the prompt included."""
        return self.prompt + self._step - 1 if self._step else 0

    @property
    def left(self) -> int:
        """How many places are left; 0 once the conversation is over."""
        return 0 if self._over else self.places - self.used

    def __call__(self, words: Tensor) -> Tensor:
        """Read the prompt's word vectors (n, width), later single ones (1, width); return logits, float32 (words,).

        words: floating point; the prompt has from 1 to `prompt` words, and takes `prompt` places. The logits are those
        of the word that follows. Raises InputError, before anything is sent, for another shape, for values that the
        net cannot take, and if no place is left or the conversation is over; PeerError if it fails, which ends it.
        """
        return run(self.ask(words))

    async def ask(self, words: Tensor) -> Tensor:
        """Return the logits behind these words, as a call of this conversation does; this is a coroutine."""
        if self._service is None:
            self._service = _of_text(await self._client._described())
        question = Question(self._checked(words, self._service))
        self._busy = True
        try:
            logits = await self._ask(question)
        except BaseException as error:
            self._over = "a step has failed"
            if isinstance(error, PeerError) and self._step:
                raise PeerError(f"{error.what}; this conversation is over", where=error.where, hint=_ANOTHER) from None
            raise
        finally:
            self._busy = False
        self._step += 1
        self._known = self.left > 0
        return logits[0]

    def close(self) -> None:
        """End this conversation, also at the parties if they answer; may be called twice."""
        known, self._known, self._over = self._known, False, self._over or "it is closed"
        if known:
            with contextlib.suppress(HummingbirdError):  # the parties end it when it has been idle for long
                run(self._end())

    def _checked(self, words: Any, service: ServiceDescription) -> Tensor:
        """Return word vectors as ring elements, int64 (n, width), if the next step can read them; else raise."""
        if self._busy:
            raise InputError("a step of it is under way", where="conversation", hint="wait for its logits")
        if self._over:
            raise InputError(f"this conversation is over: {self._over}", where="conversation", hint=_ANOTHER)
        if not self.left:
            what = f"all {service.places} places of this conversation are used"
            raise InputError(what, where="conversation", hint="begin another one, or serve a net for more places")
        units = inputs.encoded(words, "conversation", service.limit)
        most = 1 if self._step else service.most
        if units.dim() != 2 or units.shape[1:] != service.shape or not 1 <= len(units) <= most:
            expected = f"({'1' if most == 1 else f'1 to {most}'}, {service.values})"
            what = f"expected word vectors {expected}, got {tuple(units.shape)}"
            raise InputError(what, where="conversation", hint="the prompt first, then single words")
        return units

    async def _ask(self, question: Question) -> Tensor:
        """Send the next step's words to the parties until they answer; return its logits, float32 (1, words)."""
        client, began = self._client, bool(self._step)
        places = [self._at] if began else [*range(len(client._groups))]
        retry = Retry(client._timeout, _PAUSES, places=len(places), first=0 if began else client._at)
        attempt, messages, lost, asked = 0, None, False, -1  # attempts; the last one's messages, and its group
        while True:
            at = places[retry.place]
            try:
                joint = await client._join(at, retry.left)
                self._settle(joint.service, at)
                if messages is None or at != asked:
                    id = step_id(self._talk, self._step, attempt)
                    messages = await client._groups[at].messages(joint, id, question, retry.left)
                    attempt, asked = min(attempt + 1, ATTEMPTS - 1), at
                self._at, self._known = at, True
                logits = await client._groups[at].answers(joint, messages, 1, retry.left)
            except PeerError as error:
                failed = error
                if isinstance(error, UnavailableError):  # did the parties run it? The same bytes get the same answer
                    client._groups[at].forget()
                    lost = True
                elif isinstance(error, OverloadError):
                    messages = None
                elif type(error) is PeerError and lost:  # they have dropped it when the connection was lost
                    messages, lost = None, False
                    failed = UnavailableError(error.what, where=error.where, hint=error.hint)
                await asyncio.sleep(retry.failed(failed))
            else:
                return logits

    def _settle(self, service: ServiceDescription, at: int) -> None:
        """Take the parties' description for the first step; raise PeerError if a later step finds another session."""
        if not self._step:
            self._service = _of_text(service)
        elif service != self._service:
            self._known = False
            what = "the parties have met again since this conversation began"
            raise PeerError(what, where=str(self._client._groups[at]), hint=_ANOTHER)

    async def _end(self) -> None:
        group = self._client._groups[self._at]
        joint = await group.join(_LAST)
        self._settle(joint.service, self._at)
        nothing = Question(torch.zeros(0, *joint.service.shape, dtype=torch.int64))
        messages = await group.messages(joint, step_id(self._talk, END), nothing, _LAST)
        await group.answers(joint, messages, 0, _LAST)


_ANOTHER = "begin another one, with the text so far as its prompt"


def _of_text(service: ServiceDescription) -> ServiceDescription:
    if not service.places:
        what = "this service computes images, and has no conversations"
        raise InputError(what, where="Client", hint="client(images); `serve --prompt` serves a net that generates text")
    return service


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
