"""One end of the connection between the two sides: sends bytes, and receives known numbers of bytes.

Every length follows from the plan, so a message with more or fewer bytes than expected is an error. A caller's `send`
never blocks, so two sides that both send much cannot deadlock; it buffers at most the messages of one slot. A service's
`send` waits while its caller leaves `AHEAD` bytes unread. Every wait has a limit, and ends at once when the other side
is gone.

    data, model = paired()
    data.send("x", b"abc")
    model.receive("x", 3)
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
import torch
from torch import Tensor

from hummingbird.channel.prefetch import Prefetch
from hummingbird.errors import InputError, PeerError
from hummingbird.rpc import CHUNK
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc.status import explain

TIMEOUT = 120.0  # seconds of silence
_DEPTH = 4  # messages received ahead
AHEAD = 8 * CHUNK  # bytes that a service buffers for a caller that does not read
HELD = 2 * _DEPTH * CHUNK + AHEAD  # bytes of messages that a service buffers for a call, both ways
_LONGEST_CALL = 86400.0  # seconds; silence ends a call much earlier
_POLL = 0.5  # seconds between checks that the caller is still there
_AT_WORK = 5.0  # seconds between heartbeats, which are empty messages


class Outgoing:
    """A queue of messages: one thread puts in what it sends, another takes the messages out and transports them.

    most: the queue takes no further message while it holds this many bytes or more.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most, self._unsent, self._closed = most, 0, False
        self._messages: deque[bytes | None] = deque()
        self._changed = threading.Condition()

    def put(self, message: bytes | None, timeout: float) -> None:
        """Add a message, or None after the last message.

        Raises TimeoutError if the queue stays full for `timeout` seconds, BrokenPipeError if it is closed.
        """
        with self._changed:
            room = lambda: self._closed or message is None or self._unsent < self._most  # noqa: E731
            if not self._changed.wait_for(room, timeout):
                raise TimeoutError
            if self._closed and message is not None:
                raise BrokenPipeError
            self._messages.append(message)
            self._unsent += len(message or b"")
            self._changed.notify_all()

    def get(self, timeout: float | None = None) -> bytes | None:
        """Take the next message from the queue and return it; None stands for the end.

        timeout: seconds to wait; None: without limit. Raises TimeoutError if no message comes in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._messages, timeout):
                raise TimeoutError
            message = self._messages.popleft()
            self._unsent -= len(message or b"")
            self._changed.notify_all()
            return message

    def close(self) -> None:
        """Refuse further messages, because nobody transports them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Incoming(Protocol):
    """Interface of a source from which one side reads the other side's messages: `channel.prefetch.Prefetch`, or a
    queue.
    """

    def next(self, timeout: float) -> bytes | None:
        """Return the next message, None after the last.

        timeout: seconds to wait. Raises TimeoutError if none came in time, grpc.RpcError if the call broke.
        """


class MessageStream:
    """One end of the connection between the two sides: it sends bytes, and receives as many as it expects.

    sent, received: bytes so far, by the names in `send` and `receive`. where: name of the other side, for errors.
    timeout: longest silence of the other side, and longest time for which it may leave messages unread, seconds.
    """

    def __init__(self, incoming: Incoming, outgoing: Outgoing, where: str, timeout: float = TIMEOUT) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.where = where
        self._incoming, self._outgoing, self._timeout = incoming, outgoing, timeout

    def send(self, name: str, data: bytes | Tensor) -> None:
        """Send bytes, or a tensor uint8 (size,), in messages of at most `CHUNK` bytes.

        name: the name under which the bytes are counted. Raises PeerError if the other side reads nothing for the
        timeout, or is gone.
        """
        view = memoryview(data) if isinstance(data, bytes) else data.contiguous().numpy().data
        for at in range(0, len(view), CHUNK):
            try:
                self._outgoing.put(bytes(view[at : at + CHUNK]), self._timeout)
            except TimeoutError:
                what = f"it has read nothing for {self._timeout:.0f} s, unread: {name}"
                raise PeerError(what, where=self.where, hint="is it stopped, or the connection too slow?") from None
            except BrokenPipeError:
                raise PeerError(f"the connection is lost, unsent: {name}", where=self.where) from None
        self.sent[name] += len(view)

    def receive(self, name: str, size: int) -> Tensor:
        """Receive `size` bytes, in one or more messages, and return them as a tensor, uint8 (size,).

        name: the name under which the bytes are counted. Raises InputError if the messages hold more; PeerError if the
        other side is silent, or ends.
        """
        buffer = torch.empty(size, dtype=torch.uint8)
        view, at = buffer.numpy().data, 0
        while at < size:
            message = self._next(name)
            if len(message) > size - at:
                what = f"malformed message: {len(message)} bytes for {name}, of which {size - at} are missing"
                hint = "the bytes were damaged, or come from another program or release"
                raise InputError(what, where=self.where, hint=hint)
            view[at : at + len(message)] = message
            at += len(message)
        self.received[name] += size
        return buffer

    def receive_text(self, name: str, limit: int = CHUNK) -> bytes:
        """Receive one message, such as the first message of a call, and return its bytes.

        name: the name under which the bytes are counted. limit: the largest size in bytes. Raises InputError if the
        message is larger, PeerError if the other side is silent, or ends.
        """
        message = self._next(name)
        if len(message) > limit:
            raise InputError(f"malformed message: {len(message)} bytes for {name}", where=self.where)
        self.received[name] += len(message)
        return message

    def end(self) -> None:
        """Send no more: the other side's stream of messages ends."""
        self._outgoing.put(None, 0.0)

    def _next(self, name: str) -> bytes:
        message: bytes | None = b""
        while message == b"":  # a heartbeat
            try:
                message = self._incoming.next(self._timeout)
            except TimeoutError:
                what = f"nothing came for {self._timeout:.0f} s, awaited: {name}"
                raise PeerError(what, where=self.where, hint="is it stopped, or the connection too slow?") from None
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call):
                    raise explain(error, self.where) from None
                raise PeerError(f"the connection is lost, awaited: {name}", where=self.where) from None
        if message is None:
            raise PeerError(f"it ended before it sent {name}", where=self.where)
        return message


