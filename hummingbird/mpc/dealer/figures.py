"""Figures of a dealer for Prometheus, beside those of every service (wire/metrics.py): no names, no values.

hummingbird_dealer_sessions_open          sessions of which a party has joined, and that have not ended
hummingbird_dealer_sessions_total         sessions that have ended
hummingbird_dealer_busy_seconds_total     seconds of work on corrections
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hummingbird.mpc.dealer.server import Dealer


class Figures(Collector):
    """The figures of a dealer, asked at each scrape."""

    def __init__(self, dealer: Dealer) -> None:
        self._dealer = dealer

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        dealer = self._dealer
        yield GaugeMetricFamily("hummingbird_dealer_sessions_open", "Sessions that have not ended.", dealer.open)
        yield CounterMetricFamily("hummingbird_dealer_sessions", "Sessions that have ended.", dealer.ended)
        name, text = "hummingbird_dealer_busy_seconds", "Seconds of work on corrections."
        yield CounterMetricFamily(name, text, dealer.busy_seconds)
