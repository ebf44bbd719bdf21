"""The protocol with ideal parts: both sides' walks on real shares, with gates and encrypted products that just compute.

What the protocol must equal bit for bit, given the same masks.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hummingbird.hybrid import arithmetic
from hummingbird.hybrid.plan import Gate, Linear, Model, Plan, reduced, signed
from hummingbird.prg import Stream, derive


def drawn(plan: Plan, seed: bytes, images: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Masks r of `plan.masked` and s of the layers from a seed, int64 (images, *shape), by number."""

    def mask(kind: str, number: int) -> Tensor:
        step = plan.steps[number]
        return reduced(Stream(derive(seed, kind, number)).words(images, *step.shape), step.ring)

    return {number: mask("r", number) for number in plan.masked}, {number: mask("s", number) for number in plan.linears}


def gate(step: Gate, x: Tensor) -> Tensor:
    """The result of a gate, mod 2^ring, from whole numbers mod 2^width."""
    value = signed(x, step.width)
    return reduced(value.clamp(min=0) if step.kind == "relu" else value, step.ring)


def run(model: Model, x: Tensor, masks: Mapping[int, Tensor], hidden: Mapping[int, Tensor]) -> Tensor:
    """Both sides' shares of the logits, added mod 2^ring, for encoded images int64 (B, *shape).

    masks: r, by number; hidden: s, by number; as of `drawn`.
    """
    plan = model.plan

    def encrypted(number: int, step: Linear, r: Tensor) -> Tensor:
        return reduced(arithmetic.product(step, model.parameters[number].weight, r) - hidden[number], step.ring)

    shares, last = arithmetic.offline(plan, masks, encrypted)

    def garbled(number: int, step: Gate, share: Tensor) -> Tensor:
        return reduced(gate(step, share + shares[number]) - masks[number], step.ring)

    first = x - masks[plan.input_number]
    online = arithmetic.online(plan, first, arithmetic.model_linear(model.parameters, hidden), garbled)
    return reduced(last + online, plan.output.ring)
