"""Checks of steps that come from a file: a closed list of operations, with the kinds of their inputs and attributes.

Operations with `Op.attrs` None may not occur in a file: "custom", which holds code, and "elementwise", which has no
private form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.build import INT, PUBLIC, SIZE, TENSOR, TUPLE
from hummingbird.graph.ops.public import FUNCTIONS, MOST_NUMBERS, TYPES
from hummingbird.graph.ops.vocabulary import OPERATIONS as VOCABULARY
from hummingbird.graph.steps import Ref, Step

_MOST = 1 << 31  # bound of sizes and positions

# Operation -> kinds of its inputs, and its attributes as NAME=KIND, with "?" if they are optional. Kinds of inputs: "x"
# (a tensor), "tuple" (of chunk, split or unbind), "xs" (several tensors), "public" (a public value), "size" (a number
# or a step that makes one); "x?" is optional. "size*" may repeat, and also takes a step of several sizes; "public*" may
# repeat, and also takes a step of a number.
OPERATIONS: dict[str, tuple[str, str]] = {
    name: (op.inputs, op.attrs) for name, op in VOCABULARY.items() if op.attrs is not None
}


def _is_int(value: Any, least: int = -_MOST) -> bool:
    return type(value) is int and least <= value < _MOST


def _all_ints(value: Any, least: int = -_MOST) -> bool:
    return type(value) is tuple and bool(value) and all(_is_int(item, least) for item in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _is_slice(value: Any) -> bool:
    parts = (value.start, value.stop, value.step) if isinstance(value, slice) else ("",)
    return all(part is None or _is_int(part) for part in parts) and (not isinstance(value, slice) or value.step != 0)


def _is_index(value: Any) -> bool:
    parts = value if type(value) is tuple else (value,)
    return bool(parts) and all(x is None or x is Ellipsis or _is_int(x) or _is_slice(x) for x in parts)


def _is_shape(value: Any) -> bool:
    """Whether a value is a tuple of sizes; the first, the batch's, may be None."""
    return type(value) is tuple and (value[:1] == (None,) or _sizes(value[:1])) and _sizes(value[1:])


def _sizes(value: Any) -> bool:
    return type(value) is tuple and all(_is_int(size, 0) for size in value)


def _all_words(value: Any) -> bool:
    return type(value) is tuple and all(type(word) is str for word in value)


def _is_structure(value: Any) -> bool:
    """Whether a value describes how tensors and constants are nested in tuples, lists and dicts (structure.py).

    The constants must be numbers, words, booleans or None.
    """
    if type(value) is not tuple or not value:
        return False
    if value[0] in ("tensor", "public"):
        return len(value) == 1
    if value[0] == "constant":
        return len(value) == 2 and (value[1] is None or type(value[1]) in (bool, int, float, str))
    if value[0] == "numbers":
        return len(value) == 4 and value[1] in TYPES and _sizes(value[2]) and _all_exact(value[3])
    if len(value) != 3 or value[0] not in ("tuple", "list", "dict", "object"):
        return False
    kind, keys, parts = value
    named = type(keys) is tuple and all(type(key) in (str, int) for key in keys) and len(set(keys)) == len(keys)
    count = type(parts) is tuple and len(keys) == (len(parts) if kind in ("dict", "object") else 0) if named else False
    return count and all(_is_structure(part) for part in parts)


def _all_exact(value: Any) -> bool:
    """Whether a value is a tuple of 64-bit integers or booleans."""
    whole = type(value) is tuple and all(type(item) in (int, bool) for item in value)
    return whole and all(-(1 << 63) <= item < 1 << 63 for item in value) and len(value) <= MOST_NUMBERS


def _is_call(value: Any) -> bool:
    """Whether a value is the structure of a call: arguments and keyword arguments.

    Its constants may be types, slices and "..." too; the structure of a result may not have these.
    """
    if type(value) is not tuple or len(value) != 3 or value[:2] != ("tuple", ()):
        return False
    if not _is_structure(_bare(value)) or len(value[2]) != 2:
        return False
    args, kwargs = value[2]
    return args[0] == "tuple" and kwargs[0] == "dict" and all(type(key) is str for key in kwargs[1])


def _bare(value: Any) -> Any:
    """Return the structure of a call's arguments with None in place of each constant that is a type, a slice or "...".

    Only the structure of a call may have such constants. Without them it can be checked as every other structure is.
    value: the structure as it was read, or anything else that stands in its place.
    """
    if type(value) is not tuple or not value:
        return None
    if value[0] == "type":
        return ("constant", None) if len(value) == 2 and value[1] in TYPES else None
    if value[0] == "constant" and len(value) == 2 and (value[1] is Ellipsis or _is_slice(value[1])):
        return ("constant", None)
    if len(value) == 3 and type(value[2]) is tuple:
        return (*value[:2], tuple(_bare(part) for part in value[2]))
    return value


