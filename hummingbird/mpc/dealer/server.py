"""The dealer's side: a seed for every party, and the corrections for each.

    Join(session, rank, parties, version, cipher) -> a fresh seed and a token, once per session and rank
    Correct(session, token, first, conversation, requests, wait)
        -> stream of frames: requests[i] at the party's turn first + i
    Stay(session, token)
    Leave(session, token)

The token tells which party it is. Requests and the answer to Join are JSON objects. Corrections are frames
(rpc/frame.py), each cut into messages of at most `rpc.CHUNK` bytes. The turns of a party are numbered, and the
number selects the randomness together with the party's rank. So no party can ask for what another party receives. The
dealer marks a number as used before it computes the correction, and never serves it again: two corrections with one
number and different parameters would be masked by the same shares. Numbers may come in any order: a party that works
ahead for two slices alternates between them.
mpc/correlations/request.py defines how the randomness is derived.
"""

from __future__ import annotations

import bisect
import contextlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import torch

from hummingbird import records
from hummingbird.channel.prefetch import Prefetch
from hummingbird.errors import DealerError
from hummingbird.mpc.correlations.request import ReceiverTurn, Request, corrections
from hummingbird.mpc.protocols.registry import from_json
from hummingbird.prg import CIPHERS, SEED_BYTES, new_seed
from hummingbird.records import field as record_field
from hummingbird.rpc import CHUNK
from hummingbird.rpc.admission import MAX_MESSAGE, Quota, caller_name
from hummingbird.rpc.frame import pack_pieces
from hummingbird.rpc.service import WORKERS, Method
from hummingbird.version import VERSION

SESSION_BYTES = 16
MAX_PARTIES = 64
MAX_SESSIONS = 1024
MAX_REQUESTS = 4096  # in one call
MAX_BUSY = WORKERS // 2  # sessions served at a time
IDLE_SECONDS = 3600.0
_AHEAD = 1  # requests whose corrections wait, besides one that is being made and one that is being sent
_REMEMBERED = 4096  # ended sessions whose ids are refused; an older id could join again, with new seeds
_MAX_INDEX = 1 << 62  # derive() takes 64-bit labels
_MAX_GAPS = 4096  # gaps in the numbers served to a party
_log = logging.getLogger(__name__)


class Used:
    """Set of the numbers of a party's turns that are used: sorted spans [start, end) that neither overlap nor touch."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []

    def mark(self, first: int, count: int) -> None:
        """Add the numbers first to first + count - 1 to this set of used turns.

        Raises DealerError, and adds none of them, if one is in the set already.
        """
        end, place = first + count, bisect.bisect(self.spans, (first, _MAX_INDEX + 1))
        before = self.spans[place - 1] if place else (-1, -1)
        after = self.spans[place] if place < len(self.spans) else (_MAX_INDEX + 1, _MAX_INDEX + 1)
        if before[1] > first or after[0] < end:
            raise DealerError(
                f"number {first if before[1] > first else after[0]} has been served already",
                hint="correlated randomness is for single use",
            )
        if len(self.spans) >= _MAX_GAPS:
            raise DealerError(f"more than {_MAX_GAPS} gaps in the numbers", hint="ask in order")
        start = place - 1 if before[1] == first else place
        stop = place + 1 if after[0] == end else place
        joined = [*self.spans[start:stop], (first, end)]
        self.spans[start:stop] = [(min(joined)[0], max(e for _, e in joined))]


@dataclass
class _Member:
    """The dealer's notes on a party that has joined a session.

    The fields are its rank, its seed, its token, the numbers of its turns that are used, and whether it is being served
    or has left.
    """

    rank: int
    seed: bytes = field(repr=False)
    token: bytes = field(default_factory=lambda: secrets.token_bytes(SEED_BYTES), repr=False)
    used_numbers: Used = field(default_factory=Used)
    busy: bool = False  # is being served, or waits for the others
    served: bool = False
    left: bool = False


@dataclass
class _Session:
    parties: int
    owner: str | None  # the name of the party that began it
    members: dict[int, _Member] = field(default_factory=dict)
    seconds: float = 0.0
    working: threading.Lock = field(default_factory=threading.Lock)  # one correction at a time uses all cores
    used: float = field(default_factory=time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether the dealer serves a party of this session now, or a party's call waits for other parties to join."""
        return any(member.busy for member in self.members.values())

    @property
    def served(self) -> bool:
        """Whether the dealer serves a party of this session now, and does not just let it wait for other parties."""
        return any(member.served for member in self.members.values())

    @property
    def over(self) -> bool:
        """Whether all parties have joined and left."""
        return len(self.members) == self.parties and all(member.left for member in self.members.values())


