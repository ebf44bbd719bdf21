"""A service of two parties and a dealer on this host, asked at given rates: throughput and latency as clients see them.

    python -m scripts.bench.serve --json serve.json
    python -m scripts.bench.serve --nets digits --seconds 20 --loads 30 60
    python -m scripts.tools.calibrate --only serve --json profile.json
    python -m scripts.bench.serve --predict profile.json --json reality.json

For each net, in one run: a lone request to the idle service, beside a batch of one between idle parties; the service as
fast as it goes (requests always waiting), asked in batches as large as infer's, and in small requests, with `infer` on
this machine before and after, in rounds, of which the median counts: the pace of a shared host drifts; then small
requests at random times (a Poisson process), whether or not earlier ones have been answered, at 30, 60 and 90 % of what
the service can do. Latency counts from the moment a request was due. Clients, parties and dealer share this machine's
cores, and every answer is compared with the plain net's.

With --predict the planner is put to the test: digits between two parties on a link of 50 Mb/s (made by tc, for root),
on a store that a keeper deals for (`deal --keep`), full, of four slots, and of four while a second keeper deals as much
for another store of this host; digits between parties on loopback; and two servers of lookups. They are asked at random
times, and beside the latencies stand those that `capacity.run` predicts for the same arrivals, once from the run's own
seconds of each request and once from a profile, at the pace of short calibrations before and after the run. A run
between calibrations that differ is dropped, and counted.

With --groups several groups of parties serve digits behind one client, on the same cores as one of them before: their
rate beside its rate, and how evenly the load is spread; latencies at 30 % of that rate while all run, and of the
requests to the others while one group is stopped for 20 seconds; and what becomes of the requests while one group after
another is ended and started again with another version of the model.

    python -m scripts.bench.serve --groups 3 --seconds 20 --json groups.json
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hummingbird.capacity.profile import Profile
from hummingbird.capacity.profile import load as load_profile
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from hummingbird.rpc.options import count, positive
from hummingbird.saving import save
from scripts.bench import serve_reality
from scripts.bench.party import on_this_host
from scripts.bench.serve_load import Load, Served, batches, lone_seconds, offer, saturate
from scripts.bench.serve_net import NETS, Net, ServedGroup, batch_of_one, running
from scripts.program import ROOT, add_json, columns, main_of, new_parser, write_rows

_FULL = 90.0  # seconds at most for which requests are always waiting, in all rounds
_ROUNDS = 3
_UNDER_WAY = 4  # full batches of them at each group: two are computed, and two wait
COLUMNS = (
    ("net", "{net}"),
    ("images", "{request_images}"),
    ("load", lambda row: "all" if row["load_percent"] is None else f"{row['load_percent']:g} %"),
    ("offered/s", lambda row: f"{row['offered_per_second']:,.1f}" if row["offered_per_second"] else "-"),
    ("answered/s", "{answered_per_second:,.1f}"),
    *((f"{name} ms", f"{{{name}_milliseconds:,.1f}}") for name in ("p50", "p95", "p99")),
    *(("batch", "{mean_batch_images:.1f}"), ("refused", "{refused}"), ("changed", "{changed_percent:.2f} %")),
)


def measure(net: Net, args: argparse.Namespace, bar: Any) -> Iterator[dict[str, Any]]:
    """Rows of one net: what it can do, then each load."""
    images, _ = net.images()
    bar.set_description(f"{net.name}: a batch of one")
    alone = batch_of_one(net, images[:1])
    bar.update()
    with running(net, args.max_batch) as (addresses, metrics):
        with Served(addresses, images, net.plain(images)) as served:
            lone = lone_seconds(served)
            bytes_up, bytes_down = served.bytes_up, served.bytes_down
            for size, (inferred, full) in _fullest(net, served, metrics, args, bar).items():
                yield {
                    "net": net.name,
                    "request_images": size,
                    "load_percent": None,
                    "infer_images_per_second": inferred,
                    "of_infer_percent": 100 * full.answered_per_second / inferred,
                    "lone_request_milliseconds": 1e3 * lone,
                    "batch_of_one_milliseconds": 1e3 * alone,
                    "lone_ratio": lone / alone,
                    "client_bytes_up_per_lone_image": bytes_up,
                    "client_bytes_down_per_lone_image": bytes_down,
                    **asdict(full),
                }
            for percent in args.loads:
                bar.set_description(f"{net.name}: {percent:g} %")
                rate = full.answered_per_second * percent / 100
                yield {
                    "net": net.name,
                    "request_images": net.request,
                    "load_percent": percent,
                    **asdict(offer(served, metrics, rate, args.seconds, net.request)),
                }
                bar.update()


def _fullest(
    net: Net, served: Served, metrics: str, args: argparse.Namespace, bar: Any
) -> dict[int, tuple[float, Load]]:
    """The service as fast as it goes, by the images of a request, and infer's images a second before and after: the
    round of median ratio, of several that take turns.
    """
    seconds = min(args.seconds, _FULL) / _ROUNDS
    rounds: dict[int, list[tuple[float, Load]]] = {args.max_batch: [], net.request: []}
    before = _inferred(net, args, bar)
    for _ in range(_ROUNDS):
        fulls = []
        for size in rounds:
            bar.set_description(f"{net.name}: as fast as it goes, {size} images at a time")
            fulls.append(saturate(served, metrics, seconds, _UNDER_WAY * args.max_batch, size))
            bar.update()
        after = _inferred(net, args, bar)
        for found, full in zip(rounds.values(), fulls, strict=True):
            found.append(((before + after) / 2, full))
        before = after

    def ratio(found: tuple[float, Load]) -> float:
        return found[1].answered_per_second / found[0]

    return {size: sorted(found, key=ratio)[_ROUNDS // 2] for size, found in rounds.items()}


def _inferred(net: Net, args: argparse.Namespace, bar: Any) -> float:
    """Images a second of `infer`, beside the idle service."""
    bar.set_description(f"{net.name}: infer")
    seconds: float = on_this_host(2, "hummingbird infer", net.infer(args.max_batch))["seconds"]
    bar.update()
    return net.inferred / seconds


# Several groups -------------------------------------------------------------------------------------------------------

_STOPPED = 20.0  # seconds for which a group stands still
_CALM = 30.0  # percent of the groups' rate, at which latencies are measured


def groups(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of several groups, and their table."""
    net = NETS["digits"]
    with tempfile.TemporaryDirectory() as folder, progress_line(total=5 + 2 * _ROUNDS, unit="part") as bar:
        bar.set_description("the groups start")
        save(net.net(), Path(folder) / "saved", bits=ROOT / "checkpoints" / net.bits)
        opened = []
        try:
            for number in range(args.groups):
                words = ["--models", f"{folder}/{number}", "--group", str(number)]
                opened.append(ServedGroup(words, args.max_batch))
                _list(folder, number, 1, net)
                opened[-1].start()
            for group in opened:
                group.wait()
            bar.update()
            rows = _of_groups(net, opened, folder, args, bar)
        finally:
            for group in opened:
                group.stop()
    print(columns(rows, [("part", "{part}"), *COLUMNS[3:8], *COLUMNS[9:]]))
    ratio = statistics.median(row["of_one"] for row in rows if "of_one" in row)
    did = [sum(each) for each in zip(*(row["group_images"] for row in rows if "group_images" in row), strict=True)]
    uneven = 100 * max(abs(each * len(did) / sum(did) - 1) for each in did)
    calm, stopped, rollout = rows[-3:]
    print(f"{args.groups} groups have {ratio:.2f} times the rate of one on these cores (mark: 0.9)")
    print(f"the load of a group is within {uneven:.1f} % of even (mark: 15)")
    others = stopped["p99_milliseconds"] / calm["p99_milliseconds"]
    print(f"while one is stopped, p99 of the requests to the others is {others:.2f} times as long (mark: 2)")
    print(f"a rollout: {rollout['refused']} of {rollout['requests']} requests failed (mark: 0)")
    return rows


