"""How far private inference may be from torch: a bound on every element of every step, carried forward in float64.

Error e of an operation f on a value v with error e_v is at most |f(v + e_v) - f(v)| and what the operation itself
rounds. The table BOUNDS has a line for each operation, made of these promises:

    R            a value at rest has 16 bits of fraction, and every party may round its share: (N/2 + 1) 2^-16
    delta(w)     a weight has 20 bits of fraction, a factor 16; none is off by more than 2^-8 of its tensor's largest
    2^-13        of the largest weight of a column, where public weights read the net's inputs, and 2^-10 of its root
    2^-17        of the input, a summand: 16 bits of fraction, rounded to the nearest
    2^-13        of a smooth activation: its pieces, and some R; 2^-10 of the two of a softmax

Steps that only move values move their errors. Values and errors are those of `hummingbird.graph.run`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hummingbird.graph import OPS, Step
from hummingbird.graph.interpreter import arguments
from hummingbird.graph.ops import moments
from hummingbird.graph.ops.moments import Statistic
from hummingbird.graph.ops.norms import rows
from hummingbird.graph.ops.resize import exact_bits
from hummingbird.mpc.plan import builders
from hummingbird.mpc.plan.columns import largest_of_columns, measured

UNIT = 2.0**-16
HALF = UNIT / 2
WEIGHT = 2.0**-21  # half a unit of a weight
SPLINE, OF_SOFTMAX = 2.0**-14, 2.0**-10
PRECISION = 2.0**-8

Attrs = dict[str, Any]
Bound = Callable[..., Tensor]


def delta(constant: Any, half: float) -> float:
    """Rounding of each entry of a constant tensor: float32's (a folded norm), and the fixed point's, half a unit."""
    w = torch.as_tensor(constant, dtype=torch.float64)
    largest = float(w.abs().max()) if w.numel() else 0.0
    return min(half, PRECISION * largest) + 2.0**-24 * largest


def columns_of(op: str, a: Attrs, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Roundings of weights that read the net's inputs, and of what they give beside |x|, in the weight's shape."""
    largest = largest_of_columns(op, weight, a.get("groups", 1))
    if op == "conv":
        groups, out = a["groups"], len(weight) // a["groups"]
        largest = largest.view(groups, 1, -1).expand(groups, out, -1).reshape(*weight.shape[:2])
    if op in ("conv", "conv_transpose"):
        largest = largest.view(*largest.shape, *[1] * (weight.dim() - largest.dim()))
    largest = largest.expand(weight.shape)
    return (2.0**-13 * largest + 2.0**-37).clamp(max=WEIGHT) + 2.0**-24 * largest, 2.0**-10 * largest.sqrt()


