"""The data's side as a client: it prepares slots in advance, and uses one for each image (messages: messages.py).

The image never leaves this process: the server sees X - r, under a mask r that serves once.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import torch
from torch import Tensor

from hummingbird.errors import ConfigError, InputError, NotFoundError, PeerError
from hummingbird.hybrid import messages, plan_json
from hummingbird.hybrid.data_side import DataSide
from hummingbird.hybrid.message_stream import TIMEOUT, MessageStream, called
from hummingbird.hybrid.session import set_up_data
from hummingbird.hybrid.store import SlotError, Store, there_is
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.client import Retry
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain

IN_FLIGHT = 2
TRIES = 8  # slots to try for one image if they are damaged
_log = logging.getLogger(__name__)
_Own = TypeVar("_Own", bound="Connection")
_Result = TypeVar("_Result")


class Connection:
    """The data's side of one session with a server: a connection, and a store with slots that it prepares with the
    server.

    It begins a new session if the folder holds none.
    address: of the server. folder: this side's store, which only this process uses.
    tls, token: who both sides are; as in `rpc.client.connect`.
    timeout: longest silence of the server, seconds.
    offline, online: bytes of all messages so far, sent and received, by the message's name.
    Raises the errors of `rpc.client.connect`; PeerError if the service is of another kind or refuses; StoreError and
    AgreementError for a store that is damaged, in use, or of another net.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.offline: Counter[str] = Counter()
        self.online: Counter[str] = Counter()
        self._where, self._timeout = f"server {address}", timeout
        self._lock = threading.Lock()
        self._channel = rpc_client.connect(address, tls, timeout, token=token)
        store: Store | None = None
        try:
            text = self._describe()
            self.plan, self.digest = plan_json.read_description(text), plan_json.digest(text)
            if there_is(folder):
                store = Store(folder)
            else:
                with self.call("Session", Counter()) as link:
                    store = set_up_data(link, self.plan.garbler, self.digest, folder)
            self.side = DataSide(self.plan, self.digest, store)
        except BaseException:
            if store is not None:
                store.close()
            self._channel.close()
            raise

    def _describe(self) -> bytes:
        try:
            return rpc_client.call(self._channel, "Public", messages.CallOpening().pack(), timeout=self._timeout)
        except grpc.RpcError as error:
            raise explain(error, self._where) from None

    @contextmanager
    def call(self, method: str, count: Counter[str]) -> Iterator[MessageStream]:
        """Call a method of the server; the `with` block gets this end of the connection, a `MessageStream`.

        count: when the block ends, the bytes of the call's messages are added to it, by the message's name. Raises
        PeerError for a malformed answer.
        """
        with called(self._channel, method, self._where, self._timeout) as link:
            try:
                yield link
            except InputError as error:
                raise PeerError(error.what, where=self._where, hint=error.hint) from None
            finally:
                with self._lock:
                    count.update(link.sent)
                    count.update(link.received)

    @property
    def ready(self) -> int:
        """The number of slots that are ready to use."""
        return len(self.side.store.ready)

    def prepare(self, count: int, progress: Callable[[int], object] = lambda slots: None) -> None:
        """Prepare `count` slots with the server; calls progress(1) after each.

        If one slot fails, the earlier ones stay ready. If the server refuses a set, slots are dealt singly: there may
        be room for some of them.
        """
        if count <= 0:
            return
        made = 0

        def counted(slots: int) -> None:
            nonlocal made
            made += slots
            progress(slots)

        try:
            with self.call("Offline", self.offline) as link:
                self.side.prepare(link, count, counted)
        except PeerError:
            if made >= count or self.plan.dealt(count - made)[0] == 1:
                raise
            with self.call("Offline", self.offline) as link:
                self.side.prepare(link, count - made, progress, singly=True)

    def close(self) -> None:
        """Disconnect, and release the store; may be called twice."""
        self._channel.close()
        self.side.store.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteNet(Connection):
    """The client of a remote net: `net(images)` returns its logits, and uses one slot for each image.

    The server at `address` never sees an image.

    >>> from pathlib import Path
    >>> from hummingbird.hybrid.client import RemoteNet
    >>> from hummingbird.hybrid.service import Service
    >>> from hummingbird.rpc.service import serve
    >>> made = hybrid.make_plan(net, (4,), bits=BitWindow(20, 10))
    >>> service = serve(Service(made, Path("model")).handlers(), "unix:gc.sock")
    >>> with RemoteNet("unix:gc.sock", Path("slots")) as remote:
    ...     remote.prepare(2)
    ...     print(remote(images[:2]).shape)
    torch.Size([2, 3])
    >>> service.stop(0).wait()
    True
    """

    def __call__(
        self, images: Tensor, *, in_flight: int = IN_FLIGHT, progress: Callable[[int], object] = lambda images: None
    ) -> Any:
        """Compute logits, float32 (n, ...), of images (n, ...), in the structure of the net's results.

        Missing slots are dealt while images with slots are in flight. For each slot that is damaged here or at the
        server one more is dealt, and a line is logged.
        in_flight: images in flight at a time.
        progress: called with 1 after each image.
        Raises InputError for images of another shape or beyond the plan's range, before anything is sent; PeerError if
        the server refuses, dies or is silent: then the slots in use are lost; the last error if 8 slots for one image
        were damaged.
        """
        if type(in_flight) is not int or in_flight < 1:
            raise ConfigError(f"{in_flight!r} at a time", where="in_flight", hint="a whole number, 1 or more")
        values = self.plan.encode(images)
        supply = _Supply(self, len(values))
        with ThreadPoolExecutor(min(in_flight, len(values)), "hummingbird-in-flight") as pool:
            futures = [pool.submit(self._infer, supply, x[None], progress) for x in values]
            try:
                return self.plan.results(self.plan.decode(torch.cat([future.result() for future in futures])))
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
            finally:
                supply.close()

    def _infer(self, supply: _Supply, x: Tensor, progress: Callable[[int], object]) -> Tensor:
        def attempt() -> Tensor:
            supply.wait()
            slot = self.side.take()
            with self.call("Online", self.online) as link:
                return self.side.infer(link, slot, x)

        logits = by_a_sound_slot(attempt, supply.lack)
        progress(1)
        return logits


