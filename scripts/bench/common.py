"""Shared parts of the benchmarks: one piece of work by CrypTen as shipped, `gmw` and `masked`, over several links.

Every contestant is the same worker (scripts/bench/contest.py) with another protocol. `compare` starts the workers
over every link, and turns their samples into flat rows with units in the key names.

Material is dealt over a link like the parties' (`--dealers far`: a relay holds the dealer's messages back), over
loopback (`near`), or in advance.

A link that this host cannot make (scripts/bench/link.py) is computed, and says so: bits and rounds as measured on
loopback, `Cost.seconds` in place of loopback's waiting. Computation then overlaps nothing, and copying costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hummingbird.bits import BitConfig
from hummingbird.commands.output import check_outputs
from hummingbird.commands.party import run_party
from hummingbird.commands.program import device_name, machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from scripts.bench.contest import BESIDE, PARTS, PUBLISHED, Sample, store_of, window_of
from scripts.bench.link import Link, obstacle, places
from scripts.bench.party import launch
from scripts.bench.relay import relayed
from scripts.papers.plot import draw
from scripts.program import ROOT, add_json, single_threaded, write_rows

CRYPTEN = "CrypTen 0.4.1"
RATIOS = ("speedup_online", "speedup_total", "fewer_relu_bits", "fewer_bits_in_all")
_START = 60.0  # seconds for a dealer to start
NOTES = """
offline: drawing correlated randomness, or waiting for it, within the total
seeds, dealer: work on it by party 0 and by the dealer, at the same time or before
sent: online by one party; in all: by both and by the dealer; far: the dealer's link is like the parties'
online, total: times faster than CrypTen on the same link; bits: times fewer, sent by ReLU layers; all: in all
*: what a dealer would send for its triples (cost.py); as shipped, both parties draw them all"""


class Contestant(NamedTuple):
    """A protocol, and where its correlated randomness comes from."""

    name: str  # on the command line
    protocol: str
    material: str  # "drawn": by every party itself; "streamed": by a dealer during the run; "stored": before it
    aim: str | None = None


CONTESTANTS = [
    Contestant("crypten", "crypten", "drawn"),
    Contestant("published", PUBLISHED, "drawn"),
    Contestant("gmw", "gmw", "streamed"),
    Contestant("masked-latency", "masked", "streamed", "latency"),
    Contestant("masked", "masked", "streamed", "throughput"),
    Contestant("stored", "masked", "stored", "latency"),
]
DEALERS = ("near", "far")


@dataclass(frozen=True)
class Work:
    """The command `python -m module options`; for a store the net, as `--model` words, the shape of a slice of its
    input, and the slices of a run.
    """

    module: str
    options: list[str]
    model: list[str]
    shape: tuple[int, ...]
    slices: int = 1


@dataclass(frozen=True)
class Unit:
    """The unit that figures are given per: `count` of them in one run."""

    name: str
    count: int
    time: str  # "seconds" | "microseconds"
    size: str  # "bits" | "megabytes"

    def figures(self, sample: Sample) -> dict[str, float]:
        """A sample per unit, units in the key names."""
        scale = {"seconds": 1.0, "microseconds": 1e6}[self.time] / self.count
        online = sample.seconds - sample.offline_seconds
        seconds = {"": sample.seconds, "online_": online}
        seconds |= {f"{part}_": getattr(sample, f"{part}_seconds") for part in (*PARTS, *BESIDE)}
        size = {"bits": 1.0, "megabytes": 1 / 8e6}[self.size] / self.count
        dealt, whole = size * sample.offline_bits, size * in_all(sample)
        return {
            **{f"{key}{self.time}_per_{self.name}": scale * value for key, value in seconds.items()},
            f"online_{self.size}_per_{self.name}": size * sample.online_bits,
            f"offline_{self.size}_per_{self.name}": dealt,
            f"all_{self.size}_per_{self.name}": whole,
            "rounds": sample.rounds,
        }


def in_all(sample: Sample) -> int:
    """Bits that both parties and the dealer send."""
    return 2 * sample.online_bits + sample.offline_bits


def add_arguments(parser: argparse.ArgumentParser, windows: Sequence[str], repeats: int) -> None:
    """The options that both benchmarks have."""
    parser.add_argument("--windows", nargs="+", default=list(windows), metavar="K:M", help="windows to measure")
    parser.add_argument(
        "--links",
        nargs="+",
        default=["loopback"],
        metavar="LINK",
        help="loopback (default), or rates such as 10gbit 352mbit: between network namespaces shaped by tc, for root "
        "on Linux, else computed from loopback's bits and rounds",
    )
    parser.add_argument(
        "--rtt",
        nargs="+",
        type=float,
        default=[0.0],
        metavar="MS",
        help="round-trip times to add, milliseconds (default 0): by tc netem where the kernel has it, else computed",
    )
    names = [contestant.name for contestant in CONTESTANTS]
    text = "where the dealer is on a link that is no loopback: far (default), over such a link; near, for free"
    parser.add_argument("--dealers", nargs="+", choices=DEALERS, default=["far"], help=text)
    text = "which to run: CrypTen as shipped, HummingBird as published, the protocols with a dealer, masked with what "
    text += "was dealt before (all)"
    parser.add_argument("--contestants", nargs="+", choices=names, default=names, help=text)
    parser.add_argument("--device", default="cpu", help="where the parties' shares are: cpu (default), or cuda")
    shown = f"runs after one to warm up, of which the median is shown (default {repeats})"
    parser.add_argument("--repeats", type=int, default=repeats, help=shown)
    add_json(parser)
    parser.add_argument("--plot", type=Path, help="draw where the time goes, and the speedup, into a file (.png, .pdf)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    for hidden in ("--aim", "--dealer"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--store", "--result"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)


def compare(args: argparse.Namespace, work: Work, unit: Unit, labels: dict[str, Any]) -> list[dict[str, Any]]:
    """Every contestant over every link; flat rows, CrypTen's first on each link.

    labels: for all rows. Ratios are to CrypTen's row on the same link.
    """
    links = [Link.parse(text) for text in args.links]
    missing = {link: obstacle(link) for link in links}
    for link, why in missing.items():
        if why:
            print(f"{link} is computed: {why}", file=sys.stderr)
    delays = [1e-3 * milliseconds for milliseconds in args.rtt]
    netem = any(delays) and not obstacle(Link(round_trip_seconds=max(delays)))
    runs: dict[Link, list[dict[str, Any]]] = {}

    def measured(link: Link) -> list[dict[str, Any]]:
        if link not in runs:
            runs[link] = _contest(link, args, work)
        return runs[link]

    rows = []
    for link in links:
        for delay in delays:
            there = link.with_round_trip(delay)
            if missing[link]:
                found, how = [_moved(run, args.dealers[-1]) for run in measured(Link())], "computed"
                samples = [Sample(**run["sample"]).over(there, run["dealer"] == "far") for run in found]
            elif delay and not netem:
                found, how = measured(link), "round trips computed"
                samples = [Sample(**run["sample"]).delayed(delay) for run in found]
            else:
                found, how = measured(there), "measured"
                samples = [Sample(**run["sample"]) for run in found]
            rows += _rows(there, how, args.repeats, found, samples, unit, labels)
    for row in rows:
        row["device"] = device_name(args.device)
    return rows


def _rows(
    link: Link,
    how: str,
    repeats: int,
    found: list[dict[str, Any]],
    samples: list[Sample],
    unit: Unit,
    labels: dict[str, Any],
) -> list[dict[str, Any]]:
    rows = []
    for run, sample in zip(found, samples, strict=True):
        rows.append(
            {
                **labels,
                **{key: value for key, value in run.items() if key != "sample"},
                "link": str(link),
                "link_megabits_per_second": None if link.bits_per_second is None else link.bits_per_second / 1e6,
                "round_trip_milliseconds": 1e3 * link.round_trip_seconds,
                "times": how,
                "repeats": repeats,
                "parties": 2,
                **unit.figures(sample),
                "offline_size": "predicted, not dealt" if run["material"] == "drawn" else "measured",
                **(_ratios(samples[0], sample) if found[0]["protocol"] == CRYPTEN else {}),
                **machine(),
            }
        )
    return rows


def _ratios(baseline: Sample, sample: Sample) -> dict[str, float]:
    """How many times a run is better than CrypTen's."""
    online, here = (s.seconds - s.offline_seconds for s in (baseline, sample))
    return {
        "speedup_online": online / here,
        "speedup_total": baseline.seconds / sample.seconds,
        "fewer_online_bits": baseline.online_bits / max(1, sample.online_bits),  # 0: windows of no bits
        "fewer_relu_bits": baseline.relu_bits / max(1, sample.relu_bits),
        "fewer_bits_in_all": in_all(baseline) / max(1, in_all(sample)),
    }


