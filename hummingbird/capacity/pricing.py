"""The money that a service costs by its hosts' prices, at the rate at which it served."""

from __future__ import annotations

from typing import NamedTuple

from hummingbird.capacity.result import Result

HOURS_PER_MONTH = 730.0


class HostCost(NamedTuple):
    """Money in an hour: for cores, for bytes sent, for bytes stored; and for 1,000 images."""

    cores: float
    sent: float
    stored: float
    per_thousand_images: float

    @property
    def hour(self) -> float:
        """Money in an hour."""
        return self.cores + self.sent + self.stored


def cost_of(run: Result) -> HostCost:
    """The cost of the hosts of all replicas, which are rented all the time, and of the bytes that were sent."""
    service, replicas = run.service, run.system.replicas
    per_hour = 3600 * run.goodput * float(run.load.sizes().mean())  # requests of the service
    cores = sum(host.cores * host.prices.core_hour for host in service.hosts.values()) * replicas
    stored = (
        sum(host.store / 1e9 * host.prices.gb_month for host in service.hosts.values()) / HOURS_PER_MONTH * replicas
    )
    sent = sum(
        per_hour * bits / 8e9 * service.hosts[role].prices.gb_sent
        for (role, kind), bits in run.asked.items()
        if kind == "up"
    )
    hour = cores + sent + stored
    images = 3600 * run.goodput * run.arrivals.mean_images
    return HostCost(cores, sent, stored, 1000 * hour / images if images else 0.0)
