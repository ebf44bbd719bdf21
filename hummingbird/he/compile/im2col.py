"""A common form of all linear steps: weights, and the index of the input value that each weight multiplies.

    out[g rows + r, p] = sum_k weights[g, r, k] input[flat[groups[g] + places[p] + taps[k]]] + bias[g rows + r]

`flat` lists the input's positions in an array of ciphertexts, -1 for a zero. So reshaping, slicing, padding and
dilation before a layer only change this list. Convolutions, linear layers, affine layers and pools differ in the
offsets only (im2col, Chellapilla et al. 2006, applied to indices). Index tables are built for a few places at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.graph import OPS, Step, alias
from hummingbird.he.runtime.operations import Gather

_MOVES = frozenset("cat stack flip roll pixel_shuffle pixel_unshuffle channel_shuffle edge_pad".split())
VIEWS = alias.VIEWS | _MOVES
SUMS = frozenset("avg_pool adaptive_avg_pool mean sum".split())
_LAYERS = frozenset("conv conv_transpose linear affine scale_last".split())
_ARITHMETIC = frozenset("add sub mul".split())


def is_weighted(step: Step) -> bool:
    """Return whether the step multiplies by parameters of the net or adds them; only the server has parameters."""
    return step.op in _LAYERS or (step.op in _ARITHMETIC and isinstance(step.attrs.get("value"), Tensor))


def has_bias(step: Step) -> bool:
    """Return whether a step with parameters (`is_weighted`) also adds one, such as a bias, besides multiplying."""
    return (
        step.op in ("add", "sub", "affine", "scale_last")
        if "bias" not in step.attrs
        else step.attrs["bias"] is not None
    )


@dataclass(frozen=True)
class Map:
    """A linear step in a form that fits convolutions, pools and sums: each output is a sum of weights times input
    values.

    gather: which input value each weight multiplies.
    weights: float64 (groups, rows, terms); a row makes one output channel of a convolution, for example. None for a
    pool or a sum: all weights are 1, and each sum is divided by `divisor`.
    bias: float64, one number for each row of each group, or None.
    shape: of the output for one image. last: whether the output's last dimension, and not its first, counts the rows.
    """

    gather: Gather
    weights: Tensor | None
    bias: Tensor | None
    shape: tuple[int, ...]
    last: bool = False
    divisor: float = 1.0

    @property
    def rows(self) -> int:
        """Number of rows of all groups: output channels of a convolution, for example."""
        return self.gather.groups.numel() * (1 if self.weights is None else self.weights.shape[1])

    @property
    def places(self) -> int:
        return self.gather.places.numel()


def linear_map(step: Step, index: Tensor) -> Map:
    """Return a linear step as a `Map`: its weights, and which input value each of them multiplies.

    The step is one that `is_weighted`, or an average, a mean or a sum. index: int64, in the shape of the input for one
    image: the position of each input value in an array of ciphertexts, -1 for a zero.
    """
    return _MAPS[step.op](step, index)


def view(step: Step, *indices: Any) -> Any:
    """Return where the values of a step's result come from; the step only moves values, as a reshape or a pad does.

    indices: for each input of the step the positions of its values in an array of ciphertexts, int64, -1 for a zero;
    for an input that has several parts, as a chunk makes them, a tuple of such tensors. Returns the positions of the
    result's values, int64, or a tuple of int64 for chunk, split and unbind.
    """
    batched = [_batched(index) for index in indices]
    out = OPS[step.op](step.attrs | ({"value": 0} if step.op == "pad" else {}), *_arguments(step, batched))
    if isinstance(out, tuple):
        return tuple(part[0] - 1 for part in out)
    return out[0] - 1


def _batched(index: Any) -> Any:
    """Prepare a step's table of positions for torch's operations: add 1 to each position, and a first dimension of 1.

    The table says where each input value is, int64, with -1 for a zero. Afterwards 0 stands for a zero, so a pad with
    the value 0 inserts zeros. index: the table, or a tuple of tables, for which the result is a tuple.
    """
    return tuple(map(_batched, index)) if isinstance(index, tuple) else index[None] + 1


def _arguments(step: Step, values: Sequence[Any]) -> tuple[Any, ...]:
    if step.op in ("cat", "stack"):
        return (tuple(values),)
    return (*values, *step.inputs[len(values) :])


def natural(shape: Sequence[int], rows: int, last: bool) -> Tensor:
    """Return for each value of a layer's output its position in the server's result: int64 of the output's shape.

    The server's result is an array (rows, places), and positions count through it. A place is one position of the
    output, such as a pixel.
    shape: of the output for one image. rows: number of rows, `Map.rows`.
    last: whether the last dimension of `shape` counts the rows; otherwise the first does.
    """
    count = math.prod(shape)
    index = torch.arange(count)
    return (index.view(rows, -1).t() if last else index).reshape(tuple(shape))


def _offsets(*parts: Tensor) -> Tensor:
    """Return all sums that take one number from each of the given tensors: int64 (n,), the last tensor varies fastest.

    parts: int64, one-dimensional.
    """
    return reduce(lambda a, b: (a[:, None] + b).flatten(), parts, torch.zeros(1, dtype=torch.int64))


def _range(count: int, step: int = 1) -> Tensor:
    return torch.arange(count) * step


def _flat(index: Tensor) -> Tensor:
    return index.reshape(-1).int()


def _conv(step: Step, index: Tensor) -> Map:
    a = step.attrs
    weight = a["weight"].double()
    index = F.pad(index, [side for p in reversed(a["padding"]) for side in (p, p)], value=-1)
    return _windows(weight, a["bias"], index, a["stride"], a["dilation"], a["groups"])


def _conv_transpose(step: Step, index: Tensor) -> Map:
    """Return a transposed convolution in the form of a `Map`.

    It is a convolution with the flipped kernel, on the input with zeros between its values. index: int64 in the shape
    of the input for one image, the position of each value in an array of ciphertexts, -1 for a zero.
    """
    a = step.attrs
    weight, groups, dims = a["weight"].double(), a["groups"], len(a["stride"])
    wide = index.new_full(
        [index.shape[0], *((n - 1) * s + 1 for n, s in zip(index.shape[1:], a["stride"], strict=True))], -1
    )
    inside = (slice(None), *(slice(None, None, s) for s in a["stride"]))
    wide[inside] = index
    pads = []
    for d in reversed(range(dims)):
        before = a["dilation"][d] * (weight.shape[2 + d] - 1) - a["padding"][d]
        pads += [before, before + a["output_padding"][d]]
    index = F.pad(wide, pads, value=-1)
    turned = weight.flip(tuple(range(2, 2 + dims))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return _windows(turned, a["bias"], index, (1,) * dims, a["dilation"], groups)


def _windows(
    weight: Tensor, bias: Tensor | None, index: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Map:
    """Return a convolution with weight (out, in / groups, *kernel) in the form of a `Map`.

    index: int64 (in, *size), the position of each value of the padded input in an array of ciphertexts, -1 for a zero.
    bias, stride, dilation, groups: as in torch.
    """
    kernel, size = weight.shape[2:], index.shape[1:]
    steps = [math.prod(size[d + 1 :]) for d in range(len(size))]
    shape = [(n - t * (k - 1) - 1) // s + 1 for n, k, s, t in zip(size, kernel, stride, dilation, strict=True)]
    plane, inputs = math.prod(size), weight.shape[1]
    gather = Gather(
        _flat(index),
        _range(groups, inputs * plane),
        _offsets(*(_range(n, s * w) for n, s, w in zip(shape, stride, steps, strict=True))),
        _offsets(_range(inputs, plane), *(_range(k, t * w) for k, t, w in zip(kernel, dilation, steps, strict=True))),
    )
    weights = weight.reshape(groups, weight.shape[0] // groups, -1)
    return Map(gather, weights, None if bias is None else bias.double(), (weight.shape[0], *shape))


def _linear(step: Step, index: Tensor) -> Map:
    weight, bias = step.attrs["weight"].double(), step.attrs["bias"]
    terms = weight.shape[1]
    gather = Gather(_flat(index), _range(1), _range(index.numel() // terms, terms), _range(terms))
    shape = (*index.shape[:-1], weight.shape[0])
    return Map(gather, weight[None], None if bias is None else bias.double(), shape, last=index.dim() > 1)


def _affine(step: Step, index: Tensor) -> Map:
    shape = (-1,) + (1,) * (index.dim() - 1)
    return _elementwise(step.attrs["scale"].double().view(shape), step.attrs["shift"].double().view(shape), index)


def _constant(step: Step, index: Tensor) -> Map:
    """Return a step x + value or x * value, with a constant tensor as `value`, in the form of a `Map`.

    index: int64 in the shape of x for one image, the position of each value in an array of ciphertexts, -1 for a zero.
    """
    value = step.attrs["value"].double()
    value = value[0] if value.dim() > index.dim() else value  # its dimension of the batch, of size 1
    sign = -1.0 if step.attrs.get("reversed") else 1.0
    if step.op == "mul":
        return _elementwise(value, None, index)
    shift = value if step.op == "add" else -sign * value
    return _elementwise(torch.full((1,) * max(1, index.dim()), sign, dtype=torch.float64), shift, index)


def _elementwise(scale: Tensor, shift: Tensor | None, index: Tensor) -> Map:
    """Return scale * x + shift in the form of a `Map`, with one group of rows for each channel or for each value.

    scale, shift: constants, broadcast to the shape of the output. index: int64 in the shape of x for one image, the
    position of each value in an array of ciphertexts, -1 for a zero.
    """
    shape = torch.broadcast_shapes(index.shape, scale.shape, () if shift is None else shift.shape)
    parts = [part for part in (scale, shift) if part is not None]
    index = index.expand(shape)
    by_channel = all(_constant_beyond_first(part, len(shape)) for part in parts)
    groups = shape[0] if by_channel and shape else math.prod(shape)
    places = math.prod(shape) // groups
    gather = Gather(_flat(index), _range(groups, places), _range(places), _range(1))

    def column(part: Tensor) -> Tensor:
        return part.expand(shape).reshape(groups, places)[:, 0].contiguous()

    return Map(gather, column(scale)[:, None, None], None if shift is None else column(shift), tuple(shape))


def _constant_beyond_first(part: Tensor, dims: int) -> bool:
    sizes = (1,) * (dims - part.dim()) + tuple(part.shape)
    return all(n == 1 for n in sizes[1:])


def _pool(step: Step, index: Tensor) -> Map:
    """Return an average pool, whose windows may reach over the edges, in the form of a `Map`.

    index: int64 in the shape of the input for one image, the position of each value in an array of ciphertexts, -1 for
    a zero. The number by which each window's sum is divided comes from torch's own pool, run on ones.
    """
    a, sizes = step.attrs, index.shape[1:]
    ones = OPS[step.op](a, torch.ones(1, 1, *sizes, dtype=torch.float64))[0, 0]
    sides = []
    for d, (n, out) in enumerate(zip(sizes, ones.shape, strict=True)):
        if step.op == "adaptive_avg_pool":  # torch: from floor(i n / out) to ceil((i + 1) n / out)
            ends = [(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]
        else:
            starts = [i * a["stride"][d] - a["padding"][d] for i in range(out)]
            ends = [(max(0, start), min(n, start + a["kernel"][d])) for start in starts]
        width = max(stop - start for start, stop in ends)
        sides.append(
            torch.tensor([[i if i < stop else -1 for i in range(start, start + width)] for start, stop in ends])
        )
    where = torch.zeros((), dtype=torch.int64)  # (o1, .., on, k1, .., kn) -> flat, -1 at the edges
    dims = len(sides)
    for d, side in enumerate(sides):
        shape = [1] * (2 * dims)
        shape[d], shape[dims + d] = side.shape
        part = side.view(shape)
        where = torch.where((where < 0) | (part < 0), -1, where * sizes[d] + part)
    taps = where.flatten(dims).flatten(0, -2)  # (places, K)
    planes = index.flatten(1)
    table = torch.where(taps < 0, -1, planes[:, taps.clamp(min=0)]).flatten(0, 1)
    divisors = ((taps >= 0).sum(1) / ones.flatten()).round().repeat(index.shape[0])  # integers, up to rounding
    return _sum(table, divisors, (index.shape[0], *ones.shape))


def _reduce(step: Step, index: Tensor) -> Map:
    a = step.attrs
    dims = sorted(d % (index.dim() + 1) - 1 for d in a["dims"])
    kept = [d for d in range(index.dim()) if d not in dims]
    table = index.permute(*kept, *dims).reshape(-1, math.prod(index.shape[d] for d in dims))
    shape = tuple(1 if d in dims else n for d, n in enumerate(index.shape) if a["keepdim"] or d not in dims)
    divisor = float(table.shape[1]) if step.op == "mean" else 1.0
    return _sum(table, torch.full((table.shape[0],), divisor, dtype=torch.float64), shape)


def _sum(table: Tensor, divisors: Tensor, shape: Sequence[int]) -> Map:
    """Return sums of input values, each divided by a number, in the form of a `Map`.

    table: int64, a row for each sum, with the positions of its input values in an array of ciphertexts.
    divisors: float64, the number for each sum. If all are equal, the map has it as `divisor`; otherwise 1 / divisors
    become weights. shape: of the output for one image.
    """
    count, terms = table.shape
    if bool((divisors == divisors[0]).all()):
        gather = Gather(_flat(table), _range(1), _range(count, terms), _range(terms))
        return Map(gather, None, None, tuple(shape), divisor=float(divisors[0]))
    gather = Gather(_flat(table), _range(count, terms), _range(1), _range(terms))
    return Map(gather, (1 / divisors)[:, None, None].expand(count, 1, terms).contiguous(), None, tuple(shape))


_MAPS: dict[str, Callable[[Step, Tensor], Map]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "affine": _affine,
    "scale_last": lambda step, index: _elementwise(step.attrs["scale"].double(), step.attrs["shift"].double(), index),
    **dict.fromkeys(("add", "sub", "mul"), _constant),
    **dict.fromkeys(("avg_pool", "adaptive_avg_pool"), _pool),
    **dict.fromkeys(("mean", "sum"), _reduce),
}
