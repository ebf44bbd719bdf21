"""Bytes of every message of a plan, by the names that both sides count them under, and of both stores' slots.

They follow from the plan, so that the two sides need not believe each other; the openings alone, which name release and
session, are not counted here.
"""

from __future__ import annotations

from hummingbird.cost import COT_SET_UP, cot_message, garbled_online
from hummingbird.hybrid import messages
from hummingbird.hybrid.encrypted import KEY_BYTES, layers
from hummingbird.hybrid.numbering import Numbering
from hummingbird.hybrid.plan import Plan


def session() -> dict[str, int]:
    """A session's first call."""
    return {"base OTs": sum(COT_SET_UP), "done": len(messages.DONE)}


def call() -> dict[str, int]:
    """A call that deals slots, whatever their number."""
    return {"key": KEY_BYTES, "end": messages.NUMBER_BYTES}


def offline(plan: Plan) -> dict[str, int]:
    """One slot."""
    numbering, found = Numbering(plan), {"number": messages.NUMBER_BYTES, "done": len(messages.DONE)}
    for layer in layers(plan).values():
        found[f"{layer.step.name}: Enc(r)"] = layer.up
        found[f"{layer.step.name}: reply"] = layer.down
    found["OT"] = cot_message(numbering.bits, plan.garbler == "data")
    return found | {f"{place.gate.name}: tables": place.table_bytes for place in numbering.places}


def online(plan: Plan) -> dict[str, int]:
    """One image."""
    found = {"input": messages.words_bytes(plan.input.count, plan.input.ring)}
    asked, answered = ("bits", "labels") if plan.garbler == "data" else ("labels", "result")
    for gate in plan.gates.values():
        down, up = garbled_online(gate.count, gate.width, gate.ring, plan.garbler)
        found[f"{gate.name}: {asked}"], found[f"{gate.name}: {answered}"] = down, up
    return found | {"logits": messages.words_bytes(plan.output.count, plan.output.ring)}


def stored(plan: Plan) -> tuple[int, int]:
    """A slot's numbers at the data's side and at the model's, without the files' heads."""
    numbering = Numbering(plan)
    tables = sum(place.table_bytes for place in numbering.places)
    labels, share = 16 * numbering.bits, 8 * plan.output.count
    if plan.garbler == "data":
        return labels + share, tables
    return labels + tables + share, sum(8 * place.gate.count for place in numbering.places)
