"""Fixed-point arithmetic of CrypTen's tensors: replacements for CrypTen's functions, under the same names.

CrypTen 0.4.1 returns wrong values here, without an error:

* `decode` divides negative words by 2^16 - 1: a value v < 0 is decoded 1 too low with probability |v| / 2^16;
* a product or quotient of two parties truncates each share: wrong by 2^48 once in 2^30 / |v|;
* a tensor without bits of fraction, such as a comparison's result, drops the fraction of a number: `(x > y) * 0.5` and
  `(x > y).mean()` are 0;
* tensors of different scales are joined without rescaling: in `cat([x, x > y])` a 1 becomes 2^-16;
* a small constant keeps few bits: `x * 1e-5` and `x / 1e5` are 0.

Here encoding rounds and checks numbers. Every result has the larger scale of its operands. A constant below 1 has more
bits of fraction, as many as its magnitude leaves free. Every division is an opening under a mask
(protocols/truncation.py, mpc/protocols/division.py): exact to a unit for any number of parties.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.crypten.adapter import ArithmeticSharedTensor, FixedPointEncoder, beaver, cfg, refuse_validation
from hummingbird.errors import ConfigError, InputError
from hummingbird.kernels.devices import put
from hummingbird.mpc.protocols.division import LARGEST, divide
from hummingbird.mpc.protocols.truncation import truncate
from hummingbird.mpc.session import session as sessions
from hummingbird.ring import MAX_INTEGER_BITS, SCALE

Shared = ArithmeticSharedTensor

_SMALLEST = 30  # the most further bits of a constant c < 2^-30: x c is below 1, and at scale 16 + 16 + 30 below 2^62
_PRECISION = {"encoder.precision_bits": SCALE}
_PROTOCOL = {"mpc.protocol": "beaver", "mpc.provider": "TFP", "mpc.active_security": False, "debug.debug_mode": False}


def check_settings(settings: dict[str, Any] = _PROTOCOL) -> None:
    """Raise ConfigError if CrypTen's settings ask for a protocol, trust or precision that this package lacks."""
    for name, expected in settings.items():
        if (value := cfg[name]) != expected:
            raise ConfigError(
                f"CrypTen's setting {name} is {value!r}, and has no effect here",
                where="crypten.cfg",
                hint=f"leave it at {expected!r}: fixed point, protocols and trust are hummingbird's, see SECURITY.md",
            )


# Encoding -----------------------------------------------------------------------------------------------------------


def encoder(bits: int) -> Any:
    """CrypTen's encoder with `bits` of fraction."""
    return FixedPointEncoder(precision_bits=bits)


def scale_of(x: Any) -> int:
    """Bits of fraction of a shared tensor."""
    return int(x.encoder.scale).bit_length() - 1


def _start(self: Any, precision_bits: int | None = None) -> None:
    if precision_bits is None:
        check_settings(_PRECISION)
    self._precision_bits = SCALE if precision_bits is None else precision_bits


def _plain(x: Any) -> Tensor:
    """Convert a public value to a float64 or int64 tensor on its own device, and return it.

    x: a tensor, a number or a sequence of numbers. A number becomes a CPU tensor without dimensions: operations on a
        GPU take such a tensor as a number, without copy or wait.
    """
    if isinstance(x, Tensor):
        return x.double() if x.is_floating_point() else x.long()
    if isinstance(x, (int, float)):
        return torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else torch.int64)
    return _plain(torch.as_tensor(x))


def _encode(self: Any, x: Any, device: Any = None) -> Any:
    """Encode public numbers x as ring elements round(x * 2^bits), where `bits` are the encoder's bits of fraction.

    If the encoder has none, any int64 is a ring element already. A shared x is returned as it is.
    """
    if hasattr(x, "get_plain_text"):
        return x
    code = _encoded(_plain(x), scale_of_encoder(self))
    return code if device is None else put(code, torch.device(device))


def _encoded(x: Tensor, bits: int) -> Tensor:
    """Encode a public tensor as ring elements with `bits` bits of fraction, on its own device.

    Raises InputError for values that do not fit. The check reads the values, for which the CPU waits for a GPU.
    """
    if bits == 0:
        if x.is_floating_point() and not is_whole(x):
            raise InputError(
                "a tensor without a fraction takes whole numbers only", where="crypten", hint="x * 1.0 has one"
            )
        return x.long()
    x = x.double()
    if x.numel() and not bool(torch.isfinite(x).all()):
        raise InputError("a value is NaN or infinite", where="crypten", hint="look at the data it was made from")
    if x.numel() and float(x.abs().max()) >= 2.0 ** min(MAX_INTEGER_BITS, 62 - bits):
        raise InputError(
            f"a value leaves the fixed-point range of +-2^{min(MAX_INTEGER_BITS, 62 - bits)}",
            where="crypten",
            hint="scale it down",
        )
    return (x * 2.0**bits).round().long()


def scale_of_encoder(self: Any) -> int:
    """Bits of fraction of an encoder."""
    return int(self._scale).bit_length() - 1


