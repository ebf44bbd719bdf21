"""Rules for convolutions and averages over windows of one, two or three spatial dimensions.

A plan's layers and pools have two dimensions. One dimension is a single row. A convolution of three reads planes: those
that a plane of its result reads become channels, and the planes of the result lie below each other as the rows of one
image,

    (C, D, H, W)  ->  (C kd, od H', W)  ->  (O, od H'' rows, ow)  ->  (O, od, oh, ow)

with padded rows, so that H' is a multiple of the stride. Rows whose kernels reach into the next plane are left out at
the end: up to (kh - 1) / H of all. The input is encrypted kd times, once for each plane that reads it. An average over
three dimensions is one over rows and columns, and then one over planes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hummingbird.graph import Step
from hummingbird.graph.ops.pools import equal_windows
from hummingbird.hybrid.plan_builder import PlanBuilder, UnfinishedStep


def conv(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    """Turn a convolution into a layer of the plan, and steps before and behind it for one of three dimensions.

    to: the `Lowering`. number, step: the net's. x: the step's input. Returns the plan's step for the result.
    """
    a, shape = step.attrs, to.shapes[number]
    if len(a["stride"]) == 3:
        return _of_planes(to, step, to.resting(x), shape)
    flat = (1,) * (2 - len(a["stride"]))
    weight = a["weight"].unsqueeze(2) if flat else a["weight"]  # one spatial dimension is one row
    geometry = {
        "image": (x.shape[0], *flat, *x.shape[1:]),
        "weight": tuple(weight.shape),
        "stride": (*flat, *a["stride"]),
        "padding": (*(0,) * len(flat), *a["padding"]),
        "dilation": (*flat, *a["dilation"]),
        "groups": a["groups"],
    }
    return to.drafts.linear(step.name, to.resting(x), shape, weight, a["bias"], geometry)


def _of_planes(to: Any, step: Step, x: UnfinishedStep, shape: Sequence[int]) -> UnfinishedStep:
    """Turn a convolution of three spatial dimensions into steps of the plan, one of them a layer; return the last one.

    to: the `Lowering`. x: the step's input, a value that a layer may read. shape: of the result.
    """
    a, drafts, name = step.attrs, to.drafts, step.name
    channels, depth, height, width = x.shape
    weight = a["weight"].flatten(1, 2)  # (O, C // groups * kd, kh, kw)
    outputs, planes, rows, columns = shape
    (by, down, *_), (around, above, *_) = a["stride"], a["padding"]
    tall = -(-(height + 2 * above) // down) * down
    pads = (0, 0, above, tall - height - above, around, around)
    padded = drafts.local(f"{name}.padded", "pad", x, (channels, depth + 2 * around, tall, width), {"pads": pads})
    kernel, apart = a["weight"].shape[2], a["dilation"][0]
    read = tuple(tuple(place * by + tap * apart for place in range(planes)) for tap in range(kernel))
    taps = drafts.local(
        f"{name}.planes", "taps", padded, (kernel, channels, planes, tall, width), {"axis": 2, "places": read}
    )
    order = {"dims": (2, 1, 3, 4, 5)}
    turned = drafts.local(f"{name}.channels", "permute", taps, (channels, kernel, planes, tall, width), order)
    geometry = {
        "image": (channels * kernel, planes * tall, width),
        "weight": tuple(weight.shape),
        "stride": a["stride"][1:],
        "padding": (0, a["padding"][2]),
        "dilation": a["dilation"][1:],
        "groups": a["groups"],
    }
    every = (planes * tall - a["dilation"][1] * (weight.shape[2] - 1) - 1) // down + 1
    made = drafts.linear(name, turned, (outputs, every, columns), weight, a["bias"], geometry)
    kept = (tuple(plane * (tall // down) + row for plane in range(planes) for row in range(rows)),)
    found = (1, outputs, planes * rows, columns)
    inside = drafts.local(f"{name}.rows", "taps", made, found, {"axis": 2, "places": kept})
    out: UnfinishedStep = drafts.local(f"{name}.volume", "reshape", inside, tuple(shape), {})
    return out


def _sum_pool(
    drafts: PlanBuilder, name: str, x: UnfinishedStep, shape: tuple[int, ...], divisor: int, *sizes: Sequence[int]
) -> UnfinishedStep:
    """Turn an average pooling into steps of the plan: sums over windows, in a unit that makes them averages.

    drafts: the plan under construction. name: of the steps. x: the input. shape: of the result. divisor: the number
    that sums are divided by. sizes: kernel, stride and padding, for each dimension. Returns the plan's step for the
    averages.
    """
    if len(sizes[0]) == 3:
        flat = (math.prod(x.shape[:2]), *x.shape[2:])
        image = drafts.local(f"{name}.image", "reshape", x, flat, {})
        places = (flat[0], *shape[2:])
        x = _sum_pool(drafts, f"{name}.plane", image, places, 1, *(size[1:] for size in sizes))
        x = drafts.local(f"{name}.depth", "reshape", x, (shape[0], flat[0] // shape[0], math.prod(shape[2:])), {})
        sizes = tuple((size[0], rest) for size, rest in zip(sizes, (1, 1, 0), strict=True))
    one = len(sizes[0]) == 1
    rows = [(1, *size) if one else tuple(size) for size in sizes]
    if one:
        rows[2] = (0, *sizes[2])
        x = drafts.local(f"{name}.rows", "reshape", x, (x.shape[0], 1, *x.shape[1:]), {})
    kernel, stride, padding = rows
    made = [(x.shape[1 + d] + 2 * padding[d] - kernel[d]) // stride[d] + 1 for d in (0, 1)]
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    out = drafts.local(name, "sum_pool", x, (x.shape[0], *made), attrs, 1 / divisor)
    return out if out.shape == shape else drafts.local(f"{name}.view", "reshape", out, shape, {})


def avg_pool(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    a = step.attrs
    divisor = a.get("divisor") or math.prod(a["kernel"])
    return _sum_pool(to.drafts, step.name, x, to.shapes[number], divisor, a["kernel"], a["stride"], a["padding"])


def adaptive_avg_pool(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    return _whole(to, number, step, x, equal_windows(x.shape, step.attrs["output_size"]))


def mean(to: Any, number: int, step: Step, x: UnfinishedStep) -> UnfinishedStep:
    return _whole(to, number, step, x, x.shape[1:])


def _whole(to: Any, number: int, step: Step, x: UnfinishedStep, kernel: Sequence[int]) -> UnfinishedStep:
    """Turn averages over windows that lie side by side into steps of the plan; returns the last one.

    kernel: the size of the windows. The other arguments are those of `conv`.
    """
    none = [0] * len(kernel)
    return _sum_pool(to.drafts, step.name, x, to.shapes[number], math.prod(kernel), kernel, kernel, none)
