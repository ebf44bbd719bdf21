"""Shares in C++, which fills the result tensors made here.

The sources are kernels.cpp, masked.cpp, dealing.cpp, polynomials.cpp and products.cpp of csrc/.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.cpu.library import aes, handle
from hummingbird.kernels.registry import implements
from hummingbird.kernels.shares import opening, packing, polynomials, products
from hummingbird.kernels.shares.packing import Packed, Words, bytes_of, plain, stored
from hummingbird.kernels.shares.products import Factor
from hummingbird.kernels.streams import Drawn

_PARTIES = 64  # at most; the same bound as a dealer's


@implements(packing.to_planes, "cpu")
def to_planes(x: Tensor, low: int, count: int) -> Tensor:
    """Implement `kernels.shares.packing.to_planes` in C++: extract some bits of every element, packed."""
    planes = torch.empty((count, bytes_of(x.numel())), dtype=torch.uint8)
    handle().hb_to_planes(x.data_ptr(), x.numel(), low, count, planes.data_ptr())
    return planes


@implements(packing.from_bits, "cpu")
def from_bits(plane: Tensor, n: int) -> Tensor:
    """Implement `kernels.shares.packing.from_bits` in C++: unpack bits to int64 zeros and ones."""
    out = torch.empty(n, dtype=torch.int64)
    handle().hb_from_bits(plane.data_ptr(), n, out.data_ptr())
    return out


@implements(packing.from_planes, "cpu")
def from_planes(planes: Tensor, n: int) -> Tensor:
    """Implement `kernels.shares.packing.from_planes` in C++: put the bits of numbers together."""
    out = torch.empty(n, dtype=torch.int64)
    handle().hb_from_planes(planes.data_ptr(), n, len(planes), out.data_ptr())
    return out


@implements(packing.pack_bits, "cpu")
def pack_bits(bits: Tensor) -> Tensor:
    """Implement `kernels.shares.packing.pack_bits` in C++: pack bits, eight to a byte."""
    out = torch.empty(bytes_of(bits.numel()), dtype=torch.uint8)
    handle().hb_pack_bits(bits.data_ptr(), bits.numel(), out.data_ptr())
    return out


@implements(packing.pack_words, "cpu")
def pack_words(x: Tensor, width: int) -> Tensor:
    """Implement `kernels.shares.packing.pack_words` in C++: pack the low bits of every element."""
    out = torch.empty(bytes_of(x.numel() * width), dtype=torch.uint8)
    handle().hb_pack_words(x.data_ptr(), x.numel(), width, out.data_ptr())
    return out


@implements(packing.unpack_words, "cpu")
def unpack_words(data: Tensor, n: int, width: int) -> Tensor:
    """Implement `kernels.shares.packing.unpack_words` in C++, by `open_words` with the words of a single party."""
    return open_words([data], n, width)


@implements(opening.rescale, "cpu")
def rescale(opened: Tensor, mask_high: Tensor, mask_low: Tensor, shift: int, first: bool, offset: int) -> Tensor:
    """Implement `kernels.shares.opening.rescale` in C++: compute this party's share of a value, shifted right.

    opened: value + offset + mask, public. mask_high, mask_low: this party's shares of the shifted mask, for words of
    `opened` whose top bit is set, and for all others. first: True at exactly one party.
    """
    z = torch.empty_like(opened)
    inputs = [t.data_ptr() for t in (opened, mask_high, mask_low)]
    handle().hb_rescale(opened.numel(), *inputs, shift, first, offset, z.data_ptr())
    return z


@implements(opening.select, "cpu")
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
    """Implement `kernels.shares.opening.select` in C++: compute a party's shares at the end of a ReLU."""
    y, z = torch.empty_like(opened), torch.empty_like(opened)
    inputs = [t.data_ptr() for t in (opened, choice, bit, mask_high, mask_low, bit_high, bit_low)]
    handle().hb_select(opened.numel(), *inputs, shift, first, offset, y.data_ptr(), z.data_ptr())
    return y, z


