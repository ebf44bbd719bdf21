"""Time, bits and rounds of a ReLU: CrypTen as shipped against the reduced ring, two processes on this host.

    python -m scripts.bench_relu --json relu.json

Online and offline seconds are taken apart on both sides: for CrypTen offline is the time in its provider (both
parties draw all triples), here it is the expansion of seeds plus the wait for the dealer, which is a third process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the project's folder must be importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tqdm import tqdm

from hummingbird.bits import BitWindow
from hummingbird.table import text_table
from scripts.party import machine, run_party, torchrun

WINDOWS = [BitWindow(64, 0), BitWindow(20, 0), BitWindow(20, 12), BitWindow(18, 12)]


def values(count: int) -> torch.Tensor:
    """Inputs within every window's range: |x| < 2 is 2^17 in the ring."""
    return torch.empty(count).uniform_(-1.9, 1.9, generator=torch.Generator().manual_seed(0))


def crypten_worker(args: argparse.Namespace) -> None:
    """One party of CrypTen as shipped."""
    from scripts.crypten_baseline import start

    rank, counter = start()
    from hummingbird.mpc._crypten import crypten

    x = crypten.cryptensor(values(args.count), src=0)
    rows = []
    for _ in range(args.repeats + 1):
        crypten.communicator.get().barrier()
        counter.rounds = counter.bits = 0
        counter.provider_seconds = 0.0
        started = time.perf_counter()
        with crypten.no_grad():
            y = x.relu()
        rows.append((time.perf_counter() - started, counter.provider_seconds, counter.bits, counter.rounds))
    error = float((y.get_plain_text() - values(args.count).relu()).abs().max())
    if rank == 0:
        args.json.write_text(json.dumps([row("CrypTen 0.4.1", BitWindow(64, 0), args.count, rows[1:], error, None)]))


def gmw_worker(args: argparse.Namespace) -> None:
    """One party of the reduced ring, all windows."""
    from hummingbird import cost
    from hummingbird.mpc import session as sessions
    from hummingbird.mpc._crypten import share_of
    from hummingbird.mpc.activations import relu
    from hummingbird.wire.meter import meter

    session = sessions.init()
    torch.set_num_threads(1)
    x = sessions.cryptensor(values(args.count) if session.rank == 0 else None, src=0)
    out = []
    for window in WINDOWS:
        rows = []
        for _ in range(args.repeats + 1):
            session.channel.exchange_text("ready")
            with meter() as m:
                started = time.perf_counter()
                y, _ = relu(share_of(x), 16, window)
                seconds = time.perf_counter() - started
            total = m.total
            rows.append((seconds, total.offline_seconds, total.bits_sent, total.rounds))
            predicted = cost.relu(args.count, window.w, 0, session.parties)
            assert (total.bits_sent, total.rounds) == (predicted.bits, predicted.rounds), "the meter and cost.py differ"
        opened = y.clone()
        for theirs in session.channel.exchange(y).values():
            opened += theirs[0]
        error = float((opened.double() / 2**16 - values(args.count).relu().double()).abs().max())
        out.append(row("gmw", window, args.count, rows[1:], error, total.offline_bits / args.count))
    if session.rank == 0:
        args.json.write_text(json.dumps(out))


def row(
    name: str, window: BitWindow, count: int, rows: list[Any], error: float, offline_bits: float | None
) -> dict[str, Any]:
    """Medians of the repeats, per ReLU."""
    seconds, offline, bits, rounds = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "protocol": name,
        "window": str(window),
        "elements": count,
        "microseconds_per_relu": 1e6 * seconds / count,
        "online_microseconds_per_relu": 1e6 * (seconds - offline) / count,
        "offline_microseconds_per_relu": 1e6 * offline / count,
        "online_bits_per_relu": bits / count,
        "offline_bits_per_relu": offline_bits,
        "rounds": rounds,
        "largest_error": error,
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=10**6, help="ReLUs at once (default 10^6)")
    p.add_argument(
        "--repeats", type=int, default=5, help="measured repeats after one to warm up; medians are shown (default 5)"
    )
    p.add_argument("--json", type=Path, help="write the rows to a file")
    p.add_argument("--worker", choices=("crypten", "gmw"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker == "crypten":
        return crypten_worker(args)
    if args.worker == "gmw":
        return run_party(lambda: gmw_worker(args))
    rows = []
    for worker in tqdm(("crypten", "gmw"), unit="protocol", leave=False):
        options = ["--worker", worker, "--count", str(args.count), "--repeats", str(args.repeats)]
        rows += torchrun(2, "scripts.bench_relu", options)
    baseline = rows[0]
    for r in rows:
        r["speedup_online"] = baseline["online_microseconds_per_relu"] / r["online_microseconds_per_relu"]
        r["speedup_total"] = baseline["microseconds_per_relu"] / r["microseconds_per_relu"]
        r |= machine()
    head = (
        "protocol",
        "window",
        "online us",
        "offline us",
        "bits",
        "offline bits",
        "rounds",
        "error",
        "online",
        "total",
    )
    cells = [
        (
            r["protocol"],
            r["window"],
            f"{r['online_microseconds_per_relu']:.3f}",
            f"{r['offline_microseconds_per_relu']:.3f}",
            f"{r['online_bits_per_relu']:.1f}",
            "-" if r["offline_bits_per_relu"] is None else f"{r['offline_bits_per_relu']:.1f}",
            f"{r['rounds']:.0f}",
            f"{r['largest_error']:.1e}",
            f"{r['speedup_online']:.1f}x",
            f"{r['speedup_total']:.1f}x",
        )
        for r in rows
    ]
    print(f"{args.count:,} ReLUs, 2 parties on loopback, per ReLU and party, medians of {args.repeats}\n")
    print(text_table(head, cells, left=2))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