def _product(op: str) -> Bound:
    """A sum of products with weights, and a bias: |W| e + delta(W) |x|, which is the same layer on errors."""

    def bound(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
        if "measured" in a:
            return of_inputs(a, rounding, x, e)

        def layer(weight: Tensor, value: Tensor) -> Tensor:
            return OPS[op]({**a, "weight": weight, "bias": None}, value)

        bias = 0.0 if a["bias"] is None else 2.0**-24 * float(a["bias"].abs().max())
        code = layer(torch.ones_like(a["weight"]), x.abs() + e) * delta(a["weight"], WEIGHT)
        return layer(a["weight"].abs(), e) + code + bias + rounding

    def of_inputs(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
        weight, bias = a["weight"].double(), 0.0 if a["bias"] is None else 2.0**-23 * float(a["bias"].abs().max())
        by_weight, by_input = columns_of(op, a, weight)

        def layer(weight: Tensor, value: Tensor) -> Tensor:
            return OPS[op]({**a, "weight": weight, "bias": None}, value)

        own = layer(by_weight, x.abs() + e) + layer(by_input, torch.ones_like(x))
        return layer(weight.abs(), e) + own + bias + rounding

    return bound


def _affine(op: str) -> Bound:
    def bound(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
        by = {"scale": a["scale"].abs(), "shift": torch.zeros_like(a["shift"])}
        shift = 2.0**-24 * float(a["shift"].abs().max())
        if "measured" in a:
            by_weight, by_input = columns_of(op, a, a["scale"].double())
            own = OPS[op](by | {"scale": by_weight}, x.abs() + e) + OPS[op](
                by | {"scale": by_input}, torch.ones_like(x)
            )
            return OPS[op](by, e) + own + 2 * shift + rounding
        return OPS[op](by, e) + (x.abs() + e) * delta(a["scale"], WEIGHT) + shift + rounding

    return bound


def _mean(op: str) -> Bound:
    """A sum and a reciprocal, the constant 1/n for n places at most."""

    def bound(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
        sums = OPS[op](a, x.abs() + e)
        places = a.get("divisor") or (math.prod(a["kernel"]) if "kernel" in a else x.numel() // sums.numel())
        return OPS[op](a, e) + sums * min(HALF * places, PRECISION) + rounding

    return bound


def _mul(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Tensor | None = None, f: Tensor | None = None) -> Tensor:
    if y is None or f is None:
        c = torch.as_tensor(a["value"], dtype=torch.float64)
        return e * c.abs() + (x.abs() + e) * delta(c, HALF) + rounding
    return x.abs() * f + y.abs() * e + e * f + rounding


def _add(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Tensor | None = None, f: Tensor | None = None) -> Tensor:
    if f is not None:
        return e + f + rounding
    return (
        e + HALF + rounding + torch.zeros_like(torch.as_tensor(a["value"], dtype=torch.float64))
    )  # which may broadcast


def _smooth(lipschitz: float) -> Bound:
    """Errors of pieces, and roundings: of a spline's comparisons, bends times distances, below 4, and three of |x|.

    Or of a table's shares before and after, which have 14 bits of fraction, and of its coefficients, one unit of these.
    """
    return lambda a, rounding, x, e: e * lipschitz + 2 * SPLINE + max(7, 4 * (1 + lipschitz)) * rounding


def _function(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """The largest slope within the errors of an element, taken at nine places, and the error of the table."""
    places = torch.linspace(-1, 1, 9, dtype=torch.float64).view(-1, *[1] * x.dim())
    near = OPS["function"](a, x + places * (e + 2.0**-12))
    slope = (near.diff(dim=0).abs() / ((e + 2.0**-12) / 4)).amax(0) * 1.25 + 2.0**-6
    return e * slope + 4 * SPLINE + max(7.0, 4.0) * (1 + slope) * rounding


def _softmax(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """exp (within s) over a sum S >= 1 of n: s / S + n s / S^2 + s for the reciprocal; slope 1/2 at most."""
    dim = a["dim"]
    total = (x - x.amax(dim, keepdim=True)).exp().sum(dim, keepdim=True)
    spline = OF_SOFTMAX + rounding
    own = spline / total + x.shape[dim] * spline / total**2 + spline
    return e.amax(dim, keepdim=True) / 2 + own + rounding + torch.zeros_like(x)


def _log_softmax(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """The sum S >= 1 errs by 2^-9 S + 2^-9, and its logarithm by 2^-11; slopes of x - log(sum exp x) are 2 together."""
    dim = a["dim"]
    total = (x - x.amax(dim, keepdim=True)).exp().sum(dim, keepdim=True)
    own = 2.0**-9 * (1 + 1 / total) + 2.0**-11 + (x.shape[dim] + 1) * rounding / total + 3 * rounding
    return 2 * e.amax(dim, keepdim=True) + own + torch.zeros_like(x)


def _argmax(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """The farthest place whose value may be the largest."""
    dim, keep = a["dim"], a["keepdim"]
    e = e + rounding
    rivals = x + e >= (x - e).amax(dim, keepdim=True)
    places = torch.arange(x.shape[dim], dtype=torch.float64).view(-1, *[1] * (x.dim() - 1 - dim % x.dim()))
    far = (places - x.argmax(dim, keepdim=True)).abs() * rivals
    return far.amax(dim, keepdim=keep)


def _hardswish(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """Slope at most 1.5, of x rounded to 12 bits of fraction; 18 times 1/6 to 2^-17. Of "gmw" it is less."""
    return 1.5 * (e + 16 * rounding) + 18 * 2.0**-17 + 2 * rounding


def _leaky(slope: Callable[[Attrs, Tensor], Tensor], half: float) -> Bound:
    def bound(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
        s = slope(a, x)
        return (
            e * s.abs().clamp(min=1.0)
            + (x.abs() + e) * (delta(s, half) + delta(1 - s, half))
            + (1 + s.abs()) * rounding
        )

    return bound


def _prelu_slope(a: Attrs, x: Tensor) -> Tensor:
    return a["weight"].double().view(-1, *[1] * max(0, x.dim() - 2))


def _extreme(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Any = None, f: Any = None) -> Tensor:
    return (e if f is None else torch.maximum(e, f)) + rounding + UNIT


def _greater(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Any = None, f: Any = None) -> Tensor:
    """1 where the values may be in the other order, or equal."""
    difference, error = (x - a["value"], e) if y is None else (x - y, e + f)
    return (difference.abs() <= error + 2 * rounding + UNIT).double()


def _resize(a: Attrs, rounding: float, x: Tensor, e: Tensor, *sizes: int) -> Tensor:
    """Errors through |weights|, and weights of each of two axes 2^-13 off, up to eight of them together by 2^-11.

    Weights of three axes are 2^-10, 2^-10 and 2^-9 off, both of each axis.
    """
    largest = (x.abs() + e).flatten(2).amax(2).view(*x.shape[:2], *[1] * (x.dim() - 2))
    own = 0.0 if exact_bits(a) is not None else 2.0**-6 if a["mode"] == "trilinear" else 2.0**-10
    magnitudes = 2.5 if a["mode"] == "bicubic" else 1.0
    spread = torch.zeros_like(OPS["resize"](a, e, *sizes[::2]))
    most = e.flatten(2).amax(2).view(largest.shape)
    return spread + magnitudes * most + own * largest + rounding


def _two(op: str) -> Bound:
    """A sum of products of two values."""

    def bound(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Tensor, f: Tensor) -> Tensor:
        return OPS[op](a, x.abs(), f) + OPS[op](a, e, y.abs() + f) + rounding

    return bound


def _norm(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """c / s of a row c, less its mean, and its root mean square s: with errors d of root mean square r, below s / 2,

        |(c + d) / s' - c / s| <= d / (s - r) + |c| r / (s (s - r))        for |s' - s| <= r

    and 2^-13 of the result. A row that is all errors, or of a variance below 2^-20, is within the root of its length.
    """
    return _divided(Statistic(a["center"], 0, a["eps"]), rounding, rows(a, x), rows(a, e)).reshape(x.shape)


def _rooted(found: Statistic, rounding: float, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows c less their means, bounds d of their errors, and the roots of the statistic of both."""
    centered = x - x.mean(-1, keepdim=True) if found.center else x
    moved = e + e.mean(-1, keepdim=True) + rounding if found.center else e
    divisor = found.divisor(x.shape[-1])
    s = (centered.square().sum(-1, keepdim=True) / divisor + found.eps).sqrt()
    return centered, moved, s, (moved.square().sum(-1, keepdim=True) / divisor).sqrt()


def _divided(found: Statistic, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """Bound of the error of rows that are divided by a root; see `_norm`."""
    centered, moved, s, r = _rooted(found, rounding, x, e)
    s, length = s.clamp(min=found.least), x.shape[-1]
    known = (r < s / 2) & (s.square() * found.divisor(length) > 2.0**-19 * length)
    left = (s - r).clamp(min=2.0**-30)
    bound = moved / left + centered.abs() * r / (s * left) + 2.0**-13 * centered.abs() / s + rounding
    most = 2.1 * found.divisor(length) ** 0.5
    return torch.where(known, bound, torch.full_like(bound, most))


def _moment(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    """|s' - s| <= r for roots s, which err by 2^-13 of themselves, and near 0; squares differ by 2 s r + r^2."""
    _, _, s, r = _rooted(moments.statistic(a), rounding, moments.rows(a["dims"], x), moments.rows(a["dims"], e))
    bound = r + 2.0**-13 * (1 + s + r) + rounding if a["root"] else 2 * s * r + r * r + rounding
    return moments.reduced(a, bound, x.dim())


def _normalize(a: Attrs, rounding: float, x: Tensor, e: Tensor) -> Tensor:
    own = (moments.rows(a["dims"], value) for value in (x, e))
    return moments.unrowed(a["dims"], _divided(moments.statistic(a), rounding, *own), x.shape)


def _cosine(a: Attrs, rounding: float, x: Tensor, e: Tensor, y: Tensor, f: Tensor) -> Tensor:
    """Rows of length 1 that err by E and F in all, and are cut to 15 bits: E + F + E F."""
    unit = Statistic(False, None, 0.0, a["eps"])
    both = [
        _divided(unit, rounding, v.movedim(a["dim"], -1), d.movedim(a["dim"], -1)) + rounding
        for v, d in (torch.broadcast_tensors(x, e), torch.broadcast_tensors(y, f))
    ]
    first, second = (bound.norm(dim=-1) for bound in both)
    return (first + second + first * second).clamp(max=2.1) + rounding


BOUNDS: dict[str, Bound] = {
    "conv": _product("conv"),
    "conv_transpose": _product("conv_transpose"),
    "linear": _product("linear"),
    "affine": _affine("affine"),
    "scale_last": _affine("scale_last"),
    "norm": _norm,
    "moment": _moment,
    "normalize": _normalize,
    "cosine": _cosine,
    "matmul": _two("matmul"),
    "einsum": _two("einsum"),
    "root_scale": lambda a, rounding, x, e: OPS["root_scale"](a, e) + (x.abs() + e) * WEIGHT + rounding,
    "causal": lambda a, rounding, x, e: e,
    "avg_pool": _mean("avg_pool"),
    "adaptive_avg_pool": _mean("adaptive_avg_pool"),
    "mean": _mean("mean"),
    "sum": lambda a, rounding, x, e: OPS["sum"](a, e),
    "max_pool": lambda a, rounding, x, e: OPS["max_pool"](a, e + rounding),
    "adaptive_max_pool": lambda a, rounding, x, e: OPS["adaptive_max_pool"](a, e + rounding),
    "relu": lambda a, rounding, x, e: e + rounding,
    "hardtanh": lambda a, rounding, x, e: e + rounding + UNIT,
    "leaky_relu": _leaky(lambda a, x: torch.tensor(a["slope"], dtype=torch.float64), HALF),
    "prelu": _leaky(_prelu_slope, WEIGHT),
    "sigmoid": _smooth(0.25),
    "tanh": _smooth(1.0),
    "silu": _smooth(1.1),
    "gelu": _smooth(1.13),
    "hardsigmoid": lambda a, rounding, x, e: e / 6 + 6 * HALF + rounding,
    "hardswish": _hardswish,
    "function": _function,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "argmax": _argmax,
    "mul": _mul,
    "square": lambda a, rounding, x, e: 2 * x.abs() * e + e * e + rounding,
    "add": _add,
    "sub": _add,
    "neg": lambda a, rounding, x, e: e,
    "cat": lambda a, rounding, xs, es: OPS["cat"](a, es) + rounding,
    "stack": lambda a, rounding, xs, es: OPS["stack"](a, es) + rounding,
    "abs": lambda a, rounding, x, e: e + 2 * rounding,
    "maximum": _extreme,
    "minimum": _extreme,
    "greater": _greater,
    "resize": _resize,
    "constant": lambda a, rounding: torch.full_like(a["value"].double(), HALF),
    "pad": lambda a, rounding, x, e: OPS["pad"]({**a, "value": HALF}, e),
    "shown": lambda a, rounding, x, e, mask, _: OPS["shown"](a, e, mask),
}
MOVES = builders.MOVES | {"output", "getitem", "size", "int", "public_constant", "public_call"}


def walk(steps: Sequence[Step], x: Tensor, parties: int, public: bool = False) -> tuple[list[Any], list[Any]]:
    """Value of every step for the input x, float64, and bounds on the errors in the same shapes; sizes are ints.

    public: hold weights that read the inputs to what is promised of public ones.
    """
    rounding = (parties / 2 + 1) * UNIT
    reading = measured(steps) if public else set()
    steps = [
        replace(step, attrs=step.attrs | {"measured": True}) if number in reading and step.op != "mul" else step
        for number, step in enumerate(steps)
    ]
    return carried(steps, x, HALF, lambda step, *given: BOUNDS[step.op](step.attrs, rounding, *given))


def carried(steps: Sequence[Step], x: Tensor, half: float, bound: Bound) -> tuple[list[Any], list[Any]]:
    """Values and bounds as of `walk`. half: an input's error. bound(step, value, error, ..): of all but moves."""
    values: list[Any] = []
    found: list[Any] = []

    for step in steps:
        given = (x.double(),) if step.op == "input" else arguments(step, values)
        if step.op == "input":
            found.append(torch.full_like(given[0], half))
        elif step.op in MOVES:
            found.append(OPS[step.op](step.attrs, *arguments(step, found)))
        else:
            errors = arguments(step, found)
            found.append(bound(step, *itertools.chain(*zip(given, errors, strict=True))))
        value = OPS[step.op](step.attrs, *given)
        values.append(value.double() if step.op == "argmax" else value)  # as a number: 3 is 3.0
    return values, found
