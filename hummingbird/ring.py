"""Fixed point and exact linear algebra in Z_2^64.

A real v is the ring element round(v * 2^s) mod 2^64, an int64 whose overflow wraps; s is the scale in bits, 16 at
rest. The scale of a product is the sum of its factors' scales, so a linear layer takes scale s to s + 20; the next
protocol that opens the value truncates it (protocols/truncation.py). Linear maps act on each share separately, without
communication.

`hummingbird.kernels` has products, and convolutions without padding; this module adds torch's names and options.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hummingbird import kernels
from hummingbird.errors import InputError
from hummingbird.kernels import Factor

SCALE = 16  # bits of fraction of a layer's inputs and outputs, CrypTen's default
# Fraction bits of weights. More than SCALE, because batch norms are folded into weights, and the largest weight of a
# tensor is then some 100 times the typical one. 16 + 20 leave 28 bits for the integer part of a linear layer's result.
# Weights whose results are read through a window have fewer, down to 16 (`Comparison.weight_scale`).
WEIGHT_SCALE = 20
# |v| * 2^16 must stay below 2^46: a following product with a 16-bit-scaled weight of magnitude up to 1 then stays
# below 2^62, which the protocols of protocols/truncation.py need.
MAX_INTEGER_BITS = 30
PRECISION = 10  # constants are rounded by at most 2^-10 of the largest of them
# If no window reads the results, weights are rounded by 2^-14 of the largest, if there is room. This matters for
# weights that are all below 2^-6: others have their 20 bits anyway, so that a dealer with other weights makes the same
# plan.
FINE_WEIGHTS = 14
FINE_FACTOR = 18  # a single factor is rounded by 2^-18 of itself: its error is a gain, which no sum averages out
LEAST_PRECISION = 8  # without room for these, constants are rounded by at most 2^-8, or else refused


def encode(x: Tensor, scale: int = SCALE, *, where: str = "encode", limit: float | None = None) -> Tensor:
    """Convert real numbers to ring elements, int64 round(x * 2^scale), of the same shape.

    where: the name of x in errors. limit: the largest |x| allowed, or None. Raises InputError for a larger |x|, NaN,
    infinities, and |x| >= 2^30, or 2^(62 - scale) if that is less.
    """
    bits = min(MAX_INTEGER_BITS, 62 - scale)
    if not x.is_floating_point():
        raise InputError(f"expected a floating-point tensor, got {x.dtype}", where=where, hint="call .float() first")
    x = x.detach()
    if x.is_meta:
        return torch.empty_like(x, dtype=torch.int64)
    largest = float(x.abs().max()) if x.numel() else 0.0  # NaN where one is
    # No error says how large: the other parties see it.
    if not math.isfinite(largest):
        raise InputError("the tensor holds NaN or infinity", where=where, hint="look at the data it was made from")
    if largest >= 2.0**bits:
        raise InputError(f"a value leaves the fixed-point range of +-2^{bits}", where=where, hint="scale it down")
    if limit is not None and largest > limit:
        hint = "prepare the data as in training; with a larger limit, values may leave the windows: a wrong result"
        raise InputError(f"expected values within +-{limit:g}, got a larger one", where=where, hint=hint)
    return (x.double() * 2.0**scale).round_().long()


def decode(x: Tensor, scale: int = SCALE) -> Tensor:
    """Convert ring elements to real numbers, float32 x / 2^scale, of the same shape."""
    return (x.double() / 2.0**scale).float()


def fraction(x: Tensor, most: int, *, precision: int = PRECISION, where: str = "constant") -> int:
    """Return how many bits of fraction public constants get when they are rounded to fixed point, at most `most`.

    x: the constants, a real tensor. They get at least 16, and enough for `precision` bits of the largest |x|; fewer if
    fewer hold all constants exactly. where: their name in errors. Raises InputError if the error of rounding to `most`
    bits would exceed 2^-8 of the largest |x|. The arithmetic is exact: every machine finds the same number.
    """
    largest = x.detach().abs().max().double() if x.numel() else torch.zeros((), dtype=torch.float64)
    exponent = exponent_of(float(largest))
    wanted = max(SCALE, precision - exponent)
    if _integral(x.detach().reshape(-1)[:64], wanted) and _integral(x.detach(), wanted):
        wanted = next(bits for bits in range(wanted + 1) if _integral(x.detach(), bits))
    if wanted <= most:
        return wanted
    if float(largest) * 2.0 ** (most + 1) < 2.0**LEAST_PRECISION:  # rounding errs by up to 2^-(most + 1)
        # The error does not say how small: the other parties see it.
        raise InputError(
            f"numbers so small that multiples of 2^-{most} miss them by more than 2^-{LEAST_PRECISION} of the largest",
            where=where,
            hint="multiply them by a power of two, and the net's result by its inverse once it is opened",
        )
    return most


def exponent_of(value: float) -> int:
    """Return the least integer e with |value| <= 2^e; 0 if the value is zero, NaN or infinite."""
    if not value or not math.isfinite(value):
        return 0
    mantissa, exponent = math.frexp(abs(value))
    return exponent - 1 if mantissa == 0.5 else exponent


def shifted(x: Tensor, bits: int) -> Tensor:
    """Return ring elements of the same numbers with `bits` more bits of fraction, or with fewer if `bits` is negative.

    x: ring elements, int64. With fewer bits they are rounded to nearest; this is for public values only, as rounded
    shares would not add up to the rounded value.
    """
    return x << bits if bits >= 0 else (x + (1 << -bits >> 1)) >> -bits


def _integral(x: Tensor, bits: int) -> bool:
    scaled = x.double() * 2.0**bits
    return bool((scaled == scaled.round()).all())


def arranged(op: str, weight: Tensor, groups: int = 1) -> Tensor:
    """Return the weight of a product in the layout that this module's products take.

    op: the product, one of BILINEAR. weight: in torch's layout for it. A matrix stays as it is. A convolution's weight
    becomes (O, C // groups, kd, kh, kw), for O output and C input channels, with kernels of length 1 along the
    dimensions that it lacks; a transposed convolution's becomes that of a convolution with the flipped kernel.
    """
    if not op.startswith("conv"):
        return weight
    weight = weight.reshape(*weight.shape[:2], *(1,) * (5 - weight.dim()), *weight.shape[2:])
    if op.startswith("conv_transpose"):  # from (C, O // groups, kd, kh, kw)
        inputs, outputs, *kernel = weight.shape
        grouped = weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2).flip(-1, -2, -3)
        return grouped.reshape(-1, inputs // groups, *kernel)
    return weight


def _planes(factor: Factor) -> Factor:
    """Return a convolution's weight with the kernel's depth among the channels: (O, C // groups * kd, kh, kw)."""
    return Factor(factor.code.flatten(1, 2), factor.bits)


_UNFOLDED = 1 << 21  # elements of unfolded planes at a time: more only if the input has more


def _convolve(
    x: Tensor, factor: Factor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int, bits: int
) -> Tensor:
    """Convolve x, (B, C, D, H, W), without padding; return int64 (B, O, od, oh, ow), right in the low `bits` bits.

    The planes that an output plane reads become channels of one image, so this is a convolution of two dimensions,

        out[b, :, d] = conv2d(x[b, :, d s + i t for i < kd], weight),      s: stride, t: dilation along the depth.

    factor: the weight, in the layout of `arranged`. stride, dilation: (depth, height, width). Raises InputError for a
    kernel that is larger than the input, or other channels.
    """
    reach = dilation[0] * (factor.code.shape[2] - 1) + 1
    if reach > x.shape[2]:
        what = f"kernel {tuple(factor.code.shape[2:])} is larger than the padded input {tuple(x.shape[2:])}"
        raise InputError(what, where="ring.bilinear")
    planes = x.unfold(2, reach, stride[0])[..., :: dilation[0]].permute(0, 2, 1, 5, 3, 4)  # (B, od, C, kd, H, W)
    step, parts = max(1, _UNFOLDED // max(1, planes[:, :1].numel())), []
    for first in range(0, planes.shape[1], step):
        part = planes[:, first : first + step].flatten(2, 3)
        out = kernels.conv2d(part.flatten(0, 1), factor.made(_planes), stride[1:], dilation[1:], groups, bits)
        parts.append(out.unflatten(0, part.shape[:2]).transpose(1, 2))
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).contiguous()


def _conv_transpose(
    x: Tensor,
    weight: Factor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    bits: int,
) -> Tensor:
    """Return a transposed convolution of ring elements, int64 (B, C, D, H, W).

    It is computed as a convolution of x with zeros put between its values, as the stride says. weight: in the layout of
    `arranged`. stride, padding, output_padding, dilation: torch's options, (depth, height, width) each; groups:
    torch's, too. bits: how many low bits of the result must be right.
    """
    wide = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)]
    spread = torch.zeros(*x.shape[:2], *wide, dtype=x.dtype, device=x.device)
    depth, height, width = (slice(None, None, step) for step in stride)
    spread[:, :, depth, height, width] = x
    margins = [by * (size - 1) - cut for by, size, cut in zip(dilation, weight.code.shape[2:], padding, strict=True)]
    # A negative margin (padding beyond the kernel) crops, which torch's pad does.
    sides = [(margin, margin + more) for margin, more in zip(margins, output_padding, strict=True)]
    return _convolve(_pad(spread, sides), weight, (1,) * len(stride), dilation, groups, bits)


