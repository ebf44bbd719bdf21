"""Absolute values, maxima, max pooling, and comparisons with result 0 or 1: formulas over comparisons (arithmetic.py).

    |x| = 2 relu(x) - x        max(x, c) = c + relu(x - c)        max(x, y) = y + relu(x - y)
    [v > 0] = relu(v) - relu(v - 1)        for the integer v = 2^16 (x - y)

A minimum is min(x, y) = -max(-x, -y).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError
from hummingbird.graph.ops.pools import adaptive_windows, places
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing, CostTensor, Shares
from hummingbird.mpc.layers.constants import fits
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE


class Abs(Comparing):
    """Layer for |x|, at the price of a ReLU."""

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        y, z = n.compare(x)
        return 2 * y - z


class Bounded(Comparing):
    """Layer for max(x, c) for a public number c, or min(x, c) with sign=-1, at the price of a ReLU. value: c."""

    def __init__(self, value: float, sign: int, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.value, self.sign = value, sign

    def out_scale(self, scales: Sequence[int]) -> int:
        fits(torch.tensor([self.value], dtype=torch.float64), scales[0])
        return super().out_scale(scales)

    def farthest(self, scale: int) -> float:
        return abs(self.value)

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds[0], ring.exponent_of(self.value))

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        y = n.relus(self.sign * x, (self.sign * self.value,))
        return self.sign * (y[0] + n.constant(self.sign * self.value))


class _OfTwo(Comparing):
    """Base of layers that compare two private tensors of scale 2^16 (broadcasting), or one with a public number.

    Such a layer needs a window with bits.
    """

    input_limit = SCALE
    arguments = 2

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            raise ConfigError("a comparison of two values needs bits", hint="give it a window")
        return min(valid)

    def forward(self, session: Session, x: Shared, *others: Shared) -> Shared:
        n = Shares(session, self.comparison, SCALE)
        return Shared(self.formula(n, x.share, *(y.share for y in others)))

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        raise NotImplementedError

    def _price(self, inputs: Sequence[Spec], parties: int) -> CostTensor:
        prices = CostTensor(self.comparison, SCALE, parties)
        self.formula(prices, *(torch.empty(x.shape, dtype=torch.int64, device="meta") for x in inputs))
        return prices

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self._price(inputs, parties).total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return self._price(inputs, 2).breadth


class Larger(_OfTwo):
    """Layer for max(x, y) of two private tensors, or min(x, y) with sign=-1. It costs a ReLU of the result's shape."""

    def __init__(self, sign: int, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.sign = sign

    def bound(self, bounds: Sequence[int]) -> int:
        return max(bounds)

    def reads(self, later: int | None) -> int | None:
        here = self.comparison.reads
        return None if here is None or later is None else max(here, later)

    def needs(self, scales: Sequence[int], later: int) -> int:
        return max(later, self.comparison.needs(max(scales)))

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        both = torch.stack(torch.broadcast_tensors(x, *others))
        return self.sign * n.maximum(self.sign * both)


class Greater(_OfTwo):
    """Layer for [x > y], that is 1 where x > y and 0 elsewhere, with scale 2^16.

    It takes two comparisons for each element, in the rounds of one.
    value: a public number y; None if y is private.
    turned: compute [y > x].
    strict: whether the result for equal values is 0; otherwise it is 1.
    Only the upper bound k of the window is used: the comparison is exact in all lower bits.
    """

    whole_ring = True

    def __init__(self, value: float | None, turned: bool, strict: bool, comparison: Comparison) -> None:
        super().__init__(comparison)
        self.value, self.turned, self.strict = value, turned, strict

    def out_scale(self, scales: Sequence[int]) -> int:
        if self.value is not None:
            fits(torch.tensor([self.value], dtype=torch.float64), SCALE)
        return SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        super().valid(scales, valid)
        return 64

    def farthest(self, scale: int) -> float:
        return abs(self.value or 0.0)

    def bound(self, bounds: Sequence[int]) -> int:
        return 1

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 64  # the window is widened, as for an argmax

    def formula(self, n: Arithmetic, x: Tensor, *others: Tensor) -> Tensor:
        known = self.comparison
        window = BitWindow(64 if known.window.k == 64 else min(known.valid, known.window.k + 1), 0)
        n = n.with_comparison(known.wider(window, known.valid))
        one = n.units(torch.ones((1,) * x.dim(), dtype=torch.int64, device=x.device))
        y: Any = others[0] if others else self._constant(n, x)
        v = y - x if self.turned else x - y
        v = v if self.strict else v + one
        above = n.relu(torch.stack([v, v - one]))
        return n.times(above[0] - above[1], 1 << SCALE, 0)

    def _constant(self, n: Arithmetic, x: Tensor) -> Tensor:
        # Values are multiples of 2^-16: x > c if x > floor(c), and x >= c if x >= ceil(c).
        assert self.value is not None
        exact = torch.full((1,) * x.dim(), self.value, dtype=torch.float64, device=x.device) * 2.0**SCALE
        return n.units((exact.ceil() if self.strict == self.turned else exact.floor()).long())


# Max pooling ----------------------------------------------------------------------------------------------------------
#
# A tree of max(a, b) = b + relu(a - b) for every pooling window (`Arithmetic.maximum`).


class _MaxPooling(Comparing):
    """Base of the pooling layers that select maxima, for values of scale 2^16.

    Results are some of the inputs; as many low bits of their shares are right as of the inputs' shares.
    """

    input_limit = SCALE

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0]

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0]

    def reads(self, later: int | None) -> int | None:
        here = self.comparison.reads
        return later if self.comparison.drops else None if here is None or later is None else max(here, later)

    def needs(self, scales: Sequence[int], later: int) -> int:
        return later if self.comparison.drops else max(later, self.comparison.needs(scales[0]))


