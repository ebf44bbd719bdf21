"""A service under a steady load for a long time: does anything grow?

    python -m scripts.bench.soak --minutes 60 --json soak.json
    python -m scripts.bench.soak --minutes 10 --rate 5 --images 4

Two parties and a dealer on this host, and this process as the client. Requests arrive at random times (a Poisson
process), by default at 60 % of what the service answers when it is always busy, which is measured first; every answer
is compared with the net's own. Memory, file handles and threads of each process are sampled; after a tenth of the time,
in which pools fill, none of them should grow. Threads follow the calls under way, at most 32 of this client: what must
not grow is the most of them in a tenth of the time. Reads /proc: Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hummingbird import Client
from hummingbird.commands.output import check_outputs
from hummingbird.commands.program import machine
from hummingbird.commands.sources import net_of
from hummingbird.errors import EnvironmentProblem, HummingbirdError
from hummingbird.progress import progress_line
from hummingbird.rpc.options import count, positive, shape
from scripts.bench.link import free_port
from scripts.bench.party import serving
from scripts.program import columns, main_of, new_parser, write_rows

DIGITS = ["models:get_model", "digits", "10"]
THREADS = 32  # requests under way at the client
CLOSE = 0.01  # of exact comparisons: what is left is rounding
_FLAT = 0.05  # growth of memory that is none
_ONE = 1  # thread more than before is no growth


class Sample(NamedTuple):
    """One process at one moment; memory in MB."""

    memory: float
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        """The sample now; EnvironmentProblem for a process that has ended."""
        try:
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            files = len(os.listdir(f"/proc/{pid}/fd"))
            return cls(int(fields["VmRSS"].split()[0]) / 1e3, files, int(fields["Threads"]))
        except (FileNotFoundError, KeyError):
            raise EnvironmentProblem(f"process {pid} has ended", hint="its message is above") from None


@contextlib.contextmanager
def programs(args: argparse.Namespace, net: torch.nn.Module, folder: str) -> Iterator[tuple[list[str], dict[str, int]]]:
    """Addresses of two parties, which have the weights of `net`, and the ids of all processes by name."""
    weights = f"{folder}/weights.pt"
    torch.save(net.state_dict(), weights)
    size = "x".join(map(str, args.input))
    serve = ["serve", "--model", *args.model, "--weights", weights, "--input", size]
    serve += ["--listen", f"unix:{folder}/{{rank}}", "--dealer", f"unix:{folder}/d"]
    commands = {"dealer": ["dealer", "--listen", f"unix:{folder}/d"]} | dict.fromkeys(("party 0", "party 1"), serve)
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables = [{**places, "RANK": name[-1]} if words is serve else {} for name, words in commands.items()]
    with serving(*commands.values(), variables=variables) as started:
        ids = {name: process.pid for name, process in zip(commands, started, strict=True)}
        yield [f"unix:{folder}/{rank}" for rank in range(2)], ids


class Load:
    """Requests of one client: what became of them."""

    def __init__(self, client: Client, net: torch.nn.Module, images: int) -> None:
        self._client, self._net, self._images = client, net, images
        self.outcomes: Counter[str] = Counter()

    def ask(self) -> None:
        """One request, compared."""
        x = torch.rand(self._images, *self._client.service.shape)
        try:
            with torch.no_grad():
                error = float((self._client(x) - self._net(x)).abs().max())
            self.outcomes["right" if error < CLOSE else "wrong"] += 1
        except HummingbirdError as error:
            self.outcomes[f"{type(error).__name__}: {error.what}"] += 1

    def capacity(self, seconds: float) -> float:
        """Requests a second of a service that is always busy."""
        stop, before = time.monotonic() + seconds, self.outcomes.total()

        def keep_asking() -> None:
            while time.monotonic() < stop:
                self.ask()

        started = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(keep_asking) for _ in range(THREADS)]:
                future.result()
        return (self.outcomes.total() - before) / (time.monotonic() - started)

    def offer(self, rate: float, seconds: float) -> Iterator[float]:
        """`rate` requests a second at random times; yields the seconds that have passed, after each."""
        generator, started = random.Random(0), time.monotonic()
        due = started
        with ThreadPoolExecutor(THREADS) as pool:
            while (due := due + generator.expovariate(rate)) < started + seconds:
                time.sleep(max(0.0, due - time.monotonic()))
                pool.submit(self.ask)
                yield time.monotonic() - started


def growth(samples: list[Sample]) -> dict[str, float]:
    """The growth from the second tenth of the samples to the last one: of medians, memory as a fraction; and of the
    most threads, which come and go with the calls that are under way.
    """
    tenth = max(1, len(samples) // 10)
    parts = samples[tenth : 2 * tenth] or samples[:1], samples[-tenth:]
    memory, now = (statistics.median(sample.memory for sample in part) for part in parts)
    files, threads = (
        middle([sample[place] for sample in parts[1]]) - middle([sample[place] for sample in parts[0]])
        for place, middle in ((1, statistics.median), (2, max))
    )
    return {"memory": now / memory - 1, "files": files, "threads": threads}


def measure(args: argparse.Namespace) -> tuple[float, Counter[str], dict[str, list[Sample]]]:
    """The rate, outcomes of requests, and samples of every process."""
    net = net_of(args)
    with tempfile.TemporaryDirectory(prefix="hb") as folder, programs(args, net, folder) as (addresses, pids):
        samples: dict[str, list[Sample]] = {name: [] for name in (*pids, "client")}
        with Client(addresses, timeout=120.0) as client, progress_line(total=round(60 * args.minutes), unit="s") as bar:
            load = Load(client, net, args.images)
            load.ask()
            rate = args.rate or args.fraction * load.capacity(args.warm_up)
            for passed in load.offer(rate, 60 * args.minutes):
                if passed >= args.every * len(samples["client"]):
                    for name, pid in {**pids, "client": os.getpid()}.items():
                        samples[name].append(Sample.of(pid))
                    bar.update(round(passed) - bar.n)
    return rate, load.outcomes, samples


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = new_parser(__doc__)
    words = ("MODULE:FUNCTION", "ARGUMENT")
    p.add_argument("--model", nargs="+", default=DIGITS, metavar=words, help="as of serve (default: the digits net)")
    p.add_argument("--weights", type=Path, metavar="FILE", help="as of serve")
    p.add_argument("--input", type=shape, default=(1, 8, 8), metavar="CxHxW", help="shape of an image (default 1x8x8)")
    p.add_argument("--minutes", type=positive, default=60.0, help="default: %(default)s")
    p.add_argument("--images", type=count, default=1, help="in a request (default: %(default)s)")
    p.add_argument("--fraction", type=positive, default=0.6, help="of capacity (default: %(default)s)")
    p.add_argument("--rate", type=positive, help="requests a second, instead of a fraction of capacity")
    p.add_argument("--warm-up", type=positive, default=20.0, help="seconds to find capacity (default: %(default)s)")
    p.add_argument("--every", type=positive, default=5.0, help="seconds between samples (default: %(default)s)")
    p.add_argument("--json", type=Path, help="write the figures and all samples to a file")
    return p


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, and write the figures."""
    check_outputs(args)
    rate, outcomes, samples = measure(args)
    rows: list[dict[str, Any]] = []
    for name, found in samples.items():
        grown = growth(found)
        flat = grown["memory"] < _FLAT and grown["files"] <= 0 and grown["threads"] <= _ONE
        rows.append({"process": name, "first": found[0]._asdict(), "last": found[-1]._asdict(), **grown, "flat": flat})
    print(f"{args.minutes:g} minutes at {rate:.1f} requests/s of {args.images} images")
    print("\n".join(f"{number:8,} {what}" for what, number in outcomes.most_common()))
    shown = [
        *(("process", "{process}"), ("MB", "{last[memory]:,.0f}"), ("growth", "{memory:+.1%}")),
        *(("files", "{last[files]}"), ("growth", "{files:+g}")),
        *(("threads", "{last[threads]}"), ("growth", "{threads:+g}")),
        ("flat", lambda row: "yes" if row["flat"] else "no"),
    ]
    print(columns(rows, shown))
    facts = {"minutes": args.minutes, "rate": rate, "images": args.images, "outcomes": outcomes, **machine()}
    write_rows(args.json, {**facts, "processes": rows, "samples": samples})


main = main_of(parser, run)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the services end with this program
    sys.exit(main())