def _decode(self: Any, x: Tensor | None) -> Tensor | None:
    bits = scale_of_encoder(self)
    return x if x is None or not bits else ring.decode(x, bits)


def is_whole(x: Tensor) -> bool:
    """Whether all values of a public tensor are integers."""
    return not x.is_floating_point() or bool((x == x.round()).all() and torch.isfinite(x).all())


# Scales -------------------------------------------------------------------------------------------------------------


def shared(share: Tensor, bits: int) -> Any:
    """An additively shared tensor with `bits` of fraction."""
    return Shared.from_shares(share, precision=bits)


def raised(x: Any, bits: int) -> Any:
    """Raise the bits of fraction of a value to at least `bits`. The value must stay below 2^62 in the ring."""
    own = scale_of(x)
    return x if own >= bits else shared(x.share << (bits - own), bits)


def _aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Return x and y as shared tensors that both have the larger of their two scales.

    x: a shared tensor. y: shared or public. A public y is first shared, with party 0 as its source.
    """
    if not isinstance(y, Shared):
        y = _plain(y)
        own = scale_of(x) if is_whole(y) else max(scale_of(x), SCALE)
        y = shared(Shared(put(_encoded(y, own), x.device), precision=0).share, own)
    bits = max(scale_of(x), scale_of(y))
    return raised(x, bits), raised(y, bits)


def _become(x: Any, result: Any) -> Any:
    x.share, x.encoder = result.share, result.encoder
    return x


def _reduced(x: Any, bits: int) -> Any:
    """Return the shared value x with `bits` fewer bits of fraction.

    One opening cuts them off, if `bits` is not 0; the result errs by one unit at most.
    """
    return beaver.truncate(x, 1 << bits) if bits else x


def _truncate(x: Any, divisor: int) -> Any:
    """Divide the shared value x by a public integer, in place, and return x. It replaces CrypTen's truncation.

    The quotient is exact to one unit.
    """
    session, share, shift = sessions.current(), x.share.reshape(-1), divisor.bit_length() - 1
    share = truncate(session, share, shift) if divisor == 1 << shift else divide(session, share, divisor)
    x.share = share.view(x.share.shape)
    return x


# Sums, products and quotients ---------------------------------------------------------------------------------------


def _function(self: Any, y: Any, op: str, inplace: bool = False, *args: Any, **kwargs: Any) -> Any:
    if isinstance(y, Shared):
        result = _with_private(self, y, op, *args, **kwargs)
    elif isinstance(y, (bool, int, float, Tensor)):
        result = _with_public(self, _plain(y), op, *args, **kwargs)
    else:
        raise InputError(f"{op} takes a number, a tensor or a shared tensor, not {type(y).__name__}", where="crypten")
    return _become(self, result) if inplace else result


def _with_private(x: Any, y: Any, op: str, *args: Any, **kwargs: Any) -> Any:
    bits = scale_of(x), scale_of(y)
    if op in ("add", "sub"):
        x, y = _aligned(x, y)
        return shared(getattr(torch, op)(x.share, y.share), max(bits))
    check_settings()
    out = getattr(beaver, op)(x, y, *args, **kwargs)
    return _reduced(shared(out.share, max(bits)), min(bits))


def _with_public(x: Any, y: Tensor, op: str, *args: Any, **kwargs: Any) -> Any:
    bits, whole = scale_of(x), is_whole(y)
    target = bits if whole else max(bits, SCALE)
    if op in ("add", "sub"):
        x, code = raised(x, target), _beside(_encoded(y, target), x)
        code = code if x.rank == 0 else torch.zeros_like(code)  # not 0: every share has the sum's shape
        return shared(getattr(torch, op)(x.share, code), target)
    free = 0 if whole else _free_bits(y)
    extra = 0 if whole else SCALE + free
    # |code| <= 2^16 where free > 0, so that the product stays below 2^62 for |x| < 2^30; and |x y| < 2^30 otherwise.
    code = y.long() if whole else (_encoded(y, SCALE) if not free else (y * 2.0**extra).round().long())
    out = getattr(torch, op)(x.share, _beside(code, x), *args, **kwargs)
    return _reduced(shared(out, target), bits + extra - target)


def _beside(code: Tensor, x: Any) -> Tensor:
    """Return public ring elements on the device of x's shares; a tensor without dimensions stays on its own device.

    code: the ring elements.
    """
    return put(code, x.device) if code.dim() else code


def _free_bits(y: Tensor) -> int:
    """Count how often y can be doubled before its largest magnitude exceeds 1; at most 30."""
    largest = float(y.abs().max()) if y.numel() else 1.0
    return min(max(0, -math.frexp(largest)[1]), _SMALLEST) if math.isfinite(largest) and largest else 0


def _mul(self: Any, y: Any) -> Any:
    return _function(self, y, "mul")


def _mul_(self: Any, y: Any) -> Any:
    return _function(self, y, "mul", True)


def _div(self: Any, y: Any) -> Any:
    """Return this shared tensor divided by y, a public number or tensor.

    If all of y is one integer of magnitude up to 2^28, the quotient is exact to one unit; otherwise the tensor is
    multiplied by 1 / y. Raises InputError if y is empty, or has a zero, NaN or infinite value.
    """
    y = _plain(y)
    if not y.numel() or not bool(torch.isfinite(y).all()) or bool((y == 0).any()):
        raise InputError(
            "a divisor is zero, NaN or infinite", where="crypten.div", hint="look at what it was made from"
        )
    first = y.reshape(-1)[0]
    if not is_whole(y) or bool((y != first).any()) or abs(int(first)) > LARGEST:
        return _function(self, y.double().reciprocal(), "mul")
    divisor = int(first)
    x = raised(self, SCALE if abs(divisor) > 1 else 0)
    x = shared(
        (x.share if divisor > 0 else -x.share).expand(torch.broadcast_shapes(x.share.shape, y.shape)).clone(),
        scale_of(x),
    )
    return beaver.truncate(x, abs(divisor)) if abs(divisor) > 1 else x


def _div_(self: Any, y: Any) -> Any:
    refuse_validation()  # CrypTen's `div_` checks the mode by itself, and opens its operands
    return _become(self, _div(self, y))


def _square(self: Any) -> Any:
    check_settings()
    bits = scale_of(self)
    return _reduced(shared(beaver.square(self).share, bits), bits)


def _square_(self: Any) -> Any:
    return _become(self, _square(self))


# Parts --------------------------------------------------------------------------------------------------------------


def _join(function: Any) -> Any:
    def join(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        bits = max(scale_of(x) for x in tensors)
        return shared(function([raised(x, bits).share for x in tensors], *args, **kwargs), bits)

    return staticmethod(join)


def _placed(name: str) -> Any:
    """Make the in-place method of a shared tensor that does what torch's function `name`(dim, index, source) does.

    The method first brings the tensor and `source` to the larger of their scales. name: "index_add", for example.
    """

    def place(self: Any, dim: int, index: Tensor, source: Any) -> Any:
        x, y = _aligned(self, source)
        x.share = getattr(x.share, name)(dim, index, y.share)
        return _become(self, x)

    return place


def _copied(name: str) -> Any:
    in_place = _placed(name)

    def place(self: Any, dim: int, index: Tensor, source: Any) -> Any:
        return in_place(self.clone(), dim, index, source)

    return place


def _set_item(self: Any, index: Any, value: Any) -> None:
    x, y = _aligned(self, value)
    x.share[index] = y.share
    _become(self, x)


def _copy_(self: Any, other: Any) -> None:
    """Copy another tensor's values into this tensor, in place.

    If the other tensor has no more bits of fraction than this one, the values go into this tensor's memory, so that its
    views change too. Otherwise this tensor takes over a copy of the other one, with its scale; InputError if the shapes
    differ.
    """
    if scale_of(other) <= scale_of(self):
        self.share.copy_(raised(other, scale_of(self)).share)
    elif self.share.shape != other.share.shape:
        raise InputError(f"shapes {tuple(self.share.shape)}, {tuple(other.share.shape)} differ", where="copy_")
    else:
        _become(self, other.clone())


def _pad(self: Any, pad: Any, mode: str = "constant", value: Any = 0) -> Any:
    if mode != "constant":
        raise InputError(f"padding of mode {mode!r} is not supported", where="pad", hint="pad with a number")
    if isinstance(value, Shared):
        x, filling = _aligned(self, value)
        outside = 1 - torch.nn.functional.pad(torch.ones_like(x.share), pad)
        return shared(torch.nn.functional.pad(x.share, pad) + outside * filling.share, scale_of(x))
    x = raised(self, 0 if float(value).is_integer() else SCALE)
    word = int(x.encoder.encode(float(value))) if x.rank == 0 else 0
    return shared(torch.nn.functional.pad(x.share, pad, mode=mode, value=word), scale_of(x))


def install() -> None:
    """Replace the functions of CrypTen that encode, convert and divide fixed-point numbers by those of this module.

    The replacement is for this process, and stays.
    """
    FixedPointEncoder.__init__, FixedPointEncoder.encode, FixedPointEncoder.decode = _start, _encode, _decode
    beaver.truncate = _truncate
    for name, function in {
        "_arithmetic_function": _function,
        "mul": _mul,
        "__mul__": _mul,
        "__rmul__": _mul,
        "mul_": _mul_,
        "__imul__": _mul_,
        "div": _div,
        "__div__": _div,
        "__truediv__": _div,
        "div_": _div_,
        "__itruediv__": _div_,
        "square": _square,
        "square_": _square_,
        "cat": _join(torch.cat),
        "stack": _join(torch.stack),
        "index_add_": _placed("index_add"),
        "index_add": _copied("index_add"),
        "scatter_add_": _placed("scatter_add"),
        "scatter_add": _copied("scatter_add"),
        "scatter_": _placed("scatter"),
        "scatter": _copied("scatter"),
        "__setitem__": _set_item,
        "copy_": _copy_,
        "pad": _pad,
    }.items():
        setattr(Shared, name, function)
