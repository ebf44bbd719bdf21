"""One tensor of a correlation: how it is shared, drawn from a stream, and corrected at one party, the receiver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.cost import packed
from hummingbird.kernels.drawn import Drawn
from hummingbird.kernels.shares.words import Packed, Words, stored
from hummingbird.prg import Stream


@dataclass(frozen=True)
class Field:
    """One tensor of a correlation: additive shares in Z_2^64 (`ring`), or xor shares of words, packed bits or 0/1
    words.

    Ring elements of which at most 32 bits count are drawn as int32, half the randomness and half the memory; those
    that are left to kernels with as many bits as count, where the seed's cipher packs (`Stream.packs`).
    """

    kind: str  # "ring" | "words" | "packed" | "bit"
    shape: tuple[int, ...]
    owner: int | None = None  # the only party with a share that is not zero
    width: int = 64  # of "ring": shares add up mod 2^width, and a correction travels with that many bits per element
    key: int | None = None  # of a mask that outlives the request: the same values for the same key, in every request
    earlier: bool = False  # such a mask that the parties have from a request before
    apart: bool = False  # `Request.derive` gets the list of the parties' shares, not the value that they stand for
    left: bool = False  # to kernels, which draw or unpack it where they read it (kernels/shares/words.py)

    @property
    def dtype(self) -> torch.dtype:
        """Type of a share."""
        if self.kind == "ring" and self.width <= 32:
            return torch.int32
        return torch.uint8 if self.kind == "packed" else torch.int64

    @property
    def layout(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of a correction on the wire."""
        if self.width < 64:
            return torch.uint8, (packed(math.prod(self.shape) * self.width),)
        return self.dtype, self.shape

    @property
    def bits(self) -> int:
        """Size of a correction on the wire."""
        dtype, shape = self.layout
        return 8 * dtype.itemsize * math.prod(shape)

    @property
    def share_bytes(self) -> int:
        """Size of a drawn share in memory, where kernels do not draw it; of ChaCha20's whole words up to twice that."""
        if self.left and self.kind == "ring":
            return packed(math.prod(self.shape) * self.width)
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def received_bytes(self) -> int:
        """Size of the receiver's share in memory: whole words, if it has unpacked them."""
        return (
            self.share_bytes
            if self.left
            else max(self.dtype.itemsize, 8 if self.kind == "ring" else 0) * math.prod(self.shape)
        )

    def draw(self, stream: Stream, rank: int) -> Words:
        """Party `rank`'s share from its stream; all zeros, at no cost, if another party owns the field."""
        if self.owner is not None and self.owner != rank:
            return torch.zeros(self.shape, dtype=self.dtype, device=stream.device)
        if self.left:
            drawn = self.leave(stream)
            return drawn if stream.on_device else stored(drawn)
        if self.kind == "packed":
            return stream.bytes(math.prod(self.shape)).view(self.shape)
        if self.kind == "bit":
            return stream.bits(*self.shape).long()
        return stream.words(*self.shape, dtype=self.dtype)

    def leave(self, stream: Stream) -> Drawn:
        """The same, not drawn yet: in whole words, or packed where the stream is; of a field without an owner."""
        return stream.leave(self.dtype, *self.shape, width=self.width if self.kind == "ring" and stream.packs else None)

    def combine(self, shares: Sequence[Tensor]) -> Tensor:
        """The value that all shares stand for."""
        total = shares[0].clone()
        for share in shares[1:]:
            total = total.add_(share) if self.kind == "ring" else total.bitwise_xor_(share)
        return total

    def correction(self, value: Tensor, shares: Sequence[Tensor]) -> Tensor:
        """The receiver's share of `value` when the others hold `shares`, as it travels (`layout`)."""
        subtract = torch.sub if self.kind == "ring" else torch.bitwise_xor
        for share in shares:  # into the share's own memory, which nobody looks at again
            value = subtract(value, share, out=share if share.dtype == value.dtype else None)
        return kernels.pack_words(value.reshape(-1), self.width) if self.width < 64 else value

    def received(self, correction: Tensor) -> Words:
        """The receiver's share from its correction."""
        if self.width == 64:
            return correction
        if self.left:
            return Packed(correction, self.shape, self.width)
        return kernels.unpack_words(correction, math.prod(self.shape), self.width).view(self.shape)


Fields = dict[str, Field]  # by name, in the order in which they are drawn and sent


def planes(number: int, count: int, owner: int | None = None) -> Field:
    """Packed bits, xor-shared: `number` planes of `count` bits, each plane padded to whole bytes."""
    return Field("packed", (number, packed(count)), owner)
