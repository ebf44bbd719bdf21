"""Nets as the services of Garimella et al. (ASPLOS 2023) see them: seconds and bytes of each of their steps.

Six were measured by the authors and ship as `profiles/asplos23.json`; compose.py makes one of any other net.

Source: kvgarimella/characterizing-private-inference (MIT; measurements alone).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from hummingbird import records
from hummingbird.capacity.units import Units
from hummingbird.errors import ConfigError

FORMAT, VERSION = "hummingbird-asplos", 1


class Garbler(NamedTuple):
    """The numbers of a net that depend on who garbles; one thread's seconds, and bytes.

    garbled: circuits. base_ot, ot_setup, ot_send: messages of the oblivious transfers. input: the client's share of
    the image and, where the server garbles, of each layer's input. encode, linear: seconds online. labels: of the
    client's inputs, sent online where the server garbles. offline_encode: seconds in advance.
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
    """A net's constants. relus, linear_values: ReLUs of an image, and values that the client keeps for linear layers.

    he: seconds of the homomorphic evaluation by threads, he[0] with one. up, down: bytes of ciphertexts.
    sg, cg: of server garbling and of client garbling.
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
    """Seconds of x ReLUs: slope x + intercept."""

    slope: float
    intercept: float

    def at(self, x: int) -> float:
        """Seconds; 0 where the intercept, a fit's, would make them negative."""
        return max(0.0, self.slope * x + self.intercept)


@dataclass(frozen=True)
class PublishedProfile:
    """Measurements of a client and a server. lines: of garbling and evaluating at either; units: to compose other nets.

    bytes_per_relu: kept by who garbles and by who evaluates. error: by net, of its "refill" and its "request", the
    largest relative error of the seconds when it is composed of its layers.
    """

    name: str
    source: str
    lines: Mapping[str, LinearFit]
    bytes_per_relu: Mapping[str, int]
    nets: Mapping[str, Net]
    units: Units
    error: Mapping[str, Mapping[str, float]]

    def net(self, name: str) -> Net:
        """The measured net of this name, such as tinyimagenet/resnet18; ConfigError for another."""
        if name not in self.nets:
            raise ConfigError(f"no measured net {name!r}", where="net", hint=f"one of {', '.join(self.nets)}")
        return self.nets[name]


@cache
def asplos23() -> PublishedProfile:
    """The authors' measurements, an Atom of 4 cores as client and a server of 32; shipped with the package."""
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
