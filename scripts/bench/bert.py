"""BERT-base on 128 words between two parties on this host: seconds, processor seconds, bytes, rounds, memory, error.

    python -m scripts.bench.bert --repeats 5 --json bert.json
    python -m scripts.bench.bert --material stored --folder /dev/shm

The net is `models.bert.bert_base(choices=64)` with random weights. Its windows are [20:14); its ranges are those that
`hummingbird.find_rows` finds on four random inputs, with `error=0.008` for every GELU. Each run takes another random
input, from its shares to the opened logits. "stored": the material was dealt before, into --folder; "streamed": the
dealer works on the same cores meanwhile; "pair", "pair:silent": the two parties make it meanwhile, without a dealer.
Memory is the most that a party holds in pages of its own, without pages of
the store's file, as Linux counts it (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hummingbird
from hummingbird.bits import BitConfig, BitWindow, Rows
from hummingbird.commands.party import run_party
from hummingbird.commands.program import machine
from hummingbird.errors import InputError
from hummingbird.mpc.dealer.deal import deal
from hummingbird.mpc.dealer.store import material_facts
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.session.session import Session
from hummingbird.prg import cipher_of
from models.bert import Bert, bert_base
from scripts.bench.contest import Sample
from scripts.bench.link import Link, places
from scripts.bench.party import launch, rows_of
from scripts.program import columns, main_of, new_parser, write_rows

MODULE, WORDS, WIDTH = "scripts.bench.bert", 128, 768
MATERIALS = ("stored", "streamed", "pair", "pair:silent")
SHOWN = [
    ("material", "{material}"),
    ("run", "{run}"),
    ("s", "{seconds:.2f}"),
    ("CPU s", "{cpu_seconds:.2f}"),
    ("s waiting", "{wire_seconds:.2f}"),
    ("s for material", "{offline_seconds:.2f}"),
    ("MB sent", "{online_megabytes:.2f}"),
    ("rounds", "{rounds}"),
    ("MB offline", "{offline_megabytes:,.1f}"),
    ("GB of a party", "{own_gigabytes:.2f}"),
    ("error", "{error_percent:.3f} %"),
]


def net(layers: int) -> Bert:
    """The net, with the same weights in every process, or only its first blocks."""
    torch.manual_seed(0)
    made = bert_base(WORDS, choices=64).eval()
    made.blocks = made.blocks[:layers]
    return made


def inputs(seed: int, count: int = 1) -> Tensor:
    """Random word vectors, (count, WORDS, WIDTH)."""
    return torch.randn(count, WORDS, WIDTH, generator=torch.Generator().manual_seed(seed))


def write_bits(path: Path, layers: int) -> None:
    """Find the ranges, and write windows and ranges to a file."""
    found = hummingbird.find_rows(net(layers), inputs(0, 4))
    rows: dict[str, Rows] = {name: replace(x, error=0.008) if "gelu" in name else x for name, x in found.items()}
    BitConfig(BitWindow(20, 14)).with_rows(rows).save(path)


def write_store(bits: Path, folder: Path, slots: int, layers: int) -> None:
    """Deal the material of some runs."""
    private, shape = hummingbird.convert_model(net(layers), bits=bits, example=inputs(0)), (1, WORDS, WIDTH)
    plan, facts = dry_run(private, shape, 2), material_facts(private.facts)
    deal(
        folder,
        setup=plan.setup,
        steps=[plan.batch],
        shape=shape,
        slots=slots,
        parties=2,
        facts=facts,
        cipher=cipher_of("cpu"),
    )


@contextmanager
def most_memory(found: list[int]) -> Iterator[None]:
    """Append the most bytes that this process held in pages of its own during the block, looked at every 5 ms."""
    over, most = threading.Event(), 0

    def look() -> None:
        nonlocal most
        while not over.wait(0.005):
            text = Path("/proc/self/status").read_text()
            most = max(most, 1024 * int(re.findall(r"RssAnon:\s+(\d+) kB", text)[0]))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        found.append(most)


def timed(session: Session, compute: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run a computation of two parties that begin at once; return its result, and the figures of a row.

    Processor seconds and memory are those of the party that used more of them. Raises HummingbirdError if bits or
    rounds differ from their price (`Sample.of`).
    """
    session.channel.exchange_text("ready")
    memory = list[int]()
    with most_memory(memory), hummingbird.meter() as meter:
        started, cpu = time.perf_counter(), time.process_time()
        result = compute()
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
    sample = Sample.of(seconds, meter)
    (other,) = session.channel.exchange_text(json.dumps([used, memory[0]])).values()
    return result, {
        "seconds": seconds,
        "cpu_seconds": max(used, json.loads(other)[0]),
        "wire_seconds": sample.wire_seconds,
        "offline_seconds": sample.offline_seconds,
        "online_megabytes": sample.online_bits / 8e6,
        "offline_megabytes": sample.offline_bits / 8e6,
        "rounds": sample.rounds,
        "own_gigabytes": max(memory[0], json.loads(other)[1]) / 1e9,
    }


