"""Linear layers: local with public weights, one opening of the input with weights that belong to one party.

Weights are fixed point with 16 bits of fraction; the result carries 16 bits more than the input, and nothing is cut
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.mpc import session as sessions
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.correlations import Request
from hummingbird.mpc.fixed import FixedWeight
from hummingbird.mpc.layer import MAX_SCALE, Layer, Spec
from hummingbird.ring import SCALE


def beaver(op: str, x: Tensor, y: Tensor, options: dict[str, Any]) -> Tensor:
    """Share of op(x, y, **options) mod 2^64 from shares of both (Beaver 1991), int64; 1 round, 64 bits per operand
    element.

    With e = x - a and d = y - b opened: xy = c + op(e, b + d) + op(a, d), d's part in the first product at party 0
    only.
    """
    session = sessions.current()
    request = Request("additive", {"size0": list(x.shape), "size1": list(y.shape), "op": op, "kwargs": options})
    a, b, c = session.take(request)
    e, d = x - a, y - b
    for theirs in session.channel.exchange(e, d).values():
        e += theirs[0]
        d += theirs[1]
    right = b + d if session.rank == 0 else b
    return c + ring.bilinear(op, e, right, **options) + ring.bilinear(op, a, d, **options)


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
    return ring.bilinear(op, x, weight.view(*view), **options)


class Linear(Layer):
    """op(x, weight) + bias for op of `ring.BILINEAR`.

    weight, bias: real tensors in torch's layout for the op ("matmul": (in, out); "mul": one factor per channel). The
        bias has one entry per output channel, which is dimension 1, or the last one for "matmul".
    owner: None for public weights, else the party whose weights they are: the others' values are ignored.
    Public: no communication. Private: `cost.fixed_product`, 64 bits per element of the input, 1 round; the weights are
    opened masked once, by `PrivateNet.prepare`.
    """

    input_limit = 24  # 24 + 16 = 40 bits of fraction leave 22 for the integer part, below the protocols' bound of 2^62

    weight: Tensor | FixedWeight
    bias: Tensor | None

    def __init__(
        self, op: str, weight: Tensor, bias: Tensor | None, options: dict[str, Any], owner: int | None
    ) -> None:
        super().__init__()
        self.op, self.options, self.owner = op, options, owner
        set_weight(self, ring.encode(weight, where="weight"), owner)
        self.register_buffer("bias", None if bias is None else ring.encode(bias, where="bias"))

    def share_weights(self) -> None:
        if self.owner is not None and self.bias is not None:
            self.bias = sessions.share_secret(self.bias, tuple(self.bias.shape), self.owner)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + SCALE

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if self.owner is None:
            return cost.FREE
        n = inputs[0].numel
        out = n if self.op == "mul" else _numel(self.op, inputs[0].shape, tuple(self.weight.shape), self.options)
        return cost.fixed_product(n, out, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        share, scale = share_of(x), scale_of(x)
        view = (-1, *[1] * (share.dim() - 2)) if self.op == "mul" else tuple(self.weight.shape)  # a factor per channel
        out = times(self.op, share, self.weight, self.options, view)
        # A public bias is added by one party, a private one by all, each its share.
        if self.bias is not None and (self.owner is not None or self.session().rank == 0):
            bias = self.bias << scale
            out = out + (bias if self.op == "matmul" else bias.view(-1, *[1] * (out.dim() - 2)))
        return from_share(out, scale + SCALE)

    def extra_repr(self) -> str:
        owner = "public" if self.owner is None else f"private to party {self.owner}"
        return f"{self.op}, weight {tuple(self.weight.shape)} {owner}"


def _numel(op: str, left: Sequence[int], right: Sequence[int], options: dict[str, Any]) -> int:
    """Number of elements of a product, found by torch on tensors without data."""
    a, b = torch.empty(*left, device="meta"), torch.empty(*right, device="meta")
    return int(getattr(torch, op)(a, b, **options).numel())


class Scale(Layer):
    """x times a public number: bits are added only when the number needs them (a power of two is a change of scale)."""

    input_limit = 24

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        mantissa, exponent = torch.frexp(torch.tensor(factor, dtype=torch.float64))
        # 2^-s for 0 <= s <= 16: reading the same ring element with s more bits of fraction is an exact division.
        self.shift = int(1 - exponent) if float(mantissa) == 0.5 and 0 <= 1 - int(exponent) <= SCALE else None
        self.integer = int(ring.encode(torch.tensor([factor], dtype=torch.float64), where="factor"))

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + (SCALE if self.shift is None else self.shift)

    def forward(self, x: MPCTensor) -> MPCTensor:
        if self.shift is not None:
            return from_share(share_of(x), scale_of(x) + self.shift)
        return from_share(share_of(x) * self.integer, scale_of(x) + SCALE)

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


def sums_by_halves(x: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """`pool`, sums of up to 2^21 elements, on int64 where it takes floating point only (CUDA).

    Exact mod 2^64: the halves are below 2^32 in magnitude, so sums of 2^21 of them stay within 2^53.
    """
    low, high = pool((x & 0xFFFFFFFF).double()), pool((x >> 32).double())
    return low.long() + (high.long() << 32)


class AvgPool(Layer):
    """Mean over pooling windows, torch's `avg_pool` options: sums of shares, then a division as in `Scale`.

    A window of 2^s places costs nothing and adds s bits of fraction; other sizes, and borders where padding is not
    counted, are multiplied by encoded reciprocals.
    """

    input_limit = 24

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = tuple(kernel), tuple(stride), tuple(padding)
        self.ceil_mode, self.count_include_pad, self.divisor = ceil_mode, count_include_pad, divisor
        uniform = divisor is not None or not ceil_mode and (count_include_pad or not any(padding))
        self.division = Scale(1 / (divisor or math.prod(self.kernel))) if uniform else None

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.division.out_scale(scales) if self.division else scales[0] + SCALE

    def pool(self, x: Tensor, divisor: int | None) -> Tensor:
        """torch's pooling in two spatial dimensions, whatever the number here is."""
        flat = len(self.kernel) == 1
        one = (1,) if flat else ()
        out = torch.nn.functional.avg_pool2d(
            x[:, :, None] if flat else x,
            one + self.kernel,
            one + self.stride,
            (0,) * len(one) + self.padding,
            self.ceil_mode,
            self.count_include_pad,
            divisor,
        )
        return out[:, :, 0] if flat else out

    def sums(self, x: Tensor) -> Tensor:
        """Sums over the windows mod 2^64."""
        return sums_by_halves(x, lambda half: self.pool(half, 1)) if x.is_cuda else self.pool(x, 1)

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        total = from_share(self.sums(share), scale_of(x))
        if self.division:
            return self.division(total)
        ones = torch.ones(1, 1, *share.shape[2:], dtype=torch.float64)
        reciprocal = self.pool(ones, None) / self.pool(ones, 1)  # mean of ones over sum of ones: 1 / places counted
        return from_share(share_of(total) * ring.encode(reciprocal).to(share.device), scale_of(x) + SCALE)

    def extra_repr(self) -> str:
        return f"kernel {self.kernel}, stride {self.stride}"