class DealerService:
    """All sessions of one dealer. Every method is thread-safe, and raises DealerError to refuse.

    parties: the number of parties that a session must have; None: any.
    idle_seconds: how long a session may be unused before it is dropped.
    device: where corrections are computed if the seeds and kernels allow it, as in sessions of parties on GPUs.
    Each session counts for the party that began it, by its name. If this name has as many sessions as its quota
    (`admission.Quota`) allows, `join` and `correct` raise OverloadError.
    """

    def __init__(
        self, *, parties: int | None = None, idle_seconds: float = IDLE_SECONDS, device: torch.device | str = "cpu"
    ) -> None:
        self._parties, self._idle, self._device = parties, idle_seconds, torch.device(device)
        self._sessions: dict[bytes, _Session] = {}
        self._past: dict[bytes, None] = {}  # ids of ended sessions, in the order of their end
        self._changed = threading.Condition()
        hint = f"sessions end when all parties have left, or after {idle_seconds:.0f} s without a request"
        self._open = Quota("sessions", "open", MAX_SESSIONS, MAX_SESSIONS, hint=hint)
        self._served = Quota("sessions", "served", MAX_BUSY, MAX_BUSY, hint="start more dealers")
        self.ended = 0  # sessions that have ended
        self._seconds = 0.0  # seconds of work on the corrections of ended sessions

    @property
    def open(self) -> int:
        """How many sessions have not ended."""
        return len(self._sessions)

    @property
    def busy_seconds(self) -> float:
        """Seconds that the dealer has worked on corrections, summed over all sessions since it started."""
        with self._changed:
            return self._seconds + sum(state.seconds for state in self._sessions.values())

    # Calls of the parties ---------------------------------------------------------------------------------------------

    def join(
        self,
        session: bytes,
        rank: int,
        parties: int,
        version: str,
        name: str | None = None,
        cipher: str = "aes-128-ctr",
    ) -> tuple[bytes, bytes]:
        """Let party `rank` join a session; return its seed and its token. Each rank of a session can join once.

        session: the session's id. version: the version of the party's release, which must be the dealer's.
        name: the name in the party's certificate, if there is one; it must be "party-RANK".
        cipher: the cipher that expands the seeds, one of `prg.CIPHERS`; all parties must name one of the same seed
            size.
        """
        if name is not None and name != f"party-{rank}":
            raise DealerError(
                f"the certificate of party {rank} is for {name!r}, expected 'party-{rank}'",
                hint="the common name of a party's certificate is party-RANK",
            )
        if version != VERSION:
            raise DealerError(
                f"party {rank} runs version {version}, the dealer runs version {VERSION}",
                hint="install the same release everywhere: another one may draw other randomness",
            )
        if self._parties not in (None, parties):
            raise DealerError(f"party {rank} says there are {parties} parties, this dealer is for {self._parties}")
        with self._changed:
            self._drop_idle()
            state = self._sessions.get(session)
            if state is None:
                state = self._begin(session, parties, name)
            if parties != state.parties:
                first = min(state.members)
                raise DealerError(f"party {rank} says there are {parties} parties, party {first} says {state.parties}")
            if any(len(member.seed) != CIPHERS[cipher] for member in state.members.values()):
                raise DealerError(
                    f"party {rank} expands its seed with {cipher}, another party does not",
                    hint="all parties run on devices of one type",
                )
            if rank in state.members:
                raise DealerError(
                    f"party {rank} of this session has joined already", hint="each run needs a session id of its own"
                )
            member = state.members[rank] = _Member(rank, new_seed(CIPHERS[cipher]))
            state.used = time.monotonic()
            _log.info("session %s: party %d joined, %d of %d", session.hex()[:8], rank, len(state.members), parties)
            self._changed.notify_all()
            return member.seed, member.token

    def correct(
        self,
        session: bytes,
        token: bytes,
        first: int,
        requests: list[Request[Any]],
        wait: float,
        active: Callable[[], bool] = lambda: True,
        conversation: int = 0,
    ) -> Generator[list[torch.Tensor], None, None]:
        """Yield the corrections of each request, a list of tensors, once all parties have joined the session.

        session, token: the session's id, and the token that `join` has returned to the party that asks.
        first: the turn number of the first request, that is, how many requests came before it whose corrections also
            went to this party; the others follow it.
        wait: seconds to wait for the other parties.
        active: called during the wait, returns False if the caller is gone.
        conversation: the number of the conversation whose masks the requests refer to; 0 for none.
        """
        state, member = self._reserve(session, token)
        try:
            seeds = self._seeds_of_all(state, member, first, len(requests), wait, active)
            for number, request in enumerate(requests, first):
                with state.working:
                    started = time.perf_counter()
                    turn = ReceiverTurn(member.rank, number, conversation)
                    found = corrections(request, turn, seeds, self._device)
                    state.seconds += time.perf_counter() - started
                yield found
        finally:
            with self._changed:
                served, member.busy, member.served, state.used = member.served, False, False, time.monotonic()
                if served and not state.served:
                    self._served.leave(state.owner)

    def stay(self, session: bytes, token: bytes) -> None:
        """Note that a session is still in use, as one of its parties says. session: its id. token: the party's."""
        with self._changed:
            self._find(session, token)[0].used = time.monotonic()

    def leave(self, session: bytes, token: bytes) -> None:
        """Note that a party needs no more corrections. The session ends once all parties have joined and left.

        session, token: the session's id, and the token that `join` has returned to the party.
        """
        with self._changed:
            state, member = self._find(session, token)
            member.left = True
            if state.over:
                self._end(session)

    def seconds(self, session: bytes) -> float:
        """Seconds that the dealer has worked on the corrections of the session with this id."""
        with self._changed:
            state = self._sessions.get(session)
            return state.seconds if state else 0.0

    # State; the first two take the lock, the callers of the others hold it --------------------------------------------

    def _reserve(self, session: bytes, token: bytes) -> tuple[_Session, _Member]:
        with self._changed:
            state, member = self._find(session, token)
            if member.busy:
                raise DealerError("another request of this party is still being served", hint="ask for one at a time")
            member.busy = True
            return state, member

    def _seeds_of_all(
        self, state: _Session, member: _Member, first: int, count: int, wait: float, active: Callable[[], bool]
    ) -> list[bytes]:
        """Wait until all parties of a session have joined, and return their seeds by rank.

        Then the session counts as one that is served, for the quota of its owner.
        state, member: the session, and its party whose call this is.
        first, count: the numbers `first` to first + count - 1 of this party's turns are marked as used.
        wait: seconds to wait for the other parties.
        active: called during the wait, returns False if the caller is gone.
        """
        deadline = time.monotonic() + wait
        with self._changed:
            while len(state.members) < state.parties:
                left = deadline - time.monotonic()
                if left <= 0 or not active():
                    missing = sorted(set(range(state.parties)) - set(state.members))
                    raise DealerError(
                        f"parties {missing} did not join within {wait:.0f} s", hint="are all parties running?"
                    )
                self._changed.wait(min(left, 1.0))
            if not state.served:
                self._served.enter(state.owner)
            member.served = True
            if count:
                member.used_numbers.mark(first, count)
            return [state.members[rank].seed for rank in range(state.parties)]

    def _begin(self, session: bytes, parties: int, owner: str | None) -> _Session:
        if session in self._past:
            raise DealerError("this session has ended", hint="each run needs a session id of its own")
        self._open.enter(owner)
        state = self._sessions[session] = _Session(parties, owner)
        return state

    def _find(self, session: bytes, token: bytes) -> tuple[_Session, _Member]:
        state = self._sessions.get(session)
        if state is None:
            raise DealerError(
                "no such session, or it has ended",
                hint=f"join first; a session is dropped after {self._idle:.0f} s without a request",
            )
        found = [member for member in state.members.values() if hmac.compare_digest(token, member.token)]
        if not found:
            raise DealerError(
                "only a party of a session can ask for its corrections or leave", hint="this is no party's token"
            )
        (member,) = found
        if member.left:
            raise DealerError(f"party {member.rank} has left this session")
        return state, member

    def _end(self, session: bytes) -> None:
        state = self._sessions.pop(session)
        self._open.leave(state.owner)
        self._past[session] = None
        while len(self._past) > _REMEMBERED:
            del self._past[next(iter(self._past))]
        _log.info("session %s: ended, %.3f s of work", session.hex()[:8], state.seconds)
        self.ended += 1
        self._seconds += state.seconds

    def _drop_idle(self) -> None:
        now = time.monotonic()
        for session, state in list(self._sessions.items()):
            if not state.busy and now - state.used > self._idle:
                self._end(session)


