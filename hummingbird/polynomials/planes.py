"""The geometry of a convolution in polynomials: axes with phases and tiles, and planes of values with gaps.

A plane is one channel of one image in one phase, cut to one tile and laid out as R rows of S coefficients: the value
(y, z) is coefficient y S + z. The weight of the tap (a, b) is coefficient (shift - offset_a) S + shift' - offset_b',
so in its product with a plane the output (i, j) is the coefficient that `Planes.places` returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# One dimension --------------------------------------------------------------------------------------------------------
#
# Tap a of output i reads x[stride i + dilation a - padding] = x_phase[i + offset], with x_phase[y] = x[stride y +
# phase]. With every phase as a channel of its own, a correlation of stride 1 remains. Taps that read only padding for
# every output (all but the centre of a 3 x 3 kernel on one pixel) are dropped.
#
# A tile is a run of outputs together with the inputs that they read, stored from position 0 on. The padding's zeros are
# not stored; a gap of zeros between two lines serves as the padding behind the first and before the second.


class Tap(NamedTuple):
    """A position of the kernel in one dimension: for output i it reads value i + offset of one phase of the input.

    place: the position's number in the kernel. phase: number of the phase (see `Axis`).
    """

    place: int
    phase: int
    offset: int


class Tile(NamedTuple):
    """A run of outputs in one dimension, computed together, and the run of input values that they read.

    The outputs are first .. first + outputs - 1. They read positions start .. start + kept - 1 of each phase (see
    `Axis`); all else that they read is padding.
    """

    first: int
    outputs: int
    start: int
    kept: int


@dataclass(frozen=True)
class Axis:
    """One dimension, height or width, along which a convolution slides.

    size, kernel: lengths of input and kernel. stride, dilation: as in torch. padding: number of zeros on each side.
    With a stride, an input splits into phases: phase p has the values at p, p + stride, p + 2 stride and so on.
    """

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def outputs(self) -> int:
        """Length of the output; less than 1 if the kernel is longer than the padded input."""
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """The kernel positions in use: each reads, for some output, a value of the input and not only padding."""
        taps = []
        for place in range(self.kernel):
            offset, phase = divmod(self.dilation * place - self.padding, self.stride)
            length = -(-(self.size - phase) // self.stride)  # of the phase
            if 1 - self.outputs <= offset < length:
                taps.append(Tap(place, phase, offset))
        return tuple(taps)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The numbers of the phases that kernel positions in use read, ascending.

        With a stride, phase p has the input's values at p, p + stride, p + 2 stride and so on; without one there is
        phase 0 only.
        """
        return tuple(sorted({tap.phase for tap in self.taps}))

    @property
    def length(self) -> int:
        """Length of the longest phase (see `Axis`); shorter phases are padded with zeros at their end."""
        return -(-(self.size - self.phases[0]) // self.stride)

    @cached_property
    def offsets(self) -> tuple[int, int]:
        """The smallest and the largest offset of all kernel positions in use, as two ints.

        For output i, a kernel position with the offset d reads value i + d of one phase of the input (`Tap`).
        """
        offsets = [tap.offset for tap in self.taps]
        return min(offsets), max(offsets)

    def tiles(self, most: int) -> tuple[Tile, ...]:
        """Cut the outputs into runs of `most` outputs, the last of which may have fewer; return a `Tile` for each."""
        least, largest = self.offsets
        tiles = []
        for first in range(0, self.outputs, most):
            outputs = min(most, self.outputs - first)
            start = min(max(first + least, 0), self.length)
            stop = min(max(first + outputs + largest, start), self.length)
            tiles.append(Tile(first, outputs, start, stop - start))
        return tuple(tiles)

    def shift(self, most: int) -> int:
        """Return by how many positions outputs and weights are moved up in this dimension, so that no position is
        negative.

        most: largest number of outputs of a tile in this dimension.
        In a product, output i of a tile is at position i - start + shift, where `start` is the first input position
        that the tile reads (`Tile`). The weight of a kernel position is at shift - offset (`Tap`). The result is the
        smallest shift for which all these positions are 0 or more.
        """
        return max(self.offsets[1], *(tile.start - tile.first for tile in self.tiles(most)))

    def room(self, most: int) -> int:
        """Return how many coefficients one row of a plane takes, its gap of zeros included.

        most: largest number of outputs of a tile in this dimension.
        The gap keeps products apart. Take output i, input value y and a kernel position with the offset d (`Tap`). If
        this kernel position multiplies this value for this output, i - y + d is 0. In all other cases i - y + d must be
        above -length and below length, so that the product gets into another coefficient. The row must also hold all
        outputs of a tile. The result is the least length that meets both conditions.
        """
        (least, largest), shift, room = self.offsets, self.shift(most), 1
        for first, outputs, start, kept in self.tiles(most):
            before = start - (first + least)  # zeros that the tile's first output reads, if positive
            behind = first + outputs + largest - (start + kept)
            room = max(room, kept + max(before, behind, 0), first + outputs - start + shift)
        return room


# Planes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planes:
    """The geometry of a layer: how an image is cut into planes, and which coefficient of a plane holds each value.

    A plane is a part of a polynomial. It has the values of one channel for one tile; with a stride, it has those of one
    phase only (`Axis`).
    rows, columns: the layer's two dimensions.
    height, width: largest number of outputs of a tile in each dimension.
    """

    rows: Axis
    columns: Axis
    height: int
    width: int

    @property
    def phases(self) -> int:
        """Number of planes of one channel in a tile: phases of the rows times phases of the columns."""
        return len(self.rows.phases) * len(self.columns.phases)

    @cached_property
    def room(self) -> tuple[int, int]:
        """The number of rows of a plane, and the number of coefficients of a row, as two ints.

        Both include the gaps of zeros that keep products apart (`Axis.room`).
        """
        return self.rows.room(self.height), self.columns.room(self.width)

    @property
    def size(self) -> int:
        """Number of coefficients of a plane."""
        return self.room[0] * self.room[1]

    @cached_property
    def tiles(self) -> tuple[tuple[Tile, Tile], ...]:
        """The tiles of an output channel, row by row: a tuple of pairs, each of a `Tile` of rows and a `Tile` of
        columns.
        """
        down, across = self.rows.tiles(self.height), self.columns.tiles(self.width)
        return tuple((row, column) for row in down for column in across)

    def split(self, images: Tensor) -> Tensor:
        """Cut an image into planes, and return them: (tiles, C * phases, coefficients of a plane), with gaps of zeros.

        images: (C, H, W); with the channels of several images one after another, C counts all of them. The planes of
        one channel are adjacent.
        """
        rows, columns = self.rows, self.columns
        phases = [
            _to(images[:, row :: rows.stride, column :: columns.stride], rows.length, columns.length)
            for row in rows.phases
            for column in columns.phases
        ]
        planes = torch.stack(phases, 1).flatten(0, 1)
        parts = [
            planes[:, row.start : row.start + row.kept, column.start : column.start + column.kept]
            for row, column in self.tiles
        ]
        return torch.stack([_to(part, *self.room) for part in parts]).flatten(2)

    def places(self, tile: tuple[Tile, Tile]) -> Tensor:
        """Return where the outputs of one tile are, after a plane was multiplied by the weights: int64 (height, width).

        The numbers are positions of coefficients in the product. tile: the tile's rows and its columns.
        """
        lines = [
            torch.arange(part.outputs) + part.first - part.start + axis.shift(most)
            for part, axis, most in zip(tile, (self.rows, self.columns), (self.height, self.width), strict=True)
        ]
        return lines[0][:, None] * self.room[1] + lines[1]

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the output of the layer, (..., H', W'), joined from the outputs of all tiles.

        parts: the outputs of each tile, (..., height, width), in the order of `tiles`.
        """
        out = parts[0].new_empty(*parts[0].shape[:-2], self.rows.outputs, self.columns.outputs)
        for part, (row, column) in zip(parts, self.tiles, strict=True):
            out[..., row.first : row.first + row.outputs, column.first : column.first + column.outputs] = part
        return out

    def kept(self, weights: Tensor) -> Tensor:
        """Return the weights of the kernel positions in use; a position that reads padding for every output is left
        out.

        weights: (O, C, h, w), or a shape that reshapes to it. Returns (O, C, kernel rows in use, kernel columns in
        use).
        """
        full = weights.reshape(*weights.shape[:2], self.rows.kernel, self.columns.kernel)
        down, across = ([tap.place for tap in axis.taps] for axis in (self.rows, self.columns))
        return full[:, :, down][..., across]

    @cached_property
    def exponents(self) -> Tensor:
        """Where the weights stand in the polynomial that multiplies a plane: for each weight the position of its
        coefficient.

        int64 (kernel rows in use, kernel columns in use). Kernel positions that read only padding are not in use
        (`Axis.taps`).
        """
        down, right = (
            torch.tensor([axis.shift(most) - tap.offset for tap in axis.taps])
            for axis, most in ((self.rows, self.height), (self.columns, self.width))
        )
        return down[:, None] * self.room[1] + right

    @cached_property
    def phase(self) -> Tensor:
        """Which of an input channel's planes each weight multiplies, as a number from 0: int64 (rows, columns).

        Without a stride, a channel has one plane for a tile; with a stride it has one for each phase. Rows and columns
        are the kernel positions in use (`Axis.taps`).
        """
        down, right = (
            torch.tensor([axis.phases.index(t.phase) for t in axis.taps]) for axis in (self.rows, self.columns)
        )
        return down[:, None] * len(self.columns.phases) + right


def _to(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return planes padded with zeros to `rows` rows and `columns` columns, behind the last row and the last column."""
    return F.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2]))
