"""A party's place in a run: its rank, the channel to the others, and the dealer (launch.py makes one)."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem
from hummingbird.mpc.agreement import agree
from hummingbird.mpc.correlations import Request
from hummingbird.wire import meter
from hummingbird.wire.channel import Channel

_LEAVE = 2.0  # seconds for the dealer to hear that this party leaves


class Supply(Protocol):
    """The material of one slice of a net's run, in order."""

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares."""


class Dealer(Protocol):
    """What a session asks of a dealer's client, which counts when it hands out (`mpc.dealer.ahead.Account`)."""

    seconds_expanding: float
    seconds_waiting: float
    dealer_seconds: float
    offline_bits: int
    slice_shape: tuple[int, ...] | None

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares, outside of a net's slices."""

    def reserve(self, requests: Sequence[Request] | None) -> Supply:
        """The material of a net's next slice; None: its requests are not known yet."""

    def bind(self, name: str, digest: bytes) -> None:
        """Use this material with what has the digest only: a mask that outlives a run must not meet two secrets."""

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """DealerError unless there is material for a net with these facts, on slices of these shapes."""

    def close(self) -> None: ...


# The supply of the slice that this computation is at, and what it has taken (two slices take turns).
_slice: contextvars.ContextVar[tuple[Supply, list[Request]] | None] = contextvars.ContextVar("slice", default=None)


@dataclass
class Session:
    """This party's place in a run: its rank, the channel to the others, and the dealer."""

    rank: int
    parties: int
    channel: Channel
    dealer: Dealer
    device: torch.device = torch.device("cpu")  # where this party's shares are
    fixed_keys: Iterator[int] = field(default_factory=itertools.count, repr=False)  # one for each private weight

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares of one piece of correlated randomness; the same requests in the same order at all
        parties.
        """
        dealer = self.dealer
        before = dealer.offline_bits, dealer.seconds_waiting, dealer.seconds_expanding, dealer.dealer_seconds
        slice_ = _slice.get()
        if slice_ is None:
            shares = dealer.take(request)
        else:
            slice_[1].append(request)
            shares = slice_[0].take(request)
        meter.count(
            offline_bits=dealer.offline_bits - before[0],
            offline_seconds=dealer.seconds_waiting - before[1],
            expanding_seconds=dealer.seconds_expanding - before[2],
            dealer_seconds=dealer.dealer_seconds - before[3],
        )
        return [share.to(self.device) for share in shares]

    @contextlib.contextmanager
    def supplied_by(self, supply: Supply) -> Iterator[list[Request]]:
        """Take from this supply in this block; what was taken is in the list."""
        taken: list[Request] = []
        token = _slice.set((supply, taken))
        try:
            yield taken
        finally:
            _slice.reset(token)

    def agree(self, what: str, facts: dict[str, str]) -> None:
        """Compare facts with all parties (1 round); AgreementError, at every party, names both sides."""
        agree(self.channel, what, facts)

    def close(self) -> None:
        """End this party's part, within seconds."""
        # gRPC waits without a limit for a call in which a signal (Ctrl-C, SIGTERM) has raised an exception.
        leaving = threading.Thread(target=self.dealer.close, daemon=True)
        try:
            leaving.start()
            leaving.join(_LEAVE)
        except RuntimeError:  # Python 3.12 starts no thread at the interpreter's end; no call is under way then
            self.dealer.close()
        self.channel.close()


_session: Session | None = None


def enter(session: Session | None) -> Session | None:
    """Make this the session that `current` gives, None for none; returns the one before."""
    global _session
    before, _session = _session, session
    return before


def current() -> Session:
    """The session made by `init`; EnvironmentProblem if there is none."""
    if _session is None:
        raise EnvironmentProblem("no session", hint="call hummingbird.init() first")
    return _session


def is_initialized() -> bool:
    """Whether `init` has been called."""
    return _session is not None
