"""Costs of one ciphertext, product, ReLU or value in the protocol of DELPHI, as Garimella et al. ran it.

A layer's input goes up in ciphertexts of `slots` values, one for each place of its kernel; the server multiplies each
for each output channel, and rotates the more, the more channels share a ciphertext; a reply has the input's resolution,
since a stride is taken afterwards. Linear layers are products of rows, `slots` multiplications each.

Sources: P. Mishra et al., "DELPHI", USENIX Security 2020; the artifact of Garimella et al. (ASPLOS 2023), whose arrays
of bytes show these counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class LayerUnits(NamedTuple):
    """A convolution, or a linear layer, which has a single pixel.

    source: number of the value that it reads. inputs, outputs: values. channels: of the output; pixels: of the input;
    area: places of the kernel.
    """

    name: str
    source: int
    inputs: int
    outputs: int
    channels: int
    pixels: int
    area: int
    groups: int

    @property
    def multiplications(self) -> int:
        """Multiplications in clear."""
        return self.outputs * self.inputs * self.area // (self.pixels * self.groups)


@dataclass(frozen=True)
class Units:
    """Costs of one of each, in seconds unless they are bytes.

    value_bytes, message_bytes: of a plain value, and of a message beside its values. garbled_relu, ot_setup, ot_send,
    label: bytes for a ReLU. encrypt, decrypt: a ciphertext. product, rotation: a ciphertext product of a convolution,
    and more for each doubling of the channels in a ciphertext. row: a product of a linear layer. thread: the part by
    which each further thread slows the others. offline_encode, encode: a ReLU. multiply: a multiplication in clear.
    """

    slots: int
    ciphertext_bytes: int
    value_bytes: int
    message_bytes: int
    key_bytes: int
    base_ot_bytes: int
    garbled_relu_bytes: float
    ot_setup_bytes: int
    ot_send_bytes: int
    label_bytes: int
    keygen: float
    encrypt: float
    decrypt: float
    product: float
    rotation: float
    row: float
    thread: float
    offline_encode: float
    encode: float
    multiply: float

    def up(self, layer: LayerUnits) -> int:
        """Ciphertexts of a layer's input."""
        return math.ceil(layer.inputs / self.slots) * layer.area

    def down(self, layer: LayerUnits) -> int:
        """Ciphertexts of a layer's reply."""
        return math.ceil(layer.channels * layer.pixels / self.slots)

    def products(self, layer: LayerUnits) -> float:
        """Products of a ciphertext and a plaintext."""
        if layer.pixels == 1:
            return layer.multiplications / self.slots
        return self.up(layer) * layer.channels / layer.groups

    def doublings(self, layer: LayerUnits) -> float:
        """Doublings from one channel to those that share a ciphertext."""
        return math.log2(max(1.0, self.slots / layer.pixels))

    def evaluation(self, layer: LayerUnits) -> float:
        """One thread's seconds for a layer's products."""
        each = self.row if layer.pixels == 1 else self.product + self.rotation * self.doublings(layer)
        return self.products(layer) * each
