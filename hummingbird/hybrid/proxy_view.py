"""The part of a plan that a proxy's user knows, as JSON: input and output, range of images, digest of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hummingbird import records
from hummingbird.hybrid import messages
from hummingbird.hybrid.plan import ATTR, MOST_RING, UNIT, Plan, Step
from hummingbird.hybrid.plan_json import DEEPEST, are_results
from hummingbird.records import field

MOST_VALUES = 1 << 22  # values of an image or its logits: messages are at most 4 MiB
_END = records.row(
    records.many(records.whole(1, MOST_VALUES), 4, 1), records.whole(1, MOST_RING), UNIT, records.mapping(ATTR, 2)
)
_End = tuple[tuple[int, ...], int, float, Mapping[str, Any]]


@dataclass(frozen=True)
class ProxyView:
    """The fields of the text that tells a proxy's user about a plan.

    They are the digest of the plan, the bound on |x| of an image, and for the input and the output (shape, ring, unit,
    attributes).
    """

    plan: str = field(records.digits(messages.DIGEST_BYTES))
    input_range: float = field(UNIT)
    input: _End = field(_END)
    output: _End = field(_END)

    def __post_init__(self) -> None:
        shape, _, _, attrs = self.output
        if self.input[3] or (attrs and not are_results(attrs, shape)):
            raise messages.malformed("results that do not fit their structure")


def proxy_view(plan: Plan, digest: str) -> bytes:
    """Return the part of a plan that a proxy's user knows, as JSON. digest: of the whole plan."""
    ends = [(step.shape, step.ring, step.unit, dict(step.attrs)) for step in (plan.input, plan.output)]
    return records.write(ProxyView(digest, plan.input_range, *ends)).encode()


def read_proxy_view(data: bytes) -> tuple[Plan, str]:
    """Read the text of `proxy_view`: return a plan with only input and output, and the digest of the whole plan.

    Raises InputError if it is malformed.
    """
    hint = "the bytes were damaged, or come from another program or release"
    view = records.read(
        data, ProxyView, name="message", most=messages.MOST_OPENING, deepest=DEEPEST, where="hybrid", hint=hint
    )
    ends = {"input": view.input, "output": view.output}
    return Plan(tuple(Step(name, name, (), *end) for name, end in ends.items()), "data", view.input_range), view.plan
