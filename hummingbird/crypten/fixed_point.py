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
    """Raise ConfigError if CrypTen's settings ask for a protocol, trust or precision that this package lacks.

    settings: for each setting's name in CrypTen, such as "mpc.protocol", the only value that is accepted.
    """
    for name, expected in settings.items():
        if (value := cfg[name]) != expected:
            raise ConfigError(
                f"CrypTen's setting {name} is {value!r}, and has no effect here",
                where="crypten.cfg",
                hint=f"leave it at {expected!r}: fixed point, protocols and trust are hummingbird's, see SECURITY.md",
            )


# Encoding -----------------------------------------------------------------------------------------------------------


def encoder(bits: int) -> Any:
    """Return a CrypTen encoder, which turns real numbers into ring elements, with `bits` bits of fraction."""
    return FixedPointEncoder(precision_bits=bits)


def scale_of(x: Any) -> int:
    """Return how many bits of fraction a shared tensor has."""
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
    """Encode public numbers x as ring elements, int64: each is round(x * 2^bits). A shared x is returned as it is.

    self: CrypTen's encoder, whose bits of fraction are the `bits`. If it has none, any int64 is a ring element already.
    device: where the result is; None: where x is.
    """
    if hasattr(x, "get_plain_text"):
        return x
    code = _encoded(_plain(x), scale_of_encoder(self))
    return code if device is None else put(code, torch.device(device))


def _encoded(x: Tensor, bits: int) -> Tensor:
    """Encode a public tensor x as ring elements round(x * 2^bits), int64, on the device of x.

    bits: the bits of fraction of the result. Raises InputError for values that do not fit into the ring. This check
    reads the values, so the CPU waits for a GPU.
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
    """Return how many bits of fraction CrypTen's encoder `self` gives to the numbers that it encodes."""
    return int(self._scale).bit_length() - 1


def _decode(self: Any, x: Tensor | None) -> Tensor | None:
    bits = scale_of_encoder(self)
    return x if x is None or not bits else ring.decode(x, bits)


def is_whole(x: Tensor) -> bool:
    """Whether all values of a public tensor are integers."""
    return not x.is_floating_point() or bool((x == x.round()).all() and torch.isfinite(x).all())


# Scales -------------------------------------------------------------------------------------------------------------


def shared(share: Tensor, bits: int) -> Any:
    """Make a shared tensor from this party's additive share of it.

    share: int64, the shape of the values. bits: how many bits of fraction the shared values have.
    """
    return Shared.from_shares(share, precision=bits)


def raised(x: Any, bits: int) -> Any:
    """Return the shared tensor x with at least `bits` bits of fraction; its values do not change.

    Shifts the shares if x has fewer, and returns x itself if it has as many. The ring element of each value must stay
    below 2^62.
    """
    own = scale_of(x)
    return x if own >= bits else shared(x.share << (bits - own), bits)


def _aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the operands x and y as two shared tensors with equally many bits of fraction, the more of the two.

    x: a shared tensor. y: shared or public. A public y becomes a shared tensor whose values all parties know.
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
    """Drop the lowest `bits` bits of the fraction of the shared tensor x, in place, and return x.

    Takes one opening, or none if `bits` is 0. The result errs by at most one unit of its new lowest bit.
    """
    return beaver.truncate(x, 1 << bits) if bits else x


def _truncate(x: Any, divisor: int) -> Any:
    """Divide the words of the shared tensor x by a public integer, in place, and return x.

    It replaces CrypTen's truncation. The quotient is exact to one unit of the lowest bit. Takes one opening.
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
    """Return public ring elements on the device of the shared tensor x, where they are to be combined with its shares.

    code: the ring elements, int64. If it has no dimensions, it is returned on its own device, as torch can use it so.
    """
    return put(code, x.device) if code.dim() else code


def _free_bits(y: Tensor) -> int:
    """Return how often the public numbers y can be doubled while their largest magnitude stays below 1; at most 30.

    The result says with how many more bits of fraction a constant is encoded. 0 if all of y is 0, or if y is empty or
    not finite.
    """
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
    """Return an in-place method of shared tensors that does what torch's function `name`(dim, index, source) does.

    name: "index_add", "scatter_add" or "scatter". The method first brings the tensor and `source` to equally many bits
    of fraction, the more of the two; it returns the tensor.
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
    """Copy the values of the shared tensor `other` into the shared tensor `self`, in place.

    If `other` has no more bits of fraction than `self`, the values go into the memory of `self`, so that its views
    change too. Otherwise `self` becomes a copy of `other`, with that tensor's bits of fraction; InputError if the
    shapes differ.
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
    """Make CrypTen encode, convert, multiply and divide fixed-point numbers by the functions of this module.

    They replace CrypTen's own for as long as this process runs.
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
