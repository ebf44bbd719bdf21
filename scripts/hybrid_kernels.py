"""Rows of scripts/bench_hybrid.py: garbled ReLUs and their oblivious transfers, alone, in one process on one thread.

A circuit is checked before it is timed: what the evaluator ends with and the mask add up to the ReLU.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.gc import cot
from hummingbird.kernels import garble
from hummingbird.kernels.cpu import library
from hummingbird.kernels.garble import Circuit
from scripts.hybrid_rows import Row, median, row

RELUS, WIDTH, RING = 10_000, 10, 20
_KEY = bytes(range(16))
# Instruction set -> its name in a row, and the mark in milliseconds.
_ISAS = {"avx512": ("VAES", "<= 3"), "avx2": ("AES-NI", "<= 8"), "portable": ("bit-sliced", "")}
_PAPER_MILLISECONDS = 500.0
_TRANSFERS_MARK = ">= 25"


def _uniform(*shape: int) -> Tensor:
    return torch.randint(-(1 << 63), (1 << 63) - 1, shape, dtype=torch.int64)


def _labels(labels: Tensor, bits: Tensor, delta: Tensor) -> Tensor:
    """The labels of the lowest bits of `bits`, int64 (n,)."""
    planes = bits[:, None] >> torch.arange(labels.shape[1]) & 1
    return labels ^ planes[..., None] * delta


class Case:
    """n ReLUs on random shares, for one garbler."""

    def __init__(self, circuit: Circuit, n: int) -> None:
        self.circuit, width = circuit, circuit.width
        self.delta = _uniform(2) | torch.tensor([1, 0])
        self.zero, self.own_zero = _uniform(2, n, width, 2)
        self.shares, held = torch.randint(1 << width, (2, n))
        self.masks = torch.randint(1 << circuit.ring, (n,))
        self.labels = _labels(self.zero, held, self.delta)
        self.own = _labels(self.own_zero, self.shares, self.delta)
        x = (self.shares + held) % (1 << width)
        self.relu = torch.where(x >> (width - 1) == 0, x, 0)
        self.offset = -self.masks
        self.tables = self.garble()

    def garble(self) -> Tensor:
        circuit, delta = self.circuit, self.delta
        if circuit.garbler == "data":
            return garble.garble(circuit, _KEY, 0, delta, self.zero, self.shares, self.masks)
        tables, self.offset = garble.garble_model(circuit, _KEY, 0, delta, self.zero, self.own_zero)
        return tables

    def evaluate(self) -> Tensor:
        if self.circuit.garbler == "data":
            return garble.evaluate(self.circuit, _KEY, 0, self.labels, self.tables)
        return garble.evaluate_model(self.circuit, _KEY, 0, self.labels, self.own, self.tables)

    def check(self) -> None:
        """RuntimeError if a result is not the ReLU."""
        if not torch.equal((self.evaluate() - self.offset - self.relu) % (1 << self.circuit.ring), 0 * self.relu):
            raise RuntimeError(f"{self.circuit}: a result is not the ReLU")


def garbling(n: int, repeats: int) -> Iterator[Row]:
    """Milliseconds and bytes of n ReLUs for each garbler, with each instruction set that the processor has."""
    before = library.isa() if library.available() else None
    for garbler in garble.GARBLERS:
        case = Case(Circuit("relu", WIDTH, RING, garbler), n)
        who = f"{n:,} ReLUs, w = {WIDTH}, {'D' if garbler == 'data' else 'M'} garbles"
        predicted = case.circuit.table_bytes(n) / n
        yield row(f"{who}: tables", "bytes a ReLU", case.tables.numel() / n, predicted=predicted)
        try:
            for isa, (name, mark) in _ISAS.items():
                if before is not None and not library.set_isa(isa):
                    continue
                case.check()
                times = [1e3 * median(run, repeats) for run in (case.garble, case.evaluate)]
                what = f"{who}: garble + evaluate, {name if before else 'torch'}"
                parts = {"garble_milliseconds": times[0], "evaluate_milliseconds": times[1]}
                marked = {"mark": mark, "paper": _PAPER_MILLISECONDS} if n == RELUS and before else {}
                yield row(what, "ms", sum(times), **marked, **parts)
                if before is None:
                    break
        finally:
            if before is not None:
                library.set_isa(before)


def _set_up() -> tuple[cot.Sender, cot.Receiver, int]:
    """Both sides of a session's transfers, and the bytes that this took both ways."""
    start = cot.SetUp()
    receiver, reply = cot.accept(start.message)
    return start.finish(reply), receiver, len(start.message) + len(reply)


def _extension(sender: cot.Sender, receiver: cot.Receiver, n: int, random: bool, repeats: int) -> Iterator[Row]:
    """Bytes of a transfer, and millions a second of each side; RuntimeError if a key is wrong."""
    kind, given = "random choices" if random else "choices given", torch.randint(2, (n,), dtype=torch.uint8)

    def receive() -> tuple[bytes, Tensor, Tensor]:
        if random:
            return receiver.random(0, n)
        message, keys = receiver.chosen(0, given)
        return message, given, keys

    message, choices, keys = receive()

    def send() -> Tensor:
        return sender.extend(0, n, message, random)

    if not torch.equal(keys, send() ^ choices[:, None].long() * sender.delta):
        raise RuntimeError(f"transfers, {kind}: a key is wrong")
    yield row(f"transfer, {kind}", "bytes", len(message) / n, predicted=cot.message_bytes(n, random) / n)
    for side, run in (("receiver", receive), ("sender", send)):
        yield row(f"transfers, {kind}, {side}", "M/s", n / median(run, repeats) / 1e6, mark=_TRANSFERS_MARK)


def transfers(n: int, repeats: int) -> Iterator[Row]:
    """Correlated oblivious transfers, n at once, and what a session's first ones take."""
    sender, receiver, size = _set_up()
    yield row("base transfers and trees, both sides, once a session", "ms", 1e3 * median(_set_up, repeats))
    yield row("base transfers and trees, both ways", "bytes", size, predicted=sum(cost.COT_SET_UP))
    for random in (True, False):
        yield from _extension(sender, receiver, n, random, repeats)
