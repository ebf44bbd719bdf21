"""The parties of one service as a client sees them: what they say of it, and one request to all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import fields
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import grpc
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import AgreementError, PeerError
from hummingbird.prg import new_seed
from hummingbird.serving.description import Described, Description
from hummingbird.serving.message import ID_BYTES, MAX_BYTES, MOST_SECONDS, Question, Request, joined
from hummingbird.wire import service as wire
from hummingbird.wire.refusal import explain
from hummingbird.wire.trust import Tls

_MARGIN = 10.0  # seconds beyond the deadline, for the parties to say what has become of it


class Joined(NamedTuple):
    """A service that all parties have described alike, with its parties in the order of their ranks.

    asks: their methods Ask. clocks: seconds that each party's clock is ahead.
    """

    service: Description
    addresses: list[str]
    asks: list[grpc.UnaryUnaryMultiCallable]
    clocks: list[float]


class Group:
    """N parties; every method may be called from any thread. claim: the client's, by which parties tell it apart."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, token: str | None, claim: bytes) -> None:
        self.addresses, self._tls, self._token, self._claim = list(addresses), tls, token, claim
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._joined: Joined | None = None
        self.sent_bytes = self.received_bytes = 0  # of messages, requests and their answers only

    def __repr__(self) -> str:
        return ", ".join(self.addresses)

    def close(self) -> None:
        """Disconnect; may be called twice."""
        for channel in self._channels:
            channel.close()

    def join(self, timeout: float) -> Joined:
        """Connect if need be, and ask the parties what they serve, unless they have said so. timeout: seconds.

        Raises PeerError, and AgreementError for parties that are not of one service.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            for address in self.addresses[len(self._channels) :]:
                left = max(0.0, deadline - time.monotonic())
                self._channels.append(wire.connect(address, self._tls, left, token=self._token, largest=MAX_BYTES))
            if self._joined is None:
                self._joined = self._describe(max(1.0, deadline - time.monotonic()))
            return self._joined

    def forget(self) -> None:
        """Ask again before the next request: the parties may serve something else by now."""
        self._joined = None

    def request(self, joint: Joined, question: Question, timeout: float) -> Tensor:
        """One request, with an id, shares and keys of its own, to all parties, and the sum of their answers, float32.
        timeout: seconds to its deadline, somewhat less than ten minutes at most.
        """
        timeout = min(timeout, MOST_SECONDS - _MARGIN)
        id, bodies = new_seed(ID_BYTES), question.bodies(joint.service)
        messages = []
        for rank, body in enumerate(bodies):
            deadline = int(1e3 * (time.time() + joint.clocks[rank] + timeout))
            messages.append(Request(id, self._claim, deadline, len(question), body).to_bytes(joint.service, rank))
        answers = self._call(joint.asks, joint.addresses, messages, timeout + _MARGIN)
        with self._lock:
            self.sent_bytes += sum(map(len, messages))
            self.received_bytes += sum(map(len, answers))
        return ring.decode(joined(answers, len(question), joint.service), joint.service.result_scale)

    def _describe(self, timeout: float) -> Joined:
        """Ask all parties, see that all say the same, and bring them into the order of their ranks."""
        began = time.time()
        methods = [wire.method_of(channel, "Describe") for channel in self._channels]
        answers = self._call(methods, self.addresses, [b""] * len(methods), timeout)
        found = [Described.read(answer, address) for answer, address in zip(answers, self.addresses, strict=True)]
        service, ranks = found[0].service, [described.rank for described in found]
        for described, address in zip(found, self.addresses, strict=True):
            if described.service != service:
                differ = difference(service, described.service)
                what = f"{self.addresses[0]} and {address} are not of one service: {differ}"
                raise AgreementError(what, where="Client", hint="name the parties of one run, all of the same release")
        if sorted(ranks) != list(range(service.parties)):
            what = f"the addresses are those of parties {ranks}, the service has parties 0 to {service.parties - 1}"
            raise AgreementError(what, where="Client", hint="name every party once")
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return Joined(
            service,
            [self.addresses[place] for place in order],
            [wire.method_of(self._channels[place], "Ask") for place in order],
            [found[place].clock - began for place in order],
        )

    def _call(
        self,
        methods: Sequence[grpc.UnaryUnaryMultiCallable],
        addresses: Sequence[str],
        messages: Sequence[bytes],
        timeout: float,
    ) -> list[bytes]:
        """One message to each party, and its answer; the first failure ends all, and is raised."""
        asked = zip(methods, messages, strict=True)
        calls = [method.future(message, timeout=timeout) for method, message in asked]
        over: SimpleQueue[int] = SimpleQueue()

        def ended(call: Any) -> None:  # on gRPC's threads: this one wakes once
            if call.code() is not grpc.StatusCode.OK or all(other.done() for other in calls):
                over.put(calls.index(call))

        for call in calls:
            call.add_done_callback(ended)
        try:
            place = over.get(timeout=timeout + _MARGIN)
            calls[place].result()
            return [call.result() for call in calls]
        except grpc.RpcError as error:
            raise explain(error, addresses[place]) from None
        except Empty:
            raise PeerError("no answer in time", where=str(self)) from None
        finally:
            for call in calls:
                call.cancel()


def difference(one: Description, other: Description) -> str:
    """The first field in which two descriptions differ, and both its values."""
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if ours != theirs:
            return f"{field.name} {str(ours)[:60]} and {str(theirs)[:60]}"
    return "no difference"
