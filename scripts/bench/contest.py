"""One party of a benchmark: the same net on the same input by CrypTen as shipped, `gmw` or `masked`.

`run_worker` hands in the run of median time as a `Sample`, whose parts add up to its seconds. A run that sends other
bits or rounds than its price predicted is an error, CrypTen's included.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.bits import EXACT, BitWindow
from hummingbird.channel.meter import Meter, layer, meter
from hummingbird.cost import Cost
from hummingbird.errors import HummingbirdError, InputError
from scripts.bench.link import Link

LINEAR = {"conv", "conv_transpose", "linear", "affine"}
PARTS = ("linear", "relu", "rest", "wire", "offline")  # of a run's seconds
PUBLISHED = "published"  # HummingBird as its paper has it (scripts/bench/published.py)
BESIDE = ("expanding", "dealer")  # in other threads and processes, at the same time or before


@dataclass(frozen=True)
class Sample:
    """One run at party 0.

    offline_seconds: for which it drew, or waited for, correlated randomness. expanding_seconds, dealer_seconds: work on
    it at the same time or before, by this party and by the dealer; the mean over all runs.
    """

    seconds: float
    linear_seconds: float
    relu_seconds: float
    rest_seconds: float
    wire_seconds: float
    offline_seconds: float
    expanding_seconds: float
    dealer_seconds: float
    online_bits: int
    relu_bits: int  # of the online ones, in ReLU layers
    offline_bits: int
    rounds: int

    @classmethod
    def of(cls, seconds: float, m: Meter) -> Sample:
        """From a meter; HummingbirdError if they were priced otherwise."""
        total, rows = m.total, m.rows.values()
        measured, predicted = (total.bits_sent, total.rounds), (total.bits_predicted, total.rounds_predicted)
        if measured != predicted:
            raise HummingbirdError(f"{measured} bits and rounds were sent, the price was {predicted}")
        if total.offline_bits not in (0, total.offline_bits_predicted):
            raise HummingbirdError(f"{total.offline_bits} offline bits, predicted {total.offline_bits_predicted}")
        linear = sum(row.compute_seconds for row in rows if row.kind in LINEAR)
        relu = sum(row.compute_seconds for row in rows if row.kind == "relu")
        rest = seconds - linear - relu - total.wait_seconds - total.offline_seconds
        return cls(
            seconds,
            linear,
            relu,
            rest,
            total.wait_seconds,
            total.offline_seconds,
            total.expanding_seconds,
            total.dealer_seconds,
            total.bits_sent,
            sum(row.bits_sent for row in rows if row.kind == "relu"),
            total.offline_bits_predicted,
            total.rounds,
        )

    def over(self, link: Link, far: bool = False) -> Sample:
        """The same run with the time on this link computed; far: the dealer's bits come over such a link, too."""
        assert link.bits_per_second is not None
        wire = Cost(self.rounds, self.online_bits).seconds(link.bits_per_second, link.round_trip_seconds)
        dealt = self.offline_bits / link.bits_per_second if far else 0.0
        seconds, offline = self.seconds - self.wire_seconds + wire + dealt, self.offline_seconds + dealt
        return replace(self, wire_seconds=wire, offline_seconds=offline, seconds=seconds)

    def delayed(self, round_trip_seconds: float) -> Sample:
        """The same run with half a round trip (one way) more for every round."""
        more = Cost(self.rounds).seconds(1.0, round_trip_seconds)
        return replace(self, wire_seconds=self.wire_seconds + more, seconds=self.seconds + more)


def run_worker(
    args: argparse.Namespace, net: nn.Module, x: Tensor, errors: Callable[[Tensor, Tensor], dict[str, float]]
) -> None:
    """One party of the protocol `args.worker`: the net on x, once per window; party 0 writes samples to `args.result`.

    errors: figures from the opened result and torch's own. Opening is part of the run where `args.opening` says so.
    """
    torch.set_num_threads(1)
    with torch.no_grad():
        plain = net(x)
    found = []
    for window, sample, opened in (_crypten if args.worker in ("crypten", PUBLISHED) else _hummingbird)(args, net, x):
        found.append({"window": str(window), "sample": asdict(sample), **errors(opened, plain)})
    if os.environ["RANK"] == "0":
        args.result.write_text(json.dumps(found))


