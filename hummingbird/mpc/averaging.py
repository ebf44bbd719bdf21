"""Means over places: sums of shares, which are local, times a public reciprocal.

The reciprocal's bits of fraction stay on the result, as a weight's do (mpc/weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.graph.pooling import equal_windows
from hummingbird.mpc._crypten import MPCTensor, from_share, scale_of, share_of
from hummingbird.mpc.constants import Scale
from hummingbird.mpc.layer import FLOOR, Layer, Spec, room


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
        self.uniform = divisor is not None or not ceil_mode and (count_include_pad or not any(padding))
        places = math.prod(self.kernel)
        self.division = Scale(1 / (divisor or places), places)
        if not self.uniform:  # reciprocals of all numbers up to `places`: as many bits as that of an odd one so large
            self.division = Scale(1 / (places + 1 - places % 2), places)

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.division.out_scale(scales)

    def bound(self, bounds: Sequence[int]) -> int:
        return self.division.bound(bounds)

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
        if self.uniform:
            return self.division(total)
        ones = torch.ones(1, 1, *share.shape[2:], dtype=torch.float64)
        reciprocal = self.pool(ones, None) / self.pool(ones, 1)  # mean of ones over sum of ones: 1 / places counted
        codes = ring.encode(reciprocal, self.division.fraction).to(share.device)
        return from_share(share_of(total) * codes, self.out_scale([scale_of(x)]))

    def label(self) -> str:
        return f"kernel {self.kernel}, stride {self.stride}"


class _Averaging(Layer):
    """Base of means over as many places as the input has, known when it comes: a sum times an encoded reciprocal."""

    input_limit = 24
    fraction = room(FLOOR)  # the most that leaves room for 2^20: exact for 2^j places, j <= 26, else up to 2^18

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def reciprocal(self, places: int) -> int:
        """1 / places in the ring; InputError where it would be rounded by more than 2^-8 of itself."""
        number = torch.tensor([1 / max(1, places)], dtype=torch.float64)
        try:
            ring.fraction(number, self.fraction)
        except InputError:
            hint = "average in two steps, or over a power of two"
            raise InputError(f"1/{places}, of a mean over {places} values, is too small", hint=hint) from None
        return int(ring.encode(number, self.fraction))

    def places(self, shape: Sequence[int]) -> int:
        """How many values of an input of this shape make one of the result."""
        raise NotImplementedError

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        self.reciprocal(self.places(inputs[0].shape))  # says at once if it cannot
        return cost.FREE


class AdaptiveAvgPool(_Averaging):
    """Mean over equal windows, `output_size` of them per dimension; the size must divide the input's."""

    def __init__(self, output_size: Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def places(self, shape: Sequence[int]) -> int:
        return math.prod(equal_windows(shape, self.output_size))

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        kernel = equal_windows(share.shape, self.output_size)
        total = AvgPool(kernel, kernel, [0] * len(kernel)).sums(share)
        return from_share(total * self.reciprocal(math.prod(kernel)), self.out_scale([scale_of(x)]))

    def label(self) -> str:
        return f"{tuple(self.output_size)}"


class Mean(_Averaging):
    """Mean over `dims` (None: over everything): a sum of shares times a public reciprocal."""

    def __init__(self, dims: Sequence[int] | None, keepdim: bool) -> None:
        super().__init__()
        self.dims, self.keepdim = dims, keepdim

    def places(self, shape: Sequence[int]) -> int:
        return math.prod(shape if self.dims is None else [shape[dim] for dim in self.dims])

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        total = share.sum() if self.dims is None else share.sum(tuple(self.dims), keepdim=self.keepdim)
        return from_share(total * self.reciprocal(self.places(share.shape)), self.out_scale([scale_of(x)]))

    def label(self) -> str:
        return "over everything" if self.dims is None else f"over {tuple(self.dims)}"
