"""Statistics of rows: norms, variances and deviations, rows of length 1, and cosines: rules and meanings.

A row is a vector along the dimensions `dims`, with n values. Two operations have these attributes in common:

    "moment":       d = (sum of (x - mean)^2) / divisor + eps, or its root, one number for each row
    "normalize":    (x - mean) / max(sqrt(d), least)

The mean is subtracted if `center` says so. The divisor is n - correction, as of a variance, or 1 if `correction` is
None, as of a norm. "cosine" multiplies two rows of length 1. The relative error of a root near 0 has no bound:
hummingbird/mpc/layers/moments.py says how small a sum of squares may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported, no_dtype
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.arithmetic import arithmetic, value
from hummingbird.graph.ops.op import Attrs, Op, Spelling
from hummingbird.graph.steps import Ref, Step

_P = "p=2, the root of the sum of squares, and p=1, the sum of magnitudes, are known"


class Statistic(NamedTuple):
    """The attributes of a statistic of rows, which is a result, or whose root divides the rows.

    center: whether the row's mean is subtracted first.
    correction: the sum of squares of n values is divided by n - correction; None: it is not divided.
    eps: is added to this quotient.
    least: a bound, by which a smaller root is replaced.
    """

    center: bool
    correction: int | None
    eps: float
    least: float = 0.0

    def divisor(self, length: int) -> int:
        """Return the number by which the sum of squares of a row of `length` values is divided.

        Raises InputError if it is not positive, where torch has infinity or NaN.
        """
        divisor = 1 if self.correction is None else length - self.correction
        if divisor < 1:
            what = f"a variance of {length} value(s), with correction {self.correction}"
            raise InputError(what, hint="rows of more values, or correction=0")
        return divisor


def statistic(a: Attrs) -> Statistic:
    """Return the statistic of a step "moment" or "normalize". a: the step's attributes."""
    return Statistic(a["center"], a["correction"], a["eps"], a.get("least", 0.0))


# Rules ---------------------------------------------------------------------------------------------------------------


def vector_norm(
    b: StepBuilder, input: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False, dtype: Any = None
) -> Ref:
    """Convert a call of torch.linalg.vector_norm to steps, for ord 2 or 1.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    no_dtype(dtype)
    x, dims, keep = b.tensor(input), _dims(b, dim, keepdim), bool(keepdim)
    if ord in (1, 1.0):
        return b.emit("sum", b.emit("abs", x, suffix=".magnitudes"), dims=dims, keepdim=keep)
    if ord not in (2, 2.0):
        raise Unsupported(f"a norm with p={b._show(ord)}", f"{_P}; for the largest one, adaptive_max_pool1d of x.abs()")
    return b.emit("moment", x, dims=dims, keepdim=keep, center=False, correction=None, eps=0.0, root=True)


def norm(
    b: StepBuilder,
    input: Any,
    p: Any = "fro",
    dim: Any = None,
    keepdim: Any = False,
    out: None = None,
    dtype: Any = None,
) -> Ref:
    """Convert a call of torch.norm, a function or a method, to steps, for p 2 or 1, or "fro"; arguments as in torch."""
    return vector_norm(b, input, 2 if p in ("fro", None) else p, dim, keepdim, dtype)


def linalg_norm(
    b: StepBuilder, A: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> Ref:
    """Convert a call of torch.linalg.norm to steps, for vectors, and for matrices by ord None or "fro".

    Raises Unsupported for other norms of matrices. The other arguments are as in torch.
    """
    if ord not in (None, "fro") and (dim is None or (isinstance(dim, (tuple, list)) and len(dim) != 1)):
        raise Unsupported(f"the norm of a matrix with ord={b._show(ord)}", "torch.linalg.vector_norm(x, ord, dim)")
    return norm(b, A, ord, dim, keepdim, dtype=dtype)


def _dims(b: StepBuilder, dim: Any, keepdim: Any) -> tuple[int, ...] | None:
    """Return the dimensions of a call as a tuple; None for all of them."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        if keepdim:
            raise Unsupported("a statistic of everything with keepdim=True", "name the dimensions")
        return None
    return b.ints(dim, len(dim) if isinstance(dim, (tuple, list)) else 1, "dim")


