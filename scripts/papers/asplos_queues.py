"""Figures 7, 10 and 12 of Garimella et al. (ASPLOS 2023): latency against the rate of requests.

One client, one server, requests in order of arrival, Poisson for 24 hours from an empty store; the recurrence of
`hummingbird.capacity`. Every request that arrives in those hours counts, also one that is served after them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hummingbird.capacity import paper
from hummingbird.capacity.arrivals import poisson
from hummingbird.capacity.limit import limits
from hummingbird.capacity.published import asplos23
from hummingbird.capacity.recurrence import simulate
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import Draws, system_of
from scripts.papers.asplos_tables import GB, R18, Section, offline, online

DAY = 24 * 3600.0
RUNS = 1000
CORES = 4  # of the client: the paper's RLP has as many refills at a time


class Latency(NamedTuple):
    """Seconds from a request's arrival to its prediction."""

    mean: float
    p50: float
    p99: float


def latency(at: Service, rate: float, seed: int = 0) -> Latency:
    """Latency over the requests of RUNS days at `rate` per second, each day from an empty store."""
    expected = rate * DAY
    load = poisson(rate).load(RUNS, math.ceil(expected + 8 * math.sqrt(expected)) + 8, seed)  # past the day's end
    seconds = Draws(request=np.array([[online(at)]]), refill=np.array([[offline(at)]]))
    outcome = simulate(system_of(at, full=False), load, seconds)
    found = outcome.latency[outcome.arrived < DAY]
    return Latency(float(found.mean()), *(float(value) for value in np.quantile(found, (0.5, 0.99))))


def _minutes(at: Service, every: float) -> tuple[str, str]:
    """Mean and p99 in minutes for a request every `every` minutes; none where the backlog grows, beyond the limit."""
    if 60 * every * limits(at)[0].rate <= 1:
        return "grows", "grows"
    found = latency(at, 1 / (60 * every))
    return f"{found.mean / 60:.2f}", f"{found.p99 / 60:.1f}"


def figures_7_and_12() -> Section:
    """Baseline and proposal, ResNet-18 on CIFAR, at 16 GB."""
    net = asplos23().net("cifar10/resnet18")
    services = (paper.baseline(net, 16 * GB, gc=4), paper.proposed(net, 16 * GB))
    rows = [
        (f"{every:g}", *_minutes(services[0], every), *_minutes(services[1], every))
        for every in (60, 30, 20, 15, 12, 10, 9, 7, 6, 5, 4.5, 4.2)
    ]
    rows.append(("limit", *(cell for at in services for cell in (f"1 per {1 / limits(at)[0].rate / 60:.2f}", ""))))
    cg = latency(paper.proposed(asplos23().net(R18), 16 * GB), 1 / (33 * 60))
    held, lost = (latency(paper.baseline(asplos23().net(R18), store * GB, gc=4), 3e-4) for store in (128, 82))
    words = (
        "ResNet-18 on CIFAR, 16 GB at the client: the paper raises the rate it sustains from one request in 12 minutes "
        "to one in 5. Minutes from arrival to prediction, by minutes between requests on average."
    )
    below = (
        "A mean says little here: ResNet-18 on TinyImageNet with CG, 16 GB and a request every 33 minutes takes "
        f"{cg.mean / 60:.1f} minutes on average, {cg.p50 / 60:.1f} in half of the cases and {cg.p99 / 60:.0f} in one "
        "of a hundred.\n\n"
        "The artifact counts its store in floating point, and loses a token to it: the baseline for TinyImageNet with "
        f"128 GB, which hold 3 tokens, takes {held.mean / 60:.1f} minutes at 3e-4 requests a second, and Figure 7 has "
        f"12.2, which is rather that of 2 tokens, {lost.mean / 60:.1f}. It also leaves out requests that are not done "
        "when the day ends."
    )
    head = ("minutes between requests", "baseline, mean", "baseline, p99", "proposal, mean", "proposal, p99")
    return Section("Figures 7 and 12: latency against the rate", words, head, rows, below)


def figure_10() -> Section:
    """Refills side by side against layers side by side."""
    net = asplos23().net(R18)
    rows = []
    for store in (8, 16, 32, 64, 140):
        layers = paper.proposed(net, store * GB)
        refills = paper.side_by_side(layers, "cg", net, CORES)
        cells: list[str] = []
        for at in (refills, layers):
            often = f"{1 / limits(at)[0].rate:,.0f} s"
            cells += [often, *(_minutes(at, every)[0] for every in (60, 30, 18))]
        rows.append((f"{store} GB", str(layers.most_tokens), *cells))
    words = (
        "CG, ResNet-18 on TinyImageNet: one core for each of several refills (RLP), or all for the layers of one "
        "(LPHE). Seconds between the requests that can be kept up with, and mean minutes from arrival to prediction "
        "with a request every 60, 30 and 18 minutes."
    )
    below = (
        "The paper has 3126 and 1053 s at 8 GB, as here. At 140 GB it has a token per 627 s by RLP and per 939 s by "
        f"LPHE. 627 cannot be derived: the client has {CORES} cores, hence as many refills, each of "
        f"{offline(paper.side_by_side(paper.proposed(net), 'cg', net, CORES)):,.1f} s. With several refills the link "
        "is promised to each in full, as the paper does; the event engine shares it."
    )
    columns = [f"{name}, {of}" for name in ("RLP", "LPHE") for of in ("s", "1 per 60", "1 per 30", "1 per 18")]
    head = ("store", "K", *columns)
    return Section("Figure 10: refills or layers side by side", words, head, rows, below)


QUEUES = (figures_7_and_12, figure_10)