KINDS: dict[str, Callable[[Any], bool]] = {
    "none": lambda value: value is None,
    "bool": lambda value: type(value) is bool,
    "int": _is_int,
    "ints": _all_ints,
    "whole": lambda value: _is_int(value, 0),
    "wholes": lambda value: _all_ints(value, 0),
    "positive": lambda value: _is_int(value, 1),
    "positives": lambda value: _all_ints(value, 1),
    "number": _is_number,
    "numbers": lambda value: type(value) is tuple and bool(value) and all(_is_number(x) and x > 0 for x in value),
    "tensor": lambda value: isinstance(value, Tensor),
    "slice": _is_slice,
    "index": _is_index,
    "shape": _is_shape,
    "shapes": lambda value: type(value) is tuple and all(_sizes(shape) for shape in value),
    "word": lambda value: type(value) is str,
    "words": _all_words,
    "sizes": _sizes,
    "exact": _all_exact,
    "type": lambda value: type(value) is str and value in TYPES,
    "function": lambda value: type(value) is str and value in FUNCTIONS,
    "call": _is_call,
    "structure": _is_structure,
    **{kind: test for op in VOCABULARY.values() for kind, test in op.kinds.items()},
}


def check(steps: Sequence[Step]) -> None:
    """Raise InputError, naming the step, unless steps are a valid net: their names, inputs and attributes.

    No value is computed.
    """
    kinds: list[str] = []
    names: set[str] = set()
    for number, step in enumerate(steps):
        try:
            parts = step.name.split(".")
            if step.name in names or not all(parts) or "training" in parts:  # which every module has, and sets
                raise ValueError("a name that is empty, that another step has, or that no module can have")
            names.add(step.name)
            if step.op not in OPERATIONS:
                raise ValueError(f"the operation {step.op[:32]!r} is not in the vocabulary of saved nets")
            if (step.op == "output") != (number == len(steps) - 1):
                raise ValueError("a net ends with its one output")
            _check_inputs(step, kinds)
            _check_attributes(step)
            _check_shapes(step)
        except ValueError as error:
            raise InputError(str(error), where=step.name) from None
        kinds.append(VOCABULARY[step.op].kind(step.attrs))
    if not any(step.op == "input" for step in steps):
        raise InputError("a net has an input, and an output that ends it")


def _check_inputs(step: Step, kinds: Sequence[str]) -> None:
    wanted = OPERATIONS[step.op][0].split()
    given = list(step.inputs) if type(step.inputs) is tuple else [None]
    for want in wanted:
        name, needed = want.rstrip("?*"), not want.endswith(("?", "*"))
        if not given and not needed:
            break
        while given:
            if not _is_input(step, given.pop(0), want.rstrip("?"), kinds):
                raise ValueError(f"{step.op} reads what it cannot take, expected {name}")
            needed = False
            if not want.endswith("*"):
                break
        if needed:
            raise ValueError(f"{step.op} reads too little")
    if given:
        raise ValueError(f"{step.op} reads too much")
    if "value?" in OPERATIONS[step.op][1] and (len(step.inputs) == 2) == ("value" in step.attrs):
        raise ValueError(f"{step.op} takes another value or a constant")


# Kind of input -> the kinds of values that it takes.
_READS: dict[str, tuple[str, ...]] = {
    "x": (TENSOR,),
    "x|tuple": (TENSOR, TUPLE),
    "size": (INT,),
    "size*": (INT, SIZE),
    "public": (PUBLIC,),
    "public*": (PUBLIC, INT),
}


def _is_input(step: Step, value: Any, want: str, kinds: Sequence[str]) -> bool:
    if want == "xs":
        return type(value) is tuple and bool(value) and all(_is_input(step, item, "x", kinds) for item in value)
    if isinstance(value, Ref):
        if not 0 <= value.index < len(kinds):
            raise ValueError(f"{step.op} reads a step that does not come before it")
        known = _READS[want] if "index" not in step.attrs or want != "size" else (INT, SIZE)
        if step.op == "getitem" and kinds[value.index] == TUPLE and not _is_int(step.attrs.get("index")):
            return False
        return kinds[value.index] in known
    return want in ("size", "size*") and _is_int(value) and "index" not in step.attrs


def _check_attributes(step: Step) -> None:
    known = dict(word.split("=") for word in OPERATIONS[step.op][1].split())
    names = {name.rstrip("?"): kind.split("|") for name, kind in known.items()}
    missing = [name for name in known if not name.endswith("?") and name not in step.attrs]
    if missing or set(step.attrs) - set(names):
        extra = sorted(set(step.attrs) - set(names))
        raise ValueError(f"{step.op} without {missing}" if missing else f"{step.op} has no {str(extra)[:80]}")
    for name, value in step.attrs.items():
        if not any(KINDS[kind](value) for kind in names[name]):
            raise ValueError(f"{name} of {step.op} must be {' or '.join(names[name])}")


def _check_shapes(step: Step) -> None:
    """Raise ValueError unless the attributes of a layer fit together.

    Those that have a number for each spatial dimension must have equally many numbers, one to three.
    """
    a = step.attrs
    names = ("kernel", "stride", "padding", "dilation", "output_padding", "output_size")
    space = {len(a[name]) for name in names if isinstance(a.get(name), tuple)}
    if len(space) > 1 or not space <= {1, 2, 3}:
        raise ValueError(f"{step.op} has one to three spatial dimensions, the same for all of its attributes")
    if "pads" in a and len(a["pads"]) % 2:
        raise ValueError("pads come in pairs")
    if (check_own := VOCABULARY[step.op].check) is not None:
        check_own(step)
