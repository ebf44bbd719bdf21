"""Load on a service: requests one after another, always waiting, or at random times; and their outcome."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor

from hummingbird.errors import HummingbirdError
from hummingbird.rpc.async_client import run
from hummingbird.serving.client import Client
from hummingbird.serving.groups import Groups
from hummingbird.serving.party_group import PartyGroup
from scripts.bench.serve_net import PAUSE

_LONE = 30  # lone requests, of which the median counts
_CLIENTS = 8
_DRAWN = 512  # different requests
_NAN = float("nan")


@dataclass(frozen=True)
class Load:
    """The outcome of requests: images offered and answered a second (offered: 0 if they always waited), latencies,
    images of the parties' batches, requests refused, answers that differ from the plain net's.
    """

    offered_per_second: float
    answered_per_second: float
    p50_milliseconds: float
    p95_milliseconds: float
    p99_milliseconds: float
    mean_batch_images: float
    requests: int
    refused: int
    changed_percent: float


class Asked(NamedTuple):
    """Images of a request, and the plain net's answers."""

    images: Tensor
    answers: Tensor


# A client does not say to which groups a request was sent; here it is noted.
_SENT: ContextVar[set[str]] = ContextVar("sent")
_enter = Groups.enter


async def _noted(self: Groups, images: int, without: Collection[PartyGroup] = ()) -> PartyGroup:
    group = await _enter(self, images, without)
    _SENT.get(set()).add(repr(group))
    return group


Groups.enter = _noted  # type: ignore[method-assign]


@dataclass
class _Seen:
    """Outcomes so far; results are compared with `changed` when the load is over."""

    latencies: list[float] = field(default_factory=list)
    results: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # logits, and the plain net's answers
    refused: list[Asked] = field(default_factory=list)
    groups: list[frozenset[str]] = field(default_factory=list)  # that each answered request was sent to

    def changed(self) -> int:
        """Images whose answers differ from the plain net's."""
        return sum(int((logits.argmax(1) != answers).sum()) for logits, answers in self.results)


class Served:
    """Clients of a service, or of several groups, with images (n, ...) to ask for, and the plain net's answers (n,)."""

    def __init__(self, addresses: list[str] | list[list[str]], images: Tensor, answers: Tensor) -> None:
        self._clients = [Client(addresses, timeout=120.0) for _ in range(_CLIENTS)]
        self._images, self._answers, self._random = images, answers, random.Random(0)
        self._turn = itertools.cycle(self._clients)
        self._asked = 0

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    @property
    def bytes_up(self) -> float:
        """Bytes of requests for an image, to all parties together."""
        return sum(client.sent_bytes for client in self._clients) / self._asked

    @property
    def bytes_down(self) -> float:
        """Bytes of answers for an image."""
        return sum(client.received_bytes for client in self._clients) / self._asked

    def drawn(self, size: int) -> Iterator[Asked]:
        """Requests of `size` images without end, drawn before the first is asked: no core of the service's does it."""
        numbers = [self._random.sample(range(len(self._images)), size) for _ in range(_DRAWN)]
        return itertools.cycle([Asked(self._images[chosen], self._answers[chosen]) for chosen in numbers])

    async def ask(self, asked: Asked, due: float, seen: _Seen) -> None:
        """One request, and its outcome."""
        sent = set[str]()
        _SENT.set(sent)
        try:
            logits = await next(self._turn).ask(asked.images)
        except HummingbirdError:
            seen.refused.append(asked)
            return
        seen.latencies.append(time.perf_counter() - due)
        seen.results.append((logits, asked.answers))
        seen.groups.append(frozenset(sent))
        self._asked += len(logits)


def lone_seconds(served: Served) -> float:
    """Seconds of a request of one image to a service that has nothing else to do: a median."""
    seen, drawn = _Seen(), served.drawn(1)
    for _ in range(_LONE + 2):
        run(served.ask(next(drawn), time.perf_counter(), seen))
        time.sleep(PAUSE)
    if not seen.latencies:
        raise HummingbirdError("the service answers no request")
    return statistics.median(seen.latencies[2:])


def saturate(served: Served, metrics: str, seconds: float, images: int, size: int) -> Load:
    """Keep requests of `size` images under way, for `images` images in all."""
    seen, drawn, before = _Seen(), served.drawn(size), batches(metrics)
    started = time.perf_counter()

    async def keep_asking() -> None:
        while time.perf_counter() < started + seconds:
            await served.ask(next(drawn), time.perf_counter(), seen)

    async def load() -> None:
        await asyncio.gather(*(keep_asking() for _ in range(max(2, images // size))))

    run(load())
    return _load(seen, size, 0.0, time.perf_counter() - started, before, batches(metrics))


def offer(
    served: Served,
    metrics: str,
    rate: float,
    seconds: float,
    size: int,
    going: Callable[[], bool] = lambda: False,
    apart: str = "",
) -> Load:
    """Requests of `size` images at random times, `rate` images a second, whether or not earlier ones are answered.

    For so many seconds, and for as long as `going` returns true. apart: a group; latencies are those of requests that
    were not sent there.
    """
    seen, drawn, before, arrivals = _Seen(), served.drawn(size), batches(metrics), random.Random(1)
    started = time.perf_counter()

    async def load() -> None:
        due, asking = started, list[asyncio.Task[None]]()
        while (due := due + arrivals.expovariate(rate / size)) < started + seconds or going():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asking.append(asyncio.ensure_future(served.ask(next(drawn), due, seen)))
        await asyncio.gather(*asking)

    run(load())
    return _load(seen, size, rate, time.perf_counter() - started, before, batches(metrics), apart)


def _load(
    seen: _Seen,
    size: int,
    rate: float,
    took: float,
    before: tuple[float, float],
    after: tuple[float, float],
    apart: str = "",
) -> Load:
    answered, refused = len(seen.latencies), len(seen.refused)
    counted = [one for one, sent in zip(seen.latencies, seen.groups, strict=True) if apart not in sent]
    cuts = statistics.quantiles(counted, n=100) if len(counted) > 1 else [_NAN] * 99
    count, images = (now - then for now, then in zip(after, before, strict=True))
    return Load(
        offered_per_second=rate,
        answered_per_second=answered * size / took,
        p50_milliseconds=1e3 * cuts[49],
        p95_milliseconds=1e3 * cuts[94],
        p99_milliseconds=1e3 * cuts[98],
        mean_batch_images=images / count if count else _NAN,
        requests=answered + refused,
        refused=refused,
        changed_percent=100 * seen.changed() / (answered * size) if answered else _NAN,
    )


def batches(metrics: str) -> tuple[float, float]:
    """Batches and images that party 0 has computed so far."""
    with urllib.request.urlopen(metrics, timeout=30) as page:
        text = page.read().decode()
    counted = Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            counted[sample.name] += sample.value  # type: ignore[assignment]
    return counted["hummingbird_serving_batches_total"], counted["hummingbird_serving_images_total"]
