"""Exact products on the tensor cores, in Triton: signed bytes of shares and weights, summed in int32.

With x = sum_i x_i 2^(8 i) and w = sum_j w_j 2^(8 j), digits from -128 to 127, the low V bits of a sum of products are

    sum_s 2^(8 s) S_s,      S_s = sum of x_i w_j over terms and over i + j = s,      s < ceil(V / 8)

One launch sums all S_s of a tile of places and outputs in registers, and shifts them together at the end. Inputs are
cut into digits once, with the channels last: the numbers that a row of the kernel reads then lie side by side, and
nothing is unfolded. Weights' digits are kept (`Factor.made`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels.gpu.limbs import balanced
from hummingbird.kernels.gpu.sizes import sizes
from hummingbird.kernels.shares.products import Factor

_FEW = 8  # digits of both factors with which a tile of 64 outputs has room in registers: for a ReLU there are 5 and 3


def exact(bits: int, weight_bits: int, terms: int) -> bool:
    """Whether no sum leaves int32, where tensor cores may saturate."""
    pairs = min(_of_weight(weight_bits), _of_result(bits))  # products of digits in one S_s, each at most 2^14
    return terms * pairs << 14 < 2**31


def _of_result(bits: int) -> int:
    return -(-bits // 8)


def _of_weight(bits: int) -> int:
    """Digits for |w| <= 2^(b-1): n hold up to 127 (256^n - 1) / 255, less than 2^(8n-1); 8 hold all mod 2^64."""
    return min(8, bits // 8 + 1)


@triton.jit(do_not_specialize=["blocks"])
def _cut(
    x,
    out,
    channels,
    plane,
    channel_step,  # in x, where an image's numbers lie side by side
    place_step,
    blocks,
    size,
    DIGITS: tl.constexpr,
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Digits of x, `plane` places of `channels` in each image, as out (DIGITS, images, plane, channels)."""
    tile, tiles = tl.program_id(0), tl.cdiv(plane, PLACES)
    channel = tile % blocks * CHANNELS + tl.arange(0, CHANNELS)
    place = tile // blocks % tiles * PLACES + tl.arange(0, PLACES)
    image = (tile // blocks // tiles).to(tl.int64)
    inside = (place < plane)[:, None] & (channel < channels)[None, :]
    source = x + image * plane * channels + channel[None, :] * channel_step + place[:, None] * place_step
    word = tl.load(source, mask=inside, other=0)
    to = out + (image * plane + place[:, None]) * channels + channel[None, :]
    for _ in tl.static_range(DIGITS):
        digit = word.to(tl.int8)
        tl.store(to, digit, mask=inside)
        word = (word - digit.to(tl.int64)) >> 8
        to += size


# Other numbers decide how wide loads may be.
@triton.jit(do_not_specialize=["places", "length", "out_width", "plane", "outputs", "runs", "across"])
def _multiply(
    x,
    w,
    out,
    x_size,  # numbers of one digit
    w_size,
    places,
    length,  # of an image's places
    out_width,
    plane,
    step_h,  # between the inputs of neighbouring places
    step_w,
    channels,
    inputs,
    outputs,
    runs,  # numbers that lie side by side: `runs` times `run`, `across` of them in a row of the kernel
    run,
    across,
    down_step,
    across_step,
    DIGITS: tl.constexpr,
    WEIGHT_DIGITS: tl.constexpr,
    PLACES: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TERMS: tl.constexpr,
):
    """out (images, groups * outputs, length): x (DIGITS, images, plane, channels), w (WEIGHT_DIGITS, .., terms)."""
    place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    group, groups = tl.program_id(2), tl.num_programs(2)
    here, there = place < places, output < outputs
    image, at = place // length, place % length
    corner = image * plane * channels + at // out_width * step_h + at % out_width * step_w
    x += corner[:, None] + group * inputs
    w += ((group * outputs + output) * runs).to(tl.int64)[None, :] * run
    sums = ()
    for _ in tl.static_range(DIGITS):
        sums = sums + (tl.zeros((PLACES, OUTPUTS), tl.int32),)  # type: ignore[assignment]
    blocks = tl.cdiv(run, TERMS)
    for step in range(runs * blocks):
        which, term = step // blocks, step % blocks * TERMS + tl.arange(0, TERMS)
        inside = term < run
        left, right = (), ()
        source = x + (which // across * down_step + which % across * across_step + term)[None, :]
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
    result = tl.zeros((PLACES, OUTPUTS), tl.int64)
    for s in tl.static_range(DIGITS):
        result += sums[s].to(tl.int64) << (8 * s)
    to = out + ((image * groups + group)[:, None] * outputs + output[None, :]) * length + at[:, None]
    tl.store(to, result, mask=here[:, None] & there[None, :])


def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """See `products.conv2d`; for weights and terms that are `exact`."""
    images, channels, height, width = x.shape
    outputs, inputs, kernel_h, kernel_w = factor.code.shape
    count = _of_result(bits)
    left, right = cut(x, count), factor.made(_weight_digits)[:count]
    length, many = size[0] * size[1], outputs // groups
    # With one group, and without holes, a row of the kernel reads one run of numbers.
    whole = groups == 1 and dilation[1] == 1
    out = torch.empty((images, outputs, *size), dtype=torch.int64, device=x.device)
    # Sums of a place for each digit of the result, and the digits of both factors, are in registers at once.
    tile = sizes("multiply" if count + len(right) <= _FEW else "multiply_wide", x.device)
    grid = (triton.cdiv(images * length, tile["PLACES"]), triton.cdiv(many, tile["OUTPUTS"]), groups)
    _multiply[grid](
        left,
        right,
        out,
        x.numel(),
        factor.code.numel(),
        images * length,
        length,
        size[1],
        height * width,
        stride[0] * width * channels,
        stride[1] * channels,
        channels,
        inputs,
        many,
        kernel_h if whole else kernel_h * kernel_w,
        kernel_w * channels if whole else inputs,
        1 if whole else kernel_w,
        dilation[0] * width * channels,
        dilation[1] * channels,
        DIGITS=count,
        WEIGHT_DIGITS=len(right),
        **tile,
    )
    return out


def cut(x: Tensor, count: int) -> Tensor:
    """Cut shares (B, C, H, W), contiguous, into digits, channels last: int8 (count, B, H, W, C)."""
    images, channels, height, width = x.shape
    out = torch.empty((count, images, height, width, channels), dtype=torch.int8, device=x.device)
    plane, steps = height * width, (height * width, 1)
    if plane == 1:  # a matrix, whose rows are as good as places
        images, plane, steps = 1, images, (1, channels)
    tile = sizes("cut", x.device)
    blocks = triton.cdiv(channels, tile["CHANNELS"])
    grid = (images * triton.cdiv(plane, tile["PLACES"]) * blocks,)
    _cut[grid](x, out, channels, plane, *steps, blocks, x.numel(), DIGITS=count, **tile)
    return out


def _weight_digits(factor: Factor) -> Tensor:
    """Digits of weights (O, C // groups, kh, kw), channels last: int8 (digits, O, kh, kw, C // groups)."""
    parts = balanced(factor.code.permute(0, 2, 3, 1), 8, _of_weight(factor.bits))
    return torch.stack([part.to(torch.int8) for part in parts])