def _median_run(work: Callable[[], Any], ready: Callable[[], float | None], repeats: int) -> tuple[Sample, Any]:
    """The run of median time (the faster one of two) after one to warm up, and the last result.

    ready: what comes before a run; the seconds for its material, if these were apart: of the run's time they are waits.
    """
    samples, result = [], None
    for _ in range(repeats + 1):
        brought = ready() or 0.0
        with meter() as m:
            started = time.perf_counter()
            result = work()
            seconds = time.perf_counter() - started
        sample = Sample.of(seconds, m)
        waited = {"seconds": seconds + brought, "offline_seconds": sample.offline_seconds + brought}
        samples.append(replace(sample, **waited))
    median = sorted(samples[1:], key=lambda sample: sample.seconds)[(repeats - 1) // 2]
    means = {f"{part}_seconds": sum(getattr(s, f"{part}_seconds") for s in samples) / len(samples) for part in BESIDE}
    return replace(median, **means), result


Runs = Iterator[tuple[BitWindow, Sample, Tensor]]


def _crypten(args: argparse.Namespace, net: nn.Module, x: Tensor) -> Runs:
    """CrypTen as shipped, which has no windows; or with the ReLU of HummingBird as published, for each window."""
    from hummingbird import graph
    from hummingbird.crypten.adapter import MPCTensor, crypten
    from scripts.bench import published
    from scripts.bench.crypten_baseline import infer, start

    start()
    steps = graph.trace(net)

    def opened(y: MPCTensor) -> Tensor:
        with layer("opening", "open", Cost(1, 64 * y.nelement())):
            return y.get_plain_text()

    with crypten.no_grad():
        shared = crypten.cryptensor(x, src=0)
        for window in [window_of(text) for text in args.windows] if args.worker == PUBLISHED else [EXACT]:
            options: dict[str, Any] = {}
            if args.worker == PUBLISHED:
                options["relu"] = partial(published.relu, window=window)
                options["price"] = partial(published.price, window=window)

            def work(options: dict[str, Any] = options) -> Any:
                y = infer(steps, shared, **options)
                return opened(y) if args.opening else y

            sample, y = _median_run(work, crypten.communicator.get().barrier, args.repeats)
            yield window, sample, y if args.opening else opened(y)


def _hummingbird(args: argparse.Namespace, net: nn.Module, x: Tensor) -> Runs:
    import hummingbird
    from hummingbird.mpc.session import launch

    for text in args.windows:
        window = window_of(text)
        store = store_of(args.store, text) if args.store else None
        session = launch.init(store=store, dealer=args.dealer, device=args.device)
        private = hummingbird.convert_model(net, window, protocol=args.worker, aim=args.aim)
        shared = hummingbird.cryptensor(x if session.rank == 0 else None, src=0)

        def work(session: Any = session, private: Any = private, shared: Any = shared) -> Any:
            y = private(shared)
            result = y.get_plain_text() if args.opening else y
            if session.device.type == "cuda":
                torch.cuda.synchronize()  # what is launched is not done yet
            return result

        def ready(session: Any = session, stored: bool = store is not None) -> float | None:
            seconds = None
            if stored and session.device.type == "cuda":
                # All of it, before the clock: else the time without waits is less than the wire takes for the same.
                started = time.perf_counter()
                session.dealer.bring(-(-len(x) // session.dealer.slice_shape[0]))
                seconds = time.perf_counter() - started
            session.channel.exchange_text("ready")
            return seconds

        sample, y = _median_run(work, ready, args.repeats)
        yield window, sample, (y if args.opening else y.get_plain_text()).cpu()
        launch.uninit()


def window_of(text: str) -> BitWindow:
    """K:M."""
    upper, _, lower = text.partition(":")
    if not (upper.isdigit() and lower.isdigit()):
        raise InputError(f"{text!r} is not a window", where="--windows", hint="two numbers, K:M, such as 20:12")
    return BitWindow(int(upper), int(lower))


def store_of(folder: Path, window: str) -> Path:
    """Where in a folder the material for a window lies."""
    return folder / window.replace(":", "-")
