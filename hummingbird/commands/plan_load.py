"""Options of `plan` for the requests to a service, and for their simulation."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

from hummingbird.capacity import quantities
from hummingbird.capacity.arrivals import Arrivals, Gaps, Hourly, Users, trace
from hummingbird.capacity.result import EVENTS, RECURRENCE
from hummingbird.capacity.service import Service
from hummingbird.errors import InputError
from hummingbird.rpc.options import count


def add_load(parser: argparse.ArgumentParser, requests: int | None, runs: int | None) -> None:
    """Add the options from --rate to --engine, which `arrivals_of` and `options_of` read.

    requests, runs: defaults of --requests and --runs; None: those of `capacity.run`.
    """
    group = parser.add_argument_group("requests")
    kind = group.add_mutually_exclusive_group()
    text = "mean rate of requests from independent clients, as in 20/min"
    kind.add_argument("--rate", type=quantities.rate, metavar="RATE", help=text)
    text = "rates of consecutive hours, repeated after the last"
    kind.add_argument("--hourly", type=quantities.rate, nargs="+", metavar="RATE", help=text)
    text = "file with a line for each request: its time in seconds, and optionally its images"
    kind.add_argument("--trace", type=Path, metavar="FILE", help=text)
    text = "number of users who wait for an answer and think before they ask again"
    kind.add_argument("--users", type=count, metavar="N", help=text)
    text = "mean thinking time of --users, as in 30s"
    group.add_argument("--think", type=quantities.seconds, metavar="TIME", help=text)
    text = "shape parameter of the gaps of --rate: 1 (default) for Poisson, less for bursts, inf for equal gaps"
    group.add_argument("--burstiness", type=float, metavar="FORM", help=text)
    text = "images of each request (default: those of the service)"
    group.add_argument("--images", type=count, metavar="N", help=text)
    text = "time after which a request leaves if its online phase has not begun"
    group.add_argument("--patience", type=quantities.seconds, metavar="TIME", help=text)
    text = "mean number of requests of a client, the first of which begins a session (default: all clients have one)"
    group.add_argument("--session", type=count, metavar="N", help=text)
    group = parser.add_argument_group("simulation")
    text = f"requests of a run (default {requests or '5000, or 1000 by events'})"
    group.add_argument("--requests", type=count, default=requests, metavar="N", help=text)
    text = f"number of runs (default {runs or '200, or 10 by events'})"
    group.add_argument("--runs", type=count, default=runs, metavar="N", help=text)
    group.add_argument("--seed", type=int, default=0, help="the same seed gives the same figures (default 0)")
    text = "recurrence: fast, cores and links unshared; events: shared (default: events if phases share any)"
    group.add_argument("--engine", choices=(RECURRENCE, EVENTS), help=text)


def arrivals_of(args: argparse.Namespace, service: Service) -> Arrivals | None:
    """Return the arrivals, an object that says when requests come, from the options; None if no option describes any.

    service: the service that gets the requests. Without --images each request has as many images as the service takes.
    Raises InputError for options that contradict each other, and for a file of arrival times (--trace) out of order.
    """
    other: dict[str, Any] = {"images": args.images or service.images}
    if args.patience:
        other["patience"] = args.patience
    if args.session:
        if args.users:
            what = "--session beside --users, who have one session each"
            raise InputError(what, where="--session", hint="leave --session out")
        if service.session is None:
            hint = "leave --session out, or add steps of a session to the file"
            raise InputError("--session of a service without one", where="--session", hint=hint)
        other["session"] = float(args.session)
    if args.think is not None and not args.users:
        raise InputError("--think without --users", where="--think", hint="--users N, or leave it out")
    if args.burstiness is not None and not args.rate:
        raise InputError("--burstiness without --rate", where="--burstiness", hint="--rate RATE, or leave it out")
    if args.trace:
        return _trace(args, other)
    if args.users:
        if args.think is None:
            raise InputError("--users without --think", where="--think", hint="how long a user thinks, as in 30s")
        return Users(args.users, args.think, **other)
    if args.hourly:
        return Hourly(tuple(args.hourly), **other)
    if args.rate:
        return Gaps(args.rate, 1.0 if args.burstiness is None else args.burstiness, **other)
    return None


def _trace(args: argparse.Namespace, other: dict[str, Any]) -> Arrivals:
    """Return the arrivals that the file of --trace lists: a line for each request, with its time.

    If --requests is not set, or larger than the number of lines, sets it to this number. other: further arguments of
    `capacity.arrivals.trace`. Raises InputError for a file that cannot be read.
    """
    try:
        found = trace(args.trace, **other)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where="--trace", hint="name a file") from None
    args.requests = min(args.requests or len(found.due), len(found.due))
    return found


def scaled(arrivals: Arrivals, rate: float) -> Arrivals:
    """Return a copy of `arrivals` with another rate, in requests per second.

    Raises InputError for arrivals that have no rate, such as those of users.
    """
    if not isinstance(arrivals, Gaps):
        raise InputError("these requests have no rate to vary", where="--vary", hint="give --rate")
    return dataclasses.replace(arrivals, rate=rate)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `capacity.run` and `capacity.solve` that control the simulation, by name.

    They are the seed, the number of requests in a run, the number of runs, and the engine.
    """
    return {"seed": args.seed, "requests": args.requests, "runs": args.runs, "engine": args.engine}


def needed(arrivals: Arrivals | None) -> Arrivals:
    """Return `arrivals`, the requests over time that the options describe.

    Raises InputError if no option describes any, so that `arrivals` is None.
    """
    if arrivals is None:
        hint = "--rate 20/min, --hourly, --trace or --users"
        raise InputError("no requests", where="--rate", hint=hint)
    return arrivals


def goal_of(text: str) -> tuple[str, float]:
    """Read a goal such as p99=2s; return the name of the limited latency, "p99", and the most seconds.

    Raises ArgumentTypeError for other texts.
    """
    name, _, value = text.partition("=")
    if name not in ("mean", "p50", "p95", "p99") or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no goal such as p99=2s (of mean, p50, p95, p99)")
    seconds = quantities.seconds(value)
    return name, seconds if math.isfinite(seconds) else math.inf
