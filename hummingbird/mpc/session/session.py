"""A party's place in a run: its rank, the channel to the others, and the dealer (launch.py makes one)."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import DealerError, EnvironmentProblem
from hummingbird.mpc.correlations.material import Material
from hummingbird.mpc.correlations.request import Request, Shares
from hummingbird.mpc.session import gathering
from hummingbird.mpc.session.agreement import agree
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.mpc.session.listener import Listener
from hummingbird.prg import SEED_BYTES, Stream

_LEAVE = 2.0  # seconds for the dealer to hear that this party leaves


class Supply(Protocol):
    """The material of one slice of a net's run, in order."""

    def correlation(self, request: Request[Any]) -> Material:
        """This party's shares, and what they have cost."""


class Dealer(Protocol):
    """A dealer as a party sees it: a client of one, a store, or the stand-in for a single party."""

    @property
    def slice_shape(self) -> tuple[int, ...] | None:
        """Shape of the slices that there is material for; None where it is made as needed."""

    def correlation(self, request: Request[Any]) -> Material:
        """This party's shares and what they have cost, outside of a net's slices."""

    def reserve(self, requests: Sequence[Request[Any]] | None) -> Supply:
        """The material of a net's next slice; None: its requests are not known yet."""

    def bind(self, name: str, digest: bytes) -> None:
        """Use this material with what has the digest only: a mask that outlives a run must not meet two secrets."""

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """DealerError unless there is material for a net with these facts, on slices of these shapes."""

    def stay(self) -> None:
        """Say that this party goes on, where a silent one would be forgotten; DealerError if the dealer has gone."""

    def close(self) -> None: ...


class ZeroSharing:
    """This party's shares of zero: the words of a stream that it shares with the previous party, less those of one that
    it shares with the next. All parties ask for the same shapes in the same order, and nothing is sent.
    """

    def __init__(self, previous: Stream, following: Stream) -> None:
        self.previous, self.following = previous, following

    @classmethod
    def of_zeros(cls) -> ZeroSharing:
        """Shares that are zeros, for a session in which nothing has to be hidden."""
        return cls(Stream(bytes(SEED_BYTES)), Stream(bytes(SEED_BYTES)))

    def share(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """This party's share, int64."""
        return (self.previous.words(*shape) - self.following.words(*shape)).to(device)


@dataclass(repr=False)
class Session:
    """This party's place in a run: its rank, the channel to the others, and the dealer.

    A party with several GPUs has a session for each, a lane: `rank` and `parties` count parties, and the channel leads
    to the same lane of the others.
    """

    rank: int
    parties: int
    channel: Channel
    dealer: Dealer
    device: torch.device = torch.device("cpu")  # where this party's shares are
    lane: int = 0
    lanes: int = 1
    listener: Listener = Listener()  # where other parties connect
    # Asks for the reason of the first lane that has failed.
    failure: Callable[[], str | None] = field(default=lambda: None)
    fixed_keys: Iterator[int] = field(default_factory=itertools.count)  # one for each private weight
    zeros: ZeroSharing | None = None  # None: no party shares a secret in this session
    supply: Supply | None = None  # what `correlation` draws on; None: the dealer
    requests: list[Request[Any]] = field(default_factory=list)  # that were made of the supply, in order
    run: object = field(default_factory=object)  # the same object in a session and in what `supplied_by` makes of it

    def correlation(self, request: Request[Shares]) -> Shares:
        """This party's shares of one piece of correlated randomness, by name; the same requests in the same order at
        all parties. Their cost is counted for the layer that is open.

        DealerError where they do not come; of a dealer that another lane's failure has taken with it, names that too.
        """
        if self.supply is not None:
            self.requests.append(request)
        try:
            material = (self.dealer if self.supply is None else self.supply).correlation(request)
        except DealerError as error:
            why = self.failure()
            if why is None or error.what in why:  # nobody else has failed, or all for the same reason
                raise
            raise DealerError(f"{error.what}, after a failure: {why}", where=error.where, hint=error.hint) from None
        meter.count(
            offline_bits=material.offline_bits,
            received_bits=material.received_bits,
            offline_seconds=material.waiting_seconds,
            expanding_seconds=material.expanding_seconds,
            dealer_seconds=material.dealer_seconds,
        )
        material.take()
        return request.shares(**{name: share.to(self.device) for name, share in material.shares.items()})

    def supplied_by(self, supply: Supply) -> Session:
        """The same session, but its correlations come from this supply, and it notes the requests for them."""
        return replace(self, supply=supply, requests=[])

    @property
    def streamed(self) -> bool:
        """Whether material comes from a dealer during the run."""
        return self.parties > 1 and self.dealer.slice_shape is None

    def agree(self, what: str, facts: dict[str, str]) -> None:
        """Compare facts with all parties (1 round); AgreementError, at every party, names both sides."""
        agree(self.channel, what, facts)

    def __repr__(self) -> str:
        of_lanes = f", lane {self.lane} of {self.lanes}" if self.lanes > 1 else ""
        left = ", left" if self.channel.closed else ""
        return f"Session(party {self.rank} of {self.parties}{of_lanes}, on {self.device}, {self.dealer!r}{left})"

    @property
    def place(self) -> LanePosition:
        """This process in the run."""
        return LanePosition(self.rank, self.parties, self.lane, self.lanes)

    @property
    def gathering(self) -> gathering.Gathering:
        """The lanes of this party."""
        return gathering.Gathering(self.place, self.failure)

    def part(self, count: int) -> slice:
        """This lane's images, of `count` of all lanes: `images[session.part(len(images))]`.

        Parts lie in the order of lanes, the first ones larger by one where they differ; some are empty where images are
        fewer than lanes.
        """
        return gathering.part(self.place, count)

    def gather(self, rows: Tensor) -> Tensor | None:
        """The rows of all lanes of this party at lane 0, in the order of lanes; None at its other lanes.

        rows: (N, ...) of this lane; a lane without images gives a tensor of no elements. Every lane of the party calls
        it, and waits for the slowest one. Nothing leaves the party. Raises InputError for rows that do not fit, and
        PeerError for a lane that is lost.
        """
        return self.gathering.rows(rows)

    def gather_meter(self, opened: meter.Meter) -> meter.Meter | None:
        """One meter of all lanes of this party at lane 0, None at its other lanes: counts are summed, seconds are the
        slowest lane's. As `gather`.
        """
        return self.gathering.meter(opened)

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


# The running session, for the public edge: functions that users call, and CrypTen's, which take no session. The code
# inside takes it as an argument.


def begin(session: Session | None) -> None:
    """Make this the session of the process; None ends it."""
    interleave.OUTSIDE.session = session


@contextlib.contextmanager
def entered(session: Session) -> Iterator[None]:
    """Make this the session that `current` gives in this block, in this computation (channel/interleave.py) alone."""
    here = interleave.computation()
    before, here.session = here.session, session
    try:
        yield
    finally:
        here.session = before


def current() -> Session:
    """The session that this computation has entered, or else that of `init`; EnvironmentProblem if there is none."""
    session: Session | None = interleave.computation().entered()
    if session is None:
        raise EnvironmentProblem("no session", hint="call hummingbird.init() first")
    return session


def is_initialized() -> bool:
    """Whether there is a session: `init` has been called."""
    return interleave.computation().entered() is not None