def _contest(link: Link, args: argparse.Namespace, work: Work) -> list[dict[str, Any]]:
    """Every contestant on this link: window, sample and errors of each run."""
    out = []
    chosen = [
        (contestant, dealer)
        for contestant in CONTESTANTS
        if contestant.name in args.contestants
        for dealer in _dealers(contestant, link, args)
    ]
    for contestant, dealer in progress_line(chosen, desc=str(link), unit="protocol"):
        _, protocol, material, aim = contestant
        words = [*work.options, "--worker", protocol, "--device", args.device, "--repeats", str(args.repeats)]
        words += ["--windows", *args.windows, *([] if aim is None else ["--aim", aim])]
        with tempfile.TemporaryDirectory() as folder, places(link, 2) as where, _far(dealer, link, args) as address:
            if material == "stored":
                for window in args.windows:
                    _deal(work, protocol, window, args, Path(folder))
                words += ["--store", folder]
            words += [] if address is None else ["--dealer", address]
            runs = launch(where, work.module, words)
        name = CRYPTEN if protocol == "crypten" else protocol
        out += [{"protocol": name, "material": material, "aim": aim, "dealer": dealer, **run} for run in runs]
    return out


def _dealers(contestant: Contestant, link: Link, args: argparse.Namespace) -> Sequence[str | None]:
    """Where the dealer of a contestant is in each of its runs over this link; None without one."""
    if contestant.material != "streamed":
        return [None]
    return ["near"] if link == Link() else list(args.dealers)


