"""A session: a party's rank in a run, its channel to the other parties, and its dealer. launch.py makes it.

`agree` compares facts, such as a net's plan, that must be the same at all parties.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.channel import interleave, meter
from hummingbird.channel.channel import Channel
from hummingbird.errors import AgreementError, DealerError, EnvironmentProblem, InputError
from hummingbird.mpc.correlations.request import Material, Request, Shares
from hummingbird.mpc.session.lanes import Gathering, LaneLinks, LanePosition, part
from hummingbird.mpc.session.listener import Listener
from hummingbird.prg import SEED_BYTES, Stream

_LEAVE = 2.0  # seconds that a leaving party waits for its dealer


class Supply(Protocol):
    """Interface: the material of one slice of a net's run, in the order of its requests."""

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for the slice's next request, and their cost."""


class ConversationMaterial(Protocol):
    """Interface: the material of one conversation, step after step."""

    def next(self) -> Supply:
        """Return the supply of the next step."""

    def close(self) -> None:
        """Give up what is left."""


class CachesOfConversation(Protocol):
    """Interface: a conversation (conversation.py) as layers see it, with its rows that stay, by key."""

    caches: dict[int, Any]


class Dealer(Protocol):
    """Interface: a party's source of correlated randomness, such as a dealer's client, a store, or a local dealer."""

    @property
    def aim(self) -> str:
        """The aim of nets that are converted for this dealer without an aim (`convert_model`)."""

    @property
    def slice_shape(self) -> tuple[int, ...] | None:
        """Shape of a slice's input for which a store has material; None if material is dealt for any shape."""

    def correlation(self, request: Request[Any]) -> Material:
        """Return this party's shares for a request outside of a net's slices, and their cost."""

    def reserve(self, requests: Sequence[Request[Any]] | None) -> Supply:
        """Return the supply of a net's next slice, which gives out the slice's material.

        requests: those that the slice will make, in order; None if they are not known yet.
        """

    def converse(self, facts: dict[str, str], steps: Sequence[Sequence[Request[Any]]] | None) -> ConversationMaterial:
        """Begin a conversation, whose masks no other conversation has; return its material.

        facts: of the net, as `admit` takes them. steps: the requests of each step, in order; None if they are not
            known.
        """

    def bind(self, name: str, digest: bytes) -> None:
        """Record that a mask hides the secret with this digest; raise DealerError if it hides another secret already.

        It is for masks that outlive a run: one mask must not hide two secrets. name: of the secret, in the record.
        """

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise DealerError unless there is material for a net with these facts, on slices of these shapes.

        facts: what determines the net's requests, a text for each name.
        shapes: of the input of each slice.
        """

    def stay(self) -> None:
        """Heartbeat: tell the dealer that this session is still in use. Raises DealerError if the dealer is gone."""

    def close(self) -> None: ...


class ZeroSharing:
    """Source of this party's shares of zero: random numbers whose sum over all parties is 0. Nothing is sent.

    previous, following: the random streams that this party shares with the previous party and with the next one.
    A share is words of the stream `previous` minus words of the stream `following`. All parties must draw equal shapes
    in equal order.
    """

    def __init__(self, previous: Stream, following: Stream) -> None:
        self.previous, self.following = previous, following

    @classmethod
    def of_zeros(cls) -> ZeroSharing:
        """Make a source whose shares are all zero, for a session without secrets."""
        return cls(Stream(bytes(SEED_BYTES)), Stream(bytes(SEED_BYTES)))

    def share(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Draw and return this party's next share of zero, int64, of this shape."""
        return (self.previous.words(*shape) - self.following.words(*shape)).to(device)


