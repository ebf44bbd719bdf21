"""Public values: inputs that every party has, and what forward() computes from them and from sizes only.

    public           a public input, which each call supplies
    public_constant  integers or truth values of the net; an attribute, so the same at all parties
    public_call      a call of one of the functions below
    share_public     a public value, converted to a private one
    embedding        rows of a table, selected by public numbers
    shown            x where a public mask is 1 or true, 0 elsewhere

Every party computes them by itself on plain tensors; nothing is sent. If a function is not in the list, or one of its
arguments is a weight, the call is private: its public arguments become private values first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import PUBLIC, StepBuilder, Unsupported
from hummingbird.graph.example import is_public
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Op, Refused, Spelling
from hummingbird.graph.steps import Ref, Step
from hummingbird.structure import Structure, flatten, rebuild

_TABLE = "private indices: hummingbird.lookup gives a net its rows; public ones, int64, are in example=(x, indices)"
HIDDEN = -(2.0**12)  # a mask adds this number to a logit that it hides (attention.py)
_LOWEST = -(2.0**16)  # a row whose mask has no larger number hides all keys: in float32 the logits are lost beside it
MOST = 2.0**20  # bound of a net's values (docs/limits.md)
MOST_NUMBERS = 1 << 16  # of a public constant: it is part of the net's description
TYPES = ("int64", "int32", "int16", "int8", "uint8", "bool", "float32", "float64")

# Functions of torch that depend on nothing but their arguments and return one tensor.
_NAMES = """abs add sub mul div neg remainder eq ne lt le gt ge logical_and logical_or logical_not logical_xor
    bitwise_and bitwise_or bitwise_not clamp clamp_min clamp_max minimum maximum masked_fill where cat concat stack
    gather index_select expand expand_as repeat repeat_interleave reshape view flatten unflatten permute transpose
    squeeze unsqueeze flip roll cumsum sum mean amax amin any all to type float double int long bool type_as
    contiguous clone detach ones zeros full arange ones_like zeros_like full_like new_ones new_zeros new_full tril
    triu isin pow rsub broadcast_to narrow select""".split()
_OPERATORS = "add sub mul truediv floordiv mod neg pow and_ or_ xor invert eq ne lt le gt ge abs getitem".split()
# Operators whose first operand is a constant.
_REFLECTED = "and or xor eq ne lt le gt ge add sub mul radd rsub rmul rtruediv truediv".split()


def hidden(mask: Tensor) -> Tensor:
    """Convert an attention mask to the numbers that are added to the logits, from HIDDEN (hidden) to 0 (shown).

    False, and numbers far below the largest of their row, become HIDDEN, -4096; the row's largest number becomes 0. A
    mask of integers is returned unchanged. Raises InputError for a row that hides all keys.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
    elif not mask.is_floating_point():
        return mask
    most = mask.amax(-1, keepdim=True) if mask.dim() else mask
    if not mask.is_meta and bool((most < _LOWEST).any()):
        raise InputError("an attn_mask that hides all keys of a query", hint="let every query see a key, itself say")
    return (mask - most).clamp(min=HIDDEN)  # a row's softmax is the same less any number


