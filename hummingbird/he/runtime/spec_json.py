"""The JSON of a client's description: nothing in a text is believed, as it may come from anybody.

Steps are written as `graph.step_json` has it, and none holds a tensor. Readers raise one of `MALFORMED` for what
`client_spec.Public` cannot hold; whether the parts fit together is for `Public.check`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hummingbird.errors import InputError
from hummingbird.graph import OPS, Step
from hummingbird.graph.step_json import MALFORMED, check_name, check_text, plain, read, whole
from hummingbird.graph.steps import refs
from hummingbird.he.runtime.rounds import MOST_SCALE, EncryptedInput, Return, Round

__all__ = ["MALFORMED", "load", "read_step", "read_turn", "step_fields", "turn_fields", "whole", "wholes", "word"]

VERSION = 3
REMOTE = "server"  # the op of a step whose value the server computes
# The largest net in the benchmarks, MobileNetV2 at 224 x 224, has some 200 steps in 200 kB of text.
_MOST_TEXT = 4 << 20  # bytes
_MOST_STEPS = 1 << 12
_MOST_DIMS = 16
_MOST_PRIMES = 65
_MOST_DIGITS = 4096  # of a unit's numerator or denominator
# Weights are the server's, and arithmetic on sizes is done when a net is converted.
_SERVERS = frozenset("conv conv_transpose linear affine scale_last constant batch_norm prelu custom size int".split())


def load(text: str | bytes) -> dict[str, Any]:
    """The fields of a description, no list longer than a net needs; InputError for one of another version."""
    check_text(text, _MOST_TEXT)
    fields: dict[str, Any] = json.loads(text)
    if fields["version"] != VERSION:
        what = f"a plan of version {str(fields['version'])[:32]}, this is {VERSION}"
        raise InputError(what, where="public", hint="use the same release of hummingbird on both sides")
    _check_lists(fields)
    return fields


def _check_lists(fields: Any) -> None:
    """ValueError for lists that are too long, before anything is made of them."""
    lengths = [len(fields["steps"]), len(fields["turns"]), len(fields["last"])]
    for turn in fields["turns"]:
        lengths += [len(turn["steps"]), len(turn["sends"]), len(turn["returns"])]
        lengths += [len(back["gains"]) for back in turn["returns"]]
    if max(lengths) > _MOST_STEPS:
        raise ValueError(f"a list of {max(lengths)} steps or values, {_MOST_STEPS} are the most")
    shapes = [fields["input_shape"], *(x["shape"] for t in fields["turns"] for x in (*t["sends"], *t["returns"]))]
    if max(len(shape) for shape in shapes) > _MOST_DIMS or len(fields["primes"]) > _MOST_PRIMES:
        raise ValueError(f"more than {_MOST_DIMS} dimensions or {_MOST_PRIMES} primes")


def step_fields(step: Step) -> list[Any]:
    """A step as JSON has it; TypeError for one that holds a tensor."""
    return [step.name, step.op, plain(step.inputs), plain(step.attrs)]


def read_step(number: int, name: Any, op: Any, inputs: Any, attrs: Any) -> Step:
    """A step of the client, or one of the server without what it is; it reads earlier steps only."""
    if op not in OPS and op != REMOTE or op in _SERVERS:
        raise ValueError(f"step {number} is {str(op)[:32]!r}")
    name = check_name(name, number)
    step = Step(name, op, read(inputs), {str(key): read(item) for key, item in attrs.items()})
    if not isinstance(step.inputs, tuple):
        raise ValueError(f"the inputs of step {number}")
    if any(not 0 <= ref.index < number for ref in refs(step.inputs)):
        raise ValueError(f"step {number} reads a later one")
    return step


def turn_fields(turn: Round) -> dict[str, Any]:
    """A turn as JSON has it."""
    backs = [vars(back) | {"unit": [str(back.unit.numerator), str(back.unit.denominator)]} for back in turn.returns]
    return {"steps": turn.steps, "sends": [vars(send) for send in turn.sends], "returns": backs} | {
        "one": turn.one,
        "scale": turn.scale,
        "usual": turn.usual,
    }


def read_turn(steps: Any, sends: Any, returns: Any, one: Any, scale: Any, usual: Any) -> Round:
    """A turn from the values of `turn_fields`."""
    if not isinstance(one, bool) or not (scale is None or abs(signed(scale)) <= MOST_SCALE):
        raise ValueError("one or scale")
    if one and scale is not None or abs(signed(usual)) > MOST_SCALE:
        raise ValueError("one or usual")
    return Round(
        wholes(steps),
        tuple(EncryptedInput(whole(send["value"]), wholes(send["shape"]), _size(send["typical"])) for send in sends),
        tuple(_return(**back) for back in returns),
        one,
        scale,
        usual,
    )


def _return(
    value: Any, shape: Any, rows: Any, places: Any, tile: Any, last: Any, size: Any, primes: Any, unit: Any, gains: Any,
    one_gain: Any, noise: Any, relative: Any,
) -> Return:  # fmt: skip
    if not isinstance(last, bool) or len(unit) != 2 or max(len(part) for part in unit) > _MOST_DIGITS:
        raise ValueError("last or unit")
    numbers = [whole(number) for number in (value, rows, places, tile, size, primes, one_gain)]
    value, rows, places, tile, size, primes, one_gain = numbers
    fraction = Fraction(int(unit[0]), int(unit[1]))
    errors = float(noise), float(relative)
    return Return(
        value, wholes(shape), rows, places, tile, last, size, primes, fraction, wholes(gains), one_gain, *errors
    )


def _size(value: Any) -> float:
    """A float of 0 or more, and below infinity."""
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"a size of {str(value)[:32]}")
    return float(value)


def signed(value: Any) -> int:
    """A whole number of either sign."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{str(value)[:32]!r} is no whole number")
    return value


def wholes(values: Any) -> tuple[int, ...]:
    """Whole numbers."""
    return tuple(whole(value) for value in values)


def word(value: Any, known: Sequence[str]) -> str:
    """One of the known words."""
    if value not in known:
        raise ValueError(f"{str(value)[:32]!r}")
    return str(value)
