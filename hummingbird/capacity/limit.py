"""The largest rate of requests that a service can sustain, and its cause, in closed form.

There are three kinds of bounds, on means. Slots: c / T_on for c slots, or c / (T_on + refills) with tokens made on
demand. Refills: min(r, K / m) m / (n T_off) for r workers, m tokens a refill and n tokens a request. Every core and
link: its capacity over the demand of a request and its share of the refills. The least bound holds (a closed circuit of
a max-plus system; page `planner`, "Rate limit"). Clients are many, so that their own links are no bound.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import NamedTuple

from hummingbird.capacity.service import Compute, Phase, Send, Service

Resource = tuple[str, str]  # a host's role and "cores", "up" or "down"


class Limit(NamedTuple):
    """An upper bound on a service's rate.

    rate: requests per second. cause: what sets the bound, in words. resource: the core or link that sets it, as a
    host's role and "cores", "up" or "down"; None for bounds by slots and refills.
    """

    rate: float
    cause: str
    resource: Resource | None = None


def mean_seconds(service: Service, phase: Phase) -> float:
    """Compute the mean seconds of a phase while no other phase uses the same cores and links.

    The mean is over `Phase.factors`, by which the phase's core-seconds are multiplied.
    """
    return statistics.fmean(service.seconds(phase, factor) for factor in phase.factors or (1.0,))


def refills_per_request(service: Service) -> float:
    """Return the mean number of refills (runs that make tokens) for each request.

    If tokens are made on demand, the number of refills for a batch is rounded up to an integer.
    """
    if service.refill is None:
        return 0.0
    share = service.request_tokens / service.refill_tokens
    return share if service.most_tokens else math.ceil(service.batch * share) / service.batch


def loads(service: Service, phase: Phase) -> dict[Resource, float]:
    """Compute the mean core-seconds and bits that one run of a phase needs of every core and link.

    A key of the result is a host's role and "cores", "up" or "down". The mean is over the phase's measured factors.
    """
    factor = statistics.fmean(phase.factors or (1.0,))
    found: dict[Resource, float] = defaultdict(float)
    for step in phase.steps:
        work = step.work
        if isinstance(work, Compute):
            found[work.host, "cores"] += factor * work.core_seconds
        elif isinstance(work, Send):
            found[work.source, "up"] += 8 * work.bytes
            found[work.target, "down"] += 8 * work.bytes
    return dict(found)


def asked(service: Service, together: float | None = None) -> dict[Resource, float]:
    """Compute the mean core-seconds and bits that one request needs of every core and link, except those of its client.

    The work of a batch is divided equally among its requests; the refills that make a request's tokens are added.
    together: mean number of requests in a batch; None: all batches are full. Each request of a batch but the first
    makes the batch `Service.each` seconds longer; these seconds count as computing. A key of the result is a host's
    role and "cores", "up" or "down".
    """
    n = service.batch if together is None else together
    more = service.request.computing
    longer = (n - 1) / n * service.each / (service.seconds(more) or math.inf)
    found: dict[Resource, float] = defaultdict(float)
    parts = ((service.request, 1 / n), (more, longer), (service.transit, 1.0))
    for phase, times in (*parts, (service.refill, refills_per_request(service))):
        for resource, amount in loads(service, phase).items() if phase is not None else ():
            found[resource] += times * amount
    return {resource: amount for resource, amount in found.items() if resource[0] not in service.clients}


def binding(limits: list[Limit], service: Service, *, shared: bool) -> Limit:
    """Return the bound that limits a service's rate: the least of the upper bounds that apply.

    limits: all bounds, the least first. shared: whether the simulation lets phases share cores and links. If not, a
    bound set by a core or link applies only if a single phase uses this core or link: the transit, which is a request's
    way there and back.
    """
    used = {
        name: {resource for resource, amount in loads(service, phase).items() if amount}
        for name, phase in service.phases().items()
    }
    alone = used.pop("transit", set()).difference(*used.values())
    return next(limit for limit in limits if limit.resource is None or shared or limit.resource in alone)


def capacity_of(service: Service, resource: Resource) -> float:
    """Return the capacity of a resource: the cores of a host, or the bits per second of its link up or down.

    resource: the host's role, and "cores", "up" or "down".
    """
    role, kind = resource
    return float(getattr(service.hosts[role], kind))


def limits(service: Service) -> list[Limit]:
    """Compute all upper bounds on the requests per second of a service, the least first.

    The number of slots is a bound; so are the refills, if tokens are made in advance, and every core and link.

    >>> phase = capacity.chain(("compute", capacity.Compute("server", 0.2)))
    >>> service = capacity.Service("one server", {"server": capacity.Host()}, request=phase)
    >>> capacity.limits(service)[0]
    Limit(rate=5.0, cause='1 request at a time', resource=None)
    """
    online = (mean_seconds(service, service.request) + (service.batch - 1) * service.each) / service.batch
    refills = refills_per_request(service)
    offline = mean_seconds(service, service.refill) if service.refill else 0.0
    ahead = service.refill is not None and service.most_tokens > 0
    held = online if ahead else online + refills * offline
    on_demand = "" if ahead or not refills else ", tokens made on demand"
    held_at_once = f"{_count(service.slots, 'batch' if service.batch > 1 else 'request')} at a time{on_demand}"
    found = [Limit(_over(service.slots, held), held_at_once)]
    if ahead:
        at_once = min(service.workers, service.most_tokens // service.refill_tokens)
        found.append(Limit(_over(at_once, refills * offline), f"{_count(at_once, 'refill')} at a time"))
    names = {"cores": "cores of {}", "up": "the link up from {}", "down": "the link down to {}"}
    for resource, amount in asked(service).items():
        rate = _over(capacity_of(service, resource), amount)
        if rate < math.inf:
            found.append(Limit(rate, names[resource[1]].format(resource[0]), resource))
    return sorted(found)


def _over(capacity: float, amount: float) -> float:
    return capacity / amount if amount else math.inf


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("ch") else "s"
    return f"{number} {word}{plural if number != 1 else ''}"
