"""Matrix products and convolutions of ring elements: exact in the bits that are read later, on every device.

A convolution is one matrix product per group, [O, C*kh*kw] x [C*kh*kw, B*L], with the batch among the columns. In C++
(csrc/products.cpp) it runs without building the columns; gpu/products.py has the methods on CUDA.

Of most results only the low V bits are read (mpc/plan/rounding_plan.py), and public weights have far fewer bits than
64. Both make products cheaper: a vector instruction that multiplies 52 bits, fewer limbs or digits on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.checks import check_range, check_tensor
from hummingbird.kernels.registry import best
from hummingbird.kernels.shares.packing import Words, anchor, check_words

_Made = TypeVar("_Made")


class Factor:
    """A weight that is a factor of many products, together with what kernels have computed from it.

    code: int64, the weight, as `matmul` or `conv2d` takes it; it must not change any more. For `matmul` on a CPU it may
    be int32, which takes half the memory. bits: the least number known
    with -2^(bits-1) <= code < 2^(bits-1); 64 is always right; None: it is computed, by a pass over `code`.
    """

    def __init__(self, code: Tensor, bits: int | None = None) -> None:
        self.code, self.bits = code.contiguous(), _width(code) if bits is None else bits
        self._made: dict[Any, Any] = {}

    def made(self, make: Callable[[Factor], _Made]) -> _Made:
        """Return make(self), which is computed at the first call only.

        make: a function at the top of a module, no lambda, because the result is stored under this function.
        """
        if make not in self._made:
            self._made[make] = make(self)
        made: _Made = self._made[make]
        return made


def _width(code: Tensor) -> int:
    if code.dtype not in (torch.int64, torch.int32) or code.is_meta:
        return 64
    if not code.numel():
        return 1
    least, most = (int(end) for end in code.aminmax())
    return max(most, -least - 1).bit_length() + 1


def _checked(where: str, a: Tensor, b: Tensor | Factor, bits: int, narrow: bool = False) -> Factor:
    factor = b if isinstance(b, Factor) else Factor(b, 64)
    for name, tensor in (("a", a), ("b", factor.code)):
        if tensor.dtype != torch.int64 and not (narrow and tensor is factor.code and tensor.dtype == torch.int32):
            raise InputError(f"{name} is {tensor.dtype}", where=where, hint="ring elements are torch.int64")
    if a.device != factor.code.device:
        what = f"operands on {a.device} and {factor.code.device}"
        raise InputError(what, where=where, hint="move both to one device")
    check_range(f"{where}(bits)", bits, 1, 64)
    return factor


def matmul(a: Tensor, b: Tensor | Factor, bits: int = 64) -> Tensor:
    """Multiply matrices mod 2^bits: a, int64 (..., n, k), times b, int64 (..., k, m), as torch's matmul does.

    On a CPU b may be int32, whose numbers have a sign; products of up to four rows then read it once, in order.

    The low `bits` bits of the result are those of the product; the bits above are undefined and must not be read.
    InputError for other types or devices. On CUDA k is at most 2^21.
    """
    factor = _checked("kernels.matmul", a, b, bits, narrow=a.device.type == "cpu")
    if factor.code.dim() == 2:  # one product for all of a's rows
        if a.shape[-1] != factor.code.shape[0]:
            hint = "the first has as many columns as the second has rows"
            what = f"{tuple(a.shape)} times {tuple(factor.code.shape)}: inner sizes differ"
            raise InputError(what, where="kernels.matmul", hint=hint)
        a = a.contiguous()
    return best(matmul, a, factor.code)(a, factor, bits)


def conv2d(
    x: Tensor, weight: Tensor | Factor, stride: Sequence[int], dilation: Sequence[int], groups: int, bits: int = 64
) -> Tensor:
    """Convolve x with a weight, without padding, mod 2^bits.

    x: int64 (B, C, H, W). weight: int64 (O, C // groups, kh, kw). stride, dilation: two numbers each. Returns int64 (B,
    O, oh, ow), of which the low `bits` bits are those of the convolution; the bits above are undefined. InputError for
    other types or devices, for channels that do not fit, and for a kernel larger than the input.
    """
    where = "kernels.conv2d"
    factor = _checked(where, x, weight, bits)
    outputs, inputs, *kernel = factor.code.shape
    if x.shape[1] != inputs * groups or outputs % groups:
        raise InputError(f"{x.shape[1]} channels, weight {tuple(factor.code.shape)}, {groups} groups", where=where)
    size = [(x.shape[2 + d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1)]
    if min(size) < 1:
        raise InputError(f"kernel {tuple(kernel)} is larger than the padded input {tuple(x.shape[2:])}", where=where)
    x = x.contiguous()
    return best(conv2d, x, factor.code)(x, factor, stride, dilation, groups, size, bits)


def selected_sums(words: Words, left: Tensor | None, right: Tensor | None, size: tuple[int, ...]) -> Tensor:
    """Add up those terms of stacked matrix products that bits select.

    size: (batch, i, j, l). words: one for each term, (batch i j l,). left, right: int64, 0 or 1, (batch, i, j) and
    (batch, j, l); None: all terms count. Returns int64 (batch, i, l), mod 2^64: the sum over j of word (i, j, l) times
    left (i, j) times right (j, l). InputError for other types, shapes or devices.

        ones, left = torch.ones(6, dtype=torch.int64), torch.tensor([[[1, 0, 1]]])
        selected_sums(ones, left, None, (1, 1, 3, 2)).tolist() == [[[2, 2]]]
    """
    function = "kernels.selected_sums"
    if len(size) != 4 or min(size) < 0:
        raise InputError(f"{size} is no stack of terms", where=f"{function}(size)", hint="four sizes, from 0 on")
    batch, rows, inner, columns = size
    like = anchor(words)
    check_words(f"{function}(words)", words, like, math.prod(size))
    for name, bits, shape in (("left", left, (batch, rows, inner)), ("right", right, (batch, inner, columns))):
        if bits is not None:
            check_tensor(f"{function}({name})", bits.reshape(-1), torch.int64, like, math.prod(shape))
            if tuple(bits.shape) != shape:
                raise InputError(f"expected shape {shape}, got {tuple(bits.shape)}", where=f"{function}({name})")
    given = [None if bits is None else bits.contiguous() for bits in (left, right)]
    return best(selected_sums, like)(words, *given, size)
