"""The planner beside services that run on this host (`bench_serve --predict`): runs, which of them count, the table."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from hummingbird.capacity.arrivals import constant
from hummingbird.capacity.engines import run
from hummingbird.capacity.limit import limits
from hummingbird.capacity.profile import Measurement, Profile
from hummingbird.capacity.service import Service
from hummingbird.errors import EnvironmentProblem
from scripts.bench.link import Link, obstacle
from scripts.bench.serve_calibrate import Calibrated, calibrate
from scripts.bench.serve_net import NETS
from scripts.bench.serve_offered import ENGINES, TOLERANCE, Figures, Offered, offer, own, predicted, tolerance
from scripts.bench.serve_watched import Kept, Pair, Watched
from scripts.program import columns, maybe

KEPT = 4  # slots of the small store
LINK = Link.parse("50mbit")
ROWS = 1 << 21  # of the lookups' table: large enough for the servers' work to be most of a request's seconds
IMAGES = {Link(): 64, LINK: 32}  # of a request of digits: of whose seconds the parties' work is most, or the link's
LINKED = ("full", "small", "beside")  # services with that link
SET = 60  # slots of a set of the full store
FIGURES = ("p50", "p95", "p99", "throughput")


@dataclass(frozen=True)
class Compared:
    """One run that counts: what was measured, and the errors of what was predicted, by the source of its seconds."""

    measured: Figures
    errors: dict[str, dict[str, float]]
    asked: float  # requests per second
    engine: str  # that `run` takes
    refused: int


def services() -> dict[str, Callable[[], Watched]]:
    """Makers of the services: digits between parties on a link, on a full store, on a small one, and on one beside
    another; on loopback; and lookups.
    """
    near, far = (replace(NETS["digits"], request=IMAGES[link]) for link in (Link(), LINK))
    small = partial(Kept, far, LINK, 1, KEPT)
    return {
        "full": partial(Kept, far, LINK, SET, 0),
        "small": small,
        "beside": partial(small, keepers=2),
        "near": partial(Kept, near, Link(), SET, 0),
        "lookups": partial(Pair, ROWS),
    }


def check_link(names: Iterable[str]) -> None:
    """EnvironmentProblem where one of these services has a link that this host cannot make."""
    if any(name in LINKED for name in names) and (why := obstacle(LINK)):
        hint = "as root on Linux with iproute2; without: --services near lookups"
        raise EnvironmentProblem(f"no link of {LINK} between parties: {why}", where="--services", hint=hint)


def calibrated_rows(repeats: int) -> Iterator[Measurement]:
    """Rows of a profile for those of these services that this host can run, of `repeats` short calibrations each."""
    makers = services()
    try:
        check_link(makers)
    except EnvironmentProblem as error:
        tqdm.write(f"not calibrated: {', '.join(LINKED)}: {error.what}", file=sys.stderr)
        makers = {name: make for name, make in makers.items() if name not in LINKED}
    for make in makers.values():
        with make() as service:
            yield Calibrated.joined([calibrate(service, 60) for _ in range(repeats)]).row(service.name)


def measure(
    make: Callable[[], Watched], profile: Profile, args: argparse.Namespace, until: float, bar: Any
) -> list[dict[str, Any]]:
    """Rows of a service, one for each load: runs are made until enough of them count, `--tries` or the time is over."""
    compared: dict[float, list[Compared]] = {load: [] for load in args.loads}
    dropped = dict.fromkeys(args.loads, 0)
    with make() as service:
        bar.set_description(f"{service.name}: calibrating")
        known = Calibrated.of(profile, service.name)
        before = calibrate(service, args.samples)
        for number in range(args.tries):
            for load in args.loads:
                if len(compared[load]) == args.runs or (number and time.monotonic() > until):
                    continue
                bar.set_description(f"{service.name}: {load:g} %")
                gaps = np.random.default_rng([number, int(100 * load)]).exponential(size=args.requests)
                rate = load / 100 * _limit(known.at_pace([before]), service)
                offered = offer(service, np.cumsum(gaps) / rate)
                after = calibrate(service, args.samples)
                if before.drift(after) > args.drift / 100:
                    dropped[load] += 1
                else:
                    pace = known.at_pace([before, after])
                    plan = _plan(pace, service)
                    compared[load].append(compare(offered, plan, pace.beside(plan), rate, number))
                    bar.update()
                before = after
    return [row(service, load, compared[load], dropped[load]) for load in args.loads]


def _limit(calibrated: Calibrated, service: Watched) -> float:
    return limits(_plan(calibrated, service))[0].rate


def _plan(calibrated: Calibrated, service: Watched) -> Service:
    cores = os.cpu_count() or 1
    return calibrated.service(service.name, service.kept, cores, service.keepers, service.at_once)


def compare(offered: Offered, plan: Service, beside: float, rate: float, seed: int) -> Compared:
    """A run beside what is predicted for its arrivals, from its own seconds and from a calibration by both engines.

    plan: the service as calibrated. beside: as of `predicted`.
    """
    found = {"own": own(offered, plan.most_tokens)}
    found |= {each: predicted(plan, beside, offered.due, each, seed) for each in ENGINES}
    measured = offered.figures
    errors = {name: figures.errors(measured) for name, figures in found.items()}
    taken = run(plan, None, constant(1.0), runs=1, requests=1).engine
    return Compared(measured, errors, rate, taken, offered.refused)


def row(service: Watched, load: float, runs: Sequence[Compared], dropped: int) -> dict[str, Any]:
    """Medians over the runs of one load, flat; None where no run counts."""

    def middle(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    found: dict[str, Any] = {
        "service": service.name,
        "images": service.images,
        "kept_slots": service.kept or None,
        "keepers": service.keepers,
        "load_percent": load,
        "runs": len(runs),
        "dropped_runs": dropped,
        "requests_per_second": middle([run.asked for run in runs]),
        "engine": runs[0].engine if runs else None,
        "refusals": sum(run.refused for run in runs),
        "allowed_percent": 100 * tolerance(load / 100),
    }
    for name in FIGURES:
        unit, scale = ("per_second", 1.0) if name == "throughput" else ("milliseconds", 1e3)
        value = middle([asdict(run.measured)[name] for run in runs])
        found[f"measured_{name}_{unit}"] = None if value is None else scale * value
        for source in ("own", *ENGINES):
            error = middle([run.errors[source][name] for run in runs])
            found[f"{source}_{name}_error_percent"] = None if error is None else 100 * error
    return found


def worst(found: dict[str, Any], source: str) -> float | None:
    """The largest error of a source's figures, in percent."""
    errors = [found[f"{source}_{name}_error_percent"] for name in FIGURES]
    return None if None in errors else max(map(abs, errors))


