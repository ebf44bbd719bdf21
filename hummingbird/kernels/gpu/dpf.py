"""Selection bits on a GPU, in Triton: ChaCha12 trees, level by level; kernels/lookups/dpf.py has the construction.

Each thread computes the children of one node, or half of a leaf.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.kernels.devices import put
from hummingbird.kernels.gpu.sizes import sizes
from hummingbird.kernels.gpu.streams import double_round
from hummingbird.kernels.lookups import dpf
from hummingbird.kernels.lookups.dpf import CHACHA12, LEAF_BYTES


@triton.jit
def _word(at, inside):
    return tl.load(at, mask=inside, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def _chacha12(k0, k1, k2, k3, counter, public, inside):
    zero = k0 ^ k0
    c = zero + counter.to(tl.uint32)
    n0, n1, n2 = _word(public + 0, inside), _word(public + 1, inside), _word(public + 2, inside)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3120646E, zero + 0x79622D36, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k0, k1, k2, k3
    x12, x13, x14, x15 = c, n0, n1, n2
    for _ in range(6):
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = double_round(
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15
        )
    x0, x1, x2, x3 = x0 + 0x61707865, x1 + 0x3120646E, x2 + 0x79622D36, x3 + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = x4 + k0, x5 + k1, x6 + k2, x7 + k3, x8 + k0, x9 + k1, x10 + k2, x11 + k3
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12 + c, x13 + n0, x14 + n1, x15 + n2


@triton.jit
def _node(at, inside):
    """A node: the four words of its seed, and a word with all bits equal to the control bit."""
    k0, k1 = _word(at + 0, inside), _word(at + 1, inside)
    k2, k3 = _word(at + 2, inside), _word(at + 3, inside)
    return k0 & 0xFFFFFFFE, k1, k2, k3, (k0 ^ k0) - (k0 & 1)


@triton.jit
def _put(at, correction, word: tl.constexpr, x, control, inside):
    x = x ^ (control & _word(correction + word, inside))
    tl.store(at + word, x.to(tl.int32, bitcast=True), mask=inside)


# Words are read one by one, so kernels specialized for addresses that are multiples of 16 bytes would not be faster.
@triton.jit(do_not_specialize=["nodes", "stride", "n", "total", "public", "corrections", "correction_stride"])
def _children(nodes, stride, n, total, public, corrections, correction_stride, out, size: tl.constexpr):
    """Compute the children of `total` nodes, n of each key."""
    index = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside, key = index < total, index // n
    k0, k1, k2, k3, control = _node(nodes + key * stride + index % n * 4, inside)
    x0, x1, x2, x3, x4, x5, x6, x7, _, _, _, _, _, _, _, _ = _chacha12(
        k0, k1, k2, k3, tl.program_id(1), public + key * 4, inside
    )
    at, correction = out + index * 8, corrections + key * correction_stride
    _put(at, correction, 0, x0, control, inside)
    _put(at, correction, 1, x1, control, inside)
    _put(at, correction, 2, x2, control, inside)
    _put(at, correction, 3, x3, control, inside)
    _put(at, correction, 4, x4, control, inside)
    _put(at, correction, 5, x5, control, inside)
    _put(at, correction, 6, x6, control, inside)
    _put(at, correction, 7, x7, control, inside)


@triton.jit(do_not_specialize=["nodes", "stride", "n", "total", "public", "finals"])
def _leaves(nodes, stride, n, total, public, finals, out, size: tl.constexpr):
    """Compute the leaves of `total` nodes, n of each key; the grid's second dimension is the half of the leaf."""
    index, half = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size), tl.program_id(1)
    inside, key = index < total, index // n
    k0, k1, k2, k3, control = _node(nodes + key * stride + index % n * 4, inside)
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _chacha12(
        k0, k1, k2, k3, half + 1, public + key * 4, inside
    )
    at, final = out + index * 32 + half * 16, finals + key * 32 + half * 16
    _put(at, final, 0, x0, control, inside)
    _put(at, final, 1, x1, control, inside)
    _put(at, final, 2, x2, control, inside)
    _put(at, final, 3, x3, control, inside)
    _put(at, final, 4, x4, control, inside)
    _put(at, final, 5, x5, control, inside)
    _put(at, final, 6, x6, control, inside)
    _put(at, final, 7, x7, control, inside)
    _put(at, final, 8, x8, control, inside)
    _put(at, final, 9, x9, control, inside)
    _put(at, final, 10, x10, control, inside)
    _put(at, final, 11, x11, control, inside)
    _put(at, final, 12, x12, control, inside)
    _put(at, final, 13, x13, control, inside)
    _put(at, final, 14, x14, control, inside)
    _put(at, final, 15, x15, control, inside)


def expand(keys: Tensor, first: int, leaves: int, device: torch.device) -> Tensor:
    """Compute selection bits as `dpf.expand`, uint8 (B, 128 * leaves) on a device, from keys on the CPU.

    InputError for keys of another PRF than chacha12. Needs 16 bytes of memory a leaf besides the result.
    """
    rows = dpf.check(keys, "kernels.gpu.expand(keys)")
    if not (keys[:, dpf.NUMBER] == CHACHA12).all():
        hint = 'make them with generate(..., prf="chacha12")'
        raise InputError("a GPU takes ChaCha12 keys only", where="kernels.gpu.expand(keys)", hint=hint)
    if not 0 <= first <= first + leaves <= dpf.leaves_of(rows):
        message = f"expected leaves from 0 to {dpf.leaves_of(rows)}, got {first} to {first + leaves}"
        raise InputError(message, where="kernels.gpu.expand(first, leaves)", hint="a leaf is 1024 rows")
    batch, levels = len(keys), dpf.depth(rows)
    out = torch.empty((batch, leaves * LEAF_BYTES // 4), dtype=torch.int32, device=device)
    if not leaves:
        return out.view(torch.uint8)
    root, public, corrections, finals = (put(_words(part), device) for part in dpf.fields(keys))
    size = sizes("dpf", device)
    nodes, low = root.view(batch, 1, 4), 0  # of this level, from number `low` on
    for level in range(levels):
        below, n = levels - level - 1, nodes.shape[1]
        both = torch.empty((batch, 2 * n, 4), dtype=torch.int32, device=device)
        level_corrections = corrections[:, level]
        _children[(triton.cdiv(batch * n, size["size"]),)](
            nodes, nodes.stride(0), n, batch * n, public, level_corrections, corrections.stride(0), both, **size
        )
        start, end = first >> below, ((first + leaves - 1) >> below) + 1
        nodes, low = both[:, start - 2 * low : end - 2 * low], start
    _leaves[(triton.cdiv(batch * leaves, size["size"]), 2)](
        nodes, nodes.stride(0), leaves, batch * leaves, public, finals, out, **size
    )
    return out.view(torch.uint8)


def _words(octets: Tensor) -> Tensor:
    return octets.clone(memory_format=torch.contiguous_format).view(torch.int32)
