"""Layers with public numbers: x times one, x plus one, and padding with one. Nothing is sent.

A factor has as many bits of fraction as hold it exactly, or as it needs (`ring.fraction`), and the result carries these
bits more than the input.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import InputError
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.layer import FLOOR, MAX_SCALE, Layer, room


class Scale(Layer):
    """x times a public number, which adds the bits of fraction that it needs: none for 3, two for 0.25.

    terms: of how many values x is the sum, for a mean; it tells how large the result can be.
    """

    input_limit = 24

    def __init__(self, factor: float, terms: int = 1) -> None:
        super().__init__()
        self.factor = factor
        self.growth = ring.exponent_of(factor * terms)
        number = torch.tensor([factor], dtype=torch.float64)
        self.fraction = ring.fraction(number, room(FLOOR + self.growth), where="factor")
        self.integer = int(ring.encode(number, self.fraction, where="factor"))

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + self.growth

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x) if self.integer == 1 else share_of(x) * self.integer
        return from_share(share, scale_of(x) + self.fraction)

    def label(self) -> str:
        return f"{self.factor:g}"


class Pad(Layer):
    """torch's constant padding, `pads` from the last dimension on."""

    input_limit = MAX_SCALE

    def __init__(self, pads: Sequence[int], value: float) -> None:
        super().__init__()
        self.pads, self.value = list(pads), value

    def out_scale(self, scales: Sequence[int]) -> int:
        fits(torch.tensor([self.value]), scales[0])
        return scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], ring.exponent_of(self.value))

    def forward(self, x: MPCTensor) -> MPCTensor:
        fill = (
            int(ring.encode(torch.tensor([self.value], dtype=torch.float64), scale_of(x)))
            if self.session().rank == 0
            else 0
        )
        return from_share(torch.nn.functional.pad(share_of(x), self.pads, value=fill), scale_of(x))

    def label(self) -> str:
        return f"{self.pads} with {self.value:g}"


def fits(constant: Tensor, scale: int) -> None:
    """InputError unless a constant that is added to a value of this scale fits the ring."""
    try:
        ring.encode(constant.double(), scale, where="constant")
    except InputError as error:
        what = f"a constant is added to a value with {scale} bits of fraction: {error.what}"
        raise InputError(what, hint="keep constants below 2^14, or put a layer that compares before this one") from None


class AddConstant(Layer):
    """x + c for a public real c (number or tensor that broadcasts); sign=-1 gives c - x."""

    input_limit = MAX_SCALE

    value: Tensor

    def __init__(self, value: Tensor, sign: int = 1) -> None:
        super().__init__()
        self.sign = sign
        ring.encode(value, where="constant")  # says at once if it cannot be
        self.register_buffer("value", value.double())
        self.size = ring.exponent_of(float(value.abs().max())) if value.numel() else 0

    def out_scale(self, scales: Sequence[int]) -> int:
        if not self.value.is_meta:
            fits(self.value, scales[0])
        return scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], self.size) + 1

    def forward(self, x: MPCTensor) -> MPCTensor:
        share, scale = share_of(x) * self.sign, scale_of(x)
        constant = ring.encode(self.value, scale)
        return from_share(share + (constant if self.session().rank == 0 else torch.zeros_like(constant)), scale)


class Constant(Layer):
    """A public real tensor among private ones, at rest: party 0's share is the constant, the others' are zero."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", ring.encode(value, where="constant"))
        self.size = ring.exponent_of(float(value.abs().max())) if value.numel() else 0

    def bound(self, bounds: Sequence[int]) -> int:
        return max(0, self.size)

    def forward(self) -> MPCTensor:
        return from_share(self.value.clone() if self.session().rank == 0 else torch.zeros_like(self.value))
