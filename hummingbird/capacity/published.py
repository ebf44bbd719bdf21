"""Nets in the services of Garimella et al. (ASPLOS 2023): seconds and bytes of each step of a service.

The authors measured six nets, which ship as `profiles/asplos23.json`; compose.py computes the constants of any other
net from `Units`.

Source: kvgarimella/characterizing-private-inference (MIT; measurements alone).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from hummingbird import records
from hummingbird.errors import ConfigError

# Unit costs of a ciphertext, product, ReLU or value in the protocol of DELPHI, as Garimella et al. ran it ------------
#
# A client sends a layer's input in ciphertexts of `slots` values, once for each position of the kernel. The server
# multiplies each ciphertext for each output channel, and rotates it more often the more channels share a ciphertext. A
# reply has the input's resolution, since the stride is applied afterwards. Linear layers are products of rows, `slots`
# multiplications each.
#
# Sources: P. Mishra et al., "DELPHI", USENIX Security 2020; the artifact of Garimella et al. (ASPLOS 2023), whose
# arrays of bytes show these counts.


class LayerUnits(NamedTuple):
    """Sizes of a convolution, or of a linear layer, which has a single pixel.

    source: index of the step whose result it reads. inputs, outputs: numbers of values. channels: of the output.
    pixels: of the input. area: positions of the kernel.
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
    """Unit costs; seconds, but for the fields that end in _bytes.

    slots: values in a ciphertext. value_bytes: a plain value. message_bytes: a message's own bytes beside its values.
    key_bytes, base_ot_bytes: once for a refill. garbled_relu_bytes, ot_setup_bytes, ot_send_bytes, label_bytes: for a
    ReLU. keygen: once for a refill. encrypt, decrypt: a ciphertext. product: a ciphertext product of a convolution.
    rotation: its additional seconds for each doubling of the channels in a ciphertext. row: a product of a linear
    layer. thread: the fraction by which each further thread slows the others down. offline_encode, encode: a ReLU.
    multiply: a multiplication in clear.
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
        """Number of ciphertexts of a layer's input."""
        return math.ceil(layer.inputs / self.slots) * layer.area

    def down(self, layer: LayerUnits) -> int:
        """Number of ciphertexts of a layer's reply."""
        return math.ceil(layer.channels * layer.pixels / self.slots)

    def products(self, layer: LayerUnits) -> float:
        """Number of ciphertext-plaintext products of a layer."""
        if layer.pixels == 1:
            return layer.multiplications / self.slots
        return self.up(layer) * layer.channels / layer.groups

    def doublings(self, layer: LayerUnits) -> float:
        """log2 of the number of channels that share a ciphertext."""
        return math.log2(max(1.0, self.slots / layer.pixels))

    def evaluation(self, layer: LayerUnits) -> float:
        """Seconds of a layer's products on one thread."""
        each = self.row if layer.pixels == 1 else self.product + self.rotation * self.doublings(layer)
        return self.products(layer) * each


# ---------------------------------------------------------------------------------------------------------------------

FORMAT, VERSION = "hummingbird-asplos", 1


class Garbler(NamedTuple):
    """The constants of a net that depend on the side that garbles: seconds of one thread, and bytes.

    offline_encode: seconds of encoding in advance. garbled: bytes of the circuits. base_ot, ot_setup, ot_send: bytes of
    the oblivious transfers' messages. input: bytes of the client's share of the image and, where the server garbles, of
    each layer's input. encode, linear: seconds online. labels: bytes of the labels of the client's inputs, sent online
    where the server garbles. prediction: bytes of the result.
    """

    offline_encode: float
    garbled: int
    base_ot: int
    ot_setup: int
    ot_send: int
    input: int
    encode: float
    linear: float
    labels: int
    prediction: int


@dataclass(frozen=True)
class Net:
    """A net's constants.

    relus: ReLUs of an image. linear_values: values that the client keeps for linear layers. keygen, encrypt, decrypt:
    seconds. key: bytes. up, down: bytes of ciphertexts. he: seconds of the homomorphic evaluation; he[t - 1] on t
    threads. sg, cg: constants of server garbling and of client garbling.
    """

    name: str
    relus: int
    linear_values: int
    keygen: float
    key: int
    encrypt: float
    up: int
    he: tuple[float, ...]
    down: int
    decrypt: float
    sg: Garbler
    cg: Garbler


class LinearFit(NamedTuple):
    """A line fitted to measured seconds of x ReLUs: slope * x + intercept."""

    slope: float
    intercept: float

    def at(self, x: int) -> float:
        """Seconds of x ReLUs; 0 where a negative intercept would make them negative."""
        return max(0.0, self.slope * x + self.intercept)


@dataclass(frozen=True)
class PublishedProfile:
    """Measurements of a client and a server.

    lines: seconds of garbling and evaluating at each side, "garble_client" to "eval_server". bytes_per_relu: bytes that
    the "garbler" and the "evaluator" keep. nets: the measured nets by name. units: unit costs for other nets. error: by
    net, for its "refill" and its "request", the largest relative error of the seconds when composed of its layers.
    """

    name: str
    source: str
    lines: Mapping[str, LinearFit]
    bytes_per_relu: Mapping[str, int]
    nets: Mapping[str, Net]
    units: Units
    error: Mapping[str, Mapping[str, float]]

    def net(self, name: str) -> Net:
        """The measured net of this name, such as tinyimagenet/resnet18. Raises ConfigError for an unknown name."""
        if name not in self.nets:
            raise ConfigError(f"no measured net {name!r}", where="net", hint=f"one of {', '.join(self.nets)}")
        return self.nets[name]


@cache
def asplos23() -> PublishedProfile:
    """The authors' measurements: an Atom of 4 cores as the client, and a server of 32; shipped with the package."""
    text = resources.files("hummingbird.capacity").joinpath("profiles/asplos23.json").read_text(encoding="utf-8")
    return parse(records.read(text, records.mapping(records.anything(), 16), name="profile", where="asplos23.json"))


def parse(data: Mapping[str, Any]) -> PublishedProfile:
    """The profile of a JSON object; ConfigError for another format or version."""
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise ConfigError("no such profile", where="format", hint=f"this release reads {FORMAT} {VERSION}")
    return PublishedProfile(
        name=data["name"],
        source=data["source"],
        lines={name: LinearFit(*line) for name, line in data["lines"].items()},
        bytes_per_relu=data["bytes_per_relu"],
        nets={name: _net(name, net) for name, net in data["nets"].items()},
        units=Units(**data["units"]),
        error=data["error"],
    )


def _net(name: str, data: Mapping[str, Any]) -> Net:
    typed = {"he": tuple(data["he"]), "sg": Garbler(**data["sg"]), "cg": Garbler(**data["cg"])}
    return Net(name=name, **{**data, **typed})
