"""One tensor of a correlation: how it is shared, drawn from a stream, and corrected for one party, the receiver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.cost import packed
from hummingbird.kernels.shares.packing import Packed, Words, plain, stored
from hummingbird.kernels.streams import Drawn
from hummingbird.prg import Stream


@dataclass(frozen=True)
class Field:
    """One tensor of a correlation: its kind, its shape, and how the parties get their shares of it.

    kind: "ring", whose shares add up mod 2^width; or "words", "packed" or "bit", whose shares are combined by xor.
        These are 64-bit words, bits packed into bytes, and words that are 0 or 1.
    owner: the only party whose share is not zero; None: every party has a share.
    width: bits of an element of kind "ring". Up to 32 bits, shares are drawn as int32, with half the randomness and
        memory.
    key: a number for a mask that outlives its request: all requests with this key draw the same values.
    conversation: whether this holds within one conversation only (`ReceiverTurn.conversation`): with the same key, the
        masks of another conversation, and those outside of conversations, are independent of these.
    earlier: whether the parties already have this mask from an earlier request with the same key.
    apart: whether the dealer computes with the list of the parties' shares, not with their sum.
    left: whether the kernels that read the field draw or unpack it themselves. A "ring" field then takes `width` bits
        for each element if the seed's cipher can pack them (`Stream.packs`).
    sparse: whether kernels read few elements of a "ring" field that is left. It then takes a whole word for each
        element with every cipher, and kernels on a CPU, too, draw the blocks of these few words alone.
    """

    kind: str  # "ring" | "words" | "packed" | "bit"
    shape: tuple[int, ...]
    owner: int | None = None  # the only party whose share is not zero; None: every party has one
    width: int = 64  # of "ring": shares add up mod 2^width, and a correction has `width` bits per element
    key: int | None = None  # of a mask that outlives the request: all requests with this key draw the same values
    conversation: bool = False  # of a key: its masks belong to the conversation of the request
    earlier: bool = False  # a mask with a key that the parties already have from an earlier request
    apart: bool = False  # `Request.derive` gets the list of the parties' shares, not their sum
    left: bool = False  # kernels draw or unpack the field where they read it (kernels/shares/packing.py)
    sparse: bool = False  # kernels read few elements of a field that is left: it has whole words

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of a party's share of this field."""
        if self.kind == "ring" and self.width <= 32:
            return torch.int32
        return torch.uint8 if self.kind == "packed" else torch.int64

    @property
    def layout(self) -> tuple[torch.dtype, tuple[int, ...]]:
        """The torch type and the shape of this field's correction in its message.

        It has packed bytes, uint8 (bytes,), if elements have fewer than 64 bits.
        """
        if self.width < 64:
            return torch.uint8, (packed(math.prod(self.shape) * self.width),)
        return self.dtype, self.shape

    @property
    def bits(self) -> int:
        """Size in bits of this field's correction in its message."""
        dtype, shape = self.layout
        return 8 * dtype.itemsize * math.prod(shape)

    @property
    def share_bytes(self) -> int:
        """Bytes that a party's share, drawn from its seed, takes in memory.

        For a field that kernels draw themselves (`left`), this is the size of the packed bits. If the key stream is
        ChaCha20's, kernels draw whole words, which can take more. Of a sparse field it is an upper bound: a
        kernel stores the elements that it reads.
        """
        if self.left and not self.sparse and self.kind == "ring":
            return packed(math.prod(self.shape) * self.width)
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def received_bytes(self) -> int:
        """Bytes that the receiver's share, made from a correction, takes in memory.

        If kernels unpack the field themselves (`left`), this is the size of the correction. Otherwise an element takes
        8 bytes, or 1 if the kind is "packed".
        """
        if self.left:
            return self.bits // 8
        return max(self.dtype.itemsize, 8 if self.kind == "ring" else 0) * math.prod(self.shape)

    def draw(self, stream: Stream, rank: int) -> Words:
        """Return party `rank`'s share of this field, drawn from its stream.

        If another party owns the field, the share is zero, and nothing is drawn.
        """
        if self.owner is not None and self.owner != rank:
            return torch.zeros(self.shape, dtype=self.dtype, device=stream.device)
        if self.left:
            drawn = self.leave(stream)
            here = drawn.device == stream.device  # not on a GPU with AES-128
            return drawn if stream.on_device or (self.sparse and here) else stored(drawn)
        if self.kind == "packed":
            return stream.bytes(math.prod(self.shape)).view(self.shape)
        if self.kind == "bit":
            return stream.bits(*self.shape).long()
        return stream.words(*self.shape, dtype=self.dtype)

    def leave(self, stream: Stream) -> Drawn:
        """Return a party's share that is not drawn yet: a kernel draws it from this stream where the kernel reads it.

        The kernel draws `width` bits for each element of a "ring" field if the stream's cipher can pack
        (`Stream.packs`), else, or if the field is sparse, whole words. The field must have no owner.
        """
        packs = self.kind == "ring" and stream.packs and not self.sparse
        return stream.leave(self.dtype, *self.shape, width=self.width if packs else None)

    def combine(self, shares: Sequence[Tensor]) -> Tensor:
        """Return the field's value from all parties' shares: their sum for the kind "ring", their xor otherwise."""
        total = shares[0].clone()
        for share in shares[1:]:
            total = total.add_(share) if self.kind == "ring" else total.bitwise_xor_(share)
        return total

    def correction(self, value: Tensor, shares: Sequence[Tensor]) -> Tensor:
        """Compute the share of this field that the dealer sends to the receiver; return it in the form of its message.

        That form is packed bytes if elements have fewer than 64 bits (`layout`).
        value: the field's value.
        shares: the shares of all parties but the receiver; they are overwritten.
        """
        subtract = torch.sub if self.kind == "ring" else torch.bitwise_xor
        for share in shares:  # into the share's own memory, which is not read again
            value = subtract(value, share, out=share if share.dtype == value.dtype else None)
        return kernels.pack_words(value.reshape(-1), self.width) if self.width < 64 else value

    def received(self, correction: Tensor) -> Words:
        """Return the receiver's share of this field.

        correction: the field's correction, in the form in which it was sent (`layout`).
        """
        if self.width == 64:
            return correction
        if self.left:
            return Packed(correction, self.shape, self.width)
        return kernels.unpack_words(correction, math.prod(self.shape), self.width).view(self.shape)

    def sent(self, share: Words) -> Tensor:
        """Return a share, as `received` returned it, in the form of a message (`layout`)."""
        if isinstance(share, Packed):
            return share.data
        words = plain(share)
        return kernels.pack_words(words.reshape(-1), self.width) if self.width < 64 else words


Fields = dict[str, Field]  # by name, in the order in which they are drawn and sent


def planes(number: int, count: int, owner: int | None = None) -> Field:
    """Make a field of packed bits: `number` planes of `count` xor-shared bits each.

    A plane has one bit of each of `count` values, and is padded to whole bytes.
    owner: the only party whose share is not zero; None: every party has a share.
    """
    return Field("packed", (number, packed(count)), owner)
