"""A ReLU on cut shares by one garbled circuit: its plain version, and the labels of both sides.

The garbler draws R and labels of 0, makes the tables (`garble`, `garble_model`), and gives the evaluator one label of
each bit, label ^ bit R: of its own bits by `chosen`, of the evaluator's bits by oblivious transfer. The evaluator
computes y - r or y + offset from them. `kernels.garble` has the circuit, its hash and the format of the tables.

    circuit = Circuit("relu", 10, 20, "data")            the garbler knows s and r
    delta, labels = new_delta(stream), new_labels(stream, n, 10)
    tables = garble(circuit, key, tile, delta, labels, s, r)
    y_minus_r = evaluate(circuit, key, tile, chosen(labels, delta, p), tables)

Use a tile's number only once under a key, and labels only once: if they are garbled twice with different s, the
evaluator learns R. It also learns R from both labels of one wire.
"""

from __future__ import annotations

from torch import Tensor

from hummingbird.kernels import pack_words
from hummingbird.kernels.cot import choose
from hummingbird.kernels.garble import (
    KEY_BYTES,
    Circuit,
    evaluate,
    evaluate_model,
    garble,
    garble_model,
    tiles,
)
from hummingbird.ot.cot import new_delta
from hummingbird.prg import Stream

__all__ = [
    "KEY_BYTES",
    "Circuit",
    "chosen",
    "evaluate",
    "evaluate_model",
    "garble",
    "garble_model",
    "new_delta",
    "new_labels",
    "plain",
    "tiles",
]


def new_labels(stream: Stream, n: int, width: int) -> Tensor:
    """Draw the labels of 0 for the input wires of n instances of a circuit: int64 (n, width, 2)."""
    return stream.words(n, width, 2)


def chosen(labels: Tensor, delta: Tensor, values: Tensor) -> Tensor:
    """Return the labels that stand for some numbers' bits: int64 (n, w, 2).

    A bit of 0 has the label of 0, and a bit of 1 has this label ^ delta.
    labels: the labels of 0, int64 (n, w, 2), for w bits of each number. delta: the garbler's secret offset, int64 (2,).
    values: the numbers, int64 (n,), of which the low w bits are read. The code does not branch on bits.
    """
    return choose(labels.reshape(-1, 2), pack_words(values, labels.shape[1]), delta).view_as(labels)


def plain(circuit: Circuit, x: Tensor) -> Tensor:
    """Compute a circuit without garbling: relu(x), or x for a lift, mod 2^ring of the circuit, int64 (n,).

    circuit: its kind, width and ring. x: the sum of both sides' shares, int64 (n,), read as a signed number mod
    2^width.
    """
    half = 1 << (circuit.width - 1)
    signed = ((x + half) & (2 * half - 1)) - half
    return (signed.clamp(min=0) if circuit.kind == "relu" else signed) & ((1 << circuit.ring) - 1)