def inside(lengths: Any, steps: int) -> Any:
    """Return the mask (batch, steps) that is true in row i at the first lengths[i] places.

    Raises InputError unless all lengths are from 1 to `steps`.
    """
    if isinstance(lengths, fx.Proxy):
        return lengths.tracer.create_proxy("call_function", inside, (lengths, steps), {})
    if type(lengths) is Tensor and not lengths.is_meta and lengths.numel():  # not a fake one, which has no numbers
        least, most = int(lengths.min()), int(lengths.max())
        if least < 1 or most > steps:
            wrong = least if least < 1 else most
            what = f"a sequence of length {wrong} in a tensor of {steps} time steps"
            raise InputError(what, where="lengths", hint=f"lengths from 1 to {steps}")
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def shown(x: Any, mask: Any) -> Any:
    """Return x where `mask`, 1 or true, shows it, and 0 elsewhere; the mask must be public."""
    if isinstance(x, fx.Proxy):
        return x.tracer.create_proxy("call_function", shown, (x, mask), {})
    return x * mask.to(x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"torch.{name}": getattr(torch, name) for name in _NAMES if hasattr(torch, name)},
    **{f"Tensor.{name}": getattr(Tensor, name) for name in _NAMES if hasattr(Tensor, name)},
    **{f"Tensor.__{name}__": getattr(Tensor, f"__{name}__") for name in _REFLECTED},
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS},
    "F.pad": F.pad,
    "F.one_hot": F.one_hot,
    "hidden": hidden,
    "inside": inside,
}
_FOUND = {function: name for name, function in FUNCTIONS.items()}
# Functions that take public values themselves, beside private ones.
_TAKERS = (F.embedding, F.embedding_bag, F.scaled_dot_product_attention, shown)


def name_of(node: fx.Node) -> str | None:
    """Return the name in FUNCTIONS of the function that a node calls; None if FUNCTIONS does not have it."""
    if node.op == "call_method":
        return f"Tensor.{node.target}" if f"Tensor.{node.target}" in FUNCTIONS else None
    return None if isinstance(node.target, str) else _FOUND.get(node.target)


def takes(target: Any) -> bool:
    """Whether the rule of the torch function `target` accepts public values; for others they are made private first."""
    return target in _TAKERS


def emit(b: StepBuilder, name: str, args: Any, kwargs: dict[str, Any], suffix: str = "") -> Ref:
    """Emit a step "public_call", which calls a function of public values; return a reference to its result.

    The step is added to `b`. name: the function's name in FUNCTIONS. args, kwargs: the call's arguments. suffix: end of
    the step's name. Raises Unsupported for arguments that a net's file cannot hold.
    """
    kwargs = {key: value for key, value in kwargs.items() if key != "device"}  # all are where the caller's are
    args = [value for value in args if not isinstance(value, torch.device)]
    structure, values = flatten((tuple(args), kwargs), lambda value: isinstance(value, (Ref, Tensor)))
    found = [constant_of(b, value) if isinstance(value, Tensor) else value for value in values]
    return b.emit("public_call", *found, suffix=suffix, kind=PUBLIC, function=name, call=_plain(structure))


def is_short(value: Any) -> bool:
    """Whether a value is a public tensor that is small enough to be part of a net's file."""
    return is_public(value) and value.numel() <= MOST_NUMBERS


def constant_of(b: StepBuilder, value: Tensor) -> Ref:
    """Emit a step for a public constant, a short tensor of integers or truth values; return a reference to it."""
    if not is_short(value):
        raise Unsupported(f"a constant of {value.numel()} numbers, {value.dtype}, beside public values", "cut it first")
    numbers, shape = tuple(value.reshape(-1).tolist()), tuple(value.shape)
    kept = str(value.dtype).removeprefix("torch.")
    suffix = f".constant{len(b.steps)}"
    return b.emit("public_constant", suffix=suffix, kind=PUBLIC, numbers=numbers, shape=shape, dtype=kept)


def _plain(structure: Structure) -> Structure:
    """Return a structure with constants that JSON can hold; a dtype becomes its name.

    structure: how the arguments of a call are nested, and its constants. Raises Unsupported for constants that JSON
        cannot hold.
    """
    if structure[0] == "constant":
        value = structure[1]
        if isinstance(value, torch.dtype) and str(value).removeprefix("torch.") in TYPES:
            return ("type", str(value).removeprefix("torch."))
        if isinstance(value, slice):
            fixed = all(x is None or type(x) is int for x in (value.start, value.stop, value.step))
        else:
            fixed = value is None or value is Ellipsis or type(value) in (bool, int, float, str)
        if fixed:
            return structure
        raise Unsupported(f"{value!r} beside public values", "give numbers, and tensors of whole numbers")
    return structure if len(structure) == 1 else (*structure[:2], tuple(_plain(part) for part in structure[2]))


