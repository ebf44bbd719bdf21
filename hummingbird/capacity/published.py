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
    """Sizes of a convolution or linear layer, from which its costs are computed.

    A linear layer's input counts as an image of one pixel. source: index of the step whose result the layer reads.
    inputs, outputs: numbers of values for one image. channels: number of output channels. pixels: of the input, in one
    channel. area: number of positions of the kernel. groups: of a grouped convolution, else 1.
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
        """Number of multiplications if the layer is computed on plain values."""
        return self.outputs * self.inputs * self.area // (self.pixels * self.groups)


@dataclass(frozen=True)
class Units:
    """Costs of one unit of each kind of work in the protocol of Garimella et al.

    Fields that end in _bytes are bytes, `slots` is a number of values, `thread` a fraction, and all others are seconds.
    slots: values in a ciphertext. ciphertext_bytes, value_bytes: size of a ciphertext and of a plain value.
    message_bytes: a message's own bytes beside its values. key_bytes, base_ot_bytes, keygen: once for each refill.
    garbled_relu_bytes, ot_setup_bytes, ot_send_bytes, label_bytes, offline_encode, encode: for each ReLU. encrypt,
    decrypt: for each ciphertext.
    product: for a product of a ciphertext in a convolution. rotation: added to `product` for each doubling of the
    number of channels in a ciphertext. row: for a product of a ciphertext in a linear layer. thread: the fraction by
    which each further thread slows the others down. multiply: for a multiplication of plain values.
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
        """Count the ciphertexts of the client's input for a layer."""
        return math.ceil(layer.inputs / self.slots) * layer.area

    def down(self, layer: LayerUnits) -> int:
        """Count the ciphertexts of the server's reply for a layer."""
        return math.ceil(layer.channels * layer.pixels / self.slots)

    def products(self, layer: LayerUnits) -> float:
        """Count the ciphertext-plaintext products of a layer."""
        if layer.pixels == 1:
            return layer.multiplications / self.slots
        return self.up(layer) * layer.channels / layer.groups

    def doublings(self, layer: LayerUnits) -> float:
        """Compute log2 of the number of input channels for which a ciphertext has room; 0 for one channel or less."""
        return math.log2(max(1.0, self.slots / layer.pixels))

    def evaluation(self, layer: LayerUnits) -> float:
        """Compute the seconds of a layer's ciphertext products on one thread."""
        each = self.row if layer.pixels == 1 else self.product + self.rotation * self.doublings(layer)
        return self.products(layer) * each


# ---------------------------------------------------------------------------------------------------------------------

FORMAT, VERSION = "hummingbird-asplos", 1


class Garbler(NamedTuple):
    """The seconds and bytes of a net that depend on who garbles, the client or the server; seconds are on one thread.

    offline_encode: seconds of encoding in advance. garbled: bytes of the circuits. base_ot, ot_setup, ot_send: bytes of
    the oblivious transfers' messages. input: bytes of the client's share of the image and, where the server garbles, of
    each layer's input. encode, linear: seconds of encoding and of linear layers online. labels: bytes of the labels of
    the client's inputs, sent online where the server garbles. prediction: bytes of the result.
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
    """The seconds and bytes of a net in the services of Garimella et al.: measured by the authors, or composed from its
    layers.

    relus: number of ReLUs for one image. linear_values, server_values: number of values that the client and the server
    store for linear layers.
    keygen, encrypt, decrypt: seconds. key: bytes of the keys. up, down: bytes of ciphertexts to and from the server.
    he: seconds of the homomorphic evaluation; he[t - 1] on t threads. sg: further figures if the server garbles; cg: if
    the client garbles.
    """

    name: str
    relus: int
    linear_values: int
    server_values: int
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
    """A line, slope * x + intercept, that was fitted to measured seconds for x ReLUs."""

    slope: float
    intercept: float

    def at(self, x: int) -> float:
        """Return the line's value at `x` ReLUs, in seconds; 0 where it would be negative."""
        return max(0.0, self.slope * x + self.intercept)


@dataclass(frozen=True)
class PublishedProfile:
    """Published measurements of a client and a server.

    source: where they were published. lines: the seconds for a number of ReLUs, by work and side: "garble_client",
    "garble_server", "eval_client", "eval_server". bytes_per_relu: bytes that the "garbler" and the "evaluator" store
    for each ReLU. joules: energy of the client's processor for the paper's unit of ReLUs, by "garble_client" and
    "eval_client". nets: the measured nets by name. units: costs of one ciphertext, one ReLU and so on, from which those
    of other nets are computed. error: by name of a measured net, then by "refill" or "request": the largest relative
    error of seconds that are computed from the net's layers.
    """

    name: str
    source: str
    lines: Mapping[str, LinearFit]
    bytes_per_relu: Mapping[str, int]
    joules: Mapping[str, float]
    nets: Mapping[str, Net]
    units: Units
    error: Mapping[str, Mapping[str, float]]

    def net(self, name: str) -> Net:
        """Return the measured net of this name, such as tinyimagenet/resnet18.

        Raises ConfigError for an unknown name.
        """
        if name not in self.nets:
            raise ConfigError(f"no measured net {name!r}", where="net", hint=f"one of {', '.join(self.nets)}")
        return self.nets[name]


@cache
def asplos23() -> PublishedProfile:
    """Load the measurements of Garimella et al. (ASPLOS 2023), which are shipped with the package.

    The client is an Atom of 4 cores, the server has 32 cores.
    """
    text = resources.files("hummingbird.capacity").joinpath("profiles/asplos23.json").read_text(encoding="utf-8")
    return parse(records.read(text, records.mapping(records.anything(), 16), name="profile", where="asplos23.json"))


def parse(data: Mapping[str, Any]) -> PublishedProfile:
    """Make a profile from the parsed JSON of a file of published measurements, such as profiles/asplos23.json.

    Raises ConfigError for another format or version.
    """
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise ConfigError("no such profile", where="format", hint=f"this release reads {FORMAT} {VERSION}")
    return PublishedProfile(
        name=data["name"],
        source=data["source"],
        lines={name: LinearFit(*line) for name, line in data["lines"].items()},
        bytes_per_relu=data["bytes_per_relu"],
        joules=data["joules"],
        nets={name: _net(name, net) for name, net in data["nets"].items()},
        units=Units(**data["units"]),
        error=data["error"],
    )


def _net(name: str, data: Mapping[str, Any]) -> Net:
    typed = {"he": tuple(data["he"]), "sg": Garbler(**data["sg"]), "cg": Garbler(**data["cg"])}
    return Net(name=name, **{**data, **typed})
