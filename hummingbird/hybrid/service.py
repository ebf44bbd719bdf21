"""The model's side as a service for several clients at once, including proxies (methods: messages.py).

A client has a session, which is a folder in the server's store, with the slots that it has prepared. Only the client
that began a session can use it; the name in its certificate or token identifies it. users.py handles the calls of a
proxy's users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc

from hummingbird.disk import Appended
from hummingbird.errors import NotFoundError, StoreError
from hummingbird.hybrid import messages, plan_json
from hummingbird.hybrid.message_stream import HELD, TIMEOUT, MessageStream, answered
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.session import set_up_model
from hummingbird.hybrid.sessions import DAYS, WHERE, Sessions
from hummingbird.hybrid.store import SlotError, Store
from hummingbird.hybrid.users import ConnectedUsers
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.rpc.admission import Quota, caller_name
from hummingbird.rpc.service import WORKERS, Exchange, Method

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_CALLS = 2 * WORKERS  # calls in progress, at most
_RETRY = 5.0  # seconds after which a client that found the service full may try again
_US, _THEM = "the model's side", "the data's side"
_SECRET = "seed"
S = TypeVar("S", bound=messages.SessionOpening)


class Service:
    """The model's side of one net as a service for all clients: `serve(Service(model, folder).handlers(), address)`.

    model: the plan with its weights.
    folder: holds the stores of all sessions; only this process uses it.
    disk: bytes that all slots may take, None for no limit. days: after how many days without use a session is removed.
    idle: seconds of silence that end a call.
    Raises StoreError for a folder that is in use or cannot be written; ConfigError for weights that encrypted products
    would not hide.
    """

    def __init__(
        self, model: Model, folder: Path, *, disk: int | None = None, days: float = DAYS, idle: float = TIMEOUT
    ) -> None:
        self._side, self._plan, self._folder, self._idle = ModelSide(model), model.plan, folder, idle
        self._locked, secret = _claim(folder)
        try:
            self._text = plan_json.describe(model, secret)
            self.digest = plan_json.digest(self._text)
            self._sessions = Sessions(folder, self.digest, disk=disk, days=days)
        except BaseException:
            self._locked.close()
            raise
        self._users = ConnectedUsers(model.plan, self.digest, idle)
        self._calls = Quota(
            "calls", "at work or waiting", MAX_CALLS, MAX_CALLS // 4, spare=False, where=_US, retry=_RETRY
        )

    @property
    def dealing_bytes(self) -> int:
        """The bytes of memory that one call for dealing slots takes: room for its messages, and for one slot."""
        return HELD + self._side.slot_bytes

    def handlers(self) -> dict[str, Method | Exchange]:
        """Return the methods of the service, for `rpc.service.serve`."""
        roles = {"Session": self._session, "Offline": self._offline, "Online": self._online}
        held = {"Offline": self.dealing_bytes}
        calls: dict[str, Method | Exchange] = {
            name: Exchange(self._call(role), held.get(name, HELD)) for name, role in roles.items()
        }
        return {"Public": self._describe, **self._users.handlers(), **calls}

    def measure(self, registry: CollectorRegistry) -> None:
        """Register Prometheus gauges for the number of sessions, the number of ready slots, and the slots' bytes."""
        from prometheus_client import Gauge

        def add(name: str, text: str, value: Callable[[], int]) -> None:
            Gauge(f"hummingbird_gc_{name}", text, registry=registry).set_function(value)

        add("sessions", "Clients' sessions.", lambda: len(self._sessions))
        add("slots_ready", "Their slots that are ready.", lambda: self._sessions.ready[0])
        add("slot_bytes", "Bytes of these slots.", lambda: self._sessions.ready[1])

    def close(self) -> None:
        """Release the locks on the stores; may be called twice."""
        self._sessions.close()
        self._locked.close()

    # Methods ----------------------------------------------------------------------------------------------------------

    def _describe(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        messages.read_opening(data, "", _US, _THEM, messages.CallOpening)
        return self._text

    def _call(
        self, role: Callable[[MessageStream, str], None]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def admitted(link: MessageStream, name: str | None) -> None:
            try:
                role(link, name or "")
            except StoreError as error:  # without paths of this host
                raise StoreError(error.what, where=WHERE, hint=error.hint) from None
            finally:
                self._calls.leave(name)

        def method(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            name = caller_name(context)
            self._calls.enter(name)
            yield from answered(lambda link: admitted(link, name), requests, context, self._idle)

        return method

    def _session(self, link: MessageStream, owner: str) -> None:
        make = lambda: set_up_model(link, self._plan.garbler, self.digest, self._folder, owner)  # noqa: E731
        self._sessions.begin(owner, make)

    def _offline(self, link: MessageStream, owner: str) -> None:
        with self._opened(link, owner, messages.OfflineOpening) as (store, opening):
            store.discard_before(opening.first)
            self._side.prepare(link, store, lambda slots: self._sessions.room(owner, slots * self._side.slot_bytes))

    def _online(self, link: MessageStream, owner: str) -> None:
        with self._opened(link, owner, messages.OnlineOpening) as (store, opening):
            try:
                online = self._side.begin(link, store, opening.slot)
            except SlotError as error:
                raise NotFoundError(error.what, where=WHERE, hint=error.hint) from None
            if opening.ticket is not None:
                self._users.serve(link, opening.ticket, opening.input or messages.INPUTS[0], online.infer)
                return
            step, output = self._plan.input, self._plan.output
            given = link.receive("input", messages.words_bytes(step.count, step.ring))
            x = messages.unpack(given, step.shape, step.ring)
            link.send("logits", messages.pack(online.infer(x), output.ring))

    @contextmanager
    def _opened(self, link: MessageStream, owner: str, kind: type[S]) -> Iterator[tuple[Store, S]]:
        """Read the first message of a call, and open the session's store for the time of the `with` block.

        The block gets the store and the message. Raises AccessError unless the session belongs to this client, `owner`.
        kind: class of the message.
        """
        opening = messages.read_opening(link.receive_text("opening"), self.digest, _US, _THEM, kind)
        with self._sessions.use(opening.session, owner) as store:
            yield store, opening


def _claim(folder: Path) -> tuple[Appended, bytes]:
    """Lock a server's folder, which is made if missing; returns the lock, and the server's secret.

    The secret is the key of the tag that names the weights in descriptions. Raises StoreError if another process has
    the lock, or the folder cannot be written or is damaged.
    """
    path = folder / _SECRET
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = Appended(path, create=True)
    except BlockingIOError:
        raise StoreError("another process is using this store", where=str(folder), hint="a server has one") from None
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        secret = file.read(SEED_BYTES + 1, 0)
        if not secret:
            secret = new_seed()
            file.append(secret)
        if len(secret) != SEED_BYTES:
            raise StoreError("the server's seed is damaged", where=str(path), hint="begin with another folder")
    except OSError as error:
        file.close()
        raise _unwritable(folder, error) from None
    except BaseException:
        file.close()
        raise
    return file, secret


def _unwritable(folder: Path, error: OSError) -> StoreError:
    hint = "name a folder that can be written"
    return StoreError(f"the store cannot be written: {error.strerror}", where=str(folder), hint=hint)
