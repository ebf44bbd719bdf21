"""`plan sweep`: figures of a service for several values of one input."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hummingbird.capacity import quantities
from hummingbird.capacity.arrivals import Arrivals
from hummingbird.capacity.engines import run
from hummingbird.capacity.quantities import shown_bytes, shown_rate, shown_seconds
from hummingbird.capacity.service import Hosts, Service
from hummingbird.commands.output import drawing
from hummingbird.commands.plan_load import options_of, scaled
from hummingbird.errors import InputError
from hummingbird.rpc.options import count
from hummingbird.table import text_table

LATENCIES = ("latency_mean", "p50", "p95", "p99")
Change = Callable[[Service, Arrivals, Any], tuple[Service, Arrivals]]


def _host(name: str) -> Change:
    return lambda service, arrivals, value: (service.at(Hosts(**{name: value})), arrivals)


def _own(name: str) -> Change:
    return lambda service, arrivals, value: (dataclasses.replace(service, **{name: value}), arrivals)


def _megabits(value: float) -> str:
    return f"{value / 1e6:g} Mb/s"


# For each input: its parser, its text, and the function that changes it.
INPUTS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str], Change]] = {
    "rate": (quantities.rate, shown_rate, lambda service, arrivals, value: (service, scaled(arrivals, value))),
    "store": (quantities.size, shown_bytes, _host("store")),
    "bandwidth": (quantities.link, _megabits, _host("bandwidth")),
    "up": (quantities.link, _megabits, _host("up")),
    "down": (quantities.link, _megabits, _host("down")),
    "rtt": (quantities.seconds, shown_seconds, _host("rtt")),
    "cores": (count, str, _host("cores")),
    "slots": (count, str, _own("slots")),
    "workers": (count, str, _own("workers")),
}


def values_of(args: argparse.Namespace) -> list[Any]:
    """Return the values of --values, read as the input that --vary names. Raises InputError for an invalid value."""
    parse, _, _ = INPUTS[args.vary]
    try:
        return [parse(text) for text in args.values]
    except argparse.ArgumentTypeError as error:
        raise InputError(str(error), where="--values", hint=f"values of {args.vary}") from None


def rows(args: argparse.Namespace, service: Service, arrivals: Arrivals) -> Iterator[dict[str, Any]]:
    """Simulate the service for each of --values of the input that --vary names; yield the figures of each simulation.

    All simulations have the same random numbers.
    """
    _, _, change = INPUTS[args.vary]
    for value in values_of(args):
        there, asked = change(service, arrivals, value)
        found = run(there, None, asked, **options_of(args))
        if not found.overloaded:
            found.quantile(0.99)  # raises for too few requests, with the number needed
        yield {"varied": args.vary, "value": value, "seed": args.seed, **found.figures()}


def table(args: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return the figures for all values as a text table. found: the figures that `rows` yielded."""
    _, shown, _ = INPUTS[args.vary]
    cells = [
        (
            shown(row["value"]),
            *("grows" if row["overloaded"] else shown_seconds(row[name]["value"]) for name in LATENCIES),
            shown_rate(row["goodput"]),
            shown_rate(row["limit"]),
            row["limit_cause"],
        )
        for row in found
    ]
    return text_table((args.vary, *LATENCIES, "answered", "largest rate", "set by"), cells)


def plot(args: argparse.Namespace, found: list[dict[str, Any]], path: Path) -> None:
    """Draw latencies against the input that --vary names. found: the figures that `rows` yielded. path: the picture."""
    pyplot = drawing()
    figure, axes = pyplot.subplots(figsize=(6.0, 4.0))
    stable = [row for row in found if not row["overloaded"]]
    for name in LATENCIES:
        axes.plot([row["value"] for row in stable], [row[name]["value"] for row in stable], marker="o", label=name)
    axes.set(xlabel=args.vary, ylabel="latency, seconds", yscale="log")
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=150)
    pyplot.close(figure)
