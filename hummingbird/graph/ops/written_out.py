"""Norms and other divisions by roots of squares that are written out, as in ONNX files and many nets.

    m = x.mean(-1, keepdim=True); c = x - m
    c / ((c ** 2).mean(-1, keepdim=True) + eps).sqrt()          is the step "norm"; without m, a root-mean-square norm
    x / x.norm(dim=1, keepdim=True).clamp(min=eps)              is the step "normalize"
    (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))         is a sum of products of such steps

A root of squares is a step "moment" (moments.py), which is dropped if nothing but the division reads it. An inverse
root alone has no private form: its value has the kind INVERSE until x is multiplied by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from hummingbird.graph.build import INVERSE, StepBuilder, Unsupported
from hummingbird.graph.ops import functions
from hummingbird.graph.ops.op import Spelling
from hummingbird.graph.steps import Ref, Step

NEGLIGIBLE = 2.0**-19  # an eps that is added to a root and may be a bound from below instead: 1e-6 is less


class _Squares(NamedTuple):
    """The squares of a value's rows, as "moment" has them: of the step `x`, over `dims`; see `moments.Statistic`."""

    x: Ref
    dims: tuple[int, ...] | None
    keepdim: bool
    center: bool
    correction: int | None
    eps: float
    least: float = 0.0


def sqrt(b: StepBuilder, input: Any) -> Ref:
    """Convert the root of a mean or sum of squares, and maybe a number, to a step "moment".

    The root of any other value is a function of one value. The steps are added to `b`; returns a reference to the
    result.
    """
    found = _root(b, input)
    return functions.emit(b, input, "sqrt(x)") if found is None else found


def rsqrt(b: StepBuilder, input: Any) -> Ref:
    """Convert the inverse root of a mean or sum of squares to a value of kind INVERSE, a factor of a norm.

    The inverse root of any other value is a function of one value. The steps are added to `b`; returns a reference to
    the result.
    """
    found = _root(b, input, ".root")
    return functions.emit(b, input, "rsqrt(x)") if found is None else _inverse(b, found)


def _root(b: StepBuilder, input: Any, suffix: str = "") -> Ref | None:
    """Emit steps for the root of a mean or sum of squares; return a reference to it, or None for another value."""
    if b.plain:
        raise Unsupported("a root of a private value")  # the caller computes it as it is
    value, factor = _unscaled(b, b.tensor(input))
    both = b.steps[value.index]
    parts = both.inputs if both.op == "mul" and len(both.inputs) == 2 else (value,)
    found = [_squares(b, part) for part in parts]
    if any(one is None for one in found):
        return None
    last = len(parts) == 1 and factor == 1
    roots = [_one_root(b, one, suffix if last else f"{suffix}.root{at or ''}") for at, one in enumerate(found) if one]
    if last:
        return roots[0]
    out = roots[0] if len(roots) == 1 else b.emit("mul", *roots, suffix=suffix if factor == 1 else ".roots")
    return out if factor == 1 else b.emit("mul", out, suffix=suffix, value=math.sqrt(factor))


def _unscaled(b: StepBuilder, value: Ref) -> tuple[Ref, float]:
    """Return (x, c) for a value c x with positive numbers c, which products and quotients have; else (value, 1)."""
    factor = 1.0
    while (step := b.steps[value.index]).op == "mul" and len(step.inputs) == 1:
        number = step.attrs["value"]
        if isinstance(number, Tensor) and (number.numel() != 1 or number.is_meta or b.is_hidden(number)):
            break
        if not float(number) > 0:
            break
        value, factor = step.inputs[0], factor * float(number)
    return value, factor


def _one_root(b: StepBuilder, found: _Squares, suffix: str) -> Ref:
    attrs = found._asdict()
    x, least = attrs.pop("x"), attrs.pop("least")
    if not least:
        return b.emit("moment", x, suffix=suffix, **attrs, root=True)
    unbounded = b.emit("moment", x, suffix=f"{suffix}.unbounded", **attrs, root=True)
    return b.emit("maximum", unbounded, suffix=suffix, value=least)


def _inverse(b: StepBuilder, root: Ref) -> Ref:
    return b.emit("add", root, suffix=".inverse", kind=INVERSE, value=0.0)


def _squares(b: StepBuilder, value: Ref) -> _Squares | None:
    """Recognize a mean or sum of squares, plus a number, and maybe bounded from below; None for another value."""
    step, least = b.steps[value.index], 0.0
    added: Any = 0.0
    if step.op == "maximum" and step.attrs.get("value", -1.0) >= 0:
        step, least = b.steps[step.inputs[0].index], math.sqrt(step.attrs["value"])
    if step.op == "add" and len(step.inputs) == 1:
        step, added = b.steps[step.inputs[0].index], step.attrs["value"]
    found = _plain_squares(b, step)
    if found is None:
        return None
    eps = _number(b, added)
    if eps is None and added.numel() == 1:
        b.check_told(added, "the eps of a norm, which all parties see,")
    return None if eps is None or eps < 0 else found._replace(eps=found.eps + eps, least=least)


