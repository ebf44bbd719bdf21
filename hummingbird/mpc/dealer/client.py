"""A party's side of the dealer: expand this party's seed, and fetch the corrections that go to this party.

The corrections of a request go to one party, by rotation (correlations/request.py); all other parties compute their
shares from their seeds. The rotation assigns the turns, which select the randomness, in the order of reservations and
requests. So all parties must make the same reservations and requests in the same order. A background thread makes
reserved material ahead of its use, and other material on demand (`supplies`).
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import torch
from torch import Tensor

from hummingbird import records
from hummingbird.channel.staging import Aside
from hummingbird.errors import DealerError, InputError, PeerError
from hummingbird.kernels.devices import put
from hummingbird.mpc.correlations.request import (
    Material,
    ReceiverRotation,
    ReceiverTurn,
    Request,
    corrections,
    expand,
    layout,
    received,
)
from hummingbird.mpc.dealer import supplies
from hummingbird.mpc.dealer.server import SESSION_BYTES, CorrectRequest, JoinAnswer, JoinRequest, SessionRequest
from hummingbird.mpc.dealer.supplies import OnDemand, Requests, StepSupplies, Supplies, Supply
from hummingbird.prg import CIPHERS
from hummingbird.rpc import client as rpc_client
from hummingbird.rpc import spans
from hummingbird.rpc.frame import frame_bytes, unpack_tensors
from hummingbird.rpc.security import Tls
from hummingbird.rpc.status import explain
from hummingbird.version import VERSION

_SLOWEST = 1e6  # bytes of corrections per second; a slower dealer counts as dead
_GRACE = 2.0  # seconds for the dealer's answer that it has waited `timeout` seconds for the other parties


class DealerClient:
    """A party's connection to a dealer, joined to one session; `correlation(request)` returns this party's shares.

    address: the dealer's, HOST:PORT or unix:PATH.
    session: the id of the session, 16 bytes. rank: this party's, among `parties`.
    timeout: seconds within which the dealer must answer; corrections may take one more second per megabyte.
    cipher: the cipher that expands the seeds, one of `prg.CIPHERS`; the same at all parties.
    device: the device on which the seed is expanded.
    buffer_bytes: bound on the bytes of shares that are made ahead of their use.

    The bits that `Material` counts leave out the framing of messages: 8 bytes for each request, and at most 80 for each
    tensor. Raises DealerError if the dealer cannot be reached or refuses, and InputError, TrustError and
    EnvironmentProblem as `rpc.client.connect` does.
    """

    slice_shape, aim = None, "throughput"

    def __init__(
        self,
        address: str,
        *,
        session: bytes,
        rank: int,
        parties: int,
        tls: Tls | None = None,
        timeout: float = 60.0,
        cipher: str = "aes-128-ctr",
        device: torch.device | str = "cpu",
        buffer_bytes: int = supplies.BUFFER_BYTES,
    ) -> None:
        if len(session) != SESSION_BYTES:
            raise InputError(f"a session id has {SESSION_BYTES} bytes, got {len(session)}", where="DealerClient")
        self.address, self.rank, self.parties = address, rank, parties
        self._session, self._timeout = session, timeout
        self._cipher, self._device = cipher, torch.device(device)
        self._turns = ReceiverRotation(parties)
        self._conversations = itertools.count(1)
        self._call: Any = None  # the current stream of corrections
        self._told = 0.0  # the dealer's seconds of work on all answers so far
        self._supplies = Supplies(self._make, f"dealer {address}", self._patience, self._cancel, buffer_bytes)
        try:
            self._channel = rpc_client.connect(address, tls, timeout)
        except PeerError as error:
            hint = error.hint or "start one with `python -m hummingbird dealer --listen ...`"
            raise DealerError(error.what, where=f"dealer {address}", hint=hint) from None
        try:
            self.seed, self._token = self._join()
        except BaseException:
            self._channel.close()
            raise

    def __repr__(self) -> str:
        return f"dealer at {self.address}"

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for one request, as `Material`.

        One party, the receiver, gets the request's correction from the dealer: 1 round and request.correction_bits,
        offline. The other parties send and receive nothing. Raises DealerError if the dealer refuses, is gone or is
        late.
        """
        return self.reserve([request]).correlation(request)

    def reserve(self, requests: Requests | None, conversation: int = 0) -> Supply | OnDemand:
        """Begin to make the material of one slice in the background, in the order of `requests`; return it as a supply.

        requests: None if they are not known: then each request's material is made when the slice asks for it.
        conversation: number of the conversation of which this is a step; 0 for none.
        The supply's method `correlation` raises DealerError if the dealer fails, and if it is called with another
        request than the next one in `requests`.
        """
        if requests is None:
            return OnDemand(lambda request: self.reserve([request], conversation).correlation(request))
        return self._supplies.reserve(self._turns.take(requests, conversation), requests)

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> StepSupplies:
        """Begin a conversation; return its material, which is made from step to step.

        The dealer keeps nothing for it: its masks follow from the parties' seeds, its number and their keys.
        facts: of the net; they are not read here.
        steps: the requests of each step, in order; None if they are not known.
        """
        return _conversation(self.reserve, next(self._conversations), steps)

    def bind(self, name: str, digest: bytes) -> None:
        """Do nothing: this dealer draws new masks in every run, so it need not record which weights a mask hides.

        name, digest: of the private weights; they are not read here.
        """

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Accept any net, of any shape: the dealer makes whatever material is requested.

        facts, shapes: the net's facts and the shapes of its slices, which other dealers check; they are not read here.
        """

    def stay(self) -> None:
        """Heartbeat: tell the dealer that this session is still in use. Party 0 sends it for all parties.

        Raises DealerError if the dealer is gone, or has dropped this session.
        """
        if self.rank == 0:
            try:
                rpc_client.call(self._channel, "Stay", self._message(), timeout=self._timeout / 2)
            except grpc.RpcError as error:
                raise self._failure(error) from None

    def close(self) -> None:
        """Leave the session and disconnect. Never raises; may be called twice."""
        if not self._channel:
            return
        self._supplies.close()
        try:
            rpc_client.call(self._channel, "Leave", self._message(), timeout=min(self._timeout, 5.0))
        except grpc.RpcError:
            pass  # the dealer is gone, or drops the idle session later
        self._channel.close()
        self._channel = None

    # Messages, in the background thread after joining ----------------------------------------------------------------

    def _message(self) -> bytes:
        return records.write(SessionRequest(self._session, self._token)).encode()

    def _join(self) -> tuple[bytes, bytes]:
        asked = records.write(JoinRequest(self._session, self.rank, self.parties, VERSION, self._cipher))
        try:
            answer = rpc_client.call(self._channel, "Join", asked.encode(), timeout=self._timeout)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        where, hint = f"dealer {self.address}", "is this a dealer?"
        found = records.read(answer, JoinAnswer, name="answer to Join", where=where, hint=hint, error=DealerError)
        if len(found.seed) != CIPHERS[self._cipher]:
            raise DealerError("malformed answer to Join: a seed of another cipher", where=where, hint=hint)
        return found.seed, found.token

    def _patience(self, size: int) -> float:
        """Return how many seconds to wait for shares of `size` bytes.

        It is longer than a call to the dealer may take, so that the call's own error comes first.
        """
        return self._timeout + 2 * _GRACE + size / _SLOWEST

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _make(self, turns: Sequence[ReceiverTurn], requests: Requests) -> Iterator[Material]:
        """Yield the material of consecutive requests, one `Material` for each, in order.

        One call to the dealer fetches all corrections that go to this party.
        turns: the receiver turn of each request: which party receives its correction. All are of one conversation, or
            of none.
        Raises DealerError.
        """
        mine = [place for place, turn in enumerate(turns) if turn.receiver == self.rank]
        span, outcome = spans.begin("material", calls=bool(mine), alone=True), "FAILED"
        if mine:
            own = [requests[place] for place in mine]
            first, conversation = turns[mine[0]].number, turns[mine[0]].conversation
            asked = CorrectRequest(self._session, self._token, first, conversation, tuple(own), self._timeout)
            data = records.write(asked).encode()
            size = sum(request.correction_bits for request in own) / 8
            limit = self._timeout + _GRACE + size / _SLOWEST
            with span.current():
                self._call = rpc_client.stream(self._channel, "Correct", data, timeout=limit)
        try:
            for place, (turn, request) in enumerate(zip(turns, requests, strict=True)):
                started = time.perf_counter()
                with Aside(self._device) as aside:
                    shares = expand(request, turn, self.seed, self.rank, self._device)  # while the dealer is at work
                    seconds, bits, got, told = time.perf_counter() - started, request.correction_bits, 0, 0.0
                    if turn.receiver == self.rank:
                        shares |= received(request, aside.bring(self._receive(self._call, request)))
                        got, told = bits, self._finish(self._call) if place == mine[-1] else 0.0
                yield Material(shares, bits, got, expanding_seconds=seconds, dealer_seconds=told, ready=aside.ready)
            outcome = "OK"
        except grpc.RpcError as error:
            raise self._failure(error) from None
        except GeneratorExit:
            outcome = "CANCELLED"
            self._cancel()
            raise
        finally:
            span.end(outcome)

    def _receive(self, messages: Iterator[bytes], request: Request[Any]) -> list[Tensor]:
        """Receive the corrections of one request from the messages of the dealer's answer, and return them.

        The request decides their sizes; no size that the dealer sends is trusted. Raises DealerError for messages that
        do not fit the request.
        """
        expected = layout(request)
        size, at = frame_bytes(expected), 0
        buffer = torch.empty(size, dtype=torch.uint8).numpy().data
        while at < size:
            message = next(messages, b"")
            if not 0 < len(message) <= size - at:
                raise self._malformed(request)
            buffer[at : at + len(message)] = message
            at += len(message)
        try:
            out = unpack_tensors(buffer, max_bytes=size, max_tensors=len(expected))
        except InputError:
            raise self._malformed(request) from None
        if [(t.dtype, tuple(t.shape)) for t in out] != expected:
            raise self._malformed(request)
        return out

    def _finish(self, messages: Any) -> float:
        """Check that the dealer's answer is at its end; return the seconds that the dealer worked on this answer.

        messages: gRPC's stream of the answer, of which all corrections are read.
        Raises DealerError if more messages come.
        """
        if next(messages, None) is not None:
            raise DealerError("the dealer sent more than was asked for", where=f"dealer {self.address}")
        trailer = dict(messages.trailing_metadata() or ())
        try:
            told = float(trailer.get("dealer-seconds", self._told))
        except ValueError:
            told = math.nan
        if not self._told <= told < math.inf:  # false for NaN too
            raise DealerError("the dealer's count of its own time is malformed", where=f"dealer {self.address}")
        before, self._told = self._told, told
        return told - before

    def _malformed(self, request: Request[Any]) -> DealerError:
        return DealerError(f"malformed corrections for {request}", where=f"dealer {self.address}")

    def _failure(self, error: grpc.RpcError) -> DealerError:
        problem = explain(error, "")
        return DealerError(problem.what, where=f"dealer {self.address}", hint=problem.hint)


def _conversation(
    reserve: Callable[[Requests | None, int], Supply | OnDemand], number: int, steps: Sequence[Requests] | None
) -> StepSupplies:
    """Return the material of conversation `number`. reserve: as `DealerClient.reserve`. steps: the steps' requests."""
    if steps is None:
        return StepSupplies(lambda step: reserve(None, number), None)
    return StepSupplies(lambda step: reserve(steps[step], number), len(steps))