@implements(opening.mask_words, "cpu")
def mask_words(share: Tensor, mask: Words, shift: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.mask_words` in C++: make a party's message for an opening under a mask."""
    out, (words, bits) = torch.empty(bytes_of(share.numel() * width), dtype=torch.uint8), _packed(mask)
    handle().hb_mask_words(share.data_ptr(), words.data_ptr(), bits, share.numel(), shift, width, out.data_ptr())
    return out


@implements(opening.open_words, "cpu")
def open_words(frames: list[Tensor], n: int, width: int) -> Tensor:
    """Implement `kernels.shares.opening.open_words` in C++: add up the messages of all parties, mod 2^width.

    frames: the messages, each of n packed words of `width` bits. Returns the n sums, int64 (n,).
    """
    out = torch.empty(n, dtype=torch.int64)
    pointers = (ctypes.c_void_p * len(frames))(*[frame.data_ptr() for frame in frames])
    handle().hb_open_words(pointers, len(frames), n, width, out.data_ptr())
    return out


@implements(opening.step_table, "cpu")
def step_table(x: Tensor, bits: int) -> Tensor:
    """Implement `kernels.shares.opening.step_table` in C++: compute a step table for each element."""
    out = torch.empty(bytes_of(x.numel() << bits), dtype=torch.uint8)
    handle().hb_step_table(x.data_ptr(), x.numel(), bits, out.data_ptr())
    return out


@implements(opening.lookup, "cpu")
def lookup(opened: Tensor, table: Tensor, low: int, bits: int, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    """Implement `kernels.shares.opening.lookup` in C++: compare numbers by their step tables."""
    n, wanted = opened.numel(), sum(1 << row for row in rows)
    out = torch.empty((len(rows), bytes_of(n)), dtype=torch.uint8)
    handle().hb_lookup(opened.data_ptr(), n, table.data_ptr(), low, bits, wanted, out.data_ptr())
    return out


@implements(opening.lift, "cpu")
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
    """Implement `kernels.shares.opening.lift` in C++: compute shares mod 2^64 at the end of a ReLU."""
    y, z = torch.empty_like(opened), torch.empty_like(opened) if carry is not None else plain(mask)
    words, bits = zip(*map(_packed, (mask, mask if carry is None else carry, bit, wrap, product)), strict=True)
    lists = (ctypes.c_void_p * 5)(*[x.data_ptr() for x in words]), (ctypes.c_int * 5)(*bits)
    inputs, results = (opened.data_ptr(), choice.data_ptr()), (y.data_ptr(), z.data_ptr())
    handle().hb_lift(opened.numel(), *inputs, *lists, carry is None, k, first, *results)
    return y, z


def _packed(words: Words) -> tuple[Tensor, int]:
    """Return words in the form in which the C++ kernels read them: a tensor that stores them, and the bits of a word.

    Drawn words are computed first. For int32 words the number of bits is -32; the minus says that they have a sign.
    """
    found = stored(words)
    if isinstance(found, Packed):
        return found.data, found.width
    return found, -32 if found.dtype == torch.int32 else 64


def _aes_keys(*keys: Tensor) -> bool:
    return aes() and all([streams.is_aes128(key) for key in keys]) and len(keys) <= _PARTIES


@implements(opening.deal_masks, "cpu", takes=_aes_keys)
def deal_masks(
    fields: Sequence[Sequence[Drawn]], n: int, k: int, m: int, ring: int, sizes: Sequence[int], whole: bool
) -> list[Tensor]:
    """Implement `kernels.shares.opening.deal_masks` in C++: compute the dealer's corrections for openings."""
    keys = torch.stack([share.key for share in fields[0]])
    widths = [*opening.widths(k, ring, whole), *[1 << size for size in sizes]]
    out = [torch.empty(bytes_of(n * width), dtype=torch.uint8) for width in widths]
    firsts = [shares[0].first if shares else 0 for shares in fields]  # none of other parties, if there are none
    places = [x.data_ptr() for x in out]
    if whole:
        firsts.insert(3, 0)
        places.insert(0, 0)  # no carry
    lists = (
        (ctypes.c_int * len(sizes))(*sizes),
        (ctypes.c_int64 * len(firsts))(*firsts),
        (ctypes.c_void_p * len(places))(*places),
    )
    handle().hb_deal_masks(keys.data_ptr(), len(keys), n, k, m, ring, len(sizes), *lists, torch.get_num_threads())
    return out


_SPARE = 8  # numbers behind a column of pieces: a register may be read there


def _few_keys(mask: Tensor, *keys: Tensor) -> bool:
    return _aes_keys(*keys)


@implements(polynomials.deal_polynomials, "cpu", takes=_few_keys)
def deal_polynomials(
    pieces: Tensor, mask: Tensor, shares: Sequence[Sequence[Drawn]], m: int, widths: Sequence[int]
) -> list[Tensor]:
    """Implement `kernels.shares.polynomials.deal_polynomials` in C++: compute the dealer's corrections."""
    n, w, keys = mask.numel(), len(pieces).bit_length() - 1, [share.key for share in shares[0]]
    columns = pieces.double().t()
    twice = torch.cat([columns, columns, columns.new_zeros(len(columns), _SPARE)], 1)  # rows from any one on
    joined = torch.stack(keys) if keys else torch.empty(0, dtype=torch.int32)
    out = [torch.empty(bytes_of((n << w) * width), dtype=torch.uint8) for width in widths]
    lists = (
        (ctypes.c_int64 * len(widths))(*[of[0].first if of else 0 for of in shares]),
        (ctypes.c_int * len(widths))(*widths),
        (ctypes.c_void_p * len(widths))(*[x.data_ptr() for x in out]),
    )
    table = len(keys), twice.data_ptr(), mask.data_ptr(), n, len(widths) - 1, w, m
    handle().hb_deal_polynomials(joined.data_ptr(), *table, *lists, torch.get_num_threads())
    return out


@implements(polynomials.evaluate_opened, "cpu")
def evaluate_opened(opened: Tensor, coefficients: Sequence[Words], m: int, w: int, shift: int) -> Tensor:
    """Implement `kernels.shares.polynomials.evaluate_opened` in C++: evaluate the selected polynomials."""
    out, found = torch.empty_like(opened), [_seekable(words) for words in coefficients]
    data, firsts, widths = zip(*found, strict=True)
    lists = (
        (ctypes.c_void_p * len(found))(*[x.data_ptr() for x in data]),
        (ctypes.c_int64 * len(found))(*firsts),
        (ctypes.c_int64 * len(found))(*[x.nbytes for x in data]),
        (ctypes.c_int * len(found))(*widths),
    )
    sizes = len(found) - 1, m, w, shift, torch.get_num_threads()
    handle().hb_evaluate_opened(opened.data_ptr(), opened.numel(), *lists, *sizes, out.data_ptr())
    return out


def _seekable(words: Words) -> tuple[Tensor, int, int]:
    """Return words in the form in which a C++ kernel reads any of them: a tensor, the first block, the bits of a word.

    Whole words of AES-128 are left to the kernel: the tensor is the key. Other words are stored; the block is then -1.
    """
    if isinstance(words, Drawn) and words.width is None and _aes_keys(words.key):
        return words.key, words.first, -32 if words.dtype == torch.int32 else 64
    data, width = _packed(words)
    return data, -1, width


def _not_empty(a: Tensor, b: Tensor) -> bool:
    return bool(a.numel() and b.numel())


def _one_product(a: Tensor, b: Tensor) -> bool:
    return b.dim() == 2 <= a.dim() and _not_empty(a, b)


@implements(products.matmul, "cpu", takes=_one_product)
def matmul(a: Tensor, factor: Factor, bits: int) -> Tensor:
    """Implement `kernels.shares.products.matmul` in C++, as a 1 x 1 convolution.

    The factor is treated as the image, with a pixel for each of its columns; the rows of `a` are the filters.
    """
    b = factor.code
    shares = Factor(a.view(-1, b.shape[0], 1, 1), 64)  # x of `conv2d` may have int32 numbers here
    out = conv2d(b[None, :, None], shares, (1, 1), (1, 1), 1, (1, b.shape[1]), bits)
    return out.view(*a.shape[:-1], b.shape[1])


@implements(products.selected_sums, "cpu")
def selected_sums(words: Words, left: Tensor | None, right: Tensor | None, size: tuple[int, ...]) -> Tensor:
    """Implement `kernels.shares.products.selected_sums` in C++: add up the terms that bits select."""
    batch, rows, inner, columns = size
    out, (data, width) = torch.empty(batch, rows, columns, dtype=torch.int64), _packed(words)
    bits = [None if x is None else x.data_ptr() for x in (left, right)]
    handle().hb_selected_sums(data.data_ptr(), width, *bits, *size, torch.get_num_threads(), out.data_ptr())
    return out


@implements(products.conv2d, "cpu", takes=_not_empty)
def conv2d(
    x: Tensor,
    factor: Factor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int],
    bits: int,
) -> Tensor:
    """Implement `kernels.shares.products.conv2d` in C++: compute a convolution mod 2^bits.

    size: height and width of the result.
    """
    weight = factor.code
    out = torch.empty((x.shape[0], weight.shape[0], *size), dtype=torch.int64)
    kernel = (weight.shape[0], *weight.shape[2:])
    of_words = bits, factor.bits, 8 * x.itemsize
    numbers = (*x.shape, *kernel, *stride, *dilation, groups, *size, *of_words)  # struct Shape of products.cpp
    shape = (ctypes.c_int64 * len(numbers))(*numbers)
    handle().hb_conv2d(x.data_ptr(), weight.data_ptr(), shape, torch.get_num_threads(), out.data_ptr())
    return out
