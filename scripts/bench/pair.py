"""Material that two parties make themselves, between two processes on this host: time, transfers and bytes of a value.

    python -m scripts.bench.pair --json pair.json

The seconds are those of a party's processor and of the clock, the least of several calls for --count values of each
kind; bytes are both parties' together, and equal to the price. A ReLU is of [20:12) in 36 bits, with two tables and
their merge. Matrix products are those of attention with 12 heads of width 64 over 128 words, for each head.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import hummingbird
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.pair.material import PairMaterial, cost
from hummingbird.mpc.protocols.beaver import Triple
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.lift import Lifting
from hummingbird.mpc.protocols.lifted_product import LiftedProduct
from hummingbird.mpc.protocols.masked import MaskedOpening
from hummingbird.mpc.protocols.thresholds import MaskedThresholds
from hummingbird.mpc.protocols.truncation import Selection, Truncation
from hummingbird.mpc.session.session import Session
from scripts.program import add_json, alone, columns, main_of, new_parser, write_rows

HEADS = 12


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


def measured(session: Session, n: int, calls: int) -> list[dict[str, Any]]:
    """A party's rows; HummingbirdError if the meter counts other bits than are priced."""
    alone()
    party, rows = PairMaterial(session.channel), []
    for name, (count, wanted) in requests(n).items():
        taken, used, price = [], [], cost(wanted)
        for _ in range(calls):
            with hummingbird.meter() as meter:
                started, before = time.perf_counter(), time.process_time()
                party.make(wanted)
                taken.append(time.perf_counter() - started)
                used.append(time.process_time() - before)
        sent = meter.total.bits_sent
        rows.append(
            {
                "kind": name,
                "microseconds": 1e6 * min(taken) / count,
                "processor_microseconds": 1e6 * min(used) / count,
                "transfers": price.transfers / count,
                "bits": price.bits / count,
                "bytes": price.all_bits / 8 / count,
                "rounds": price.rounds,
                "sent": sent,
                "priced": price.all_bits,
            }
        )
    return rows


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, write the rows."""
    if args.count < 1 or args.calls < 1:
        raise InputError("expected at least one value and one call", where="--count, --calls")
    check_outputs(args)
    both = hummingbird.launch(measured, args.count, args.calls)
    rows = []
    for first, second in zip(*both, strict=True):
        if first.pop("sent") + second.pop("sent") != first.pop("priced"):
            raise HummingbirdError(f"{first['kind']}: other bits than are priced", where="scripts.bench.pair")
        keys = "microseconds", "processor_microseconds"
        rows.append(first | {key: max(first[key], second[key]) for key in keys})
    shown = [
        *(("kind", "{kind}"), ("us", "{microseconds:.2f}"), ("us of a processor", "{processor_microseconds:.2f}")),
        *(("transfers", "{transfers:.1f}"), ("bits", "{bits:,.0f}"), ("bytes in all", "{bytes:,.1f}")),
        ("rounds", "{rounds}"),
    ]
    print(columns(rows, shown))
    write_rows(args.json, [row | {"count": args.count, **machine()} for row in rows])


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--count", type=int, default=100_000, help="values in one call (default: %(default)s)")
    p.add_argument("--calls", type=int, default=5, help="calls, of which the quickest counts (default: %(default)s)")
    add_json(p)
    return p


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