def _list(folder: str, number: int, version: int, net: Net) -> None:
    """Let the file of a group list one version of the model."""
    Path(folder, str(number)).write_text(f"digits@{version} {folder}/saved {net.shape}\n")


def _of_groups(
    net: Net, opened: list[ServedGroup], folder: str, args: argparse.Namespace, bar: Any
) -> list[dict[str, Any]]:
    images, _ = net.images()
    answers, size, rows = net.plain(images), net.request, list[dict[str, Any]]()
    first, under_way = opened[0].metrics, _UNDER_WAY * args.max_batch

    def counted() -> list[float]:
        return [batches(group.metrics)[1] for group in opened]

    with (
        Served(opened[0].addresses, images, answers) as one,
        Served([group.addresses for group in opened], images, answers) as all_of_them,
    ):
        for served in (one, all_of_them):  # what a slice asks the dealer for is known from now on
            saturate(served, first, 2.0, under_way, size)
        for _ in range(_ROUNDS):
            bar.set_description("one group, as fast as it goes")
            alone = saturate(one, first, args.seconds, under_way, size)
            rows.append({"part": "one group", **asdict(alone)})
            bar.update()
            bar.set_description("all groups, as fast as they go")
            before = counted()
            full = saturate(all_of_them, first, args.seconds, len(opened) * under_way, size)
            did = [now - then for now, then in zip(counted(), before, strict=True)]
            ratio = full.answered_per_second / alone.answered_per_second
            rows.append({"part": "all groups", "of_one": ratio, "group_images": did, **asdict(full)})
            bar.update()
        rate = _CALM / 100 * statistics.median(row["answered_per_second"] for row in rows if "of_one" in row)
        bar.set_description("all groups, calm")
        rows.append({"part": "calm", **asdict(offer(all_of_them, first, rate, _STOPPED, size))})
        bar.update()
        bar.set_description("one group stands still")
        opened[-1].signal(signal.SIGSTOP)
        try:
            still = offer(all_of_them, first, rate, _STOPPED, size, apart=", ".join(opened[-1].addresses))
        finally:
            opened[-1].signal(signal.SIGCONT)
        rows.append({"part": "one stopped", **asdict(still)})
        bar.update()
        bar.set_description("one group after another gets a new version")

        def roll_out() -> None:
            for number, group in enumerate(opened):
                group.stop()
                _list(folder, number, 2, net)
                group.start()
                group.wait()

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(roll_out)
            rolled = offer(all_of_them, opened[-1].metrics, rate, 0.0, size, going=lambda: not done.done())
            done.result()
        rows.append({"part": "rollout", **asdict(rolled)})
        bar.update()
    return rows


