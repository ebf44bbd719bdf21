"""net.json: a net as data, with its steps, the names, types and shapes of its tensors, and how it is converted.

Operations are the closed list of `graph.schema`, so reading a file runs no code and imports nothing. The text may come
from anybody: it is read or refused (InputError), with memory in proportion to its size.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hummingbird import records
from hummingbird.bits import BitConfig
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.graph import Step, step_json
from hummingbird.graph.schema import check
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.records import field
from hummingbird.version import VERSION as RELEASE

FORMAT = "hummingbird-net"
VERSION = 1
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_TEXT = 16 << 20  # bytes; a net of 200 steps has 100 kB
_MOST_STEPS = 1 << 16
_MOST_PARTIES = 1 << 16
_MOST_TENSORS = 1 << 31  # elements of all tensors: a party without the weights makes zeros of these shapes


_STEP = records.row(
    *(records.text(step_json.MOST_NAME, printable=True), records.text(64), records.anything()),
    records.mapping(records.anything(), 256),
)


def _whose(value: Any) -> str | int:
    found: str | int = "public" if value == "public" else records.whole(0, _MOST_PARTIES - 1).read(value)
    return found


_WHOSE = records.Kind("public, or a party", _whose)


@dataclass(frozen=True)
class WeightSpec:
    """Type and shape of one tensor of a saved net, as net.json has them. dtype: such as "float32"."""

    dtype: str = field(records.one_of([*DTYPES]))
    shape: tuple[int, ...] = field(records.many(records.whole(0, _MOST_TENSORS), 16))


@dataclass(frozen=True, kw_only=True)
class NetText:
    """The field `net` of net.json: the net without its weights' values, and how it is converted.

    steps: for each step its name, operation, inputs and attributes, which `step_json` reads. tensors: type and shape of
    each tensor, by name. weights: "public", or the rank of the party that owns them. protocol: as for `convert_model`.
    bits: the windows. seal: a hash of the weights.
    """

    steps: tuple[tuple[Any, ...], ...] = field(records.many(_STEP, _MOST_STEPS))
    tensors: dict[str, WeightSpec] = field(
        records.mapping(records.record(WeightSpec), _MOST_STEPS, step_json.MOST_NAME)
    )
    weights: str | int = field(_WHOSE)
    protocol: str = field(records.one_of([*PROTOCOLS]))
    bits: dict[str, Any] = field(records.anything("a bit configuration"))
    seal: str = field(records.digits(32))


@dataclass(frozen=True, kw_only=True)
class NetFile:
    """All fields of the file net.json, as a record.

    hummingbird: the release that wrote the file. digest: SHA-256 of `net`. net: the net and how it is converted.
    """

    format: str = records.constant(FORMAT)
    version: int = records.constant(VERSION)
    hummingbird: str = field(records.text(256))
    digest: str = field(records.text(256))
    net: NetText = field(records.record(NetText))


@dataclass(frozen=True)
class NetDescription:
    """The content of net.json: a net without the values of its weights, and how it is converted.

    steps: the net's steps; their tensors have types and shapes alone (meta device). tensors: the tensors of the steps,
    by their names in files of weights. weights: "public", or the rank of the party that owns them. protocol, bits: as
    for `convert_model`. seal: a hash of the weights, from `weights.seal`.
    """

    steps: tuple[Step, ...]
    tensors: dict[str, Tensor]
    weights: str | int
    protocol: str
    bits: BitConfig
    seal: str

    @property
    def owner(self) -> int | None:
        """The rank of the party that owns the weights; None if they are public."""
        return None if isinstance(self.weights, str) else self.weights

    @property
    def arguments(self) -> tuple[BitConfig, str | int, str]:
        """The arguments of `convert_model` after the net, as a tuple: windows, owner of the weights, protocol."""
        return self.bits, self.weights, self.protocol

    @property
    def digest(self) -> str:
        """The SHA-256 of this description, in hexadecimal; a file of weights holds that of its net.json."""
        return _digest(self._net())

    def to_json(self) -> str:
        """Return this description as the text of net.json. Raises TypeError for a value that JSON cannot hold."""
        net = self._net()
        own = {"format": FORMAT, "version": VERSION, "hummingbird": RELEASE, "digest": _digest(net)}
        return json.dumps({**own, "net": net}, allow_nan=False) + "\n"

    def _net(self) -> dict[str, Any]:
        names = {id(tensor): name for name, tensor in self.tensors.items()}

        def fields(step: Step) -> tuple[Any, ...]:
            inputs, attrs = (step_json.plain(value, lambda x: names[id(x)]) for value in (step.inputs, step.attrs))
            return step.name, step.op, inputs, attrs

        text = NetText(
            steps=tuple(fields(step) for step in self.steps),
            tensors={
                name: WeightSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
                for name, tensor in self.tensors.items()
            },
            weights=self.weights,
            protocol=self.protocol,
            bits=self.bits.plain(),
            seal=self.seal,
        )
        return records.plain(text)

    @classmethod
    def from_json(cls, text: bytes, where: str) -> NetDescription:
        """Make a description from the text of a net.json.

        where: the file's name for errors. Raises InputError for a text that `to_json` does not write, or that was
        changed.
        """
        how: dict[str, Any] = {"name": "saved net", "where": where, "hint": "was it copied completely?"}
        data = records.parse(text, most=_MOST_TEXT, **how)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"not a {FORMAT} file", where=where, hint="hummingbird.save writes one")
        if data.get("version") != VERSION:
            release = str(data.get("hummingbird"))[:32]
            what = f"saved in version {str(data.get('version'))[:32]} of the format, by release {release}"
            hint = f"save the net again with release {RELEASE}, which reads version {VERSION}"
            raise InputError(what, where=where, hint=hint)
        file = records.of(data, NetFile, **how)
        if file.digest != _digest(data["net"]):
            what = "changed since it was saved: its digest is another one"
            raise InputError(what, where=where, hint="copy it again from where it was saved")
        try:
            return cls._of(file.net)
        except HummingbirdError as error:
            raise InputError(
                error.what, where=f"{where}: {error.where}" if error.where else where, hint=error.hint
            ) from None
        except step_json.MALFORMED as error:
            what = f"no net that was saved: {type(error).__name__} {str(error)[:200]}"
            raise InputError(what, where=where, hint="was it copied completely?") from None

    @classmethod
    def _of(cls, net: NetText) -> NetDescription:
        shaped = {step_json.check_name(name, -1): _shaped(spec) for name, spec in net.tensors.items()}
        if sum(tensor.numel() for tensor in shaped.values()) > _MOST_TENSORS:
            raise ValueError("too many weights")
        read = tuple(_step(shaped, *entry) for entry in net.steps)
        used = {id(value) for step in read for value in step.attrs.values() if isinstance(value, Tensor)}
        if len(used) != len(shaped):
            raise ValueError("tensors that no step has")
        check(read)
        config = BitConfig.from_plain(net.bits, where="bits")
        return cls(read, shaped, net.weights, net.protocol, config, net.seal)


def _shaped(spec: WeightSpec) -> Tensor:
    """Return a tensor of this type and shape on the meta device, where it has no values.

    Raises ValueError for too many elements.
    """
    if math.prod(spec.shape) > _MOST_TENSORS:
        raise ValueError(f"a tensor of shape {str(spec.shape)[:80]}")
    return torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")


def _step(tensors: dict[str, Tensor], name: str, op: str, inputs: Any, attrs: dict[str, Any]) -> Step:
    read = {key: step_json.read(value, tensors.__getitem__) for key, value in attrs.items()}
    return Step(name, op, step_json.read(inputs), read)


def _digest(net: Any) -> str:
    return hashlib.sha256(json.dumps(net, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