# A dealer inside the party's process ----------------------------------------------------------------------------------
class LocalDealer:
    """A dealer within the party's own process, which knows all parties' seeds; `correlation(request)` returns shares.

    With several parties it protects nothing, and warns of this: it is for tests, and for a session of one party.
    rank: this party's, among `parties`.
    seeds: of all parties, by rank.
    device: where the shares are made.
    """

    slice_shape, aim = None, "throughput"

    def __init__(self, rank: int, parties: int, seeds: Sequence[bytes], device: torch.device | str = "cpu") -> None:
        if len(seeds) != parties or not 0 <= rank < parties:
            raise InputError(f"rank {rank} of {parties} parties with {len(seeds)} seeds", where="LocalDealer")
        if parties > 1:
            warnings.warn(
                "LocalDealer offers NO privacy: this party knows every party's seed and can read all secrets. "
                "Use it in tests only.",
                stacklevel=2,
            )
        self.rank, self.parties = rank, parties
        self._seeds, self._device = list(seeds), torch.device(device)
        self._turns = ReceiverRotation(parties)
        self._conversations = itertools.count(1)

    def __repr__(self) -> str:
        return "dealer in this process"

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for one request, as `Material`. Sends nothing."""
        return self._deal(request, 0)

    def _deal(self, request: Request[Any], conversation: int) -> Material:
        (turn,), bits, got = self._turns.take([request], conversation), request.correction_bits, 0
        started = time.perf_counter()
        shares = expand(request, turn, self._seeds[self.rank], self.rank, self._device)
        expanded = dealt = time.perf_counter()
        if self.rank == turn.receiver:
            found = [put(x, self._device) for x in corrections(request, turn, self._seeds, self._device)]
            shares |= received(request, found)
            got, dealt = bits, time.perf_counter()
        return Material(shares, bits, got, dealt - started, expanded - started, dealt - expanded)

    def reserve(self, requests: Requests | None, conversation: int = 0) -> OnDemand:
        """Return the supply of one slice: its `correlation` makes a request's material when the slice asks for it.

        requests: the slice's requests; they are not read here.
        conversation: number of the conversation of which this is a step; 0 for none.
        """
        return OnDemand(lambda request: self._deal(request, conversation))

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> StepSupplies:
        """Begin a conversation; return its material. facts, steps: as `DealerClient.converse` takes them."""
        return _conversation(self.reserve, next(self._conversations), steps)

    def bind(self, name: str, digest: bytes) -> None:
        """Do nothing: this dealer draws new masks in every run, so it need not record which weights a mask hides.

        name, digest: of the private weights; they are not read here.
        """

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Accept any net, of any shape: material is made for whatever is requested.

        facts, shapes: the net's facts and the shapes of its slices, which other dealers check; they are not read here.
        """

    def stay(self) -> None:
        """Do nothing: there is no session that could be dropped."""

    def close(self) -> None:
        """Do nothing: there is no session to leave."""