class _Queued:
    """Lets one side read what the other side sends, if both are in one process: it takes messages from a queue.

    source: the queue into which the other side puts its messages.
    """

    def __init__(self, source: Outgoing) -> None:
        self._source = source

    def next(self, timeout: float) -> bytes | None:
        return self._source.get(timeout)


def paired(timeout: float = TIMEOUT) -> tuple[MessageStream, MessageStream]:
    """Make both ends of a connection in this process: the data side's end, and the model side's end."""
    up, down = Outgoing(), Outgoing()
    return (
        MessageStream(_Queued(down), up, "the model's side", timeout),
        MessageStream(_Queued(up), down, "the data's side", timeout),
    )


def both(
    data: Callable[[MessageStream], Any], model: Callable[[MessageStream], Any], timeout: float = TIMEOUT
) -> tuple[Any, Any]:
    """Run the two sides at the same time in this process, each with its end of a connection; return both results.

    data, model: the functions that run one side each; they get the side's end, a `MessageStream`.
    timeout: longest silence of the other side, seconds. Raises the first error of either side.
    """
    here, there = paired(timeout)
    results: list[Any] = [None, None]
    errors: list[BaseException] = []

    def run(place: int, role: Callable[[MessageStream], Any], link: MessageStream) -> None:
        try:
            results[place] = role(link)
        except BaseException as error:  # noqa: BLE001 - raised again below, on the calling thread
            errors.append(error)
        finally:
            link.end()

    thread = threading.Thread(target=run, args=(1, model, there), name="hummingbird-model", daemon=True)
    thread.start()
    run(0, data, here)
    thread.join()  # ends, because every wait has a limit
    if errors:
        raise errors[0]
    return results[0], results[1]


@contextmanager
def called(channel: grpc.Channel, method: str, where: str, timeout: float = TIMEOUT) -> Iterator[MessageStream]:
    """Call a method of a service; the `with` block gets the caller's end of the connection, and its end ends the call.

    where: name of the service, for errors. timeout: longest silence of the service, seconds (`MessageStream`).
    """
    outgoing = Outgoing()
    call = rpc_client.exchange(channel, method, iter(outgoing.get, None), timeout=_LONGEST_CALL)
    with Prefetch(call, _DEPTH, call.cancel) as incoming:
        try:
            yield MessageStream(incoming, outgoing, where, timeout)
        finally:
            outgoing.put(None, 0.0)


def answered(
    role: Callable[[MessageStream], Any],
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
    timeout: float = TIMEOUT,
) -> Iterator[bytes]:
    """Run one side of a call at a service, on a thread of its own; yield the messages that this side sends.

    role: the function that is run; its argument is the side's end of the connection, a `MessageStream`.
    requests: the caller's messages. context: gRPC's; it says whether the caller is still there. timeout: longest
    silence of the caller, seconds. While the side computes, empty messages are sent as heartbeats. An error of the side
    is raised at the end.
    """
    outgoing, errors = Outgoing(AHEAD), list[BaseException]()
    incoming = Prefetch(requests, _DEPTH)

    def run() -> None:
        try:
            role(MessageStream(incoming, outgoing, "the data's side", timeout))
        except BaseException as error:  # noqa: BLE001 - raised again below, for the caller
            errors.append(error)
        finally:
            outgoing.put(None, 0.0)
            incoming.close()  # not earlier: the call's end must end the role's wait

    threading.Thread(target=run, name="hummingbird-role", daemon=True).start()
    signed = time.monotonic()
    try:
        while context.is_active():
            try:
                message = outgoing.get(_POLL)
            except TimeoutError:
                if time.monotonic() < signed + _AT_WORK:
                    continue
                message = b""
            if message is None:
                break
            yield message
            signed = time.monotonic()
    finally:
        outgoing.close()
    if errors:
        raise errors[0]
