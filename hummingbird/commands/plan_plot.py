"""The picture of `plan run` and `plan solve`: how many requests take longer than so many seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hummingbird.capacity.result import Result
from hummingbird.commands.plots import drawing

_POINTS = 2000  # of a line, or dots


def latencies(found: Result, path: Path, goal: tuple[str, float] | None = None) -> None:
    """Draw the share of requests that take longer than so long; above the limit latency as it grows.

    goal: a figure such as p99, and its seconds.
    """
    pyplot = drawing()
    figure, axes = pyplot.subplots(figsize=(6.0, 4.0))
    (_growing if found.overloaded else _shares)(axes, found)
    if goal is not None:
        axes.axvline(goal[1], color="black", linewidth=0.8, linestyle=":", label=f"goal: {goal[0]} of {goal[1]:g} s")
    axes.set_title(found.service.name, fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, bbox_inches="tight", dpi=150)
    pyplot.close(figure)


def _shares(axes: Any, found: Result) -> None:
    """The line of all requests, and the known figures with their intervals."""
    seconds = found.latencies
    even = np.linspace(0, len(seconds), _POINTS, endpoint=False, dtype=int)
    last = len(seconds) - np.geomspace(1, len(seconds), _POINTS, dtype=int)  # on a logarithmic scale they count
    places = np.union1d(even, last)
    axes.plot(seconds[places], 1 - places / len(seconds), label=f"{len(seconds):,} requests", drawstyle="steps-pre")
    for name, (value, low, high) in found.estimates.items():
        if name.startswith("p"):
            left, right = max(0.0, value - low), max(0.0, high - value)
            share = 1 - float(name[1:]) / 100
            axes.errorbar([value], [share], xerr=[[left], [right]], fmt="o", capsize=3, label=f"{name}: {value:.3g} s")
    axes.set(xlabel="latency, seconds", ylabel="share of requests that take longer", yscale="log")


def _growing(axes: Any, found: Result) -> None:
    """Latency by the time of arrival, of the first run."""
    arrived, latency = found.outcome.arrived[0], found.outcome.latency[0]
    places = np.linspace(0, len(arrived), min(len(arrived), _POINTS), endpoint=False, dtype=int)
    label = f"above the largest rate: {found.growth.value:.3g} s more each second"
    axes.plot(latency[places], arrived[places], ".", markersize=2, label=label)
    axes.set(xlabel="latency, seconds", ylabel="arrival, seconds")
