"""Operations on shares in plain torch, on any device.

Arithmetic is that of Z_2^64: torch's int64 wraps around, and a logical shift is an arithmetic one with the copies of
the sign cleared. kernels/shares/ has the equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import opening, packing, polynomials, products
from hummingbird.kernels.shares.packing import Words, plain
from hummingbird.kernels.shares.products import Factor
from hummingbird.kernels.streams import Drawn

# Packed bits and words ------------------------------------------------------------------------------------------------


def logical_shift(x: Tensor, shift: int) -> Tensor:
    """Shift int64 x right by `shift` bits as an unsigned number: zeros come in from the left, not the sign."""
    return x if shift == 0 else (x >> shift) & ((1 << (64 - shift)) - 1)


def low_bits(width: int) -> int:
    """Return the number whose lowest `width` bits are set, as an int64."""
    return (1 << width) - 1 if width < 64 else -1


@implements(packing.pack_bits, "reference")
def pack_bits(bits: Tensor) -> Tensor:
    """Implement `kernels.shares.packing.pack_bits` in plain torch: pack bits, eight to a byte."""
    padded = torch.nn.functional.pad(bits & 1, (0, -bits.numel() % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


@implements(packing.to_planes, "reference")
def to_planes(x: Tensor, low: int, count: int) -> Tensor:
    """Implement `kernels.shares.packing.to_planes` in plain torch: extract some bits of every element, packed."""
    planes = torch.empty((count, (x.numel() + 7) // 8), dtype=torch.uint8, device=x.device)
    for j in range(count):
        planes[j] = pack_bits(((x >> (low + j)) & 1).to(torch.uint8))
    return planes


@implements(packing.from_bits, "reference")
def from_bits(plane: Tensor, n: int) -> Tensor:
    """Implement `kernels.shares.packing.from_bits` in plain torch: unpack bits to int64 zeros and ones."""
    weights = torch.arange(8, dtype=torch.uint8, device=plane.device)
    return ((plane[:, None] >> weights) & 1).view(-1)[:n].to(torch.int64)


@implements(packing.from_planes, "reference")
def from_planes(planes: Tensor, n: int) -> Tensor:
    """Implement `kernels.shares.packing.from_planes` in plain torch: put the bits of numbers together."""
    out = torch.zeros(n, dtype=torch.int64, device=planes.device)
    for j, plane in enumerate(planes):
        out |= from_bits(plane, n) << j
    return out


@implements(packing.pack_words, "reference")
def pack_words(x: Tensor, width: int) -> Tensor:
    """Implement `kernels.shares.packing.pack_words` in plain torch: pack the low bits of every element."""
    n = x.numel()
    lanes = torch.nn.functional.pad(x & low_bits(width), (0, -n % 8)).view(-1, 8).t().contiguous()
    out = torch.zeros(width, lanes.shape[1], dtype=torch.uint8, device=x.device)
    for lane, byte, shift in _overlaps(width):
        piece = logical_shift(lanes[lane], shift) if shift >= 0 else lanes[lane] << -shift
        out[byte] |= (piece & 0xFF).to(torch.uint8)
    return out.t().reshape(-1)[: (n * width + 7) // 8]


@implements(packing.unpack_words, "reference")
def unpack_words(data: Tensor, n: int, width: int) -> Tensor:
    """Implement `kernels.shares.packing.unpack_words` in plain torch: unpack words to int64."""
    count = -(-n // 8)
    places = torch.nn.functional.pad(data, (0, count * width - data.numel())).view(count, width).t().contiguous()
    out = torch.zeros(8, count, dtype=torch.int64, device=data.device)
    for lane, byte, shift in _overlaps(width):
        piece = places[byte].to(torch.int64)
        out[lane] |= piece << shift if shift >= 0 else piece >> -shift
    return (out & low_bits(width)).t().reshape(-1)[:n]


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """List the triples (word, byte, shift) by which eight words of `width` bits are unpacked from `width` bytes.

    A triple says that byte number `byte` has bits of word number `word`: the byte, shifted left by `shift`, is added to
    the word; a negative shift is one to the right.
    """
    return [
        (lane, byte, 8 * byte - lane * width)
        for lane in range(8)
        for byte in range(lane * width // 8, (lane * width + width + 7) // 8)
    ]


# The dealer ----------------------------------------------------------------------------------------------------------


@implements(opening.deal_masks, "reference")
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """Implement `kernels.shares.opening.deal_masks` in plain torch: compute the dealer's corrections for openings."""
    mask, *bits = ([plain(share) for share in shares] for shares in fields[:3])
    choice, wrap = (reduce(torch.bitwise_xor, shares) for shares in bits)
    values, out = opening.mask_values(mask, choice, wrap, n, k, m, sizes, whole), []
    widths = opening.widths(k, ring, whole)
    for value, shares, width in zip(values, fields[3:], widths, strict=False):
        out.append(packing.pack_words(reduce(torch.sub, [plain(share) for share in shares], value), width))
    for table, shares in zip(values[len(widths) :], fields[3 + len(widths) :], strict=True):
        out.append(reduce(torch.bitwise_xor, [plain(share) for share in shares], table))
    return out


