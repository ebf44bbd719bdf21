"""A plan as text, and its check: what the data's side reads from a model's side that it need not believe.

JSON of integers, names and units; a plan that passes describes walks that run, of values below MOST_VALUES.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from hummingbird.errors import InputError
from hummingbird.graph import Ref
from hummingbird.graph.steps import refs
from hummingbird.hybrid.plan import GARBLERS, LOCAL, MOST_RING, WIDTHS, Gate, Linear, Plan, Step, at_rest
from hummingbird.structure import read, tensors

FORMAT = "hummingbird-two-party-plan-1"
MOST_TEXT = 1 << 24  # bytes
MOST_VALUES = 1 << 26  # numbers in all values of an image
_MOST_SIZE = 1 << 24  # of anything that a step names


def to_json(plan: Plan) -> str:
    """The text of a plan; the same for equal plans."""
    steps = [{name: _plain(value) for name, value in vars(step).items()} for step in plan.steps]
    data = {"format": FORMAT, "garbler": plan.garbler, "input_range": plan.input_range, "steps": steps}
    return json.dumps(data, separators=(",", ":"), sort_keys=True, allow_nan=False)


def from_json(text: str | bytes) -> Plan:
    """The plan of `to_json`'s text. InputError for anything else."""
    if len(text) > MOST_TEXT:
        _refuse(f"of {len(text)} bytes")
    try:
        data = json.loads(text, parse_constant=lambda word: _refuse(f"with the number {word}"))
    except (ValueError, RecursionError):
        _refuse("that is no JSON text")
    if not isinstance(data, dict) or set(data) != {"format", "garbler", "input_range", "steps"}:
        _refuse("without its four parts")
    if data["format"] != FORMAT:
        _refuse(f"of format {str(data['format'])[:32]!r}, not {FORMAT!r}")
    _expect(data["garbler"] in GARBLERS and _is_unit(data["input_range"]), "plan", "garbler or range")
    _expect(isinstance(data["steps"], list) and 2 < len(data["steps"]) <= 1 << 16, "plan", "number of steps")
    plan = Plan(tuple(map(_read, data["steps"])), data["garbler"], data["input_range"])
    check(plan)
    return plan


def _refuse(what: str) -> NoReturn:
    raise InputError(f"a description {what}", where="plan", hint="it was damaged, or is of another program or release")


def _expect(right: bool, name: str, what: str) -> None:
    if not right:
        _refuse(f"whose {name[:64]!r} has a wrong {what}")


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return value.index
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _is_unit(value: Any) -> bool:
    return type(value) is float and 2.0**-128 < value < 2.0**128


def _is_size(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _MOST_SIZE


def _sizes(value: Any, count: int | None = None, least: int = 0) -> bool:
    """Whether it is a tuple of so many integers that sizes may be."""
    right = isinstance(value, tuple) and (count is None or len(value) == count)
    return right and all(_is_size(item, least) for item in value)


def tuples(value: Any) -> Any:
    """Lists as tuples, and lists in them."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _read(data: Any) -> Step:
    _expect(isinstance(data, dict) and isinstance(data.get("op"), str), "plan", "step")
    kind: type[Step] = {"linear": Linear, "gate": Gate}.get(data["op"], Step)
    _expect(set(data) == {part.name for part in fields(kind)}, "plan", "step")
    name, inputs, attrs = data["name"], tuples(data["inputs"]), data["attrs"]
    _expect(isinstance(name, str) and 0 < len(name) <= 1024 and name.isprintable(), "step", "name")
    _expect(_sizes(inputs) and len(inputs) <= 1 << 12 and isinstance(attrs, dict), name, "input")
    values = {key: tuples(value) for key, value in data.items() if key not in ("inputs", "attrs")}
    return kind(**values, inputs=tuple(map(Ref, inputs)), attrs={key: tuples(item) for key, item in attrs.items()})


def check(plan: Plan) -> None:
    """InputError for a plan that could not run: shapes, rings and references that do not fit each other."""
    total, last, resting = 0, len(plan.steps) - 1, at_rest_of(plan)
    _expect(len({step.name for step in plan.steps}) == len(plan.steps), "plan", "name, twice")
    for number, step in enumerate(plan.steps):
        name = step.name
        _expect(_sizes(step.shape, least=1) and len(step.shape) <= 8, name, "shape")
        total += step.count
        _expect(total <= MOST_VALUES, name, "size")
        _expect(_is_size(step.ring, 1) and step.ring <= MOST_RING, name, "ring")
        _expect(_is_unit(step.unit), name, "unit")
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
    """`at_rest`, of a plan whose references may be wrong."""
    for number, step in enumerate(plan.steps):
        _expect(all(ref.index < number for ref in refs(step.inputs)), step.name, "reference")
    return at_rest(plan)


def _output(step: Step, x: Step) -> bool:
    right = not step.attrs or are_results(step.attrs, step.shape)
    return right and step.shape == x.shape and x.ring >= step.ring


def are_results(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> bool:
    """Whether an output of this shape is several results in a row, whose structure and shapes these are."""
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
    geometry = step.stride, step.dilation, step.padding
    if not (_sizes(step.image, 3, 1) and _sizes(step.weight, 4, 1) and _is_size(step.groups, 1) and not step.attrs):
        return False
    if not (all(_sizes(pair, 2) for pair in geometry) and min(*step.stride, *step.dilation) > 0):
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
    right = step.kind in ("relu", "lift") and type(step.width) is int and step.width in WIDTHS and not step.attrs
    return right and x.ring >= step.width and step.shape == x.shape


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