@dataclass(repr=False)
class Session:
    """This party in a run: its rank, its channel to the other parties, and its dealer.

    A party with several GPUs has a session for each of its lanes: `rank` and `parties` count parties, and the channel
    connects the same lane of all parties.

    >>> session = hummingbird.init()
    >>> session.rank, session.parties, session.lane, session.lanes
    (0, 1, 0, 1)
    >>> images[session.part(len(images))].shape
    torch.Size([20, 4])
    >>> hummingbird.uninit()
    """

    rank: int
    parties: int
    channel: Channel
    dealer: Dealer
    device: torch.device = torch.device("cpu")  # where this party's shares are
    lane: int = 0
    lanes: int = 1
    listener: Listener = Listener()  # where other parties connect
    links: LaneLinks | None = None  # to the other lanes of this party; None: it has one lane
    near: int = 0  # lanes of this party on each of its hosts; 0: all of them
    # Returns why the first failed lane of the run failed; None if none has.
    failure: Callable[[], str | None] = field(default=lambda: None)
    fixed_keys: Iterator[int] = field(default_factory=itertools.count)  # one for each private weight
    zeros: ZeroSharing | None = None  # None: no party shares a secret in this session
    supply: Supply | None = None  # the source of `correlation`; None: the dealer
    requests: list[Request[Any]] = field(default_factory=list)  # the requests made to the supply, in order
    run: object = field(default_factory=object)  # identifies the run: `supplied_by` keeps it
    conversation: CachesOfConversation | None = None  # whose step this session runs; it has the rows that stay

    def correlation(self, request: Request[Shares]) -> Shares:
        """Return this party's shares for a request. All parties make the same requests in the same order.

        The meter counts the cost for the current layer. Raises DealerError if the shares do not arrive; if another lane
        has failed before the dealer did, the error names that failure too.
        """
        if self.supply is not None:
            self.requests.append(request)
        try:
            material = (self.dealer if self.supply is None else self.supply).correlation(request)
        except DealerError as error:
            why = self.failure()
            if why is None or error.what in why:  # no other lane has failed, or it failed for the same reason
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
        """Make a session like this one that takes its material from `supply`, and return it.

        The new session records the requests that it makes.
        """
        return replace(self, supply=supply, requests=[])

    @property
    def aim(self) -> str:
        """The aim of nets that are converted in this session without an aim (`convert_model`)."""
        return self.dealer.aim if self.parties > 1 else "latency"

    def agree(self, what: str, facts: dict[str, str]) -> None:
        """Compare facts with all parties: 1 round. Raises AgreementError, at every party, if they differ.

        what: the subject, for the error. facts: the values to compare, as texts, by names that the error shows.
        """
        agree(self.channel, what, facts)

    def __repr__(self) -> str:
        of_lanes = f", lane {self.lane} of {self.lanes}" if self.lanes > 1 else ""
        left = ", left" if self.channel.closed else ""
        return f"Session(party {self.rank} of {self.parties}{of_lanes}, on {self.device}, {self.dealer!r}{left})"

    @property
    def place(self) -> LanePosition:
        """The position of this process in the run: its party and its lane."""
        return LanePosition(self.rank, self.parties, self.lane, self.lanes, self.near)

    @property
    def gathering(self) -> Gathering:
        """The object by which this lane gathers results from, and waits for, the other lanes of its party."""
        return Gathering(self.place, self.failure, self.links)

    def part(self, count: int) -> slice:
        """Return the indices of the images that this lane computes, of `count` images, as a Python slice.

        Use it as in `images[session.part(len(images))]`. Parts are in the order of lanes. If they differ in size, the
        first ones have one image more; if there are fewer images than lanes, some are empty.
        """
        return part(self.place, count)

    def gather(self, rows: Tensor) -> Tensor | None:
        """Gather the rows of all lanes of this party at lane 0, in the order of lanes; other lanes get None.

        rows: (N, ...), this lane's rows; a lane without images passes a tensor without elements.
        Every lane of the party calls this, and waits for the slowest one. Nothing leaves the party. Raises InputError
        for rows that do not fit together, and PeerError if a lane is lost.
        """
        return self.gathering.rows(rows)

    def gather_meter(self, opened: meter.Meter) -> meter.Meter | None:
        """Merge the meters of all lanes of this party: lane 0 gets the merged meter, other lanes get None.

        opened: this lane's meter.
        Counts are sums over the lanes, seconds are those of the slowest lane. Every lane must call this, and waits for
        the slowest one.
        """
        return self.gathering.meter(opened)

    def close(self) -> None:
        """Leave the dealer, which takes 2 seconds at most, and close the channel to the other parties."""
        self.links = None  # with the last reference lane 0's store ends, and other lanes stop waiting
        # In a thread: gRPC waits without limit for a call that a signal (Ctrl-C, SIGTERM) has interrupted by an
        # exception.
        leaving = threading.Thread(target=self.dealer.close, daemon=True)
        try:
            leaving.start()
            leaving.join(_LEAVE)
        except RuntimeError:  # Python 3.12 starts no thread at the interpreter's exit; no call runs then
            self.dealer.close()
        self.channel.close()


# The current session, for functions without a session argument: those that users call, and CrypTen's. All other code
# takes the session as an argument.


def begin(session: Session | None) -> None:
    """Make this session the process's current one, which `current` returns. With None, it has none any more."""
    interleave.OUTSIDE.session = session


@contextlib.contextmanager
def entered(session: Session) -> Iterator[None]:
    """Make a context in which `current` returns this session.

    Other computations that run interleaved in this process are not affected (channel/interleave.py).
    """
    here = interleave.computation()
    before, here.session = here.session, session
    try:
        yield
    finally:
        here.session = before


def current() -> Session:
    """Return the session that this computation has entered, or else the one that `init` made.

    Raises EnvironmentProblem if there is none.
    """
    session: Session | None = interleave.computation().entered()
    if session is None:
        raise EnvironmentProblem("no session", hint="call hummingbird.init() first")
    return session


def is_initialized() -> bool:
    """Whether there is a current session."""
    return interleave.computation().entered() is not None


# Facts that must be the same at all parties: they compare them before they compute ------------------------------------

_SAME = "all parties must run the same program with the same arguments and files"


def agree(channel: Channel, what: str, facts: dict[str, str], hint: str = _SAME) -> None:
    """Compare facts with all parties, in 1 round. Raises AgreementError at every party if they differ.

    what: the name of the operation in errors.
    facts: a text for each name; all parties must have equal ones.
    hint: the error's advice.
    """
    for peer, text in sorted(channel.exchange_text(text_of(facts)).items()):
        theirs = _facts(text)
        differences = []
        for key in sorted(set(facts) | set(theirs)):
            mine, other = str(facts.get(key)), str(theirs.get(key))
            if mine != other:
                start = len(os.path.commonprefix([mine, other]))
                mine, other = _around(mine, start), _around(other, start)
                differences.append(f"{key}: {channel.name} has {mine}, {channel.names[peer]} has {other}")
        if differences:
            raise AgreementError(
                f"the parties disagree on {'; on '.join(differences)}",
                where=what,
                hint=hint,
            )


def text_of(facts: dict[str, str]) -> str:
    """Return facts, a text for each name, as the JSON text that parties exchange."""
    return json.dumps(facts)


def _around(text: str, place: int) -> str:
    """Return the part of a long text that lies around the character with index `place`, for an error message."""
    first, last = max(0, place - 60), place + 40
    return ("..." if first else "") + text[first:last] + ("..." if last < len(text) else "")


def _facts(text: str) -> dict[str, str]:
    """Read the facts in another party's message: return a text for each name.

    A malformed message gives one fact that no party has, so that the comparison of facts fails.
    """
    try:
        facts: dict[str, str] = records.read(text, records.mapping(records.anything(), 1 << 10), name="facts")
    except InputError:
        return {"program": "another one"}
    return facts