@implements(polynomials.deal_polynomials, "reference")
def deal_polynomials(
    pieces: Tensor, mask: Tensor, shares: Sequence[Sequence[Drawn]], m: int, widths: Sequence[int]
) -> list[Tensor]:
    """Implement `kernels.shares.polynomials.deal_polynomials` in plain torch: compute the dealer's corrections."""
    out = []
    for value, of, width in zip(polynomials.move_polynomials(pieces, mask, m), shares, widths, strict=True):
        out.append(packing.pack_words(reduce(torch.sub, [plain(share) for share in of], value), width))
    return out


# The parties ---------------------------------------------------------------------------------------------------------


@implements(polynomials.evaluate_opened, "reference")
def evaluate_opened(opened: Tensor, coefficients: Sequence[Words], m: int, w: int, shift: int) -> Tensor:
    """Implement `kernels.shares.polynomials.evaluate_opened` in plain torch: evaluate the selected polynomials."""
    row = (torch.arange(opened.numel(), device=opened.device) << w) + ((opened >> m) & ((1 << w) - 1))
    v, total = opened & ((1 << m) - 1), torch.zeros_like(opened)
    for power, words in enumerate(coefficients):
        place = (len(coefficients) - 1 - power) * m
        total += (plain(words)[row].long() << place) * v**power  # mod 2^64
    return (total + (1 << shift >> 1)) >> shift


@implements(opening.rescale, "reference")
def rescale(opened: Tensor, mask_high: Tensor, mask_low: Tensor, shift: int, first: bool, offset: int) -> Tensor:
    """Implement `kernels.shares.opening.rescale` in plain torch: compute a party's share of a shifted value."""
    mask = torch.where(opened < 0, mask_high, mask_low)
    return logical_shift(opened, shift) - (offset >> shift) - mask if first else -mask