def _pad(x: Tensor, sides: list[tuple[int, int]]) -> Tensor:
    """Return x with zeros around it. sides: (before, behind) for each of the last dimensions."""
    pads = [side for pair in reversed(sides) for side in pair]
    return torch.nn.functional.pad(x, pads) if any(pads) else x


BILINEAR = (
    "mul",
    "matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
)


def bilinear(op: str, a: Tensor, b: Tensor | Factor, bits: int = 64, **kwargs: object) -> Tensor:
    """Return the product of two int64 tensors of ring elements mod 2^bits; higher bits of the result are arbitrary.

    op: which product, one of `BILINEAR`, torch's own names, such as "matmul". b: a tensor in torch's layout for `op`;
    or, for all but "mul", a `Factor` made from its `arranged` form, which makes repeated products cheaper. kwargs:
    torch's options of a convolution. Raises InputError for an unknown `op`.
    """
    if op not in BILINEAR:
        raise InputError(f"unknown product {op!r}", where="ring.bilinear", hint=f"one of {', '.join(BILINEAR)}")
    if op == "mul":
        assert isinstance(b, Tensor), "a factor per element has no arrangement"
        return a * b
    groups = _option(kwargs, "groups", 1, 1)[0]
    factor = b if isinstance(b, Factor) else Factor(arranged(op, b, groups), 64)
    if op == "matmul":
        return kernels.matmul(a, factor, bits)
    spatial = int(op[-2])
    flat = (1,) * (3 - spatial)  # one or two dimensions are a volume of depth 1, and of height 1
    stride, padding, dilation, output_padding = (
        (rest,) * len(flat) + _option(kwargs, name, rest, spatial)
        for name, rest in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    x = a.reshape(*a.shape[:2], *flat, *a.shape[2:])
    if op.startswith("conv_transpose"):
        out = _conv_transpose(x, factor, stride, padding, output_padding, dilation, groups, bits)
    else:
        out = _convolve(_pad(x, [(side, side) for side in padding]), factor, stride, dilation, groups, bits)
    return out.reshape(*out.shape[:2], *out.shape[2 + len(flat) :])


def _option(options: dict[str, object], name: str, default: int, length: int) -> tuple[int, ...]:
    """Return a convolution's option `name`, such as "stride", as a tuple of `length` numbers, one a dimension.

    options: torch's options by name; a value is one number for all dimensions, or a sequence. default: the number if
    the option is missing.
    """
    value = options.get(name, default)
    if isinstance(value, (tuple, list)):
        return tuple(int(v) for v in value) * (length // len(value))
    return (int(value),) * length  # type: ignore[call-overload]
