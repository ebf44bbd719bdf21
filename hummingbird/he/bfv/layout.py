"""Where the values of a convolution or a linear layer stand in polynomials, whose products are the layer.

With C planes of R rows and S columns in an input polynomial and O outputs in a reply, O C R S <= N,

    x = sum x[c, y, z] X^(c R S + y S + z)
    w = sum K[o, c, a, b] X^(o C R S + (C - 1 - c) R S + (h - 1 - a) S + (v - 1 - b))

for a kernel of h x v, and output (o, i, j) is the coefficient of X^(o C R S + (C - 1) R S + (i + h - 1) S + j + v - 1)
in x w: Huang et al., Cheetah, 2022, section 3. Two terms of x w meet there only if they belong together, as their
distance is below O C R S. axis.py sees to that within a row, and to strides, tiles and padding; blocks.py chooses C, O
and the tiles. A linear layer is a convolution of 1 x 1 images. All of this is public: shapes in, places out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.he.bfv import blocks
from hummingbird.he.bfv.axis import Axis, Tile
from hummingbird.he.bfv.blocks import Blocks

_WHERE = "he.bfv.Layout"


@dataclass(frozen=True)
class Layout:
    """The places of one layer's values, made by `Layout.of`.

    Polynomials of inputs and replies come tile by tile, as many for each: `pairs` and the weights serve every tile.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    groups: int
    degree: int
    rows: Axis
    columns: Axis
    blocks: Blocks

    @staticmethod
    def of(
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        degree: int = 4096,
    ) -> Layout:
        """Lay out a layer for least bytes: (C, H, W), (C, L) or (features,) with weights as torch has them.

        stride, padding, dilation: one number, or one for each dimension, as in torch. degree: N, a power of two.
        InputError where the shapes do not fit each other, or the kernel spans more than N values.

            Layout.of((64, 32, 32), (64, 64, 3, 3), padding=1)
        """
        inputs, weights = _sizes("input_shape", input_shape), _sizes("weight_shape", weight_shape)
        dims = len(inputs) - 1
        if not 0 <= dims <= 2 or len(weights) != dims + 2:
            hint = (
                "(C, H, W) and (O, C / groups, h, w), (C, L) and (O, C / groups, h), or (features,) and (O, features)"
            )
            raise InputError(f"an input {inputs} and weights {weights}", where=f"{_WHERE}.of", hint=hint)
        if type(degree) is not int or degree < 1 or degree & degree - 1:
            raise InputError(f"degree {degree!r}", where=f"{_WHERE}.of(degree)", hint="a power of two")
        if type(groups) is not int or groups < 1 or inputs[0] != weights[1] * groups or weights[0] % groups:
            what = f"{groups!r} groups of {inputs[0]} input channels and weights {weights}"
            hint = "weights are (O, C / groups, ...), and the groups divide O"
            raise InputError(what, where=f"{_WHERE}.of(groups)", hint=hint)
        options = [
            _each("stride", stride, dims, 1),
            _each("padding", padding, dims, 0),
            _each("dilation", dilation, dims, 1),
        ]
        axes = [Axis(1, 1)] * (2 - dims)
        for number, (size, kernel) in enumerate(zip(inputs[1:], weights[2:], strict=True)):
            axes.append(Axis(size, kernel, *(option[number] for option in options)))
            if axes[-1].outputs < 1 or not axes[-1].taps:
                what = f"a kernel of {kernel} reads nothing of an input of {size} in dimension {number}"
                hint = "check the kernel, the stride, the padding and the dilation"
                raise InputError(what, where=f"{_WHERE}.of(weight_shape)", hint=hint)
        rows, columns = axes
        planes = inputs[0] * len(rows.phases) * len(columns.phases)
        chosen = blocks.choose(rows, columns, planes, weights[0], groups, degree)
        output_shape = (weights[0], *(axis.outputs for axis in axes[2 - dims :]))
        return Layout(inputs, weights, output_shape, groups, degree, rows, columns, chosen)

    # ---- sizes

    @property
    def planes(self) -> int:
        """Input planes: channels times phases."""
        return self.input_shape[0] * len(self.rows.phases) * len(self.columns.phases)

    @cached_property
    def room(self) -> tuple[int, int]:
        """R and S: rows and columns of a plane."""
        return self.rows.room(self.blocks.height), self.columns.room(self.blocks.width)

    @cached_property
    def tiles(self) -> tuple[tuple[Tile, Tile], ...]:
        """Rows and columns of each tile, in the order of polynomials."""
        down, across = self.rows.tiles(self.blocks.height), self.columns.tiles(self.blocks.width)
        return tuple((row, column) for row in down for column in across)

    @property
    def inputs(self) -> int:
        """Number of input polynomials, of all tiles."""
        return len(self.tiles) * -(-self.planes // self.blocks.planes)

    @property
    def replies(self) -> int:
        """Number of replies, of all tiles."""
        return len(self.tiles) * -(-self.output_shape[0] // self.blocks.outputs)

    @property
    def products(self) -> int:
        """Number of products, of all tiles."""
        return len(self.tiles) * len(self.pairs)

    @cached_property
    def pairs(self) -> Tensor:
        """Products of a tile: its input and its reply for each weight polynomial, replies ascending; int64 (n, 2)."""
        sizes = self.blocks.planes, self.blocks.outputs
        return torch.tensor(blocks.connected(self.planes, self.output_shape[0], self.groups, *sizes))

    # ---- places

    def pack_input(self, x: Tensor) -> Tensor:
        """Lay an input into polynomials: int64 of `input_shape` to int64 (inputs, N). InputError for another shape."""
        self._check(x, self.input_shape, "pack_input(x)")
        images = x.reshape(self.input_shape[0], self.rows.size, self.columns.size)
        phases = [
            _to(
                images[:, row :: self.rows.stride, column :: self.columns.stride], self.rows.length, self.columns.length
            )
            for row in self.rows.phases
            for column in self.columns.phases
        ]
        planes = torch.stack(phases, 1).flatten(0, 1)  # phases of a channel beside each other: groups stay together
        polys = []
        for row, column in self.tiles:
            part = planes[:, row.start : row.start + row.kept, column.start : column.start + column.kept]
            flat = _to(part, *self.room).flatten(1)
            count = self.blocks.planes
            full = F.pad(flat, (0, 0, 0, -len(flat) % count)).view(-1, count * flat.shape[1])
            polys.append(F.pad(full, (0, self.degree - full.shape[1])))
        return torch.cat(polys)

    def pack_weights(self, weights: Tensor) -> Tensor:
        """Lay weights into polynomials: int64 of `weight_shape` to int64 (n, N), one for each of `pairs`."""
        self._check(weights, self.weight_shape, "pack_weights(weights)")
        outputs, channels = self.weight_shape[:2]
        count, block = self.blocks.planes, self.blocks.outputs
        room, across = math.prod(self.room), self.room[1]
        (down, row_phases), (right, column_phases) = self._exponents(self.rows, 0), self._exponents(self.columns, 1)
        output = torch.arange(outputs)
        first = output // (outputs // self.groups) * channels  # channel of the output's group
        channel = first[:, None] + torch.arange(channels)
        phase = row_phases[:, None] * len(self.columns.phases) + column_phases
        plane = channel[..., None, None] * (len(self.rows.phases) * len(self.columns.phases)) + phase
        exponent = (output % block * count * room).view(-1, 1, 1, 1) + (count - 1 - plane % count) * room
        exponent = exponent + down[:, None] * across + right
        numbers = torch.full((self.replies // len(self.tiles), self.inputs // len(self.tiles)), -1)
        numbers[self.pairs[:, 1], self.pairs[:, 0]] = torch.arange(len(self.pairs))
        number = numbers[(output // block).view(-1, 1, 1, 1), plane // count]
        read = self._read(weights)
        read = torch.where(exponent // self.degree % 2 == 1, -read, read)  # X^N = -1
        polys = torch.zeros(len(self.pairs) * self.degree, dtype=torch.int64)
        polys[(number * self.degree + exponent % self.degree).flatten()] = read.flatten()
        return polys.view(-1, self.degree)

    def unpack(self, polys: Tensor) -> Tensor:
        """Read the outputs out of the replies' polynomials: int64 (replies, N) to int64 of `output_shape`."""
        self._check(polys, (self.replies, self.degree), "unpack(polys)")
        outputs = self.output_shape[0]
        out = polys.new_empty(outputs, self.rows.outputs, self.columns.outputs)
        for part, (row, column) in zip(polys.split(self.replies // len(self.tiles)), self.tiles, strict=True):
            read = part[:, self._places(row, column)].flatten(0, 1)[:outputs]
            end = row.first + row.outputs, column.first + column.outputs
            out[:, row.first : end[0], column.first : end[1]] = read
        return out.view(self.output_shape)

    @cached_property
    def used(self) -> tuple[Tensor, ...]:
        """The coefficients of each reply that are outputs, ascending; int64 (values,) for each reply."""
        found = []
        for row, column in self.tiles:
            places, left = self._places(row, column), self.output_shape[0]
            whole = places.flatten()
            while left > 0:
                found.append(whole if left >= len(places) else places[:left].flatten())
                left -= len(places)
        return tuple(found)

    def norms(self, weights: Tensor) -> int:
        """The largest ||w||_1 of a reply: of all the weights that are multiplied into it, which its noise grows by."""
        self._check(weights, self.weight_shape, "norms(weights)")
        each = self._read(weights).abs().flatten(1).sum(1)
        return max(int(part.sum()) for part in each.split(self.blocks.outputs))

    def _places(self, row: Tile, column: Tile) -> Tensor:
        """Where the outputs of a tile stand in a reply: int64 (O, height, width)."""
        down, across = self.room
        output = torch.arange(self.blocks.outputs) * self.blocks.planes + self.blocks.planes - 1
        y = torch.arange(row.outputs) + row.first - row.start + self.rows.shift(self.blocks.height)
        z = torch.arange(column.outputs) + column.first - column.start + self.columns.shift(self.blocks.width)
        return (output * down * across)[:, None, None] + (y * across)[:, None] + z

    def _exponents(self, axis: Axis, number: int) -> tuple[Tensor, Tensor]:
        """Places of the weights in a line, and the number of the phase that each reads."""
        shift = axis.shift(self.blocks[number])
        places = torch.tensor([shift - tap.offset for tap in axis.taps])
        return places, torch.tensor([axis.phases.index(tap.phase) for tap in axis.taps])

    def _read(self, weights: Tensor) -> Tensor:
        """The weights of the taps that are read: (O, C / groups, rows, columns)."""
        full = weights.reshape(*self.weight_shape[:2], self.rows.kernel, self.columns.kernel)
        down, across = ([tap.place for tap in axis.taps] for axis in (self.rows, self.columns))
        return full[:, :, down][..., across]

    def _check(self, tensor: Tensor, shape: tuple[int, ...], argument: str) -> None:
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64 or tuple(tensor.shape) != shape:
            got = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            what = f"expected torch.int64 {shape}, got {got}"
            raise InputError(what, where=f"{_WHERE}.{argument}", hint="ring elements and weights are whole numbers")


def _to(x: Tensor, rows: int, columns: int) -> Tensor:
    """Planes with zeros below and to the right, up to this size."""
    return F.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2]))


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape)
    if not all(type(size) is int and size > 0 for size in sizes):
        hint = "sizes are whole numbers from 1"
        raise InputError(f"{name} {sizes}", where=f"{_WHERE}.of({name})", hint=hint)
    return sizes


def _each(name: str, value: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * dims
    if len(values) != dims or not all(type(number) is int and number >= least for number in values):
        hint = f"one whole number from {least}, or {dims} of them"
        raise InputError(f"{name} {value!r}", where=f"{_WHERE}.of({name})", hint=hint)
    return values
