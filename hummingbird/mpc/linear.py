"""Linear layers: local with public weights, one opening of the input with weights that belong to one party.

Weights have 20 bits of fraction, and public ones more where they are small; private ones have no number of their own,
for it would tell how small they are. Public factors have as many as hold them exactly, or as they need
(`ring.fraction`). The result carries these bits more than the input, and nothing is cut here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.mpc import session as sessions
from hummingbird.mpc import sharing
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.correlations.products import SquarePair, Triple
from hummingbird.mpc.layer import FLOOR, MAX_SCALE, Layer, Spec, room
from hummingbird.mpc.protocols.weight_mask import FixedWeight
from hummingbird.ring import SCALE, WEIGHT_SCALE


def beaver(op: str, x: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """Share of op(x, y, **options) mod 2^64 from shares of both (Beaver 1991), int64; 1 round, 64 bits per operand
    element.

    With e = x - a and d = y - b opened: xy = c + op(e, b + d) + op(a, d), d's part in the first product at party 0
    only.
    """
    session = sessions.current()
    a, b, c = session.correlation(Triple(tuple(x.shape), tuple(y.shape), op, options))
    e, d = x - a, y - b
    for theirs in session.channel.exchange(e, d).values():
        e += theirs[0]
        d += theirs[1]
    right = b + d if session.rank == 0 else b
    return c + ring.bilinear(op, e, right, **options) + ring.bilinear(op, a, d, **options)


def squared(x: Tensor) -> Tensor:
    """Share of x * x mod 2^64 from a share of x, int64 of any shape; 1 round, 64 bits per element.

    With e = x - r opened, and r^2 dealt: x^2 = r^2 + 2 e r + e^2.
    """
    session = sessions.current()
    r, square = session.correlation(SquarePair(tuple(x.shape)))
    e = x - r
    for theirs in session.channel.exchange(e).values():
        e += theirs[0]
    out = square + 2 * e * r
    return out + e * e if session.rank == 0 else out


def private_fraction(weight: Tensor, owner: int) -> int:
    """Bits of fraction of a weight of party `owner`: 20. InputError, at its owner, if they are too few."""
    if not sessions.is_initialized() or sessions.current().rank == owner:
        ring.fraction(weight, WEIGHT_SCALE, where="weight")
    return WEIGHT_SCALE


def set_weight(layer: Layer, code: Tensor, owner: int | None) -> None:
    """`layer.weight`, from its int64 code: a buffer if it is public, else its owner's."""
    if owner is None:
        layer.register_buffer("weight", code)
    else:
        layer.weight = FixedWeight(code, owner)


def times(op: str, x: Tensor, weight: Tensor | FixedWeight, options: dict[str, Any], view: Sequence[int]) -> Tensor:
    """Share of op(x, weight) mod 2^64, int64, with the weight in the shape `view`."""
    if isinstance(weight, FixedWeight):
        return weight.product(op, x, options, view)
    return ring.bilinear(op, x, weight.view(tuple(view)), **options)


