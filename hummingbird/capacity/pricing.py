"""The money that a service costs by its hosts' prices, at the rate at which it served."""

from __future__ import annotations

from typing import NamedTuple

from hummingbird.capacity.limit import loads, refills_per_request
from hummingbird.capacity.running import Run

HOURS_PER_MONTH = 730.0


class Cost(NamedTuple):
    """Money in an hour: for cores, for bytes sent, for bytes stored; and for 1,000 images."""

    cores: float
    sent: float
    stored: float
    per_thousand_images: float

    @property
    def hour(self) -> float:
        """Money in an hour."""
        return self.cores + self.sent + self.stored


def cost_of(run: Run) -> Cost:
    """The cost of the hosts of all replicas, which are rented all the time, and of the bytes that were sent."""
    service, replicas = run.service, run.system.replicas
    per_hour = 3600 * run.goodput / service.images  # requests
    cores = sum(host.cores * host.prices.core_hour for host in service.hosts.values()) * replicas
    stored = (
        sum(host.store / 1e9 * host.prices.gb_month for host in service.hosts.values()) / HOURS_PER_MONTH * replicas
    )
    sent, refills = 0.0, refills_per_request(service)
    for phase, times in ((service.request, 1.0), (service.refill, refills)):
        for (role, kind), bits in loads(service, phase).items() if phase else ():
            if kind == "up":
                sent += times * per_hour * bits / 8e9 * service.hosts[role].prices.gb_sent
    hour = cores + sent + stored
    images = per_hour * service.images
    return Cost(cores, sent, stored, 1000 * hour / images if images else 0.0)
