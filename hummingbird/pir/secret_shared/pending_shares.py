"""Deposits of clients at one server: shares of rows that wait to be taken, shares of results that wait for clients.

A ticket, known to the client and to both servers, names a deposit. Its receipt is known to the client and to this
server only: who collects shows it, so that the other server cannot, nor another client. Everything is for one use, and
is dropped `keep` seconds after its last use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import NamedTuple

from torch import Tensor

from hummingbird.errors import HummingbirdError, InputError, PeerError

KEEP = 600.0  # seconds
LOOKUPS = 1 << 16  # whose shares may wait
_LOOK = 1.0  # seconds between looks at whether somebody still waits
_log = logging.getLogger(__name__)


class Shares(NamedTuple):
    """One server's additive shares in Z_2^64 of n lookups: factors int64 (n,), rows int64 (n, dim) of s * row.

    factors are shares of s = +1 or -1, or where they are weighted, of s * weight, scale 2^16.
    """

    factors: Tensor
    rows: Tensor
    weighted: bool = False


@dataclass
class _Entry:
    receipt: bytes
    used: float  # when it was used last
    shares: Shares | None  # until they are taken
    result: bytes | HummingbirdError | None = None  # packed, until it is collected


class Deposits:
    """The deposits at one server, in the order of their arrival. Methods may be called from any thread."""

    def __init__(self, keep: float = KEEP) -> None:
        self.keep = keep
        self._entries: dict[bytes, _Entry] = {}
        self._changed = threading.Condition()
        self._closed = False

    def add(self, ticket: bytes, receipt: bytes, shares: Shares) -> None:
        """InputError for a ticket that was used, and for too many deposits."""
        with self._changed:
            self._drop_old()
            waiting = sum(1 if entry.shares is None else len(entry.shares.factors) for entry in self._entries.values())
            if ticket in self._entries or waiting + len(shares.factors) > LOOKUPS:
                what = f"a ticket is for one use, and shares of {LOOKUPS} lookups may wait"
                raise InputError(what, hint="take what was deposited")
            self._entries[ticket] = _Entry(receipt, time.monotonic(), shares)
            self._changed.notify_all()

    def oldest(self, timeout: float) -> bytes | None:
        """The ticket of the oldest shares that wait to be taken; None if none come in time."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._drop_old()
                for ticket, entry in self._entries.items():
                    if entry.shares is not None:
                        return ticket
                if not self._wait(deadline):
                    return None

    def take(self, ticket: bytes, timeout: float) -> Shares | None:
        """The shares under this ticket, once; None if none come in time."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                entry = self._entries.get(ticket)
                if entry is not None and entry.shares is not None:
                    shares, entry.shares, entry.used = entry.shares, None, time.monotonic()
                    return shares
                if not self._wait(deadline):
                    return None

    def publish(self, ticket: bytes, result: bytes | HummingbirdError) -> None:
        """Keep a result, or why there is none, for its client; a ticket that was not used is used up."""
        with self._changed:
            entry = self._entries.setdefault(ticket, _Entry(b"", 0.0, None))
            entry.shares, entry.result, entry.used = None, result if entry.receipt else None, time.monotonic()
            self._changed.notify_all()

    def collect(
        self, ticket: bytes, receipt: bytes, timeout: float, wanted: Callable[[], bool] = lambda: True
    ) -> bytes | None:
        """The result under this ticket, once; None if there is none in time, or as soon as it is not wanted any more.

        What was published in its place is raised, InputError, at once, where no deposit has this ticket and receipt,
        and PeerError when this server stops. wanted: asked every second, is the client there?
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._drop_old()
                entry = self._entries.get(ticket)
                if entry is None or not compare_digest(entry.receipt, receipt):
                    hint = f"a result is for one use, and is dropped after {self.keep:g} s"
                    raise InputError(f"there is no deposit {name(ticket)}", hint=hint)
                if entry.result is not None:
                    result = self._entries.pop(ticket).result
                    self._changed.notify_all()
                    break
                if self._closed:
                    raise PeerError(f"deposit {name(ticket)}: this server is stopping", hint="is it started again?")
                if not wanted() or not self._wait(deadline):
                    return None
        if isinstance(result, HummingbirdError):
            raise result
        return result

    def settle(self, timeout: float) -> None:
        """Wait until all results are collected, or dropped."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while any(entry.result is not None for entry in self._entries.values()) and self._wait(deadline):
                self._drop_old()

    def close(self) -> None:
        """End all waiting; results that are there can still be collected."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, deadline: float) -> bool:
        """Whether something may have changed before the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._changed.wait(min(left, self.keep, _LOOK))
        return True

    def _drop_old(self) -> None:
        limit = time.monotonic() - self.keep
        for ticket in [ticket for ticket, entry in self._entries.items() if entry.used < limit]:
            entry = self._entries.pop(ticket)
            if entry.shares is not None:
                _log.warning("deposit %s is dropped: nobody took it within %g s", name(ticket), self.keep)


def name(ticket: bytes) -> str:
    """A ticket as messages name it."""
    return ticket.hex()[:8]
