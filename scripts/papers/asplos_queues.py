"""Latency of a stream of requests: Figures 7 and 10 of Garimella et al. (ASPLOS 2023).

One client, one server, requests in order of arrival, Poisson for 24 hours from an empty store; the recurrence of
`hummingbird.capacity`. Every request that arrives in those hours counts, also one that is served after them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hummingbird.capacity import paper
from hummingbird.capacity.arrivals import poisson
from hummingbird.capacity.limit import limits
from hummingbird.capacity.published import asplos23
from hummingbird.capacity.recurrence import simulate
from hummingbird.capacity.service import Service
from hummingbird.capacity.system import Draws, system_of
from scripts.papers.asplos_section import ARTIFACT, GB, R18, Pair, Section, offline, online, percent

DAY = 24 * 3600.0
RUNS = 1000
CLIENT_CORES = 4  # the paper's RLP has as many refills at a time


class Latency(NamedTuple):
    """Means over the requests of RUNS days, in seconds from arrival to prediction, and two quantiles.

    queue, blocked, online: parts of the mean: waiting for requests before, for a token, and T_on. theirs: the mean as
    the artifact takes it, of what was done when the day ended, day by day. left: requests that wait at a day's end.
    """

    mean: float
    p50: float
    p99: float
    queue: float
    blocked: float
    online: float
    theirs: float
    left: float


def latency(at: Service, rate: float, seed: int = 0, tokens: int | None = None) -> Latency:
    """Latency over the requests of RUNS days at `rate` per second, each day from an empty store.

    tokens: for how many the store has room; None: as the service says.
    """
    expected = rate * DAY
    load = poisson(rate).load(RUNS, math.ceil(expected + 8 * math.sqrt(expected)) + 8, seed)  # past the day's end
    seconds = Draws(request=np.array([[online(at)]]), refill=np.array([[offline(at)]]))
    rules = {} if tokens is None else {"tokens": tokens}
    outcome = simulate(system_of(at, full=False, **rules), load, seconds)
    today = outcome.arrived < DAY
    found = outcome.latency[today]
    queue, blocked = outcome.began - outcome.arrived, outcome.went - outcome.began

    def by_day(values: np.ndarray, which: np.ndarray) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a day without such requests
            return float(np.nanmean(np.nanmean(np.where(which & today, values, np.nan), axis=1)))

    theirs = by_day(queue, outcome.began <= DAY) + by_day(outcome.left - outcome.began, outcome.left <= DAY)
    quantiles = (float(value) for value in np.quantile(found, (0.5, 0.99)))
    parts = (float(queue[today].mean()), float(blocked[today].mean()), online(at))
    left = float((today & (outcome.began > DAY)).sum(1).mean())
    return Latency(float(found.mean()), *quantiles, *parts, theirs, left)


def often(at: Service) -> float:
    """Minutes between requests at the largest rate that is sustained."""
    return 1 / limits(at)[0].rate / 60


def minutes(at: Service, every: float) -> str:
    """Mean minutes for a request every `every` minutes; `grows` where the backlog grows, beyond the largest rate."""
    return "grows" if every <= often(at) else f"{latency(at, 1 / (60 * every)).mean / 60:.2f}"


# Figure 7 ------------------------------------------------------------------------------------------------------------

# Mean minutes that the artifact's program has at each rate, requests per second, and their standard error: 200 runs of
# the command in its artifact/generate_fig7.sh.
FIGURE_7: Mapping[float, tuple[float, float]] = {
    0.0001: (4.73, 0.23),
    0.0002: (5.68, 0.17),
    0.0003: (11.77, 0.73),
    0.0004: (22.90, 1.68),
    0.0005: (58.05, 3.48),
    0.0006: (125.99, 5.22),
    0.0007: (177.02, 5.36),
    0.0008: (255.92, 5.36),
    0.0009: (292.36, 5.23),
    0.001: (354.27, 4.89),
}


def figure_7() -> Section:
    """Latency of the baseline against the rate, in parts."""
    at = paper.baseline(asplos23().net(R18), 128 * GB, gc=4)
    rows, pairs = [], []
    for rate, (theirs, error) in FIGURE_7.items():
        here, fewer = latency(at, rate), latency(at, rate, tokens=at.most_tokens - 1)
        pair = Pair(f"mean at 1 per {1 / rate / 60:.1f} min, a token fewer", fewer.theirs / 60, theirs, ARTIFACT)
        pairs.append(pair)
        parts = (here.online, here.blocked, here.queue, here.mean)
        cells = (f"{fewer.theirs / 60:.2f}", f"{theirs:.2f} ± {error:.2f}", percent(pair))
        rows.append((f"{1 / rate / 60:.1f}", *(f"{part / 60:.2f}" for part in parts), *cells))
    words = (
        "Baseline, ResNet-18 on TinyImageNet, 128 GB at the client, four threads for circuits at the server: mean "
        "minutes from arrival to prediction, by minutes between requests. The parts are the work with the image, "
        "waiting for a token (what was to be in advance), and "
        "waiting for requests before it. The three columns behind are the model in the way of the authors' program, "
        f"and that program. The largest rate that is sustained is one request in {often(at):.1f} minutes: beyond it a "
        "day's mean grows with the day."
    )
    below = (
        f"The store has room for {at.most_tokens} tokens. The artifact counts it in floating point, and loses a token "
        "to it; it leaves out requests that are not done when the day ends, and takes the mean of the days' means. "
        "The columns behind count as it does, with a token fewer. In the paper's figure the mean at 3e-4 requests a "
        f"second is 12.2 minutes; with all tokens it is {latency(at, 3e-4).mean / 60:.1f} here."
    )
    parts_head = ("online", "offline", "queue", "mean")
    head = ("minutes between requests", *parts_head, "mean, a token fewer", "theirs", "deviation")
    return Section("Figure 7: latency against the rate, in parts", words, head, rows, below, pairs)


# Figure 10 -----------------------------------------------------------------------------------------------------------


def figure_10() -> Section:
    """Refills side by side against layers side by side."""
    net = asplos23().net(R18)
    rows = []
    for store in (8, 16, 32, 64, 140):
        layers = paper.proposed(net, store * GB)
        refills = paper.side_by_side(layers, "cg", net, CLIENT_CORES)
        cells: list[str] = []
        for at in (refills, layers):
            cells += [f"{60 * often(at):,.0f} s", *(minutes(at, every) for every in (60, 30, 18))]
        rows.append((f"{store} GB", str(layers.most_tokens), *cells))
    small, large = paper.proposed(net, 8 * GB), paper.proposed(net, 140 * GB)
    pairs = [
        Pair("LPHE, 8 GB", 60 * often(small), 1053),
        Pair("RLP, 8 GB", 60 * often(paper.side_by_side(small, "cg", net, CLIENT_CORES)), 3126),
        Pair("LPHE, 140 GB", 60 * often(large), 939),
        Pair("RLP, 140 GB", 60 * often(paper.side_by_side(large, "cg", net, CLIENT_CORES)), 627),
    ]
    words = (
        "CG, ResNet-18 on TinyImageNet: one core for each of several refills (RLP), or all for the layers of one "
        "(LPHE). Seconds between the requests that can be kept up with, and mean minutes from arrival to prediction "
        "with a request every 60, 30 and 18 minutes."
    )
    below = (
        "The paper has "
        + ", ".join(f"{pair.printed:,.0f} s for {pair.what} (here {percent(pair)})" for pair in pairs)
        + f". Its 627 s do not follow from its constants: the client has {CLIENT_CORES} cores, hence as many refills, "
        f"each of {offline(paper.side_by_side(paper.proposed(net), 'cg', net, CLIENT_CORES)):,.1f} s. With several "
        "refills the link is promised to each in full, as the paper does; the event engine shares it."
    )
    columns = [f"{name}, {of}" for name in ("RLP", "LPHE") for of in ("s", "1 per 60", "1 per 30", "1 per 18")]
    head = ("store", "K", *columns)
    return Section("Figure 10: refills or layers side by side", words, head, rows, below, pairs)
