"""The private layer of every canonical step of a net (`hummingbird.graph`): one builder per op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.bits import EXACT, BitConfig, BitWindow, Rows
from hummingbird.cost import FREE
from hummingbird.graph import OPS, Ref, Step
from hummingbird.graph.ops import functions
from hummingbird.kernels.devices import put
from hummingbird.mpc.functions import smooth, splines
from hummingbird.mpc.functions.octaves import function_in_range
from hummingbird.mpc.functions.tabulated import Tabulated
from hummingbird.mpc.layers import activations, softmax_in_range
from hummingbird.mpc.layers import activations as act
from hummingbird.mpc.layers.averaging import AdaptiveAvgPool, AvgPool, Mean, Resize
from hummingbird.mpc.layers.cached import Cache, ProductWithCache
from hummingbird.mpc.layers.constants import AddConstant, Constant, Embedding, Pad, Scale, SharePublic
from hummingbird.mpc.layers.layer import FLOOR, Combine, Layer, Local, Spec
from hummingbird.mpc.layers.linear import Linear, WeightOwner
from hummingbird.mpc.layers.moments import Cosine, Moment, Normalize
from hummingbird.mpc.layers.norms import Norm
from hummingbird.mpc.layers.products import Causal, Einsum, MatMul, Multiply, RootScale, Square
from hummingbird.mpc.layers.selecting import Abs, AdaptiveMaxPool, Bounded, Greater, Larger, MaxPool
from hummingbird.mpc.layers.softmax import Argmax, LogSoftmax, Softmax
from hummingbird.mpc.layers.softmax_in_range import SoftmaxInRange
from hummingbird.mpc.plan.columns import Halved
from hummingbird.mpc.plan.rounding_plan import Built, Planner
from hummingbird.mpc.protocols.interfaces import Comparison
from hummingbird.mpc.protocols.registry import named
from hummingbird.mpc.protocols.step_tables import LATENCY, TableChoice
from hummingbird.ring import SCALE, exponent_of

# A smooth function is a table of polynomials or a spline of comparisons, whichever suits the aim.
#
# A table (tabulated.py) takes one round and few bits of the parties, but kilobytes of the dealer for each value. A
# spline (smooth.py) on masked comparisons takes about 24 step tables and a product: more bits of the parties, about
# five more rounds, and often less than half of all bits. With aim "throughput" or "link" the cheaper form is taken, by
# the price of a layer between an input and an output. A spline's comparisons leave at most 2^(splines.FINE - 16)
# undecided, even if the window is coarser. The square of that enters the spline, below 2^-15: splines are at least as
# exact as tables, with which the simulation computes (docs/limits.md).

_PARTIES, _VALUES = 2, 1 << 14  # of the prices compared: constants, since all parties must make the same plan


def smooth_layer(name: str, comparison: Comparison, rows: Rows | None = None) -> Layer:
    """Make the layer of a smooth function, as a table or as a spline, whichever suits the comparison's aim.

    name: sigmoid, tanh, silu, gelu-none or gelu-tanh.
    comparison: the layer's, with the window and the aim.
    rows: the range of the values, or None. A known range is for tables alone.
    """
    window, aim = comparison.window, comparison.aim
    if not comparison.drops and aim.pair:
        return spline(name, replace(comparison, window=_spline_window(_curve(name), window)))
    if rows is None and not comparison.has_tables:
        return spline(name, comparison)
    if (
        rows is not None
        or aim.name in ("latency", "rounds")
        or comparison.drops
        or window.q
        or not _splines_move_less(name, comparison.name, window, aim)
    ):
        return Tabulated(_TEXTS[name], comparison, rows)
    return spline(name, replace(comparison, window=_spline_window(_curve(name), window)))


_TEXTS = {name: f"{name}(x)" for name in ("sigmoid", "tanh", "silu")}
_TEXTS |= {"gelu-none": "gelu(x)", "gelu-tanh": "gelu_tanh(x)"}


def _curve(name: str) -> smooth.Curve:
    return smooth.squashing(name) if name in ("sigmoid", "tanh") else smooth.even(name)


def _spline_window(curve: smooth.Curve, window: BitWindow) -> BitWindow:
    """Return the window of a spline's comparisons if its argument x is in the given window.

    A spline compares x - t for each of its knots t, so the window has room for these differences. Then the spline is
    right for every x of the given window, as a table is. The window's lowest bit is at most `splines.FINE`.
    """
    reach = 2.0 ** (window.k - 1 - SCALE) + float(curve.knots.abs().max())
    return BitWindow(min(64, exponent_of(reach) + 1 + SCALE), min(window.m, splines.FINE))


def spline(name: str, comparison: Comparison) -> Layer:
    """Make the layer of a smooth function as a spline.

    name: sigmoid, tanh, silu, gelu-none or gelu-tanh.
    comparison: the layer's, which decides on which piece of the spline a value lies.
    """
    if name in ("sigmoid", "tanh"):
        return activations.Smooth(name, smooth.squashing(name), comparison)
    return activations.EvenSmooth(name, smooth.even(name), comparison)


@functools.cache
def _splines_move_less(name: str, protocol: str, window: BitWindow, aim: TableChoice) -> bool:
    """Return whether a spline costs less than a table, for a smooth function on values within a window.

    The price is that of the aim (`TableChoice.price`).
    name: the function, as for `smooth_layer`.
    protocol: "masked" or "gmw".
    window: of the values.
    """

    def moved(make: Callable[[str, Comparison], Layer], window: BitWindow) -> float:
        def build(step: Step) -> Built:
            if step.op != "smooth":
                return Built(None, None, SCALE if step.op == "output" else 62, step.op == "output")
            layer = make(name, named(protocol)(window, aim=aim))
            return Built(layer, None, layer.input_limit, layer.whole_input)

        steps = [Step("x", "input", (), {}), Step("f", "smooth", (Ref(0),), {}), Step("y", "output", (Ref(1),), {})]
        total, plan = FREE, Planner(build, protocol).plan(steps)
        for step in plan:
            if isinstance(step.layer, Layer):
                specs = [Spec((_VALUES,), plan[ref.index].scale) for ref in step.inputs]
                total += step.layer.cost(specs, _PARTIES)
        return aim.price(total, _VALUES, _PARTIES)

    table = lambda name, comparison: Tabulated(_TEXTS[name], comparison)  # noqa: E731
    return moved(spline, _spline_window(_curve(name), window)) < moved(table, window)


# ---------------------------------------------------------------------------------------------------------------------

# Registered by `register_converter`: module type -> function that builds its private form.
CUSTOM: dict[type[nn.Module], Callable[[nn.Module], nn.Module]] = {}


def bare(step: Step) -> Step:
    """Make a copy of the step with its tensors on the meta device: shapes only, no weights."""
    attrs = {
        key: value.to("meta")
        if isinstance(value, Tensor)
        else deepcopy(value).to("meta")
        if isinstance(value, nn.Module)
        else value
        for key, value in step.attrs.items()
    }
    return Step(step.name, step.op, step.inputs, attrs)


def builder(
    protocol: str, config: BitConfig, owner: WeightOwner | None, aim: TableChoice = LATENCY
) -> Callable[[Step], Built]:
    """Make the function that turns a step of a net's graph into its form in the plan: a layer or a plain function.

    It takes a `Step` and returns a `Built`.
    protocol: "masked" or "gmw".
    config: the windows, and the ranges of rows.
    owner: the party with private weights; None for public weights.
    aim: the choice of tables, for few rounds or few bytes.
    """
    comparison, owner = named(protocol), None if owner is None else replace(owner, pair=aim.pair)
    made: dict[Any, tuple[Step, Linear]] = {}  # with its step, whose tensors keep their identities

    def build(step: Step) -> Built:
        if step.op == "custom":
            return Built(CUSTOM[type(step.attrs["module"])](step.attrs["module"]), None, SCALE, True)
        if step.op in PLAIN:
            function = None if step.op in ("input", "public", "output") else _bind(step)
            return Built(None, function, SCALE if step.op == "output" else 62, step.op == "output")
        compare = comparison(config.window(step.name), aim=aim)
        if step.op in ON_ROWS:
            layer = ON_ROWS[step.op](step, compare, config.rows_of(step.name))
        elif (key := call_of_weights(step)) in made:
            layer = made[key][1].again()
        else:
            layer = BUILDERS[step.op](step, compare, owner)
            if isinstance(layer, Linear) and config.weight_bits is not None:
                layer = layer.rounded(config.weight_bits)
            if key is not None and isinstance(layer, Linear):
                made[key] = step, layer
        return Built(layer, None, layer.input_limit, layer.whole_input)

    return build


def call_of_weights(step: Step) -> Any:
    """Return a key that two steps share if they apply the same weights in the same way, as a recurrent net's steps do.

    Weights count as the same if they are one tensor. None for steps that are neither linear layers nor convolutions.
    """
    if step.op not in ("linear", "conv", "conv_transpose"):
        return None
    attrs = (id(value) if isinstance(value, Tensor) else repr(value) for value in step.attrs.values())
    return step.op, *step.attrs, *attrs


def _bind(step: Step) -> Callable[..., Any]:
    """Return the function that computes a step: the graph's definition of the step's op, with the step's attributes.

    It takes the values of the step's inputs. It serves steps that need no private layer: those on sizes and on tuples
    of tensors, and those that only move values.
    """
    function, attrs = OPS[step.op], step.attrs
    return lambda *values: function(attrs, *values)


# One builder per canonical op: (step, comparison, owner of the weights) -> layer
# ----------------------------------------

Build = Callable[[Step, Comparison, WeightOwner | None], Layer]


def _conv(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    a = step.attrs
    transposed = step.op == "conv_transpose"
    names = ("stride", "padding", "dilation", *(("output_padding",) if transposed else ()))
    options = {name: [int(v) for v in a[name]] for name in names} | {"groups": int(a["groups"])}
    return Linear(f"{step.op}{len(a['stride'])}d", a["weight"], a["bias"], options, owner, **_inputs(step))


def _linear(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    known = _inputs(step)
    if "unscaled" in known:
        known["unscaled"] = known["unscaled"].t()
    return Linear("matmul", step.attrs["weight"].t().contiguous(), step.attrs["bias"], {}, owner, **known)


def _inputs(step: Step) -> dict[str, Any]:
    """Return the attributes "unscaled" and "fraction" of a step with weights, by name, as far as the step has them.

    mpc/plan/columns.py adds them to steps whose weights are small; `Linear` takes them as arguments.
    """
    return {name: step.attrs[name] for name in ("unscaled", "fraction") if name in step.attrs}


def _affine(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    if "halved" in step.attrs:
        return Halved(step.attrs["scale"], last=False)
    return Linear("mul", step.attrs["scale"], step.attrs["shift"], {}, owner, **_inputs(step))


def _scale_last(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    if "halved" in step.attrs:
        return Halved(step.attrs["scale"], last=True)
    return Linear("mul", step.attrs["scale"], step.attrs["shift"], {}, owner, last=True, **_inputs(step))


def _on_squares(kind: type[Norm]) -> Callable[[Step, Comparison, Rows | None], Layer]:
    """Return the builder of a layer on rows' sums of squares. It has no window: it compares these sums."""
    return lambda step, comparison, rows: kind(step.attrs, comparison.wider(EXACT, 64), rows)


