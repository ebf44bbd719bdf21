"""Repairs of CrypTen's functions whose results differ from torch's.

In CrypTen 0.4.1, without an error:

* `pow(5)` is the sixth power, `pow(7)` the ninth, and `erf` is computed from them;
* `var(unbiased=...)` does the opposite, and `var(dim=...)` ignores the dimension;
* `max_pool2d` pads with -256 for each party, and swaps its two paddings;
* a comparison of tensors with more than 16 bits of fraction is 0 everywhere;
* `exp` below -512, hence `sigmoid` and `softmax` of large numbers, and `erf` above 2 are noise; so is a `softmax` over
  more than 250 equal numbers.

Values are private, so no party notices a value outside of an approximation's range. The functions above are now right
for all values. `log`, `sqrt`, `inv_sqrt`, `reciprocal`, `cos` and `sin` still have a range, which docs/limits.md gives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hummingbird.crypten.adapter import (
    AutogradBatchNorm,
    AutogradDropout,
    AutogradFeatureDropout,
    AutogradVariance,
    CrypTensor,
    MPCTensor,
    crypten,
    ptype,
)
from hummingbird.crypten.fixed_point import encoder, scale_of
from hummingbird.errors import InputError
from hummingbird.ring import MAX_INTEGER_BITS, SCALE

_to_ptype = MPCTensor._to_ptype

# Comparisons --------------------------------------------------------------------------------------------------------


def _to(self: Any, kind: Any, precision: int | None = None, bits: int | None = None) -> Any:
    """Convert a CrypTen tensor from additive to xor shares of its words, or back; return the new tensor.

    kind: the form of the result's shares, one of CrypTen's `ptype`.
    precision: bits of fraction of an additive result; None: as many as this tensor has, at least 16. InputError for
    fewer than it has.
    bits: how many low bits of xor shares are converted; None: all.
    """
    if kind == self.ptype:
        return self.clone()
    if kind == ptype.binary:
        return _to_ptype(self, kind)
    own = scale_of(self)
    precision = max(SCALE, own) if precision is None else precision
    if precision < own:
        raise InputError(f"{own} bits of fraction do not fit into {precision}", where="to", hint="leave precision out")
    return _to_ptype(self, kind, precision=precision, bits=bits)


def _bit(words: Any) -> Any:
    """Turn the lowest bit of each xor-shared word into additive shares of 0 or 1, a number without bits of fraction.

    words: a CrypTen tensor of xor shares. Returns a CrypTen tensor of additive shares, of the same shape.
    """
    words.encoder = encoder(0)
    return words._to_ptype(ptype.arithmetic, precision=0, bits=1)


def _negative(self: Any) -> Any:
    result = self._to_ptype(ptype.binary)
    result.share = result.share >> 63
    return _bit(result)


def _equals_zero(self: Any) -> Any:
    """Return shared bits that say where this shared tensor (`self`) is 0, as a CrypTen tensor. For two parties.

    An element is 0 where one party's share is the negative of the other party's share.
    """
    mine = MPCTensor(self.share, src=0, ptype=ptype.binary)
    theirs = MPCTensor(-self.share, src=1, ptype=ptype.binary)
    mine._tensor = mine._tensor.eq(theirs._tensor)
    return _bit(mine)


# Powers and moments -------------------------------------------------------------------------------------------------


def _pow(self: Any, p: Any, **kwargs: Any) -> Any:
    """Return the shared tensor `self` to the power p, for an integer p, by repeated squaring. kwargs: ignored.

    A negative p takes the reciprocal first. Raises InputError for a p that is no integer.
    """
    if not isinstance(p, (int, float)) or int(p) != p:
        raise InputError(
            f"pow takes a whole exponent, got {p}", where="pow", hint="pos_pow takes any, of positive numbers"
        )
    p = int(p)
    if p < 0:
        return self.reciprocal().pow(-p)
    if p == 0:
        return self.new(torch.ones(self.size(), device=self.device))
    if p == 1:
        return self.clone()
    power = self.square().pow(p // 2)
    return power.mul(self) if p % 2 else power


def _moments(x: Any, dim: Any, unbiased: bool, keepdim: bool) -> tuple[Any, Any, int]:
    """Return three things of the shared tensor x: its variance, its mean, and the divisor of the variance, an int.

    dim: the dimensions over which they are taken; None: all. unbiased: whether the divisor is the number of elements
    less 1, instead of their number. keepdim: whether the variance keeps these dimensions; the mean always does.
    """
    total = x.sum() if dim is None else x.sum(dim, keepdim=True)
    count = x.nelement() // max(total.nelement(), 1)
    divisor = count - int(unbiased)
    if divisor < 1:
        raise InputError("the unbiased variance of one value is not defined", where="var", hint="unbiased=False")
    mean = total.div(count)
    squares = (x - mean).square()
    squares = squares.sum() if dim is None else squares.sum(dim, keepdim=keepdim)
    return squares.div(divisor), mean, divisor


def _var(self: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _moments(self, dim, unbiased, keepdim)[0]


def _var_forward(ctx: Any, x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    out, mean, divisor = _moments(x, dim, unbiased, keepdim)
    ctx.save_multiple_for_backward((x, mean, divisor, dim, keepdim))
    return out


def _batch_norm(
    ctx: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = False,
    eps: float = 1e-5,
    momentum: float = 0.1,
    inv_var: Any = None,
) -> Any:
    """Normalize each channel (dimension 1) of the shared tensor x as torch's batch_norm does; return the result.

    The arguments are torch's, in CrypTen's order; ctx: keeps what the gradient needs. inv_var: 1 / sqrt(running_var +
    eps), if the caller has it already; ignored in training.
    """
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [x.size(1) if d == 1 else 1 for d in range(x.dim())]
    if training:
        mean, variance = x.mean(dims), x.var(dims, unbiased=False)
        inv_var = None
        if running_mean is not None and running_var is not None:
            count = x.nelement() // x.size(1)
            running_var.set(running_var * (1.0 - momentum) + variance * (momentum * count / max(count - 1, 1)))
            running_mean.set(running_mean * (1.0 - momentum) + mean * momentum)
    elif running_mean is None or running_var is None:
        raise InputError("batch norm needs its statistics", where="batchnorm", hint="pass running_mean and running_var")
    else:
        mean, variance = running_mean, running_var
    if inv_var is None:
        inv_var = (variance + eps).rsqrt() if isinstance(variance, Tensor) else (variance + eps).inv_sqrt()
    weight, inv_var = weight.reshape(shape), inv_var.reshape(shape)
    normed = (x - mean.reshape(shape)) * inv_var
    ctx.save_multiple_for_backward((normed, weight, inv_var, training))
    return normed * weight + bias.reshape(shape)


# Dropout ------------------------------------------------------------------------------------------------------------


def _dropout(dimensions: int | None) -> Any:
    """Return the `forward` of a dropout, a static method for CrypTen's autograd, which replaces CrypTen's own.

    dimensions: values with equal indices in the first `dimensions` dimensions are dropped or kept together, so that 2
    drops whole channels; None: each value by itself. The decisions come from the stream that all parties share, so they
    are equal at every party.
    """

    def forward(ctx: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training:
            return x if inplace else x.clone()
        if not 0 <= p <= 1:
            raise InputError(f"a probability of {p}", where="dropout", hint="between 0 and 1")
        shape = tuple(x.size())[:dimensions]
        chance = (crypten.generators["global"][x.device].words(*shape) & (2**53 - 1)).double() / 2**53
        factor = (chance >= p).to(x.device).double() / (1 - p if p < 1 else 1)
        factor = factor.view(*shape, *[1] * (x.dim() - len(shape))).expand(x.size())
        ctx.save_multiple_for_backward([factor, 0.0])  # CrypTen's backward divides by 1 - the second
        return x.mul_(factor) if inplace else x.mul(factor)

    return staticmethod(forward)


# Pools --------------------------------------------------------------------------------------------------------------


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _max_pool2d(
    self: Any,
    kernel_size: Any,
    padding: Any = 0,
    stride: Any = None,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maximum of each pooling window over the last two dimensions of this shared tensor (`self`).

    The arguments are those of torch's max_pool2d, in CrypTen's order. return_indices: whether to return two tensors:
    the maxima, and a one-hot tensor, in two further dimensions, that says which element of its window each maximum is.
    """
    kernel, pads, gaps = _pair(kernel_size), _pair(padding), _pair(dilation)
    steps = kernel if stride is None else _pair(stride)
    if any(2 * pad > size for pad, size in zip(pads, kernel, strict=True)):
        raise InputError(f"padding {pads} is more than half of the kernel {kernel}", where="max_pool2d")
    spans = [gap * (size - 1) + 1 for gap, size in zip(gaps, kernel, strict=True)]
    margins = []
    for size, pad, step, span in zip(self.size()[-2:], pads, steps, spans, strict=True):
        surplus = (size + 2 * pad - span) % step
        start = size + 2 * pad - span - surplus + step  # start of a further window: none if it lies behind the image
        more = step - surplus if ceil_mode and surplus and start < size + pad else 0
        margins.append((pad, pad + more))
    # -2^30 at party 0: below every value, and differences stay below 2^47 in the ring.
    windows = self.pad((*margins[1], *margins[0]), value=-(2.0**MAX_INTEGER_BITS) + 1)
    share = windows.share
    for step, span, gap in zip(steps, spans, gaps, strict=True):
        share = share.unfold(-2, span, step)[..., ::gap]  # rows, then columns: unfold appends windows' dimensions
    windows.share = share.flatten(-2).contiguous()
    values, chosen = windows.max(dim=-1, one_hot=True)
    return (values, chosen.view(*values.size(), *kernel)) if return_indices else values


