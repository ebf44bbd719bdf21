"""The client of a remote net: it encrypts images, and the server sees ciphertexts only.

he/runtime/messages.py has the messages.

The key is made here and stays here. The client checks the parameters that the server proposes against both security
tables. In client-aided mode it computes the activations, so it sees their inputs, which reveal something about the
weights. The server keeps nothing between turns. So a client that lost its connection, or found the server full or
stopping, repeats the turn and continues.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from torch import Tensor

from hummingbird.channel.prefetch import Prefetch
from hummingbird.errors import ConfigError, InputError, OverloadError, PeerError, UnavailableError
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.client import Client, ClientBatch
from hummingbird.he.runtime.client_spec import Public
from hummingbird.he.runtime.memory import at_client, installed
from hummingbird.he.runtime.precision import Precision
from hummingbird.kernels.devices import find_device
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.client import Retry
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain

_DEPTH = 4  # messages encrypted, and messages received, ahead
_LONGEST_TURN = 86400.0  # seconds; silence ends a turn much earlier
_PAUSES = (0.1, 2.0)  # seconds until a turn is tried again after the connection broke: at first, at most
_REPEATS = 8  # how often one turn may break after the server has answered something


class RemoteModel:
    """The client of a remote net: `model(images)` encrypts images, sends them to `address` and returns the outputs.

    tls, token: who both sides are; as in `rpc.client.connect`.
    timeout: longest silence of the server, and longest time for which it may be away or full, seconds.
    memory: bytes that batches in flight may take on the device, by prediction from the server's description; default:
    all that the device has.
    device: where this side computes, "cpu" or "cuda".
    public: the server's description: shapes, operations, parameters.
    sent_bytes, received_bytes: bytes of the turns' messages.
    repeated: number of turns that were tried again.
    precision: of the last call's batches.
    Raises the errors of `rpc.client.connect`; PeerError if the service is of another kind or refuses; ConfigError for
    insecure parameters, and for a net that takes more memory; InputError for a malformed description, and for a missing
    device.

    >>> from hummingbird.he.service.client import RemoteModel
    >>> from hummingbird.he.service.server import Service
    >>> from hummingbird.rpc.service import serve
    >>> service = serve(Service(he.Server(he.make_plan(net, (4,)))).handlers(), "unix:he.sock")
    >>> with RemoteModel("unix:he.sock") as model:
    ...     model(images).shape
    torch.Size([20, 3])
    >>> service.stop(0).wait()
    True
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout: float = 120.0,
        memory: int | None = None,
        device: str = "cpu",
    ) -> None:
        self._device = find_device(device, "RemoteModel(device)")
        self.sent_bytes = self.received_bytes = self.repeated = 0
        self.precision: list[Precision] = []
        self._where, self._timeout = f"server {address}", timeout
        self._lock = threading.Lock()
        self._channel = rpc_client.connect(address, tls, timeout, token=token)
        try:
            text = rpc_client.call(self._channel, "Public", messages.opening(), timeout=timeout)
            self._digest, self.public = messages.digest(text), Public.from_json(text)
            self._room = self._batches(installed(self._device) if memory is None else memory)
            self._client = Client(self.public, device)
        except grpc.RpcError as error:
            self.close()
            raise explain(error, self._where) from None
        except BaseException:
            self.close()
            raise

    def __call__(
        self, images: Tensor, *, in_flight: int = 2, progress: Callable[[float], object] = lambda images: None
    ) -> Any:
        """Compute the net's outputs, float32 (n, ...) each, of images (n, ...), in the structure of the net's results.

        in_flight: number of batches in flight, fewer if `memory` is too small: while the server works on one, the
        client works on another.
        progress: called with the amount of work, in images, done since its last call.
        Raises InputError for images that the net does not take; PeerError if the server refuses, dies or is silent.
        """
        if not isinstance(in_flight, int) or in_flight < 1:
            raise ConfigError(f"{in_flight!r} at a time", where="in_flight", hint="a whole number, 1 or more")
        run = _Run(progress)
        batches = self._client.batches(images)  # all are checked before the first is encrypted
        self.precision = [batch.precision for batch in batches]
        with ThreadPoolExecutor(min(in_flight, len(batches), self._room), "hummingbird-in-flight") as pool:
            futures = [pool.submit(self._evaluate, batch, run) for batch in batches]
            try:
                return self.public.joined([future.result() for future in futures])
            except BaseException:
                for future in futures:
                    future.cancel()
                run.stop()
                raise

    def close(self) -> None:
        """Disconnect; may be called twice."""
        self._channel.close()

    def __enter__(self) -> RemoteModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self, allowed: int) -> int:
        """Return how many batches fit into `allowed` bytes. Raises ConfigError if not even one fits."""
        needed = at_client(self.public)
        if needed > allowed:
            what = f"a batch of this server's net takes {needed / 1e9:.2f} GB here, allowed are {allowed / 1e9:.2f}"
            raise ConfigError(what, where=self._where, hint="is it the right server? if so, allow more memory")
        return allowed // max(1, needed)  # a dishonest server's net may take no memory

    def _evaluate(self, batch: ClientBatch, run: _Run) -> list[Tensor]:
        crossing = sum(turn.sent + turn.returned for turn in self.public.turns)
        for number in range(len(self.public.turns)):
            self._turn(batch, number, run, batch.images / crossing)
        return batch.parts()

    def _turn(self, batch: ClientBatch, number: int, run: _Run, share: float) -> None:
        """Run turn `number` of a batch with the server; try again while the server is away or full.

        run: the call of the model. share: the progress to report for each ciphertext that was sent or received, in
        images.
        """
        retry: Retry | None = None
        broken = 0
        while True:
            attempt = _Attempt(run)
            try:
                self._call(batch, number, attempt, share)
                return
            except (UnavailableError, OverloadError) as error:
                attempt.take_back()
                broken += attempt.heard
                if attempt.heard or retry is None:  # the server is away or full from now on
                    retry = Retry(self._timeout, _PAUSES)
                if broken > _REPEATS or not run.pause(retry.failed(error)):
                    raise
                with self._lock:
                    self.repeated += 1

    def _call(self, batch: ClientBatch, number: int, run: _Attempt, share: float) -> None:
        problems: list[Exception] = []  # errors of encryption, which gRPC's thread would not report
        encrypted = threading.Event()
        with Prefetch(self._requests(batch, number, run, share, encrypted), _DEPTH) as outgoing:
            requests = _items(outgoing, problems)
            call = rpc_client.exchange(self._channel, "Turn", requests, timeout=_LONGEST_TURN)
            with run.whole.under_way(call), Prefetch(call, _DEPTH, call.cancel) as incoming:
                try:
                    for first, stop, back in self.public.turns[number].down():
                        receive = lambda: self._next(incoming, run)  # noqa: E731
                        answer = messages.read_download(self.public, number, first, stop, back, receive, self._device)
                        # An honest server answers after the last slice, but `uploads` may not have returned yet.
                        if not encrypted.wait(self._timeout):
                            raise PeerError("an answer came before the question was complete", where=self._where)
                        batch.receive(answer)
                        run.advance(share * (stop - first))
                    self._end(incoming, run)
                except InputError as error:
                    raise PeerError(error.what, where=self._where, hint=error.hint) from None
                except PeerError:
                    if problems:
                        raise problems[0] from None
                    raise

    def _requests(
        self, batch: ClientBatch, number: int, run: _Attempt, share: float, encrypted: threading.Event
    ) -> Iterator[bytes]:
        opening = messages.opening(self._digest, number)
        yield opening
        self._count(sent=len(opening))
        for sent in batch.uploads(number):
            for message in messages.pack_upload(self.public, sent):
                yield message
                self._count(sent=len(message))
            run.advance(share * len(sent.body))
        encrypted.set()

    def _end(self, incoming: Prefetch[bytes], run: _Attempt) -> None:
        """Wait until the server ends the call; raise PeerError if it sends more than the answer.

        incoming: the server's messages. run: the attempt at a turn. The client does not end the call first, as the
        server would count a broken call.
        """
        if (message := self._read(incoming, run)) is not None:
            raise PeerError(f"{len(message)} bytes more than the answer has", where=self._where)

    def _next(self, incoming: Prefetch[bytes], run: _Attempt) -> bytes:
        """Return the server's next message that is not empty. Raises PeerError if there is none.

        incoming: the server's messages. run: the attempt at a turn, which notes that the server has answered.
        """
        if (message := self._read(incoming, run)) is None:
            raise PeerError("the answer ended early", where=self._where)
        self._count(received=len(message))
        return message

    def _read(self, incoming: Prefetch[bytes], run: _Attempt) -> bytes | None:
        """Return the server's next message that is not empty, None after the last.

        Empty messages only show that the server still works. incoming: the server's messages.
        run: the attempt at a turn, which notes that the server has answered. Raises PeerError if the server is silent
        or gone.
        """
        message: bytes | None = b""
        while message == b"":
            try:
                message = incoming.next(self._timeout)
                run.heard = True
            except TimeoutError:
                what, hint = f"nothing came for {self._timeout:.0f} s", "is it stopped, or the connection too slow?"
                raise PeerError(what, where=self._where, hint=hint) from None
            except grpc.RpcError as error:
                raise explain(error, self._where) from None
        return message

    def _count(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent_bytes += sent
            self.received_bytes += received


def _items(outgoing: Prefetch[bytes], problems: list[Exception]) -> Iterator[bytes]:
    """Yield the encrypted messages to gRPC, which sends them to the server.

    outgoing: the messages, encrypted on another thread. problems: gets the error if encryption fails; then the stream
    ends early, and the server answers with an error of its own.
    """
    try:
        while (message := outgoing.next(_LONGEST_TURN)) is not None:
            yield message
    except Exception as error:
        problems.append(error)


class _Run:
    """One call of a `RemoteModel`: it reports progress, and can cancel its gRPC calls."""

    def __init__(self, progress: Callable[[float], object]) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._calls: set[Any] = set()
        self._stopped = threading.Event()

    def advance(self, images: float) -> None:
        with self._lock:
            self._progress(images)

    @contextlib.contextmanager
    def under_way(self, call: Any) -> Iterator[None]:
        """Register a gRPC call for the time of the `with` block, so that `stop` cancels it."""
        with self._lock:
            self._calls.add(call)
        if self._stopped.is_set():
            call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds`; returns False if the run was stopped meanwhile."""
        return not self._stopped.wait(seconds)

    def stop(self) -> None:
        """Cancel all gRPC calls of this run, including later ones."""
        self._stopped.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


class _Attempt:
    """One attempt at a turn of a call; it counts the progress that it has reported, so that it can be taken back.

    whole: the call of the model (`_Run`). heard: whether the server has answered anything in this attempt.
    """

    def __init__(self, whole: _Run) -> None:
        self.whole, self.heard, self._told = whole, False, 0.0

    def advance(self, images: float) -> None:
        """Report progress, counted in images."""
        self._told += images
        self.whole.advance(images)

    def take_back(self) -> None:
        """Take back the progress that this attempt reported, because its work is done once more."""
        self.whole.advance(-self._told)
