"""Time, bits and rounds of a ReLU: CrypTen as shipped, `gmw` and `masked`, two processes on this host.

    python -m scripts.bench.relu --json relu.json
    python -m scripts.bench.relu --links loopback 10gbit 352mbit --rtt 0 20 --plot relu.png

Online and offline seconds are taken apart on all sides: for CrypTen offline is the time in its provider (both parties
draw all triples), here it is the expansion of seeds plus the wait for material from the dealer, a third process.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

from scripts.bench import common
from scripts.bench.contest import run_worker
from scripts.program import new_parser

WINDOWS = ("64:0", "20:0", "20:12", "18:12")


def values(count: int) -> Tensor:
    """Inputs within every window's range, one row: |x| < 1.9 is below 2^17 in the ring."""
    return torch.empty(1, count).uniform_(-1.9, 1.9, generator=torch.Generator().manual_seed(0))


def work(args: argparse.Namespace) -> None:
    """One party."""

    def errors(opened: Tensor, plain: Tensor) -> dict[str, float]:
        return {"largest_error": float((opened.double() - plain.double()).abs().max())}

    run_worker(args, nn.ReLU().eval(), values(args.count), errors)


def contest(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, printed as a table."""
    unit = common.Unit("relu", args.count, "microseconds", "bits")
    job = common.Work("scripts.bench.relu", ["--count", str(args.count)], ["torch.nn:ReLU"], (1, args.count))
    rows = common.compare(args, job, unit, {"elements": args.count})
    common.show(f"{args.count:,} ReLUs at once", rows, unit, {"largest_error": ("error", "{:.1e}")})
    return rows


def main() -> None:
    p = new_parser(__doc__)
    p.add_argument("--count", type=int, default=10**6, help="ReLUs at once (default 10^6)")
    common.add_arguments(p, WINDOWS, 5)
    p.set_defaults(opening=False)
    common.main(p.parse_args(), work, contest)


if __name__ == "__main__":
    main()
