"""Inputs for garbled circuits, both sides' steps in one call, and copies of the reference with one line changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from hummingbird.hybrid.gc.relu import (
    Circuit,
    chosen,
    evaluate,
    evaluate_model,
    garble,
    garble_model,
    new_delta,
    new_labels,
)
from hummingbird.kernels.reference import garble as reference
from hummingbird.prg import Stream, derive

KEY = bytes(range(16))


@dataclass(frozen=True)
class Case:
    """Inputs of n instances; the same for the same labels."""

    circuit: Circuit
    delta: Tensor
    labels: Tensor
    own: Tensor
    shares: Tensor  # s
    others: Tensor  # p
    masks: Tensor
    tile: int = 7

    @property
    def held(self) -> Tensor:
        """The evaluator's labels of its bits."""
        return chosen(self.labels, self.delta, self.others)

    @property
    def sent(self) -> Tensor:
        """The labels of the garbler "model"'s bits, as it sends them."""
        return chosen(self.own, self.delta, self.shares)

    def garbled(self) -> tuple[Tensor, Tensor]:
        """The tables, and what the results have more than y."""
        if self.circuit.garbler == "model":
            return garble_model(self.circuit, KEY, self.tile, self.delta, self.labels, self.own)
        tables = garble(self.circuit, KEY, self.tile, self.delta, self.labels, self.shares, self.masks)
        return tables, -self.masks

    def evaluated(self, tables: Tensor) -> Tensor:
        """The evaluator's results."""
        if self.circuit.garbler == "model":
            return evaluate_model(self.circuit, KEY, self.tile, self.held, self.sent, tables)
        return evaluate(self.circuit, KEY, self.tile, self.held, tables)


def case(circuit: Circuit, n: int | None = None, *labels: str | int) -> Case:
    """So many random shares; without a number, all pairs (s, p)."""
    stream = Stream(derive(bytes(16), "garble", circuit.kind, circuit.width, circuit.ring, circuit.garbler, *labels))
    w, size = circuit.width, 1 << circuit.width
    if n is None:
        pairs = torch.arange(size * size)
        shares, others = pairs // size, pairs % size
    else:
        shares, others = stream.words(n) & size - 1, stream.words(n) & size - 1
    n = len(shares)
    masks = stream.words(n) & (1 << circuit.ring) - 1
    delta = new_delta(stream)
    return Case(circuit, delta, new_labels(stream, n, w), new_labels(stream, n, w), shares, others, masks)


def copy_without(*changes: tuple[str, str]) -> ModuleType:
    """The reference with lines changed: of each pair, the first text must be there exactly once."""
    source = Path(reference.__file__).read_text()
    for before, after in changes:
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    copy = ModuleType("copy")
    exec(compile(source.replace("@implements", "#"), "copy", "exec"), copy.__dict__)  # registers nothing
    return copy
