"""A service as its parties describe it to clients: all N parties must say the same.

`digest` names it in every request, so that a share for another net, another shape, another scale or an earlier run of
the parties is refused where it arrives.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from torch import Tensor

from hummingbird.errors import AgreementError, PeerError
from hummingbird.kernels.lookups import dpf
from hummingbird.kernels.lookups.dpf import MOST_ROWS
from hummingbird.structure import Structure, read, rebuild, tensors
from hummingbird.version import VERSION

DIGEST_BYTES = 16
MOST_PARTIES = 64
_MOST_VALUES = 1 << 26  # of one image, and of its result
_MOST_TEXT = 1 << 16
_MOST_TENSORS, _MOST_NAME = 1 << 10, 1 << 8  # inputs or results; characters
_LATEST = 1e11  # seconds since 1970


@dataclass(frozen=True)
class TensorSpec:
    """One of the net's inputs or results: its name, and its shape for one image.

    rows: of the table that an input's numbers are looked up in; 0: its numbers are shared themselves.
    """

    name: str
    shape: tuple[int, ...]
    rows: int = 0

    @property
    def values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ServiceDescription:
    """The facts that a client must know of a service, and no more.

    release: of hummingbird. net: fingerprint of the facts on which the parties agree. session: this run of the parties.
    inputs, outputs: what it takes and gives, in order. form: the structure (hummingbird/structure.py) that the outputs
    stand in. limit: the largest |x| the windows were made for; None: not known. scale, bits: of all inputs, their bits
    of fraction, and how many low bits the net reads. result_scale, result_bits: likewise. most: images in a request.
    rowwise: whether the images of a request are known to be computed apart.

    Several inputs are one tensor (images, values) in a request, each image's values in a row, and so are several
    outputs in an answer. The first input may be one of row numbers, of which a request has keys for two parties; the
    second is then the weights of these rows (hummingbird/lookup.py).
    """

    release: str
    net: str
    session: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    form: Structure
    limit: float | None
    scale: int
    bits: int
    result_scale: int
    result_bits: int
    parties: int
    most: int
    rowwise: bool

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that name all of this."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=DIGEST_BYTES, person=b"hb-serving").digest()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is shared of one image in a request."""
        return _packed([part for part in self.inputs if not part.rows])

    @cached_property
    def result(self) -> tuple[int, ...]:
        """The shape of one image's result in an answer."""
        return _packed(self.outputs)

    @cached_property
    def values(self) -> int:
        """Numbers that are shared of one image."""
        return math.prod(self.shape)

    @cached_property
    def lookups(self) -> int:
        """Rows that are looked up for one image."""
        return self.inputs[0].values if self.inputs[0].rows else 0

    @cached_property
    def key_bytes(self) -> int:
        """Bytes of the keys of one image for one party."""
        return self.lookups * dpf.key_bytes(self.inputs[0].rows) if self.lookups else 0

    @cached_property
    def results(self) -> int:
        """Numbers in one image's result."""
        return math.prod(self.result)

    def parted(self, out: Tensor) -> Any:
        """The results (images, ...) of an answer, in the form in which the net gives them."""
        parts = [out]
        if len(self.outputs) > 1:
            parts = out.reshape(len(out), -1).split([part.values for part in self.outputs], 1)
        shaped = [x.reshape(len(out), *part.shape) for x, part in zip(parts, self.outputs, strict=True)]
        return rebuild(self.form, iter(shaped))

    def answer(self, rank: int, clock: float) -> bytes:
        """The answer of party `rank` to Describe; clock: its time, seconds since 1970."""
        return json.dumps({"rank": rank, "clock": clock, **asdict(self)}).encode()


@dataclass(frozen=True)
class Described:
    """One party's answer: its rank, its clock, and the service."""

    rank: int
    clock: float
    service: ServiceDescription

    @classmethod
    def read(cls, answer: bytes, where: str) -> Described:
        """Parse `ServiceDescription.answer`; PeerError for anything else, AgreementError for another release."""
        try:
            if len(answer) > _MOST_TEXT:
                raise ValueError(f"{len(answer)} bytes")
            values = json.loads(answer)
            rank, clock = _whole(values.pop("rank"), 0, MOST_PARTIES - 1), float(values.pop("clock"))
            if not 0 <= clock < _LATEST:
                raise ValueError("clock")
            release = str(values["release"])[:32]
            if release != VERSION:
                what = f"the party runs hummingbird {release}, this client {VERSION}"
                raise AgreementError(what, where=where, hint="install the same release everywhere")
            return cls(rank, clock, _checked(values))
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError) as error:
            what = f"a malformed description: {type(error).__name__} {str(error)[:100]}"
            raise PeerError(what, where=where, hint="is this a party of `hummingbird serve`?") from None


def _checked(values: dict[str, Any]) -> ServiceDescription:
    names = {field.name for field in fields(ServiceDescription)}
    if set(values) != names:
        raise ValueError(f"fields {sorted(set(values) ^ names)[:4]}")
    inputs, outputs = _parts(values["inputs"]), _parts(values["outputs"])
    form = read(values["form"])
    if tensors(form) != len(outputs):
        raise ValueError("form")
    if any(part.rows for part in (*inputs[1:], *outputs)) or (
        inputs[0].rows and (len(inputs) < 2 or inputs[0].shape != inputs[1].shape or values["parties"] != 2)
    ):
        raise ValueError("lookups")
    limit = None if values["limit"] is None else float(values["limit"])
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError("limit")
    if not isinstance(values["rowwise"], bool):
        raise ValueError("rowwise")
    return ServiceDescription(
        release=values["release"],
        net=bytes.fromhex(values["net"]).hex(),
        session=bytes.fromhex(values["session"]).hex(),
        inputs=inputs,
        outputs=outputs,
        form=form,
        limit=limit,
        scale=_whole(values["scale"], 0, 62),
        bits=_whole(values["bits"], 1, 64),
        result_scale=_whole(values["result_scale"], 0, 62),
        result_bits=_whole(values["result_bits"], 1, 64),
        parties=_whole(values["parties"], 1, MOST_PARTIES),
        most=_whole(values["most"], 1, 1 << 20),
        rowwise=values["rowwise"],
    )


def _parts(values: Any) -> tuple[TensorSpec, ...]:
    if not 1 <= len(values) <= _MOST_TENSORS:
        raise ValueError("number of tensors")
    parts = []
    for value in values:
        name, shape = value["name"], tuple(_whole(size, 1, _MOST_VALUES) for size in value["shape"])
        if (
            set(value) != {"name", "shape", "rows"}
            or not isinstance(name, str)
            or len(name) > _MOST_NAME
            or len(shape) > 8
        ):
            raise ValueError("tensors")
        parts.append(TensorSpec(name, shape, _whole(value["rows"], 0, MOST_ROWS)))
    if sum(part.values for part in parts) > _MOST_VALUES or len({part.name for part in parts}) < len(parts):
        raise ValueError("shapes")
    return tuple(parts)


def _packed(parts: Sequence[TensorSpec]) -> tuple[int, ...]:
    """The shape of one image of these together."""
    return parts[0].shape if len(parts) == 1 else (sum(part.values for part in parts),)


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"the number {str(value)[:20]}")
    return value