def share(b: StepBuilder, value: Ref, kind: str, whole: bool = False) -> Ref:
    """Emit a step that makes a private value of a public one, and return a reference to it.

    Private steps can then compute with the value. kind: the kind of the result (build.py). whole: whether the result is
    an integer tensor in torch.
    """
    attrs = {"whole": True} if whole else {}
    return b.emit("share_public", value, b.first("input"), suffix=f".public{len(b.steps)}", kind=kind, **attrs)


def embedding(
    b: StepBuilder,
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    scale_grad_by_freq: Any = False,
    sparse: Any = False,
) -> Ref:
    """Convert a call of embedding to a step: rows of the table `weight`, selected by public numbers.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if max_norm is not None:
        raise Unsupported("an embedding with max_norm, which writes into its table", "apply it once, and leave it out")
    if b.kind(input) != PUBLIC:
        raise Unsupported("an embedding of private numbers", _TABLE)
    return b.emit("embedding", input, b.first("input"), weight=b.weight(weight))


def embedding_bag(
    b: StepBuilder,
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    scale_grad_by_freq: Any = False,
    mode: str = "mean",
    sparse: Any = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Ref:
    """Convert a call of embedding_bag to steps: sums or means of rows of a table, selected by public numbers.

    input: (bags, numbers), one row of numbers for each sum.
    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if offsets is not None or per_sample_weights is not None or mode not in ("sum", "mean") or padding_idx is not None:
        what = "an EmbeddingBag with offsets, weights, a padding or a maximum"
        raise Unsupported(what, "bags of equal length, (bags, numbers): nn.Embedding and .mean(1), or .sum(1)")
    if b.kind(input) == PUBLIC and b.rank(input) != 2:
        raise Unsupported("an EmbeddingBag of numbers that are not (bags, numbers)", "give each bag a row")
    name, b.name = b.name, f"{b.name}.rows"
    rows = embedding(b, input, weight, None, max_norm)
    b.name = name
    return b.emit(mode, rows, dims=(1,), keepdim=False)


def _shown(b: StepBuilder, x: Any, mask: Any) -> Ref:
    return b.emit("shown", b.tensor(x), constant_of(b, mask) if isinstance(mask, Tensor) else mask)


# What the steps compute
# ----------------------------------------


def call(attrs: dict[str, Any], *values: Any) -> Tensor:
    """Compute the value of a step "public_call", which calls a function of public values.

    attrs: the step's attributes, which name the function. values: its arguments. If one of them is on another device
    than the CPU, all are moved there; on the meta device only a shape is computed.
    """
    places = [value.device for value in values if isinstance(value, Tensor)]
    place = next((device for device in places if device.type != "cpu"), None)
    if place is not None:
        values = tuple(value.to(place) if isinstance(value, Tensor) else value for value in values)
    args, kwargs = rebuild(_typed(attrs["call"]), iter(values))
    out: Tensor = FUNCTIONS[attrs["function"]](*args, **kwargs)
    return out


def _typed(structure: Structure) -> Structure:
    if structure[0] == "type":
        return ("constant", getattr(torch, structure[1]))
    if len(structure) == 3:
        return (*structure[:2], tuple(_typed(part) for part in structure[2]))
    return structure


def constant(attrs: dict[str, Any]) -> Tensor:
    """Make the tensor of a step "public_constant". attrs: its attributes: the numbers, their dtype, and the shape."""
    return torch.tensor(attrs["numbers"], dtype=getattr(torch, attrs["dtype"])).reshape(attrs["shape"])


def rows(attrs: dict[str, Any], numbers: Tensor, x: Tensor) -> Tensor:
    """Return the rows `numbers` of a step's table, in the type of the net's input `x`.

    attrs: the step's attributes, which have the table. Raises InputError for numbers outside the table.
    """
    table = attrs["weight"]
    check_rows(numbers, table.shape[0])
    return F.embedding(numbers.to(table.device), table).to(device=x.device, dtype=x.dtype)


