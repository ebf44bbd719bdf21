"""Private lookups over gRPC: two server programs on this host, clients that ask at given rates, latencies as they see.

    python -m scripts.bench.pir_service --json pir-service.json
    python -m scripts.bench.pir_service --rows 1048576 --dim 64 --loads 50 200 800 --keys 1 --windows 1:0 192:2 192:20

Requests arrive at random times (a Poisson process) whether or not earlier ones have been answered, so waiting counts. A
request is one inference of `--keys` lookups. A window N:MS lets queries wait for MS milliseconds or N keys; 1:0 takes
every request alone, which shows what batching gives. Client and servers share this machine's cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.pir import Client
from hummingbird.pir.table_server import Remote
from hummingbird.progress import progress_line
from scripts.bench.party import serving
from scripts.program import add_json, columns, main_of, new_parser, write_rows

THREADS = 128  # requests under way at the client


@contextmanager
def programs(folder: Path, window: str, workers: int) -> Iterator[list[str]]:
    """Addresses of two server programs, with one thread each, or with worker processes."""
    batch, wait = window.split(":")
    addresses = [f"unix:{folder}/{party}" for party in (0, 1)]
    words = ["pir-server", "--table", str(folder / "table.npy"), "--max-batch", batch, "--max-wait", wait]
    words += ["--threads", "1", "--workers", str(workers)]
    with serving(*([*words, "--party", str(party), "--listen", at] for party, at in enumerate(addresses))):
        yield addresses


def counters(client: Client) -> dict[str, Any]:
    """Counts of party 0."""
    link = client.links[0]
    assert isinstance(link, Remote)
    counted: dict[str, Any] = json.loads(link.begin(b"", "Metrics")())
    return counted


def offer(client: Client, load: float, keys: int, seconds: float) -> dict[str, Any]:
    """Lookups at `load` a second, in requests of `keys`: what became of them."""
    generator, rate = random.Random(0), load / keys
    latencies: list[float] = []
    errors: list[str] = []

    def ask(due: float, indices: torch.Tensor) -> None:
        try:
            client.rows(indices)
        except HummingbirdError as error:
            errors.append(error.what)
        else:
            latencies.append(time.perf_counter() - due)

    before, started = counters(client), time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        due = started
        while (due := due + generator.expovariate(rate)) < started + seconds:
            indices = torch.randint(0, client.facts.rows, (keys,))
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(ask, due, indices)
    took, after = time.perf_counter() - started, counters(client)
    queries, passes = (after[name] - before[name] for name in ("queries", "passes"))
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [float("nan")] * 99
    return {
        "offered_per_second": load,
        "keys": keys,
        "answered_per_second": len(latencies) * keys / took,
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "mean_batch": queries / passes if passes else 0.0,
        "busy": (after["busy_seconds"] - before["busy_seconds"]) / took,
        "errors": len(errors),
    }


def measure(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    for window in args.windows:
        with programs(folder, window, args.workers) as addresses:
            client = Client(addresses, timeout=120.0, decoder=args.decoder, prf=args.prf)
            try:
                client.rows(torch.zeros(args.keys[0], dtype=torch.int64))
                for keys, load in itertools.product(args.keys, args.loads):
                    yield {"window": window, **offer(client, load, keys, args.seconds)}
            finally:
                client.close()


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    p.add_argument("--rows", type=int, default=1 << 20, help="rows of the table (default 2^20)")
    p.add_argument("--dim", type=int, default=64, help="float32 in a row (default 64: 256 bytes)")
    p.add_argument(
        "--loads", type=float, nargs="+", default=[20, 100, 400], help="lookups a second (default 20 100 400)"
    )
    p.add_argument("--keys", type=int, nargs="+", default=[1], help="lookups in a request (default 1)")
    p.add_argument("--windows", nargs="+", default=["1:0", "192:2", "192:20"], help="N:MS (default 1:0 192:2 192:20)")
    p.add_argument("--seconds", type=float, default=10.0, help="for each load (default 10)")
    p.add_argument("--workers", type=int, default=0, help="worker processes of each server (default none)")
    p.add_argument("--decoder", choices=("xor", "sum"), default="xor")
    p.add_argument("--prf", choices=("aes", "chacha12"), default="aes")
    add_json(p)
    return p


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, and write the rows."""
    if min(args.rows, args.dim, *args.keys) < 1 or min(args.seconds, *args.loads) <= 0 or args.workers < 0:
        where = "--rows, --dim, --keys, --seconds, --loads, --workers"
        raise InputError("a number that cannot be meant", where=where, hint="at least 1, and rates above 0")
    if wrong := [window for window in args.windows if not re.fullmatch(r"\d+:\d+(\.\d+)?", window)]:
        raise InputError(f"{wrong[0]!r} is no window", where="--windows", hint="N:MS, as 192:2")
    check_outputs(args)
    with tempfile.TemporaryDirectory(prefix="hb") as name:
        folder = Path(name)
        table = np.lib.format.open_memmap(folder / "table.npy", "w+", np.float32, (args.rows, args.dim))
        for start in range(0, args.rows, 1 << 16):
            part = table[start : start + (1 << 16)]
            part[:] = torch.randn(part.shape).numpy()
        del table
        total = len(args.windows) * len(args.keys) * len(args.loads)
        rows = list(progress_line(measure(args, folder), total=total, unit="load"))
    shown = [
        *(("window", "{window}"), ("keys", "{keys}"), ("offered/s", "{offered_per_second:,.0f}")),
        *(("answered/s", "{answered_per_second:,.1f}"), ("p50 ms", "{p50_ms:,.1f}"), ("p99 ms", "{p99_ms:,.1f}")),
        *(("batch", "{mean_batch:.1f}"), ("busy", "{busy:.0%}"), ("errors", "{errors}")),
    ]
    print(f"{args.rows:,} rows of {4 * args.dim} bytes, two servers and the client on {os.cpu_count()} cores")
    print(columns(rows, shown))
    facts = {"rows": args.rows, "row_bytes": 4 * args.dim, "workers": args.workers, **machine()}
    write_rows(args.json, [{**row, **facts} for row in rows])


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
