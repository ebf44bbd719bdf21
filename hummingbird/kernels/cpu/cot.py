"""Correlated oblivious transfers in C++ (csrc/cot.cpp), with AES instructions, a run of transfers at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import cot
from hummingbird.kernels.cot import BLOCK, TILE, TREES, depth_of
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.registry import implements


@implements(cot.receive, "cpu")
def receive(leaves: Tensor, block: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Implement `kernels.cot.receive` in C++: compute the receiver's part of oblivious transfers."""
    sums = torch.empty((TREES, 16 * blocks), dtype=torch.uint8)
    keys = torch.empty((BLOCK * blocks, 2), dtype=torch.int64)
    handle().hb_cot_receive(leaves.data_ptr(), block, blocks, sums.data_ptr(), keys.data_ptr())
    return sums, keys


@implements(cot.send, "cpu")
def send(leaves: Tensor, delta: Tensor, block: int, corrections: Tensor) -> Tensor:
    """Implement `kernels.cot.send` in C++: compute the sender's keys of oblivious transfers."""
    blocks = corrections.shape[1] // 16
    keys = torch.empty((BLOCK * blocks, 2), dtype=torch.int64)
    start = leaves.data_ptr(), delta.data_ptr(), block, blocks
    handle().hb_cot_send(*start, corrections.data_ptr(), keys.data_ptr())
    return keys


@implements(cot.choose, "cpu")
def choose(labels: Tensor, bits: Tensor, delta: Tensor) -> Tensor:
    """Implement `kernels.cot.choose` in C++: choose the labels that stand for bits."""
    out = torch.empty_like(labels)
    handle().hb_cot_choose(labels.data_ptr(), bits.data_ptr(), delta.data_ptr(), len(labels), out.data_ptr())
    return out


@implements(cot.pads, "cpu")
def pads(keys: Tensor, key: Tensor, first: int, block: int, delta: Tensor | None = None) -> Tensor:
    """Implement `kernels.cot.pads` in C++ (csrc/pads.cpp): compute one block of the pads of random transfers."""
    out = torch.empty((2 if delta is None else 4, len(keys)), dtype=torch.int64)
    start = keys.data_ptr(), None if delta is None else delta.data_ptr(), key.data_ptr()
    handle().hb_cot_pads(*start, first // TILE, block, len(keys), out.data_ptr())
    return out


@implements(cot.tree_sums, "cpu")
def tree_sums(roots: Tensor, delta: Tensor, keys: Tensor, first: int, depth: int) -> Tensor:
    """Implement `kernels.cot.tree_sums` in C++ (csrc/silent.cpp): compute the sums of a sender's trees."""
    sums = torch.empty((len(roots), depth, 2), dtype=torch.int64)
    start = roots.data_ptr(), delta.data_ptr(), keys.data_ptr()
    handle().hb_cot_tree_sums(*start, first, len(roots), depth, sums.data_ptr())
    return sums


@implements(cot.send_silent, "cpu")
def send_silent(
    roots: Tensor, delta: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Implement `kernels.cot.send_silent` in C++ (csrc/silent.cpp): compute a sender's keys from its trees."""
    start = roots.data_ptr(), delta.data_ptr(), keys.data_ptr()
    code = table.data_ptr(), len(table).bit_length() - 1, output
    handle().hb_cot_send_silent(*start, first, len(roots), depth_of(roots, out), *code, out.data_ptr())


@implements(cot.receive_silent, "cpu")
def receive_silent(
    paths: Tensor, others: Tensor, table: Tensor, keys: Tensor, first: int, output: int, out: Tensor
) -> None:
    """Implement `kernels.cot.receive_silent` in C++ (csrc/silent.cpp): compute a receiver's keys from its trees."""
    start = paths.data_ptr(), others.data_ptr(), keys.data_ptr()
    code = table.data_ptr(), len(table).bit_length() - 1, output
    handle().hb_cot_receive_silent(*start, first, len(paths), depth_of(paths, out), *code, out.data_ptr())
