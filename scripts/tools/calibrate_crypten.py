"""Rows of scripts/tools/calibrate.py: CrypTen as it is shipped, between two parties on this host, which wait for each
other.

A party's seconds are those of a batch less those for which it waits, and less those of the provider, which are apart. A
run that sends other bits, or in other rounds, than the price says is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hummingbird import convert_model, graph
from hummingbird.capacity import shipped
from hummingbird.capacity.profile import Measurement
from hummingbird.channel import meter
from hummingbird.crypten.adapter import crypten
from hummingbird.errors import HummingbirdError
from scripts.bench.crypten_baseline import infer, start

Nets = Iterable[tuple[str, nn.Module, Sequence[int]]]


def rows(nets: Nets, repeats: int, threads: int) -> list[Measurement]:
    """A row for each net, at one of two parties: both call this, each in a process with torchrun's variables."""
    start()
    torch.set_num_threads(threads)
    return [_row(name, net.eval(), tuple(shape), repeats) for name, net, shape in nets]


def _row(name: str, net: nn.Module, shape: tuple[int, ...], repeats: int) -> Measurement:
    private, steps = convert_model(net), graph.trace(net)
    expected = shipped.cost(private, shape)
    seconds: dict[str, list[float]] = {"compute": [], "triples": []}
    with crypten.no_grad():
        shared = crypten.cryptensor(torch.zeros(shape), src=0)
        for repeat in range(repeats + 1):
            crypten.communicator.get().barrier()
            with meter.meter() as m:
                started = time.perf_counter()
                infer(steps, shared)
                taken = time.perf_counter() - started
            total = m.total
            check(name, (total.rounds, total.bits_sent), (expected.rounds, expected.bits))
            if repeat:
                seconds["compute"].append(taken - total.wait_seconds - total.offline_seconds)
                seconds["triples"].append(total.offline_seconds)
    kept = {part: tuple(samples) for part, samples in seconds.items() if min(samples) > 0}
    return Measurement(shipped.KIND, name, shipped.digest(private, shape), shipped.amounts(private, shape), kept)


def check(name: str, counted: tuple[int, int], priced: tuple[int, int]) -> None:
    """HummingbirdError unless the rounds and bits that were counted are those of the price."""
    if counted != priced:
        raise HummingbirdError(f"{counted} rounds and bits, the price is {priced}", where=name)
