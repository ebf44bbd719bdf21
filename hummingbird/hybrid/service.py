"""The model's side as a service for several clients at once, proxies among them (methods: messages.py).

A client has a session, a folder below the server's store, and as many slots as it has prepared. A user behind a proxy
shows a ticket that the proxy has announced, so that only the user whom the proxy sent can bring a slot's input.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from torch import Tensor

from hummingbird.errors import ConfigError, HummingbirdError, PeerError, StoreError
from hummingbird.hybrid import description, messages
from hummingbird.hybrid.link import TIMEOUT, Link, answered
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.session import check_bound, set_up_model
from hummingbird.hybrid.store import Store
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.wire.service import WORKERS, Exchange, Method

SESSIONS = 256  # folders of clients
MAX_CALLS = WORKERS // 2  # calls at work: the other workers answer who comes next, and users of proxies
_US, _THEM = "the model's side", "the data's side"
_SECRET = "seed"
_KEPT = "the server's store"


class Service:
    """All clients of one net: `serve(Service(model, folder).handlers(), address)`.

    folder: of all sessions, for this process alone. disk: bytes that slots may take there together; no limit if not
    given. idle: seconds of silence that end a call. StoreError for a folder that is in use or cannot be written;
    ConfigError for weights whose encrypted products would not be hidden.
    """

    def __init__(self, model: Model, folder: Path, *, disk: int | None = None, idle: float = TIMEOUT) -> None:
        if disk is not None and disk < 1:
            raise ConfigError(f"{disk} bytes", where="disk", hint="more than 0")
        self._side, self._plan, self._folder = ModelSide(model), model.plan, folder
        self._disk, self._idle = disk, idle
        self._locked, secret = _claim(folder)
        self._text = description.describe(model, secret)
        self.digest = description.digest(self._text)
        self._stores: dict[str, Store] = {}
        self._waiting: dict[str, _User] = {}
        self._lock, self._calls = threading.Lock(), threading.Semaphore(MAX_CALLS)

    def handlers(self) -> dict[str, Method | Exchange]:
        """The methods for `wire.service.serve`."""
        roles = {"Session": self._session, "Offline": self._offline, "Online": self._online}
        calls: dict[str, Method | Exchange] = {name: Exchange(self._call(role)) for name, role in roles.items()}
        return {"Public": self._describe, "Input": self._input, **calls}

    def close(self) -> None:
        """Give the locks back; may be called twice."""
        with self._lock:
            for store in self._stores.values():
                store.close()
            self._stores.clear()
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1

    # Methods ----------------------------------------------------------------------------------------------------------

    def _describe(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        messages.read_opening(data, "", _US, _THEM)
        return self._text

    def _call(self, role: Callable[[Link], None]) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def admitted(link: Link) -> None:
            try:
                role(link)
            except StoreError as error:  # without paths of this host
                raise StoreError(error.what, where=_KEPT, hint=error.hint) from None
            finally:
                self._calls.release()

        def method(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if not self._calls.acquire(blocking=False):
                raise PeerError(f"{MAX_CALLS} calls are at work already", where=_US, hint="try again later")
            yield from answered(admitted, requests, context, self._idle)

        return method

    def _session(self, link: Link) -> None:
        with self._lock:
            count = sum(path.is_dir() for path in self._folder.iterdir())
        if count >= SESSIONS:
            hint = "its operator removes folders of clients that are gone"
            raise StoreError(f"the server has {count} sessions, its most", where=_KEPT, hint=hint)
        store = set_up_model(link, self._plan.garbler, self.digest, self._folder)
        with self._lock:
            self._stores[store.header.session] = store

    def _offline(self, link: Link) -> None:
        store, _ = self._open(link)
        self._side.prepare(link, store, self._check_room)

    def _online(self, link: Link) -> None:
        store, fields = self._open(link)
        slot, step, output = messages.number_of(fields, "slot"), self._plan.input, self._plan.output
        size = messages.words_bytes(step.count, step.ring)
        if "ticket" not in fields:
            x = messages.unpack(link.receive("input", size), step.shape, step.ring)
            link.send("logits", messages.pack(self._side.infer(link, store, slot, x), output.ring))
            return
        ticket = messages.text_of(fields, "ticket", messages.TICKET_BYTES)
        with self._expected(ticket) as user:
            link.send("done", messages.DONE)
            try:
                x = messages.unpack(user.input(self._idle), step.shape, step.ring)
                user.answer(messages.pack(self._side.infer(link, store, slot, x), output.ring))
            except HummingbirdError as error:
                store.discard(slot)
                user.answer(error)
                raise
            link.send("done", messages.DONE)

    def _input(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """A user of a proxy: digest of the plan, ticket, X - r; the answer is the model's share of the logits."""
        step, head = self._plan.input, messages.DIGEST_BYTES + messages.TICKET_BYTES
        if len(data) != head + messages.words_bytes(step.count, step.ring):
            raise messages.malformed(f"{len(data)} bytes of a user's input")
        messages.check_plan(data[: messages.DIGEST_BYTES].hex(), self.digest, _US, "the user")
        ticket = data[messages.DIGEST_BYTES : head].hex()
        with self._lock:
            user = self._waiting.pop(ticket, None)
        if user is None:
            hint = "ask the proxy for another: a ticket serves once, and for a short time"
            raise StoreError("no slot waits for this ticket", where=_KEPT, hint=hint)
        return user.bring(data[head:], self._idle)

    # Sessions ---------------------------------------------------------------------------------------------------------

    def _open(self, link: Link) -> tuple[Store, dict[str, Any]]:
        """The store that an opening names, and the opening's fields."""
        fields = messages.read_opening(link.receive_text("opening"), self.digest, _US, _THEM)
        session = messages.text_of(fields, "session", messages.SESSION_BYTES)
        with self._lock:
            store = self._stores.get(session)
            if store is None:
                if not (self._folder / session).is_dir():
                    hint = "is it the right server? Otherwise prepare again in another folder: a new session begins"
                    raise StoreError(f"the server has no session {session[:8]}...", where=_KEPT, hint=hint)
                store = Store(self._folder / session)
                try:
                    check_bound(store, "model", self.digest)
                except BaseException:
                    store.close()
                    raise
                self._stores[session] = store
        return store, fields

    def _check_room(self) -> None:
        """StoreError where another slot would take more than `disk`."""
        if self._disk is None:
            return
        with self._lock:
            taken = sum(store.bytes for store in self._stores.values())
        if taken + self._side.slot_bytes > self._disk:
            what = f"slots take {taken / 1e6:.1f} MB, another {self._side.slot_bytes / 1e6:.1f} is above the limit"
            raise StoreError(what, where=_KEPT, hint="use slots that are ready, or have its operator allow more")

    def _expected(self, ticket: str) -> _Expected:
        return _Expected(self._waiting, self._lock, ticket)


