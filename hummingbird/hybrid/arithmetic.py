"""The two walks over a plan: the data's side before the image is known, the model's side with X - r.

Both sides compute the same linear steps on their own shares; only the model's side adds constants. The cut drops the
low m bits of a value v mod 2^ring:

    (u >> m) + (d >> m)  =  floor((v + 2^m - 1 - z) / 2^m)   mod 2^(ring - m),   u + d = v + 2^m - 1,   z = d mod 2^m

z is uniform, so the result is v / 2^m on average. Without the 2^m - 1, values would be almost one unit too small on
average, which costs a ResNet-18 with windows of 9 bits ten points of accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.graph import Interpreter
from hummingbird.hybrid.plan import Gate, Linear, LinearWeights, Plan, Step, at_rest, reduced
from hummingbird.kernels.shares import products

LinearStep = Callable[[int, Linear, Tensor], Tensor]  # (number, step, share of its input, B first) -> share
LocalStep = Callable[[int, Step, tuple[Tensor, ...]], Tensor]
GateStep = Callable[[int, Gate, Tensor], Tensor]  # (number, step, share mod 2^width, B first) -> share mod 2^ring


def _sum(step: Step, *values: Tensor) -> Tensor:
    return torch.stack([factor * x for factor, x in zip(step.attrs["factors"], values, strict=True)]).sum(0)


def _sum_pool(step: Step, x: Tensor) -> Tensor:
    a = step.attrs
    flat = x.flatten(0, 1)  # torch pools int64 in two dimensions; values are below 2^32, sums far below 2^63
    pooled = F.avg_pool2d(flat, a["kernel"], a["stride"], a["padding"], divisor_override=1)
    return pooled.unflatten(0, x.shape[:2])


def _taps(step: Step, x: Tensor) -> Tensor:
    axis, places = step.attrs["axis"], step.attrs["places"]
    return torch.stack([x.index_select(axis, torch.tensor(row)) for row in places], 1)


# Linear operations on int64 (B, ...); `local` handles `cut`.
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "sum": _sum,  # factors: an integer for each input; constant: added by the model's side
    "sum_pool": _sum_pool,  # kernel, stride, padding: (rows, columns)
    "taps": _taps,  # axis, places: indices along it, a row for each of the result's first dimension
    "rows": lambda step, x: x[:, step.attrs["start"] : step.attrs["stop"]],
    "cat": lambda step, *values: torch.cat(values, 1),
    "reshape": lambda step, x: x.reshape(len(x), *step.shape),
    "permute": lambda step, x: x.permute(0, *step.attrs["dims"]),
    "pad": lambda step, x: F.pad(x, step.attrs["pads"]),
}


def product(step: Linear, weight: Tensor | products.Factor, x: Tensor) -> Tensor:
    """Multiply images by a layer's weights W, without bias: return W x mod 2^ring, int64 (B, *step.shape).

    step: the layer. weight: its weights, int64, or prepared for many products (`factors`).
    x: int64 (B, ...), which is read as (B, *step.image).
    """
    rows, columns = step.padding
    image = F.pad(reduced(x, step.ring).reshape(len(x), *step.image), (columns, columns, rows, rows))
    out = products.conv2d(image, weight, step.stride, step.dilation, step.groups, step.ring)
    return reduced(out, step.ring).reshape(len(x), *step.shape)


def local(step: Step, values: tuple[Tensor, ...], *, model: bool) -> Tensor:
    """Return one side's share of the result of a step that needs no message, such as a sum, a view, a pool or a cut.

    `plan.LOCAL` lists these operations. values: the side's shares of the step's inputs, int64 (B, ...).
    model: whether this is the model's side, which alone adds constants.
    """
    if step.op == "cut":
        m = step.attrs["m"]
        return reduced(values[0] + ((1 << m) - 1) * model, step.ring + m) >> m
    out = OPERATIONS[step.op](step, *values)
    return reduced(out + step.attrs.get("constant", 0) * model, step.ring)


def walk(plan: Plan, x: Tensor, linear: LinearStep, gate: GateStep, other: LocalStep) -> Tensor:
    """Run all steps of a plan, and return the value of the last one.

    x: the value of the input step, int64 (B, *shape). linear, gate, other: functions that compute a layer with weights,
    a gate, and any other step. Each gets the step's number and the step, and returns the step's value. As a third
    argument `linear` and `gate` get the value that the step reads, and `other` a tuple of the values that it reads.
    """

    def compute(number: int, step: Step, given: tuple[Tensor, ...]) -> Tensor:
        if isinstance(step, Linear):
            return linear(number, step, given[0])
        if isinstance(step, Gate):
            return gate(number, step, reduced(given[0], step.width))
        return reduced(given[0], step.ring) if step.op in ("input", "output") else other(number, step, given)

    net = Interpreter(plan.steps)
    values = net.start(x)
    net.run(values, compute)
    share: Tensor = values[len(plan.steps) - 1]
    return share


def _data_side(number: int, step: Step, given: tuple[Tensor, ...]) -> Tensor:
    return local(step, given, model=False)


def _model_side(number: int, step: Step, given: tuple[Tensor, ...]) -> Tensor:
    return local(step, given, model=True)


def requests(plan: Plan, masks: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Compute for every layer with weights the data side's share r of its input, which this side then sends encrypted.

    masks: the data side's masks of the steps in `plan.masked`, int64 (B, *shape), uniform mod 2^ring, by number of the
    step. Returns int64 (B, C, H, W) mod 2^ring, by number of the layer's step.
    """
    values = dict(masks)
    locals_ = sorted(at_rest(plan) - masks.keys())
    Interpreter(plan.steps, keep=True).run(values, _data_side, locals_)
    return {
        number: reduced(values[step.inputs[0].index], step.ring).reshape(-1, *step.image)
        for number, step in plan.linears.items()
    }


