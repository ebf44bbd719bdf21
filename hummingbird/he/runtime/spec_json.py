"""The JSON of a client's description. The text may come from anybody, so its reader checks everything.

Steps are written by `graph.step_json` and hold no tensors. Readers raise one of `MALFORMED` for values that
`client_spec.Public` cannot hold; `Public.check` checks that the parts fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.graph import OPS, Step
from hummingbird.graph.step_json import MALFORMED, check_name, plain, read
from hummingbird.graph.steps import refs
from hummingbird.he.runtime.rounds import MOST_DIMENSIONS, MOST_PRIMES, MOST_STEPS, Round
from hummingbird.he.scheme import packing as packings
from hummingbird.records import field

__all__ = ["MALFORMED", "MODES", "REMOTE", "ClientText", "load", "read_step", "step_fields"]

VERSION = 3
MODES = ("client-aided", "polynomial")
REMOTE = "server"  # the op of a step whose value the server computes
# The largest net in the benchmarks, MobileNetV2 at 224 x 224, has some 200 steps in 200 kB of text.
_MOST_TEXT = 4 << 20  # bytes
_HINT = "ask the server's owner for the release it runs"
# Operations with weights belong to the server; arithmetic on sizes is done when a net is converted.
_SERVERS = frozenset("conv conv_transpose linear affine scale_last constant batch_norm prelu custom size int".split())
_STEP = records.row(records.anything(), records.anything(), records.anything(), records.mapping(records.anything(), 64))


@dataclass(frozen=True, kw_only=True)
class ClientText:
    """The JSON fields of a net's description for clients, `client_spec.Public`.

    A step is a list of its name, operation, inputs and attributes.
    """

    version: int = records.constant(VERSION)
    mode: str = field(records.one_of(MODES))
    packing: str = field(records.one_of(packings.PACKINGS))
    degree: int = field(records.whole())
    primes: tuple[int, ...] = field(records.many(records.whole(), MOST_PRIMES))
    input_shape: tuple[int, ...] = field(records.many(records.whole(), MOST_DIMENSIONS))
    input_range: float | None = field(records.maybe(records.real(above=True)))
    steps: tuple[tuple[Any, ...], ...] = field(records.many(_STEP, MOST_STEPS))
    turns: tuple[Round, ...] = field(records.many(records.record(Round), MOST_STEPS))
    last: tuple[int, ...] = field(records.many(records.whole(0, MOST_STEPS), MOST_STEPS))


def load(text: str | bytes) -> ClientText:
    """Read a net's description for clients from its JSON text; return its fields, a `ClientText`.

    Raises InputError if the text is malformed, of another version, or has a list longer than a net needs.
    """
    how: Any = {"name": "description of a net", "where": "public", "hint": _HINT}
    fields = records.parse(text, most=_MOST_TEXT, **how)
    version = fields.get("version") if isinstance(fields, dict) else VERSION
    if version != VERSION:
        what = f"a plan of version {str(version)[:32]}, this is {VERSION}"
        raise InputError(what, where="public", hint="use the same release of hummingbird on both sides")
    return records.of(fields, ClientText, **how)


def step_fields(step: Step) -> list[Any]:
    """Return a step as JSON fields: a list of its name, operation, inputs and attributes.

    Raises TypeError if the step holds a tensor.
    """
    return [step.name, step.op, plain(step.inputs), plain(step.attrs)]


def read_step(number: int, name: Any, op: Any, inputs: Any, attrs: Any) -> Step:
    """Return the step that JSON fields describe: a step of the client, or a step of the server, of which only the name
    is known (its operation is `REMOTE`).

    number: of the step. name, op, inputs, attrs: the fields. Raises ValueError or another error of the tuple
    `MALFORMED` for fields that no client's step has, such as an operation with weights or a reference to a later step.
    """
    if op not in OPS and op != REMOTE or op in _SERVERS:
        raise ValueError(f"step {number} is {str(op)[:32]!r}")
    name = check_name(name, number)
    step = Step(name, op, read(inputs), {str(key): read(item) for key, item in attrs.items()})
    if not isinstance(step.inputs, tuple):
        raise ValueError(f"the inputs of step {number}")
    if any(not 0 <= ref.index < number for ref in refs(step.inputs)):
        raise ValueError(f"step {number} reads a later one")
    return step
