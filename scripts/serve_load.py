"""Load on a service: requests one after another, always waiting, or at random times; and their outcome."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor

from hummingbird.errors import HummingbirdError
from hummingbird.serving.client import Client
from scripts.serve_net import PAUSE

_LONE = 30  # lone requests, of which the median counts
_THREADS = 256  # requests under way
_CLIENTS = 8
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


@dataclass
class _Seen:
    """Outcomes so far. `lock` guards the rest."""

    latencies: list[float] = field(default_factory=list)
    changed: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Served:
    """Clients of a service with images (n, ...) to ask for, and the plain net's answers (n,)."""

    def __init__(self, addresses: list[str], images: Tensor, answers: Tensor) -> None:
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

    def drawn(self, size: int) -> Tensor:
        """Numbers of the images of a request."""
        return torch.tensor(self._random.sample(range(len(self._images)), size))

    def ask(self, chosen: Tensor, due: float, seen: _Seen) -> None:
        """One request, and its outcome."""
        try:
            logits = next(self._turn)(self._images[chosen])
        except HummingbirdError:
            with seen.lock:
                seen.refused += 1
            return
        changed = int((logits.argmax(1) != self._answers[chosen]).sum())
        with seen.lock:
            self._asked += len(chosen)
            seen.latencies.append(time.perf_counter() - due)
            seen.changed += changed


def lone_seconds(served: Served) -> float:
    """Seconds of a request of one image to a service that has nothing else to do: a median."""
    seconds = []
    for _ in range(_LONE + 2):
        seen, chosen = _Seen(), served.drawn(1)
        served.ask(chosen, time.perf_counter(), seen)
        seconds += seen.latencies
        time.sleep(PAUSE)
    if not seconds:
        raise HummingbirdError("the service answers no request")
    return statistics.median(seconds[2:])


def saturate(served: Served, metrics: str, seconds: float, images: int, size: int) -> Load:
    """Requests of `size` images, for so many images in all, are always under way."""
    seen, before = _Seen(), _batches(metrics)
    started = time.perf_counter()

    def keep_asking() -> None:
        while time.perf_counter() < started + seconds:
            with seen.lock:
                chosen = served.drawn(size)
            served.ask(chosen, time.perf_counter(), seen)

    with ThreadPoolExecutor(max(2, images // size)) as pool:
        for _ in range(max(2, images // size)):
            pool.submit(keep_asking)
    return _load(seen, size, 0.0, time.perf_counter() - started, before, _batches(metrics))


def offer(served: Served, metrics: str, rate: float, seconds: float, size: int) -> Load:
    """Requests of `size` images at random times, `rate` images a second, whether or not earlier ones are answered."""
    seen, before, arrivals = _Seen(), _batches(metrics), random.Random(1)
    started = due = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        while (due := due + arrivals.expovariate(rate / size)) < started + seconds:
            chosen = served.drawn(size)
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(served.ask, chosen, due, seen)
    return _load(seen, size, rate, time.perf_counter() - started, before, _batches(metrics))


def _load(
    seen: _Seen, size: int, rate: float, took: float, before: tuple[float, float], after: tuple[float, float]
) -> Load:
    answered = len(seen.latencies)
    cuts = statistics.quantiles(seen.latencies, n=100) if answered > 1 else [_NAN] * 99
    batches, images = (now - then for now, then in zip(after, before, strict=True))
    return Load(
        offered_per_second=rate,
        answered_per_second=answered * size / took,
        p50_milliseconds=1e3 * cuts[49],
        p95_milliseconds=1e3 * cuts[94],
        p99_milliseconds=1e3 * cuts[98],
        mean_batch_images=images / batches if batches else _NAN,
        requests=answered + seen.refused,
        refused=seen.refused,
        changed_percent=100 * seen.changed / (answered * size) if answered else _NAN,
    )


def _batches(metrics: str) -> tuple[float, float]:
    """Batches and images that party 0 has computed so far."""
    with urllib.request.urlopen(metrics, timeout=30) as page:
        text = page.read().decode()
    counted = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    return counted["hummingbird_serving_batches_total"], counted["hummingbird_serving_images_total"]
