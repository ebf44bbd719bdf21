"""Plans as text, and their check: the data's side reads a plan from a model's side that it does not trust.

The text is JSON of integers, names and units. A plan that passes the check can run, with at most MOST_VALUES values.

A description is what a server sends to its clients: a tag of its weights, 64 hexadecimal digits, and the plan. Both
sides bind their stores to the SHA-256 of the description, and so to the net, its windows and its weights. The tag is a
hash under a secret of the server; with a plain hash anybody could test a guess of the weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from hummingbird import records
from hummingbird.errors import InputError
from hummingbird.graph.steps import refs
from hummingbird.hybrid.plan import GARBLERS, LOCAL, MOST_SIZE, UNIT, Gate, Linear, Model, Plan, Step, at_rest, tuples
from hummingbird.records import Kind, field
from hummingbird.structure import read, tensors

FORMAT = "hummingbird-two-party-plan-1"
MOST_TEXT = 1 << 24  # bytes
DEEPEST = 64  # nesting of lists: two levels for each container in the results, and those of a plan
MOST_VALUES = 1 << 26  # values of one image, over all steps
_TAG = 64  # hexadecimal digits
_HINT = "it was damaged, or is of another program or release"


def _step(value: Any) -> Step:
    """Return the step, a `Linear`, `Gate` or `Step`, that an item of a plan's text describes."""
    op = value.get("op") if isinstance(value, dict) else None
    kinds: dict[Any, type[Step]] = {"linear": Linear, "gate": Gate}
    step: Step = records.record(kinds.get(op if isinstance(op, str) else None, Step)).read(value)
    return step


@dataclass(frozen=True)
class PlanFile:
    """The fields of a plan as text, which `to_json` writes and `from_json` reads."""

    steps: tuple[Step, ...] = field(records.many(Kind("a step", _step, records.plain), 1 << 16, 3))
    garbler: str = field(records.one_of(GARBLERS))
    input_range: float = field(UNIT)
    format: str = records.constant(FORMAT)


def to_json(plan: Plan) -> str:
    """Return a plan as JSON text; equal plans have equal texts."""
    return records.write(PlanFile(plan.steps, plan.garbler, plan.input_range), separators=(",", ":"), sort_keys=True)


def from_json(text: str | bytes) -> Plan:
    """Return the plan that `to_json` has written as `text`, after a check. Raises InputError for anything else."""
    found = records.read(text, PlanFile, name="plan", most=MOST_TEXT, deepest=DEEPEST, where="plan", hint=_HINT)
    plan = Plan(found.steps, found.garbler, found.input_range)
    check(plan)
    return plan


def _refuse(what: str) -> NoReturn:
    raise InputError(f"a description {what}", where="plan", hint=_HINT)


def _expect(right: bool, name: str, what: str) -> None:
    if not right:
        _refuse(f"whose {name[:64]!r} has a wrong {what}")


