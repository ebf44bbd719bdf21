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
    """The product of two private tensors (broadcasting): one Beaver product, 1 round."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + scales[1]

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + bounds[1]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        out = torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()
        return cost.product(inputs[0].numel, inputs[1].numel, out, parties)

    def forward(self, x: MPCTensor, y: MPCTensor) -> MPCTensor:
        out = beaver.product(self.session(), "mul", share_of(x), share_of(y), {})
        return from_share(out, scale_of(x) + scale_of(y))


class Square(Layer):
    """x * x from a shared square: 64 bits and one round per element."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return 2 * bounds[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return cost.square(inputs[0].numel, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        return from_share(beaver.square(self.session(), share_of(x)), 2 * scale_of(x))