def error_percent(got: Tensor, expected: Tensor) -> float:
    """The largest error, in percent of the largest expected number."""
    return 100 * float((got - expected).abs().max() / expected.abs().max())


def party(args: argparse.Namespace) -> None:
    """One party: party 0 writes a row for each run."""
    session = hummingbird.init(store=args.store, dealer=args.dealer)
    plain = net(args.layers)
    private, rows = hummingbird.convert_model(plain, bits=args.bits, example=inputs(0)), list[dict[str, Any]]()
    with torch.no_grad():
        expected = [plain(inputs(1 + run)) for run in range(args.repeats + 1)] if session.rank == 0 else []
    del plain
    for run in range(args.repeats + 1):
        shared = hummingbird.cryptensor(inputs(1 + run) if session.rank == 0 else None, src=0)
        result, row = timed(session, partial(private, shared))
        opened = result.get_plain_text()
        if session.rank == 0:
            rows.append({"run": run, **row, "error_percent": error_percent(opened, expected[run])})
    hummingbird.uninit()
    if args.result is not None and session.rank == 0:
        args.result.write_text(json.dumps(rows))


def job(args: argparse.Namespace) -> None:
    """A process of the benchmark other than the first: it finds the ranges, deals, or is a party."""
    torch.set_num_threads(1)
    if args.worker == "party":
        run_party(lambda: party(args))
    elif args.worker == "bits":
        write_bits(args.bits, args.layers)
    else:
        write_store(args.bits, args.store, args.repeats + 1, args.layers)
    write_rows(args.json, [])


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows: of each material, one for each run."""
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, places(Link(), 2) as where:
        args.bits, args.store = Path(folder) / "bits.json", Path(folder) / "store"
        rows_of(MODULE, "bits", args, ["bits", "layers"])
        for material in args.material:
            words = ["--worker", "party", "--repeats", str(args.repeats), "--layers", str(args.layers)]
            words += ["--bits", str(args.bits)]
            if material == "stored":
                rows_of(MODULE, "deal", args, ["bits", "store", "repeats", "layers"])
                words += ["--store", str(args.store)]
            elif material != "streamed":
                words += ["--dealer", material]
            rows += [{"material": material, **row, **machine()} for row in launch(where, MODULE, words)]
    return rows


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(__doc__, MODULE)
    text = "where the material comes from (default: stored streamed)"
    made.add_argument("--material", nargs="+", choices=MATERIALS, default=MATERIALS[:2], help=text)
    made.add_argument("--repeats", type=int, default=5, metavar="N", help="runs after a first one (default 5)")
    made.add_argument("--layers", type=int, default=12, metavar="N", help="of the net's 12 blocks, from the first on")
    text = "where the store is dealt, 2.2 GB a run and party; default: the folder for temporary files"
    made.add_argument("--folder", type=Path, metavar="DIR", help=text)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    for hidden in ("--bits", "--store", "--result"):
        made.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    made.add_argument("--dealer", help=argparse.SUPPRESS)
    made.add_argument("--worker", choices=("bits", "deal", "party"), help=argparse.SUPPRESS)
    return made


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table and the medians."""
    if args.repeats < 1:
        raise InputError("no runs", where="--repeats", hint="a whole number from 1")
    if args.worker:
        job(args)
        return
    rows = measured(args)
    print(columns(rows, SHOWN))
    for material in args.material:
        later = [row["seconds"] for row in rows if row["material"] == material and row["run"]]
        print(f"{material}: {statistics.median(later):.2f} s, the median of all runs but the first")
    write_rows(args.json, rows)


main = main_of(parser, run)


if __name__ == "__main__":
    sys.exit(main())