def check_rows(numbers: Tensor, count: int) -> None:
    """Raise InputError unless all `numbers` are rows of a table of `count` rows: integers from 0 to count - 1."""
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise InputError(f"rows are asked for by numbers of type {numbers.dtype}", hint="give int64 numbers")
    if numbers.numel() and not numbers.is_meta:
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= count:
            wrong = least if least < 0 else most
            raise InputError(f"row {wrong} of a table of {count} rows", hint=f"numbers from 0 to {count - 1}")


def _shared(attrs: dict[str, Any], value: Tensor, x: Tensor) -> Tensor:
    check_values(value)
    return (shown_part(value) if attrs.get("shown") else value).to(device=x.device, dtype=x.dtype)


def shown_part(mask: Tensor) -> Tensor:
    """Return the numbers that a mask adds to the logits, with 0 in place of the numbers that hide a logit.

    mask: a result of `hidden`.
    """
    return mask.masked_fill(mask <= HIDDEN, 0)


def check_values(value: Tensor) -> None:
    """Raise InputError if a number in a public tensor is so large that private inference cannot compute with it."""
    most = 0.0 if value.is_meta or not value.numel() else float(value.double().abs().max())
    if not most < MOST:
        what = f"a public value of {most:g}, and values of a net stay below 2^20"
        raise InputError(what, hint="a mask that adds -inf: give it as truth values, or with -1000 in its place")


def _check_constant(step: Step) -> None:
    a = step.attrs
    if math.prod(a["shape"]) != len(a["numbers"]):
        raise ValueError(f"{len(a['numbers'])} numbers for the shape {a['shape']}")


def _check_call(step: Step) -> None:
    if len(step.inputs) != (count := _count(step.attrs["call"])):
        raise ValueError(f"a call of {count} values with {len(step.inputs)}")


def _count(structure: Structure) -> int:
    """Count the tensors in a structure, which describes how a call's arguments are nested."""
    if structure[0] == "tensor":
        return 1
    return sum(map(_count, structure[2])) if len(structure) == 3 else 0


def _check_table(step: Step) -> None:
    if step.attrs["weight"].dim() != 2:
        raise ValueError(f"a table of shape {tuple(step.attrs['weight'].shape)}")


OPS = [
    Op(
        "public",
        lambda a, x: x,
        lambda a, given: len(a["shape"]),
        inputs="",
        attrs="title=word shape=shape dtype=type",
        makes=PUBLIC,
    ),
    Op(
        "public_constant",
        constant,
        lambda a, given: len(a["shape"]),
        inputs="",
        attrs="numbers=exact shape=sizes dtype=type",
        check=_check_constant,
        makes=PUBLIC,
    ),
    Op(
        "public_call",
        call,
        ranks.unknown,
        inputs="public*",
        attrs="function=function call=call",
        check=_check_call,
        makes=PUBLIC,
    ),
    # These two read the net's input beside the public value, for its type alone.
    Op("share_public", _shared, ranks.first, inputs="public x", attrs="whole?=bool", batch=batch.each),
    Op(
        "embedding",
        rows,
        lambda a, given: given[0] + 1 if isinstance(given[0], int) else None,
        [
            Spelling(
                embedding,
                modules={nn.Embedding: "weight padding_idx max_norm norm_type scale_grad_by_freq sparse"},
                functions=(F.embedding,),
            ),
            Spelling(
                embedding_bag,
                modules={nn.EmbeddingBag: "weight max_norm mode include_last_offset padding_idx"},
                functions=(F.embedding_bag,),
            ),
        ],
        inputs="public x",
        attrs="weight=tensor",
        check=_check_table,
        batch=batch.each,
    ),
    Op(
        "shown",
        lambda a, x, mask: shown(x, mask.to(x.device)),
        ranks.first,
        [Spelling(_shown, functions=(shown,))],
        inputs="x public",
        batch=batch.broadcast,
    ),
]
REFUSED = [Refused(_TABLE, names="gather")]