class Linear(Layer):
    """op(x, weight) + bias for op of `ring.BILINEAR`.

    weight, bias: real tensors in torch's layout for the op ("matmul": (in, out); "mul": one factor per channel). The
        bias has one entry per output channel, which is dimension 1, or the last one for "matmul".
    owner: None for public weights, else the party whose weights they are: the others' values are ignored.
    Public: no communication. Private: `cost.fixed_product`, 64 bits per element of the input, 1 round; the weights are
    opened masked once, by `PrivateNet.prepare`. InputError for weights too small for the fixed point.
    """

    input_limit = 22  # 22 + 20 = 42 bits of fraction leave 22 for the integer part: FLOOR and MARGIN

    weight: Tensor | FixedWeight
    bias: Tensor | None

    def __init__(
        self, op: str, weight: Tensor, bias: Tensor | None, options: dict[str, Any], owner: int | None
    ) -> None:
        super().__init__()
        self.op, self.options, self.owner = op, options, owner
        # A result is a sum of products, and its bias: how large it is at most, if the weights are known.
        self.growth = _growth(op, weight, options) if owner is None else None
        self.offset = ring.exponent_of(float(bias.abs().max())) if bias is not None and bias.numel() else None
        if owner is None:
            # At least 20, though fewer may hold them exactly: a dealer who has other weights makes the same plan.
            self.fraction = max(WEIGHT_SCALE, ring.fraction(weight, room(self.bound([FLOOR])), where="weight"))
        else:
            self.fraction = private_fraction(weight, owner)
        set_weight(self, ring.encode(weight, self.fraction, where="weight"), owner)
        self.register_buffer("bias", None if bias is None else ring.encode(bias, _BIAS_SCALE, where="bias"))

    def share_weights(self) -> None:
        if self.owner is not None and self.bias is not None:
            self.bias = sharing.share_secret(self.bias, tuple(self.bias.shape), self.owner)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        if self.growth is None:
            return FLOOR
        products = bounds[0] + self.growth
        return products if self.offset is None else max(products, self.offset) + 1

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if self.owner is None:
            return cost.FREE
        n = inputs[0].numel
        out = n if self.op == "mul" else _numel(self.op, inputs[0].shape, tuple(self.weight.shape), self.options)
        return cost.fixed_product(n, out, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        share, scale = share_of(x), scale_of(x) + self.fraction
        view = (-1, *[1] * (share.dim() - 2)) if self.op == "mul" else tuple(self.weight.shape)  # a factor per channel
        out = times(self.op, share, self.weight, self.options, view)
        # A public bias is added by one party, a private one by all, each its share.
        if self.bias is not None and (self.owner is not None or self.session().rank == 0):
            bias = ring.shifted(self.bias, scale - _BIAS_SCALE)  # up, where it is private: 16 + 20 bits at least
            out = out + (bias if self.op == "matmul" else bias.view(-1, *[1] * (out.dim() - 2)))
        return from_share(out, scale)

    def label(self) -> str:
        owner = "public" if self.owner is None else f"private to party {self.owner}"
        return f"{self.op}, weight {tuple(self.weight.shape)} {owner}"


_BIAS_SCALE = SCALE + WEIGHT_SCALE  # biases stay below 2^26


def _growth(op: str, weight: Tensor, options: dict[str, Any]) -> int:
    """log2, rounded up, of the largest sum of |weights| that one output adds up: |op(x, weight)| <= 2^growth |x|.

    In whole numbers, for every machine must find the same: 40 bits of each weight, exact for up to 2^22 terms.
    """
    top = ring.exponent_of(float(weight.abs().max())) if weight.numel() else 0
    codes = (weight.detach().abs().double() * 2.0 ** (40 - top)).ceil().long()
    if op == "mul":
        sums = codes
    elif op == "matmul":
        sums = codes.sum(0)
    elif op.startswith("conv_transpose"):
        groups = options["groups"]
        sums = codes.view(groups, len(codes) // groups, codes.shape[1], -1).sum((1, 3))
    else:
        sums = codes.flatten(1).sum(1)
    largest = int(sums.max()) if sums.numel() else 0
    return max(largest - 1, 0).bit_length() + top - 40


def _numel(op: str, left: Sequence[int], right: Sequence[int], options: dict[str, Any]) -> int:
    """Number of elements of a product, found by torch on tensors without data."""
    a, b = torch.empty(*left, device="meta"), torch.empty(*right, device="meta")
    return int(getattr(torch, op)(a, b, **options).numel())


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
        return from_share(beaver("mul", share_of(x), share_of(y), {}), scale_of(x) + scale_of(y))


class Square(Layer):
    """x * x from a shared square: 64 bits and one round per element."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return 2 * bounds[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return cost.square(inputs[0].numel, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        return from_share(squared(share_of(x)), 2 * scale_of(x))