def _moved(run: dict[str, Any], dealer: str) -> dict[str, Any]:
    """A run on loopback, for a link that is computed: its dealer there, if it has one."""
    return run if run["dealer"] is None else {**run, "dealer": dealer}


@contextlib.contextmanager
def _far(dealer: str | None, link: Link, args: argparse.Namespace) -> Iterator[str | None]:
    """The address of a far dealer for a run on each window; None: party 0 starts one that is near, or there is none."""
    if dealer != "far":
        yield None
        return
    address, _ = spawn_local(2, _START, len(args.windows))
    rate, far = link.bits_per_second, address.replace("dealer.sock", "far.sock")
    with relayed(address, link.round_trip_seconds / 2, listen=far, rate=rate) as relay:
        yield relay


def _deal(work: Work, protocol: str, window: str, args: argparse.Namespace, folder: Path) -> None:
    """A store for all runs in `store_of(folder, window)`, made by the command that a user would give."""
    bits = folder / "bits.json"
    BitConfig(window_of(window)).save(bits)
    command = [sys.executable, "-m", "hummingbird", "deal", "--model", *work.model, "--protocol", protocol]
    command += ["--input", "x".join(map(str, work.shape)), "--images"]
    command += [str((args.repeats + 1) * work.slices * work.shape[0]), "--device", args.device.partition(":")[0]]
    command += ["--bits", str(bits), "--out", str(store_of(folder, window))]
    environment = single_threaded()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise HummingbirdError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")


def show(title: str, rows: Sequence[dict[str, Any]], unit: Unit, errors: dict[str, tuple[str, str]]) -> None:
    """Print the rows as a table. errors: heading and format by key."""
    short = {"seconds": "s", "microseconds": "us", "bits": "bits", "megabytes": "MB"}
    time, size = short[unit.time], short[unit.size]
    head = ["protocol", "window", "material", f"{time}/{unit.name}", f"online {time}", f"offline {time}"]
    head += [
        f"seeds {time}",
        f"dealer {time}",
        f"{size} sent",
        f"offline {size}",
        f"in all {size}",
        "rounds",
        *(name for name, _ in errors.values()),
    ]
    head += ["online", "total", "bits", "all"] if "speedup_total" in rows[0] else []
    print(f"{title}; medians of {rows[0]['repeats']} runs after one to warm up")
    print("2 parties of one thread and a dealer of all on this host, three processes; seconds are those of party 0")
    for link in dict.fromkeys(row["link"] for row in rows):
        here = [row for row in rows if row["link"] == link]
        print(f"\n{link} ({here[0]['times']})\n")
        print(text_table(head, [_cells(row, unit, errors) for row in here], left=3))
    print(NOTES)


def _cells(row: dict[str, Any], unit: Unit, errors: dict[str, tuple[str, str]]) -> list[str]:
    times = [row[f"{key}{unit.time}_per_{unit.name}"] for key in ("", "online_", "offline_", "expanding_", "dealer_")]
    sent, dealt, whole = (row[f"{key}_{unit.size}_per_{unit.name}"] for key in ("online", "offline", "all"))
    drawn = "*" if row["material"] == "drawn" else ""
    return [
        " ".join(filter(None, (row["protocol"], row["aim"]))),
        row["window"],
        f"{row['material']}, far" if row["dealer"] == "far" else row["material"],
        *(f"{value:.4f}" for value in times),
        f"{sent:.2f}",
        f"{dealt:.2f}{drawn}",
        f"{whole:.2f}{drawn}",
        str(row["rounds"]),
        *(style.format(row[key]) for key, (_, style) in errors.items()),
        *(f"{row[key]:.1f}x" for key in RATIOS if key in row),
    ]


def main(
    args: argparse.Namespace,
    work: Callable[[argparse.Namespace], None],
    contest: Callable[[argparse.Namespace], list[dict[str, Any]]],
) -> None:
    """Be a worker, or run the whole benchmark; write its rows and its plot."""
    if args.worker:
        return run_party(lambda: work(args))
    try:
        for window in args.windows:
            window_of(window)
        for link in args.links:
            Link.parse(link)
        if args.repeats < 1:
            raise InputError("at least one run", where="--repeats")
        if not all(0 <= milliseconds < math.inf for milliseconds in args.rtt):
            raise InputError("a round trip takes 0 ms or more", where="--rtt")
        device_name(args.device)
        if args.device != "cpu" and "crypten" in args.contestants:
            hint = "name the others: --contestants masked stored"
            raise InputError("CrypTen as shipped is measured on the CPU", where="--contestants", hint=hint)
        if args.plot and "crypten" not in args.contestants:
            raise InputError("the plot shows times faster than CrypTen", where="--plot", hint="run crypten too")
        check_outputs(args)
        rows = contest(args)
        write_rows(args.json, rows)
        if args.plot:
            draw(rows, args.plot)
    except HummingbirdError as error:
        sys.exit(f"error: {error}")
