"""ONNX's operators of arithmetic, activations, reductions and products, by torch's functions.

Where ONNX and torch differ: Div and Mod of integers, PRelu's slopes, Softmax before version 13 (over all dimensions
from `axis` on), and Gemm's factors.
"""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hummingbird.errors import InputError
from hummingbird.graph.batch import BatchSize
from hummingbird.graph.programs.onnx.values import (
    axis_of,
    ints,
    is_known,
    known,
    number,
    operand,
    operator,
    rank,
    shape,
    tensor,
    unlike,
)

# Elementwise ---------------------------------------------------------------------------------------------------------


def _unary(name: str, newest: int, function: Callable[[Any], Any]) -> None:
    def apply(X: Any) -> Any:
        if not is_known(X):
            return function(X)
        if X.dtype == object:
            raise InputError("a size of the batch beside numbers", hint="compute with sizes one by one")
        return known(function(torch.from_numpy(X.copy())).numpy())

    operator(name, newest)(apply)


for _name, _newest, _function in (
    ("Abs", 13, torch.abs),
    ("Acos", 22, torch.acos),
    ("Acosh", 22, torch.acosh),
    ("Asin", 22, torch.asin),
    ("Asinh", 22, torch.asinh),
    ("Atan", 22, torch.atan),
    ("Atanh", 22, torch.atanh),
    ("Cos", 22, torch.cos),
    ("Cosh", 22, torch.cosh),
    ("Erf", 13, torch.erf),
    ("Exp", 13, torch.exp),
    ("HardSwish", 22, F.hardswish),
    ("IsNaN", 20, torch.isnan),
    ("Log", 13, torch.log),
    ("Mish", 22, F.mish),
    ("Neg", 13, torch.neg),
    ("Not", 1, torch.logical_not),
    ("Reciprocal", 13, lambda x: 1 / x),
    ("Relu", 14, torch.relu),
    ("Round", 22, torch.round),
    ("Sigmoid", 13, torch.sigmoid),
    ("Sign", 13, torch.sign),
    ("Sin", 22, torch.sin),
    ("Sinh", 22, torch.sinh),
    ("Softplus", 22, lambda x: F.softplus(x)),
    ("Softsign", 22, lambda x: F.softsign(x)),
    ("Sqrt", 13, torch.sqrt),
    ("Tan", 22, torch.tan),
    ("Tanh", 13, torch.tanh),
):
    _unary(_name, _newest, _function)


@operator("Floor", 13)
@operator("Ceil", 13)
def rounded(X: Any, *, op: str) -> Any:
    """Compute ONNX's Floor or Ceil. op: which of them. Sizes that grow with the batch are returned unchanged."""
    if is_known(X) and X.dtype == object:
        return X
    function = torch.floor if op == "Floor" else torch.ceil
    return known(function(torch.from_numpy(X.copy())).numpy()) if is_known(X) else function(X)


def _binary(name: str, newest: int, function: Callable[[Any, Any], Any], exact: Callable[[Any, Any], Any]) -> None:
    """Enter an operator of ONNX with two inputs, such as Add, into the table of operators.

    name: ONNX's name. newest: the last version of the operator that is known. function: computes it for tensors. exact:
    computes it where both inputs are known numbers, which are numpy arrays.
    """

    def apply(A: Any, B: Any) -> Any:
        if is_known(A) and is_known(B):
            return known(exact(A, B))
        return function(operand(A, B), operand(B, A))

    operator(name, newest)(apply)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) if isinstance(value, (int, float)) else not value.is_floating_point()


def _divided(a: Any, b: Any) -> Any:
    if _is_integer(a) and _is_integer(b):
        return torch.div(a, b, rounding_mode="trunc")
    return a / b


def _whole_quotient(a: Any, b: Any) -> Any:
    """Return a / b rounded towards zero, for two integers; a size that grows with the batch is divided by // alone."""
    if isinstance(a, BatchSize) or isinstance(b, BatchSize):
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_quotients = np.frompyfunc(_whole_quotient, 2, 1)


