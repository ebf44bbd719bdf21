"""The server role as a service for several clients at once (messages: he/runtime/messages.py).

The server holds no key: it receives and sends ciphertexts. It expands a slice while the next one arrives, and sends a
result while it computes the next tile. It keeps nothing between turns. If a client dies during a turn, the turn ends at
the next slice or tile, or after `idle` seconds of silence. A client whose connection broke repeats the turn, here or at
another server of the same net.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc

from hummingbird.channel.prefetch import Prefetch
from hummingbird.errors import AgreementError, ConfigError, OverloadError, PeerError
from hummingbird.he.runtime import messages
from hummingbird.he.runtime.memory import installed
from hummingbird.he.runtime.server import Server, ServerRound
from hummingbird.rpc.admission import FairQueue, Quota, WaitingCall, caller_name
from hummingbird.rpc.service import WORKERS, Exchange, Method

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

TURNS = 4
IDLE_SECONDS = 120.0
RETRY = 5.0  # seconds after which a client that found the server full may try again
MAX_CALLS = 2 * WORKERS  # turns at work or waiting; a waiting turn holds about 5 MB of messages
_AT_WORK = 5.0  # seconds between heartbeats, which are empty messages
_DEPTH = 4  # messages received, and messages computed, ahead
_POLL = 0.5  # seconds between checks that the client is still there
_log = logging.getLogger(__name__)


class Service:
    """The service of one server role for several clients: `serve(Service(server).handlers(), address)`.

    turns: number of turns at work at a time; others wait, and the client with the fewest turns at work is next.
    memory: bytes for all turns, each as large as the plan predicts; default: all of the machine's memory, or the GPU's.
    idle: longest silence of a client that should send, and longest wait in the queue, seconds.
    room: the queue of turns.
    Raises ConfigError for numbers out of range, and if not even one turn fits into memory.
    """

    def __init__(
        self, server: Server, *, turns: int = TURNS, memory: int | None = None, idle: float = IDLE_SECONDS
    ) -> None:
        if not 1 <= turns <= MAX_CALLS:
            raise ConfigError(f"{turns} turns at a time", where="turns", hint=f"from 1 to {MAX_CALLS}")
        memory = installed(server.device) if memory is None else memory
        if memory < server.memory:
            what = f"a turn needs {server.memory / 1e9:.2f} GB, allowed are {memory / 1e9:.2f}"
            raise ConfigError(what, where="memory", hint="allow more, or run it on a larger machine")
        self._server, self._public, self._idle = server, server.public, idle
        self._text = server.public.to_json().encode()
        self._digest = messages.digest(self._text)
        self.room = turns_of(min(turns, memory // server.memory), MAX_CALLS)

    def handlers(self) -> dict[str, Method | Exchange]:
        """Return the methods of the service, for `rpc.service.serve`."""
        return {"Public": self._describe, "Turn": Exchange(self._turn)}

    def measure(self, registry: CollectorRegistry) -> None:
        """Register gauges for Prometheus that show how many turns are at work and how many wait."""
        from prometheus_client import Gauge

        def add(name: str, text: str, value: Callable[[], int]) -> None:
            Gauge(f"hummingbird_he_{name}", text, registry=registry).set_function(value)

        add("turns_at_work", "Turns at work.", lambda: self.room.at_work)
        add("turns_waiting", "Turns that wait for one of the places.", lambda: self.room.waiting)
        add("places", "Turns that may be at work at a time.", lambda: self.room.places)

    def _describe(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        messages.read_opening(data, len(self._public.turns))
        return self._text

    def _turn(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        place = self.room.enter(caller_name(context))
        incoming = Prefetch(requests, _DEPTH)  # its thread ends with the call
        try:
            number = self._open(self._next(incoming))
            yield from self._wait_for_room(place, context)
            turn = self._server.turn(number)
            yield from self._take_in(turn, number, incoming)
            yield from self._give_out(turn, context)
        finally:
            place.leave()
            incoming.close()

    def _open(self, data: bytes) -> int:
        digest, number = messages.read_opening(data, len(self._public.turns))
        if digest != self._digest:
            hint = "connect again: the server runs with another net or other parameters than before"
            raise AgreementError("the client's description of the net differs from the server's", where="he", hint=hint)
        return number

    def _next(self, incoming: Prefetch[bytes]) -> bytes:
        """Return the next message of a client's call. Raises PeerError if the client is silent, gone, or ended early.

        incoming: the client's messages.
        """
        try:
            message = incoming.next(self._idle)
        except TimeoutError:
            hint = "is the client stopped, or the connection too slow?"
            raise PeerError(f"the client has sent nothing for {self._idle:.0f} s", where="he", hint=hint) from None
        except grpc.RpcError:
            raise PeerError("the client is gone", where="he") from None
        if message is None:
            raise PeerError("the client ended before its turn was complete", where="he")
        return message

    def _wait_for_room(self, place: WaitingCall, context: grpc.ServicerContext) -> Iterator[bytes]:
        deadline = time.monotonic() + self._idle
        while not place.wait(_POLL):
            if time.monotonic() > deadline or not context.is_active():
                what = f"no room for {self._idle:.0f} s, {self.room.places} turns are at work"
                raise OverloadError(what, where="he", retry_after=RETRY)
            yield b""

    def _take_in(self, turn: ServerRound, number: int, incoming: Prefetch[bytes]) -> Iterator[bytes]:
        signed = time.monotonic()
        for first, stop in self._public.turns[number].up():
            receive = lambda: self._next(incoming)  # noqa: E731
            turn.receive(messages.read_upload(self._public, number, first, stop, receive, turn.device))
            if time.monotonic() > signed + _AT_WORK:
                yield b""
                signed = time.monotonic()

    def _give_out(self, turn: ServerRound, context: grpc.ServicerContext) -> Iterator[bytes]:
        computed = (message for back in turn.downloads() for message in messages.pack_download(self._public, back))
        with Prefetch(computed, _DEPTH) as answers:
            signed = time.monotonic()
            while context.is_active():
                try:
                    message = answers.next(_POLL)
                except TimeoutError:
                    if time.monotonic() < signed + _AT_WORK:
                        continue
                    message = b""
                if message is None:
                    return
                yield message
                signed = time.monotonic()


def turns_of(places: int, calls: int) -> FairQueue:
    """Make the queue in which clients' turns wait until they may be at work.

    places: number of turns that may be at work at a time.
    calls: number of turns that may be at work or waiting, of all clients together; one client, known by its name, may
    have a quarter of them.
    """
    each = max(1, calls // 4)
    return FairQueue(places, Quota("turns", "at work or waiting", calls, each, spare=False, where="he", retry=RETRY))