def _set_item(self: Any, index: Any, value: Any) -> None:
    """Set the elements at `index` of this shared tensor to `value`, shared or public, in place.

    CrypTen's version copies a public value to the device, waits, and keeps only 16 bits of fraction.
    """
    self._tensor[index] = value._tensor if isinstance(value, MPCTensor) else value


# Approximations -----------------------------------------------------------------------------------------------------

_LOWEST = -256.0  # below -11, e^x is 0 at scale 2^16; below -512, (1 + x / 256)^256 grows again
_exp, _reciprocal = MPCTensor.exp, MPCTensor.reciprocal


def _exponential(self: Any) -> Any:
    """Return exp(max(x, -256)) of the shared tensor x (`self`), by CrypTen's approximation of exp.

    The limit keeps the approximation from diverging for x far below 0.
    """
    return _exp((self - _LOWEST).relu() + _LOWEST)


def _inverse(self: Any, input_in_01: bool = False) -> Any:
    """Return 1 / x for a shared tensor x (`self`), by Newton's iteration y := y (2 - x y).

    CrypTen computes 2 y - y^2 x instead, and loses y's low bits in y^2. input_in_01: whether all x lie between 0 and 1.
    CrypTen's settings say how many iterations there are, and where they start.
    """
    options = crypten.cfg.functions
    if options.reciprocal_method != "NR":
        return _reciprocal(self, input_in_01=input_in_01)
    if input_in_01:
        return _newton(self.mul(64), options.reciprocal_initial, options.reciprocal_nr_iters).mul(64)
    if options.reciprocal_all_pos:
        return _newton(self, options.reciprocal_initial, options.reciprocal_nr_iters)
    sign = self.sign()
    return sign * _newton(sign * self, options.reciprocal_initial, options.reciprocal_nr_iters)


