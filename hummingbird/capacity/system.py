"""The rules of a service that both engines follow, the load on it, and the outcome of a load.

A request arrives (A), gets one of `slots` (S), takes its tokens (G) and is done (C). Its latency C - A consists of the
wait S - A, the blocked time G - S and the online phase C - G. Requests are served in order of arrival, even if one
needs more tokens than the next. A refill begins when one of `workers` is free and the store has room for all its
tokens, which it reserves. A request takes all its tokens at once, and their places become free then (at C, if `kept`).
With `tokens` = 0 each request makes its own tokens in its slot, one refill after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hummingbird.capacity.service import Service, check_count, check_number
from hummingbird.errors import ConfigError, InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SERVED, REJECTED, GAVE_UP = 0, 1, 2  # the fates of a request


@dataclass(frozen=True)
class System:
    """The rules of a service in a simulation: slots, workers, a store of tokens, a queue, replicas and batches.

    slots: how many requests are served at a time. workers: how many refills run at a time. tokens: for how many tokens
    the store has room; None: requests need no tokens; 0: tokens are made on demand. stored: tokens in the store at time
    0. per_refill: tokens that a refill makes. per_request: tokens that a request takes. kept: whether a token keeps its
    place in the store until its request is done; if not, the place becomes free when the request takes the token.
    queue: how many requests may wait for a slot; further requests are rejected; None: no limit. replicas: equal copies
    of the service, each with slots, workers and a store of its own. choices: a request joins the one with the fewest
    requests of so many random replicas; None: of all. slow: the first replica's online phases take so many times as
    long.
    batch: most requests that are served as one, in one slot, with one draw of the online phase. A batch begins when it
    is full or its first request has waited `hold` seconds. It holds the requests that wait by then, and takes `each`
    seconds more for every request but the first.
    """

    slots: int = 1
    workers: int = 1
    tokens: int | None = None
    stored: int = 0
    per_refill: int = 1
    per_request: int = 1
    kept: bool = False
    queue: int | None = None
    replicas: int = 1
    choices: int | None = None
    slow: float = 1.0
    batch: int = 1
    hold: float = 0.0
    each: float = 0.0

    def __post_init__(self) -> None:
        for name in ("slots", "workers", "per_refill", "per_request", "replicas", "batch"):
            check_count(getattr(self, name), name, 1, name.replace("_", " "))
        for name, value in (("tokens", self.tokens), ("stored", self.stored), ("queue", self.queue)):
            if value is not None:
                check_count(value, name, 0, f"{name} places" if name != "stored" else "tokens")
        if self.choices is not None:
            check_count(self.choices, "choices", 1, "replicas")
            if self.choices > self.replicas:
                what = f"a choice among {self.choices} of {self.replicas} replicas"
                raise ConfigError(what, where="choices", hint="at most the number of replicas")
        check_number(self.slow, "slow", 0, "times the seconds")
        check_number(self.hold, "hold", 0, "seconds")
        check_number(self.each, "each", 0, "seconds")
        if self.stored > (self.tokens or 0):
            what = f"{self.stored} tokens at time 0 in a store of {self.tokens or 0}"
            raise ConfigError(what, where="stored", hint="at most the store's places")

    @property
    def store(self) -> int:
        """Number of tokens for which the store has room; 0 if tokens are made on demand or not needed."""
        return self.tokens or 0

    @property
    def at_once(self) -> int:
        """Most refills that can run at a time: one for each worker, or fewer if the store has room for fewer."""
        return min(self.workers, self.store // self.per_refill)

    def check_tokens(self, need: Ints) -> None:
        """Raise ConfigError if a request could wait for ever, because the store stops refills before it has the
        request's tokens.

        need: tokens that each request takes. Why requests could wait: let the store have room for K tokens, and a
        refill make m. When N tokens have been taken, the store stops after floor((N + K - stored) / m) refills. So it
        may hold fewer tokens than K, by (N + K - stored) modulo m, which is at most m - g + (K - stored) modulo g,
        where g is the greatest common divisor of m and all requests' tokens.
        """
        if not self.store or not need.size:
            return
        m, most = self.per_refill, int(need.max()) * self.batch
        g = math.gcd(m, int(np.gcd.reduce(need, axis=None)))
        sure = self.store - (m - g) - (self.store - self.stored) % g
        if most > sure:
            what = f"{'a batch' if self.batch > 1 else 'a request'} of {most} tokens, but a store of {self.store}"
            hint = "a larger store, or smaller requests and refills"
            raise ConfigError(f"{what}, filled {m} at a time, is sure to hold only {sure}", where="tokens", hint=hint)

    def check_batches(self, load: Load, draws: Draws) -> None:
        """Raise ConfigError if requests are served in batches, and this load or these rules do not allow batches.

        Batches need arrivals at fixed times, one replica, and no bounded queue, patience or sessions.
        """
        turned_away = self.queue is not None or load.patience is not None
        if self.batch > 1 and (turned_away or self.replicas > 1 or load.due is None or draws.session is not None):
            what = "batches go with open arrivals at one queue only: no users, sessions, patience, full queue, replicas"
            raise ConfigError(what, where="batch", hint="serve requests one at a time")


def system_of(service: Service, *, full: bool = True, **rules: object) -> System:
    """Return the rules by which a simulation runs a service.

    full: whether the service's stores are full at first, else empty. rules: values of fields of `System`, such as
    `queue` or `replicas`, in place of those that follow from the service.
    """
    tokens = service.most_tokens if service.refill is not None else None
    fields = {
        "slots": service.slots,
        "workers": service.workers,
        "tokens": tokens,
        "stored": (tokens or 0) if full else 0,
        "per_refill": service.refill_tokens,
        "per_request": service.request_tokens,
        "batch": service.batch,
        "hold": service.hold,
        "each": service.each,
    }
    return System(**(fields | rules))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Load:
    """The requests of several runs of a simulation: arrays (runs, requests), or of shapes that broadcast to it.

    due: arrival times in seconds, ascending; None: the requests come from users, who ask, wait until their request is
    done, rejected or given up, think, and ask again. think: the users' thinking times in seconds, (runs, users +
    requests): first one for each user before the user's first request, then one after each request, in order of
    arrival. users: number of users. size: how many requests of the service one arrival brings; they are served one
    after another in one slot. patience: seconds after which a request leaves if it has not begun its online phase (with
    tokens on demand: its first refill).
    first: whether each request begins a session; None: all do. With users, it tells only whether there are sessions at
    all, which None and any true entry mean: then each request of a user begins a session, until one of this user's has
    been served.
    """

    due: Floats | None = None
    think: Floats | None = None
    users: int = 0
    size: Ints | None = None
    patience: Floats | None = None
    first: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if (self.due is None) == (self.think is None):
            raise InputError("arrivals need times, or users who think, and not both", where="due")
        times = self.due if self.due is not None else self.think
        assert times is not None
        if times.ndim != 2 or not np.isfinite(times).all() or (times < 0).any():
            raise InputError("times are not finite and at least 0, as (runs, requests)", where="due")
        if self.due is not None and (np.diff(times) < 0).any():
            raise InputError("arrivals are out of order", where="due", hint="sort them by time")
        if self.think is not None and not 0 < self.users <= times.shape[1]:
            raise InputError(f"{self.users} users, but {times.shape[1]} times to think", where="users")
        if self.size is not None and (self.size < 1).any():
            raise InputError("a request of no image", where="size", hint="sizes from 1")
        if self.patience is not None and not (self.patience >= 0).all():
            raise InputError("a patience below 0 seconds", where="patience")

    @property
    def shape(self) -> tuple[int, int]:
        """The number of runs, and the number of requests in each."""
        if self.due is not None:
            return self.due.shape[0], self.due.shape[1]
        assert self.think is not None
        return self.think.shape[0], self.think.shape[1] - self.users

    def sizes(self) -> Ints:
        """Return how many requests of the service each arrival brings, int64 (runs, requests)."""
        return np.broadcast_to(np.asarray(1 if self.size is None else self.size, dtype=np.int64), self.shape)


def transits(service: Service, load: Load) -> Floats:
    """Compute the seconds of each arrival's transit, its way to the service and back: float64 (runs, requests).

    All requests of the service that one arrival brings are sent together.
    """
    found, places = np.unique(load.sizes(), return_inverse=True)
    return np.array([service.transit_seconds(int(size)) for size in found])[places].reshape(load.shape)


@dataclass(frozen=True)
class Draws:
    """Random numbers for a simulation: for every run of a phase its seconds, or a factor for its core-seconds.

    The recurrence engine takes seconds, the event engine takes factors. request: of the online phases, (runs,
    requests), in order of arrival; a batch uses the number of its first request. refill: of the refills, (runs *
    replicas, refills), in order of their start; after the last number the first is used again; None: no refills.
    session: of the session phases, (runs, requests); None: no request begins a session. A dimension of size 1 stands
    for equal numbers along it. picks: the replicas among which a request chooses, int64 (runs, requests, choices);
    None: all.
    """

    request: Floats
    refill: Floats | None = None
    session: Floats | None = None
    picks: Ints | None = None

    def __post_init__(self) -> None:
        for name in ("request", "refill", "session"):
            values = getattr(self, name)
            if values is not None and not (np.isfinite(values).all() and (np.asarray(values) >= 0).all()):
                raise InputError("numbers that are not finite and at least 0", where=name)


@dataclass(frozen=True)
class LoadOutcome:
    """The times and fates of the requests of a load: arrays (runs, requests), in order of arrival; times are in
    seconds.

    A time is NaN if its event did not happen. arrived: when the request arrived. began: when it got a slot. went: when
    it had all tokens. left: when it was done, was rejected or gave up. fate: SERVED, REJECTED or GAVE_UP. tokens:
    number of tokens that the request took. refilled: the times at which refills ended, (runs * replicas, refills),
    ascending; inf fills the rest of a row.
    """

    arrived: Floats
    began: Floats
    went: Floats
    left: Floats
    fate: NDArray[np.int8]
    tokens: Ints
    refilled: Floats

    @property
    def served(self) -> NDArray[np.bool_]:
        """Whether each request was served."""
        return self.fate == SERVED

    @property
    def latency(self) -> Floats:
        """Seconds from arrival to the end of each served request, NaN for the others."""
        return np.where(self.served, self.left - self.arrived, np.nan)
