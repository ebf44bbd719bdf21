"""Arrival processes: the times of requests and their numbers of images, drawn for each run or read from a file."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hummingbird.capacity.service import check_count, check_number
from hummingbird.capacity.system import Floats, Ints, Load
from hummingbird.errors import ConfigError, InputError

# Seeded draws, which the engines use too ------------------------------------------------------------------------------
#
# Each purpose has a generator of its own, so that further draws for one purpose leave the others unchanged. These
# numbers are no secrets.


def generator(seed: int, purpose: str) -> torch.Generator:
    """Make the random generator for one use of random numbers in a simulation.

    seed: of the simulation. purpose: a word for the use, such as "gaps". Generators of different purposes are
    independent: more draws for one purpose do not change what is drawn for another.
    """
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def exponential(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Draw exponentially distributed numbers of mean 1, float64 in this shape.

    seed: of the simulation. purpose: a word for their use; other purposes draw independent numbers (`generator`).
    """
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=generator(seed, purpose)).numpy()


def uniform(shape: tuple[int, ...], seed: int, purpose: str) -> Floats:
    """Draw uniform numbers from 0 to below 1, float64 in this shape.

    seed: of the simulation. purpose: a word for their use; other purposes draw independent numbers (`generator`).
    """
    return torch.empty(shape, dtype=torch.float64).uniform_(generator=generator(seed, purpose)).numpy()


def gamma(shape: tuple[int, ...], form: float, seed: int, purpose: str) -> Floats:
    """Draw gamma-distributed numbers of mean 1 and variance 1 / form, float64 in this shape.

    form: the distribution's shape parameter, above 0. seed: of the simulation. purpose: a word for their use; other
    purposes draw independent numbers (`generator`).
    """
    forms = torch.full(shape, form, dtype=torch.float64)
    return (torch._standard_gamma(forms, generator=generator(seed, purpose)) / form).numpy()


def choices(count: int, shape: tuple[int, ...], seed: int, purpose: str) -> Ints:
    """Draw uniform integers from 0 to count - 1, int64 in this shape.

    seed: of the simulation. purpose: a word for their use; other purposes draw independent numbers (`generator`).
    """
    return torch.empty(shape, dtype=torch.int64).random_(0, count, generator=generator(seed, purpose)).numpy()


# Processes ------------------------------------------------------------------------------------------------------------
#
# The processes: Poisson; gamma-distributed gaps (a shape parameter below 1 is burstier than Poisson, as in vLLM's
# `bench serve`); constant gaps; a trace; a Poisson process whose rate changes every hour, by inversion of its integral
# (E. Cinlar, "Introduction to Stochastic Processes", 1975); users who ask, wait for their answer and think. A seed's
# gaps are drawn at rate 1 and scaled, so that at a higher rate every request arrives earlier (common random numbers).
# The same seed gives the same arrivals.

HOUR = 3600.0


