"""Max pooling: a tree of max(a, b) = b + relu(a - b) for every pooling window (`Arithmetic.maximum`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hummingbird.graph.ops.pools import adaptive_windows, places
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.arithmetic import Arithmetic
from hummingbird.mpc.layers.comparing import Comparing
from hummingbird.mpc.layers.layer import Spec
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.ring import SCALE


class _MaxPooling(Comparing):
    """Base of the pooling layers that select maxima, for values of scale 2^16.

    Results are some of the inputs, and have as many valid bits.
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
    """torch's max pooling, one dimension after the other: fewer comparisons than over all dimensions at once.

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
        """Indices of the elements in each window along spatial dimension d: (kernel, out), see graph/ops/pools.py."""
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
        """Apply `reduce`, over dimension 0, to the elements of every pooling window: one dimension after the other."""
        for d in reversed(range(len(self.kernel))):
            axis = x.dim() - len(self.kernel) + d
            taps = put(self.places(x.shape[axis], d), x.device)
            x = reduce(torch.stack([x.index_select(axis, row) for row in taps]))
        return x

    def formula(self, n: Arithmetic, x: Tensor) -> Tensor:
        return self.reduced(x, n.maximum)

    def dropped(self, x: Tensor) -> Tensor:
        """The first element of every window."""
        return self.reduced(x, lambda taps: taps[0])

    def label(self) -> str:
        return f"kernel {tuple(self.kernel)}, stride {tuple(self.stride)}, window {self.comparison.window}"


class AdaptiveMaxPool(MaxPool):
    """torch's adaptive max pooling: maximum over `output_size` windows for each dimension.

    Where windows differ in length, a shorter one repeats an element.
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
