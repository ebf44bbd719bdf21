"""The description of a service that its parties send to clients: all N parties must send the same.

Every request carries the description's `digest`, so that a party refuses a share for another net, another shape,
another scale or an earlier session of the parties.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from hummingbird import records
from hummingbird.errors import AgreementError, PeerError
from hummingbird.kernels.lookups import MOST_ROWS, key_bytes
from hummingbird.records import field
from hummingbird.structure import Structure, read, rebuild, tensors
from hummingbird.version import VERSION

DIGEST_BYTES = 16
MOST_PARTIES = 64
MOST_GROUP = (1 << 31) - 1
MOST_TITLE = 128  # bytes of a model's name and version
MOST_PLACES = 1 << 15  # of a conversation: the number of a step has two bytes in a request
_MOST_VALUES = 1 << 26  # of one image, and of its result
_MOST_TEXT = 1 << 16  # bytes
_DEEPEST = 64  # nested lists: two for each container in the results
_MOST_TENSORS = 1 << 10  # inputs or results
_LATEST = 1e11  # seconds since 1970
LOAD = "hummingbird-load"  # trailing metadata of an answer: the images that wait or run at the party
CHANGES = "hummingbird-changes"  # likewise: how often its models have changed in this session
_VERSION = re.compile("[1-9][0-9]{0,9}")
_HINT = "is this a party of `hummingbird serve`?"
_NAME = records.through(records.text(128), lambda text: bytes.fromhex(text).hex(), str)


@dataclass(frozen=True)
class TensorSpec:
    """An input or a result of a served net: its name, and its shape for one image.

    rows: for an input of row numbers, how many rows their table has; 0 for an input whose own numbers are shared.
    """

    name: str = field(records.text(1 << 8))
    shape: tuple[int, ...] = field(records.many(records.whole(1, _MOST_VALUES), 8))
    rows: int = field(records.whole(0, MOST_ROWS), default=0)

    @property
    def values(self) -> int:
        """How many values this input or result has for one image."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ServiceDescription:
    """The facts on a service that a client must know to send requests and read answers.

    release: of this package. net: a fingerprint of the facts on which the parties agree. group: the number of this
    group of parties, where several serve the net. session: a name of the parties' session. inputs, outputs: the net's
    inputs and results, in order. form: how the net returns its results, as a structure (hummingbird/structure.py).
    limit: the largest |x| for which the windows were made; None: not known. scale: bits of fraction of all inputs.
    bits: how many low bits of the inputs the net reads. result_scale: bits of fraction of the results. result_bits: how
    many low bits of the results' shares are sent. parties: number of parties. most: most images in a request. rowwise:
    whether an image's result is known not to depend on the request's other images. places: of a conversation, in a
    service that generates text; 0: the service computes images. model: NAME@VERSION of the net, where a service has
    several; "": it serves one net, without a name.
    A service that generates text has word vectors in place of images. A request has the words of one step of a
    conversation (message.py), `most` is the number of places of the prompt, and the result has the logits behind it.
    A request packs several inputs into one tensor (images, values), one row for each image; an answer packs several
    results in the same way. The first input may consist of row numbers: a request then holds lookup keys for two
    parties, and the second input is the weights of these rows (hummingbird/lookup.py).
    """

    release: str = field(records.text(32))
    net: str = field(_NAME)
    group: int = field(records.whole(0, MOST_GROUP))
    session: str = field(_NAME)
    inputs: tuple[TensorSpec, ...] = field(records.many(records.record(TensorSpec), _MOST_TENSORS, 1))
    outputs: tuple[TensorSpec, ...] = field(records.many(records.record(TensorSpec), _MOST_TENSORS, 1))
    form: Structure = field(records.through(records.anything(), read, lambda form: form))
    limit: float | None = field(records.maybe(records.real(above=True)))
    scale: int = field(records.whole(0, 62))
    bits: int = field(records.whole(1, 64))
    result_scale: int = field(records.whole(0, 62))
    result_bits: int = field(records.whole(1, 64))
    parties: int = field(records.whole(1, MOST_PARTIES))
    most: int = field(records.whole(1, 1 << 20))
    rowwise: bool = field(records.flag())
    places: int = field(records.whole(0, MOST_PLACES), default=0)
    model: str = field(records.text(MOST_TITLE, printable=True), default="")

    @cached_property
    def digest(self) -> bytes:
        """A hash of all fields of this description, 16 bytes; requests contain it."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=DIGEST_BYTES, person=b"hb-serving").digest()

    @cached_property
    def word(self) -> int:
        """The first 8 bytes of the digest as a number, by which parties tell each other which net a request is for."""
        return word_of(self.digest)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image's inputs in a request: that of the input, or (values,) for several inputs.

        Row numbers do not count: they are sent as lookup keys.
        """
        return _packed([part for part in self.inputs if not part.rows])

    @cached_property
    def result(self) -> tuple[int, ...]:
        """The shape of one image's results in an answer: that of the result, or (values,) for several results."""
        return _packed(self.outputs)

    @cached_property
    def values(self) -> int:
        """How many values of one image a client shares among the parties; row numbers, sent as keys, do not count."""
        return math.prod(self.shape)

    @cached_property
    def lookups(self) -> int:
        """How many rows of the service's table are looked up for one image; 0 for a net without lookups."""
        return self.inputs[0].values if self.inputs[0].rows else 0

    @cached_property
    def key_bytes(self) -> int:
        """How many bytes the lookup keys of one image have, for one party; 0 for a net without lookups."""
        return self.lookups * key_bytes(self.inputs[0].rows) if self.lookups else 0

    @cached_property
    def results(self) -> int:
        """How many values one image has as results, all results of the net together."""
        return math.prod(self.result)

    def parted(self, out: Tensor) -> Any:
        """Return the results of a request as the net returns them, such as in a dict, from one tensor that packs them.

        out: (images, ...), the sum of the parties' answers.
        """
        parts = [out]
        if len(self.outputs) > 1:
            parts = out.reshape(len(out), -1).split([part.values for part in self.outputs], 1)
        shaped = [x.reshape(len(out), *part.shape) for x, part in zip(parts, self.outputs, strict=True)]
        return rebuild(self.form, iter(shaped))

    def answer(self, rank: int, clock: float, load: int, changes: int = 0) -> bytes:
        """Return the text, as bytes, that party `rank` sends to a client that asks for the description.

        clock: the party's time, seconds since 1970. load: how many images wait or run at the party. changes: how often
        its models have changed in this session.
        """
        return json.dumps({**records.plain(_Party(rank, clock, load, changes)), **records.plain(self)}).encode()


