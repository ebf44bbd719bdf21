"""Material that two parties make themselves, between two processes on this host: time, transfers and bytes of a value.

    python -m scripts.bench.pair --transfers silent --json pair.json

The seconds are those of a party's processor and of the clock, medians of several calls for --count values of each kind.
Bytes are both parties' together, and in every call equal to the price. In the table a silent transfer has its part of
an extension, whichever call that falls into. The first row is the set-up, with the first extension. A ReLU is of
[20:12) in 36 bits, with two tables and their merge. Matrix products are those of attention with 12 heads of width 64
over 128 words, for each head. An image is one of ResNet-18 for CIFAR with windows [20:12).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import hummingbird
from hummingbird import convert
from hummingbird.bits import BitWindow
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.pair.material import PairMaterial, cost, offline_bits
from hummingbird.mpc.pair.price import DEFAULT
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.step_tables import TransferKind
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.protocols.truncation import Selection, Truncation
from hummingbird.mpc.session.session import Session
from models import get_model
from scripts.program import add_json, alone, columns, main_of, new_parser, write_rows

HEADS, IMAGE = 12, "ResNet-18, an image"


def requests(n: int) -> dict[str, tuple[int, list[Request[Any]]]]:
    """Requests of each kind, and for how many values: n, or heads."""
    values: dict[str, list[Request[Any]]] = {
        "masked ReLU": [MaskedOpening(n, 20, 12, 2, 36), And(2, n)],
        "masked ReLU, 64 bits": [MaskedOpening(n, 20, 12, 2, 64), And(2, n)],
        "three thresholds": [MaskedThresholds(n, 3, 20, 12, 2, 36, 0), And(6, n)],
        "lift, 20 to 36 bits": [Lifting(n, 20, 36)],
        "truncation by 16 bits": [Truncation(n, 16)],
        "selection": [Selection(n, 0)],
        "product, 20 and 18 bits": [LiftedProduct((n,), (n,), 20, 18, 36)],
    }
    heads: dict[str, list[Request[Any]]] = {
        "scores, 64 bits": [Triple((HEADS, 128, 64), (HEADS, 64, 128), "matmul", {})],
        "means, 54 bits": [Triple((HEADS, 128, 128), (HEADS, 128, 64), "matmul", {}, bits=54)],
        "scores, 37 bits": [Triple((HEADS, 128, 64), (HEADS, 64, 128), "matmul", {}, bits=37)],
    }
    return {
        **{name: (n, wanted) for name, wanted in values.items()},
        **{name: (HEADS, wanted) for name, wanted in heads.items()},
    }


def image() -> list[Request[Any]]:
    """The requests of one image of a ResNet-18 for CIFAR."""
    private = convert.build(get_model("resnet18", 10).eval(), BitWindow(20, 12), aim="pair")
    return list(dry_run(private, (1, 3, 32, 32), 2).batch)


def measured(
    session: Session, n: int, calls: int, transfers: TransferKind, kinds: Sequence[str]
) -> list[dict[str, Any]]:
    """A party's rows: the set-up, and one for each of these kinds, or of all if there are none."""
    alone()
    torch.set_num_threads(1)
    started, before = time.perf_counter(), time.process_time()
    with hummingbird.meter() as meter:
        party = PairMaterial(session.channel, transfers)
        party.make([And(1, 16)])
    taken, used, sent = time.perf_counter() - started, time.process_time() - before, meter.total.bits_sent
    rows = [_row("set-up", 1, [taken], [used], 0, 0, 0, meter.total.rounds) | {"sent": sent, "priced": 0}]
    wanted = requests(n)
    if IMAGE in kinds or not kinds:
        wanted[IMAGE] = 1, image()
    for name, (count, asked) in wanted.items():
        if kinds and name not in kinds:
            continue
        taken_each, used_each, sent, priced = list[float](), list[float](), 0, 0
        for _ in range(calls):
            price = cost(asked, party.stock)
            with hummingbird.meter() as meter:
                started, before = time.perf_counter(), time.process_time()
                party.make(asked)
                taken_each.append(time.perf_counter() - started)
                used_each.append(time.process_time() - before)
            sent, priced = sent + meter.total.bits_sent, priced + price.all_bits
        bits = offline_bits(asked, transfers) + price.frame_bits
        row = _row(name, count, taken_each, used_each, price.transfers, price.bits, bits, price.rounds)
        rows.append(row | {"sent": sent, "priced": priced})
    return rows


def _row(
    name: str,
    count: int,
    taken: list[float],
    used: list[float],
    transfers: int,
    bits: int,
    all_bits: int,
    rounds: int,
) -> dict[str, Any]:
    return {
        "kind": name,
        "microseconds": 1e6 * statistics.median(taken) / count,
        "processor_microseconds": 1e6 * statistics.median(used) / count,
        "transfers": transfers / count,
        "bits": bits / count,
        "bytes": all_bits / 8 / count,
        "rounds": rounds,
    }


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, write the rows."""
    if args.count < 1 or args.calls < 1:
        raise InputError("expected at least one value and one call", where="--count, --calls")
    check_outputs(args)
    if unknown := set(args.kinds) - {*requests(1), IMAGE}:
        raise InputError(f"no kind {min(unknown)!r}", where="--kinds", hint=f"{', '.join(requests(1))}, {IMAGE}")
    both = hummingbird.launch(measured, args.count, args.calls, args.transfers, args.kinds)
    rows = []
    for first, second in zip(*both, strict=True):
        sent, priced = first.pop("sent") + second.pop("sent"), first.pop("priced")
        if rows and sent != priced:
            raise HummingbirdError(f"{first['kind']}: other bits than are priced", where="scripts.bench.pair")
        if not rows:
            first["bytes"] = sent / 8
        keys = "microseconds", "processor_microseconds"
        rows.append(first | {key: max(first[key], second[key]) for key in keys})
    shown = [
        *(("kind", "{kind}"), ("us", "{microseconds:.2f}"), ("us of a processor", "{processor_microseconds:.2f}")),
        *(("transfers", "{transfers:.1f}"), ("bits", "{bits:,.0f}"), ("bytes in all", "{bytes:,.1f}")),
        ("rounds", "{rounds}"),
    ]
    print(columns(rows, shown))
    write_rows(args.json, [row | {"count": args.count, "made": str(args.transfers), **machine()} for row in rows])


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--count", type=int, default=100_000, help="values in one call (default: %(default)s)")
    p.add_argument("--calls", type=int, default=5, help="calls, whose median counts (default: %(default)s)")
    text = "how random transfers are made: softspoken, silent, or silent:BITS with another price (default: %(default)s)"
    p.add_argument("--transfers", type=TransferKind.of, default=DEFAULT, metavar="KIND", help=text)
    p.add_argument("--kinds", nargs="*", default=(), metavar="KIND", help="rows to measure (default: all)")
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