class _User:
    """The meeting of a proxy's call and its user's, each on a thread of its own."""

    def __init__(self) -> None:
        self._input: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answer: queue.SimpleQueue[Tensor | HummingbirdError] = queue.SimpleQueue()

    def bring(self, data: bytes, timeout: float) -> bytes:
        """The user's side: the answer to its input."""
        self._input.put(data)
        try:
            answer = self._answer.get(timeout=timeout)
        except queue.Empty:
            raise PeerError(f"the proxy did not finish within {timeout:.0f} s", where=_US) from None
        if isinstance(answer, HummingbirdError):
            raise PeerError(f"the proxy's side ended: {answer.what}", where=_US, hint="ask the proxy for another slot")
        return answer.numpy().tobytes()

    def input(self, timeout: float) -> Tensor:
        """The proxy's side: the user's input, uint8 (size,)."""
        try:
            return messages.tensor_of(self._input.get(timeout=timeout))
        except queue.Empty:
            hint = "the slot is burned: the user asks for another"
            raise PeerError(f"no user came within {timeout:.0f} s", where=_US, hint=hint) from None

    def answer(self, answer: Tensor | HummingbirdError) -> None:
        """The proxy's side: the answer for the user."""
        self._answer.put(answer)


class _Expected:
    """A user who is expected while a block runs."""

    def __init__(self, waiting: dict[str, _User], lock: threading.Lock, ticket: str) -> None:
        self._waiting, self._lock, self._ticket, self._user = waiting, lock, ticket, _User()

    def __enter__(self) -> _User:
        with self._lock:
            self._waiting[self._ticket] = self._user
        return self._user

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting.pop(self._ticket, None)


def _claim(folder: Path) -> tuple[int, bytes]:
    """Lock a server's folder, made if it is not there; the lock, and the secret by which weights are told apart."""
    path = folder / _SECRET
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        hint = "name a folder that can be written"
        raise StoreError(f"the store cannot be written: {error.strerror}", where=str(folder), hint=hint) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        secret = os.pread(file, SEED_BYTES + 1, 0)
        if not secret:
            secret = new_seed()
            os.pwrite(file, secret, 0)
            os.fsync(file)
        if len(secret) != SEED_BYTES:
            raise StoreError("the server's seed is damaged", where=str(path), hint="begin with another folder")
    except OSError:
        os.close(file)
        raise StoreError("another process is using this store", where=str(folder), hint="a server has one") from None
    except BaseException:
        os.close(file)
        raise
    return file, secret
