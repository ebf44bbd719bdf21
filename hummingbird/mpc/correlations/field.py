"""One tensor of a correlation: how it is shared, drawn from a stream, and corrected for one party, the receiver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.cost import packed
from hummingbird.kernels.shares.packing import Packed, Words, stored
from hummingbird.kernels.streams import Drawn
from hummingbird.prg import Stream


@dataclass(frozen=True)
class Field:
    """One tensor of a correlation: its kind, its shape, and how the parties get their shares of it.

    Shares of the kind "ring" add up in Z_2^64; shares of the other kinds are combined by xor: words, packed bits, or
    words that are 0 or 1 ("bit"). A "ring" field of at most 32 bits is drawn as int32, with half the randomness and
    half the memory. A field with `left` is not drawn as a tensor: the kernels (kernels/) that read it draw or unpack it
    themselves. If such a field has the kind "ring", it takes exactly `width` bits per element, provided that the seed's
    cipher can pack them (`Stream.packs`).
    """

    kind: str  # "ring" | "words" | "packed" | "bit"
    shape: tuple[int, ...]
    owner: int | None = None  # the only party whose share is not zero; None: every party has one
    width: int = 64  # of "ring": shares add up mod 2^width, and a correction has `width` bits per element
    key: int | None = None  # of a mask that outlives the request: all requests with this key draw the same values
    earlier: bool = False  # a mask with a key that the parties already have from an earlier request
    apart: bool = False  # `Request.derive` gets the list of the parties' shares, not their sum
    left: bool = False  # kernels draw or unpack the field where they read it (kernels/shares/packing.py)

    @property
    def dtype(self) -> torch.dtype:
        """The type of a share."""
        if self.kind == "ring" and self.width <= 32:
            return torch.int32
        return torch.uint8 if self.kind == "packed" else torch.int64

    @property
    def layout(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape of a correction in its message."""
        if self.width < 64:
            return torch.uint8, (packed(math.prod(self.shape) * self.width),)
        return self.dtype, self.shape

    @property
    def bits(self) -> int:
        """Size of a correction in its message, in bits."""
        dtype, shape = self.layout
        return 8 * dtype.itemsize * math.prod(shape)

    @property
    def share_bytes(self) -> int:
        """Bytes that a party's share, drawn from its seed, takes in memory.

        For a field that kernels draw themselves (`left`), this is the size of the packed bits. If the key stream is
        ChaCha20's, kernels draw whole words, which can take more.
        """
        if self.left and self.kind == "ring":
            return packed(math.prod(self.shape) * self.width)
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def received_bytes(self) -> int:
        """Bytes that the receiver's share, made from a correction, takes in memory.

        If kernels unpack the field themselves (`left`), this is `share_bytes`. Otherwise an element takes 8 bytes, or 1
        if the kind is "packed".
        """
        return (
            self.share_bytes
            if self.left
            else max(self.dtype.itemsize, 8 if self.kind == "ring" else 0) * math.prod(self.shape)
        )

    def draw(self, stream: Stream, rank: int) -> Words:
        """Return party `rank`'s share of this field, drawn from its stream.

        If another party owns the field, the share is zero, and nothing is drawn.
        """
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
        """Return a share that is not drawn yet: a kernel draws it from this stream where the kernel reads it.

        The kernel draws packed bits if the stream's cipher can pack (`Stream.packs`), else whole words. The field must
        have no owner.
        """
        return stream.leave(self.dtype, *self.shape, width=self.width if self.kind == "ring" and stream.packs else None)

    def combine(self, shares: Sequence[Tensor]) -> Tensor:
        """The value that all shares add up (or xor) to."""
        total = shares[0].clone()
        for share in shares[1:]:
            total = total.add_(share) if self.kind == "ring" else total.bitwise_xor_(share)
        return total

    def correction(self, value: Tensor, shares: Sequence[Tensor]) -> Tensor:
        """Compute the receiver's share of this field, and return it in the form in which it is sent (`layout`).

        value: the field's value.
        shares: the shares of all other parties, which are overwritten.
        """
        subtract = torch.sub if self.kind == "ring" else torch.bitwise_xor
        for share in shares:  # into the share's own memory, which is not read again
            value = subtract(value, share, out=share if share.dtype == value.dtype else None)
        return kernels.pack_words(value.reshape(-1), self.width) if self.width < 64 else value

    def received(self, correction: Tensor) -> Words:
        """Turn a correction, in the form in which it is sent, into the receiver's share, and return the share."""
        if self.width == 64:
            return correction
        if self.left:
            return Packed(correction, self.shape, self.width)
        return kernels.unpack_words(correction, math.prod(self.shape), self.width).view(self.shape)


Fields = dict[str, Field]  # by name, in the order in which they are drawn and sent


def planes(number: int, count: int, owner: int | None = None) -> Field:
    """Make the field of `number` planes of `count` xor-shared bits each; a plane is padded to whole bytes.

    owner: the only party whose share is not zero; None: every party has a share.
    """
    return Field("packed", (number, packed(count)), owner)