def _softmax(step: Step, comparison: Comparison, rows: Rows | None) -> Layer:
    causal, hidden = step.attrs.get("causal", False), step.attrs.get("hidden")
    if rows is None or comparison.drops or not comparison.has_tables or not in_range(step, rows):
        return Softmax(step.attrs["dim"], comparison, rows, causal, hidden)
    return SoftmaxInRange(step.attrs["dim"], comparison, rows, causal, hidden)


def in_range(step: Step, rows: Rows) -> bool:
    """Whether look-ups serve a softmax whose rows lie in this range."""
    masked = step.attrs.get("causal", False) or step.attrs.get("hidden") is not None or len(step.inputs) > 1
    if masked and rows.sum is None:
        return False  # the mean of masked rows' e^x has no other bound
    return softmax_in_range.serves(rows)


def _sum(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    dims, keep = step.attrs["dims"], step.attrs["keepdim"]
    if dims is None:
        return Local(lambda x: x.sum(), "sum over all", FLOOR)
    return Local(lambda x: x.sum(dims, keepdim=keep), f"sum over {dims}", FLOOR)


def _add(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    if "value" in step.attrs:
        return AddConstant(_constant(step), owner=_owner(step, owner))
    return Combine(lambda xs: xs[0] + xs[1], "add", 1, step.attrs.get("most"))


def _sub(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    if "value" not in step.attrs:
        return Combine(lambda xs: xs[0] - xs[1], "subtract", 1)
    value, its = _constant(step), _owner(step, owner)
    return AddConstant(value, -1, its) if step.attrs.get("reversed") else AddConstant(-value, owner=its)


def _mul(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    if "value" not in step.attrs:
        return Multiply(comparison.takes_rounded_shares)
    factor, its = _constant(step), _owner(step, owner)
    if factor.numel() != 1 or its is not None:
        return Linear("mul", factor, None, {}, its, last=True, **_inputs(step))
    return Scale(float(factor))


def _owner(step: Step, owner: WeightOwner | None) -> WeightOwner | None:
    """Return the party that owns a step's constant; None if the constant is public.

    owner: the owner of the net's weights. A constant tensor is a weight, or computed from weights; a number is public.
    """
    return owner if isinstance(step.attrs["value"], Tensor) else None


def _constant(step: Step) -> Tensor:
    return torch.as_tensor(step.attrs["value"], dtype=torch.float64)


def _max_pool(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    a = step.attrs
    return MaxPool(a["kernel"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"], comparison)


def _avg_pool(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    a = step.attrs
    return AvgPool(a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_include_pad"], a.get("divisor"))


SMOOTH = ("sigmoid", "tanh", "silu", "gelu")  # functions with two forms, see above


def _smooth(step: Step, comparison: Comparison, rows: Rows | None) -> Layer:
    name = f"gelu-{step.attrs['approximate']}" if step.op == "gelu" else step.op
    return smooth_layer(name, comparison, rows)


def _function(step: Step, comparison: Comparison, rows: Rows | None) -> Layer:
    text, rises = step.attrs["expression"], step.attrs.get("rises", False)
    if comparison.aim.pair and not comparison.drops and (found := smooth.tailed(text, rises)) is not None:
        window = _spline_window(found.curve, comparison.window)
        return activations.TailedSmooth(text, found, replace(comparison, window=window))
    if compares(step):
        return Tabulated(text, comparison, rows, rises)
    return function_in_range(text, comparison, rows)


def compares(step: Step) -> bool:
    """Return whether the private layer of a step has a window. A function without tails has none."""
    if step.op != "function":
        return step.op in COMPARING
    return None not in functions.tails(step.attrs["expression"], step.attrs.get("rises", False))


def _local(function: Callable[[dict[str, Any]], Callable[..., Any]]) -> Build:
    return lambda step, comparison, owner: Local(function(step.attrs), step.op)


def _defined(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    """Make the layer of a step that only moves values: it applies the graph's definition of the step's op to the share.

    comparison, owner: not used.
    """
    return Local(_bind(step), ", ".join(f"{key}={value}" for key, value in step.attrs.items()))


def _extreme(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    sign = 1 if step.op == "maximum" else -1
    return Bounded(step.attrs["value"], sign, comparison) if "value" in step.attrs else Larger(sign, comparison)


def _greater(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    a = step.attrs
    return Greater(a.get("value"), a["turned"], a["strict"], comparison)


def _pad(step: Step, comparison: Comparison, owner: WeightOwner | None) -> Layer:
    return Pad(step.attrs["pads"], float(step.attrs["value"]))


# The ops for which `BitConfig.rows` may name a range of their rows: (step, comparison, rows) -> layer
ON_ROWS: dict[str, Callable[[Step, Comparison, Rows | None], Layer]] = {
    "softmax": _softmax,
    "norm": _on_squares(Norm),
    "moment": _on_squares(Moment),
    "normalize": _on_squares(Normalize),
    "cosine": _on_squares(Cosine),
    "function": _function,
    **dict.fromkeys(SMOOTH, _smooth),
}


ON_SQUARES = ("norm", "moment", "normalize", "cosine")  # of them, those that take a root of a row's squares


def ranged(step: Step) -> bool:
    """Return whether `BitConfig.rows` may name this step: a softmax, a function, or a root of squares."""
    return step.op in ON_ROWS and step.attrs.get("root", True)


def _any_rows(op: str) -> Build:
    return lambda step, comparison, owner: ON_ROWS[op](step, comparison, None)


# The ops that compare: their layers have windows.
COMPARING: dict[str, Build] = {
    "relu": lambda step, comparison, owner: act.ReLU(comparison),
    "leaky_relu": lambda step, comparison, owner: act.LeakyReLU(step.attrs["slope"], comparison),
    "prelu": lambda step, comparison, owner: act.PReLU(step.attrs["weight"], comparison, owner),
    "hardtanh": lambda step, comparison, owner: act.Hardtanh(step.attrs["low"], step.attrs["high"], comparison),
    "hardsigmoid": lambda step, comparison, owner: act.Spline(step.op, splines.hard_sigmoid(), comparison),
    "hardswish": lambda step, comparison, owner: act.Hardswish(comparison),
    **{op: _any_rows(op) for op in SMOOTH},
    "softmax": _any_rows("softmax"),
    "log_softmax": lambda step, comparison, owner: LogSoftmax(step.attrs["dim"], comparison),
    "argmax": lambda step, comparison, owner: Argmax(step.attrs["dim"], step.attrs["keepdim"], comparison),
    "max_pool": _max_pool,
    "abs": lambda step, comparison, owner: Abs(comparison),
    "maximum": _extreme,
    "minimum": _extreme,
    "greater": _greater,
    "adaptive_max_pool": lambda step, comparison, owner: AdaptiveMaxPool(step.attrs["output_size"], comparison),
}
BUILDERS: dict[str, Build] = {
    **COMPARING,
    "conv": _conv,
    "conv_transpose": _conv,
    "linear": _linear,
    "affine": _affine,
    "scale_last": _scale_last,
    **{op: _any_rows(op) for op in (*ON_SQUARES, "function")},
    "matmul": lambda step, comparison, owner: MatMul(comparison.takes_rounded_shares),
    "einsum": lambda step, comparison, owner: Einsum(step.attrs["equation"], comparison.takes_rounded_shares),
    "root_scale": lambda step, comparison, owner: RootScale(),
    "causal": lambda step, comparison, owner: Causal(),
    "cached_matmul": lambda step, comparison, owner: ProductWithCache(
        Cache(step.attrs), comparison.takes_rounded_shares
    ),
    "rows_at": lambda step, comparison, owner: Local(_bind(step), "the chunk's rows"),
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": lambda step, comparison, owner: AdaptiveAvgPool(step.attrs["output_size"]),
    "mean": lambda step, comparison, owner: Mean(step.attrs["dims"], step.attrs["keepdim"]),
    "sum": _sum,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "neg": _local(lambda a: lambda x: -x),
    "square": lambda step, comparison, owner: Square(),
    "cat": lambda step, comparison, owner: Combine(lambda xs: torch.cat(xs, step.attrs["dim"]), "concatenate"),
    "stack": lambda step, comparison, owner: Combine(lambda xs: torch.stack(xs, step.attrs["dim"]), "stack"),
    "resize": lambda step, comparison, owner: Resize(step.attrs),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "flip", "roll", "edge_pad"), _defined),
    "pack": lambda step, comparison, owner: Combine(lambda xs: _bind(step)(tuple(xs)), "join the results"),
    "constant": lambda step, comparison, owner: Constant(_constant(step), owner),
    "pad": _pad,
    "shown": lambda step, comparison, owner: Local(lambda x, mask: x * put(mask, x.device).long(), "where shown"),
    "share_public": lambda step, comparison, owner: SharePublic(step.attrs.get("shown", False)),
    "embedding": lambda step, comparison, owner: Embedding(step.attrs["weight"], owner),
    **dict.fromkeys(
        "flatten expand reshape permute transpose squeeze unsqueeze unflatten unbind chunk split".split(), _defined
    ),
}
# Ops that move or repeat values.
MOVES = frozenset(op for op, build in BUILDERS.items() if build is _defined)
# Ops on public values.
PUBLIC = ("public", "public_constant", "public_call", "seen")
# Ops without a layer.
PLAIN = frozenset({"input", "output", "size", "int", "getitem", "custom", *PUBLIC})