@dataclass(frozen=True)
class Arrivals(ABC):
    """Base class of arrival processes: they say when requests arrive, how many images each has, and how long it waits.

    `load` draws the requests of a simulation. images: number of images of a request; or a dict {number: weight}, from
    which the number is drawn for each request. patience: how many seconds a request waits for its online phase, or for
    its first refill if tokens are made on demand; if that has not begun by then, the request leaves.
    session: mean number of requests in a client's session, of which the first begins the session; inf: no request
    begins one, as every client has its session already. For `Users`, a finite number means only that there are
    sessions: each request of a user begins one, until one of this user's requests has been served.
    """

    images: int | Mapping[int, float] = field(default=1, kw_only=True)
    patience: float = field(default=math.inf, kw_only=True)
    session: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        for number, weight in self._weights.items():
            check_count(number, "images", 1, "images of a request")
            check_number(weight, f"images: weight of {number}", 0, "requests")
        if not sum(self._weights.values()):
            raise ConfigError("all sizes have weight 0", where="images", hint="{1: 3, 8: 1}: one in four brings 8")
        if self.patience != math.inf:
            check_number(self.patience, "patience", 0, "seconds", above=True)
        if self.session != math.inf:
            check_number(self.session, "session", 1, "requests")

    @property
    def _weights(self) -> Mapping[int, float]:
        return self.images if isinstance(self.images, Mapping) else {self.images: 1.0}

    @property
    def mean_images(self) -> float:
        """Mean number of images of a request."""
        return sum(number * weight for number, weight in self._weights.items()) / sum(self._weights.values())

    def load(self, runs: int, requests: int, seed: int, *, per_request: int = 1) -> Load:
        """Draw the requests of `runs` independent simulated runs, `requests` arrivals in each; return them as a `Load`.

        seed: of the random numbers. per_request: how many images the service takes in one request. An arrival with more
        images counts as several requests of the service, which are served one after another.
        """
        check_count(runs, "runs", 1, "runs")
        check_count(requests, "requests", 1, "requests")
        shape = (runs, requests)
        return Load(
            size=-(-self._drawn_images(shape, seed) // per_request),
            patience=None if self.patience == math.inf else np.full(shape, self.patience),
            first=uniform(shape, seed, "session") < 1 / self.session,
            **self._times(shape, seed),
        )

    def _drawn_images(self, shape: tuple[int, int], seed: int) -> Ints:
        numbers, ends = np.array(list(self._weights), np.int64), np.cumsum(list(self._weights.values()))
        drawn = np.searchsorted(ends, uniform(shape, seed, "images") * ends[-1], side="right")
        return numbers[drawn.clip(max=len(ends) - 1)]

    @abstractmethod
    def _times(self, shape: tuple[int, int], seed: int) -> dict[str, Any]:
        """Draw the times at which requests arrive or, for `Users`, the seconds that users think between requests.

        shape: (runs, requests). seed: of the random numbers. Returns keyword arguments of `Load`: {"due": times}, or
        {"think": seconds, "users": number of users}.
        """

    steady: ClassVar[bool] = True  # whether the process is stationary, so that there may be a steady state

    @abstractmethod
    def per_second(self) -> float:
        """Return the mean number of requests per second; for `Users`, the number if every answer came at once."""


@dataclass(frozen=True)
class Gaps(Arrivals):
    """Arrivals at `rate` requests per second on average; the times between them are independent random numbers, or
    constant.

    burstiness: the shape parameter of the gamma distribution of the times between arrivals. 1: a Poisson process, as
    independent clients make; below 1: bursts; inf: equal times.

    >>> bursts = capacity.Gaps(rate=4.0, burstiness=0.25)
    >>> bursts.per_second()
    4.0
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.rate, "rate", 0, "requests per second", above=True)
        if self.burstiness != math.inf:
            check_number(self.burstiness, "burstiness", 0, "form", above=True)

    def per_second(self) -> float:
        return self.rate

    def _times(self, shape: tuple[int, int], seed: int) -> dict[str, Any]:
        if self.burstiness == math.inf:
            gaps = np.ones(shape)
        elif self.burstiness == 1:
            gaps = exponential(shape, seed, "gaps")
        else:
            gaps = gamma(shape, self.burstiness, seed, "gaps")
        return {"due": np.cumsum(gaps, axis=1) / self.rate}


@dataclass(frozen=True)
class Hourly(Arrivals):
    """Arrivals as a Poisson process whose rate changes every hour: rates[h] is the number of requests per second in
    hour h.

    After the hour of the last rate, the first rate follows again.

    >>> capacity.Hourly((1.0, 5.0)).per_second()  # an hour of 1 a second, an hour of 5, and again
    3.0
    """

    rates: tuple[float, ...]
    steady: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for hour, rate in enumerate(self.rates):
            check_number(rate, f"rates[{hour}]", 0, "requests per second")
        if not sum(self.rates):
            raise ConfigError("no requests in any hour", where="rates", hint="a rate above 0 for one hour at least")

    def per_second(self) -> float:
        return sum(self.rates) / len(self.rates)

    def _times(self, shape: tuple[int, int], seed: int) -> dict[str, Any]:
        rates = np.array(self.rates)
        ends = np.cumsum(rates) * HOUR  # requests expected by the end of each hour
        rounds, expected = np.divmod(np.cumsum(exponential(shape, seed, "gaps"), axis=1), ends[-1])
        hour = np.searchsorted(ends, expected, side="right").clip(max=int(np.flatnonzero(rates)[-1]))
        inside = (expected - (ends - rates * HOUR)[hour]) / rates[hour]
        return {"due": (rounds * len(rates) + hour) * HOUR + inside}


@dataclass(frozen=True)
class Trace(Arrivals):
    """Arrivals at given times, the same in every run; the function `trace` reads them from a file.

    due: arrival times in seconds, ascending. brought: number of images of each request; if empty, `images` says how
    many images a request has, as for other arrivals.

    >>> capacity.Trace(due=(0.0, 0.5, 2.0), brought=(1, 4, 1)).mean_images
    2.0
    """

    due: tuple[float, ...]
    brought: tuple[int, ...] = ()
    steady: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.due:
            raise ConfigError("no requests", where="trace", hint="a line for each: seconds, then its images")

    def per_second(self) -> float:
        return len(self.due) / self.due[-1] if self.due[-1] else math.inf

    @property
    def mean_images(self) -> float:
        return sum(self.brought) / len(self.brought) if self.brought else super().mean_images

    def _times(self, shape: tuple[int, int], seed: int) -> dict[str, Any]:
        if shape[1] > len(self.due):
            hint = f"at most {len(self.due)} requests, or a longer trace"
            raise ConfigError(f"{shape[1]} requests from a trace of {len(self.due)}", where="requests", hint=hint)
        return {"due": np.tile(np.array(self.due[: shape[1]], np.float64), (shape[0], 1))}

    def _drawn_images(self, shape: tuple[int, int], seed: int) -> Ints:
        if not self.brought:
            return super()._drawn_images(shape, seed)
        return np.tile(np.array(self.brought[: shape[1]], np.int64), (shape[0], 1))


@dataclass(frozen=True)
class Users(Arrivals):
    """Requests of `count` users, who each ask, wait for the answer, and think before they ask again.

    think: mean of the thinking times, in seconds; they are distributed exponentially.

    >>> capacity.Users(count=30, think=10.0).per_second()
    3.0
    """

    count: int
    think: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.count, "users", 1, "users")
        check_number(self.think, "think", 0, "seconds")

    def per_second(self) -> float:
        return self.count / self.think if self.think else math.inf

    def _times(self, shape: tuple[int, int], seed: int) -> dict[str, Any]:
        think = self.think * exponential((shape[0], self.count + shape[1]), seed, "think")
        return {"think": think, "users": self.count}


def poisson(rate: float, **other: Any) -> Gaps:
    """Make arrivals of independent clients: a Poisson process of `rate` requests per second.

    other: values of further fields of `Gaps`.

    >>> capacity.poisson(4.0).per_second()
    4.0
    """
    return Gaps(rate, **other)


def constant(rate: float, **other: Any) -> Gaps:
    """Make arrivals at equal gaps, `rate` requests per second. other: values of further fields of `Gaps`.

    >>> capacity.constant(4.0).burstiness
    inf
    """
    return Gaps(rate, math.inf, **other)


def trace(path: str | PathLike[str], **other: Any) -> Trace:
    """Read arrivals from a file: a line for each request has its time in seconds, and optionally its number of images.

    A # begins a comment. other: values of further fields of `Trace`. Raises InputError, with the line number, for a
    line of another form, for requests out of order, and for a file without requests.

    >>> from pathlib import Path
    >>> lines = Path("requests.txt").write_text("0.0 1\\n0.5 4  # four images\\n2.0 1\\n")
    >>> capacity.trace("requests.txt").due
    (0.0, 0.5, 2.0)
    """
    due, brought = list[float](), list[int]()
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            due.append(float(words[0]))
            brought.append(int(words[1]) if len(words) > 1 else 1)
            good = len(words) < 3 and 0 <= due[-1] < math.inf and brought[-1] > 0
        except ValueError:
            good = False
        if not good:
            hint = "seconds from 0, then a whole number of images from 1, or nothing"
            raise InputError(f"no request: {line[:40]!r}", where=f"{path}, line {number}", hint=hint)
        if due[-1] < due[max(0, len(due) - 2)]:
            what = f"a request at {due[-1]:g} s after one at {due[-2]:g} s"
            raise InputError(what, where=f"{path}, line {number}", hint="sort the lines by time")
    if not due:
        raise InputError("no requests", where=str(path), hint="a line for each: seconds, then its images")
    return Trace(tuple(due), tuple(brought), **other)
