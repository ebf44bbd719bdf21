"""The parts of a plan that a user behind a proxy must know: its ends, the range of images, and its digest, as JSON."""

from __future__ import annotations

import json
from typing import Any

from hummingbird.hybrid import messages
from hummingbird.hybrid.plan import Plan, Step
from hummingbird.hybrid.plan_json import are_results, tuples

MOST_VALUES = 1 << 22  # of an image or its logits: messages are at most 4 MiB


def proxy_view(plan: Plan, digest: str) -> bytes:
    """The parts of a plan that a user must know, JSON."""
    fields = {name: [list(step.shape), step.ring, step.unit, dict(step.attrs)] for name, step in _ends(plan).items()}
    return json.dumps({"plan": digest, "input_range": plan.input_range, **fields}).encode()


def read_proxy_view(data: bytes) -> tuple[Plan, str]:
    """A plan that has its ends only, and its digest; InputError for anything malformed."""
    try:
        fields: Any = json.loads(data) if len(data) <= messages.MOST_OPENING else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise messages.malformed("a proxy's description that is no JSON object")
    digest = messages.text_of(fields, "plan", messages.DIGEST_BYTES)
    steps, largest = tuple(_step(name, fields.get(name)) for name in ("input", "output")), fields.get("input_range")
    if not isinstance(largest, float) or not _is_unit(largest):
        raise messages.malformed("no input_range")
    return Plan(steps, "data", largest), digest


def _ends(plan: Plan) -> dict[str, Step]:
    return {"input": plan.input, "output": plan.output}


def _step(name: str, field: Any) -> Step:
    right = isinstance(field, list) and len(field) == 4 and isinstance(field[0], list) and 0 < len(field[0]) <= 4
    right = right and all(type(size) is int and 0 < size <= MOST_VALUES for size in field[0])
    right = right and (field[3] == {} or (name == "output" and _is_output(field)))
    if not right or type(field[1]) is not int or not 1 <= field[1] <= 32 or not _is_unit(field[2]):
        raise messages.malformed(f"no {name}")
    return Step(name, name, (), tuple(field[0]), field[1], field[2], {key: tuples(x) for key, x in field[3].items()})


def _is_output(field: list[Any]) -> bool:
    return isinstance(field[3], dict) and are_results(field[3], tuple(field[0]))


def _is_unit(value: Any) -> bool:
    return type(value) is float and 2.0**-128 < value < 2.0**128
