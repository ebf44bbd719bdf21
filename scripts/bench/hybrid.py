"""Inference by two parties without a dealer, timed and weighed: garbled ReLUs and transfers alone, and whole nets.

    python -m scripts.bench.hybrid --json hybrid.json
    python -m scripts.bench.hybrid --only garbling transfers
    python -m scripts.bench.hybrid --only images characterised --link 1gbit --rtt 20      # root

    bytes          by formula: Impala's count and ours, and ResNet-18 on TinyImageNet
    garbling       10,000 ReLUs with each instruction set, and the three adders of Impala's circuit beside them
    transfers      correlated oblivious transfers, both kinds, both sides
    layers         encrypted layers, by products and by taps, and a key switch
    images         the shipped nets over a socket, a server program and this one: accuracy, seconds, megabytes
    accuracy       the shipped nets in the clear and as cut, by the plaintext twin: --twin images of each
    sparse         a net with 90 % zeros: by taps, the same by products, and the dense net, side by side
    characterised  ResNet-18, ResNet-32 and VGG-16 for CIFAR-100 as in Garimella et al. (ASPLOS 2023), either garbler

Every section runs in a process of its own, one thread a side. Kernels are timed by the least of several calls, nets by
the median. Beside what is measured stand what its prices predict, the mark that was set for it, and the
figure of the paper, on its authors' machines: Impala (Choi et al., 2022), or Garimella et al. --link and --rtt are for
whole nets: tc makes the rate, and the delay where its netem is there; otherwise scripts/bench/relay.py does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain

import torch

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from hummingbird.kernels import devices
from hummingbird.progress import progress_line
from hummingbird.table import text_table
from scripts.bench import hybrid_layers, hybrid_nets, hybrid_rows, hybrid_sparse
from scripts.bench.hybrid_rows import HEAD, Row, cells
from scripts.bench.link import Link, obstacle, own_loopback
from scripts.bench.party import rows_of
from scripts.program import add_json, main_of, new_parser

_LAYERS = (hybrid_layers.layers, hybrid_layers.sparse, hybrid_layers.switching)
SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "bytes": lambda args: chain(hybrid_rows.formulas(), hybrid_rows.tiny()),
    "garbling": lambda args: hybrid_rows.garbling(args.relus),
    "transfers": lambda args: hybrid_rows.transfers(args.transfers),
    "layers": lambda args: chain(*(part(args.repeats) for part in _LAYERS)),
    "images": lambda args: hybrid_nets.shipped(args.data, args.images, args.repeats, _port(args), args.relay / 1e3),
    "sparse": lambda args: hybrid_sparse.sparse(args.data, args.repeats),
    "accuracy": lambda args: hybrid_nets.accuracy(args.data, args.twin),
    "characterised": lambda args: hybrid_nets.characterised(args.repeats, _port(args), args.relay / 1e3),
}
_PORT = 29500  # a namespace of its own has no other listener
NUMBERS = ("relus", "transfers", "images", "twin", "repeats")
_GIVEN = (*NUMBERS, "link", "rtt", "relay", "data")  # options that sections take


def work(args: argparse.Namespace) -> list[Row]:
    """The rows of one section, in this process."""
    devices.keep_freed_memory()  # as the service and the client do
    torch.set_num_threads(1)
    rows = progress_line(SECTIONS[args.worker](args), desc=args.worker, unit="row")
    over = {"link": str(_link(args)), "delay": _delayed_by(args)}
    return [{"section": args.worker, **over, **row, **machine()} for row in rows]


def _port(args: argparse.Namespace) -> int:
    return 0 if _shaped(args) == Link() else _PORT


def _link(args: argparse.Namespace) -> Link:
    return Link.parse(args.link, "--link").with_round_trip(args.rtt / 1e3)


def _shaped(args: argparse.Namespace) -> Link:
    """The part of the link that tc makes: all but a relay's delay."""
    return _link(args).with_round_trip(0.0) if args.relay else _link(args)


def _delayed_by(args: argparse.Namespace) -> str:
    return "a relay" if args.relay else "netem" if args.rtt else ""


def launch(section: str, args: argparse.Namespace) -> list[Row]:
    """A section in a process of its own, with the link as its loopback."""
    with own_loopback(_shaped(args)) as prefix:
        return rows_of("scripts.bench.hybrid", section, args, _GIVEN, prefix)


def show(section: str, rows: list[Row]) -> None:
    """Print the section's table."""
    first = rows[0]
    over = f"; {first['link']}" if first["link"] != str(Link()) else ""
    over += f", the delay by {first['delay']}" if first["delay"] else ""
    print(f"\n{section} ({first['kernels']}; {first['cpu']}{over})\n")
    print(text_table(HEAD, [cells(row) for row in rows]), flush=True)


def run(args: argparse.Namespace) -> None:
    """Run the sections, print their tables, write the rows."""
    for option in NUMBERS:
        if getattr(args, option) < 1:
            raise InputError("at least one", where=f"--{option}")
    if args.rtt < 0:
        raise InputError("a round trip takes 0 ms or more", where="--rtt")
    _link(args)
    check_outputs(args)
    if args.worker:
        args.json.write_text(json.dumps(work(args)))
        return
    if args.rtt and obstacle(Link(round_trip_seconds=args.rtt / 1e3)):
        args.relay = args.rtt / 2
    rows: list[Row] = []
    for section in args.only:
        print(f"{section} ...", file=sys.stderr)
        found = launch(section, args)
        show(section, found)
        rows += found
        if args.json:  # after each section: a later one may be interrupted
            args.json.write_text(json.dumps(rows, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS), help="default: all")
    p.add_argument("--relus", type=int, default=hybrid_rows.RELUS, help="garbled at once (default: %(default)s)")
    p.add_argument("--transfers", type=int, default=1 << 20, help="at once (default: %(default)s)")
    p.add_argument("--images", type=int, default=100, help="private ones of each shipped net (default: %(default)s)")
    p.add_argument("--twin", type=int, default=1000, help="images of each net by its twin (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=5, help="of each timing (default: %(default)s)")
    p.add_argument("--link", default="loopback", help="loopback, or a rate such as 1gbit, by tc as root")
    text = "round trip to add, by tc netem or, where that is not to be had, by a relay (default: 0)"
    p.add_argument("--rtt", type=float, default=0.0, metavar="MS", help=text)
    p.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    add_json(p)
    p.add_argument("--worker", metavar="SECTION", help=argparse.SUPPRESS)
    p.add_argument("--relay", type=float, default=0.0, metavar="MS", help=argparse.SUPPRESS)  # of each way
    return p


main = main_of(parser, run, "interrupted: sections that ended are in the file")


if __name__ == "__main__":
    sys.exit(main())