# ---------------------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--nets", nargs="+", choices=tuple(NETS), default=list(NETS), help="default: all")
    text = "percent of what the service can do (default: 30 60 90, to predict 30 50 70)"
    p.add_argument("--loads", nargs="+", type=float, metavar="PERCENT", help=text)
    p.add_argument("--seconds", type=float, default=300.0, help="for each load (default: 300)")
    p.add_argument("--max-batch", type=int, default=64, metavar="N", help="of the service, in images (default: 64)")
    text = "measure so many groups of parties behind one client, on the cores of one"
    p.add_argument("--groups", type=count, metavar="N", help=text)
    add_json(p)
    guess = p.add_argument_group("predicting")
    text = "compare with what is predicted from this profile (scripts.tools.calibrate --only serve)"
    guess.add_argument("--predict", type=Path, metavar="PROFILE", help=text)
    text = "digits on a full store, a small one, one beside another's; near: on loopback; lookups (default: all)"
    known = list(serve_reality.services())
    guess.add_argument("--services", nargs="+", choices=known, default=known, metavar="SERVICE", help=text)
    text = "of each run (default: %(default)s)"
    guess.add_argument("--requests", type=count, default=200, metavar="N", help=text)
    text = "that count, of each load; medians are told (default: %(default)s)"
    guess.add_argument("--runs", type=count, default=5, metavar="N", help=text)
    text = "at most, so many of which may be dropped (default: %(default)s)"
    guess.add_argument("--tries", type=count, default=8, metavar="N", help=text)
    text = "lone requests of a calibration, and twice as many among others (default: %(default)s)"
    guess.add_argument("--samples", type=count, default=60, metavar="N", help=text)
    text = "by which a run's calibrations may differ (default: %(default)s)"
    guess.add_argument("--drift", type=positive, default=5.0, metavar="PERCENT", help=text)
    text = "after which no run is made again; each load is run once in any case (default: %(default)s)"
    guess.add_argument("--minutes", type=positive, default=60.0, metavar="MIN", help=text)
    return p


