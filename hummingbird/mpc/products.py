"""Layers that multiply private values: one opening of masked operands (protocols/beaver.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hummingbird import cost
from hummingbird.cost import Cost
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.layer import Layer, Spec
from hummingbird.mpc.protocols import beaver


class Multiply(Layer):
    """The product of two private tensors (broadcasting): 1 round, and as many bits for each of their elements as are
    read of the result.
    """

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + scales[1]

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + bounds[1]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        out = torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()
        return cost.product(inputs[0].numel, inputs[1].numel, out, parties, self.read)

    def forward(self, x: MPCTensor, y: MPCTensor) -> MPCTensor:
        out = beaver.product(self.session(), "mul", share_of(x), share_of(y), {}, self.read)
        return from_share(out, scale_of(x) + scale_of(y))


class Square(Layer):
    """x * x from a shared square: a round, and as many bits per element as are read of the result."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return 2 * bounds[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return cost.square(inputs[0].numel, parties, self.read)

    def forward(self, x: MPCTensor) -> MPCTensor:
        return from_share(beaver.square(self.session(), share_of(x), self.read), 2 * scale_of(x))
