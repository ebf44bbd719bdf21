"""Inference on ciphertexts, timed: nets, kernels, the plain torch path, and each optimisation switched off in turn.

    python -m scripts.bench.he --json he.json
    python -m scripts.bench.he --only kernels ablation
    python -m scripts.bench.he --only sparse    # a net with 90 % zeros beside the same net without
    python -m scripts.bench.he --only sockets --link 10gbit    # for root

Every net runs in a process of its own with one thread; over a socket, client and server have one thread each. The
CryptoNets run several times, the fast and the torch path taking turns, and medians are shown. Marks stand beside the
figures, and those of nGraph-HE2 (Boemer et al., WAHC 2019: Xeon Platinum 8180, one thread for the CryptoNets, 24
threads over a local network, 56 threads for MobileNetV2).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import device_name, machine
from hummingbird.errors import InputError
from hummingbird.kernels import devices
from hummingbird.progress import progress_line
from scripts.bench import he_ablation, he_kernels, he_nets
from scripts.bench.link import Link, own_loopback
from scripts.bench.party import rows_of
from scripts.program import add_json, columns, main_of, maybe, new_parser, write_rows

Rows = list[dict[str, Any]]
SECTIONS = ("nets", "torch", "sockets", "mobilenet", "sparse", "kernels", "ablation")
ACTIVATIONS = ("relu", "square")
_KINDS = {"sockets": ACTIVATIONS, "sparse": he_nets.PRUNED}
_PORT = 29500  # a namespace of its own has no other listener
_GIVEN = ("images", "batch", "size", "repeats", "device", "data", "link")  # options that jobs take
_PATHS = ("nets", "torch")  # that run the same nets
_PASSES = 2  # over the images of such a run
_MARKS = {"cryptonets-relu": 0.15, "cryptonets-square": 1.2}  # milliseconds per image
_PAPER = {
    "cryptonets-relu": 1.44,
    "cryptonets-square": 7.23,
    "mobilenetv2-0.35-96": 27.0,
    "mobilenetv2-0.35-224": 129.0,
}
_SOCKET_MARK, _SOCKET_PAPER = {"cryptonets-relu": 5000}, {"cryptonets-relu": 2959, "cryptonets-square": 1998}
_GIGABYTES_PAPER = {"mobilenetv2-0.35-96": 60, "mobilenetv2-0.35-224": 324}


def work(args: argparse.Namespace) -> Rows:
    """The rows of one job, in this process: SECTION, or SECTION:KIND, an activation or a pruned net."""
    devices.keep_freed_memory()  # as the service does
    section, _, activation = args.worker.partition(":")
    if section in ("kernels", "ablation"):
        module = he_kernels if section == "kernels" else he_ablation
        with progress_line(total=module.STEPS, desc=args.worker) as bar:
            rows = module.measure(bar.update)
    elif section == "mobilenet":
        given, name = he_nets.mobilenet(args.size, args.batch), f"mobilenetv2-0.35-{args.size}"
        with progress_line(total=args.batch, desc=name, unit="image") as bar:
            rows = [he_nets.in_process(name, given, bar.update, device=args.device)]
    elif section == "sparse":
        given = he_nets.impala(activation, args.data, args.batch)
        with progress_line(total=len(given.images), desc=activation, unit="image") as bar:
            rows = [{"zeros": he_nets.zeros(given.net)} | he_nets.in_process(activation, given, bar.update)]
    else:
        given, name = he_nets.cryptonets(activation, args.data, args.images), f"cryptonets-{activation}"
        if section == "sockets":
            link = Link.parse(args.link, "--link")
            row = he_nets.over_a_socket(name, activation, given, args.repeats, 0 if link == Link() else _PORT)
            rows = [row | {"link": str(link)}]
        else:
            with progress_line(total=_PASSES * len(given.images), desc=args.worker, unit="image") as bar:
                rows = [he_nets.in_process(name, given, bar.update, _PASSES)]
    return [{"section": section, **row, **machine()} for row in rows]


def jobs(sections: list[str], repeats: int) -> list[str]:
    """Sections to run, one process each; the torch path needs the fast one to compare with, and takes turns with it."""
    paths = [path for path in _PATHS if path in sections or "torch" in sections]
    listed = [f"{path}:{activation}" for activation in ACTIVATIONS for _ in range(repeats) for path in paths]
    for section in SECTIONS:
        if section in sections and section not in _PATHS:
            kinds = _KINDS.get(section)
            listed += [section] if kinds is None else [f"{section}:{kind}" for kind in kinds]
    return listed


def medians(rows: Rows) -> Rows:
    """The median of several runs of a net, on the torch path with the median of how many times longer it took than
    the run of the fast path before it.
    """
    runs: dict[tuple[str, str], Rows] = {}
    for row in rows:
        if row["section"] in _PATHS:
            runs.setdefault((row["section"], row["net"]), []).append(row)
    chosen = []
    for (path, net), repeats in runs.items():
        times = [row["milliseconds_per_image"] for row in repeats]
        row = repeats[times.index(statistics.median_low(times))]
        if path == "torch":
            ratios = [a / b["milliseconds_per_image"] for a, b in zip(times, runs["nets", net], strict=True)]
            row["times_the_fast_path"] = statistics.median(ratios)
        chosen.append(row)
    return chosen + [row for row in rows if row["section"] not in _PATHS]


def show(rows: Rows) -> None:
    """Print a table for every section."""
    for section in SECTIONS:
        here = [row for row in rows if row["section"] == section]
        if here:
            print(f"\n{section} ({here[0]['kernels']}; {here[0]['cpu']})\n")
            print(columns(here, _TABLES[section]))


def _beside(numbers: dict[str, float], digits: int) -> Callable[[Any], str]:
    """The cell of a mark, or of a paper's figure, by the row's net."""
    return lambda row: f"{numbers[row['net']]:,.{digits}f}" if row["net"] in numbers else ""


_KILOBYTES = [(f"kB {way}", f"{{kilobytes_{way}_per_image:,.1f}}") for way in ("up", "down")]
_ACCURACIES = [
    (name.partition("_")[0], lambda row, name=name: f"{100 * row[name]:.2f} %" if name in row else "")
    for name in ("accuracy", "torch_accuracy")
]
_NETS = [
    ("net", "{net}"),
    ("ms/image", "{milliseconds_per_image:,.3f}"),
    *((part, f"{{{part}_milliseconds_per_image:,.3f}}") for part in ("encrypt", "server", "decrypt", "client")),
    *(("mark", _beside(_MARKS, 2)), ("paper", _beside(_PAPER, 2))),
    *_KILOBYTES,
    *(("GB", "{peak_gigabytes:,.2f}"), ("predicted", "{predicted_gigabytes:,.2f}")),
    ("paper", _beside(_GIGABYTES_PAPER, 0)),
    *_ACCURACIES,
    *(("other", "{other_answers}"), ("error", "{largest_error:.1e}"), ("x fast", maybe("times_the_fast_path", ",.2f"))),
]
_SPARSE = [_NETS[0], ("zeros", "{zeros:.0%}"), *_NETS[1:]]
_SOCKETS = [
    *(("net", "{net}"), ("link", "{link}"), ("images/s", "{images_per_second:,.0f}")),
    *(("mark", _beside(_SOCKET_MARK, 0)), ("paper", _beside(_SOCKET_PAPER, 0))),
    *_KILOBYTES,
    *_ACCURACIES,
    ("other", "{other_answers}"),
]
_KERNELS = [
    *(("kernel", "{kernel}"), ("us", maybe("microseconds", ",.2f")), ("mark", maybe("mark_microseconds", ",.1f"))),
    *(("SEAL", maybe("seal_microseconds", ",.0f")), ("ms", maybe("milliseconds", ",.2f"))),
    ("G mul-adds/s", maybe("g_multiply_adds_per_second", ",.1f")),
]
_ABLATION = [
    *(("optimisation", "{optimisation}"), ("on ms", "{on_milliseconds:,.2f}"), ("off ms", "{off_milliseconds:,.2f}")),
    ("off / on", "{ratio:,.2f}"),
    *((f"{way} error", maybe(f"{way}_error", ".1e")) for way in ("on", "off")),
    *((f"{way} MB", maybe(f"{way}_bytes", ",.2f", 1e-6)) for way in ("on", "off")),
    ("measured", "{measured}"),
]
_TABLES = dict(zip(SECTIONS, (_NETS, _NETS, _SOCKETS, _NETS, _SPARSE, _KERNELS, _ABLATION), strict=True))


def run(args: argparse.Namespace) -> None:
    """Run all jobs, print the tables, write the rows."""
    for option in ("images", "batch", "repeats"):
        if getattr(args, option) < 1:
            raise InputError("at least one", where=f"--{option}")
    if args.size < 32:
        raise InputError(f"images of {args.size} pixels", where="--size", hint="at least 32")
    device_name(args.device)
    if args.device != "cpu" and args.only != ["mobilenet"]:
        hint = "give --only mobilenet"
        raise InputError("the other sections are measured on the CPU", where="--device", hint=hint)
    if Link.parse(args.link, "--link") != Link() and args.only != ["sockets"] and not args.worker:
        raise InputError("the other sections send nothing", where="--link", hint="give --only sockets")
    check_outputs(args)
    if args.worker:
        args.json.write_text(json.dumps(work(args)))
        return
    rows: Rows = []
    listed = jobs(args.only, args.repeats)
    for number, job in enumerate(listed, 1):
        print(f"{number} of {len(listed)}: {job}", file=sys.stderr)
        variables = {"HUMMINGBIRD_KERNELS": "torch"} if job.startswith("torch") else {}
        with own_loopback(Link.parse(args.link, "--link")) as prefix:
            rows += rows_of("scripts.bench.he", job, args, _GIVEN, prefix, **variables)
    rows = medians(rows)
    show(rows)
    write_rows(args.json, rows)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="default: all")
    p.add_argument("--images", type=int, default=10000, help="of MNIST's test images (default: %(default)s)")
    text = "images for MobileNetV2 and for sparse nets (default: %(default)s)"
    p.add_argument("--batch", type=int, default=2048, help=text)
    p.add_argument("--size", type=int, default=96, help="their height and width (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=3, help="runs of each of the CryptoNets (default: %(default)s)")
    p.add_argument("--device", default="cpu", help="for MobileNetV2: cpu (default) or cuda, at client and server")
    p.add_argument("--link", default="loopback", help="for sockets: loopback, or a rate such as 10gbit, by tc as root")
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    add_json(p)
    p.add_argument("--worker", metavar="JOB", help=argparse.SUPPRESS)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