class MaxPool(_MaxPooling):
    """Layer for torch's max pooling.

    It takes maxima along one spatial dimension after the other, with fewer comparisons than over whole pooling windows.
    kernel, stride, padding, dilation: one number for each spatial dimension.
    """

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        comparison: Comparison,
    ) -> None:
        super().__init__(comparison)
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.ceil_mode = ceil_mode

    def places(self, size: int, d: int) -> Tensor:
        """Return where the elements of each pooling window lie along spatial dimension d: indices, int64 (kernel, out).

        size: the length of the dimension.
        """
        kernel, stride, padding, dilation = self.kernel[d], self.stride[d], self.padding[d], self.dilation[d]
        return places(size, kernel, stride, padding, dilation, self.ceil_mode)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        shape, most = list(inputs[0].shape), inputs[0].numel
        for d in reversed(range(len(self.kernel))):
            axis = len(shape) - len(self.kernel) + d
            kernel, shape[axis] = self.places(shape[axis], d).shape
            most = max(most, kernel * torch.Size(shape).numel())  # a copy of the input for each element of the kernel
        return most

    def reduced(self, x: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Reduce the elements of every pooling window, one spatial dimension after the other, and return the result.

        reduce: reduces a tensor's dimension 0, as a maximum does.
        """
        for d in reversed(range(len(self.kernel))):
            axis = x.dim() - len(self.kernel) + d
            taps = put(self.places(x.shape[axis], d), x.device)
            x = reduce(torch.stack([x.index_select(axis, row) for row in taps]))
        return x

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return self.reduced(x, n.maximum)

    def dropped(self, x: Tensor) -> Tensor:
        """Return the first element of every pooling window: the layer's result if its window has no bits."""
        return self.reduced(x, lambda taps: taps[0])

    def label(self) -> str:
        return f"kernel {tuple(self.kernel)}, stride {tuple(self.stride)}, window {self.comparison.window}"


class AdaptiveMaxPool(MaxPool):
    """Layer for torch's adaptive max pooling: the maximum over each of several windows along each dimension.

    Where windows differ in length, a shorter one repeats its last element.
    output_size: number of windows for each spatial dimension; None: as many as the input has elements there.
    """

    def __init__(self, output_size: Sequence[int | None], comparison: Comparison) -> None:
        zeros = [0] * len(output_size)
        super().__init__(zeros, zeros, zeros, zeros, False, comparison)
        self.output_size = output_size

    def places(self, size: int, d: int) -> Tensor:
        first, length = adaptive_windows(size, self.output_size[d])
        return first + torch.arange(int(length.max()))[:, None].minimum(length - 1)

    def label(self) -> str:
        return f"output {tuple(self.output_size)}, window {self.comparison.window}"
