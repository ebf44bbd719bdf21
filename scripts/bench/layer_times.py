"""Where an image's time goes: milliseconds of party 0 by stage of ResNet-18, two parties and a dealer on this host.

    python -m scripts.bench.layer_times --batches 40

Weights and windows are those that ship (8 bits of 64), images are random: neither changes a time. The figures are those
of the quickest of all batches, so that they add up, and what else runs on the machine counts least. It prints the table
that docs/benchmarks.md shows, and `scripts.papers.figures` draws.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hummingbird
from hummingbird.channel.meter import MeterRow
from hummingbird.errors import InputError
from models import MODELS, get_model, load_checkpoint
from scripts.program import ROOT, main_of, new_parser

HEAD = ("stage", "computes", "waits for party 1", "waits for the dealer")
REST = "other layers"
Times = dict[str, list[float]]  # milliseconds per image in the order of HEAD, by stage


def measured(
    session: Any, net: nn.Module, shape: Sequence[int], bits: Path, batches: int
) -> list[list[dict[str, Any]]]:
    """The meter's rows of every batch of `shape` but a first one, at this party."""
    private = hummingbird.convert_model(net, bits=bits)
    found = []
    for _ in range(batches + 1):
        shared = hummingbird.cryptensor(torch.rand(*shape) if session.rank == 0 else None, src=0)
        with hummingbird.meter() as meter:
            private(shared).get_plain_text(dst=0)
        found.append([vars(row) for row in meter.rows.values()])
    return found[1:]


def by_stage(rows: Iterable[MeterRow], images: int) -> Times:
    """The rows of a batch by stage: an outermost module that holds ReLUs, a ReLU of its own, and all other layers."""
    rows, found = list(rows), Times()
    stages = {row.layer.partition(".")[0] for row in rows if row.window and "." in row.layer}
    for row in rows:
        stage = row.layer.partition(".")[0]
        name = f"{stage}: {'ReLUs' if row.window else 'linear'}" if stage in stages else stage if row.window else REST
        before = found.setdefault(name, [0.0, 0.0, 0.0])
        found[name] = [first + 1e3 * second / images for first, second in zip(before, _seconds(row), strict=True)]
    return {**{name: times for name, times in found.items() if name != REST}, REST: found.get(REST, [0.0] * 3)}


def quickest(batches: Iterable[Sequence[MeterRow]]) -> Sequence[MeterRow]:
    """The batch that took the least time in all."""
    return min(batches, key=lambda rows: sum(sum(_seconds(row)) for row in rows))


def _seconds(row: MeterRow) -> tuple[float, float, float]:
    return row.compute_seconds, row.wait_seconds, row.offline_seconds


def markdown(times: Times) -> str:
    """The table of the page."""
    total = [sum(column) for column in zip(*times.values(), strict=True)]
    rows = [*times.items(), ("all", total)]
    cells = [[name, *(f"{figure:.2f}" for figure in figures)] for name, figures in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [HEAD, ("---", "---:", "---:", "---:"), *cells])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, "scripts.bench.layer_times")
    made.add_argument("--model", choices=("resnet18", "digits"), default="resnet18", help="default: resnet18")
    made.add_argument("--batch", type=int, default=8, metavar="B", help="images of a batch; default: 8")
    made.add_argument("--batches", type=int, default=40, metavar="N", help="of which the quickest counts; default: 40")
    return made


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table."""
    if args.batch < 1 or args.batches < 1:
        raise InputError("no images", where="--batch, --batches", hint="whole numbers from 1")
    weights, bits = {
        "resnet18": ("resnet18-cifar10.pt", "resnet18-cifar10-8-64.bits.json"),
        "digits": ("digits.pt", "digits.bits.json"),
    }[args.model]
    net = load_checkpoint(ROOT / "checkpoints" / weights, get_model(args.model, 10)).eval()
    shape = (args.batch, *MODELS[args.model].input_shape)
    first, _ = hummingbird.launch(measured, net, shape, ROOT / "checkpoints" / bits, args.batches)
    rows = quickest([[MeterRow(**row) for row in rows] for rows in first])
    print(markdown(by_stage(rows, args.batch)))


main = main_of(parser, run, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
