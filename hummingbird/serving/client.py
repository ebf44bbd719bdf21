"""A client of `hummingbird serve`: its images leave this process as shares, one for each party.

    client = hummingbird.Client(["localhost:9100", "localhost:9101"])
    logits = client(images)                                            # torch in, torch out
    logits = await client.ask(images)                                  # the same, for asyncio

What a party receives is a seed, or words that are uniform without all the others' seeds; what it sends back is a
uniform share of the result. Only all N parties together can read an image or a result. One round trip: rounds, masks
and windows are the parties' matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import torch
from torch import Tensor

from hummingbird import inputs, ring
from hummingbird.errors import AgreementError, ConfigError, InputError, PeerError
from hummingbird.prg import new_seed
from hummingbird.serving.description import MOST_PARTIES, Described, Description
from hummingbird.serving.message import ID_BYTES, Request, joined, split
from hummingbird.wire import service as wire
from hummingbird.wire.refusal import explain
from hummingbird.wire.trust import Tls

_IN_FLIGHT = 2  # requests of one call under way at a time
_MARGIN = 10.0  # seconds beyond the deadline, for the parties to say what has become of it


class Client:
    """A client of N parties: `client(images)`, from any thread; a context manager, or `close`.

    parties: their addresses, HOST:PORT or unix:PATH, in any order. tls: needed off this host. timeout: seconds for
    each request, and for the parties to answer at first. token: of a client without a certificate.
    Sends, for each request of n images, N - 1 seeds and one copy of their low bits (`cost.asking`); one round trip.
    Raises PeerError (UnavailableError, OverloadError, AccessError) for a party that does not answer or refuses,
    AgreementError for parties that are not of one service, and InputError for images that it cannot take.
    """

    def __init__(
        self, parties: Sequence[str], tls: Tls | None = None, timeout: float = 60.0, *, token: str | None = None
    ) -> None:
        if isinstance(parties, str) or not 2 <= len(parties) <= MOST_PARTIES:
            hint = "a list of two addresses or more, one for each party"
            raise ConfigError(f"parties={parties!r}", where="Client", hint=hint)
        self.addresses, self._timeout, self._claim = list(parties), timeout, new_seed()
        self._channels: list[grpc.Channel] = []
        self._clocks: list[float] = []  # seconds that each party's clock is ahead, by rank
        self._service: Description | None = None
        self.sent_bytes = self.received_bytes = 0  # of messages, requests and their answers only
        try:
            for address in self.addresses:
                self._channels.append(wire.connect(address, tls, timeout, token=token))
            self.service  # noqa: B018 - says at once if the parties are not of one service
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({', '.join(self.addresses)})"

    def close(self) -> None:
        """Disconnect; may be called twice."""
        for channel in self._channels:
            channel.close()

    @property
    def service(self) -> Description:
        """The service as all parties describe it; asked once, and again after a failure."""
        if self._service is None:
            self._service = self._describe()
        return self._service

    def __call__(self, images: Tensor, progress: Callable[[int], None] | None = None) -> Tensor:
        """The net's results, float32 (n, ...), of images, floating point (n, ...).

        More than `service.most` images go in several requests, two under way at a time. progress: called with the
        number of images whenever some are done.
        """
        service = self.service
        parts = self._parts(images, service)
        outputs = []
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="hummingbird-client") as pool:
            futures = [pool.submit(self._request, part, service) for part in parts]
            try:
                for part, future in zip(parts, futures, strict=True):
                    outputs.append(future.result())
                    if progress is not None:
                        progress(len(part))
            except BaseException as error:
                for future in futures:
                    future.cancel()
                if isinstance(error, PeerError):
                    self._service = None  # the parties may be others by now
                raise
        return torch.cat(outputs)

    async def ask(self, images: Tensor) -> Tensor:
        """`client(images)` for asyncio: a thread waits."""
        return await asyncio.to_thread(self, images)

    def _parts(self, images: Tensor, service: Description) -> list[Tensor]:
        """The ring elements of each request, int64 (images, ...); InputError for images that the net cannot take."""
        if isinstance(images, Tensor) and (tuple(images.shape[1:]) != service.shape or not len(images)):
            what = f"expected images ({', '.join(map(str, ('n', *service.shape)))}), got {tuple(images.shape)}"
            raise InputError(what, where="Client", hint="the first dimension is the batch")
        units = inputs.encoded(images, "Client", service.limit)
        if not service.rowwise and len(units) > service.most:
            what = f"{len(units)} images, and this net computes images together, {service.most} at most"
            raise InputError(what, where="Client", hint="ask for fewer at a time: results depend on which are together")
        return list(units.split(service.most))

    def _request(self, units: Tensor, service: Description) -> Tensor:
        """One request: shares to all parties, the sum of their answers."""
        id, bodies = new_seed(ID_BYTES), split(units, service.bits, service.parties)
        messages = []
        for rank, body in enumerate(bodies):
            deadline = int(1e3 * (time.time() + self._clocks[rank] + self._timeout))
            messages.append(Request(id, self._claim, deadline, len(units), body).to_bytes(service, rank))
        answers = self._call("Ask", messages, self._timeout + _MARGIN)
        self.sent_bytes += sum(map(len, messages))
        self.received_bytes += sum(map(len, answers))
        return ring.decode(joined(answers, len(units), service), service.result_scale)

    def _describe(self) -> Description:
        """Ask all parties, bring their channels into the order of their ranks, and see that all say the same."""
        began = time.time()
        found = [
            Described.read(answer, address)
            for answer, address in zip(
                self._call("Describe", [b""] * len(self.addresses), self._timeout), self.addresses, strict=True
            )
        ]
        service, ranks = found[0].service, [described.rank for described in found]
        for described, address in zip(found, self.addresses, strict=True):
            if described.service != service:
                differ = _difference(service, described.service)
                what = f"{self.addresses[0]} and {address} are not of one service: {differ}"
                raise AgreementError(what, where="Client", hint="name the parties of one run, all of the same release")
        if sorted(ranks) != list(range(service.parties)):
            what = f"the addresses are those of parties {ranks}, the service has parties 0 to {service.parties - 1}"
            raise AgreementError(what, where="Client", hint="name every party once")
        by_rank = sorted(range(len(ranks)), key=ranks.__getitem__)
        self._channels = [self._channels[place] for place in by_rank]
        self.addresses = [self.addresses[place] for place in by_rank]
        self._clocks = [found[place].clock - began for place in by_rank]
        return service

    def _call(self, method: str, messages: Sequence[bytes], timeout: float) -> list[bytes]:
        """One message to each party, and its answer; the first failure ends all, and is raised."""
        calls = list(self._calls(method, messages, timeout))
        done: SimpleQueue[int] = SimpleQueue()
        for place, call in enumerate(calls):
            call.add_done_callback(lambda _, place=place: done.put(place))
        answers = [b""] * len(calls)
        try:
            for _ in calls:
                place = done.get(timeout=timeout + _MARGIN)
                answers[place] = calls[place].result()
        except grpc.RpcError as error:
            raise explain(error, self.addresses[place]) from None
        except Empty:
            raise PeerError("no answer in time", where=str(self)) from None
        finally:
            for call in calls:
                call.cancel()
        return answers

    def _calls(self, method: str, messages: Sequence[bytes], timeout: float) -> Iterator[Any]:
        for channel, message in zip(self._channels, messages, strict=True):
            yield wire.begin(channel, method, message, timeout=timeout)


def _difference(one: Description, other: Description) -> str:
    """The first field in which two descriptions differ, and both its values."""
    for name, value in vars(one).items():
        if value != getattr(other, name):
            return f"{name} {str(value)[:60]} and {str(getattr(other, name))[:60]}"
    return "no difference"