def equal_windows(shape: Sequence[int], output_size: Sequence[int | None]) -> list[int]:
    """Kernel (and stride) of an adaptive pooling whose windows are equal; InputError if they cannot be."""
    space = tuple(shape)[-len(output_size) :]
    sizes = [out or size for size, out in zip(space, output_size, strict=True)]
    if any(size % out for size, out in zip(space, sizes, strict=True)):
        raise InputError(
            f"adaptive pooling to {tuple(sizes)} does not divide the input's {space}",
            hint="change the input size, or replace the layer by AvgPool2d or MaxPool2d",
        )
    return [size // out for size, out in zip(space, sizes, strict=True)]


class AdaptiveAvgPool(Layer):
    """Mean over equal windows, `output_size` of them per dimension; the size must divide the input's."""

    input_limit = 24

    def __init__(self, output_size: Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + SCALE

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        kernel = equal_windows(share.shape, self.output_size)
        total = AvgPool(kernel, kernel, [0] * len(kernel)).sums(share)
        return from_share(total * int(ring.encode(torch.tensor([1 / math.prod(kernel)]))), scale_of(x) + SCALE)

    def extra_repr(self) -> str:
        return f"{tuple(self.output_size)}"


class Mean(Layer):
    """Mean over `dims` (None: over everything): a sum of shares times a public reciprocal."""

    input_limit = 24

    def __init__(self, dims: Sequence[int] | None, keepdim: bool) -> None:
        super().__init__()
        self.dims, self.keepdim = dims, keepdim

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + SCALE

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        total = share.sum() if self.dims is None else share.sum(tuple(self.dims), keepdim=self.keepdim)
        count = share.numel() // max(1, total.numel())
        return from_share(total * int(ring.encode(torch.tensor([1 / count]))), scale_of(x) + SCALE)

    def extra_repr(self) -> str:
        return "over everything" if self.dims is None else f"over {tuple(self.dims)}"


class Pad(Layer):
    """torch's constant padding, `pads` from the last dimension on."""

    input_limit = MAX_SCALE

    def __init__(self, pads: Sequence[int], value: float) -> None:
        super().__init__()
        self.pads, self.value = list(pads), value

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0]

    def forward(self, x: MPCTensor) -> MPCTensor:
        fill = (
            int(ring.encode(torch.tensor([self.value], dtype=torch.float64), scale_of(x)))
            if self.session().rank == 0
            else 0
        )
        return from_share(torch.nn.functional.pad(share_of(x), self.pads, value=fill), scale_of(x))

    def extra_repr(self) -> str:
        return f"{self.pads} with {self.value:g}"


class AddConstant(Layer):
    """x + c for a public real c (number or tensor that broadcasts); sign=-1 gives c - x."""

    input_limit = MAX_SCALE

    value: Tensor

    def __init__(self, value: Tensor, sign: int = 1) -> None:
        super().__init__()
        self.sign = sign
        self.register_buffer("value", ring.encode(value, where="constant"))

    def out_scale(self, scales: Sequence[int]) -> int:
        limit = 1 << (62 - scales[0] + SCALE)  # |c| * 2^scale must stay below 2^62, as every opened value
        if self.value.numel() and int(self.value.abs().max()) >= limit:
            raise InputError(
                f"a constant beyond +-2^{62 - scales[0]} is added to a value with {scales[0]} bits of fraction"
            )
        return scales[0]

    def forward(self, x: MPCTensor) -> MPCTensor:
        share, scale = share_of(x) * self.sign, scale_of(x)
        constant = self.value << (scale - SCALE)
        return from_share(share + (constant if self.session().rank == 0 else torch.zeros_like(constant)), scale)


class Multiply(Layer):
    """The product of two private tensors (broadcasting): one Beaver product, 1 round."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + scales[1]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        out = torch.broadcast_shapes(inputs[0].shape, inputs[1].shape).numel()
        return cost.product(inputs[0].numel, inputs[1].numel, out, parties)

    def forward(self, x: MPCTensor, y: MPCTensor) -> MPCTensor:
        return from_share(beaver("mul", share_of(x), share_of(y), {}), scale_of(x) + scale_of(y))


class Square(Layer):
    """x * x from a shared square: 64 bits and one round per element."""

    def out_scale(self, scales: Sequence[int]) -> int:
        return 2 * scales[0]

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return cost.opening(parties, 8 * inputs[0].numel, 64 * inputs[0].numel)

    def forward(self, x: MPCTensor) -> MPCTensor:
        session, share = self.session(), share_of(x)
        r, square = session.take(Request("square", {"shape": list(share.shape)}))
        e = share - r
        for theirs in session.channel.exchange(e).values():
            e += theirs[0]
        out = square + 2 * e * r
        return from_share(out + e * e if session.rank == 0 else out, 2 * scale_of(x))
