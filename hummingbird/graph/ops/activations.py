"""Activations, softmax and argmax: rules from torch's arguments to one step, or a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported, no_dtype
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops import elementwise
from hummingbird.graph.ops.attention import shown_places
from hummingbird.graph.ops.op import Attrs, Integers, Op, Refused, Spelling, like
from hummingbird.graph.steps import Ref, Step


def activation(op: str) -> Callable[..., Ref]:
    """Return the rule that converts a call of an activation without attributes to a step. op: the step's operation."""

    def rule(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
        return b.emit(op, b.tensor(input))

    return rule


def leaky_relu(b: StepBuilder, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    return b.emit("leaky_relu", b.tensor(input), slope=b.number(negative_slope, "negative_slope"))


def prelu(b: StepBuilder, input: Any, weight: Any) -> Ref:
    return b.emit("prelu", b.tensor(input), weight=b.weight(weight).reshape(-1))


def hardtanh(b: StepBuilder, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Ref:
    low, high = b.number(min_val, "the lower bound"), b.number(max_val, "the upper bound")
    if low > high:
        raise Unsupported(f"the lower bound {low:g} is above the upper bound {high:g}", "exchange them")
    return b.emit("hardtanh", b.tensor(input), low=low, high=high)


def relu6(b: StepBuilder, input: Any, inplace: bool = False) -> Ref:
    return hardtanh(b, input, 0.0, 6.0)


def clamp(b: StepBuilder, input: Any, min: Any = None, max: Any = None) -> Ref:
    """Convert a call of clamp to a step: hardtanh for two bounds, relu for min=0 alone, else minimum or maximum.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if all(isinstance(bound, (int, float)) for bound in (min, max)):
        return hardtanh(b, input, min, max)
    if max is None and isinstance(min, (int, float)) and min == 0:
        return b.emit("relu", b.tensor(input))
    bound = max if min is None else min
    if (min is None) != (max is None) and isinstance(bound, (int, float)):
        return b.emit("minimum" if min is None else "maximum", b.tensor(input), value=b.number(bound, "the bound"))
    b.check_told(bound, "the bound")
    raise Unsupported(f"clamp with bounds {b._show(min)}, {b._show(max)}", "give numbers, or torch.maximum of tensors")


def clamp_max(b: StepBuilder, input: Any, max: Any) -> Ref:
    return clamp(b, input, None, max)


def gelu(b: StepBuilder, input: Any, approximate: str = "none") -> Ref:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"gelu with approximate={approximate!r}", "'none' or 'tanh'")
    return b.emit("gelu", b.tensor(input), approximate=approximate)


def softmax_rule(op: str) -> Callable[..., Ref]:
    """Return the rule that converts a call of softmax to a step.

    op: the step's operation, "softmax" or "log_softmax".
    """

    def rule(b: StepBuilder, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Ref:
        if not isinstance(dim, int):
            raise Unsupported(f"{op} without a dimension", "give dim")
        no_dtype(dtype)
        return b.emit(op, b.tensor(input), dim=dim)

    return rule


def argmax(b: StepBuilder, input: Any, dim: Any = None, keepdim: bool = False) -> Ref:
    if not isinstance(dim, int):
        raise Unsupported("argmax without a dimension", "give dim")
    return b.emit("argmax", b.tensor(input), dim=dim, keepdim=bool(keepdim))


def glu(b: StepBuilder, input: Any, dim: int = -1) -> Ref:
    """Convert a call of glu to steps: one half of the values along `dim` times the sigmoid of the other half.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    both = b.emit("chunk", b.tensor(input), suffix=".halves", kind="tuple", chunks=2, dim=dim)
    value, gate = (b.emit("getitem", both, suffix=f".{name}", index=i) for i, name in enumerate(("value", "gate")))
    return b.emit("mul", value, b.emit("sigmoid", gate, suffix=".sigmoid"))


def softmin(b: StepBuilder, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Ref:
    if not isinstance(dim, int) or dtype is not None:
        raise Unsupported("softmin without a dimension, or with a dtype", "give dim alone")
    return b.emit("softmax", b.emit("neg", b.tensor(input), suffix=".minus"), dim=dim)


def threshold(b: StepBuilder, input: Any, threshold: Any, value: Any, inplace: bool = False) -> Ref:
    """Convert a call of threshold to steps: the result is x where x is above the threshold, else `value`.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if b.plain:
        return elementwise.emit(b, "threshold", (input, threshold, value), {})
    x, least, other = b.tensor(input), b.number(threshold, "the threshold"), b.number(value, "the value")
    if least == other:
        return b.emit("relu", x) if least == 0 else b.emit("maximum", x, value=least)
    bit = b.emit("greater", x, suffix=".above", kind="bool", value=least, turned=False, strict=True)
    if other == 0:
        return b.emit("mul", bit, x)
    kept = b.emit("mul", bit, b.emit("sub", x, suffix=".less", value=other, reversed=False), suffix=".kept")
    return b.emit("add", kept, value=other)


def _along(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function that computes an operation along the attribute `dim`, such as softmax, with a check of `dim`.

    function: takes the step's attributes, the input, and masks if there are any; so does the wrapped function. It
        raises InputError if its input has no dimension `dim`. Without this check torch would accept dimension 0 of a
        tensor that has no dimensions.
    """

    def apply(a: Attrs, x: Tensor, *mask: Tensor) -> Tensor:
        if not -x.dim() <= a["dim"] < x.dim():
            what = f"softmax or argmax along dimension {a['dim']} of a value of shape {tuple(x.shape)}"
            raise InputError(what, hint="keep the dimension that it goes along")
        return function(a, x, *mask)

    return apply


def softmax(a: dict[str, Any], x: Tensor, *mask: Tensor) -> Tensor:
    """Compute the softmax of the logits x along the attribute `dim`, over the logits that no attention mask hides.

    a: the step's attributes; "causal" hides the keys after a query, "hidden" is a constant mask, bool. mask: a public
    attention mask from `public.hidden`, if there is one. Hidden logits get 0.
    """
    places = shown_places(x, a.get("causal", False), a.get("hidden"), mask[0] if mask else None)
    return F.softmax(x if places is None else x.masked_fill(~places, -torch.inf), a["dim"])


def _check_prelu(step: Step) -> None:
    weight = step.attrs["weight"]
    if weight.dim() != 1 or not len(weight):
        raise ValueError(f"a PReLU's weight of shape {tuple(weight.shape)}")


def _check_hardtanh(step: Step) -> None:
    if step.attrs["low"] > step.attrs["high"]:
        raise ValueError("the lower bound is above the upper one")


def _plain(name: str, function: Callable[[Tensor], Tensor], module: type[nn.Module], integers: Integers = "") -> Op:
    """Make the `Op` of an activation without attributes, which torch has as a function and as a module.

    name: the name of the operation and of torch's function. function: computes it in plain torch. module: the type of
    torch's module. integers: how the activation treats integers (`Op.integers`).
    """
    spelling = Spelling(activation(name), name, {module: ""})
    return Op(name, lambda a, x: function(x), ranks.same, [spelling], batch=batch.each, integers=integers)


OPS = [
    _plain("relu", F.relu, nn.ReLU, "kept"),
    _plain("sigmoid", torch.sigmoid, nn.Sigmoid),
    _plain("hardsigmoid", F.hardsigmoid, nn.Hardsigmoid),
    _plain("tanh", torch.tanh, nn.Tanh),
    _plain("silu", F.silu, nn.SiLU),
    _plain("hardswish", F.hardswish, nn.Hardswish),
    Op(
        "leaky_relu",
        lambda a, x: F.leaky_relu(x, a["slope"]),
        ranks.same,
        [Spelling(leaky_relu, "leaky_relu", {nn.LeakyReLU: "negative_slope"})],
        attrs="slope=number",
        batch=batch.each,
    ),
    Op(
        "prelu",
        lambda a, x: F.prelu(x, like(a["weight"], x)),
        ranks.same,
        [Spelling(prelu, "prelu", {nn.PReLU: "weight"})],
        attrs="weight=tensor",
        check=_check_prelu,
        batch=batch.apart(axis=lambda a, shape: batch.channels(a, shape) if a["weight"].numel() > 1 else ()),
    ),
    Op(
        "hardtanh",
        lambda a, x: x.clamp(a["low"], a["high"]),
        ranks.same,
        [
            Spelling(hardtanh, "hardtanh", {nn.Hardtanh: "min_val max_val"}),
            Spelling(relu6, "relu6", {nn.ReLU6: ""}),
            Spelling(clamp, "clamp clip clamp_min"),
            Spelling(clamp_max, "clamp_max"),
        ],
        attrs="low=number high=number",
        check=_check_hardtanh,
        batch=batch.each,
        integers="kept",
    ),
    Op(
        "gelu",
        lambda a, x: F.gelu(x, approximate=a["approximate"]),
        ranks.same,
        [Spelling(gelu, "gelu", {nn.GELU: "approximate"})],
        attrs="approximate=gelu",
        kinds={"gelu": lambda value: value in ("none", "tanh")},
        batch=batch.each,
    ),
    Op(
        "softmax",
        _along(softmax),
        ranks.same,
        [Spelling(softmax_rule("softmax"), "softmax", {nn.Softmax: "dim"})],
        attrs="dim=int",
        batch=batch.softmax,
    ),
    Op(
        "log_softmax",
        _along(lambda a, x: F.log_softmax(x, a["dim"])),
        ranks.same,
        [Spelling(softmax_rule("log_softmax"), "log_softmax", {nn.LogSoftmax: "dim"})],
        attrs="dim=int",
        batch=batch.apart(axis=batch.along),
    ),
    Op(
        "argmax",
        _along(lambda a, x: x.argmax(a["dim"], a["keepdim"])),
        ranks.reduced,
        [Spelling(argmax, "argmax")],
        attrs="dim=int keepdim=bool",
        batch=batch.reduced,
        integers="made",
    ),
]
SPELLINGS = [
    Spelling(glu, "glu", {nn.GLU: "dim"}),
    Spelling(softmin, "softmin", {nn.Softmin: "dim"}),
    Spelling(threshold, "threshold", {nn.Threshold: "threshold value"}),
]
REFUSED = [
    Refused(
        "return the logits, and compute it on the opened result; of logarithms, log_softmax is known",
        names="logsumexp nll_loss cross_entropy",
    ),
]
