"""Means and resizing: local sums of shares, times a public reciprocal or public weights.

The result has the bits of fraction of the reciprocal or the weights in addition, as after weights
(mpc/layers/linear.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird import cost, ring
from hummingbird.cost import Cost
from hummingbird.errors import InputError
from hummingbird.graph.ops import resize
from hummingbird.graph.ops.pools import adaptive_windows
from hummingbird.kernels.devices import put
from hummingbird.mpc.layers.constants import Scale
from hummingbird.mpc.layers.layer import FLOOR, Layer, Spec, held, room
from hummingbird.mpc.protocols.lift import lift, lift_price
from hummingbird.mpc.session.session import Session
from hummingbird.mpc.session.sharing import Shared
from hummingbird.ring import SCALE


def sums_by_halves(x: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the sums pool(x) of int64 x exactly mod 2^64, although `pool` takes floating-point numbers only.

    pool: a linear function that adds up to 2^21 elements, such as a pooling on CUDA. It is called on the lower and on
        the upper halves of the words: these are below 2^32 in magnitude, so sums of 2^21 of them stay within 2^53.
    """
    low, high = pool((x & 0xFFFFFFFF).double()), pool((x >> 32).double())
    return low.long() + (high.long() << 32)


class AvgPool(Layer):
    """Layer for torch's average pooling, with all its options: sums of shares, times a public reciprocal.

    kernel, stride, padding: one number for each spatial dimension.
    divisor: torch's `divisor_override`.
    A pooling window of 2^s elements needs no multiplication and adds s bits of fraction. A sum over any other number of
    elements is multiplied by an encoded reciprocal. Such numbers also occur at borders, if padding is not counted.
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
        if not self.uniform:  # reciprocals of all numbers up to `places`: the bits of 1 over the last odd one
            self.division = Scale(1 / (places + 1 - places % 2), places)

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.division.out_scale(scales)

    def bound(self, bounds: Sequence[int]) -> int:
        return self.division.bound(bounds)

    def pool(self, x: Tensor, divisor: int | None) -> Tensor:
        """Compute torch's average pooling of x with this layer's options.

        divisor: the number by which each pooling window's sum is divided; None: the number of its elements, as torch
            counts it.
        """
        flat = len(self.kernel) == 1
        one = (1,) if flat else ()
        average = torch.nn.functional.avg_pool3d if len(self.kernel) == 3 else torch.nn.functional.avg_pool2d
        out = average(  # torch's avg_pool1d has no divisor
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
        """Return the sum over each pooling window mod 2^64. x: int64."""
        return sums_by_halves(x, lambda half: self.pool(half, 1)) if x.is_cuda else self.pool(x, 1)

    def forward(self, session: Session, x: Shared) -> Shared:
        total = Shared(self.sums(x.share), x.scale)
        if self.uniform:
            return self.division(session, total)
        ones = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64)
        reciprocal = self.pool(ones, None) / self.pool(ones, 1)  # mean of ones / sum of ones: 1 / elements counted
        codes = put(ring.encode(reciprocal, self.division.fraction), x.share.device)
        return Shared(total.share * codes, self.out_scale([x.scale]))

    def label(self) -> str:
        return f"kernel {self.kernel}, stride {self.stride}"


class _Averaging(Layer):
    """Base of layers for means: a sum, times the encoded reciprocal of the number of elements that the shape gives.

    The reciprocal uses up 26 of the input's integer bits. If the input has fewer, or too high a scale, the layer lifts
    the sums before the product (`lifts_sums`), in one round. The lift opens each sum in as many bits as these three
    together: 16 bits of fraction, the bits of the input's bound, and log2 of the largest number of elements that a sum
    may have. This number of elements is 2^18, or down to 2^16 if the input has too few integer bits for larger sums.
    """

    input_limit = 24
    adds_up = True
    fraction = room(FLOOR)  # the most that leaves room for 2^20: exact for 2^j elements, j <= 26; others up to 2^18

    def out_scale(self, scales: Sequence[int]) -> int:
        return self.fraction + (SCALE if self.lifts_sums else scales[0])

    @property
    def _spread(self) -> int:
        """Log2 of the most elements that a lifted sum may have: the input's integer bits must hold the sum."""
        x = self.given[0]
        return min(_MOST_PLACES, x.valid - x.scale - held(x.bound))

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Four numbers of bits for the lift of the sums.

        These are: how many bits of fraction are cut before the opening; how many bits are opened; how many bits of the
        lifted sum later layers read; how many of the lifted sum's lowest bits are zero in every share.
        """
        x = self.given[0]
        up = max(0, SCALE - (x.scale - x.grain))
        k = SCALE - up + held(x.bound) + self._spread
        return x.scale - SCALE + up, k, max(k, self.read - up), up

    def valid(self, scales: Sequence[int], valid: Sequence[int]) -> int:
        if not self.lifts_sums:
            return valid[0]
        return 64 if self._spread >= _FEWEST_PLACES else 0

    def needs(self, scales: Sequence[int], later: int) -> int:
        return scales[0] + held(self.given[0].bound) + self._spread if self.lifts_sums else later

    def constants(self) -> tuple[int, ...]:
        return self._sizes if self.lifts_sums else ()

    def reciprocal(self, places: int) -> int:
        """Encode 1 / places in the ring and return the integer. places: the number of elements of a mean.

        Raises InputError if rounding would change the reciprocal by more than 2^-8 of itself, or if `places` is more
        than a lifted sum may have.
        """
        number = torch.tensor([1 / max(1, places)], dtype=torch.float64)
        hint = "average in two steps, or over a power of two"
        if self.lifts_sums and places > 1 << self._spread:
            raise InputError(f"a mean over {places} values, and sums of 2^{self._spread} are lifted", hint=hint)
        try:
            ring.fraction(number, self.fraction)
        except InputError:
            raise InputError(f"1/{places}, of a mean over {places} values, is too small", hint=hint) from None
        return int(ring.encode(number, self.fraction))

    def places(self, shape: Sequence[int]) -> int:
        """Return the largest number of elements that one mean averages, for an input of this shape."""
        raise NotImplementedError

    def results(self, shape: Sequence[int]) -> int:
        """Return the number of elements of the layer's result for an input of this shape."""
        return math.prod(shape) // max(1, self.places(shape))

    def counts(self, shape: Sequence[int]) -> Tensor:
        """Count the elements that each mean of the result averages, for an input of this shape.

        Returns int64, in a shape that broadcasts to the result.
        """
        return torch.tensor(self.places(shape))

    def reciprocals(self, shape: Sequence[int]) -> Tensor:
        """Return the encoded reciprocal of the number of elements of each mean, int64, in the shape of `counts`.

        shape: of the input.
        Raises InputError if a reciprocal is too small.
        """
        self.reciprocal(self.places(shape))  # raises if the smallest is too small
        return ring.encode(1 / self.counts(shape).clamp(min=1).double(), self.fraction)

    def rounded(self, shape: Sequence[int]) -> Tensor:
        """Return by which factor rounding changes each mean's reciprocal, the rounded one over the exact one, float64.

        shape: of the input.
        """
        return self.reciprocals(shape).double() * 2.0**-self.fraction * self.counts(shape)

    def sums(self, x: Tensor) -> Tensor:
        """Return the sum over the elements of each mean, mod 2^64. x: int64."""
        raise NotImplementedError

    def cost(self, inputs: Sequence[Spec], parties: int) -> Cost:
        places = self.places(inputs[0].shape)
        self.reciprocal(places)  # raises if it is too small
        if not self.lifts_sums:
            return cost.FREE
        _, k, bits, _ = self._sizes
        return lift_price(self.results(inputs[0].shape), k, bits, parties)

    def forward(self, session: Session, x: Shared) -> Shared:
        share = x.share
        total, scale = self.sums(share), x.scale
        if self.lifts_sums:
            *sizes, up = self._sizes
            total, scale = lift(session, total.reshape(-1), *sizes).view(total.shape) << up, SCALE
        return Shared(total * put(self.reciprocals(share.shape), share.device), scale + self.fraction)


