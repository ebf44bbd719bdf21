"""A client's conversation with a service that generates text: one step after the other, in one group of parties."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from hummingbird import inputs
from hummingbird.errors import HummingbirdError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.prg import new_seed
from hummingbird.rpc import spans
from hummingbird.rpc.async_client import run
from hummingbird.rpc.client import Retry
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.groups import PAUSES, Groups
from hummingbird.serving.message import ATTEMPTS, END, TALK_BYTES, Question, step_id
from hummingbird.serving.party_group import PartyGroup

_LAST = 2.0  # seconds for the parties to hear that a conversation is over


class ClientConversation:
    """A conversation of a client: `talk(words)` reads the prompt, then one word after the other. For one thread.

    groups: of the client; their service generates text. The parties keep keys and values as shares from step to step,
    until `close`, for as long as the conversation is not idle for too long. Each step takes one round trip. A step is
    repeated with the same bytes while connections are lost, so that it runs once, and its answer is that of the one
    run; it is tried anew while the service is full. After any other failure, and when the parties have met again, the
    conversation is over.

    >>> import subprocess, sys
    >>> run = "-m hummingbird run --parties 2 -- -m hummingbird serve --model models.gpt:Gpt 50 8 16 2 1"
    >>> run += " --input 8x16 --prompt 4 --listen unix:{rank}.talk"
    >>> parties = subprocess.Popen([sys.executable, *run.split()])
    >>> with hummingbird.Client(["unix:0.talk", "unix:1.talk"], timeout=120) as client:
    ...     with client.conversation() as talk:
    ...         print(talk(torch.rand(3, 16)).shape, talk.used)  # a prompt of three words
    ...         print(talk(torch.rand(1, 16)).shape, talk.left)
    torch.Size([50]) 4
    torch.Size([50]) 3
    >>> parties.terminate(), parties.wait()
    (None, 0)
    """

    def __init__(self, groups: Groups) -> None:
        self._groups, self._talk = groups, new_seed(TALK_BYTES)
        self._group: PartyGroup | None = None  # that has this conversation, from its first step on
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
            self._service = _of_text(run(self._groups.described()))
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
            self._service = _of_text(await self._groups.described())
        question = Question(self._checked(words, self._service))
        self._busy = True
        try:
            with spans.span("ask"):
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
        group = self._group
        if known and group is not None:
            with contextlib.suppress(HummingbirdError):  # the parties end it when it has been idle for long
                run(self._end(group))
        self._leave()

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
        groups, began, retry = self._groups, bool(self._step), Retry(self._groups.timeout, PAUSES)
        attempt, messages, lost = 0, None, False
        asked: tuple[PartyGroup, ServiceDescription] | None = None  # what the messages are for
        while True:
            group = self._group = self._group or await groups.enter(0)
            try:
                joint = await groups.join(group, retry.left)
                self._settle(joint.service, group)
                if messages is None or asked != (group, joint.service):
                    id = step_id(self._talk, self._step, attempt)
                    messages = await group.messages(joint, id, question, retry.left)
                    attempt, asked = min(attempt + 1, ATTEMPTS - 1), (group, joint.service)
                self._known = True
                with spans.span("request", calls=True, group=joint.service.group):
                    logits = await groups.watched(group, group.answers(joint, messages, 1, retry.left))
            except PeerError as error:
                failed = error
                if isinstance(error, UnavailableError):  # did the parties run it? The same bytes get the same answer
                    group.forget()
                    lost = True
                elif isinstance(error, OverloadError):
                    messages = None
                elif type(error) is PeerError and lost:  # they have dropped it when the connection was lost
                    messages, lost = None, False
                    failed = UnavailableError(error.what, where=error.where, hint=error.hint)
                if began:  # it goes on where it began
                    pause = retry.failed(failed)
                else:
                    pause = groups.failed(group, failed, retry)
                    self._leave()
                await asyncio.sleep(pause)
            else:
                return logits

    def _leave(self) -> None:
        """Note that this conversation uses its group no longer."""
        group, self._group = self._group, None
        if group is not None:
            self._groups.leave(group, 0)

    def _settle(self, service: ServiceDescription, group: PartyGroup) -> None:
        """Take the parties' description for the first step; raise PeerError if a later step finds another session."""
        if not self._step:
            self._service = _of_text(service)
        elif service != self._service:
            self._known = False
            what = "the parties have met again since this conversation began"
            raise PeerError(what, where=str(group), hint=_ANOTHER)

    async def _end(self, group: PartyGroup) -> None:
        joint = await group.join(_LAST, self._groups.model)
        self._settle(joint.service, group)
        nothing = Question(torch.zeros(0, *joint.service.shape, dtype=torch.int64))
        messages = await group.messages(joint, step_id(self._talk, END), nothing, _LAST)
        await group.answers(joint, messages, 0, _LAST)


_ANOTHER = "begin another one, with the text so far as its prompt"


def _of_text(service: ServiceDescription) -> ServiceDescription:
    if not service.places:
        what = "this service computes images, and has no conversations"
        raise InputError(what, where="Client", hint="client(images); `serve --prompt` serves a net that generates text")
    return service
