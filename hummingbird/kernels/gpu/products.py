"""Exact products on a GPU, by three methods: digits in Triton, limbs in float64, and the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.gpu.sizes import sizes
from hummingbird.kernels.reference import shares as reference
from hummingbird.kernels.reference.shares import columns
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import products
from hummingbird.kernels.shares.products import Factor

# Limbs: float64, in plain torch; few limbs of the shares, times undivided weights -------------------------------------
#
# The low V bits of a share are sum_i d_i 2^(h i), n signed limbs of h = ceil(V / n) bits, |d_i| <= 2^(h-1), and weights
# are w, |w| <= 2^(b-1). A sum of K products d w stays within 2^(h+b-2) K, and float64 adds integers up to 2^53 exactly,
# in any order. So n matrix products, by the BLAS on unfolded columns, yield the result mod 2^V. A library's own
# convolution could use transforms (Winograd, FFT), which round.

_MOST = 8  # limbs; the reference has ten products of 16-bit limbs
_COLUMN_BYTES = 1 << 30  # size of the unfolded columns that are built at a time


def limb_count(bits: int, weight_bits: int, terms: int) -> int:
    """Return the least number of limbs for which sums of products of limbs and weights are exact in float64.

    Limbs are the parts, of equally many bits, into which shares are split. The result is 0 if not even 8 limbs suffice.
    bits: how many low bits of the result are read. weight_bits: bits of a weight. terms: number of products in a sum.
    """
    for limbs in range(1, _MOST + 1):
        if terms << max(0, -(-bits // limbs) + weight_bits - 2) <= 2**53:  # 2^(h+b-2) K, see above
            return limbs
    return 0


def balanced(x: Tensor, width: int, limbs: int) -> list[Tensor]:
    """Split int64 numbers x into limbs d_i, numbers of `width` bits with sign: x = sum_i d_i 2^(width i) mod 2^(width
    limbs).

    limbs: how many. Returns a list of limbs, the lowest first; each is int64 of the shape of x.
    """
    out = []
    for _ in range(limbs):
        out.append((x << (64 - width)) >> (64 - width))
        x = (x - out[-1]) >> width  # the difference may wrap, which changes only bits above all limbs
    return out


def conv2d_by_limbs(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` by float64 products of limbs, in plain torch.

    To be called only where `limb_count` is not 0, so that sums are exact. size: height and width of the result.
    """
    outputs, inputs, *kernel = factor.code.shape
    terms, places = factor.code[0].numel(), size[0] * size[1]
    limbs = limb_count(bits, factor.bits, terms)
    width = -(-bits // limbs)
    weight = factor.made(_whole).view(groups, outputs // groups, terms)
    out = torch.empty((x.shape[0], outputs, *size), dtype=torch.int64, device=x.device)
    step = max(1, _COLUMN_BYTES // (8 * groups * terms * places))
    for start in range(0, x.shape[0], step):
        piece = x[start : start + step]
        total = torch.zeros((groups, outputs // groups, len(piece) * places), dtype=torch.int64, device=x.device)
        for i, limb in enumerate(balanced(piece, width, limbs)):
            unfolded = columns(limb.double(), kernel, stride, dilation, groups, size)
            total += torch.matmul(weight, unfolded).long() << (width * i)
        out[start : start + step] = total.view(outputs, len(piece), *size).transpose(0, 1)
    return out


def _whole(factor: Factor) -> Tensor:
    return factor.code.double()  # exact: |w| <= 2^(b-1), and b - 2 < 53 where `count` allows it


# Digits: tensor cores, in Triton; signed bytes of shares and weights, summed in int32 ---------------------------------
#
# With x = sum_i x_i 2^(8 i) and w = sum_j w_j 2^(8 j), digits from -128 to 127, the low V bits of a sum of products are
#
#     sum_s 2^(8 s) S_s,      S_s = sum of x_i w_j over terms and over i + j = s,      s < ceil(V / 8)
#
# One launch sums all S_s of a tile of positions and outputs in registers, and combines them by shifts at the end.
# Inputs are split into digits once, with the channels last: the numbers that a row of the convolution kernel reads are
# then contiguous, and nothing is unfolded. The weights' digits are kept (`Factor.made`).

_UNIT = 8  # contiguous channels, at least: the bytes of one load
_FEW = 6  # digits of a result, at most, whose sums fit the registers in tiles of 64 outputs; a ReLU's result has 5


def digits_exact(bits: int, weight_bits: int, terms: int) -> bool:
    """Return whether all sums of products of digits (signed bytes) fit int32, so that a product by digits is exact.

    Beyond int32 tensor cores may saturate. bits: how many low bits of the result are read. weight_bits: bits of a
    weight. terms: number of products in a sum.
    """
    pairs = min(_of_weight(weight_bits), _of_result(bits))  # products of digits in one S_s, each at most 2^14
    return terms * pairs << 14 < 2**31


def _of_result(bits: int) -> int:
    return -(-bits // 8)


def _of_weight(bits: int) -> int:
    """Return how many signed bytes (digits) a weight w needs, if |w| <= 2^(bits-1).

    n digits hold numbers up to 127 (256^n - 1) / 255 < 2^(8n-1); 8 digits hold every weight.
    """
    return min(8, bits // 8 + 1)


@triton.jit(do_not_specialize=["inputs", "padded", "channels", "blocks", "size"])
def _cut(
    x,
    out,
    inputs,  # channels of a group in x
    padded,  # channels of a group in out
    channels,  # all channels of out, in units
    plane,
    channel_step,  # strides in x, where an image is contiguous
    place_step,
    blocks,
    size,  # in units
    DIGITS: tl.constexpr,
    PADDED: tl.constexpr,
    UNIT: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Split the integers x into signed bytes (digits), and store the digits in `out`; one program of a Triton kernel.

    x: (images, channels, plane), of any strides, with plane = height times width. out: memory for (DIGITS, images,
    plane, channels). The other arguments are numbers of elements and strides, which comments in the signature explain,
    and the sizes of a tile (PLACES, CHANNELS).
    """
    channels, size = channels * UNIT, size.to(tl.int64) * UNIT
    tile, tiles = tl.program_id(0), tl.cdiv(plane, PLACES)
    channel = tile % blocks * CHANNELS + tl.arange(0, CHANNELS)
    place = tile // blocks % tiles * PLACES + tl.arange(0, PLACES)
    image = (tile // blocks // tiles).to(tl.int64)
    inside = (place < plane)[:, None] & (channel < channels)[None, :]
    given, origin, there = inside, channel, channels
    if PADDED:
        given = inside & (channel % padded < inputs)[None, :]
        origin, there = channel // padded * inputs + channel % padded, channels // padded * inputs
    source = x + image * plane * there + origin[None, :] * channel_step + place[:, None] * place_step
    word = tl.load(source, mask=given, other=0)
    to = out + (image * plane + place[:, None]) * channels + channel[None, :]
    for _ in tl.static_range(DIGITS):
        digit = word.to(tl.int8)
        tl.store(to, digit, mask=inside)
        word = (word - digit.to(tl.int64)) >> 8
        to += size


# Sizes are passed in units: so the compiler knows what they are multiples of, and how many numbers a load may take.
@triton.jit(
    do_not_specialize=[
        *("x_size", "w_size", "places", "length", "out_width", "plane", "channels", "outputs", "inputs"),
        *("step_h", "step_w", "runs", "run", "across", "down_step", "across_step"),
    ]
)
def _multiply(
    x,
    w,
    out,
    x_size,  # numbers of one digit, in units
    w_size,  # in units
    places,
    length,  # of an image's places
    out_width,
    plane,
    channels,  # in units
    outputs,
    inputs,  # in units
    step_h,  # distance in positions between the inputs of neighbouring outputs
    step_w,
    runs,  # contiguous runs of numbers that one output reads
    run,  # numbers of a run, in units
    across,  # runs in a row of the convolution kernel
    down_step,  # distance in positions between runs
    across_step,
    DIGITS: tl.constexpr,
    WEIGHT_DIGITS: tl.constexpr,
    UNIT: tl.constexpr,
    PLACES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Multiply inputs and weights that are split into signed bytes (digits), and store a convolution's result in `out`.

    x: the digits of the inputs, (DIGITS, images, plane, channels). w: the digits of the weights, (WEIGHT_DIGITS, groups
    * outputs, terms). out: memory for the result, (images, groups * outputs, length). length: number of positions of an
    output image. The other arguments are numbers of elements and distances, which comments in the signature explain,
    and the sizes of a tile (PLACES, OUTPUTS, TERMS).
    """
    x_size, w_size = x_size.to(tl.int64) * UNIT, w_size.to(tl.int64) * UNIT
    channels, inputs, run = channels * UNIT, inputs * UNIT, run * UNIT
    start = tl.program_id(0).to(places.dtype) * PLACES  # 64-bit divisions would take more registers than the sums
    place = start + tl.arange(0, PLACES)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    group, groups = tl.program_id(2), tl.num_programs(2)
    here, there = tl.arange(0, PLACES) < places - start, output < outputs
    image, at = (place // length).to(tl.int64), place % length
    corner = (image * plane + at // out_width * step_h + at % out_width * step_w) * channels
    x += corner[:, None] + group * inputs
    w += ((group * outputs + output) * runs).to(tl.int64)[None, :] * run
    sums = ()
    for _ in tl.static_range(DIGITS):
        sums = sums + (tl.zeros((PLACES, OUTPUTS), tl.int32),)  # type: ignore[assignment]
    blocks = tl.cdiv(run, TERMS)
    steps = runs * blocks
    tl.assume(steps > 0)  # else the compiler widens the sums before the loop too, with twice the registers
    for step in range(steps):
        which, term = step // blocks, step % blocks * TERMS + tl.arange(0, TERMS)
        inside = term < run
        left, right = (), ()
        source = x + ((which // across * down_step + which % across * across_step) * channels + term)[None, :]
        for _ in tl.static_range(DIGITS):
            left = left + (tl.load(source, mask=here[:, None] & inside[None, :], other=0),)  # type: ignore[assignment]
            source += x_size
        source = w + (which * run + term)[:, None]
        for _ in tl.static_range(WEIGHT_DIGITS):
            right = right + (tl.load(source, mask=inside[:, None] & there[None, :], other=0),)  # type: ignore[assignment]
            source += w_size
        added = ()
        for s in tl.static_range(DIGITS):
            total = sums[s]  # type: ignore[var-annotated]
            for j in tl.static_range(WEIGHT_DIGITS):
                if j <= s:
                    total = tl.dot(left[s - j], right[j], total, out_dtype=tl.int32)
            added = added + (total,)  # type: ignore[assignment]
        sums = added
    result = sums[DIGITS - 1].to(tl.int64)  # type: ignore[var-annotated]
    for s in tl.static_range(1, DIGITS):
        result = (result << 8) + sums[DIGITS - 1 - s].to(tl.int64)
    # Transposed, as neighbouring positions are contiguous: a warp stores whole lines.
    to = out + ((image * groups + group)[None, :] * outputs + output[:, None]) * length + at[None, :]
    tl.store(to, tl.trans(result), mask=there[:, None] & here[None, :])


def conv2d_by_digits(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` in Triton on tensor cores, by products of signed bytes (digits).

    To be called only where `digits_exact` is true. size: height and width of the result.
    """
    images, channels, height, width = x.shape
    outputs, inputs, kernel_h, kernel_w = factor.code.shape
    count = _of_result(bits)
    left, right = cut(x, count, groups), factor.made(_weight_digits)[:count]
    length, many, padded = size[0] * size[1], outputs // groups, right.shape[-1]
    # With one group and dilation 1, a row of the convolution kernel reads one contiguous run of numbers.
    whole = groups == 1 and dilation[1] == 1
    out = torch.empty((images, outputs, *size), dtype=torch.int64, device=x.device)
    tile = sizes("multiply" if count <= _FEW else "multiply_wide", x.device)
    unit = math.gcd(padded, 16)
    grid = (triton.cdiv(images * length, tile["PLACES"]), triton.cdiv(many, tile["OUTPUTS"]), groups)
    _multiply[grid](
        left,
        right,
        out,
        left[0].numel() // unit,
        right[0].numel() // unit,
        images * length,
        length,
        size[1],
        height * width,
        groups * padded // unit,
        many,
        padded // unit,
        stride[0] * width,
        stride[1],
        kernel_h if whole else kernel_h * kernel_w,
        (kernel_w if whole else 1) * padded // unit,
        1 if whole else kernel_w,
        dilation[0] * width,
        dilation[1],
        DIGITS=count,
        WEIGHT_DIGITS=len(right),
        UNIT=unit,
        **tile,
    )
    return out


def cut(x: Tensor, count: int, groups: int = 1) -> Tensor:
    """Split shares x, (B, C, H, W), contiguous, into `count` signed bytes (digits), with the channels last.

    Returns int8 (count, B, H, W, groups * padded); padded: the number of channels in a group, rounded up to a multiple
    of _UNIT; the added channels are zeros.
    """
    images, channels, height, width = x.shape
    inputs = channels // groups
    padded = inputs + _padding(inputs)
    out = torch.empty((count, images, height, width, groups * padded), dtype=torch.int8, device=x.device)
    plane, steps = height * width, (height * width, 1)
    if plane == 1:  # a matrix: its rows are the positions
        images, plane, steps = 1, images, (1, channels)
    tile = sizes("cut", x.device)
    blocks = triton.cdiv(groups * padded, tile["CHANNELS"])
    grid = (images * triton.cdiv(plane, tile["PLACES"]) * blocks,)
    _cut[grid](
        *(x, out, inputs, padded, groups * padded // _UNIT, plane, *steps, blocks, out[0].numel() // _UNIT),
        **{"DIGITS": count, "PADDED": padded > inputs, "UNIT": _UNIT, **tile},
    )
    return out


def _padding(inputs: int) -> int:
    return -inputs % _UNIT


def _weight_digits(factor: Factor) -> Tensor:
    """Split a convolution's weights into signed bytes (digits), with the channels last.

    factor: has the weights, (O, C // groups, kh, kw). Returns int8 (digits, O, kh, kw, padded); padded: the number of
    channels, rounded up to a multiple of _UNIT; the added channels are zeros.
    """
    last = F.pad(factor.code.permute(0, 2, 3, 1), (0, _padding(factor.code.shape[1])))
    return torch.stack([part.to(torch.int8) for part in balanced(last, 8, _of_weight(factor.bits))])


# The choice among the methods -----------------------------------------------------------------------------------------
#
#     digits     signed bytes of both factors in Triton, summed in int32 by the tensor cores
#     limbs      few limbs of the shares times undivided weights, summed in float64
#     reference  16-bit limbs of both factors, ten products in float64 (reference/shares.py)
#
# The peak rates of an H100, for 40 result bits and weights of 19 bits, are 82 T multiply-adds a second by 12 products
# of digits, 14 T by 2 products of limbs and 2.9 T by the reference: derived, not measured. The first two methods must
# be exact for this V, b and K. torch's switches for TF32 and for sums in half precision affect neither int8 nor
# float64.

WAYS = {"digits": conv2d_by_digits, "limbs": conv2d_by_limbs, "reference": reference.conv2d}
TENSOR_CORES = (8, 0)  # the least compute capability with products of bytes in Triton


def way(bits: int, weight_bits: int, terms: int, capability: tuple[int, int]) -> str:
    """Choose the method by which a GPU computes sums of products exactly: "digits", "limbs" or "reference", a key of
    WAYS.

    bits: how many low bits of the result are read. weight_bits: bits of a weight. terms: products in a sum. capability:
    the GPU's compute capability.
    """
    if capability >= TENSOR_CORES and digits_exact(bits, weight_bits, terms):
        return "digits"
    return "limbs" if limb_count(bits, weight_bits, terms) else "reference"


def _several_inputs(x: Tensor, weight: Tensor) -> bool:
    """Return whether each group of a convolution of x has several input channels, and neither x nor `weight` is empty.

    With only one, computing the convolution as a matrix product does not pay.
    """
    return bool(x.numel() and weight.numel()) and weight.shape[1] > 1


@implements(products.conv2d, "gpu", takes=_several_inputs)
def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` on a GPU, by the method that `way` chooses.

    size: height and width of the result.
    """
    chosen = way(bits, factor.bits, factor.code[0].numel(), torch.cuda.get_device_capability(x.device))
    with torch.cuda.device_of(x):  # Triton starts kernels on the thread's device
        return WAYS[chosen](x, factor, stride, dilation, groups, size, bits)


def _one_product(a: Tensor, b: Tensor) -> bool:
    return b.dim() == 2 <= a.dim() and bool(a.numel() and b.numel())


@implements(products.matmul, "gpu", takes=_one_product)
def matmul(a: Tensor, factor: Factor, bits: int) -> Tensor:
    """Implement `kernels.shares.products.matmul` on a GPU, as a 1 x 1 convolution whose images are the rows of `a`."""
    terms, columns = factor.code.shape
    out = conv2d(a.view(-1, terms, 1, 1), factor.made(_turned), (1, 1), (1, 1), 1, (1, 1), bits)
    return out.view(*a.shape[:-1], columns)


def _turned(factor: Factor) -> Factor:
    """Convert the matrix `factor` to the weight of a 1 x 1 convolution, with an output channel for each column of the
    matrix.
    """
    return Factor(factor.code.t()[:, :, None, None], factor.bits)
