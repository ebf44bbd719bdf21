"""ChaCha20 in Triton: each thread computes one block; kernels/streams.py describes the cipher."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hummingbird.kernels import streams
from hummingbird.kernels.gpu.sizes import sizes
from hummingbird.kernels.registry import implements


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def double_round(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15):
    """Apply two of ChaCha's rounds to states of 16 words each: one round to the columns, one to the diagonals.

    x0 .. x15: the words, each of all states. Returns the new words.
    """
    x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
    x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
    x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
    x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
    x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
    x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
    x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
    x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit(do_not_specialize=["first", "blocks"])
def _blocks(key, first, blocks, out, size: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    zero = tl.zeros((size,), dtype=tl.uint32)
    counter = (index + first).to(tl.uint32)
    k0 = zero + tl.load(key + 0).to(tl.uint32, bitcast=True)
    k1 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = counter, zero, zero, zero
    for _ in range(10):
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = double_round(
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15
        )
    at, inside = out + index * 16, index < blocks
    tl.store(at + 0, (x0 + 0x61707865).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 1, (x1 + 0x3320646E).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 2, (x2 + 0x79622D32).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 3, (x3 + 0x6B206574).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 4, (x4 + k0).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 5, (x5 + k1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 6, (x6 + k2).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 7, (x7 + k3).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 8, (x8 + k4).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 9, (x9 + k5).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 10, (x10 + k6).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 11, (x11 + k7).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 12, (x12 + counter).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 13, x13.to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 14, x14.to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 15, x15.to(tl.int32, bitcast=True), mask=inside)


@implements(streams.chacha20, "gpu")
def chacha20(key: Tensor, first: int, blocks: int) -> Tensor:
    """Implement `kernels.streams.chacha20` in Triton: compute blocks of a key stream."""
    out = torch.empty((blocks, 16), dtype=torch.int32, device=key.device)
    if blocks:
        with torch.cuda.device_of(out):  # Triton starts kernels on the thread's device
            size = sizes("chacha20", key.device)
            _blocks[(triton.cdiv(blocks, size["size"]),)](key, first, blocks, out, **size)
    return out.view(torch.uint8).view(-1)