# The service ----------------------------------------------------------------------------------------------------------


def handlers(dealer: DealerService) -> dict[str, Method]:
    """Return the functions that answer the calls "Join", "Correct", "Stay" and "Leave" of a dealer, by name.

    `rpc.service.serve` takes them; each gets a message's bytes and gRPC's context, and calls a method of `dealer`.
    """

    def join(data: bytes, context: grpc.ServicerContext) -> bytes:
        asked = _read(data, JoinRequest)
        name = caller_name(context)
        seed, token = dealer.join(asked.session, asked.rank, asked.parties, asked.version[:64], name, asked.cipher)
        return records.write(JoinAnswer(seed, token)).encode()

    def correct(data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        asked = _read(data, CorrectRequest)
        session, token, requests = asked.session, asked.token, [*asked.requests]
        made = dealer.correct(session, token, asked.first, requests, asked.wait, context.is_active, asked.conversation)
        with contextlib.closing(made), Prefetch(made, _AHEAD) as ready:  # sends while the next ones are computed
            for found in ready:
                yield from pack_pieces(found, CHUNK)
        context.set_trailing_metadata((("dealer-seconds", f"{dealer.seconds(session):.6f}"),))

    def stay(data: bytes, context: grpc.ServicerContext) -> bytes:
        asked = _read(data, SessionRequest)
        dealer.stay(asked.session, asked.token)
        return b""

    def leave(data: bytes, context: grpc.ServicerContext) -> bytes:
        asked = _read(data, SessionRequest)
        dealer.leave(asked.session, asked.token)
        return b""

    return {"Join": join, "Correct": correct, "Stay": stay, "Leave": leave}


# Messages -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinRequest:
    """A party's first message to the dealer, by which it joins a session.

    session: the session's id. version: of the party's release. cipher: the cipher that expands the seeds, one of
        `prg.CIPHERS`.
    """

    session: bytes = record_field(records.hexadecimal(SESSION_BYTES))
    rank: int = record_field(records.whole(0, MAX_PARTIES - 1))
    parties: int = record_field(records.whole(1, MAX_PARTIES))
    version: str = record_field(records.text(256))
    cipher: str = record_field(records.one_of([*CIPHERS]))

    def __post_init__(self) -> None:
        if self.rank >= self.parties:
            raise DealerError(f"malformed request: there is no party {self.rank} among {self.parties}")


@dataclass(frozen=True)
class JoinAnswer:
    """The dealer's answer to a party that joins: its seed, and the token that its later messages must carry."""

    seed: bytes = record_field(records.hexadecimal(*CIPHERS.values()))
    token: bytes = record_field(records.hexadecimal(SEED_BYTES))


@dataclass(frozen=True)
class SessionRequest:
    """A message to the dealer from a party that has joined.

    session, token: the session's id, and the token that the dealer gave to this party.
    """

    session: bytes = record_field(records.hexadecimal(SESSION_BYTES))
    token: bytes = record_field(records.hexadecimal(SEED_BYTES))


@dataclass(frozen=True)
class CorrectRequest(SessionRequest):
    """A party's message that asks the dealer for the corrections of several requests, in order.

    session, token: the session's id, and the token that the dealer gave to the party.
    first: the turn number of the first request, that is, how many requests came before it whose corrections also went
        to this party; the others follow it.
    conversation: the number of the conversation that makes the requests; 0 for none.
    wait: seconds to wait for the other parties to join.
    """

    first: int = record_field(records.whole(0, _MAX_INDEX - 1))
    conversation: int = record_field(records.whole(0, _MAX_INDEX - 1))
    requests: tuple[Request[Any], ...] = record_field(
        records.many(records.through(records.anything(), from_json, lambda request: request.to_json()), MAX_REQUESTS)
    )
    wait: float = record_field(records.real(0, 86400))


M = TypeVar("M")


def _read(data: bytes, kind: type[M]) -> M:
    """Read a party's message as a record of class `kind`. Raises DealerError for anything else."""
    hint = "install the same release at the parties and the dealer"
    return records.read(data, kind, name="request", most=MAX_MESSAGE, hint=hint, error=DealerError)