def offline(plan: Plan, masks: Mapping[int, Tensor], linear: LinearStep) -> tuple[dict[int, Tensor], Tensor]:
    """Compute the data's side of a plan before the image is known: its shares of all gates' inputs and of the logits.

    masks: the data side's masks r of the image and of the gates' results, by number of the step, int64 (B, *shape), mod
    2^ring.
    linear: a function that returns this side's share of a layer's result: W r - s mod 2^ring, int64 (B, *step.shape).
    It gets the number of the step, the step, and this side's share r of the input. W are the layer's weights, and s is
    a mask that the model's side has drawn.
    Returns two things: the shares of the gates' inputs, mod 2^width, by number of the step; and the share of the
    logits.
    """
    shares: dict[int, Tensor] = {}

    def gate(number: int, step: Gate, share: Tensor) -> Tensor:
        shares[number] = share
        return masks[number]

    return shares, walk(plan, masks[plan.input_number], linear, gate, _data_side)


def online(plan: Plan, x: Tensor, linear: LinearStep, gate: GateStep) -> Tensor:
    """Compute the model's side of a plan for images X: return its share of the logits.

    x: this side's share X - r, int64 (B, *shape), where r is the data side's mask.
    linear: a function that returns this side's share of a layer's result, from the number of the step, the step, and
    this side's share of the input (`model_linear`).
    gate: a function that returns this side's share of a gate's result y, from the number of the step, the step, and
    this side's share of the input mod 2^width. The share is y - r mod 2^ring, where r is the data side's mask of y.
    """
    return walk(plan, x, linear, gate, _model_side)


def factors(parameters: Mapping[int, LinearWeights]) -> dict[int, products.Factor]:
    """Prepare each layer's weights for many products: return `products.Factor` objects, by number of the layer's step.

    parameters: the layers' integer weights and biases, by number of the step.
    """
    return {number: products.Factor(found.weight) for number, found in parameters.items()}


def model_linear(
    parameters: Mapping[int, LinearWeights], weights: Mapping[int, products.Factor], masks: Mapping[int, Tensor]
) -> LinearStep:
    """Make the function that computes the model side's share of a layer's result; `online` calls it for each layer.

    The function gets the number of the step, the step, and the model side's share x of the input. It returns W x + s +
    bias mod 2^ring, where W are the layer's weights and s is the mask of its result.
    parameters: the layers' integer weights and biases, by number of the step. weights: the result of `factors`.
    masks: the masks s, int64 (B, *step.shape), by number of the step.
    """

    def linear(number: int, step: Linear, x: Tensor) -> Tensor:
        bias = parameters[number].bias.view(-1, *(1,) * (len(step.shape) - 1))
        return reduced(product(step, weights[number], x) + masks[number] + bias, step.ring)

    return linear
