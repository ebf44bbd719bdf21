"""The order of a plan's gates, and the numbers of OTs and tiles of a slot, which follow from the slot's number.

Each input bit of the evaluator takes one OT; 16 instances of a gate take one tile. A number is used only once.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hummingbird.hybrid.gc.relu import Circuit, tiles
from hummingbird.hybrid.plan import Gate, Plan
from hummingbird.ot import cot
from hummingbird.prg import derive


@dataclass(frozen=True)
class GatePosition:
    """The position of a gate of a plan among all gates of a slot.

    number, gate: the number of the gate's step in the plan, and the step. circuit: what is garbled for the gate. bit:
    number of the gate's first input bit, counted over all gates of the slot. tile: number of the gate's first tile,
    counted over all gates too; a tile is 16 instances of a circuit.
    """

    number: int
    gate: Gate
    circuit: Circuit
    bit: int
    tile: int

    @property
    def bits(self) -> int:
        """Number of input bits of each side: width times instances."""
        return self.gate.count * self.gate.width

    @property
    def table_bytes(self) -> int:
        """Size in bytes of the gate's tables."""
        return self.circuit.table_bytes(self.gate.count)

    def part(self, labels: Tensor) -> Tensor:
        """Return this gate's labels, int64 (values, width, 2), out of all labels of a slot, int64 (bits, 2)."""
        return labels[self.bit : self.bit + self.bits].view(self.gate.count, self.gate.width, 2)


class Numbering:
    """The positions of all gates of a plan in a slot, from which the numbers of transfers and tiles follow.

    places: a `GatePosition` for each gate. bits, tiles: numbers of input bits and of tiles in one slot.
    """

    def __init__(self, plan: Plan) -> None:
        self.places: list[GatePosition] = []
        self.bits = self.tiles = 0
        for number, gate in plan.gates.items():
            circuit = Circuit(gate.kind, gate.width, gate.ring, plan.garbler)
            self.places.append(GatePosition(number, gate, circuit, self.bits, self.tiles))
            self.bits += self.places[-1].bits
            self.tiles += tiles(gate.count)

    def first_ot(self, slot: int) -> int:
        """Return the number of the first oblivious transfer of a slot."""
        return slot * cot.numbers(self.bits)

    def first_tile(self, slot: int) -> int:
        """Return the number of the first tile of a slot; a tile is 16 instances of a circuit."""
        return slot * self.tiles


def hash_key(session: str) -> bytes:
    """Derive, from a session's name, the public key of the hash that garbling uses; each session has a new name."""
    return derive(bytes.fromhex(session), "garbling")


def slot_seed(seed: bytes, slot: int) -> bytes:
    """Derive the seed of all randomness that a side uses for a slot."""
    return derive(seed, "slot", slot)