def by_a_sound_slot(attempt: Callable[[], _Result], failed: Callable[[], object] = lambda: None) -> _Result:
    """Return the result of `attempt`, which takes a slot; if the slot cannot be used, try again with another one.

    attempt: a function without arguments; it raises SlotError or NotFoundError for a slot that cannot be used. After 8
    tries the last error is raised. failed: a function without arguments that is called before each further try.
    """
    retry = Retry(math.inf, (0.0, 0.0), passing=(SlotError, NotFoundError), tries=TRIES)
    while True:
        try:
            return attempt()
        except (SlotError, NotFoundError) as error:
            retry.failed(error)  # without a pause, because another slot may serve now
            _log.warning("another slot is used: %s", error.what)
            failed()


class _Supply:
    """Says to the threads that run `images` images when each may take a slot: a ready one first, then new ones.

    A thread of this object has the new slots dealt. net: the connection, with its store.
    """

    def __init__(self, net: Connection, images: int) -> None:
        ready, self._changed = net.ready, threading.Condition()
        self._free = min(ready, images)
        self._spare, self._lacking = ready - self._free, images - self._free
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(net,), name="hummingbird-prepare", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until there is a slot that the caller may take from the store.

        Raises the error that dealing slots met, if there is no ready slot left, and CancelledError if this supply is
        closed.
        """
        with self._changed:
            # No limit of its own: preparing has its limits.
            self._changed.wait_for(lambda: self._free > 0 or self._error is not None or self._closed)
            if self._closed:
                raise CancelledError
            if self._free == 0 and self._error is not None:
                raise self._error
            self._free -= 1

    def lack(self) -> None:
        """Allow one more slot to be taken, because a slot turned out damaged.

        If no spare one is ready, it is dealt.
        """
        with self._changed:
            if self._spare:
                self._spare, self._free = self._spare - 1, self._free + 1
            else:
                self._lacking += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let no more slots be taken, and wait until the slot that is now dealt is complete; it stays in the store."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, net: Connection) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._lacking or self._closed)  # ends with `close`
                    if self._closed:
                        return
                    lacking, self._lacking = self._lacking, 0
                net.prepare(lacking, self._add)
        except BaseException as error:  # noqa: BLE001 - raised again in `wait`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _add(self, slots: int) -> None:
        with self._changed:
            self._free += slots
            self._changed.notify_all()
            if self._closed:
                raise CancelledError  # which ends the call that deals