def _divided_exactly(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return a / b
    if not np.all(b != 0):
        raise InputError("a division by zero", hint="the file is wrong")
    found = np.asarray(_quotients(a.astype(object), b.astype(object)), dtype=object)
    return _typed(found, a)


def _typed(found: Any, like: Any) -> Any:
    """Return the array `found`, of dtype object, converted to the dtype of the array `like`.

    If `found` has sizes that grow with the batch, or `like` has the dtype object too, `found` is returned as it is.
    """
    sizes = any(isinstance(item, BatchSize) for item in found.reshape(-1).tolist())
    return found if sizes or like.dtype == object else found.astype(like.dtype)


def _power(a: Any, b: Any) -> Any:
    result = a**b
    if isinstance(a, (int, float)) or a.is_floating_point():
        return result
    return result.to(a.dtype)  # ONNX: the type of the base


for _name, _newest, _pair, _exact in (
    ("Add", 14, python.add, np.add),
    ("Sub", 14, python.sub, np.subtract),
    ("Mul", 14, python.mul, np.multiply),
    ("Div", 14, _divided, _divided_exactly),
    ("Equal", 19, python.eq, np.equal),
    ("Greater", 13, python.gt, np.greater),
    ("GreaterOrEqual", 16, python.ge, np.greater_equal),
    ("Less", 13, python.lt, np.less),
    ("LessOrEqual", 16, python.le, np.less_equal),
    ("And", 7, torch.logical_and, np.logical_and),
    ("Or", 7, torch.logical_or, np.logical_or),
    ("Xor", 7, torch.logical_xor, np.logical_xor),
):
    _binary(_name, _newest, _pair, _exact)


@operator("Pow", 15, numbers=(1,))
def power(X: Any, Y: Any) -> Any:
    if is_known(X) and is_known(Y):
        return known(np.power(X, Y).astype(X.dtype))
    if is_known(Y) and Y.size == 1 and abs(float(Y.reshape(-1)[0]) - 0.5) < 1e-6:  # torch writes 1 / (2 + 1e-6)
        return torch.sqrt(tensor(X))
    return _power(operand(X, Y), operand(Y, X))


@operator("Mod", 28)
def mod(A: Any, B: Any, *, fmod: int = 0) -> Any:
    if is_known(A) and is_known(B):
        return known((np.fmod if fmod else np.mod)(A, B))
    return (torch.fmod if fmod else torch.remainder)(operand(A, B), operand(B, A))


def _extreme(
    pair: Callable[[Any, Any], Any], exact: Any, limit: Callable[[Any, Any], Any], none: float
) -> Callable[..., Any]:
    def apply(*data: Any) -> Any:
        found = data[0]
        for other in data[1:]:
            if is_known(found) and is_known(other):
                found = known(exact(found, other))
                continue
            a, b = operand(found, other), operand(other, found)
            if isinstance(a, (int, float)):
                a, b = b, a
            if isinstance(b, float) and b == none:
                found = a
            else:
                found = limit(a, b) if isinstance(b, (int, float)) else pair(a, b)
        return found

    return apply


operator("Max", 13)(_extreme(torch.maximum, np.maximum, lambda x, low: torch.clamp(x, min=low), -math.inf))
operator("Min", 13)(_extreme(torch.minimum, np.minimum, lambda x, high: torch.clamp(x, max=high), math.inf))


@operator("Sum", 13)
@operator("Mean", 13)
def total(*data: Any, op: str) -> Any:
    """Compute ONNX's Sum or Mean: the sum or the mean of several values, which are broadcast to one shape.

    op: "Sum" or "Mean".
    """
    found = tensor(data[0])
    for other in data[1:]:
        found = found + operand(other, found)
    return found / len(data) if op == "Mean" and len(data) > 1 else found


@operator("Where", 16)
def where(condition: Any, X: Any, Y: Any) -> Any:
    if all(map(is_known, (condition, X, Y))):
        return known(np.where(condition, X, Y))
    return torch.where(tensor(condition), operand(X, condition), operand(Y, condition))


@operator("Clip", 13, numbers=(1, 2))
def clip(input: Any, min: Any = None, max: Any = None) -> Any:
    if not all(bound is None or is_known(bound) or isinstance(bound, float) for bound in (min, max)):
        found = input if min is None else torch.maximum(input, tensor(min))
        return found if max is None else torch.minimum(found, tensor(max))
    low, high = (None if bound is None else number(bound, "a limit") for bound in (min, max))
    if low is not None and low <= -3.4e38:  # the lowest number of float32, the default of version 6
        low = None
    if high is not None and high >= 3.4e38:
        high = None
    if is_known(input):
        return known(np.minimum(np.maximum(input, -np.inf if low is None else low), np.inf if high is None else high))
    return input if low is None and high is None else torch.clamp(input, low, high)


# Activations ---------------------------------------------------------------------------------------------------------


@operator("LeakyRelu", 16)
def leaky_relu(X: Any, *, alpha: float = 0.01) -> Any:
    return F.leaky_relu(X, alpha)


@operator("PRelu", 16)
def prelu(X: Any, slope: Any) -> Any:
    """Compute ONNX's PRelu: x where x is above 0, else slope * x. The slope is broadcast to the shape of x.

    Where each channel has one slope, torch's PReLU computes it.
    """
    slope, sizes = tensor(slope), shape(slope)
    own = len(sizes) - (rank(X) - 1)  # the slope's dimension beside the channels
    if all(size == 1 for place, size in enumerate(sizes) if place != own):
        return F.prelu(X, slope.reshape(-1))
    positive = torch.relu(X)
    return positive + slope * (X - positive)


@operator("Elu", 22)
def elu(X: Any, *, alpha: float = 1.0) -> Any:
    return F.elu(X, alpha)


@operator("Celu", 28)
def celu(X: Any, *, alpha: float = 1.0) -> Any:
    return F.celu(X, alpha)


@operator("Selu", 22)
def selu(X: Any, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    usual = math.isclose(alpha, 1.6732632423543772, rel_tol=1e-6) and math.isclose(gamma, 1.05070098, rel_tol=1e-6)
    return F.selu(X) if usual else gamma * F.elu(X, alpha)


@operator("Gelu", 20)
def gelu(X: Any, *, approximate: str = "none") -> Any:
    unlike("approximate", approximate, "none", "tanh")
    return F.gelu(X, approximate=approximate)


@operator("HardSigmoid", 22)
def hard_sigmoid(X: Any, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(X)
    return torch.clamp(X * alpha + beta, 0.0, 1.0)


@operator("Swish", 24)
def swish(X: Any, *, alpha: float = 1.0) -> Any:
    return F.silu(X) if alpha == 1 else X * torch.sigmoid(X * alpha)


@operator("SwiGLU", 28)
def swiglu(A: Any, B: Any, *, alpha: float = 1.0) -> Any:
    return swish(A, alpha=alpha) * B


@operator("ThresholdedRelu", 22)
def thresholded_relu(X: Any, *, alpha: float = 1.0) -> Any:
    return F.threshold(X, alpha, 0.0)


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(input: Any, *, axis: int | None = None, version: int) -> Any:
        place = axis_of((-1 if version >= 13 else 1) if axis is None else axis, rank(input))
        if version >= 13 or place == rank(input) - 1:
            return function(input, dim=place)
        return function(input.flatten(place), dim=-1).reshape(shape(input))

    return apply


operator("Softmax", 13)(_softmax(F.softmax))
operator("LogSoftmax", 13)(_softmax(F.log_softmax))


@operator("Dropout", 22, numbers=(1, 2))
def dropout(data: Any, ratio: Any = None, training_mode: Any = None, *, seed: int | None = None) -> Any:
    if training_mode is not None and number(training_mode, "training_mode"):
        raise InputError("a dropout in training mode", hint="export the net in eval mode")
    return data


# Reductions ----------------------------------------------------------------------------------------------------------


def _reduced(name: str, newest: int, function: Callable[[Any, list[int], bool], Any], exact: Any = None) -> None:
    """Enter a reduction of ONNX, such as ReduceSum, into the table of operators.

    name: ONNX's name. newest: the last version of the operator that is known. function: computes it for a tensor, a
    list of dimensions, and whether these stay with size 1. exact: numpy's function for known numbers, or None.
    """

    def apply(data: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        given = [] if axes is None else [axis_of(axis, rank(data)) for axis in ints(axes, "axes")]
        if not given and noop_with_empty_axes:
            if name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
                return data
            raise InputError("noop_with_empty_axes without axes", hint="name the axes")
        dims = given or list(range(rank(data)))
        if is_known(data) and exact is not None:
            return known(exact(data, axis=tuple(dims), keepdims=bool(keepdims)))
        return function(tensor(data), dims, bool(keepdims)) if dims else function(tensor(data).reshape(1), [0], False)

    operator(name, newest)(apply)


def _largest(x: Any, dims: list[int], keep: bool) -> Any:
    """Return the maximum over the dimensions `dims`, as torch.amax does.

    Where they are dimensions of one image, adaptive max pooling computes it, because that has a private form. keep:
    whether the dimensions stay, with size 1.
    """
    sizes = shape(x)
    if 0 in dims or not x.is_floating_point() or any(type(sizes[dim]) is not int for dim in dims):
        return torch.amax(x, dims, keep)
    rest = [dim for dim in range(len(sizes)) if dim not in dims]
    order = [*rest, *sorted(dims)]
    turned = x if order == list(range(len(sizes))) else x.permute(order)
    rows = turned.reshape(sizes[0], -1, math.prod(sizes[dim] for dim in dims))
    most = F.adaptive_max_pool1d(rows, 1)
    return most.reshape([1 if dim in dims else size for dim, size in enumerate(sizes) if keep or dim not in dims])


def _smallest(x: Any, dims: list[int], keep: bool) -> Any:
    return -_largest(-x, dims, keep) if x.is_floating_point() else torch.amin(x, dims, keep)


def _product(x: Any, dims: list[int], keep: bool) -> Any:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, keep)
    return x


def _mean(x: Any, dims: list[int], keep: bool) -> Any:
    """Return the mean of x over the dimensions `dims`. keep: whether they stay, with size 1.

    If `dims` has the last dimension alone, torch gets -1 in its place: so the trace knows that it is the last one, even
    where it does not know how many dimensions x has.
    """
    return x.mean([-1] if dims == [rank(x) - 1] else dims, keep)


_reduced("ReduceMean", 18, _mean)
_reduced("ReduceSum", 13, lambda x, dims, keep: x.sum(dims, keep), np.sum)
_reduced("ReduceMax", 20, _largest, np.max)
_reduced("ReduceMin", 20, _smallest, np.min)
_reduced("ReduceProd", 18, _product, np.prod)
_reduced("ReduceL1", 18, lambda x, dims, keep: x.abs().sum(dims, keep))
_reduced("ReduceL2", 18, lambda x, dims, keep: (x * x).sum(dims, keep).sqrt())
_reduced("ReduceSumSquare", 18, lambda x, dims, keep: (x * x).sum(dims, keep))
_reduced("ReduceLogSum", 28, lambda x, dims, keep: x.sum(dims, keep).log())
_reduced("ReduceLogSumExp", 28, lambda x, dims, keep: torch.logsumexp(x, dims, keep))


@operator("ArgMax", 13)
@operator("ArgMin", 13)
def arg_extreme(data: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, op: str) -> Any:
    """Compute ONNX's ArgMax or ArgMin: the index of the first largest or smallest element along an axis.

    op: "ArgMax" or "ArgMin". The other arguments are ONNX's input and attributes; `select_last_index` must be 0.
    """
    unlike("select_last_index", select_last_index, 0)
    x, dim = tensor(data), axis_of(axis, rank(data))
    return (x if op == "ArgMax" else -x).argmax(dim, bool(keepdims))


@operator("TopK", 24, numbers=(1,))
def top_k(X: Any, K: Any = None, *, k: int | None = None, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """Compute ONNX's TopK: the K largest (or smallest) elements along an axis, and their indices along it.

    Of equal elements the first comes first. K: the number of elements, an input in newer versions of the operator; k:
    the attribute that gives it in older ones.
    """
    count, dim = number(k if K is None else K, "K"), axis_of(axis, rank(X))
    values, places = torch.sort(X, dim=dim, descending=bool(largest), stable=True)
    return values.narrow(dim, 0, count), places.narrow(dim, 0, count)


@operator("CumSum", 14, numbers=(1,))
def cumulative_sum(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
    x, dim = tensor(x), axis_of(axis, rank(x))
    turned = x.flip(dim) if reverse else x
    found = torch.cumsum(turned, dim)
    found = found - turned if exclusive else found
    return found.flip(dim) if reverse else found


# Products ------------------------------------------------------------------------------------------------------------


@operator("MatMul", 13)
def matmul(A: Any, B: Any) -> Any:
    return torch.matmul(tensor(A), tensor(B))


@operator("Gemm", 13)
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    constant: tuple[bool, ...],
) -> Any:
    """Compute ONNX's Gemm, alpha A B + beta C, with A and B transposed where `transA` and `transB` are 1.

    constant: for each input, whether it is a weight of the file. If B is a weight, a linear layer computes the product.
    """
    a, b = tensor(A), tensor(B)
    a = a.transpose(0, 1) if transA else a
    c = None if C is None or beta == 0 else tensor(C) if beta == 1 else tensor(C) * beta
    if not constant[1]:
        product = torch.matmul(a, b.transpose(0, 1) if transB else b)
        product = product if alpha == 1 else product * alpha
        return product if c is None else product + c
    weight = b if transB else b.transpose(0, 1)
    weight = weight if alpha == 1 else weight * alpha
    if c is None:
        return F.linear(a, weight)
    sizes = shape(c)
    if constant[2] and sizes in ((weight.shape[0],), (1, weight.shape[0])):
        return F.linear(a, weight, c.reshape(-1) if len(sizes) == 2 else c)
    return F.linear(a, weight) + c


@operator("Einsum", 28)
def einsum(*Inputs: Any, equation: str) -> Any:
    return torch.einsum(equation, *map(tensor, Inputs))
