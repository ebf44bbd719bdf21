"""When requests come, and how many images each brings: what is drawn for runs, or read from a file.

Poisson; gamma gaps of a burstiness (a form below 1 is burstier than Poisson, as in vLLM's `bench serve`); constant
gaps; a trace; a Poisson process whose rate changes by the hour, by inversion of its integral (E. Cinlar, "Introduction
to Stochastic Processes", 1975); users who ask, wait for their answer and think. The gaps of a seed are those of rate 1,
scaled: at a higher rate every request comes earlier, as common random numbers want it. Same seed, same arrivals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hummingbird.capacity.drawing import exponential, gamma, uniform
from hummingbird.capacity.service import check_count, check_number
from hummingbird.capacity.system import Ints, Load
from hummingbird.errors import ConfigError, InputError

HOUR = 3600.0


@dataclass(frozen=True)
class Arrivals(ABC):
    """A process of requests.

    images: of a request, a whole number or {number: weight}. patience: seconds after which a request leaves whose
    online phase has not begun. session: requests of a client on average, of which the first begins its session; inf:
    all clients have been here before. (Users begin one with their first request.)
    """

    images: int | Mapping[int, float] = field(default=1, kw_only=True)
    patience: float = field(default=math.inf, kw_only=True)
    session: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        for number, weight in self._weights.items():
            check_count(number, "images", 1, "images of a request")
            check_number(weight, f"images: weight of {number}", 0, "requests")
        if not sum(self._weights.values()):
            raise ConfigError("sizes of no weight at all", where="images", hint="{1: 3, 8: 1}: one in four brings 8")
        if self.patience != math.inf:
            check_number(self.patience, "patience", 0, "seconds", above=True)
        if self.session != math.inf:
            check_number(self.session, "session", 1, "requests")

    @property
    def _weights(self) -> Mapping[int, float]:
        return self.images if isinstance(self.images, Mapping) else {self.images: 1.0}

    @property
    def mean_images(self) -> float:
        """Images of a request on average."""
        return sum(number * weight for number, weight in self._weights.items()) / sum(self._weights.values())

    def load(self, runs: int, requests: int, seed: int, *, per_request: int = 1) -> Load:
        """The arrivals of `runs` independent runs. per_request: images that the service takes with one request; more
        images are as many requests of it as they need, one after another.
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
        """Fields of a Load that say when requests come."""

    steady: ClassVar[bool] = True  # the same at all times, so that there may be a steady state

    @abstractmethod
    def per_second(self) -> float:
        """Requests per second in the long run; of users, if they never waited."""


@dataclass(frozen=True)
class Gaps(Arrivals):
    """Requests at `rate` per second with independent gaps of a gamma distribution, or all alike.

    burstiness: its form; 1: Poisson, independent clients; below: bursts; inf: constant gaps.
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
    """A Poisson process at rates[h] requests per second in hour h, from the first again after the last."""

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
    """Requests at given times, the same in every run; from `trace`, with the images of each."""

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
    """Users who each ask, wait for the answer, and think for an exponential time of mean `think` seconds."""

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
    """Requests of independent clients, `rate` a second."""
    return Gaps(rate, **other)


def constant(rate: float, **other: Any) -> Gaps:
    """Requests at equal gaps, `rate` a second."""
    return Gaps(rate, math.inf, **other)


def trace(path: str | PathLike[str], **other: Any) -> Trace:
    """Read a trace: a line for each request, its seconds and then, if it likes, its images; # begins a comment.

    Raises InputError, with the line, for anything else, and for requests out of order or none.
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
