"""The meaning of every canonical op: OPS[op](attrs, *values) in plain torch, which all private versions follow.

Weights are taken to the input's device and type, so the same steps run in float64, on a GPU, or on the meta device
(shapes only: no arithmetic, no memory).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.interpreter import Interpreter
from hummingbird.graph.ops import attention, elementwise, norms, public, resize
from hummingbird.graph.steps import Step

Attrs = dict[str, Any]


def run(steps: Sequence[Step], *inputs: Tensor) -> Tensor:
    """The net's output for one input, and its public ones; InputError for a wrong number of them, or a wrong rank."""
    net = Interpreter(steps)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    output: Tensor = values[len(steps) - 1]
    return output


def run_all(steps: Sequence[Step], *inputs: Tensor) -> list[Any]:
    """The value of every step: tensors, tuples of tensors (chunk, split), sizes and ints; errors as of `run`."""
    net = Interpreter(steps, keep=True)
    values = net.start(*inputs)
    net.run(values, partial(_evaluate, inputs[0]))
    return [values[number] for number in range(len(steps))]


def _evaluate(x: Tensor, number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
    """The step's value; a constant is one beside the net's input `x`."""
    value = OPS[step.op](step.attrs, *arguments)
    return _like(value, x) if step.op == "constant" else value


def _input(a: Attrs, x: Tensor) -> Tensor:
    expected = a.get("shape")
    if expected is not None:
        fixed = expected[0] is not None
        if x.dim() != len(expected) or tuple(x.shape)[not fixed :] != expected[not fixed :]:
            hint = "convert the net again, with example= of this shape" + (
                ": its forward() depends on the batch's size" if fixed else ""
            )
            raise InputError(f"expected an input of shape {_shown(expected)}, got {tuple(x.shape)}", hint=hint)
    if a.get("rank") not in (None, x.dim()):
        raise InputError(
            f"this net was folded for inputs of rank {a['rank']}, (batch, features); got shape {tuple(x.shape)}",
            hint="a batch norm over rows of a larger tensor cannot be folded into the linear layer before it: "
            "start the net with a layer that fixes the rank (flatten, conv)",
        )
    return x


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("batch" if size is None else str(size) for size in shape) + ")"


def _like(constant: Any, x: Tensor) -> Any:
    if not isinstance(constant, Tensor):
        return constant
    return constant.to(device=x.device, dtype=x.dtype if x.is_floating_point() else constant.dtype)  # argmax: int64


def _batch(a: Attrs, x: Tensor) -> None:
    """InputError unless x is a batch for a layer with this stride or output size: (batch, channels, *space)."""
    space = len(a["stride"] if "stride" in a else a["output_size"])
    if x.dim() != space + 2:
        raise InputError(
            f"a layer of {space} spatial dimension(s) takes {space + 2} dimensions, (batch, channels, ...), got shape "
            f"{tuple(x.shape)}",
            hint="give a batch: for one image, x.unsqueeze(0)",
        )


def _conv(a: Attrs, x: Tensor) -> Tensor:
    _batch(a, x)
    conv = (F.conv1d, F.conv2d)[len(a["stride"]) - 1]
    weight, bias = _like(a["weight"], x), _like(a["bias"], x)
    return conv(x, weight, bias, a["stride"], a["padding"], a["dilation"], a["groups"])


def _conv_transpose(a: Attrs, x: Tensor) -> Tensor:
    _batch(a, x)
    conv = (F.conv_transpose1d, F.conv_transpose2d)[len(a["stride"]) - 1]
    weight, bias = _like(a["weight"], x), _like(a["bias"], x)
    return conv(x, weight, bias, a["stride"], a["padding"], a["output_padding"], a["groups"], a["dilation"])


def _affine(a: Attrs, x: Tensor) -> Tensor:
    shape = (-1,) + (1,) * (x.dim() - 2)
    return x * _like(a["scale"], x).reshape(shape) + _like(a["shift"], x).reshape(shape)


def _max_pool(a: Attrs, x: Tensor) -> Tensor:
    _batch(a, x)
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d)[len(a["kernel"]) - 1]
    return pool(x, a["kernel"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"])


def _avg_pool(a: Attrs, x: Tensor) -> Tensor:
    _batch(a, x)
    if len(a["kernel"]) == 1:
        return F.avg_pool1d(x, a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_include_pad"])
    counts = (a["ceil_mode"], a["count_include_pad"], a["divisor"])
    return F.avg_pool2d(x, a["kernel"], a["stride"], a["padding"], *counts)


def _adaptive(*pools: Callable[..., Any]) -> Callable[[Attrs, Tensor], Tensor]:
    def apply(a: Attrs, x: Tensor) -> Tensor:
        _batch(a, x)
        return pools[len(a["output_size"]) - 1](x, a["output_size"])

    return apply


def _along(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function along a dimension, which must be there: a lone number has none, although torch takes 0 for one."""

    def apply(a: Attrs, x: Tensor, *mask: Tensor) -> Tensor:
        if not -x.dim() <= a["dim"] < x.dim():
            what = f"softmax or argmax along dimension {a['dim']} of a value of shape {tuple(x.shape)}"
            raise InputError(what, hint="keep the dimension that it goes along")
        return function(a, x, *mask)

    return apply


def _reduce(reduce: Callable[..., Tensor]) -> Callable[[Attrs, Tensor], Tensor]:
    return lambda a, x: reduce(x) if a["dims"] is None else reduce(x, a["dims"], a["keepdim"])


def _mul(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
    factor = a.get("value")
    if isinstance(factor, Tensor) and factor.numel() == 1 and factor.dim() > x.dim():
        what = f"a factor of shape {tuple(factor.shape)} would add dimensions to a value of shape {tuple(x.shape)}"
        raise InputError(what, hint="write the factor as a number")
    return x * (other[0] if other else _like(factor, x))


def _binary(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def apply(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
        y = other[0] if other else _like(a["value"], x)
        return function(y, x) if a.get("reversed") else function(x, y)

    return apply


def _extreme(function: Callable[..., Tensor], bound: str) -> Callable[..., Tensor]:
    return lambda a, x, *other: function(x, other[0]) if other else x.clamp(**{bound: a["value"]})


def _greater(a: Attrs, x: Tensor, *other: Tensor) -> Tensor:
    """1 where x > y (strict) or x >= y, 0 elsewhere; turned: x and y exchanged."""
    y = other[0] if other else a["value"]
    greater, less = (y, x) if a["turned"] else (x, y)
    return (greater > less if a["strict"] else greater >= less).to(x.dtype)


def _channel_shuffle(a: Attrs, x: Tensor) -> Tensor:
    if x.shape[1] % a["groups"]:
        raise InputError(f"{x.shape[1]} channels are no multiple of {a['groups']} groups")
    parts = x.reshape(len(x), a["groups"], -1, *x.shape[2:])
    return parts.transpose(1, 2).reshape(x.shape)


def _reshape(a: Attrs, x: Tensor, *sizes: Any) -> Tensor:
    return x.reshape([n for size in sizes for n in (size if isinstance(size, tuple) else (size,))])


def _pack(a: Attrs, x: Sequence[Tensor]) -> Tensor:
    """Several results as one tensor (batch, values)."""
    batch = {part.shape[0] if part.dim() else None for part in x}
    if len(batch) != 1 or None in batch:
        what = f"the net returns tensors of shapes {', '.join(str(tuple(part.shape)) for part in x)}"
        raise InputError(what, hint="return tensors whose first dimension is the batch")
    return torch.cat([part.reshape(len(part), -1) for part in x], 1)


def _squeeze(a: Attrs, x: Tensor) -> Tensor:
    return x.squeeze() if a["dim"] is None else x.squeeze(a["dim"])


def _int(a: Attrs, x: Any, *other: Any) -> Any:
    return getattr(operator, a["function"])(x, *(other or (a["index"],)))


OPS: dict[str, Callable[..., Any]] = {
    "input": _input,
    "output": lambda a, x: x,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": lambda a, x: F.linear(x, _like(a["weight"], x), _like(a["bias"], x)),
    "affine": _affine,
    "relu": lambda a, x: F.relu(x),
    "leaky_relu": lambda a, x: F.leaky_relu(x, a["slope"]),
    "prelu": lambda a, x: F.prelu(x, _like(a["weight"], x)),
    "hardtanh": lambda a, x: x.clamp(a["low"], a["high"]),
    "sigmoid": lambda a, x: torch.sigmoid(x),
    "hardsigmoid": lambda a, x: F.hardsigmoid(x),
    "tanh": lambda a, x: torch.tanh(x),
    "silu": lambda a, x: F.silu(x),
    "hardswish": lambda a, x: F.hardswish(x),
    "gelu": lambda a, x: F.gelu(x, approximate=a["approximate"]),
    "softmax": _along(attention.softmax),
    "log_softmax": _along(lambda a, x: F.log_softmax(x, a["dim"])),
    "argmax": _along(lambda a, x: x.argmax(a["dim"], a["keepdim"])),
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    "adaptive_max_pool": _adaptive(F.adaptive_max_pool1d, F.adaptive_max_pool2d),
    "mean": _reduce(torch.mean),
    "sum": _reduce(torch.sum),
    "add": _binary(operator.add),
    "sub": _binary(operator.sub),
    "mul": _mul,
    "neg": lambda a, x: -x,
    "square": lambda a, x: x * x,
    "cat": lambda a, x: torch.cat(x, a["dim"]),
    "stack": lambda a, x: torch.stack(x, a["dim"]),
    "pack": _pack,
    "abs": lambda a, x: x.abs(),
    "maximum": _extreme(torch.maximum, "min"),
    "minimum": _extreme(torch.minimum, "max"),
    "greater": _greater,
    "resize": resize.resize,
    "pixel_shuffle": lambda a, x: F.pixel_shuffle(x, a["factor"]),
    "pixel_unshuffle": lambda a, x: F.pixel_unshuffle(x, a["factor"]),
    "channel_shuffle": _channel_shuffle,
    "flip": lambda a, x: x.flip(a["dims"]),
    "roll": lambda a, x: x.roll(a["shifts"], a["dims"]),
    "edge_pad": resize.pad_with_own,
    "expand": lambda a, x, *sizes: x.expand(sizes),
    "constant": lambda a: a["value"],
    "flatten": lambda a, x: torch.flatten(x, a["start"], a["end"]),
    "reshape": _reshape,
    "permute": lambda a, x: x.permute(a["dims"]),
    "transpose": lambda a, x: x.transpose(a["dim0"], a["dim1"]),
    "squeeze": _squeeze,
    "unsqueeze": lambda a, x: x.unsqueeze(a["dim"]),
    "chunk": lambda a, x: x.chunk(a["chunks"], a["dim"]),
    "unbind": lambda a, x: x.unbind(a["dim"]),
    "split": lambda a, x: x.split(a["sizes"], a["dim"]),
    "getitem": lambda a, x: x[a["index"]],
    "pad": lambda a, x: F.pad(x, a["pads"], value=a["value"]),
    "size": lambda a, x: x.size() if a["dim"] is None else x.size(a["dim"]),
    "int": _int,
    elementwise.OP: elementwise.evaluate,
    **norms.OPS,
    **attention.OPS,
    **public.OPS,
    "custom": lambda a, *x: a["module"](*x),
}
