"""Shares of cores and links: max-min fair, as processors and TCP flows of one round trip have them.

Progressive filling (D. Bertsekas and R. Gallager, "Data Networks", 1992, section 6.5.2): the rates of all flows rise
together; a flow stops at its own cap, or when one of its resources is used up. No flow can then have more unless one
that has no more than it gets less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Resource = tuple[str, str]  # "cores", "up" or "down", and the host's role


class Flow(NamedTuple):
    """Something that uses every one of `resources` at one rate, of at most `cap`."""

    resources: tuple[Resource, ...]
    cap: float


def shares(flows: Sequence[Flow], capacity: Mapping[Resource, float]) -> list[float]:
    """The rates of all flows, in the units of the capacities; inf for one that nothing bounds."""
    rates = [0.0] * len(flows)
    left = dict(capacity)
    rising = set(range(len(flows)))
    while rising:
        users = Counter(resource for number in rising for resource in flows[number].resources)
        levels = {resource: left[resource] / count for resource, count in users.items()}
        bounds = {n: min([flows[n].cap, *(levels[resource] for resource in flows[n].resources)]) for n in rising}
        level = min(bounds.values())
        for number in [n for n, bound in bounds.items() if bound == level]:
            rates[number] = level
            rising.remove(number)
            for resource in flows[number].resources:
                left[resource] -= level if level < math.inf else 0.0
    return rates