def _plain_squares(b: StepBuilder, step: Step) -> _Squares | None:
    """Recognize a variance, or a mean or sum of squares; None for another step."""
    a = step.attrs
    if step.op == "moment" and not a["root"]:
        return _Squares(step.inputs[0], a["dims"], a["keepdim"], a["center"], a["correction"], a["eps"])
    square = b.steps[step.inputs[0].index] if step.op in ("mean", "sum") else step
    if square.op != "square" or square is step:
        return None
    x, dims = square.inputs[0], a["dims"]
    mean = _less_mean(b, x)
    center = mean is not None and dims is not None and sorted(mean[1]) == sorted(dims)
    correction = 0 if step.op == "mean" else None
    return _Squares(mean[0] if mean and center else x, dims, a["keepdim"], center, correction, 0.0)


def multiplied(b: StepBuilder, input: Any, inverse: Ref) -> Ref:
    """Convert a product with the inverse of the root of a value's own squares to a step "norm" or "normalize".

    inverse: a value of kind INVERSE. If it is the inverse of another value's root, the result is a product with a
    reciprocal, a function of one value. The steps are added to `b`; returns a reference to the result.
    """
    root = b.steps[inverse.index].inputs[0]
    made = divided(b, input, root)
    if made is None:
        made = b.emit("mul", b.tensor(input), functions.emit(b, root, "reciprocal(x)", ".reciprocal"))
    return made


def divided(b: StepBuilder, input: Any, root: Ref) -> Ref | None:
    """Convert a division by the root of a value's own squares to a step "norm" or "normalize"; else return None.

    input: the value that is divided, or the sum of its products with another value, for a product of both roots. For
        the constant 1 the result is a value of kind INVERSE, a factor of a norm.
    root: the divisor: a step "moment" with a root, or a product of two of them, with a factor and a bound as in
        `_unbounded`. A negligible bound of a product of two roots is left out.
    The steps are added to `b`; returns a reference to the result.
    """
    spread = b.steps[root.index]
    whole = spread.inputs[0] if spread.op == "expand" else root
    value, factor, least = _unbounded(b, whole)
    step = b.steps[value.index]
    if step.op == "mul" and len(step.inputs) == 2 and spread.op != "expand" and isinstance(input, Ref):
        return _cosine(b, input, step) if factor == 1 and least <= NEGLIGIBLE else None
    if step.op != "moment" or not step.attrs["root"]:
        return None
    if is_one(input):
        return _inverse(b, root)
    center = step.attrs["center"]
    mean = _less_mean(b, input) if center and isinstance(input, Ref) else None
    own = input == step.inputs[0] if not center else mean is not None and _same(mean, step)
    if not own or not (step.attrs["keepdim"] or step.attrs["dims"] is None):
        return None
    wide, name = spread.op == "expand", b.name
    b.name += ".normalized" if wide or factor != 1 else ""
    made = _divided(b, step, least)
    b.name = name
    if factor != 1:
        made = b.emit("mul", made, suffix=".scaled" if wide else "", value=1 / factor)
    return b.emit("expand", made, *spread.inputs[1:], **spread.attrs) if wide else made


def _unbounded(b: StepBuilder, value: Ref) -> tuple[Ref, float, float]:
    """Return (x, c, m) for a value c max(x, m) with public numbers c > 0 and m; m is 0 if the value has no bound.

    The sum c x + c m counts as c max(x, m) if m is negligible.
    """
    step = b.steps[value.index]
    if step.op == "maximum" and step.attrs.get("value", -1.0) >= 0:
        x, factor = _unscaled(b, step.inputs[0])
        return x, factor, float(step.attrs["value"]) / factor
    if step.op == "add" and len(step.inputs) == 1 and b.kind(value) != INVERSE:
        x, factor = _unscaled(b, step.inputs[0])
        number = _number(b, step.attrs["value"]) if b.steps[x.index].op in ("moment", "mul") else None
        if number is not None and 0 < number <= NEGLIGIBLE * factor:
            return x, factor, number / factor
    return *_unscaled(b, value), 0.0


def _same(mean: tuple[Ref, tuple[int, ...]], moment: Step) -> bool:
    """Whether a mean is that of the value and of the dimensions of a step "moment"."""
    dims = moment.attrs["dims"]
    return mean[0] == moment.inputs[0] and dims is not None and sorted(mean[1]) == sorted(dims)


