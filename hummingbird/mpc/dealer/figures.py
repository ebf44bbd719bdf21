"""The figures of a dealer and of a keeper for Prometheus, beside those of every service (rpc/metrics.py).

Prometheus asks for them; nothing counts them in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hummingbird.mpc.dealer.kept import Keeper
from hummingbird.mpc.dealer.server import DealerService


class DealerFigures(Collector):
    """The figures of a dealer for Prometheus, read at each scrape; they count from the start of this process.

    hummingbird_dealer_sessions_open          sessions that a party has joined, and that have not ended
    hummingbird_dealer_sessions_total         sessions that have ended
    hummingbird_dealer_busy_seconds_total     seconds of work on corrections
    """

    def __init__(self, dealer: DealerService) -> None:
        self._dealer = dealer

    def collect(self) -> Iterator[Metric]:
        """Yield the dealer's figures with their values at this moment; Prometheus' client library calls this."""
        dealer = self._dealer
        yield GaugeMetricFamily("hummingbird_dealer_sessions_open", "Sessions that have not ended.", dealer.open)
        yield CounterMetricFamily("hummingbird_dealer_sessions", "Sessions that have ended.", dealer.ended)
        name, text = "hummingbird_dealer_busy_seconds", "Seconds of work on corrections."
        yield CounterMetricFamily(name, text, dealer.busy_seconds)


class KeeperFigures(Collector):
    """The figures of a keeper for Prometheus, read at each scrape. wanted: how many slots the keeper keeps unused.

    hummingbird_keeper_slots_unused     slots that no party has used, in the lane that has fewest
    hummingbird_keeper_slots_wanted     `wanted`: below this number of unused slots the keeper deals another set
    hummingbird_keeper_sets_total       sets that were dealt; a set is a fixed number of slots, dealt at once
    hummingbird_keeper_set_seconds      seconds of work on the last set

    The slots are those of the keeper's folder. The other numbers count from the start of this process.
    """

    def __init__(self, keeper: Keeper, wanted: int) -> None:
        self._keeper, self._wanted = keeper, wanted

    def collect(self) -> Iterator[Metric]:
        """Yield the keeper's figures with their values at this moment; Prometheus' client library calls this."""
        keeper = self._keeper
        yield GaugeMetricFamily("hummingbird_keeper_slots_unused", "Slots that no party has used.", keeper.unused())
        yield GaugeMetricFamily("hummingbird_keeper_slots_wanted", "Slots to keep unused.", self._wanted)
        yield CounterMetricFamily("hummingbird_keeper_sets", "Sets that were dealt.", keeper.sets)
        yield GaugeMetricFamily("hummingbird_keeper_set_seconds", "Seconds of the last set.", keeper.seconds)
