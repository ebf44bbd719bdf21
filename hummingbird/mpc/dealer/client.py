"""A party's side of the dealer: expand the own seed, and fetch party 0's corrections.

Only party 0 talks to the dealer after joining; all others compute their shares from their seed. All parties must make
the same requests in the same order: the position of a request is the index that selects its randomness.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import torch
from torch import Tensor

from hummingbird.errors import DealerError, InputError, PeerError
from hummingbird.mpc.correlations import Request, check, expand
from hummingbird.mpc.dealer.server import SESSION_BYTES
from hummingbird.prg import SEED_BYTES
from hummingbird.version import VERSION
from hummingbird.wire import service
from hummingbird.wire.frame import frame_bytes, unpack_tensors

_SLOWEST = 1e6  # bytes of corrections per second; below it, a dealer counts as dead
_GRACE = 2.0  # seconds for the dealer to say that it has waited `timeout` seconds for the other parties


class DealerClient:
    """Party `rank` of `parties` in the session with this 16-byte id, joined at `address`: `client.take(request)`.

    timeout: seconds until the dealer must have answered; corrections may take a second per megabyte longer.
    seconds_expanding, seconds_waiting: time spent on the own seed, and on waiting for corrections.
    offline_bits: corrections received, without their framing (8 bytes, and at most 80 per tensor).
    dealer_seconds: the dealer's work for this session so far, as it says.
    Raises DealerError (unreachable, refused), InputError, TrustError and EnvironmentProblem as `service.connect`.
    """

    def __init__(
        self,
        address: str,
        *,
        session: bytes,
        rank: int,
        parties: int,
        tls: service.Tls | None = None,
        timeout: float = 60.0,
    ) -> None:
        if len(session) != SESSION_BYTES:
            raise InputError(f"a session id has {SESSION_BYTES} bytes, got {len(session)}", where="DealerClient")
        self.address, self.rank, self.parties = address, rank, parties
        self.seconds_expanding = self.seconds_waiting = self.dealer_seconds = 0.0
        self.offline_bits = 0
        self._session, self._timeout = session, timeout
        self._index = 0
        self._ready: deque[tuple[str, list[Tensor]]] = deque()
        self._over = ""  # why there is nothing more to take
        try:
            self._channel = service.connect(address, tls, timeout)
        except PeerError as error:
            hint = error.hint or "start one with `python -m hummingbird dealer --listen ...`"
            raise DealerError(error.what, where=f"dealer {address}", hint=hint) from None
        try:
            self.seed, self._token = self._join()
        except BaseException:
            self._channel.close()
            raise

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares: the free fields, then the derived ones.

        Offline, party 0 spends 1 round with the dealer and request.correction_bits; nobody else sends or receives.
        Raises DealerError when the dealer refuses, is gone or is late, and when another request was prefetched.
        """
        if self._ready:
            expected, shares = self._ready[0]
            if _text(request) != expected:
                raise DealerError(
                    f"take() of {_text(request)}, but {expected} was prefetched at this place",
                    where=f"party {self.rank}",
                    hint="take in the order of prefetch, at all parties",
                )
            self._ready.popleft()
            return shares
        return self._fetch([request])[0]

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Fetch for many takes to come, in one call; they are handed out in order. Same at every party. 1 round."""
        for request, shares in zip(requests, self._fetch(requests), strict=True):
            self._ready.append((_text(request), shares))

    def close(self) -> None:
        """Leave the session (party 0) and disconnect; never raises, may be called twice."""
        if not self._channel:
            return
        if self.rank == 0:
            try:
                service.call(self._channel, "Leave", self._message(), timeout=min(self._timeout, 5.0))
            except grpc.RpcError:
                pass  # the dealer is gone, or forgets us by itself
        self._channel.close()
        self._channel = None
        self._over = self._over or "the client is closed"
        self._ready.clear()

    # Messages ---------------------------------------------------------------------------------------------------------

    def _message(self, **fields: Any) -> bytes:
        return json.dumps({"session": self._session.hex(), "token": self._token.hex(), **fields}).encode()

    def _join(self) -> tuple[bytes, bytes]:
        fields = {"session": self._session.hex(), "rank": self.rank, "parties": self.parties, "version": VERSION}
        try:
            answer = service.call(self._channel, "Join", json.dumps(fields).encode(), timeout=self._timeout)
            values = json.loads(answer)
            seed, token = bytes.fromhex(values["seed"]), bytes.fromhex(values["token"])
        except grpc.RpcError as error:
            raise self._failure(error) from None
        except (ValueError, TypeError, KeyError):
            seed = token = b""
        if len(seed) != SEED_BYTES:
            raise DealerError("a malformed answer to Join", where=f"dealer {self.address}", hint="is this a dealer?")
        return seed, token

    def _fetch(self, requests: Sequence[Request]) -> list[list[Tensor]]:
        if self._over:
            raise DealerError(self._over, where=f"dealer {self.address}", hint="start the run again")
        for request in requests:
            check(request)
        first, self._index = self._index, self._index + len(requests)
        messages: Any = iter(())
        if self.rank == 0:
            items = [{"kind": request.kind, "params": request.params} for request in requests]
            data = self._message(first=first, requests=items, wait=self._timeout)
            size = sum(request.correction_bits for request in requests) / 8
            limit = self._timeout + _GRACE + size / _SLOWEST
            messages = service.stream(self._channel, "Correct", data, timeout=limit)
        out = []
        try:
            for index, request in enumerate(requests, first):
                started = time.perf_counter()
                shares = expand(request, index, self.seed, self.rank)  # while the dealer is at work
                self.seconds_expanding += time.perf_counter() - started
                out.append(shares + (self._receive(messages, request) if self.rank == 0 else []))
            if self.rank == 0:
                self._finish(messages)
        except BaseException as error:
            self._over = "an earlier request failed"
            if self.rank == 0:
                messages.cancel()
            if isinstance(error, grpc.RpcError):
                raise self._failure(error) from None
            raise
        return out

    def _receive(self, messages: Iterator[bytes], request: Request) -> list[Tensor]:
        """One request's corrections; the sizes follow from the request, so nothing the dealer says is believed."""
        layout = [(torch.uint8 if item.kind == "packed" else torch.int64, item.shape) for item in request.derived]
        started = time.perf_counter()
        size, at = frame_bytes(layout), 0
        buffer = torch.empty(size, dtype=torch.uint8).numpy().data
        while at < size:
            message = next(messages, b"")
            if not 0 < len(message) <= size - at:
                raise self._malformed(request)
            buffer[at : at + len(message)] = message
            at += len(message)
        try:
            out = unpack_tensors(buffer, max_bytes=size)
        except InputError:
            raise self._malformed(request) from None
        if [(t.dtype, tuple(t.shape)) for t in out] != layout:
            raise self._malformed(request)
        self.seconds_waiting += time.perf_counter() - started
        self.offline_bits += request.correction_bits
        return out

    def _finish(self, messages: Any) -> None:
        if next(messages, None) is not None:
            raise DealerError("the dealer sent more than was asked for", where=f"dealer {self.address}")
        trailer = dict(messages.trailing_metadata() or ())
        self.dealer_seconds = float(trailer.get("dealer-seconds", self.dealer_seconds))

    def _malformed(self, request: Request) -> DealerError:
        return DealerError(f"malformed corrections for {_text(request)}", where=f"dealer {self.address}")

    def _failure(self, error: grpc.RpcError) -> DealerError:
        problem = service.explain(error, "")
        return DealerError(problem.what, where=f"dealer {self.address}", hint=problem.hint)


def _text(request: Request) -> str:
    """A request as text that is equal for equal requests (a tuple is a list in JSON)."""
    return f"{request.kind} {json.dumps(request.params, sort_keys=True)}"
