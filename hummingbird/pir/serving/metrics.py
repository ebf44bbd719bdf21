"""Counters of a server: queries, passes over the table, their sizes, and latencies. They reveal nothing about a query.

figures.py offers them to Prometheus.
"""

from __future__ import annotations

import threading
import time
from typing import Any

_STEPS = 4  # buckets in a factor of 2
_LEAST = 1e-4  # seconds, upper bound of the first bucket


class Metrics:
    """Counters of a server's keys, passes over the table, and latencies; any thread may use them.

    A latency is the time from a query's arrival to its answer. The counters reveal nothing about a query.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._busy = self._waited = 0.0
        self._sizes: dict[int, int] = {}  # passes by number of keys
        self._latency = [0] * (24 * _STEPS)  # queries by bucket: 0.1 ms to half an hour

    def add(self, latencies: list[float], counts: list[int], busy: float) -> None:
        """Count one more pass over the table.

        latencies: of each query in the pass, in seconds. counts: the number of keys of each query. busy: seconds of the
        pass.
        """
        with self._lock:
            self._busy += busy
            total = sum(counts)
            self._sizes[total] = self._sizes.get(total, 0) + 1
            for latency, count in zip(latencies, counts, strict=True):
                self._latency[_bucket(latency)] += count
                self._waited += latency * count

    def read(self) -> dict[str, Any]:
        """Return all counters by name, ready for JSON.

        `latency_ms` maps the upper bound of an interval of latencies, in milliseconds, to the number of keys in this
        interval.
        """
        with self._lock:
            queries, passes = sum(self._latency), sum(self._sizes.values())
            uptime = time.monotonic() - self._started
            return {
                "queries": queries,
                "passes": passes,
                "uptime_seconds": round(uptime, 3),
                "busy_seconds": round(self._busy, 3),
                "queries_per_second": round(queries / uptime, 1),
                "queries_per_busy_second": round(queries / self._busy, 1) if self._busy else 0.0,
                "mean_batch": round(queries / passes, 2) if passes else 0.0,
                "batches": {str(size): self._sizes[size] for size in sorted(self._sizes)},
                "latency_ms": {f"{_end(i):.3g}": n for i, n in enumerate(self._latency) if n},
                "p50_ms": self._quantile(0.5),
                "p99_ms": self._quantile(0.99),
            }

    def families(self) -> tuple[int, int, float, list[tuple[str, float]], float]:
        """Return five numbers or lists for Prometheus, of all time since the start.

        They are the number of keys answered; the number of passes over the table; the seconds spent on passes; a list
        of pairs (seconds as text, number of keys answered within this latency); and the sum of the latencies of all
        keys, in seconds.
        """
        with self._lock:
            below, buckets = 0, list[tuple[str, float]]()
            for bucket, count in enumerate(self._latency):
                below += count
                if bucket % _STEPS == 0:
                    buckets.append((f"{_end(bucket) / 1e3:g}", below))
            return below, sum(self._sizes.values()), self._busy, [*buckets, ("+Inf", below)], self._waited

    def _quantile(self, share: float) -> float:
        """Return the latency in milliseconds within which the fraction `share` of all keys was answered.

        share: 0.99 for the 99th percentile. Latencies are counted in a histogram, and the result is the upper bound of
        one of its intervals, so up to 19 % too large.
        """
        below, wanted = 0, share * sum(self._latency)
        for bucket, count in enumerate(self._latency):
            below += count
            if count and below >= wanted:
                return round(_end(bucket), 3)
        return 0.0

    def line(self) -> str:
        """Return one line of text with the numbers of keys and passes and the latencies; programs print it when they
        end.
        """
        now = self.read()
        return (
            f"{now['queries']:,} queries in {now['passes']:,} passes of {now['mean_batch']:g} on average, "
            f"{now['busy_seconds']:.1f} s at work, latency p50 {now['p50_ms']:g} ms, p99 {now['p99_ms']:g} ms"
        )


def _bucket(seconds: float) -> int:
    bucket, end = 0, _LEAST
    while end < seconds and bucket < 24 * _STEPS - 1:
        bucket, end = bucket + 1, end * 2 ** (1 / _STEPS)
    return bucket


def _end(bucket: int) -> float:
    return 1e3 * _LEAST * 2 ** (bucket / _STEPS)