@dataclass(frozen=True)
class _Party:
    """The part of a party's answer to a client in which parties differ: its rank, its clock and its load.

    clock: the party's time, seconds since 1970. load: how many images wait or run at the party. changes: how often its
    models have changed in this session.
    """

    rank: int = field(records.whole(0, MOST_PARTIES - 1))
    clock: float = field(records.real(0, _LATEST * (1 - 2.0**-40)))
    load: int = field(records.whole(0, 1 << 40))
    changes: int = field(records.whole(0, 1 << 40), default=0)


@dataclass(frozen=True)
class Described:
    """The answer of one party to a client that asks for the description: its rank, clock and load, and the service.

    clock: the party's time, seconds since 1970. load: how many images wait or run at the party. changes: how often its
    models have changed in this session.
    """

    rank: int
    clock: float
    load: int
    service: ServiceDescription
    changes: int = 0

    @classmethod
    def read(cls, answer: bytes, where: str) -> Described:
        """Read the answer of a party that a client has asked for the description.

        answer: the text that `ServiceDescription.answer` has made. where: the party, for errors. Raises PeerError for
        anything else, AgreementError for another release.
        """
        how: Any = {"name": "description", "where": where, "hint": _HINT, "error": PeerError}
        text = records.parse(answer, most=_MOST_TEXT, deepest=_DEEPEST, **how)
        values = records.of(text, records.mapping(records.anything(), 64), **how)
        release = str(values.get("release", VERSION))[:32]
        if release != VERSION:
            what = f"the party runs hummingbird {release}, this client {VERSION}"
            raise AgreementError(what, where=where, hint="install the same release everywhere")
        own = records.of(
            {name: values.pop(name) for name in ("rank", "clock", "load", "changes") if name in values}, _Party, **how
        )
        service = records.of(values, ServiceDescription, **how)
        _check(service, where)
        return cls(own.rank, own.clock, own.load, service, own.changes)


def word_of(digest: bytes) -> int:
    """Return the `ServiceDescription.word` of the description with this digest."""
    return int.from_bytes(digest[:8], "little", signed=True)


def version_of(model: str) -> tuple[str, int]:
    """Return a model's name and its version, from NAME@VERSION; version 0 for a name alone."""
    name, _, version = model.rpartition("@")
    return (name, int(version)) if name and _VERSION.fullmatch(version) else (model, 0)


def _check(service: ServiceDescription, where: str) -> None:
    """Raise PeerError if fields of a description that a party has sent contradict each other.

    where: this party, for the error.
    """
    inputs, outputs = service.inputs, service.outputs
    first, looked_up = inputs[0], any(part.rows for part in (*inputs[1:], *outputs))
    if first.rows and not looked_up:
        looked_up = len(inputs) < 2 or first.shape != inputs[1].shape or service.parties != 2
    wrong = [
        what
        for what, found in (
            ("its results do not fit their form", tensors(service.form) != len(outputs)),
            ("its lookups do not fit its inputs", looked_up),
            ("it has too many values", max(sum(x.values for x in parts) for parts in (inputs, outputs)) > _MOST_VALUES),
            ("its prompt is longer than its conversations", 0 < service.places < service.most),
            ("a name stands twice", any(len({x.name for x in parts}) < len(parts) for parts in (inputs, outputs))),
        )
        if found
    ]
    if wrong:
        raise PeerError(f"malformed description: {wrong[0]}", where=where, hint=_HINT)


def _packed(parts: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the shape in which one image's tensors are packed into one: that of a single tensor, or (values,).

    parts: the tensors.
    """
    return parts[0].shape if len(parts) == 1 else (sum(part.values for part in parts),)
