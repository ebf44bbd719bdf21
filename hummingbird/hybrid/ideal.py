"""The protocol with ideal parts, on shares and on integers; with the same masks, results are equal bit for bit.

On shares, gates and encrypted products are computed in the clear. On integers, a cut maps v to
floor((v + 2^m - 1 - z) / 2^m), where z is the low m bits of the data's share: results depend on nothing else of the
shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from hummingbird.hybrid import arithmetic
from hummingbird.hybrid.plan import Gate, Linear, Model, Plan, Step, reduced, signed
from hummingbird.prg import Stream, derive


def drawn(plan: Plan, seed: bytes, images: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Draw all masks of a plan from a seed; return two dictionaries of masks, by number of the step.

    The first has the data side's masks r of the input and of the gates' results. The second has the model side's masks
    s of the layers' results. A mask is int64 (images, *shape), uniform mod 2^ring. images: how many.
    """

    def mask(kind: str, number: int) -> Tensor:
        step = plan.steps[number]
        return reduced(Stream(derive(seed, kind, number)).words(images, *step.shape), step.ring)

    return {number: mask("r", number) for number in plan.masked}, {number: mask("s", number) for number in plan.linears}


def gate(step: Gate, x: Tensor) -> Tensor:
    """Compute the result of a gate in the clear, mod 2^ring: relu(x), or x for a lift.

    x: int64, the sum of both sides' shares, read as a signed number mod 2^width.
    """
    value = signed(x, step.width)
    return reduced(value.clamp(min=0) if step.kind == "relu" else value, step.ring)


def encrypted(model: Model, hidden: Mapping[int, Tensor]) -> arithmetic.LinearStep:
    """Make a function that stands for the encrypted product of a layer, and computes it in the clear.

    The function gets the step's number, the step, and the data side's share r of the layer's input. It returns that
    side's share of the result, W r - s mod 2^ring, where W are the layer's weights.
    hidden: the masks s, by number of the step.
    """

    def linear(number: int, step: Linear, r: Tensor) -> Tensor:
        return reduced(arithmetic.product(step, model.parameters[number].weight, r) - hidden[number], step.ring)

    return linear


def run(model: Model, x: Tensor, masks: Mapping[int, Tensor], hidden: Mapping[int, Tensor]) -> Tensor:
    """Run both sides of a plan in this process, with gates and products computed in the clear; return the logits mod
    2^ring.

    x: the images as integers, int64 (B, *shape). masks, hidden: the data side's masks r and the model side's masks s,
    by number of the step, both from `drawn`.
    """
    plan = model.plan
    shares, last = arithmetic.offline(plan, masks, encrypted(model, hidden))

    def garbled(number: int, step: Gate, share: Tensor) -> Tensor:
        return reduced(gate(step, share + shares[number]) - masks[number], step.ring)

    first = x - masks[plan.input_number]
    linear = arithmetic.model_linear(model.parameters, arithmetic.factors(model.parameters), hidden)
    online = arithmetic.online(plan, first, linear, garbled)
    return reduced(last + online, plan.output.ring)


class Plain:
    """Computes a plan on plain integers, without shares or messages: for simulations, and for searches of windows.

    With `plain = Plain(model)`, `plain(x, low)` returns the very logits that the two sides would compute together.
    model: the plan with its weights.
    """

    def __init__(self, model: Model) -> None:
        self.plan, self._parameters = model.plan, model.parameters
        self._factors = arithmetic.factors(model.parameters)

    def __call__(self, x: Tensor, low: Mapping[int, Tensor]) -> Tensor:
        """Compute the logits, mod 2^ring, of images.

        x: the images as integers, int64 (B, *shape).
        low: for each cut, by number of the step, the low bits of the data side's share that the cut drops, from
        `low_bits`. The result depends on them because each side cuts its share by itself.
        """

        def other(number: int, step: Step, given: tuple[Tensor, ...]) -> Tensor:
            values = (given[0] - low[number],) if step.op == "cut" else given
            return arithmetic.local(step, values, model=True)

        return arithmetic.walk(self.plan, x, self._linear, lambda number, step, x: gate(step, x), other)

    def _linear(self, number: int, step: Linear, x: Tensor) -> Tensor:
        bias = self._parameters[number].bias.view(-1, *(1,) * (len(step.shape) - 1))
        return reduced(arithmetic.product(step, self._factors[number], x) + bias, step.ring)


def low_bits(plan: Plan, masks: Callable[[int, Step], Tensor], linear: arithmetic.LinearStep) -> dict[int, Tensor]:
    """Return, for each cut of a plan, the low bits that it drops from the data side's share, by number of the step.

    Needs no weights.
    masks: a function that gets a step's number and the step, and returns the data side's mask of its value, mod 2^ring.
    It is called for the steps in `plan.masked`.
    linear: a function that gets a layer's number, the layer, and the data side's share of its input. It returns that
    side's share of the result, which is uniform whatever the input is.
    """
    found: dict[int, Tensor] = {}

    def other(number: int, step: Step, given: tuple[Tensor, ...]) -> Tensor:
        if step.op == "cut":
            found[number] = reduced(given[0], step.attrs["m"])
        return arithmetic.local(step, given, model=False)

    first = masks(plan.input_number, plan.input)
    arithmetic.walk(plan, first, linear, lambda number, step, share: masks(number, step), other)
    return found
