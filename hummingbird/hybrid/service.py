"""The model's side as a service for several clients at once, proxies among them (methods: messages.py).

A client has a session, a folder below the server's store, and as many slots as it has prepared. A session is used by
the client that began it, by the name of its certificate or token. Of a proxy's users users.py has the calls.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Gauge

from hummingbird.errors import ConfigError, HummingbirdError, OverloadError, StoreError
from hummingbird.hybrid import description, messages
from hummingbird.hybrid.link import TIMEOUT, Link, answered
from hummingbird.hybrid.model_side import ModelSide
from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.session import check_bound, check_owner, set_up_model
from hummingbird.hybrid.store import Store
from hummingbird.hybrid.users import Users
from hummingbird.prg import SEED_BYTES, new_seed
from hummingbird.wire.gate import caller_name
from hummingbird.wire.service import WORKERS, Exchange, Method

SESSIONS = 256  # folders of clients
MAX_CALLS = WORKERS // 2  # calls at work: the other workers answer who comes next, and users of proxies
_RETRY = 5.0  # seconds after which a client that found no room may try again
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
        self._users = Users(model.plan, self.digest, idle)
        self._lock, self._calls = threading.Lock(), threading.Semaphore(MAX_CALLS)

    def handlers(self) -> dict[str, Method | Exchange]:
        """The methods for `wire.service.serve`."""
        roles = {"Session": self._session, "Offline": self._offline, "Online": self._online}
        calls: dict[str, Method | Exchange] = {name: Exchange(self._call(role)) for name, role in roles.items()}
        return {"Public": self._describe, **self._users.handlers(), **calls}

    def measure(self, registry: CollectorRegistry) -> None:
        """Have figures of sessions and slots among those of a program's metrics."""

        def add(name: str, text: str, value: Callable[[list[Store]], int]) -> None:
            Gauge(f"hummingbird_gc_{name}", text, registry=registry).set_function(lambda: value(self._opened()))

        add("sessions_open", "Clients' sessions in use since the start.", len)
        add("slots_ready", "Their slots that are ready.", lambda stores: sum(len(store.ready) for store in stores))
        add("slot_bytes", "Bytes of these slots.", lambda stores: sum(store.bytes for store in stores))

    def _opened(self) -> list[Store]:
        with self._lock:
            return list(self._stores.values())

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

    def _call(
        self, role: Callable[[Link, str], None]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def admitted(link: Link, owner: str) -> None:
            try:
                role(link, owner)
            except StoreError as error:  # without paths of this host
                raise StoreError(error.what, where=_KEPT, hint=error.hint) from None
            finally:
                self._calls.release()

        def method(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if not self._calls.acquire(blocking=False):
                raise OverloadError(f"{MAX_CALLS} calls are at work already", where=_US, retry_after=_RETRY)
            owner = caller_name(context) or ""
            yield from answered(lambda link: admitted(link, owner), requests, context, self._idle)

        return method

    def _session(self, link: Link, owner: str) -> None:
        with self._lock:
            count = sum(path.is_dir() for path in self._folder.iterdir())
        if count >= SESSIONS:
            hint = "its operator removes folders of clients that are gone"
            raise StoreError(f"the server has {count} sessions, its most", where=_KEPT, hint=hint)
        store = set_up_model(link, self._plan.garbler, self.digest, self._folder, owner)
        with self._lock:
            self._stores[store.header.session] = store

    def _offline(self, link: Link, owner: str) -> None:
        store, fields = self._open(link, owner)
        store.discard_before(messages.number_of(fields, "first"))
        self._side.prepare(link, store, self._check_room)

    def _online(self, link: Link, owner: str) -> None:
        store, fields = self._open(link, owner)
        slot, step, output = messages.number_of(fields, "slot"), self._plan.input, self._plan.output
        if "ticket" not in fields:
            given = link.receive("input", messages.words_bytes(step.count, step.ring))
            x = messages.unpack(given, step.shape, step.ring)
            link.send("logits", messages.pack(self._side.infer(link, store, slot, x), output.ring))
            return
        try:
            self._users.serve(link, fields, lambda x: self._side.infer(link, store, slot, x))
        except HummingbirdError:
            store.discard(slot)
            raise

    # Sessions ---------------------------------------------------------------------------------------------------------

    def _open(self, link: Link, owner: str) -> tuple[Store, dict[str, Any]]:
        """The store that an opening names, which is this client's, and the opening's fields."""
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
        check_owner(store, owner)
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
