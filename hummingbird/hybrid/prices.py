"""Bytes of every message of a plan, by the names under which both sides count them, and bytes of a slot in each store.

Sizes follow from the plan, so neither side needs to trust the other's. The openings of calls between the two sides,
which name a session and a slot, are not included; requests of a proxy's users are included completely.
"""

from __future__ import annotations

from collections import Counter

from hummingbird.cost import COT_SET_UP, cot_message, garbled_online
from hummingbird.hybrid import messages
from hummingbird.hybrid.encrypted import KEY_BYTES, layers
from hummingbird.hybrid.messages import DIGEST_BYTES, SLOT_HEAD, TICKET_BYTES
from hummingbird.hybrid.numbering import Numbering
from hummingbird.hybrid.plan import Plan, Step
from hummingbird.hybrid.proxy_view import proxy_view
from hummingbird.hybrid.switched import KEYS_BYTES, Image


def session() -> dict[str, int]:
    """Return the sizes in bytes of the messages that set up a session, by message name."""
    return {"base OTs": sum(COT_SET_UP), "done": len(messages.DONE)}


def call() -> dict[str, int]:
    """Return the sizes in bytes of the messages that a call for dealing slots sends once, by message name.

    They do not depend on the number of slots. The first message of the call is not included; the messages for slots are
    in `offline`.
    """
    return {"key": KEY_BYTES, "end": messages.NUMBER_BYTES}


def offline(plan: Plan, slots: int = 1) -> dict[str, int]:
    """Return the sizes in bytes of the messages that deal slots, by message name.

    slots: how many are dealt in one call, in sets or singly (`Plan.dealt`).
    """
    numbering, found = Numbering(plan), Counter[str]()
    for some, times in Counter(plan.dealt(slots)).items():
        each = {"number": (some + (some > 1)) * messages.NUMBER_BYTES, "done": some * len(messages.DONE)}
        for layer in layers(plan, some).values():
            asked = -(-some // layer.slots)
            each[f"{layer.step.name}: Enc(r)"] = asked * layer.up
            each[f"{layer.step.name}: reply"] = asked * layer.down
        each["OT"] = some * cot_message(numbering.bits, plan.garbler == "data")
        each |= {f"{place.gate.name}: tables": some * place.table_bytes for place in numbering.places}
        found.update({name: times * size for name, size in each.items()})
    return dict(found)


def online(plan: Plan) -> dict[str, int]:
    """Return the sizes in bytes of the messages for one image, by message name."""
    return {"input": _bytes(plan.input)} | _gates(plan) | {"logits": _bytes(plan.output)}


def proxied(plan: Plan, kind: str) -> dict[str, int]:
    """Return the sizes in bytes of the messages between proxy and model's side for one image of a user, by message
    name.

    kind: how the user sends its image: "shares", under a mask, or "switched", encrypted.
    """
    found = {"switched": Image(plan.input).down, "input": _bytes(plan.input)} if kind == "switched" else {}
    return {"done": 2 * len(messages.DONE)} | found | _gates(plan)


def user_once(plan: Plan, kind: str) -> dict[str, int]:
    """Return how many bytes a proxy's user sends and receives once, before its first image, by method called.

    The bytes of an answer stand under "METHOD: answer". plan: only its input and output are read.
    kind: how the user sends its images: "shares", under a mask, or "switched", encrypted.
    """
    digest = "0" * (2 * DIGEST_BYTES)
    found = {"Public": len(messages.CallOpening().pack()), "Public: answer": len(proxy_view(plan, digest))}
    if kind == "switched":
        found |= {"Key": len(messages.CallOpening(plan=digest).pack()), "Key: answer": KEY_BYTES}
        found |= {"Keys": DIGEST_BYTES + KEYS_BYTES, "Keys: answer": TICKET_BYTES}
    return found


def user(plan: Plan, kind: str) -> dict[str, int]:
    """Return how many bytes a proxy's user sends and receives for one image, by method called.

    The user calls `Slot` of the proxy and `Input` of the model's side; the bytes of an answer stand under "Slot:
    answer" and "Input: answer". plan: only its input and output are read.
    kind: how the user sends its image: "shares", under a mask, or "switched", encrypted.
    """
    asked = len(messages.UserOpening(plan="0" * (2 * DIGEST_BYTES), input=kind).pack())
    body = TICKET_BYTES + Image(plan.input).up if kind == "switched" else _bytes(plan.input)
    share = _bytes(plan.output)
    return {
        "Slot": asked,
        "Slot: answer": SLOT_HEAD + share,
        "Input": DIGEST_BYTES + TICKET_BYTES + body,
        "Input: answer": share,
    }


def _bytes(step: Step) -> int:
    return messages.words_bytes(step.count, step.ring)


def _gates(plan: Plan) -> dict[str, int]:
    found = {}
    asked, answered = ("bits", "labels") if plan.garbler == "data" else ("labels", "result")
    for gate in plan.gates.values():
        down, up = garbled_online(gate.count, gate.width, gate.ring, plan.garbler)
        found[f"{gate.name}: {asked}"], found[f"{gate.name}: {answered}"] = down, up
    return found


def stored(plan: Plan) -> tuple[int, int]:
    """Return two numbers: the bytes of a slot's tensors in the data side's store and in the model side's.

    File headers are not included.
    """
    numbering = Numbering(plan)
    tables = sum(place.table_bytes for place in numbering.places)
    labels, share = 16 * numbering.bits, 8 * plan.output.count
    if plan.garbler == "data":
        return labels + share, tables
    return labels + tables + share, sum(8 * place.gate.count for place in numbering.places)