def variance(
    b: StepBuilder,
    input: Any,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: Any = False,
    *,
    correction: Any = None,
    root: bool,
) -> Ref:
    """Convert a call of torch.var (root=False) or torch.std (root=True) to a step; the correction is an integer.

    The step is added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    if isinstance(dim, bool):  # torch.var(x, unbiased)
        dim, unbiased = None, dim
    less = (1 if unbiased else 0) if correction is None else correction
    if isinstance(less, bool) or not isinstance(less, (int, float)) or less != int(less) or less < 0:
        raise Unsupported(f"a variance with correction {b._show(correction)}", "an integer from 0")
    attrs: dict[str, Any] = {"dims": _dims(b, dim, keepdim), "keepdim": bool(keepdim), "center": True}
    return b.emit("moment", b.tensor(input), **attrs, correction=int(less), eps=0.0, root=root)


def with_mean(b: StepBuilder, input: Any, *args: Any, root: bool, **kwargs: Any) -> tuple[Ref, Ref]:
    """Convert a call of torch.var_mean or torch.std_mean to steps; return references to both results.

    The arguments are those of `variance`.
    """
    found = variance(b, input, *args, root=root, **kwargs)
    a = b.steps[found.index].attrs
    return found, b.emit("mean", b.tensor(input), suffix=".mean", dims=a["dims"], keepdim=a["keepdim"])


def normalize(b: StepBuilder, input: Any, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12, out: None = None) -> Ref:
    """Convert a call of F.normalize with p=2 to a step; the other arguments are as in torch."""
    if p not in (2, 2.0):
        raise Unsupported(f"normalize with p={b._show(p)}", "p=2: the vectors get length 1")
    dims = b.ints(dim, len(dim) if isinstance(dim, (tuple, list)) else 1, "dim")
    least = b.number(eps, "eps")
    return b.emit("normalize", b.tensor(input), dims=dims, center=False, correction=None, eps=0.0, least=least)


def cosine(b: StepBuilder, x1: Any, x2: Any, dim: Any = 1, eps: Any = 1e-8) -> Ref:
    """Convert a call of F.cosine_similarity to a step; one operand may be a constant.

    The steps are added to `b`; returns a reference to the result. The other arguments are as in torch.
    """
    (axis,) = b.ints(dim, 1, "dim")
    return b.emit("cosine", value(b, x1), value(b, x2), dim=axis, eps=b.number(eps, "eps"))


def distance(b: StepBuilder, x1: Any, x2: Any, p: Any = 2.0, eps: Any = 1e-6, keepdim: Any = False) -> Ref:
    """Convert a call of F.pairwise_distance, the norm of x1 - x2 + eps, to steps; the arguments are as in torch."""
    name, least = b.name, b.number(eps, "eps")
    b.name = f"{name}.difference"
    apart = arithmetic("sub")(b, x1, x2)
    b.name = name
    moved = b.emit("add", apart, suffix=".moved", value=least) if least else apart
    return vector_norm(b, moved, p, -1, keepdim)


def distance_layer(b: StepBuilder, x1: Any, x2: Any, norm: Any, eps: Any, keepdim: Any) -> Ref:
    return distance(b, x1, x2, norm, eps, keepdim)


# Meanings ------------------------------------------------------------------------------------------------------------


def rows(dims: Sequence[int] | None, x: Tensor) -> Tensor:
    """Return x as (..., n), with each row in the last dimension. dims: those of a row, in any order; None: all."""
    if dims is None:
        return x.reshape(-1)
    return x.movedim(tuple(dims), tuple(range(-len(dims), 0))).flatten(-len(dims))


def unrowed(dims: Sequence[int] | None, y: Tensor, shape: Sequence[int]) -> Tensor:
    """Return rows y, as `rows` makes them of a value of this shape, in their places in that shape."""
    if dims is None:
        return y.reshape(shape)
    places = {dim % len(shape) for dim in dims}
    sizes = [size for dim, size in enumerate(shape) if dim not in places]
    own = [shape[dim] for dim in dims]
    return y.reshape(sizes + own).movedim(tuple(range(-len(dims), 0)), tuple(dims))


def reduced(a: Attrs, y: Tensor, rank: int) -> Tensor:
    """Return one number for each row, (..., 1), in the shape that the attributes `dims` and `keepdim` give the result.

    rank: how many dimensions the rows' value has.
    """
    y = y.squeeze(-1)
    for dim in sorted(dim % rank for dim in a["dims"]) if a["keepdim"] and a["dims"] is not None else ():
        y = y.unsqueeze(dim)
    return y


def _squares(a: Attrs, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of x, less their means if `center` says so, and their moments (..., 1), in plain torch."""
    found, y = statistic(a), rows(a["dims"], x)
    centered = y - y.mean(-1, keepdim=True) if found.center else y
    return centered, centered.square().sum(-1, keepdim=True) / found.divisor(y.shape[-1]) + found.eps


def _moment(a: Attrs, x: Tensor) -> Tensor:
    out = _squares(a, x)[1]
    return reduced(a, out.sqrt() if a["root"] else out, x.dim())


def _normalize(a: Attrs, x: Tensor) -> Tensor:
    y, moment = _squares(a, x)
    return unrowed(a["dims"], y / moment.sqrt().clamp(min=a["least"]), x.shape)


def _check(step: Step) -> None:
    a = step.attrs
    if not (0 <= a["eps"] < math.inf and 0 <= a.get("least", 0.0) < math.inf):
        raise ValueError("eps and least are numbers from 0")
    if a["dims"] is None and a.get("keepdim"):
        raise ValueError("a statistic of everything keeps no dimension")


_ROWS = "center=bool correction=whole|none eps=number"

OPS = [
    Op(
        "moment",
        _moment,
        ranks.reduced,
        [
            Spelling(norm, "norm"),
            Spelling(vector_norm, functions=(torch.linalg.vector_norm,)),
            Spelling(linalg_norm, functions=(torch.linalg.norm,)),
            Spelling(partial(variance, root=False), "var"),
            Spelling(partial(variance, root=True), "std"),
            Spelling(partial(with_mean, root=False), "var_mean"),
            Spelling(partial(with_mean, root=True), "std_mean"),
            Spelling(distance, "pairwise_distance"),
            Spelling(distance_layer, modules={nn.PairwiseDistance: "norm eps keepdim"}),
        ],
        attrs=f"dims=ints|none keepdim=bool {_ROWS} root=bool",
        check=_check,
        batch=batch.reduced,
    ),
    Op(
        "normalize",
        _normalize,
        ranks.same,
        [Spelling(normalize, "normalize")],
        attrs=f"dims=ints|none {_ROWS} least=number",
        check=_check,
        batch=batch.apart(axis=lambda a, shape: range(len(shape)) if a["dims"] is None else a["dims"]),
    ),
    Op(
        "cosine",
        lambda a, x, y: F.cosine_similarity(x, y, a["dim"], a["eps"]),
        ranks.more(lambda a: -1),
        [Spelling(cosine, "cosine_similarity", {nn.CosineSimilarity: "dim eps"})],
        inputs="x x",
        attrs="dim=int eps=number",
        batch=batch.cosines,
    ),
]
