"""Users behind proxies, at the model's side: a proxy's call announces a ticket, and its user sends the input.

Only the proxy's user has the ticket, so nobody else can send a slot's input. The input is X - r, or the encrypted image
(switched.py), for which the user has sent keys before. When there are too many keys, the caller with the most keys
loses its oldest.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from torch import Tensor

from hummingbird.errors import HummingbirdError, PeerError, StoreError
from hummingbird.hybrid import messages
from hummingbird.hybrid.message_stream import MessageStream
from hummingbird.hybrid.plan import Plan, reduced
from hummingbird.hybrid.switched import KEYS_BYTES, Image, Keys
from hummingbird.prg import new_seed
from hummingbird.rpc.admission import caller_name
from hummingbird.rpc.service import Method

INPUTS = messages.INPUTS
MOST_KEYS = 256  # stored keys of users, 1.3 MB each
USER_SECONDS = 30.0  # from announcing a ticket to receiving the user's input
_US, _USER = "the model's side", "the user"


class ConnectedUsers:
    """The users of all proxies, at the model's side: it brings a user's image together with the proxy's call for it.

    digest: the digest of the server's plan. idle: how long a user may wait for its answer, seconds. A proxy's call
    waits as long for the user's image, but at most 30 seconds.
    """

    def __init__(self, plan: Plan, digest: str, idle: float) -> None:
        self._plan, self._digest, self._idle = plan, digest, idle
        self._image = Image(plan.input)
        self._sizes = {
            "shares": messages.words_bytes(plan.input.count, plan.input.ring),
            "switched": messages.TICKET_BYTES + self._image.up,
        }
        self._waiting: dict[str, _Meeting] = {}
        self._keys: dict[str, tuple[str | None, Keys]] = {}  # with the caller's name, oldest first
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, Method]:
        """Return the methods that users call."""
        return {"Keys": self.keys, "Input": self.input}

    def keys(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Store a user's keys for encrypted images; returns the name under which they are stored.

        Raises InputError if they are malformed, ConfigError if the input's ring is too large to hide noise from the
        proxy.
        """
        rest = self._opened(data)
        if len(rest) != KEYS_BYTES:
            raise messages.malformed(f"{len(rest)} bytes of a user's keys")
        self._image.check()
        keys, name = Keys.from_bytes(rest), new_seed(messages.TICKET_BYTES)
        with self._lock:
            self._keys[name.hex()] = caller_name(context), keys
            if len(self._keys) > MOST_KEYS:
                ((most, _),) = Counter(owner for owner, _ in self._keys.values()).most_common(1)
                del self._keys[next(name for name, (owner, _) in self._keys.items() if owner == most)]
        return name

    def input(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Take a user's request with its ticket and image; returns the model side's share of the logits.

        Raises StoreError if no slot waits for the ticket, InputError if the image has a wrong size, AgreementError if
        the request is for another plan, PeerError if the proxy's call fails or takes too long.
        """
        rest = self._opened(data)
        ticket, body = rest[: messages.TICKET_BYTES].hex(), rest[messages.TICKET_BYTES :]
        with self._lock:
            met = self._waiting.get(ticket)
            if met is None:
                hint = "ask the proxy for another: a ticket serves once, and for a short time"
                raise StoreError("no slot waits for this ticket", where=_US, hint=hint)
            if len(body) != met.size:
                raise messages.malformed(f"{len(body)} bytes of a user's input, expected {met.size}")
            del self._waiting[ticket]
        return met.bring(body, self._idle)

    def serve(self, link: MessageStream, ticket: str, kind: str, infer: Callable[[Tensor], Tensor]) -> None:
        """Run a proxy's call for one image: wait for the user with this ticket, compute, and send the user its answer.

        link: the connection to the proxy. kind: how the user sends its image, "shares" or "switched".
        infer: a function that returns the model side's share of the logits, from its share X - r of the image X; r is
        the proxy's mask. It uses a slot that is marked as used already.
        Raises the errors of `infer`, which the user receives too, and PeerError if no user comes.
        """
        step, output = self._plan.input, self._plan.output
        with self._expected(ticket, self._sizes[kind]) as met:
            link.send("done", messages.DONE)
            try:
                data = met.brought(min(self._idle, USER_SECONDS))
                if kind == "switched":
                    x = self._switched(link, data)
                else:
                    x = messages.unpack(messages.tensor_of(data), step.shape, step.ring)
                met.answer(messages.pack(infer(x), output.ring).numpy().tobytes())
            except HummingbirdError as error:
                met.answer(error)
                raise
            link.send("done", messages.DONE)

    def _switched(self, link: MessageStream, data: bytes) -> Tensor:
        """Compute the model side's share X - r of an image X that a user has sent encrypted; the proxy helps.

        r is the proxy's mask. link: the connection to the proxy. data: the name of the user's keys, then the
        ciphertexts of X.
        Returns int64 (1, *shape), mod 2^ring.
        """
        name, step = data[: messages.TICKET_BYTES].hex(), self._plan.input
        with self._lock:
            _, keys = self._keys.get(name, (None, None))
        if keys is None:
            raise StoreError("the server does not have this user's key", where=_US, hint="connect again")
        sent, rho = self._image.masked(keys, data[messages.TICKET_BYTES :])
        link.send("switched", sent)
        back = link.receive("input", messages.words_bytes(step.count, step.ring))
        return reduced(messages.unpack(back, step.shape, step.ring) + rho, step.ring)

    def _opened(self, data: bytes) -> bytes:
        """Return a user's request without the digest of the plan with which the request begins.

        Raises AgreementError if the digest is not that of the server's plan.
        """
        messages.check_plan(data[: messages.DIGEST_BYTES].hex(), self._digest, _US, _USER)
        return data[messages.DIGEST_BYTES :]

    @contextmanager
    def _expected(self, ticket: str, size: int) -> Iterator[_Meeting]:
        met = _Meeting(size)
        with self._lock:
            self._waiting[ticket] = met
        try:
            yield met
        finally:
            with self._lock:
                self._waiting.pop(ticket, None)


class _Meeting:
    """The exchange between two threads about one image: the thread of the proxy's call, and that of the user's call.

    The user's thread hands over the input and gets the answer. size: bytes of the user's input.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answer: queue.SimpleQueue[bytes | HummingbirdError] = queue.SimpleQueue()

    def bring(self, data: bytes, timeout: float) -> bytes:
        """Hand the user's input to the proxy's thread, wait, and return the answer. The user's thread calls this.

        data: the input. timeout: seconds. Raises PeerError if no answer comes in time, or the answer is an error.
        """
        self._input.put(data)
        try:
            answer = self._answer.get(timeout=timeout)
        except queue.Empty:
            raise PeerError(f"the proxy did not finish within {timeout:.0f} s", where=_US) from None
        if isinstance(answer, HummingbirdError):
            raise PeerError(f"the slot is burned: {answer.what}", where=_US, hint="ask the proxy for another")
        return answer

    def brought(self, timeout: float) -> bytes:
        """Wait for the user's input, and return it. The thread of the proxy's call calls this.

        timeout: seconds. Raises PeerError if no user comes in time.
        """
        try:
            return self._input.get(timeout=timeout)
        except queue.Empty:
            hint = "the slot is burned: the user asks for another"
            raise PeerError(f"no user came within {timeout:.0f} s", where=_US, hint=hint) from None

    def answer(self, answer: bytes | HummingbirdError) -> None:
        """Hand the answer for the user, or an error, to the user's thread. The proxy's thread calls this."""
        self._answer.put(answer)
