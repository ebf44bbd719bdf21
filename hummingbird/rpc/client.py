"""Retry and failover: when a caller asks again, and where, while a service is away or has no room.

    retry = Retry(timeout, (0.1, 2.0))
    while True:
        try:
            return ask(timeout=retry.left)
        except PeerError as error:
            time.sleep(retry.failed(error))

`Patience` is the same for a caller who connects, and knows which errors of gRPC no further attempt would mend.
"""

from __future__ import annotations

import time

import grpc

from hummingbird.errors import HummingbirdError, OverloadError, PeerError, UnavailableError
from hummingbird.rpc.admission import STOPPING
from hummingbird.rpc.status import explain

_PAUSE = 0.05  # seconds between attempts to reach a service
_REFUSED = 5  # times that a connection is closed, after which it is refused


class Retry:
    """One question, asked until it is answered: `failed` says after each failure when the next attempt begins.

    timeout: seconds from now within which attempts begin. pauses: seconds between attempts at a service that is away,
    at first and at most: they double. One that is full says itself when it may be asked. passing: errors that another
    attempt may mend. tries: attempts at most. places: how many services may be asked in place of each other; first:
    the one that is asked first.
    """

    def __init__(
        self,
        timeout: float,
        pauses: tuple[float, float],
        *,
        passing: tuple[type[HummingbirdError], ...] = (UnavailableError, OverloadError),
        tries: float = float("inf"),
        places: int = 1,
        first: int = 0,
    ) -> None:
        self.place = self._first = first
        self._deadline, (self._pause, self._longest) = time.monotonic() + timeout, pauses
        self._shortest, self._passing, self._tries = pauses[0], passing, tries
        self._rests = [0.0] * places  # until when a service is not asked again
        self._failure: HummingbirdError | None = None

    @property
    def left(self) -> float:
        """Seconds until the last attempt may begin; below 0 when it is too late."""
        return self._deadline - time.monotonic()

    def failed(self, error: HummingbirdError) -> float:
        """Seconds until the next attempt, at `place`. Raises the error where there is none: it does not pass, or the
        time or the attempts are over. After the deadline it raises the failure before: that one says more than that the
        time left was too short.
        """
        now = time.monotonic()
        if self._failure is not None and now > self._deadline:
            raise self._failure from None
        if not isinstance(error, self._passing):
            raise error from None
        rest = self._pause
        if isinstance(error, OverloadError):
            rest = max(error.retry_after, self._shortest)
        else:
            self._pause = min(2 * self._pause, self._longest)
        self._failure, self._rests[self.place] = error, now + rest
        self._tries -= 1
        if self._tries < 1 or max(now, min(self._rests)) > self._deadline:
            raise error from None
        count = len(self._rests)
        self.place = min(range(count), key=lambda each: (self._rests[each], (each - self._first) % count))
        return max(0.0, self._rests[self.place] - now)


class Patience:
    """The patience of a caller who connects to a service that does not answer yet. timeout: seconds until it ends."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address = address
        self._retry = Retry(timeout, (_PAUSE, _PAUSE), passing=(PeerError,))
        self._closed = 0  # attempts

    @property
    def glance(self) -> float:
        """Seconds for the next attempt."""
        return min(max(self._retry.left, 0.1), 10.0)

    def bear(self, error: grpc.RpcError) -> float:
        """Seconds until another attempt, where it may help; raises as `rpc.service.connect` otherwise."""
        details = str(error.details())
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise explain(error, self._address) from None
        if "handshake" in details.lower() or "verification" in details.lower():
            hint = "both sides need certificates of one authority, the service's for the name in its address"
            raise PeerError(f"TLS failed: {details}", where=self._address, hint=hint) from None
        # A side that dislikes our certificate, or speaks TLS when we do not, closes without a word (TLS 1.3 lets
        # it). So does one that is just going down: hence five times.
        self._closed += "closed" in details.lower() or "reset" in details.lower()
        if self._closed == _REFUSED:
            hint = "does it expect TLS, a certificate of another authority than ours, or has it no room?"
            raise PeerError(f"the connection is refused: {details}", where=self._address, hint=hint) from None
        told = explain(error, self._address)
        if not isinstance(told, UnavailableError) or told.what != STOPPING:
            hint = "is the service running, and is its address right?"
            told = PeerError(f"nothing answers: {details}", where=self._address, hint=hint)
        return self._retry.failed(told)
