"""The largest rate of requests that a service can keep up with, and what sets it, in closed form.

Three kinds of bound, on means: slots, c / T_on (made on demand: c / (T_on + refills)); refills, min(r, K / m) m / (n
T_off) for r at a time, m tokens each and n a request; and every core and link, its capacity over what a request and its
share of the refills ask of it. The least holds (a closed circuit of a max-plus system; page `planner`, "Rate limit").
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import NamedTuple

from hummingbird.capacity.service import Compute, Phase, Send, Service

Resource = tuple[str, str]  # a host's role and "cores", "up" or "down"


class Limit(NamedTuple):
    """A bound on requests per second, and what sets it; resource: the core or link, if it is one that phases share."""

    rate: float
    cause: str
    resource: Resource | None = None


def mean_seconds(service: Service, phase: Phase) -> float:
    """Mean seconds of a phase that has everything to itself, over its factors."""
    return statistics.fmean(service.seconds(phase, factor) for factor in phase.factors or (1.0,))


def refills_per_request(service: Service, batch: int = 1) -> float:
    """Refills that a request of a batch uses up: made on demand, whole ones for all of them."""
    if service.refill is None:
        return 0.0
    share = service.request_tokens / service.refill_tokens
    return share if service.most_tokens else math.ceil(batch * share) / batch


def loads(service: Service, phase: Phase) -> dict[Resource, float]:
    """Mean core-seconds and bits that a phase asks of every core and link."""
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


def capacity_of(service: Service, resource: Resource) -> float:
    """Cores of a host, or bits per second of its link."""
    role, kind = resource
    return float(getattr(service.hosts[role], kind))


def limits(service: Service, batch: int = 1, each: float = 0.0) -> list[Limit]:
    """All bounds, the least first. batch: requests served as one, which takes `each` seconds more for all but one."""
    online, refills = mean_seconds(service, service.request), refills_per_request(service, batch)
    offline = mean_seconds(service, service.refill) if service.refill else 0.0
    ahead = service.refill is not None and service.most_tokens > 0
    held = (online + each * (batch - 1)) / batch + (0.0 if ahead else refills * offline)
    on_demand = "" if ahead or not refills else ", tokens made on demand"
    what = _count(service.slots, "request") if batch == 1 else f"{_count(service.slots, 'batch', 'es')} of {batch}"
    found = [Limit(_over(service.slots, held), f"{what} at a time{on_demand}")]
    if ahead:
        at_once = min(service.workers, service.most_tokens // service.refill_tokens)
        found.append(Limit(_over(at_once, refills * offline), f"{_count(at_once, 'refill')} at a time"))
    asked: dict[Resource, float] = defaultdict(float)
    for phase, times in ((service.request, 1 / batch), (service.refill, refills)):
        for resource, amount in loads(service, phase).items() if phase else ():
            asked[resource] += times * amount
    names = {"cores": "cores of {}", "up": "the link up from {}", "down": "the link down to {}"}
    for resource, amount in asked.items():
        rate = _over(capacity_of(service, resource), amount)
        if rate < math.inf:
            found.append(Limit(rate, names[resource[1]].format(resource[0]), resource))
    return sorted(found)


def _over(capacity: float, amount: float) -> float:
    return capacity / amount if amount else math.inf


def _count(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}{ending if number != 1 else ''}"
