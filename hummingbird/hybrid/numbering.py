"""The gates of a plan in a row, and which numbers of OTs and tiles a slot takes: they follow from the slot's.

A bit that the evaluator brings takes one OT; 16 instances of a gate take a tile. A slot's numbers are used once.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hummingbird.hybrid.gc import cot
from hummingbird.hybrid.gc.relu import Circuit, tiles
from hummingbird.hybrid.plan import Gate, Plan
from hummingbird.prg import derive


@dataclass(frozen=True)
class GatePosition:
    """A gate with its circuit; its instances' bits are [bit, bit + bits) of the slot's, `tile` is its first tile."""

    number: int
    gate: Gate
    circuit: Circuit
    bit: int
    tile: int

    @property
    def bits(self) -> int:
        """Bits that each side brings: width times instances."""
        return self.gate.count * self.gate.width

    @property
    def table_bytes(self) -> int:
        """Size in bytes of the tables."""
        return self.circuit.table_bytes(self.gate.count)

    def part(self, labels: Tensor) -> Tensor:
        """This gate's labels, int64 (n, width, 2), of a slot's, int64 (bits, 2)."""
        return labels[self.bit : self.bit + self.bits].view(self.gate.count, self.gate.width, 2)


class Numbering:
    """Where everything of a slot stands. bits, tiles: of one slot."""

    def __init__(self, plan: Plan) -> None:
        self.places: list[GatePosition] = []
        self.bits = self.tiles = 0
        for number, gate in plan.gates.items():
            circuit = Circuit(gate.kind, gate.width, gate.ring, plan.garbler)
            self.places.append(GatePosition(number, gate, circuit, self.bits, self.tiles))
            self.bits += self.places[-1].bits
            self.tiles += tiles(gate.count)

    def first_ot(self, slot: int) -> int:
        """Number of the first OT of a slot."""
        return slot * cot.numbers(self.bits)

    def first_tile(self, slot: int) -> int:
        """Number of the first tile of a slot."""
        return slot * self.tiles


def hash_key(session: str) -> bytes:
    """S, the public key of the garbling's hash, fresh for each session as its name is."""
    return derive(bytes.fromhex(session), "garbling")


def slot_seed(seed: bytes, slot: int) -> bytes:
    """Seed of all that a side draws for a slot."""
    return derive(seed, "slot", slot)
