"""Pools: rules from torch's arguments to one step, and the positions of the input in each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Attrs, Op, Spelling, check_batch
from hummingbird.graph.steps import Ref


def max_pool(
    b: StepBuilder,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    n: int,
) -> Ref:
    _no_indices(return_indices)
    attrs = _window(b, n, kernel_size, stride, padding) | {"dilation": b.ints(dilation, n, "dilation")}
    return b.emit("max_pool", b.tensor(input), **attrs, ceil_mode=bool(ceil_mode))


def avg_pool(
    b: StepBuilder,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    n: int,
) -> Ref:
    attrs = _window(b, n, kernel_size, stride, padding) | {"ceil_mode": bool(ceil_mode)}
    counts = {"count_include_pad": bool(count_include_pad), "divisor": divisor_override}
    return b.emit("avg_pool", b.tensor(input), **attrs | counts)


def _window(b: StepBuilder, n: int, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    size = b.ints(kernel, n, "kernel_size")
    steps = size if stride is None or stride == [] or stride == () else b.ints(stride, n, "stride")
    return {"kernel": size, "stride": steps, "padding": b.ints(padding, n, "padding")}


def adaptive_avg_pool(b: StepBuilder, input: Any, output_size: Any, *, n: int) -> Ref:
    return b.emit("adaptive_avg_pool", b.tensor(input), output_size=b.ints(output_size, n, "output_size"))


def adaptive_max_pool(b: StepBuilder, input: Any, output_size: Any, return_indices: bool = False, *, n: int) -> Ref:
    _no_indices(return_indices)
    return b.emit("adaptive_max_pool", b.tensor(input), output_size=b.ints(output_size, n, "output_size"))


def _no_indices(return_indices: bool) -> None:
    if return_indices:
        raise Unsupported("return_indices=True", "the position of the maximum is not computed: return the values only")


def _max_pool(a: Attrs, x: Tensor) -> Tensor:
    check_batch(a, x)
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(a["kernel"]) - 1]
    return pool(x, a["kernel"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"])


def _avg_pool(a: Attrs, x: Tensor) -> Tensor:
    check_batch(a, x)
    if len(a["kernel"]) == 1:
        return F.avg_pool1d(x, a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_include_pad"])
    counts = (a["ceil_mode"], a["count_include_pad"], a["divisor"])
    pool: Callable[..., Tensor] = (F.avg_pool2d, F.avg_pool3d)[len(a["kernel"]) - 2]
    return pool(x, a["kernel"], a["stride"], a["padding"], *counts)


def _adaptive(*pools: Callable[..., Any]) -> Callable[[Attrs, Tensor], Tensor]:
    def apply(a: Attrs, x: Tensor) -> Tensor:
        check_batch(a, x)
        return pools[len(a["output_size"]) - 1](x, a["output_size"])

    return apply


def places(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Tensor:
    """List the positions, along one dimension, that each window of a max pooling reads: int64 (kernel, windows).

    size: how many positions the input has. The other arguments are torch's, for this dimension. Padding never wins in
        torch, and a maximum does not change if an element is repeated. So a position in the padding is replaced by the
        nearest one of the same window that is inside, and the ring needs no "minus infinity". Raises InputError for a
        window that reads padding only, for which torch returns -inf.
    """
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1  # torch: the last window must begin inside the input or the left padding
    start = torch.arange(out) * stride - padding
    first = (-start + dilation - 1).div(dilation, rounding_mode="floor").clamp(min=0)  # first tap inside
    last = (size - 1 - start).div(dilation, rounding_mode="floor").clamp(max=kernel - 1)  # last tap inside
    if bool((first > last).any()):
        raise InputError(
            f"a window of max pooling (kernel {kernel}, dilation {dilation}, padding {padding}) over {size} places "
            "covers padding only, for which torch returns -inf",
            hint="make the input larger, or the padding or the dilation smaller",
        )
    taps = torch.arange(kernel)[:, None].clamp(min=first[None]).minimum(last[None])
    return start[None] + taps * dilation


def adaptive_windows(size: int, output: int | None) -> tuple[Tensor, Tensor]:
    """Return the begin and the length of each window of an adaptive pooling, along a dimension of `size` positions.

    output: the number of windows; None: `size`. As in torch, window i goes from floor(i size / output) to
    ceil((i + 1) size / output). Returns two tensors, int64 (output,).
    """
    output = output or size
    first = torch.arange(output) * size // output
    return first, -(-(torch.arange(output) + 1) * size // output) - first


def equal_windows(shape: Sequence[int], output_size: Sequence[int | None]) -> list[int]:
    """Return the size of the windows of an adaptive pooling, which is also its stride, for each spatial dimension.

    shape: of the input. output_size: the number of windows along each spatial dimension; None: one for each position.
    Raises InputError if the windows differ in size.
    """
    space = tuple(shape)[-len(output_size) :]
    sizes = [out or size for size, out in zip(space, output_size, strict=True)]
    if any(size % out for size, out in zip(space, sizes, strict=True)):
        raise InputError(
            f"adaptive pooling to {tuple(sizes)} does not divide the input's {space}",
            hint="change the input size, or give a pool a kernel; hummingbird.convert_model takes it, on shares",
        )
    return [size // out for size, out in zip(space, sizes, strict=True)]


_POOL = "kernel_size stride padding ceil_mode"
_COUNTS = f"{_POOL} count_include_pad"
_WINDOW = "kernel=positives stride=positives padding=wholes"

OPS = [
    Op(
        "max_pool",
        _max_pool,
        ranks.spatial,
        [
            Spelling(partial(max_pool, n=n), f"max_pool{n}d", {module: _POOL + " dilation return_indices"})
            for n, module in enumerate((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), 1)
        ],
        attrs=f"{_WINDOW} dilation=positives ceil_mode=bool",
        batch=batch.first,
        integers="kept",
    ),
    Op(
        "avg_pool",
        _avg_pool,
        ranks.spatial,
        [
            Spelling(partial(avg_pool, n=1), "avg_pool1d", {nn.AvgPool1d: _COUNTS}),
            Spelling(partial(avg_pool, n=2), "avg_pool2d", {nn.AvgPool2d: f"{_COUNTS} divisor_override"}),
            Spelling(partial(avg_pool, n=3), "avg_pool3d", {nn.AvgPool3d: f"{_COUNTS} divisor_override"}),
        ],
        attrs=f"{_WINDOW} ceil_mode=bool count_include_pad=bool divisor=positive|none",
        batch=batch.first,
        integers="rounded",
    ),
    Op(
        "adaptive_avg_pool",
        _adaptive(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
        ranks.spatial,
        [
            Spelling(partial(adaptive_avg_pool, n=n), f"adaptive_avg_pool{n}d", {module: "output_size"})
            for n, module in enumerate((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), 1)
        ],
        attrs="output_size=positives",
        batch=batch.first,
        integers="rounded",
    ),
    Op(
        "adaptive_max_pool",
        _adaptive(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
        ranks.spatial,
        [
            Spelling(partial(adaptive_max_pool, n=n), f"adaptive_max_pool{n}d", {module: "output_size return_indices"})
            for n, module in enumerate((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), 1)
        ],
        attrs="output_size=positives",
        batch=batch.first,
        integers="kept",
    ),
]