def _newton(x: Any, y: Any, steps: int) -> Any:
    y = _exp(1 - 2 * x) * 3 + 0.003 if y is None else y  # CrypTen's initial value
    for _ in range(steps):
        y = (2 - x * y) * y
    return y


def _weights(self: Any, dim: int) -> tuple[Any, Any]:
    """Return two shared tensors: the logits less their maximum along dimension `dim`, and exp of these differences.

    A softmax divides the second by its sum along `dim`, which is between 1 and the dimension's length. self: the
    logits.
    """
    logits = self - self.max(dim, keepdim=True)[0]
    return logits, logits.exp()


def _softmax(self: Any, dim: int, **kwargs: Any) -> Any:
    if self.dim() == 0 or self.size(dim) == 1:
        return self.new(torch.ones(self.size(), device=self.device))
    length = self.size(dim)
    weights = _weights(self, dim)[1]
    # From 1 / length, each step squares the relative error 1 - sum / length: exp(-2^4) after log2(length) + 4 steps.
    return weights * _newton(weights.sum(dim, keepdim=True), 1 / length, length.bit_length() + 4)


def _log_softmax(self: Any, dim: int, **kwargs: Any) -> Any:
    if self.dim() == 0 or self.size(dim) == 1:
        return self.new(torch.zeros(self.size(), device=self.device))
    logits, weights = _weights(self, dim)
    total, divisor = weights.sum(dim, keepdim=True), -(-self.size(dim) // 200)  # CrypTen's log is for numbers up to 250
    return logits - (total.div(divisor).log() + math.log(divisor))


def _erf(self: Any) -> Any:
    """Approximate erf(x) of the shared tensor x (`self`) by tanh(2 / sqrt(pi) (x + 11 x^3 / 123)), x clamped to +-4.

    The error is at most 4e-4. CrypTen's own series diverges at 2.
    """
    x = self.hardtanh(-4, 4)
    return (x * (x.square() * (11 / 123) + 1) * (2 / math.sqrt(math.pi))).tanh()


# Places -------------------------------------------------------------------------------------------------------------


def _take(self: Any, index: Tensor, dimension: int | None = None) -> Any:
    """Return the elements of a shared tensor (`self`) at the public indices `index`.

    Without `dimension`, an index counts the elements of the flattened tensor, as in torch's take. With it, an index
    selects a slice along this dimension.
    """
    result = self.shallow_copy()
    if dimension is None or self.dim() == 0:
        result._tensor = self._tensor.take(index.long())
    else:
        result._tensor = self._tensor[(slice(None),) * (dimension % self.dim()) + (index.long(),)]
    return result


# Operators ----------------------------------------------------------------------------------------------------------


def _with_torch(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call the method of a shared tensor that stands for a torch function: cat, stack, or +, - and *.

    torch calls this when one of its functions gets a shared tensor; for +, - and * the left operand may be a public
    tensor. function: torch's; args, kwargs: its arguments; types: ignored. Returns the function's result. Raises
    InputError for every other function.
    """
    name = getattr(function, "__name__", str(function)).strip("_")
    if name in ("cat", "stack"):
        return getattr(crypten, name)(list(args[0]), *args[1:], **(kwargs or {}))
    if name in ("add", "radd", "mul", "rmul") and not isinstance(args[0], CrypTensor):
        return getattr(args[1], name.lstrip("r"))(args[0])
    if name in ("sub", "rsub") and len(args) == 2:
        public, private = args if not isinstance(args[0], CrypTensor) else reversed(args)
        return private.neg().add(public)
    raise InputError(
        f"torch's {name} does not take a shared tensor",
        where="crypten",
        hint="use the tensor's own methods, and write it first: x.relu(), x + c, x @ w",
    )


def install() -> None:
    """Replace the functions of CrypTen that are wrong, imprecise or slow by those of this module.

    The replacement is for this process, and stays.
    """
    CrypTensor.__torch_function__ = classmethod(_with_torch)
    AutogradVariance.forward, AutogradBatchNorm.forward = staticmethod(_var_forward), staticmethod(_batch_norm)
    AutogradDropout.forward, AutogradFeatureDropout.forward = _dropout(None), _dropout(2)
    for name, function in {
        "__setitem__": _set_item,
        "_to_ptype": _to,
        "_ltz": _negative,
        "_eqz_2PC": _equals_zero,
        "pow": _pow,
        "__pow__": lambda self, p: self.pow(p),
        "__rtruediv__": lambda self, y: self.reciprocal().mul(y),
        "var": _var,
        "take": _take,
        "exp": _exponential,
        "reciprocal": _inverse,
        "softmax": _softmax,
        "log_softmax": _log_softmax,
        "erf": _erf,
        "max_pool2d": _max_pool2d,
    }.items():
        setattr(MPCTensor, name, function)