def predict(args: argparse.Namespace, profile: Profile) -> list[dict[str, Any]]:
    """Rows of the services on this host beside the planner's figures by this profile, and their table."""
    torch.set_num_threads(1)  # more would spin on the services' cores after every request
    rows, started = list[dict[str, Any]](), time.monotonic()
    makers = [make for name, make in serve_reality.services().items() if name in args.services]
    with progress_line(total=len(makers) * len(args.loads) * args.runs, unit="run") as bar:
        for number, make in enumerate(makers, 1):
            until = started + 60 * args.minutes * number / len(makers)
            rows += serve_reality.measure(make, profile, args, until, bar)
    print(serve_reality.table(rows))
    print("\n".join(serve_reality.verdicts(rows, args.drift)))
    return rows


def run(args: argparse.Namespace) -> None:
    """Measure, print the tables, and write the rows."""
    args.loads = args.loads or ([30.0, 60.0, 90.0] if args.predict is None else [30.0, 50.0, 70.0])
    if args.seconds <= 0 or args.max_batch < 1 or min(args.loads) <= 0:
        raise InputError(
            "a number that cannot be meant", where="--seconds, --max-batch, --loads", hint="numbers above 0"
        )
    if args.predict is not None and max(args.loads) >= 100:
        hint = "below 100: above its limit a line grows for as long as the run lasts"
        raise InputError("a load that no service can bear", where="--loads", hint=hint)
    if args.groups is not None and (args.groups < 2 or args.predict is not None):
        hint = "two groups or more, and no other service beside them"
        raise InputError("groups are compared with one of them", where="--groups", hint=hint)
    check_outputs(args)
    if args.groups is not None:
        rows = groups(args)
    elif args.predict is not None:
        profile = load_profile(args.predict)
        serve_reality.check_link(args.services)
        rows = predict(args, profile)
    else:
        rows = bench(args)
    write_rows(args.json, [{**row, **machine()} for row in rows])


def bench(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of what the services can do, and their tables."""
    rows: list[dict[str, Any]] = []
    with progress_line(total=len(args.nets) * (2 + 3 * _ROUNDS + len(args.loads)), unit="part") as bar:
        for name in args.nets:
            rows += measure(NETS[name], args, bar)
    print(columns(rows, COLUMNS))
    for row in rows:
        if row["load_percent"] is None:
            print(_summary(row))
    return rows


def _summary(row: dict[str, Any]) -> str:
    """Two lines on what a service can do."""
    return (
        "{net}, {request_images} at a time: {answered_per_second:,.1f} images/s, "
        "{of_infer_percent:.0f} % of infer's {infer_images_per_second:,.1f}\n"
        "  a lone request {lone_request_milliseconds:.1f} ms, {lone_ratio:.2f} times a batch of one "
        "({batch_of_one_milliseconds:.1f} ms); {up:.2f} kB up and {down:.3f} kB down"
    ).format(**row, **{way: row[f"client_bytes_{way}_per_lone_image"] / 1e3 for way in ("up", "down")})


main = main_of(parser, run)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the services end with this program
    sys.exit(main())
