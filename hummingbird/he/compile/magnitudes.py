"""Measure the size of a net's values, and how it propagates errors, by running it in the clear on a few inputs.

A plan needs typical sizes, because the errors that weights and inputs may have depend on them. Each step runs once on
the inputs, and once more for each value that it reads, with small random changes to that value. So one rule serves
convolutions, pools and softmaxes: the gain of independent errors is the root mean square of the result's change over
that of the input's. The inputs are the caller's samples, or a fixed pseudo-random pattern; neither is secret from the
server. The pseudo-random changes protect nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird import prg
from hummingbird.errors import InputError, Problem
from hummingbird.graph import OPS, Interpreter, Ref, Step
from hummingbird.graph.steps import map_refs, refs

PATTERN = 4  # inputs of the pattern
_MOVED = 4  # inputs whose values are changed
_SMALL = 2.0**-12  # size of a change, relative to a value's root mean square


@dataclass(frozen=True)
class Magnitude:
    """The measured size of a step's value, from which a plan derives scales and errors.

    shape: for one image. rms: root mean square. peak: largest absolute value.
    gains: a factor for each step whose value this step reads, by the number of that step. An error in that value causes
    an error here that is larger by this factor, if the errors of single numbers are independent.
    """

    shape: tuple[int, ...]
    rms: float
    peak: float
    gains: dict[int, float]


def pattern(shape: Sequence[int], bound: float) -> Tensor:
    """Return pseudo-random inputs on which a net is measured: normal, of deviation bound / 4, clamped to the bound.

    shape: of one image. The result is float64 (4, *shape), the same at each call.
    """
    words = prg.Stream(bytes(prg.SEED_BYTES)).words(PATTERN, *shape)  # a fixed key: the pattern is not secret
    uniform = (words >> 11).double() * 2.0**-52  # in [-1, 1)
    return (torch.erfinv(uniform) * (math.sqrt(2) * bound / 4)).clamp(-bound, bound)


def shapes(steps: Sequence[Step], inputs: Tensor) -> tuple[list[tuple[int, ...] | None], list[Problem]]:
    """Return two lists: the shape of every step's value for one image, and the problems that were found.

    A value that is no tensor has the shape None. There is a `Problem` for each step that mixes the images of a batch.
    inputs: float64 (n, *input_shape), n >= 2. Raises InputError if the net cannot take them.
    """
    values, alone = _run(steps, inputs), _run(steps, inputs[:1])
    found = [
        Problem(step.name, "mixes the images of a batch", "keep the first dimension to itself")
        for step, value, single in zip(steps, values, alone, strict=True)
        if isinstance(value, Tensor) and not _by_image(value, single, len(inputs))
    ]
    return [tuple(value.shape[1:]) if isinstance(value, Tensor) else None for value in values], found


def planning_bytes(steps: Sequence[Step], shape: Sequence[int], images: int) -> int:
    """Count the bytes of all values that `measure` keeps for `images` images, without computing any.

    Raises InputError if the net cannot take inputs of this shape.
    """
    values = _run(steps, torch.empty(images, *shape, dtype=torch.float64, device="meta"))
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


def measure(steps: Sequence[Step], inputs: Tensor) -> list[Magnitude | None]:
    """Return the measured magnitude of every step whose value is a tensor, and None for other steps.

    inputs: float64 (n, *input_shape), n >= 2.
    """
    values = _run(steps, inputs)
    return [
        _magnitude(step, value, values) if isinstance(value, Tensor) else None
        for step, value in zip(steps, values, strict=True)
    ]


def _run(steps: Sequence[Step], inputs: Tensor) -> list[Any]:
    """Run all steps on the inputs, in the clear; return the value of each step, in order.

    Raises InputError, naming the step, if a step does not run or its value has NaN.
    """

    def compute(number: int, step: Step, arguments: tuple[Any, ...]) -> Any:
        try:
            with torch.no_grad():
                value = OPS[step.op](step.attrs, *arguments)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            what = (
                f"the net does not take images of shape {tuple(inputs.shape[1:])}: {str(error).partition(chr(10))[0]}"
            )
            raise InputError(
                what, where=step.name, hint="input_shape is that of one image, without the batch"
            ) from None
        if isinstance(value, Tensor) and not value.is_meta and bool(value.isnan().any()):
            what = "its values are NaN on the inputs that the plan is measured with"
            raise InputError(what, where=step.name, hint="give samples= of your data")
        return value

    net = Interpreter(steps, keep=True)
    values = net.start(inputs)
    net.run(values, compute)
    return [values[number] for number in range(len(steps))]


def _by_image(value: Tensor, single: Tensor, images: int) -> bool:
    if value.dim() == 0 or value.shape[0] != images or single.shape != (1, *value.shape[1:]):
        return False
    # float64; at most the order of summation differs: far below 2^-30
    slack = 2.0**-30 * (value.double().abs().max() if value.numel() else 0)
    return bool(((value[:1].double() - single.double()).abs() <= slack).all())


def _magnitude(step: Step, value: Tensor, values: list[Any]) -> Magnitude:
    number = value.double()
    number = number[number.isfinite()]  # a max pool pads with -inf
    gains = {}
    for ref in dict.fromkeys(refs(step.inputs)) if value.is_floating_point() else ():
        gains[ref.index] = _gain(step, value, values, ref)
    rms = float(number.square().mean().sqrt()) if number.numel() else 0.0
    return Magnitude(tuple(value.shape[1:]), rms, float(number.abs().max()) if number.numel() else 0.0, gains)


def _gain(step: Step, value: Tensor, values: list[Any], ref: Ref) -> float:
    source = values[ref.index]
    if isinstance(source, tuple):  # a part of a chunk or split
        return 1.0
    if not isinstance(source, Tensor) or not source.is_floating_point():
        return 0.0
    few = source[:_MOVED]
    size = _SMALL * max(float(few.square().mean().sqrt()), 2.0**-100)
    signs = prg.Stream(prg.derive(bytes(prg.SEED_BYTES), step.name)).bits(*few.shape)
    moved = {ref.index: few + (signs.double() * 2 - 1) * size}

    def argument(read: Ref) -> Any:
        known = values[read.index]
        return moved.get(read.index, known[:_MOVED] if isinstance(known, Tensor) else _first(known))

    with torch.no_grad():
        out = OPS[step.op](step.attrs, *map_refs(step.inputs, argument))
    if isinstance(out, tuple):
        return 1.0
    moved_by = out - value[:_MOVED]
    moved_by = moved_by[moved_by.isfinite()]  # the root of a negative change of zero is NaN
    return float(moved_by.square().mean().sqrt()) / size if moved_by.numel() else 0.0


def _first(known: Any) -> Any:
    return (
        tuple(part[:_MOVED] for part in known) if isinstance(known, tuple) and isinstance(known[0], Tensor) else known
    )
