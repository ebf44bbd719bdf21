"""One dimension of a convolution: strides become phases, long lines become tiles, and padding is kept as gaps.

Tap a of output i reads x[stride i + dilation a - padding] = x_phase[i + offset], with x_phase[y] = x[stride y + phase].
With every phase as a channel of its own, all that is left is a correlation of stride 1. Taps that no output ever reads
within the input (all but the centre of a 3 x 3 kernel on one pixel) are dropped.

A tile is a run of outputs and the input that it reads, kept from place 0 on. Only the input is kept, and no zeros of
the padding but `gap` between two lines: the zeros before one line are those behind the line before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Tap(NamedTuple):
    """A kernel's position: its place there, and the phase that it reads, at i + offset for output i."""

    place: int
    phase: int
    offset: int


class Tile(NamedTuple):
    """Outputs first .. first + outputs - 1, which read places start .. start + kept - 1 of each phase, and zeros."""

    first: int
    outputs: int
    start: int
    kept: int


@dataclass(frozen=True)
class Axis:
    """A dimension: lengths of the input and the kernel, and stride, zeros on either side, dilation."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def outputs(self) -> int:
        """Length of the output; less than 1 where the kernel is longer than the padded input."""
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """The taps that some output reads within the input."""
        taps = []
        for place in range(self.kernel):
            offset, phase = divmod(self.dilation * place - self.padding, self.stride)
            length = -(-(self.size - phase) // self.stride)  # of the phase
            if 1 - self.outputs <= offset < length:
                taps.append(Tap(place, phase, offset))
        return tuple(taps)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The phases that taps read, ascending."""
        return tuple(sorted({tap.phase for tap in self.taps}))

    @property
    def length(self) -> int:
        """Places of a phase, the longest; shorter ones end in zeros."""
        return -(-(self.size - self.phases[0]) // self.stride)

    @cached_property
    def offsets(self) -> tuple[int, int]:
        """The least and the largest offset."""
        offsets = [tap.offset for tap in self.taps]
        return min(offsets), max(offsets)

    def tiles(self, most: int) -> tuple[Tile, ...]:
        """Cut the outputs into tiles of `most`, the last one of fewer."""
        least, largest = self.offsets
        tiles = []
        for first in range(0, self.outputs, most):
            outputs = min(most, self.outputs - first)
            start = min(max(first + least, 0), self.length)
            stop = min(max(first + outputs + largest, start), self.length)
            tiles.append(Tile(first, outputs, start, stop - start))
        return tuple(tiles)

    def shift(self, most: int) -> int:
        """Where outputs stand: i at place i - start + shift of a tile, and a tap's weight at shift - offset >= 0."""
        return max(self.offsets[1], *(tile.start - tile.first for tile in self.tiles(most)))

    def room(self, most: int) -> int:
        """Places of a line, the gap with it: the least with which lines that follow each other do not mix.

        i - y + offset, for output i, input y and any tap, must be within (-room, room); it is 0 where they belong
        together. And the outputs must have room.
        """
        (least, largest), shift, room = self.offsets, self.shift(most), 1
        for first, outputs, start, kept in self.tiles(most):
            before = start - (first + least)  # zeros that the tile's first output reads, if positive
            behind = first + outputs + largest - (start + kept)
            room = max(room, kept + max(before, behind, 0), first + outputs - start + shift)
        return room