_MOST_PLACES = 18  # log2: the reciprocals of all numbers up to here are precise enough
_FEWEST_PLACES = 16  # log2, 256 x 256: a lift for fewer elements would exclude large images


class AdaptiveAvgPool(_Averaging):
    """Layer for torch's adaptive average pooling: the mean over each of several windows along each dimension.

    output_size: number of windows for each spatial dimension; None: as many as the input has elements there. Windows
        have different lengths where it does not divide the input's length.
    """

    def __init__(self, output_size: Sequence[int | None]) -> None:
        super().__init__()
        self.output_size = output_size

    def _windows(self, shape: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return for each spatial dimension the first indices of its pooling windows, and the windows' lengths, int64.

        shape: of the layer's input.
        """
        space = tuple(shape)[-len(self.output_size) :]
        return [adaptive_windows(size, out) for size, out in zip(space, self.output_size, strict=True)]

    def places(self, shape: Sequence[int]) -> int:
        return math.prod(int(length.max()) for _, length in self._windows(shape))

    def results(self, shape: Sequence[int]) -> int:
        windows = self._windows(shape)
        return math.prod(tuple(shape)[: -len(windows)]) * math.prod(len(length) for _, length in windows)

    def sums(self, x: Tensor) -> Tensor:
        windows = self._windows(x.shape)
        space = tuple(x.shape)[-len(windows) :]
        if all(int(length.sum()) == size for size, (_, length) in zip(space, windows, strict=True)):  # none overlap
            kernel = [int(length.max()) for _, length in windows]
            return AvgPool(kernel, kernel, [0] * len(kernel)).sums(x)
        for axis, (first, length) in enumerate(windows, x.dim() - len(windows)):
            up_to = torch.cat([torch.zeros_like(x.narrow(axis, 0, 1)), x.cumsum(axis)], axis)
            first, length = put(first, x.device), put(length, x.device)
            x = up_to.index_select(axis, first + length) - up_to.index_select(axis, first)
        return x

    def counts(self, shape: Sequence[int]) -> Tensor:
        return functools.reduce(lambda x, y: x[..., None] * y, (length for _, length in self._windows(shape)))

    def label(self) -> str:
        return f"{tuple(self.output_size)}"


class Mean(_Averaging):
    """Layer for the mean over some dimensions: a sum of shares times a public reciprocal.

    dims: the dimensions; None: all.
    """

    def __init__(self, dims: Sequence[int] | None, keepdim: bool) -> None:
        super().__init__()
        self.dims, self.keepdim = dims, keepdim

    def places(self, shape: Sequence[int]) -> int:
        return math.prod(shape if self.dims is None else [shape[dim] for dim in self.dims])

    def sums(self, x: Tensor) -> Tensor:
        return x.sum() if self.dims is None else x.sum(tuple(self.dims), keepdim=self.keepdim)

    def label(self) -> str:
        return "over everything" if self.dims is None else f"over {tuple(self.dims)}"


# Resizing of images ---------------------------------------------------------------------------------------------------
#
# Every party multiplies its share by a public matrix for each spatial axis. Nothing is sent.
#
# Weights are multiples of 2^-f, and each row of a matrix sums to the exact number: an image of one color keeps its
# color.

# Bits of each axis's weights if few do not hold them, by the number of axes: two or three have those of a mean's
# reciprocal together.
_BITS: dict[int, tuple[int, ...]] = {1: (13,), 2: (13, 13), 3: (9, 9, 8)}


class Resize(Layer):
    """Layer for torch's interpolate (nearest, linear, bilinear, trilinear, bicubic): products with public weights.

    attrs: the attributes of the graph's op "resize", such as its mode.
    Weights are exact if few bits hold them, as for factors that are powers of two; others err by 2^-13 at most, and by
    2^-8 in the mode "trilinear".
    """

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__()
        self.attrs = attrs
        exact = resize.exact_bits(attrs)
        axes = {"linear": 1, "bilinear": 2, "bicubic": 2}.get(attrs["mode"], 3)  # of nearest modes up to three
        self.bits = _BITS[axes] if exact is None or axes * exact > room(FLOOR) else (exact,) * axes
        self.fraction = sum(self.bits)
        self.input_limit = 50 - self.fraction
        self.growth = 1 if attrs["mode"] == "bicubic" else 0  # |weights| sum to 1.5 at most, for each of two axes

    def out_scale(self, scales: Sequence[int]) -> int:
        return scales[0] + self.fraction

    def bound(self, bounds: Sequence[int]) -> int:
        return bounds[0] + 2 * self.growth

    def matrices(self, before: Sequence[int], after: Sequence[int]) -> list[Tensor]:
        """Return each spatial axis's matrix of weights, (after, before), that resizes it; int64 in units of 2^-bits.

        before, after: the lengths of the axes before and after resizing. The layer's `bits` has each axis's bits of
        fraction.
        """
        return [
            _whole(resize.axis_matrix(self.attrs, size, out, axis, len(before)), bits)
            for axis, (size, out, bits) in enumerate(zip(before, after, self.bits, strict=False))
        ]

    def forward(self, session: Session, x: Shared, *sizes: Any) -> Shared:
        share = x.share
        after = resize.resize(self.attrs, torch.empty(share.shape, device="meta"), *sizes).shape[2:]
        for axis, matrix in enumerate(self.matrices(share.shape[2:], after)):
            share = _along(share, put(matrix, share.device), axis + 2)
        return Shared(share, x.scale + self.fraction)

    def real(self, x: Tensor, after: Sequence[int]) -> Tensor:
        """Resize real x as the layer resizes private values, that is with rounded weights, and return it.

        after: the lengths of the spatial axes of the result.
        """
        for axis, matrix in enumerate(self.matrices(x.shape[2:], after)):
            weights = matrix.to(x.device, x.dtype) * 2.0 ** -self.bits[axis]
            x = torch.tensordot(x, weights, ([axis + 2], [1])).movedim(-1, axis + 2)
        return x

    def label(self) -> str:
        return self.attrs["mode"]


def _along(share: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Multiply a share along dimension `dim` by a public matrix (out, size), exactly mod 2^64; return the product."""
    moved = share.movedim(dim, -1)
    out = ring.bilinear("matmul", moved.reshape(-1, moved.shape[-1]), matrix.t().contiguous())
    return out.view(*moved.shape[:-1], len(matrix)).movedim(-1, dim)


def _whole(matrix: Tensor, bits: int) -> Tensor:
    """Round a real matrix to multiples of 2^-bits so that every row keeps its sum; return these in units, int64.

    The largest entry of each row takes up the rounding error of the row's sum.
    """
    units = (matrix * 2.0**bits).round()
    missing = (matrix.sum(1) * 2.0**bits).round() - units.sum(1)
    return units.scatter_add(1, units.abs().argmax(1, keepdim=True), missing[:, None]).long()