def _is_size(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MOST_SIZE


def _sizes(value: Any, count: int | None = None, least: int = 0) -> bool:
    """Return whether an attribute is a tuple of `count` valid sizes; a count of None allows any number.

    least: the smallest valid size.
    """
    right = isinstance(value, tuple) and (count is None or len(value) == count)
    return right and all(_is_size(item, least) for item in value)


def check(plan: Plan) -> None:
    """Raise InputError for a plan that cannot run because shapes, rings or references do not fit each other."""
    total, last, resting = 0, len(plan.steps) - 1, at_rest_of(plan)
    _expect(len({step.name for step in plan.steps}) == len(plan.steps), "plan", "name, twice")
    for number, step in enumerate(plan.steps):
        name = step.name
        total += step.count
        _expect(total <= MOST_VALUES, name, "size")
        _expect((step.op == "input") == (not step.inputs), name, "input")
        _expect((step.op == "output") == (number == last), name, "place")
        sources = [plan.steps[ref.index] for ref in refs(step.inputs)]
        _expect(len(sources) <= 1 or step.op in ("sum", "cat"), name, "number of inputs")
        if isinstance(step, Linear):
            _expect(step.inputs[0].index in resting, name, "input")
        rule = _RULES.get(step.op)
        if rule is None:
            _refuse(f"with the step {step.op[:32]!r}")
        _expect(rule(step, *sources), name, "shape, ring or number")
    _expect(sum(step.op == "input" for step in plan.steps) == 1, "plan", "number of images")


def at_rest_of(plan: Plan) -> set[int]:
    """Return the numbers of the steps whose values layers may read (`at_rest`), for a plan that is not checked yet.

    Raises InputError if a step refers to a step that does not come before it.
    """
    for number, step in enumerate(plan.steps):
        _expect(all(ref.index < number for ref in refs(step.inputs)), step.name, "reference")
    return at_rest(plan)


def _output(step: Step, x: Step) -> bool:
    right = not step.attrs or are_results(step.attrs, step.shape)
    return right and step.shape == x.shape and x.ring >= step.ring


def are_results(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> bool:
    """Return whether an output step's attributes describe several results that are concatenated in the output.

    attrs: must hold the results' structure and shapes. shape: of the output, which the results must fill.
    """
    shapes: Any = tuples(attrs.get("shapes"))
    if set(attrs) != {"structure", "shapes"} or not isinstance(shapes, tuple) or not all(map(_sizes, shapes)):
        return False
    try:
        count = tensors(read(tuples(attrs["structure"])))
    except (TypeError, ValueError):
        return False
    return count == len(shapes) and shape == (sum(map(math.prod, shapes)),) and all(map(math.prod, shapes))


def _linear(step: Step, x: Step) -> bool:
    assert isinstance(step, Linear)
    if step.attrs:
        return False
    (channels, *space), (outputs, inputs, *kernel) = step.image, step.weight
    reach = [space[d] + 2 * step.padding[d] - step.dilation[d] * (kernel[d] - 1) - 1 for d in (0, 1)]
    made = math.prod(n // step.stride[d] + 1 for d, n in enumerate(reach))
    fits = channels == inputs * step.groups and outputs % step.groups == 0 and min(reach) >= 0
    padded = channels * math.prod(n + 2 * p for n, p in zip(space, step.padding, strict=True))
    sizes = math.prod(step.weight) <= MOST_VALUES and padded <= MOST_VALUES
    return fits and sizes and x.count == math.prod(step.image) and step.count == outputs * made and x.ring >= step.ring


def _gate(step: Step, x: Step) -> bool:
    assert isinstance(step, Gate)
    return not step.attrs and x.ring >= step.width and step.shape == x.shape


def _sum(step: Step, *parts: Step) -> bool:
    factors: Any = step.attrs.get("factors")
    constant: Any = step.attrs.get("constant")
    right = set(step.attrs) == {"factors", "constant"} and isinstance(factors, tuple) and len(factors) == len(parts)
    if not right or not all(type(n) is int and abs(n) < 1 << 40 for n in (*factors, constant)) or 0 in factors:
        return False
    zeros = [(factor & -factor).bit_length() - 1 for factor in factors]
    fine = (part.ring >= step.ring - z for part, z in zip(parts, zeros, strict=True))
    return all(part.shape == step.shape for part in parts) and all(fine)


def _cut(step: Step, x: Step) -> bool:
    m: Any = step.attrs.get("m")
    return set(step.attrs) == {"m"} and _is_size(m) and x.ring >= step.ring + m and step.shape == x.shape


def _sum_pool(step: Step, x: Step) -> bool:
    if set(step.attrs) != {"kernel", "stride", "padding"} or not all(_sizes(pair, 2) for pair in step.attrs.values()):
        return False
    kernel, stride, padding = (step.attrs[name] for name in ("kernel", "stride", "padding"))
    if len(x.shape) != 3 or min(*kernel, *stride) < 1 or any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        return False
    reach = [x.shape[1 + d] + 2 * padding[d] - kernel[d] for d in (0, 1)]
    made = tuple(n // stride[d] + 1 for d, n in enumerate(reach))
    return min(reach) >= 0 and step.shape == (x.shape[0], *made) and x.ring >= step.ring


def _taps(step: Step, x: Step) -> bool:
    axis: Any = step.attrs.get("axis")
    places: Any = step.attrs.get("places")
    if set(step.attrs) != {"axis", "places"} or not _is_size(axis, 1) or axis > len(x.shape):
        return False
    if not isinstance(places, tuple) or not places or not all(_sizes(row) and row for row in places):
        return False
    if len({len(row) for row in places}) > 1:
        return False
    shape = (len(places), *x.shape[: axis - 1], len(places[0]), *x.shape[axis:])
    return step.shape == shape and max(map(max, places)) < x.shape[axis - 1] and x.ring >= step.ring


def _rows(step: Step, x: Step) -> bool:
    start: Any = step.attrs.get("start")
    stop: Any = step.attrs.get("stop")
    if set(step.attrs) != {"start", "stop"} or not (_is_size(start) and _is_size(stop)) or stop > x.shape[0]:
        return False
    return step.shape == (stop - start, *x.shape[1:]) and x.ring >= step.ring


def _cat(step: Step, *parts: Step) -> bool:
    rests = {part.shape[1:] for part in parts} == {step.shape[1:]} and not step.attrs
    return rests and sum(part.shape[0] for part in parts) == step.shape[0] and min(p.ring for p in parts) >= step.ring


def _permute(step: Step, x: Step) -> bool:
    dims: Any = step.attrs.get("dims")
    if set(step.attrs) != {"dims"} or not _sizes(dims) or sorted(dims) != [*range(1, 1 + len(x.shape))]:
        return False
    return step.shape == tuple(x.shape[dim - 1] for dim in dims) and x.ring >= step.ring


def _pad(step: Step, x: Step) -> bool:
    pads: Any = step.attrs.get("pads")
    if set(step.attrs) != {"pads"} or not _sizes(pads) or len(pads) % 2 or len(pads) > 2 * len(x.shape):
        return False
    shape = list(x.shape)
    for d in range(len(pads) // 2):
        shape[-1 - d] += pads[2 * d] + pads[2 * d + 1]
    return step.shape == tuple(shape) and x.ring >= step.ring


_RULES: dict[str, Callable[..., bool]] = {
    "input": lambda step: not step.attrs,
    "output": _output,
    "linear": _linear,
    "gate": _gate,
    "sum": _sum,
    "cut": _cut,
    "sum_pool": _sum_pool,
    "taps": _taps,
    "rows": _rows,
    "cat": _cat,
    "reshape": lambda step, x: step.count == x.count and x.ring >= step.ring and not step.attrs,
    "permute": _permute,
    "pad": _pad,
}
assert set(_RULES) == LOCAL | {"input", "output", "linear", "gate"}


# Descriptions ---------------------------------------------------------------------------------------------------------


def describe(model: Model, secret: bytes) -> bytes:
    """Return the description of a model that a server sends to clients, as bytes: a tag of the weights, then the plan.

    secret: the server's; without it nobody can test guesses of the weights with the tag.
    """
    state = hashlib.blake2b(key=secret, digest_size=_TAG // 2)
    for number, found in sorted(model.parameters.items()):
        state.update(number.to_bytes(8, "little") + _octets(found.weight) + _octets(found.bias))
    return state.hexdigest().encode() + to_json(model.plan).encode()


def read_description(text: bytes) -> Plan:
    """Return the plan in a description that `describe` has written. Raises InputError if the text is malformed."""
    if len(text) < _TAG or not set(text[:_TAG]) <= set(b"0123456789abcdef"):
        raise InputError("a description that is cut short", where="plan", hint="is it a server of two-party inference?")
    return from_json(text[_TAG:])


def digest(text: bytes) -> str:
    """Return the SHA-256 of a description, in hexadecimal digits; both sides bind their stores to it."""
    return hashlib.sha256(text).hexdigest()


def _octets(x: Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()
