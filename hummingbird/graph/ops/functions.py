"""Smooth functions of one private value: a step "function" holds the function as an expression, a text.

    exp(x)        div(1.0,add(1.0,exp(neg(x))))        mul(x,tanh(softplus(x,1.0,20.0)))

An expression consists of x, numbers, and calls of the functions in `CALLS`. So a function has a name that a file, a
plan and a dealer can hold, and that means the same everywhere. `joined` turns several elementwise steps between one
value and another into one such step: private inference looks it up in one table.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops import elementwise
from hummingbird.graph.ops.op import Attrs, Op, Refused, Spelling
from hummingbird.graph.steps import Ref, Step, compact, refs

OP = "function"

# Expressions ----------------------------------------------------------------------------------------------------------

Expression = tuple[Any, ...] | float  # ("x",), a number, or (name, argument, ...)

_X: Expression = ("x",)
_LONGEST, _DEEPEST = 1 << 10, 48  # characters, and calls within calls: a text may come from another process
_TOKEN = re.compile(r"\s*([a-z_][a-z0-9_]*|-?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|[(),])")
_OF_ONE = """acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log10 log1p
    log2 logit neg reciprocal rsqrt sigmoid sin sinc sinh sqrt square tan tanh logsigmoid mish silu softsign tanhshrink
    gelu"""


def _torch(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch, name, None) or getattr(F, name)
    return found


# Name of a function -> how many arguments it has, and the function of tensors (or of a tensor and numbers).
CALLS: dict[str, tuple[int, Callable[..., Any]]] = {
    **{name: (1, _torch(name)) for name in _OF_ONE.split()},
    "gelu_tanh": (1, functools.partial(F.gelu, approximate="tanh")),
    "softplus": (3, F.softplus),
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "div": (2, operator.truediv),
    "pow": (2, torch.pow),
}


@functools.lru_cache(1024)
def parsed(text: str) -> Expression:
    """Read an expression, and return it as nested tuples (name, argument, ...), ("x",) and numbers.

    Raises ValueError for a text that is no expression in x, is longer than 1,024 characters or nested too deeply.

    >>> from hummingbird.graph.ops.functions import parsed
    >>> parsed("mul(x,2.0)")
    ('mul', ('x',), 2.0)
    """
    tokens: list[str] = []
    at = 0
    while at < len(text) <= _LONGEST and (match := _TOKEN.match(text, at)):
        tokens.append(match[1])
        at = match.end()
    if at < len(text) or len(text) > _LONGEST:
        raise ValueError(f"an expression is at most {_LONGEST} characters of names, numbers, commas and parentheses")
    found, rest = _read(tokens, 0, 0)
    if rest != len(tokens) or isinstance(found, float):
        raise ValueError("an expression is one call of a function, in which x occurs")
    return found


def _read(tokens: Sequence[str], at: int, depth: int) -> tuple[Expression, int]:
    """Read the expression that begins at token number `at`; return it and the number of the token behind it."""
    if at >= len(tokens) or depth > _DEEPEST:
        raise ValueError("an expression that ends too early, or is nested too deeply")
    word = tokens[at]
    if word == "x":
        return _X, at + 1
    if word[0] in "-0123456789":
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(f"the number {word}")
        return number, at + 1
    if word not in CALLS or tokens[at + 1 : at + 2] != ["("]:
        raise ValueError(f"{word[:32]!r} is no function of an expression")
    arguments: list[Expression] = []
    at += 1
    while not arguments or tokens[at : at + 1] == [","]:
        argument, at = _read(tokens, at + 1, depth + 1)
        arguments.append(argument)
    if tokens[at : at + 1] != [")"] or len(arguments) != CALLS[word][0]:
        raise ValueError(f"{word} takes {CALLS[word][0]} arguments")
    if all(isinstance(argument, float) for argument in arguments):
        raise ValueError(f"{word} of numbers alone")
    return (word, *arguments), at + 1


def spelled(name: str, *arguments: str | float) -> str:
    """Return the text of a call: `spelled("mul", "x", 2)` is "mul(x,2.0)". Arguments are expressions or numbers."""
    return f"{name}({','.join(item if isinstance(item, str) else repr(float(item)) for item in arguments)})"


def of(text: str, argument: str) -> str:
    """Return the expression `text` with another expression in place of x."""
    return re.sub(r"\bx\b", lambda _: argument, text)


def value(text: str, x: Tensor) -> Tensor:
    """Compute an expression of x, elementwise, in the type of x.

    >>> from hummingbird.graph.ops.functions import value
    >>> value("add(square(x),1.0)", torch.tensor([2.0]))
    tensor([5.])
    """
    out: Tensor = _value(parsed(text), x)
    return out


def _value(expression: Expression, x: Tensor) -> Any:
    if isinstance(expression, float):
        return expression
    if expression == _X:
        return x
    name, *arguments = expression
    return CALLS[name][1](*(_value(argument, x) for argument in arguments))


class Tail(NamedTuple):
    """A half line on which a function is almost linear: from `at` to infinity, or from minus infinity to `at`.

    slope: -1, 0 or 1. The function differs from its value at `at` plus slope (x - at) by at most the number `near` for
        which the tail was found (`tails`).
    """

    at: float
    slope: int


_FARTHEST, _STEP, _NEAR = 64.0, 0.25, 2.0**-15
_FAR = 2.0**20  # every value of a net is below this
# A bump of the function that lies between the points at which it is looked at would be missed. So they are dense, and
# expressions with larger numbers, which can place a narrow bump far from 0, have no tails.
_PER_STEP, _LARGEST_NUMBER = 64, 256.0


@functools.lru_cache(1024)
def tails(text: str, rises: bool = False, near: float = _NEAR) -> tuple[Tail | None, Tail | None]:
    """Find the tails of a function: where it is almost linear to the left, and to the right; None where it is not.

    text: the function as an expression, without tails if it has a number above 256. rises: whether it is x itself for x
    above 0. near: by how much the function may differ from a line, 2^-15 or more.

    >>> from hummingbird.graph.ops.functions import tails
    >>> tails("softplus(x,1.0,20.0)")
    (Tail(at=-10.5, slope=0), Tail(at=10.5, slope=1))
    """
    numbers = [float(word) for word in re.findall(r"-?\d[\d.]*(?:e[+-]?\d+)?", re.sub(r"[a-z]\w*", "", text))]
    left = None if max(map(abs, numbers), default=0.0) > _LARGEST_NUMBER else _tail(text, -1, near)
    right = None if max(map(abs, numbers), default=0.0) > _LARGEST_NUMBER else _tail(text, 1, near)
    return left, Tail(0.0, 1) if rises else right


def _tail(text: str, side: int, close: float) -> Tail | None:
    near = torch.arange(_PER_STEP * _FARTHEST / _STEP, -1, -1, dtype=torch.float64) * (_STEP / _PER_STEP)
    middle = torch.arange(_FARTHEST**2, _FARTHEST, -_STEP, dtype=torch.float64)
    octaves = math.log2(_FAR / _FARTHEST**2)
    far = _FARTHEST**2 * 2.0 ** torch.linspace(octaves, 0, int(512 * octaves), dtype=torch.float64)
    far = torch.cat([far[:-1], middle])
    x = torch.cat([far, near]) * side
    y = value(text, x)
    slope = float(y[0] - y[1]) / float(x[0] - x[1])
    if not math.isfinite(slope) or abs(slope - round(slope)) > 2.0**-36 or abs(slope) > 1.5:
        return None
    rest = y - round(slope) * x
    good = (rest - rest[0]).abs() <= close / 2
    last = len(x) if bool(good.all()) else int((~good).nonzero()[0])
    if last <= len(far):
        return None
    at = math.ceil(abs(float(x[last - 1])) / _STEP) * _STEP
    return Tail(side * at, round(slope))


def is_expression(item: Any) -> bool:
    """Return whether a value is the text of an expression."""
    try:
        return type(item) is str and bool(parsed(item))
    except ValueError:
        return False


# Calls of torch become steps ------------------------------------------------------------------------------------------


def emit(b: StepBuilder, input: Any, text: str, suffix: str = "", **attrs: Any) -> Ref:
    """Emit a step that computes an expression of a private value; return a reference to its value.

    input: the value. text: the expression. suffix: for the step's name. attrs: further attributes of the step.
    """
    return b.emit(OP, b.tensor(input), suffix=suffix, expression=text, **attrs)


def _function(name: str) -> Callable[..., Ref]:
    """Return the rule that converts a call of torch's function `name`, of one value, to a step."""

    def rule(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
        if b.plain:
            return elementwise.emit(b, name, (input,), {})
        return emit(b, input, spelled(name, "x"))

    return rule


def softplus(b: StepBuilder, input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Ref:
    if b.plain:
        return elementwise.emit(b, "softplus", (input, beta, threshold), {})
    sharp, straight = b.number(beta, "beta"), b.number(threshold, "threshold")
    if sharp <= 0:
        raise Unsupported(f"softplus with beta={sharp:g}", "give a positive number")
    return emit(b, input, spelled("softplus", "x", sharp, straight))


def logit(b: StepBuilder, input: Any, eps: Any = None) -> Ref:
    if b.plain:
        return elementwise.emit(b, "logit", (input, eps), {})
    if eps is not None:
        return emit(b, _clamped(b, input, b.number(eps, "eps")), spelled("logit", "x"))
    return emit(b, input, spelled("logit", "x"))


def _clamped(b: StepBuilder, input: Any, eps: float) -> Ref:
    return b.emit("hardtanh", b.tensor(input), suffix=".clamped", low=eps, high=1.0 - eps)


def elu(b: StepBuilder, input: Any, alpha: Any = 1.0, inplace: bool = False) -> Ref:
    """Convert a call of elu to a step: alpha (e^x - 1) for x < 0, else x. The arguments are as in torch."""
    if b.plain:
        return elementwise.emit(b, "elu", (input, alpha), {})
    return emit(b, input, spelled("mul", "expm1(x)", b.number(alpha, "alpha")), rises=True)


def celu(b: StepBuilder, input: Any, alpha: Any = 1.0, inplace: bool = False) -> Ref:
    """Convert a call of celu to a step: alpha (e^(x / alpha) - 1) for x < 0, else x. The arguments are as in torch."""
    if b.plain:
        return elementwise.emit(b, "celu", (input, alpha), {})
    number = b.number(alpha, "alpha")
    if number <= 0:
        raise Unsupported(f"celu with alpha={number:g}", "give a positive number")
    inside = spelled("expm1", spelled("mul", "x", 1 / number))
    return emit(b, input, spelled("mul", inside, number), rises=True)


_SELU = 1.6732632423543772, 1.0507009873554805  # alpha and the scale of Klambauer et al. 2017


def selu(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
    """Convert a call of selu to steps: an elu with the paper's alpha, times the paper's scale."""
    if b.plain:
        return elementwise.emit(b, "selu", (input,), {})
    alpha, scale = _SELU
    inside = emit(b, input, spelled("mul", "expm1(x)", alpha), ".elu", rises=True)
    return b.emit("mul", inside, value=scale)


def softshrink(b: StepBuilder, input: Any, lambd: Any = 0.5) -> Ref:
    """Convert a call of softshrink to steps: x less x clamped to [-lambd, lambd]."""
    if b.plain:
        return elementwise.emit(b, "softshrink", (input, lambd), {})
    bound = b.number(lambd, "lambd")
    if bound < 0:
        raise Unsupported(f"softshrink with lambd={bound:g}", "give a number from 0")
    x = b.tensor(input)
    return b.emit("sub", x, b.emit("hardtanh", x, suffix=".clamped", low=-bound, high=bound))


def rrelu(
    b: StepBuilder,
    input: Any,
    lower: Any = 1 / 8,
    upper: Any = 1 / 3,
    training: Any = False,
    inplace: bool = False,
) -> Ref:
    """Convert a call of rrelu at inference to a step: a leaky ReLU with the mean of both slopes."""
    if b.plain:
        return elementwise.emit(b, "rrelu", (input, lower, upper), {})
    if training is True:
        raise Unsupported("rrelu in training", "its slopes are random: call it with training=False")
    slope = (b.number(lower, "lower") + b.number(upper, "upper")) / 2
    return b.emit("leaky_relu", b.tensor(input), slope=slope)


def _scaled(factor: float) -> Callable[..., Ref]:
    """Return the rule for a torch function that multiplies by a constant."""

    def rule(b: StepBuilder, input: Any) -> Ref:
        return b.emit("mul", b.tensor(input), value=factor)

    return rule


def _meaning(a: Attrs, x: Tensor) -> Tensor:
    if not a.get("rises"):
        return value(a["expression"], x)
    return torch.where(x > 0, x, value(a["expression"], x.clamp(max=0)))


# Several steps as one -------------------------------------------------------------------------------------------------

_LARGEST = 64  # steps that become one
_ACTIVATIONS = frozenset({"sigmoid", "tanh", "silu", "gelu"})
_CURVED = _ACTIVATIONS | {OP, "square"}


def _text(step: Step, before: Sequence[str]) -> str | None:
    """Return a step's value as an expression; None if the step is no smooth elementwise function.

    before: the expressions of the step's inputs.
    """
    a = step.attrs
    if step.op in ("add", "sub", "mul"):
        if len(before) == 2:
            return spelled(step.op, *before)
        number: Any = a.get("value")
        if type(number) not in (int, float) or a.get("whole"):
            return None  # a tensor may hold a number for each channel, or be a secret
        return spelled(step.op, number, before[0]) if a.get("reversed") else spelled(step.op, before[0], number)
    if step.op in ("square", "neg") or (step.op in _ACTIVATIONS and step.op != "gelu"):
        return spelled(step.op, *before)
    if step.op == "gelu":
        return spelled("gelu" if a["approximate"] == "none" else "gelu_tanh", *before)
    return of(a["expression"], before[0]) if step.op == OP and not a.get("rises") else None


def pieces(steps: Sequence[Step]) -> dict[int, tuple[int, str]]:
    """Find groups of elementwise steps that are one function of one value.

    Returns for the last step of each group, by number, the number of the step whose value the function takes, and the
    function as an expression. Only the last step of a group is read by other steps. A group has a function that is
    looked up in a table, and another one or a product; what is cheap as it is stays.
    """
    readers = Counter(ref.index for step in steps for ref in refs(step.inputs))
    found: dict[int, tuple[int, str]] = {}
    taken: set[int] = set()
    for last in reversed(range(len(steps))):
        if last in taken or not (steps[last].op in _CURVED or len(steps[last].inputs) == 2):
            continue  # a product with a number, or a sum, costs nothing behind the table
        for source, inside in reversed(_groups(steps, readers, last)):
            text = _joined_text(steps, inside, source, last)
            if is_expression(text) and _gains(steps, inside, text):
                found[last] = source, text
                taken |= inside
                break
    return found


_STEEPEST = 8.0  # a steeper function would need more bits of fraction than a value has


def _gains(steps: Sequence[Step], inside: set[int], text: str) -> bool:
    """Whether one table for these steps, which compute `text`, is better than what each of them costs.

    They need a table anyway, and have another curved step or numbers in front. What private inference computes for
    values of any size must not become a function whose range is needed, or one that is too steep.
    """
    curved = [steps[number] for number in inside if steps[number].op in _CURVED or len(steps[number].inputs) == 2]
    made = [step for step in curved if step.op == OP]
    if not (len(curved) > 1 or (len(inside) > 1 and made)) or not (made or any(s.op in _ACTIVATIONS for s in curved)):
        return False
    left, right = tails(text)
    if left is None or right is None:
        return any(None in tails(step.attrs["expression"], step.attrs.get("rises", False)) for step in made)
    x = torch.arange(left.at, max(right.at, left.at + 1), _STEP / _PER_STEP, dtype=torch.float64)
    return float((value(text, x).diff() / x.diff()).abs().max()) <= _STEEPEST


def _groups(steps: Sequence[Step], readers: Counter[int], last: int) -> list[tuple[int, set[int]]]:
    """List the groups of steps that end with step number `last` and have one source, each with it, smallest first."""
    inside: set[int] = set()
    found: list[tuple[int, set[int]]] = []
    edge = {last}
    while len(inside) < _LARGEST:
        number = max(edge)  # no other step at the edge reads its value: the source of all lies before it
        step = steps[number]
        alone = number == last or readers[number] == sum(
            ref.index == number for other in inside for ref in refs(steps[other].inputs)
        )
        if not alone or not step.inputs or _text(step, ["x"] * len(step.inputs)) is None:
            break
        inside.add(number)
        edge = (edge - {number}) | {ref.index for ref in refs(step.inputs)}
        source = steps[min(edge)]
        # A step that a call of torch makes on its way has no name outside, by which a simulation could find it.
        inner = any(source.name.startswith(f"{steps[other].name}.") for other in inside)
        if len(edge) == 1 and not inner:
            found.append((min(edge), set(inside)))
    return found


def _joined_text(steps: Sequence[Step], inside: set[int], source: int, last: int) -> str:
    texts = {source: "x"}
    for number in sorted(inside):
        made = _text(steps[number], [texts[ref.index] for ref in refs(steps[number].inputs)])
        assert made is not None, "see `_grown`"
        texts[number] = made if len(made) <= _LONGEST else "x" * (_LONGEST + 1)
    return texts[last]


def joined(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with each group of `pieces` as one step "function", which has the name of the group's last step.

    >>> from hummingbird.graph import trace
    >>> class Swish(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * torch.sigmoid(1.5 * x)
    >>> [step.op for step in trace(Swish())]
    ['input', 'function', 'output']
    """
    out = list(steps)
    for number, (source, text) in pieces(steps).items():
        out[number] = replace(steps[number], op=OP, inputs=(Ref(source),), attrs={"expression": text})
    return compact(out) if len(out) else out


# --------------------------------------------------------------------------------------------------------------------

_ALIASES = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
}
_MODULES: dict[str, type[nn.Module]] = {
    "logsigmoid": nn.LogSigmoid,
    "mish": nn.Mish,
    "softsign": nn.Softsign,
    "tanhshrink": nn.Tanhshrink,
}
_OWN = ("neg", "square", "sigmoid", "tanh", "silu", "gelu", "sqrt", "rsqrt", "logit")  # with rules of their own

OPS = [
    Op(
        OP,
        _meaning,
        ranks.same,
        [
            *(
                Spelling(_function(name), f"{name} {_ALIASES.get(name, '')}".strip(), _modules)
                for name in _OF_ONE.split()
                if name not in _OWN
                for _modules in [{_MODULES[name]: ""} if name in _MODULES else {}]
            ),
            Spelling(logit, "logit"),
            Spelling(softplus, "softplus", {nn.Softplus: "beta threshold"}),
            Spelling(elu, "elu", {nn.ELU: "alpha"}),
            Spelling(celu, "celu", {nn.CELU: "alpha"}),
            Spelling(selu, "selu", {nn.SELU: ""}),
        ],
        attrs="expression=expression rises?=bool",
        kinds={"expression": is_expression},
        batch=batch.each,
    ),
]
SPELLINGS = [
    Spelling(softshrink, "softshrink", {nn.Softshrink: "lambd"}),
    Spelling(rrelu, "rrelu", {nn.RReLU: "lower upper"}),
    Spelling(_scaled(math.pi / 180), "deg2rad"),
    Spelling(_scaled(180 / math.pi), "rad2deg"),
]
_JUMPS = "it jumps: write the comparison itself, such as (x > 0).float()"
REFUSED = [
    Refused(_JUMPS, (nn.Hardshrink,), "hardshrink floor ceil round trunc fix frac sgn heaviside fmod"),
]