def _errors(source: str) -> Callable[[dict[str, Any]], str]:
    """The cell of a source's errors of p50, p95 and p99."""

    def cell(found: dict[str, Any]) -> str:
        values = [found[f"{source}_{name}_error_percent"] for name in FIGURES[:3]]
        return "-" if None in values else " ".join(f"{value:+.1f}" for value in values)

    return cell


COLUMNS = [
    *(("service", "{service}"), ("load", "{load_percent:g} %")),
    ("asked/s", maybe("requests_per_second", ",.1f", nothing="-")),
    *((f"{name} ms", maybe(f"measured_{name}_milliseconds", ",.1f", nothing="-")) for name in FIGURES[:3]),
    *(("refused", "{refusals}"), ("own times", _errors("own"))),
    *zip(("recurrence", "event engine"), map(_errors, ENGINES), strict=True),
    *(("allowed", "{allowed_percent:.1f} %"), ("runs", "{runs}"), ("dropped", "{dropped_runs}")),
]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text: medians, and errors of p50, p95 and p99 in percent."""
    return columns(rows, COLUMNS)


def verdicts(rows: Sequence[dict[str, Any]], drift: float) -> list[str]:
    """A line for each claim: in how many of the rows with runs it holds. drift: percent that calibrations differ by."""
    known = [each for each in rows if each["runs"]]
    shared = [each for each in known if each["kept_slots"]]

    def line(text: str, of: Sequence[dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> str:
        return f"{text}: {sum(map(holds, of))} of {len(of)} rows"

    def calibrated(each: dict[str, Any]) -> bool:
        return (worst(each, each["engine"]) or 0.0) <= each["allowed_percent"]

    def better(each: dict[str, Any]) -> bool:
        return (worst(each, ENGINES[1]) or 0.0) <= (worst(each, ENGINES[0]) or 0.0)

    return [
        line(
            f"from a run's own seconds within {100 * TOLERANCE:g} %",
            known,
            lambda each: (worst(each, "own") or 0.0) <= 100 * TOLERANCE,
        ),
        line("from a calibration within what is allowed, by the engine that `run` takes", known, calibrated),
        line("where one keeper shares the cores, or two, the event engine at most as far off", shared, better),
        f"dropped, as calibrations before and after differed by more than {drift:g} %: "
        f"{sum(each['dropped_runs'] for each in rows)} runs",
    ]
