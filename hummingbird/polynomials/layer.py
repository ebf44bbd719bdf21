"""Checked shapes of a convolution or a linear layer, from which every packing starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.polynomials.planes import Axis

MOST_LENGTH = 1 << 14  # of a padded dimension: then the search for a layer's packing takes some tenths of a second


@dataclass(frozen=True)
class LayerShape:
    """The checked shapes of a convolution or a linear layer, for one image, from which it is laid out in polynomials.

    input_shape, weight_shape, output_shape, groups: as in torch. rows, columns: the two dimensions with stride, padding
    and dilation. A layer of one spatial dimension has `rows` of length 1; a linear layer has `rows` and `columns` of
    length 1.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    groups: int
    rows: Axis
    columns: Axis

    @staticmethod
    def of(
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> LayerShape:
        """Return the shapes of a layer, after a check that the arguments fit each other.

        input_shape: (C, H, W), (C, L) or (features,). weight_shape: as torch has it.
        stride, padding, dilation: one number, or one for each dimension.
        Raises InputError if the arguments do not fit each other.
        """
        where = "polynomials.LayerShape.of"
        inputs, weights = _sizes("input_shape", input_shape), _sizes("weight_shape", weight_shape)
        dims = len(inputs) - 1
        if not 0 <= dims <= 2 or len(weights) != dims + 2:
            hint = (
                "(C, H, W) and (O, C / groups, h, w), (C, L) and (O, C / groups, h), or (features,) and (O, features)"
            )
            raise InputError(f"an input {inputs} and weights {weights}", where=where, hint=hint)
        if type(groups) is not int or groups < 1 or inputs[0] != weights[1] * groups or weights[0] % groups:
            what = f"{groups!r} groups of {inputs[0]} input channels and weights {weights}"
            hint = "weights are (O, C / groups, ...), and the groups divide O"
            raise InputError(what, where=f"{where}(groups)", hint=hint)
        named = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1)}
        options = [_each(name, value, dims, least) for name, (value, least) in named.items()]
        axes = [Axis(1, 1)] * (2 - dims)
        for number, (size, kernel) in enumerate(zip(inputs[1:], weights[2:], strict=True)):
            if (padded := size + 2 * options[1][number]) > MOST_LENGTH:
                what = f"{padded} values in dimension {number}, the padding included"
                raise InputError(what, where=f"{where}(input_shape)", hint=f"at most {MOST_LENGTH}: cut the input")
            axes.append(Axis(size, kernel, *(option[number] for option in options)))
            if axes[-1].outputs < 1 or not axes[-1].taps:
                what = f"a kernel of {kernel} reads nothing of an input of {size} in dimension {number}"
                hint = "check the kernel, the stride, the padding and the dilation"
                raise InputError(what, where=f"{where}(weight_shape)", hint=hint)
        output_shape = (weights[0], *(axis.outputs for axis in axes[2 - dims :]))
        return LayerShape(inputs, weights, output_shape, groups, *axes)

    def channels(self, outputs: Tensor) -> Tensor:
        """Return the numbers of the input channels that each of some output channels depends on: int64 (n, channels of
        a group).

        outputs: numbers of the output channels, int64 (n,).
        """
        every, count = self.weight_shape[:2]
        return (outputs // (every // self.groups) * count)[:, None] + torch.arange(count)


def check(tensor: Tensor, shape: Sequence[int], where: str) -> None:
    """Raise InputError unless the tensor is int64 of this shape. where: the place that the error names."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64 or tensor.shape != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
        what = f"expected torch.int64 {tuple(shape)}, got {got}"
        raise InputError(what, where=where, hint="ring elements and weights are integers, torch.int64")


def check_degree(degree: int, where: str) -> None:
    """Raise InputError unless a polynomial's degree is a power of two. where: the place that the error names."""
    if type(degree) is not int or degree < 1 or degree & degree - 1:
        raise InputError(f"degree {degree!r}", where=f"{where}(degree)", hint="a power of two")


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape)
    if not all(type(size) is int and size > 0 for size in sizes):
        hint = "sizes are integers, at least 1"
        raise InputError(f"{name} {sizes}", where=f"polynomials.LayerShape.of({name})", hint=hint)
    return sizes


def _each(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * dims
    if len(values) != dims or not all(type(number) is int and number >= least for number in values):
        hint = f"one integer, at least {least}, or {dims} of them"
        raise InputError(f"{name} {value!r}", where=f"polynomials.LayerShape.of({name})", hint=hint)
    return values