def _divided(b: StepBuilder, moment: Step, least: float, suffix: str = "") -> Ref:
    """Emit the division of a step's own rows by the root that a step "moment" computes, bounded from below."""
    a, x = moment.attrs, moment.inputs[0]
    if a["correction"] == 0 and not least and a["dims"] is not None:
        return _written(b, x, a["dims"], a["eps"], a["center"])
    kept = {name: a[name] for name in ("dims", "center", "correction", "eps")}
    return b.emit("normalize", x, suffix=suffix, **kept, least=least)


def _cosine(b: StepBuilder, input: Ref, roots: Step) -> Ref | None:
    """Convert a sum of products of two rows, divided by the product of their norms, to steps; else return None.

    roots: the product of both norms.
    """
    total, norms = b.steps[input.index], [b.steps[ref.index] for ref in roots.inputs]
    product = b.steps[total.inputs[0].index] if total.op == "sum" else total
    if product is total or product.op != "mul" or len(product.inputs) != 2:
        return None
    dims = total.attrs["dims"]
    plain = {"center": False, "correction": None, "eps": 0.0, "root": True} | total.attrs
    if any(one.op != "moment" or one.attrs != plain for one in norms) or dims is None:
        return None
    if sorted(ref.index for ref in product.inputs) != sorted(one.inputs[0].index for one in norms):
        return None
    ranks = [b.rank(ref) for ref in product.inputs]
    if max(dims) >= 0 and None not in ranks and ranks[0] != ranks[1]:
        return None  # a dimension that is counted from the front is another one in the product
    rows = [_divided(b, one, 0.0, f".normalized{at}") for at, one in enumerate(norms)]
    return b.emit("sum", b.emit("mul", *rows, suffix=".products"), **total.attrs)


def is_one(value: Any) -> bool:
    """Whether a constant is the number 1."""
    one = isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta)
    return one and bool(value == 1)


def _less_mean(b: StepBuilder, value: Ref) -> tuple[Ref, tuple[int, ...]] | None:
    """Recognize the value x - x.mean(dimensions, keepdim=True); return x and the dimensions.

    value: a reference to the value; x is returned as a reference, too. Returns None for a value that was computed in
    another way.
    """
    step = b.steps[value.index]
    if step.op != "sub" or len(step.inputs) != 2:
        return None
    mean = b.steps[step.inputs[1].index]
    fits = mean.op == "mean" and mean.attrs["keepdim"] and mean.attrs["dims"] is not None
    return (step.inputs[0], mean.attrs["dims"]) if fits and mean.inputs == step.inputs[:1] else None


_ROUND = [float(f"{digit}e{power}") for power in range(0, -17, -1) for digit in range(10)]


def _number(b: StepBuilder, value: Any) -> float | None:
    """Return the eps of a norm as a number, if `value` is a number or a tensor of one element; None for larger tensors.

    Like the eps of torch's norms it is public. A tensor that must not become a number, since it may be a secret that
    was learned, is only compared with round numbers such as 1e-5 or 3e-7. If it equals none of them, None is returned.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        return None
    if isinstance(value, Tensor) and value.is_meta:
        raise Unsupported("the eps of a norm has no value, on the meta device", "write the number into the code")
    if b.is_hidden(value):
        return next((number for number in _ROUND if bool((value == number).all())), None)
    return float(value)


def _written(b: StepBuilder, x: Ref, dims: Sequence[int], eps: float, center: bool) -> Ref:
    """Emit a norm of x over the dimensions `dims`; if these are not the last ones, permute them to the end and back.

    eps: the norm's constant. center: whether the norm subtracts the mean. The steps are added to `b`; returns a
    reference to the result. Raises Unsupported if the rank of x is not known, unless `dims` are the last dimensions,
    counted from the end.
    """
    attrs: dict[str, Any] = {"last": len(dims), "groups": None, "eps": eps, "center": center, "sizes": None}
    if sorted(dims) == [*range(-len(dims), 0)]:
        return b.emit("norm", x, **attrs)
    rank = b.rank(x)
    if not isinstance(rank, int):
        hint = "name the last dimensions from the end, x.mean(-1, keepdim=True), or give an example="
        raise Unsupported(f"a norm over dimensions {tuple(dims)} of a value whose rank is not known", hint)
    taken = sorted(dim % rank for dim in dims)
    order = [*(dim for dim in range(rank) if dim not in taken), *taken]
    if order == [*range(rank)]:
        return b.emit("norm", x, **attrs)
    turned = b.emit("permute", x, suffix=".turned", dims=tuple(order))
    made = b.emit("norm", turned, suffix=".norm", **attrs)
    return b.emit("permute", made, dims=tuple(order.index(dim) for dim in range(rank)))


SPELLINGS = [Spelling(sqrt, "sqrt"), Spelling(rsqrt, "rsqrt")]