@implements(opening.select, "reference")
def select(
    opened: Tensor,
    choice: Tensor,
    bit: Tensor,
    mask_high: Tensor,
    mask_low: Tensor,
    bit_high: Tensor,
    bit_low: Tensor,
    shift: int,
    first: bool,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.select` in plain torch: compute a party's shares at the end of a ReLU."""
    z = rescale(opened, mask_high, mask_low, shift, first, offset)
    value = logical_shift(opened, shift) - (offset >> shift)
    rz = value * bit - torch.where(opened < 0, bit_high, bit_low)
    return torch.where(from_bits(choice, opened.numel()).bool(), z - rz, rz), z


@implements(opening.mask_words, "reference")
def mask_words(share: Tensor, mask: Words, shift: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.mask_words` in plain torch: make a party's message for an opening
    under a mask.
    """
    return pack_words(((share + (1 << shift >> 1)) >> shift) + plain(mask), width)


@implements(opening.open_words, "reference")
def open_words(frames: list[Tensor], n: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.open_words` in plain torch: sum the messages of all parties."""
    total = unpack_words(frames[0], n, width)
    for frame in frames[1:]:
        total += unpack_words(frame, n, width)
    return total & low_bits(width)


@implements(opening.step_table, "reference")
def step_table(x: Tensor, bits: int) -> Tensor:
    """Implement `kernels.shares.opening.step_table` in plain torch: compute a step table for each element."""
    step = x & low_bits(bits)
    if bits < 3:
        return pack_words(torch.full_like(step, -1) << step, 1 << bits)
    places = torch.arange(0, 1 << bits, 8, device=x.device)  # of every byte; ones begin 0 to 8 bits above it
    return ((0xFF << (step[:, None] - places).clamp(0, 8)) & 0xFF).to(torch.uint8).view(-1)


@implements(opening.lookup, "reference")
def lookup(opened: Tensor, table: Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    """Implement `kernels.shares.opening.lookup` in plain torch: compare numbers by their step tables.

    T is the step table of a number L: T[i] = [L <= i]. v is the number in bits low .. low + bits - 1 of an opened word.
    Row 0 is [L < v] = T[v - 1], or 0 if v = 0; row 1 is [L <= v] = T[v]; rows 2 and 3 are the same for v with its top
    bit flipped. If `table` is an XOR share of the tables, the result is an XOR share, too.
    """
    v = (opened >> low) & low_bits(bits)
    start = torch.arange(opened.numel(), device=opened.device) << bits

    answers = []
    for row in rows:
        place = (v ^ (row // 2 << (bits - 1))) - (1 - row % 2)
        index = start + place.clamp(min=0)
        bit = (table[index >> 3] >> (index & 7).to(torch.uint8)) & (place >= 0).to(torch.uint8)
        answers.append(pack_bits(bit))
    return torch.stack(answers)


@implements(opening.compare_opened, "reference")
def compare_opened(
    frames: list[Tensor], table: Words, choice_bits: Words, wrap_bits: Words, n: int, k: int, m: int, first: bool
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.compare_opened` in plain torch: open masked values, and compare them.

    `open_words` opens the values, `lookup` compares them with their mask; mpc/protocols/masked.py has the equations.
    """
    opened = opening.open_words(frames, n, k)
    less, wrap = opening.lookup(opened, plain(table), m, k - m, (0, 3))
    if first:
        less = less ^ ~packing.to_planes(opened, k - 1, 1)[0]  # [X < h]
    return opened, torch.stack((less ^ wrap ^ plain(choice_bits), wrap ^ plain(wrap_bits)))


@implements(opening.lift, "reference")
def lift(
    opened: Tensor,
    choice: Tensor,
    mask: Words,
    carry: Words | None,
    bit: Words,
    wrap: Words,
    product: Words,
    k: int,
    first: bool,
) -> tuple[Tensor, Tensor]:
    """Implement `kernels.shares.opening.lift` in plain torch: compute shares mod 2^64 at the end of a ReLU.

    mpc/protocols/masked.py has the equations.
    """
    n, low = opened.numel(), low_bits(k)
    bits = from_bits(choice[0], n), from_bits(choice[1], n)
    one = int(first)
    # Shares of the two bits and of the mask, less the masks' carry.
    b, s = (c * one + (1 - 2 * c) * plain(r) for c, r in zip(bits, (bit, wrap), strict=True))
    below = 1 - ((opened >> (k - 1)) & 1)  # [X < 2^(w-1)]
    over = (below * one - s) << k if k < 64 else 0
    lifted = opened * one + over
    if carry is None:
        own = lifted - plain(mask)
    else:
        own = (plain(mask).long() & low) - (plain(carry).long() << k if k < 64 else 0)
    z = lifted - own
    y = opened * b - bits[0] * own - (1 - 2 * bits[0]) * plain(product) + over * below
    return y, z


# Exact products and convolutions, right in all 64 bits ----------------------------------------------------------------
#
# On CPUs torch's int64 `matmul`, which wraps mod 2^64, runs on columns that are built for a few images at a time. CUDA
# has no integer product: there the factors are split into 16-bit limbs, whose products are summed in float64, exactly.

LIMB_TERMS = 1 << 21  # the largest number of terms for which sums of limb products are exact in float64
_COLUMN_BYTES = 4 << 20  # size of the unfolded columns that are built at a time: they fit the cache


@implements(products.matmul, "reference")
def matmul(a: Tensor, factor: Factor, bits: int) -> Tensor:
    """Implement `kernels.shares.products.matmul` in plain torch: multiply matrices mod 2^bits."""
    return _product(a, factor.code.long())


@implements(products.selected_sums, "reference")
def selected_sums(words: Words, left: Tensor | None, right: Tensor | None, size: tuple[int, ...]) -> Tensor:
    """Implement `kernels.shares.products.selected_sums` in plain torch: add up the terms that bits select."""
    terms = plain(words).long().view(size)
    terms = terms if left is None else terms * left.unsqueeze(-1)
    return (terms if right is None else terms * right.unsqueeze(1)).sum(2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return matmul_limbs(a, b) if a.is_cuda else torch.matmul(a, b)


def matmul_limbs(a: Tensor, b: Tensor) -> Tensor:
    """Multiply int64 matrices mod 2^64, by float64 products of limbs of 16 bits.

    Exact: limbs are below 2^16, so a sum of k products, and every partial sum in any order, is below k 2^32 <= 2^53 for
    k <= 2^21. Raises InputError for larger k.
    """
    if a.shape[-1] > LIMB_TERMS:
        raise InputError(f"inner dimension {a.shape[-1]} exceeds 2^21, the exactness bound of the float64 product")
    left = [((a >> (16 * i)) & 0xFFFF).double() for i in range(4)]
    right = [((b >> (16 * i)) & 0xFFFF).double() for i in range(4)]
    total: Tensor | None = None
    for i in range(4):
        for j in range(4 - i):  # limbs with i + j >= 4 vanish mod 2^64
            term = torch.matmul(left[i], right[j]).long() << (16 * (i + j))
            total = term if total is None else total + term
    assert total is not None
    return total


@implements(products.conv2d, "reference")
def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` in plain torch: unfolded columns, one matrix product per group."""
    weight = factor.code
    batch, channels = x.shape[:2]
    outputs, inputs, kh, kw = weight.shape
    oh, ow = size
    if groups == channels:
        return _depthwise(x, weight, stride, dilation, oh, ow)
    out = torch.empty(batch, outputs, oh, ow, dtype=torch.int64, device=x.device)
    flat = weight.reshape(groups, outputs // groups, inputs * kh * kw)
    step = max(1, _COLUMN_BYTES // (8 * max(1, channels * kh * kw * oh * ow)))
    for start in range(0, batch, step):
        piece = x[start : start + step]
        images = piece.shape[0]
        unfolded = columns(piece, (kh, kw), stride, dilation, groups, size)
        for group in range(groups):
            product = _product(flat[group], unfolded[group]).view(-1, images, oh, ow)
            first = group * (outputs // groups)
            out[start : start + images, first : first + product.shape[0]] = product.transpose(0, 1)
    return out


def columns(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int, size: Sequence[int]
) -> Tensor:
    """Unfold x for a convolution: make a column of the inputs that each output position reads.

    x: (images, channels, height, width). kernel, stride, dilation: two numbers each. size: height and width of the
    result. Returns (groups, terms, images * positions), with terms = input channels of a group times positions of the
    kernel.
    """
    images, channels = x.shape[:2]
    sb, sc, sh, sw = x.stride()
    view = x.as_strided(
        (channels, *kernel, images, *size),
        (sc, sh * dilation[0], sw * dilation[1], sb, sh * stride[0], sw * stride[1]),
    )
    return view.reshape(groups, channels // groups * kernel[0] * kernel[1], images * size[0] * size[1])


def _depthwise(x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], oh: int, ow: int) -> Tensor:
    """Compute a convolution whose groups have one input channel each, as a sum of shifted and scaled copies of x.

    x: (B, C, H, W). weight: (outputs, 1, kh, kw). stride, dilation: two numbers each. oh, ow: height and width of the
    result.
    """
    channels, outputs = x.shape[1], weight.shape[0]
    x = x.repeat_interleave(outputs // channels, dim=1) if outputs != channels else x
    out = torch.zeros(x.shape[0], outputs, oh, ow, dtype=torch.int64, device=x.device)
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            top, left = i * dilation[0], j * dilation[1]
            tap = x[
                :,
                :,
                top : top + (oh - 1) * stride[0] + 1 : stride[0],
                left : left + (ow - 1) * stride[1] + 1 : stride[1],
            ]
            out.addcmul_(tap, weight[:, 0, i, j].view(1, -1, 1, 1))
    return out
