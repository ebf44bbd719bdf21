"""Seconds of a slice of a private net on this machine, without a link: one party computes and the others say zeros.

What a party sends and receives depends on shapes alone, and so does its work (mpc/plan/dry_run.py). Three parts are
timed
apart: computing, expanding a party's seeds, and the dealer's work.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from hummingbird.capacity.profile import Measurement
from hummingbird.cost import FREE
from hummingbird.graph import calls
from hummingbird.graph.run import run_all
from hummingbird.kernels.shares.words import plain
from hummingbird.mpc.correlations.material import Material
from hummingbird.mpc.correlations.receiver_rotation import ReceiverRotation
from hummingbird.mpc.correlations.request import Request, corrections, expand
from hummingbird.mpc.plan.dry_run import Zeros, alone, dry_run, run_alone
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.prg import new_seed


class _Again(Zeros):
    """A dealer that gives the zeros of the first slice for every other one: to make them is not a party's work."""

    def __init__(self, slice_shape: tuple[int, ...]) -> None:
        super().__init__(slice_shape)
        self._made: list[Material] = []

    def correlation(self, request: Request[Any]) -> Material:
        at = len(self.requests)
        if at < len(self._made):
            self.requests.append(request)
            return self._made[at]
        self._made.append(super().correlation(request))
        return self._made[-1]

    def begin(self) -> None:
        """Forget what one slice took."""
        self.requests = []


def kind_of(private: PrivateNet) -> str:
    """The rows that a net's seconds are composed of: those of its protocol."""
    return f"mpc {private.facts['protocol']}"


def digest(private: PrivateNet, shape: Sequence[int], parties: int) -> str:
    """SHA-256 of what decides a slice's work: the net but for its weights, windows, owner, shape and parties."""
    facts = {name: private.facts[name] for name in ("architecture", "bits", "protocol", "weights")}
    words = {**facts, "shape": list(shape), "parties": parties}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def amounts(
    private: PrivateNet, shape: Sequence[int], parties: int, requests: Sequence[Request[Any]]
) -> dict[str, float]:
    """How much of each kind of work a slice holds: products, values, bits online and offline, bytes of shares, layers.

    requests: those of its dry run.
    """
    planned = private.costs(shape, parties)
    total = sum((step.cost for step in planned), FREE)
    with FlopCounterMode(display=False) as flops:
        run_all(private._graph, *calls.on_meta(private._graph, shape))
    return {
        "products": flops.get_total_flops() / 2,
        "values": float(sum(step.breadth for step in planned)),
        "bits": float(total.bits),
        "offline_bits": float(total.offline_bits),
        "share_bytes": float(sum(request.share_bytes for request in requests)),
        "layers": float(sum(step.range is not None for step in planned)),
        "slices": 1.0,
    }


def measure(name: str, private: PrivateNet, shape: Sequence[int], parties: int = 2, repeats: int = 10) -> Measurement:
    """Measure a slice of `shape`, each part so many times after once to warm up, on torch's threads.

    InputError as `dry_run`.
    """
    requests = dry_run(private, shape, parties).batch
    turns, seeds = ReceiverRotation(parties).take(requests), [new_seed() for _ in range(parties)]

    def expanded() -> None:
        for turn, request in zip(turns, requests, strict=True):
            for share in expand(request, turn, seeds[1], 1).values():
                plain(share)

    def dealt() -> None:
        for turn, request in zip(turns, requests, strict=True):
            corrections(request, turn, seeds)

    dealer = _Again(tuple(shape))
    with alone(private, parties, 0, dealer) as twin:

        def computed() -> None:
            dealer.begin()
            run_alone(twin, shape)

        dealer.begin()
        dealer._made.clear()  # of the setup
        seconds = {"compute": samples(computed, repeats)}
    if requests:
        seconds |= {"expand": samples(expanded, repeats), "deal": samples(dealt, repeats)}
    work = amounts(private, shape, parties, requests)
    return Measurement(kind_of(private), name, digest(private, shape, parties), work, seconds)


def samples(work: Callable[[], object], repeats: int) -> tuple[float, ...]:
    """Seconds of `work`, each time, after once."""
    work()
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return tuple(found)
