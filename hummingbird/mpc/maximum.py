"""Maxima by a tree of max(a, b) = b + relu(a - b), and what is made of them: pooling, softmax, argmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import cost
from hummingbird.bits import BitWindow
from hummingbird.cost import Cost
from hummingbird.errors import ConfigError, InputError
from hummingbird.mpc import splines
from hummingbird.mpc._crypten import MPCTensor, from_share, share_of
from hummingbird.mpc.activations import Spline
from hummingbird.mpc.averaging import equal_windows
from hummingbird.mpc.layer import FLOOR, Layer, Spec
from hummingbird.mpc.protocols import beaver
from hummingbird.mpc.protocols.comparison import Comparison
from hummingbird.mpc.protocols.truncation import truncate
from hummingbird.mpc.session import Session
from hummingbird.ring import SCALE


def maximum(session: Session, share: Tensor, comparison: Comparison) -> Tensor:
    """Share of the maximum over dimension 0, scale 2^16, by a tree of max(a, b) = b + relu(a - b). Cost:
    `maximum_cost`.
    """
    while share.shape[0] > 1:
        pairs = share.shape[0] // 2
        a, b = share[:pairs], share[pairs : 2 * pairs]
        share = torch.cat([b + comparison.relu(session, a - b, SCALE)[0], share[2 * pairs :]])
    return share[0]


def maximum_cost(n: int, length: int, comparison: Comparison, parties: int) -> Cost:
    """Price of `maximum` along an axis of `length`, for n results."""
    return cost.maximum(n, length, lambda count: comparison.cost(count, SCALE, parties))


class _Maximum(Layer):
    """Base of the layers that take maxima of values at rest: the inputs pass through, with their valid bits."""

    comparison: Comparison

    def reads(self, later: int | None) -> int | None:
        here = self.comparison.reads
        return later if self.comparison.drops else None if here is None or later is None else max(here, later)

    def needs(self, scales: Sequence[int], later: int) -> int:
        return later if self.comparison.drops else max(later, self.comparison.needs(scales[0]))


class MaxPool(_Maximum):
    """Maximum over windows of the last dimensions, one dimension after the other (fewer comparisons than all at once).

    Padding never wins in torch, and the maximum of a set does not change when an element is repeated: a place in the
    padding is replaced by the nearest one of the same pooling window that is not, so no "minus infinity" has to fit
    the ring.
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
        super().__init__()
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.ceil_mode, self.comparison = ceil_mode, comparison

    def places(self, size: int, d: int) -> Tensor:
        """Indices (kernel, out) along spatial dimension d of `size` places: what each pooling window looks at."""
        kernel, stride, padding, dilation = self.kernel[d], self.stride[d], self.padding[d], self.dilation[d]
        reach = size + 2 * padding - dilation * (kernel - 1) - 1
        out = (-(-reach // stride) if self.ceil_mode else reach // stride) + 1
        if self.ceil_mode and (out - 1) * stride >= size + padding:
            out -= 1  # torch: the last window must begin inside the input or the left padding
        start = torch.arange(out) * stride - padding
        first = (-start + dilation - 1).div(dilation, rounding_mode="floor").clamp(min=0)  # first tap inside
        last = (size - 1 - start).div(dilation, rounding_mode="floor").clamp(max=kernel - 1)  # last tap inside
        taps = torch.arange(kernel)[:, None].clamp(min=first[None]).minimum(last[None])
        return start[None] + taps * dilation

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        shape, total = list(inputs[0].shape), cost.FREE
        if self.comparison.drops:
            return total
        for d in reversed(range(len(self.kernel))):
            axis = len(shape) - len(self.kernel) + d
            kernel, shape[axis] = self.places(shape[axis], d).shape
            total += maximum_cost(torch.Size(shape).numel(), kernel, self.comparison, parties)
        return total

    def breadth(self, inputs: Sequence[Spec]) -> int:
        shape, most = list(inputs[0].shape), inputs[0].numel
        for d in reversed(range(len(self.kernel))):
            axis = len(shape) - len(self.kernel) + d
            kernel, shape[axis] = self.places(shape[axis], d).shape
            most = max(most, kernel * torch.Size(shape).numel())  # a copy of the input for each place of the kernel
        return most

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x)
        for d in reversed(range(len(self.kernel))):
            axis = share.dim() - len(self.kernel) + d
            places = self.places(share.shape[axis], d).to(share.device)
            taps = torch.stack([share.index_select(axis, row) for row in places])
            # No bits: the comparison is dropped, the first place of every window is kept.
            share = taps[0] if self.comparison.drops else maximum(self.session(), taps, self.comparison)
        return from_share(share)

    def label(self) -> str:
        return f"kernel {tuple(self.kernel)}, stride {tuple(self.stride)}, window {self.comparison.window}"


class AdaptiveMaxPool(_Maximum):
    """Maximum over equal windows, `output_size` of them per dimension; the size must divide the input's."""

    def __init__(self, output_size: Sequence[int | None], comparison: Comparison) -> None:
        super().__init__()
        self.output_size, self.comparison = output_size, comparison

    def pool(self, shape: Sequence[int]) -> MaxPool:
        """The plain pooling layer for inputs of this shape."""
        kernel = equal_windows(shape, self.output_size)
        zeros, ones = [0] * len(kernel), [1] * len(kernel)
        return MaxPool(kernel, kernel, zeros, ones, False, self.comparison)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        return self.pool(inputs[0].shape).cost(inputs, parties)

    def breadth(self, inputs: Sequence[Spec]) -> int:
        return self.pool(inputs[0].shape).breadth(inputs)

    def forward(self, x: MPCTensor) -> MPCTensor:
        return self.pool(tuple(x.size()))(x)


class Softmax(_Maximum):
    """exp(x - max) / sum along `dim`: a maximum tree, two splines and a product; error below 2^-7 of each result.

    Both splines are made for the number of places along `dim`: what exp errs by stays below 2^-9 of the sum, which is
    at least 1, and 1/sum errs by 2^-9 of itself.
    """

    whole_ring = True

    def __init__(self, dim: int, comparison: Comparison) -> None:
        super().__init__()
        self.dim, self.comparison = dim, comparison

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        return valid[0] if self.comparison.drops else 64

    def reads(self, later: int | None) -> int | None:
        return later if self.comparison.drops else self.comparison.reads

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] if self.comparison.drops else 1

    def exp(self, length: int) -> Spline:
        """e^x for x <= 0, where `length` such numbers are added up."""
        return Spline("exp", splines.exponential(length), self.comparison)

    def reciprocal(self, length: int) -> Spline:
        """1/x on [1, length], where a sum of `length` exponentials with maximum 1 lies."""
        return Spline("1/x", splines.reciprocal(length), self.comparison)

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] if self.comparison.drops else SCALE + splines.RECIPROCAL_FRACTION

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        if self.comparison.drops:
            return cost.FREE
        n, length = inputs[0].numel, inputs[0].shape[self.dim]
        if length > splines.LONGEST:
            raise InputError(f"softmax over {length} places", hint=f"at most {splines.LONGEST}")
        sums = n // length
        return (
            maximum_cost(sums, length, self.comparison, parties)
            + self.exp(length).cost([Spec((n,), SCALE)], parties)
            + cost.truncate(sums, parties)
            + self.reciprocal(length).cost([Spec((sums,), SCALE)], parties)
            + cost.truncate(n + sums, parties)
            + cost.product(n, sums, n, parties)
        )

    def breadth(self, inputs: Sequence[Spec]) -> int:
        length = inputs[0].shape[self.dim]
        sums = Spec((inputs[0].numel // length,), SCALE)
        return max(self.exp(length).breadth(inputs), self.reciprocal(length).breadth([sums]))

    def forward(self, x: MPCTensor) -> MPCTensor:
        if self.comparison.drops:
            return x
        share = share_of(x).movedim(self.dim, 0)
        exp, scale = self.exp(len(share)).compute(share - maximum(self.session(), share, self.comparison), SCALE)
        # Cut before it is compared: gmw's comparisons would each round a sum on their own, by 2^-16 at slopes near 1.
        total = truncate(self.session(), exp.sum(0).reshape(-1), scale - SCALE).view(share.shape[1:])
        inverse, finer = self.reciprocal(len(share)).compute(total, SCALE)
        # One opening cuts 16 bits off both: exp has 16 left, 1/x what tells numbers down to 1/length apart.
        both = truncate(self.session(), torch.cat([exp.reshape(-1), inverse.reshape(-1)]), SCALE)
        numerator, inverse = both[: exp.numel()].view(share.shape), both[exp.numel() :].view(1, *share.shape[1:])
        return from_share(beaver.product(self.session(), "mul", numerator, inverse, {}).movedim(0, self.dim), finer)


class Argmax(_Maximum):
    """The place of the maximum along `dim`, the first one where it is there several times, as a number: 3 is 3.0.

    With n places and 2^c >= n, the integers v_i = 2^c x_i + n - 1 - i are all different and keep x's order. A maximum
    tree finds their largest, M, and relu(v_i - M + 1) is 1 at its place and 0 elsewhere. Only the upper end k of the
    window is used: every bit below decides.
    """

    whole_ring = True

    def __init__(self, dim: int, keepdim: bool, comparison: Comparison) -> None:
        super().__init__()
        self.dim, self.keepdim, self.comparison = dim, keepdim, comparison

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if self.comparison.drops:
            raise ConfigError("argmax needs bits to compare", hint="give it a window, or leave it out of the net")
        return 64

    def reads(self, later: int | None) -> int | None:
        return self.comparison.reads

    def bound(self, bounds: Sequence[int]) -> int:
        return FLOOR

    def needs(self, scales: Sequence[int], later: int) -> int:
        return 64  # the window is widened: simpler than to say by how much

    def _widened(self, length: int) -> tuple[int, Comparison]:
        """c, and the comparison of the integers: c bits more, and one for their differences."""
        bits, known = (length - 1).bit_length(), self.comparison
        valid = min(64, known.valid + bits)
        window = BitWindow(64 if known.window.k == 64 else min(valid, known.window.k + bits + 1), 0)
        return bits, type(known)(window, valid)

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        n, length = inputs[0].numel, inputs[0].shape[self.dim]
        _, comparison = self._widened(length)
        return maximum_cost(n // length, length, comparison, parties) + comparison.cost(n, SCALE, parties)

    def forward(self, x: MPCTensor) -> MPCTensor:
        share = share_of(x).movedim(self.dim, 0)
        length = len(share)
        places = torch.arange(length, device=share.device).view(-1, *[1] * (share.dim() - 1))
        bits, comparison = self._widened(length)
        first = int(self.session().rank == 0)
        values = (share << bits) + first * (length - 1 - places)
        at, _ = comparison.relu(self.session(), values - maximum(self.session(), values, comparison) + first, SCALE)
        index = (at * places).sum(0) << SCALE
        return from_share(index.unsqueeze(self.dim) if self.keepdim else index)
