"""The two walks: shares of both sides against whole numbers, and the law of the cut."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.graph import Ref
from hummingbird.hybrid import arithmetic, ideal
from hummingbird.hybrid.plan import Gate, Linear, LinearWeights, Model, Plan, Step, reduced, signed
from hummingbird.prg import Stream

SEED = bytes(range(16))


def small() -> Model:
    """A convolution, a ReLU on the bits [14:4) and a linear layer."""
    steps = (
        Step("input", "input", (), (1, 4, 4), 14, 2.0**-8),
        Linear("conv", "linear", (Ref(0),), (2, 4, 4), 14, 2.0**-12, {}, (1, 4, 4), (2, 1, 3, 3), padding=(1, 1)),
        Step("relu.cut", "cut", (Ref(1),), (2, 4, 4), 10, 2.0**-8, {"m": 4}),
        Gate("relu", "gate", (Ref(2),), (2, 4, 4), 20, 2.0**-8, {}, "relu", 10),
        Step("flat", "reshape", (Ref(3),), (32,), 20, 2.0**-8),
        Linear("fc", "linear", (Ref(4),), (3,), 20, 2.0**-12, {}, (32, 1, 1), (3, 32, 1, 1)),
        Step("output", "output", (Ref(5),), (3,), 20, 2.0**-12),
    )
    words = signed(Stream(SEED).words(2 * 9 + 3 * 32), 4)
    weights = words[:18].reshape(2, 1, 3, 3), words[18:].reshape(3, 32, 1, 1)
    biases = torch.tensor([5, -700]), torch.tensor([1, 2, -3])
    found = {number: LinearWeights(w, b) for number, w, b in zip((1, 5), weights, biases, strict=True)}
    return Model(Plan(steps, "data", 2.0), found)


def images(count: int) -> Tensor:
    return (signed(Stream(bytes(16)).words(count, 1, 4, 4), 9)).double() / 256


def test_the_walks_of_both_sides_give_the_cuts_law_and_exact_layers() -> None:
    model, x = small(), small().plan.encode(images(5))
    masks, hidden = ideal.drawn(model.plan, SEED, 5)
    got = ideal.run(model, x, masks, hidden)
    # The same by whole numbers: z is what the data's side holds below the cut.
    conv, fc = model.parameters[1], model.parameters[5]
    d = reduced(arithmetic.product(model.plan.linears[1], conv.weight, masks[0]) - hidden[1], 14)
    v = torch.conv2d(x, conv.weight, conv.bias, padding=1)
    cut = signed((v + 15 - (d & 15)).div(16, rounding_mode="floor"), 10)
    logits = cut.clamp(min=0).flatten(1) @ fc.weight[:, :, 0, 0].T + fc.bias
    assert torch.equal(got, reduced(logits, 20))
    assert torch.equal(model.plan.decode(got), logits.float() / 4096)


def test_requests_are_the_masks_of_the_layers_inputs() -> None:
    plan = small().plan
    masks, _ = ideal.drawn(plan, SEED, 2)
    found = arithmetic.requests(plan, masks)
    assert list(found) == [1, 5]
    assert torch.equal(found[1], masks[0]) and torch.equal(found[5], masks[3].reshape(2, 32, 1, 1))


def test_the_cut_is_right_on_average_for_every_value_in_its_range() -> None:
    """Exhaustively: all v and all d of a ring of 7 bits, m = 3; and without 2^m - 1 almost a unit is lost."""
    ring, m = 7, 3
    step = Step("cut", "cut", (Ref(0),), (), ring - m, 1.0, {"m": m})
    v = torch.arange(-(1 << ring - 1), (1 << ring - 1) - (1 << m) + 1)
    d = torch.arange(1 << ring)
    u = reduced(v[:, None] - d, ring)
    at_model = arithmetic.local(step, (u,), model=True)
    at_data = arithmetic.local(step, (d,), model=False)
    got = signed(at_model + at_data, ring - m)
    law = (v[:, None] + (1 << m) - 1 - (d & 7)).div(1 << m, rounding_mode="floor")
    assert torch.equal(got, law)
    assert torch.equal(got.double().mean(1), v.double() / 8)
    without = signed(arithmetic.local(step, (u,), model=False) + at_data, ring - m)
    assert torch.equal(without.double().mean(1)[8:], v.double()[8:] / 8 - 7 / 8)
