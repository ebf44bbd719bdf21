"""net.json: a net as data. Its steps, the names, types and shapes of its tensors, and how it is converted.

Operations are the closed list of `graph.schema`, so reading a file runs nothing and imports nothing. A text from
anybody is read or refused (InputError), in memory in proportion to its size.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from hummingbird.bits import BitConfig
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.graph import Step, step_json
from hummingbird.graph.schema import check
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.version import VERSION as RELEASE

FORMAT = "hummingbird-net"
VERSION = 1
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_TEXT = 16 << 20  # bytes; a net of 200 steps has 100 kB
_MOST_STEPS = 1 << 16
_MOST_PARTIES = 1 << 16
_MOST_TENSORS = 1 << 31  # elements in all: a party without the weights makes zeros of these shapes


@dataclass(frozen=True)
class NetDescription:
    """The content of net.json.

    steps: with tensors on the meta device. tensors: those, by the names that they have in files of weights.
    weights: "public", or the rank of the party that owns them. seal: `weights.seal` of the tensors.
    """

    steps: tuple[Step, ...]
    tensors: dict[str, Tensor]
    weights: str | int
    protocol: str
    bits: BitConfig
    seal: str

    @property
    def owner(self) -> int | None:
        """The rank of the party that owns the weights; None: they are public."""
        return None if isinstance(self.weights, str) else self.weights

    @property
    def arguments(self) -> tuple[BitConfig, str | int, str]:
        """The arguments of `convert_model`, after the net."""
        return self.bits, self.weights, self.protocol

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all of this, which every file of weights names."""
        return _digest(self._net())

    def to_json(self) -> str:
        """The file's text. TypeError for a step that holds what JSON has no form for."""
        net = self._net()
        own = {"format": FORMAT, "version": VERSION, "hummingbird": RELEASE, "digest": _digest(net)}
        return json.dumps({**own, "net": net}) + "\n"

    def _net(self) -> dict[str, Any]:
        names = {id(tensor): name for name, tensor in self.tensors.items()}

        def fields(step: Step) -> list[Any]:
            inputs, attrs = (step_json.plain(value, lambda x: names[id(x)]) for value in (step.inputs, step.attrs))
            return [step.name, step.op, inputs, attrs]

        return {
            "steps": [fields(step) for step in self.steps],
            "tensors": {
                name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
                for name, tensor in self.tensors.items()
            },
            "weights": self.weights,
            "protocol": self.protocol,
            "bits": json.loads(self.bits.to_json()),
            "seal": self.seal,
        }

    @classmethod
    def from_json(cls, text: bytes, where: str) -> NetDescription:
        """Parse `to_json`'s text; InputError, naming the file `where`, for anything else."""
        try:
            step_json.check_text(text, _MOST_TEXT)
            data = json.loads(text, parse_constant=_no_constant)
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise InputError(f"not a {FORMAT} file", where=where, hint="hummingbird.save writes one")
            if data["version"] != VERSION:
                release = str(data.get("hummingbird"))[:32]
                what = f"saved in version {str(data['version'])[:32]} of the format, by release {release}"
                hint = f"save the net again with release {RELEASE}, which reads version {VERSION}"
                raise InputError(what, where=where, hint=hint)
            net = data["net"]
            if data["digest"] != _digest(net) or set(data) != {"format", "version", "hummingbird", "digest", "net"}:
                what = "changed since it was saved: its digest is another one"
                raise InputError(what, where=where, hint="copy it again from where it was saved")
            return cls._of(net, where)
        except HummingbirdError as error:
            place = where if error.where in ("", where) else f"{where}: {error.where}"
            raise InputError(error.what, where=place, hint=error.hint) from None
        except step_json.MALFORMED as error:
            what = f"no net that was saved: {type(error).__name__} {str(error)[:200]}"
            raise InputError(what, where=where, hint="was it copied completely?") from None

    @classmethod
    def _of(cls, net: dict[str, Any], where: str) -> NetDescription:
        steps, tensors, weights, protocol, bits, seal = (
            net.pop(key) for key in ("steps", "tensors", "weights", "protocol", "bits", "seal")
        )
        if net or len(steps) > _MOST_STEPS:
            raise ValueError(f"fields {sorted(net)}, {len(steps)} steps")
        if weights != "public" and step_json.whole(weights) >= _MOST_PARTIES:
            raise ValueError(f"weights of party {str(weights)[:32]}")
        if protocol not in PROTOCOLS or not isinstance(seal, str) or len(bytes.fromhex(seal)) != 32:
            raise ValueError("its protocol, or its seal")
        shaped = {step_json.check_name(name, -1): _shaped(**entry) for name, entry in tensors.items()}
        if sum(tensor.numel() for tensor in shaped.values()) > _MOST_TENSORS:
            raise ValueError("too many weights")
        read = tuple(_step(number, shaped, *entry) for number, entry in enumerate(steps))
        used = {id(value) for step in read for value in step.attrs.values() if isinstance(value, Tensor)}
        if len(used) != len(shaped):
            raise ValueError("tensors that no step has")
        check(read)
        config = BitConfig.from_json(json.dumps(bits), where="bits")
        return cls(read, shaped, weights, protocol, config, seal)


def _shaped(dtype: str, shape: list[Any]) -> Tensor:
    """A tensor on the meta device."""
    sizes = [step_json.whole(size) for size in shape]
    if len(sizes) > 16 or math.prod(sizes) > _MOST_TENSORS or max(sizes, default=0) > _MOST_TENSORS:
        raise ValueError(f"a tensor of shape {str(sizes)[:80]}")
    return torch.empty(sizes, dtype=DTYPES[dtype], device="meta")


def _step(number: int, tensors: dict[str, Tensor], name: Any, op: Any, inputs: Any, attrs: Any) -> Step:
    name = step_json.check_name(name, number)
    if not isinstance(op, str):
        raise ValueError(f"the operation of step {number}")
    read = {key: step_json.read(value, tensors.__getitem__) for key, value in attrs.items()}
    return Step(name, op, step_json.read(inputs), read)


def _digest(net: Any) -> str:
    return hashlib.sha256(json.dumps(net, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")
