"""Torch's elementwise functions: an element of the result depends only on the inputs' elements at its position.

Steps of this kind are for a caller that computes on plain values, such as the client of encrypted inference. This
module is the only list of elementwise functions; a test checks each of them. Those that are smooth functions of one
value have a private form, too (functions.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Op
from hummingbird.graph.steps import Ref

OP = "elementwise"
_ONE = """abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil clamp
    clamp_max clamp_min clip cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac i0 lgamma log log10
    log1p log2 logit nan_to_num negative positive pow rad2deg reciprocal round rsqrt sigmoid sign sin sinc sinh sqrt
    square tan tanh trunc celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6
    rrelu selu silu softplus softshrink softsign tanhshrink threshold"""
_TWO = "atan2 arctan2 copysign div divide floor_divide fmax fmin fmod hypot logaddexp logaddexp2 maximum minimum"
_TWO += " remainder true_divide xlogy"


def _function(name: str) -> Callable[..., Any] | None:
    return getattr(F, name, None) or getattr(torch, name, None)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function for name in (_ONE + " " + _TWO).split() if (function := _function(name)) is not None
}
_OPERATORS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
_MODULES: dict[type[nn.Module], tuple[str, str]] = {
    nn.CELU: ("celu", "alpha"),
    nn.ELU: ("elu", "alpha"),
    nn.Hardshrink: ("hardshrink", "lambd"),
    nn.LogSigmoid: ("logsigmoid", ""),
    nn.Mish: ("mish", ""),
    nn.RReLU: ("rrelu", "lower upper"),
    nn.SELU: ("selu", ""),
    nn.Softplus: ("softplus", "beta threshold"),
    nn.Softshrink: ("softshrink", "lambd"),
    nn.Softsign: ("softsign", ""),
    nn.Tanhshrink: ("tanhshrink", ""),
    nn.Threshold: ("threshold", "threshold value"),
}


def evaluate(attrs: dict[str, Any], *values: Any) -> Tensor:
    """Return the value of a step "elementwise" for its inputs `values`.

    attrs: the step's attributes: the name of torch's function and its keyword arguments.
    """
    options = {key: value for key, value in attrs.items() if key != "function"}
    out: Tensor = FUNCTIONS[attrs["function"]](*values, **options)
    return out


def module(kind: type[nn.Module]) -> tuple[str, str] | None:
    """Return the elementwise function that a module type of torch.nn computes, and names of the module's attributes.

    Both are texts: a key of FUNCTIONS, and names separated by spaces; the attributes of these names are the function's
    keyword arguments. Returns None for types that compute no elementwise function.
    """
    return _MODULES.get(kind)


def known(name: str) -> str | None:
    """Return the key in FUNCTIONS of the elementwise function that torch calls `name`; None if there is none.

    name: of a function, method or operator; "add_" and "__add__" are "add".
    """
    name = name.strip("_")
    name = _OPERATORS.get(name, name)
    return name if name in FUNCTIONS else None


def emit(b: StepBuilder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
    """Emit a step that computes one elementwise function of values and numbers; Unsupported for other arguments.

    The step is added to `b`; returns a reference to its value. name: a key of FUNCTIONS. args, kwargs: the call's.
    """
    args, kwargs = _by_name(name, args, kwargs)
    args = (*args, *(kwargs.pop(key) for key in ("input", "self", "other", "exponent") if key in kwargs))
    if name == "pow" and len(args) == 2:
        args = args[0], exponent(args[1])
    for value in (*args, *kwargs.values()):
        b.check_told(value, f"an argument of {name}")
    for value in args:
        if not isinstance(value, Ref) and not _is_plain(value):
            raise Unsupported(f"{name} of {b._show(value)}", "parameters are the server's: add or multiply them")
        if isinstance(value, Ref):
            b.tensor(value)
    for key, value in kwargs.items():
        if not _is_plain(value):
            raise Unsupported(f"{name} with {key}={b._show(value)}", "give a number")
    return b.emit(OP, *args, function=name, **kwargs)


def exponent(value: Any) -> Any:
    """Convert a tensor with one element to a number, if `power` accepts it as exponent; else return the value.

    The tensor is only compared with the accepted exponents, so that no other number of a secret tensor is read.
    """
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return next((n for n in (2, 3, 4, 0.5, -0.5) if bool((value == n).all())), value)
    return value


def _by_name(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (args, kwargs) for a call of torch's function `name`, with every argument by its parameter's name.

    A true "inplace", in any position, raises Unsupported, as do arguments that do not fit; a false one is left out. For
    a function without a signature the arguments are returned as they are.
    """
    try:
        bound = inspect.signature(FUNCTIONS[name]).bind(*args, **kwargs).arguments
    except ValueError:  # a builtin: it has no signature, and no "inplace"
        return args, dict(kwargs)
    except TypeError as error:
        raise Unsupported(f"{name} called with arguments that are not known: {error}") from None
    if bound.pop("inplace", False):
        raise Unsupported(f"{name} in place", "use the form that is not in place")
    return (), dict(bound)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


OPS = [Op(OP, evaluate, ranks.same, attrs=None, batch=batch.broadcast)]
