"""Figures of a dealer and of a keeper for Prometheus, beside those of every service (rpc/telemetry.py): no names.

    hummingbird_dealer_sessions_open          sessions of which a party has joined, and that have not ended
    hummingbird_dealer_sessions_total         sessions that have ended
    hummingbird_dealer_busy_seconds_total     seconds of work on corrections
    hummingbird_keeper_slots_unused           slots that no party has used, of the lane that has fewest
    hummingbird_keeper_slots_wanted           below so many another set is dealt
    hummingbird_keeper_sets_total             sets that were dealt
    hummingbird_keeper_set_seconds            seconds that the last one took

All are of this process since its start, but for the slots, which are those of the folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hummingbird.mpc.dealer.keeper import Keeper
from hummingbird.mpc.dealer.server import DealerService


class Figures(Collector):
    """The figures of a dealer, asked at each scrape."""

    def __init__(self, dealer: DealerService) -> None:
        self._dealer = dealer

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        dealer = self._dealer
        yield GaugeMetricFamily("hummingbird_dealer_sessions_open", "Sessions that have not ended.", dealer.open)
        yield CounterMetricFamily("hummingbird_dealer_sessions", "Sessions that have ended.", dealer.ended)
        name, text = "hummingbird_dealer_busy_seconds", "Seconds of work on corrections."
        yield CounterMetricFamily(name, text, dealer.busy_seconds)


class KeeperFigures(Collector):
    """The figures of a keeper, asked at each scrape. wanted: the number of slots that it keeps unused."""

    def __init__(self, keeper: Keeper, wanted: int) -> None:
        self._keeper, self._wanted = keeper, wanted

    def collect(self) -> Iterator[Metric]:
        """The figures as they are now."""
        keeper = self._keeper
        yield GaugeMetricFamily("hummingbird_keeper_slots_unused", "Slots that no party has used.", keeper.unused())
        yield GaugeMetricFamily("hummingbird_keeper_slots_wanted", "Slots to keep unused.", self._wanted)
        yield CounterMetricFamily("hummingbird_keeper_sets", "Sets that were dealt.", keeper.sets)
        yield GaugeMetricFamily("hummingbird_keeper_set_seconds", "Seconds of the last set.", keeper.seconds)
