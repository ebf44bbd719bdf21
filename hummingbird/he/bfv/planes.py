"""Images of one channel and phase as rows of a polynomial: tiles, the gaps between lines, and where outputs stand.

A plane has R rows of S places, the value (y, z) of a tile at y S + z. A weight of the tap (a, b) stands at
(shift - offset_a) S + shift' - offset_b', so that its product with a plane has output (i, j) at the place that `places`
says. axis.py has the rules of either dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from hummingbird.he.bfv.axis import Axis, Tile


@dataclass(frozen=True)
class Planes:
    """Planes of a layer, whose outputs are cut into tiles of height x width."""

    rows: Axis
    columns: Axis
    height: int
    width: int

    @property
    def phases(self) -> int:
        """Planes of a channel."""
        return len(self.rows.phases) * len(self.columns.phases)

    @cached_property
    def room(self) -> tuple[int, int]:
        """R and S."""
        return self.rows.room(self.height), self.columns.room(self.width)

    @property
    def size(self) -> int:
        """Places of a plane."""
        return self.room[0] * self.room[1]

    @cached_property
    def tiles(self) -> tuple[tuple[Tile, Tile], ...]:
        """Rows and columns of each tile."""
        down, across = self.rows.tiles(self.height), self.columns.tiles(self.width)
        return tuple((row, column) for row in down for column in across)

    def split(self, images: Tensor) -> Tensor:
        """Cut images (C, H, W) into (tiles, C phases, size); the phases of a channel stand beside each other."""
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
        """Where the outputs of a tile stand in a plane: int64 (height, width)."""
        lines = [
            torch.arange(part.outputs) + part.first - part.start + axis.shift(most)
            for part, axis, most in zip(tile, (self.rows, self.columns), (self.height, self.width), strict=True)
        ]
        return lines[0][:, None] * self.room[1] + lines[1]

    def join(self, parts: list[Tensor]) -> Tensor:
        """Put the outputs of all tiles together: (..., height, width) each to (..., H', W')."""
        out = parts[0].new_empty(*parts[0].shape[:-2], self.rows.outputs, self.columns.outputs)
        for part, (row, column) in zip(parts, self.tiles, strict=True):
            out[..., row.first : row.first + row.outputs, column.first : column.first + column.outputs] = part
        return out

    def kept(self, weights: Tensor) -> Tensor:
        """The weights of the taps that are read, of (O, C, h, w) or what reshapes to it."""
        full = weights.reshape(*weights.shape[:2], self.rows.kernel, self.columns.kernel)
        down, across = ([tap.place for tap in axis.taps] for axis in (self.rows, self.columns))
        return full[:, :, down][..., across]

    @cached_property
    def exponents(self) -> Tensor:
        """Where the weights that are kept stand in a plane: int64 (taps down, taps across)."""
        down, right = (
            torch.tensor([axis.shift(most) - tap.offset for tap in axis.taps])
            for axis, most in ((self.rows, self.height), (self.columns, self.width))
        )
        return down[:, None] * self.room[1] + right

    @cached_property
    def phase(self) -> Tensor:
        """Which plane of its channel each of these weights reads: int64 (taps down, taps across)."""
        down, right = (
            torch.tensor([axis.phases.index(t.phase) for t in axis.taps]) for axis in (self.rows, self.columns)
        )
        return down[:, None] * len(self.columns.phases) + right


def _to(x: Tensor, rows: int, columns: int) -> Tensor:
    """Planes with zeros below and to the right, up to this size."""
    return F.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2]))
