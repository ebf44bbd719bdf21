"""Rows of scripts/bench/hybrid.py: a net with 90 % zeros by taps, the same by products, and a dense net, side by side.

Both nets run behind servers of their own. Slots that are dealt singly are by products; those of a set are by taps where
the plan says so (hummingbird/hybrid/together.py). All ways take turns, and each deals as many slots in a turn. Beside
seconds are the processor seconds of both sides, user and system: other work on the machine changes these less.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from hummingbird.bits import BitConfig
from hummingbird.hybrid import prices
from hummingbird.hybrid.client import RemoteNet
from hummingbird.hybrid.plan import SET, Plan
from scripts.bench.hybrid_nets import SHIPPED, SPARSE, Served, sent
from scripts.bench.hybrid_rows import Row, row
from scripts.program import ROOT
from scripts.train.data import load

DENSE = next(case for case in SHIPPED if case.model == SPARSE.model)


class Way(NamedTuple):
    """One of the ways that are compared: its name, the net behind a server, and how many slots each call deals."""

    name: str
    net: RemoteNet
    server: int
    slots: int

    def dealt(self) -> tuple[float, float, float]:
        """Deal a set's number of slots; return for each slot seconds, processor seconds of both sides, and bytes."""
        started, used, size = time.perf_counter(), _used(self.server), sent(self.net.offline)
        for _ in range(SET // self.slots):
            self.net.prepare(self.slots)
        found = time.perf_counter() - started, _used(self.server) - used, sent(self.net.offline) - size
        return found[0] / SET, found[1] / SET, found[2] / SET

    def asked(self, images: Tensor) -> tuple[float, float, float]:
        """Send images that have slots, one after another; return for each what `dealt` returns."""
        started, used, size = time.perf_counter(), _used(self.server), sent(self.net.online)
        for image in images:
            self.net(image[None])
        found = time.perf_counter() - started, _used(self.server) - used, sent(self.net.online) - size
        return found[0] / len(images), found[1] / len(images), found[2] / len(images)


def predicted(plan: Plan, slots: int) -> float:
    """Bytes of a slot before the image, if a call deals `slots` slots, each with its part of the call's own bytes."""
    return (sum(prices.offline(plan, slots).values()) + sum(prices.call().values())) / slots


def sparse(data: str | None, repeats: int) -> Iterator[Row]:
    """Seconds, processor seconds and megabytes of an image: before it is there, with it, and in all."""
    images = load(SPARSE.dataset, "test", data)[0][:SET]
    with ExitStack() as servers:
        nets = []
        for case in (DENSE, SPARSE):
            bits = BitConfig.load(ROOT / "checkpoints" / case.bits)
            words = ["models:trained", case.model, "10", f"checkpoints/{case.weights}"]
            nets.append(servers.enter_context(Served(words, tuple(images.shape[1:]), bits).running()))
        (dense, _, first), (few, _, second) = nets
        ways = [
            Way("dense, by products", dense, first, 1),
            Way("90 % zeros, by products", few, second, 1),
            Way("90 % zeros, by taps", few, second, SET),
        ]
        yield from rows(ways, images, repeats)


def rows(ways: list[Way], images: Tensor, repeats: int) -> Iterator[Row]:
    """Medians over `repeats` turns, in which every way deals a set's number of slots and uses them."""
    found: dict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            found[way.name].append((way.dealt(), way.asked(images)))
    for way in ways:
        phases = zip(*found[way.name], strict=True)
        offline, online = ([statistics.median(part) for part in zip(*phase, strict=True)] for phase in phases)
        expected = predicted(way.net.plan, way.slots), float(sum(prices.online(way.net.plan).values()))
        parts = {"before it is there": offline, "with it": online}
        parts = {"an image in all": [a + b for a, b in zip(offline, online, strict=True)], **parts}
        bytes_of = dict(zip(parts, (sum(expected), *expected), strict=True))
        for what, (seconds, used, size) in parts.items():
            named = f"{SPARSE.model}, {way.name}: {what}"
            yield row(named, "s", seconds)
            yield row(named, "s of a core", used)
            yield row(named, "MB", size / 1e6, predicted=bytes_of[what] / 1e6)


def _used(server: int) -> float:
    """Seconds of the processor that this process and a server have used, user and system."""
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
