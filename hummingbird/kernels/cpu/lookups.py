"""Lookups in C++ (csrc/dpf.cpp, rows.cpp): keys, their selection bits, and bit-sliced tables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hummingbird.kernels import lookups
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.lookups import LEAF_BYTES, MOST_ROWS, ROWS, RowStore, header, key_bytes
from hummingbird.kernels.reference import lookups as reference
from hummingbird.kernels.reference.lookups import zeros
from hummingbird.kernels.registry import implements


@implements(lookups.check, "cpu")
def check(keys: Tensor, where: str, rows: int | None, party: int | None) -> int:
    """Implement `kernels.lookups.check` in C++: check look-up keys.

    For invalid keys the version in plain torch runs, which knows what is wrong.
    """
    named = int.from_bytes(keys[0, ROWS : ROWS + 8].numpy().tobytes(), "little") if rows is None else rows
    whose = -1 if party is None else party
    if 1 <= named <= MOST_ROWS and handle().hb_dpf_check(keys.data_ptr(), *keys.shape, named, whose):
        return named
    return reference.check(keys, where, rows, party)


@implements(lookups.expand, "cpu")
def expand(keys: Tensor, first: int, leaves: int) -> Tensor:
    """Implement `kernels.lookups.expand` in C++: compute selection bits from look-up keys."""
    out = torch.empty((len(keys), leaves * LEAF_BYTES), dtype=torch.uint8)
    handle().hb_dpf_expand(keys.data_ptr(), *keys.shape, first, leaves, out.data_ptr())
    return out


@implements(lookups.generate, "cpu")
def generate(alphas: Tensor, rows: int, prf: int, random: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `kernels.lookups.generate` in C++: generate pairs of look-up keys.

    prf: the number of the PRF in a key's header. random: random bytes, uint8 (B, 48).
    """
    first, second = (torch.empty((len(alphas), key_bytes(rows)), dtype=torch.uint8) for _ in range(2))
    signs, out = torch.empty_like(alphas), (first.data_ptr(), second.data_ptr())
    handle().hb_dpf_generate(
        alphas.data_ptr(), len(alphas), header(rows, prf), random.data_ptr(), *out, signs.data_ptr()
    )
    return first, second, signs


@implements(RowStore, "cpu")
class SlicedRows(RowStore):
    """The rows of a lookup table on a CPU, with the bits of eight rows next to each other (csrc/slices.h has the
    layout).

    Eight rows are a group, which takes 64 bytes for every 8 bytes of a row; the number of groups is even.
    """

    def __init__(self, rows: int, row_bytes: int, device: torch.device, sliced: Tensor | None = None) -> None:
        self._shape = rows, row_bytes
        self._data = zeros(lookups.sliced_bytes(rows, row_bytes)) if sliced is None else sliced
        self.nbytes = self._data.numel()

    def write(self, start: int, data: Tensor) -> None:
        handle().hb_rows_write(self._data.data_ptr(), *self._shape, start, len(data), data.data_ptr())

    def replace(self, index: Tensor, rows: Tensor) -> None:
        new = index.data_ptr(), len(rows), rows.data_ptr(), torch.get_num_threads()
        handle().hb_rows_update(self._data.data_ptr(), *self._shape, *new)

    def read(self, index: Tensor) -> Tensor:
        out = torch.empty((len(index), self._shape[1]), dtype=torch.uint8)
        handle().hb_rows_gather(self._data.data_ptr(), *self._shape, index.data_ptr(), len(index), out.data_ptr())
        return out

    def read_range(self, start: int, count: int) -> Tensor:
        out = torch.empty((count, self._shape[1]), dtype=torch.uint8)
        handle().hb_rows_read(self._data.data_ptr(), *self._shape, start, count, out.data_ptr())
        return out

    def sliced(self) -> Tensor:
        return self._data

    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        return _answer([self], keys[None], width, leaf)[0]

    def select(self, bits: Tensor, width: int) -> Tensor:
        return _answer([self], bits[None], width, -1)[0]

    @classmethod
    def answer_each(cls, stores: Sequence[RowStore], keys: Tensor, width: int) -> Tensor:
        return _answer(stores, keys, width, 0)


def _answer(stores: Sequence[Any], data: Tensor, width: int, leaf: int) -> Tensor:
    """Answer queries to several tables of one shape in C++: combine the rows that each query selects.

    stores: the T tables. data: uint8 (T, B, size), B queries for each table. leaf: -1 if the queries are selection
    bits; else the queries are keys, each with a tree of leaves, and row 0 of the table is the first row of leaf number
    `leaf`. width: bits of the words that are summed; 0: the rows are combined by XOR. Returns uint8 (T, B, row_bytes).
    """
    rows, row_bytes = stores[0]._shape
    data = data.contiguous()
    out = torch.empty((*data.shape[:2], row_bytes), dtype=torch.uint8)
    pointers = (ctypes.c_void_p * len(stores))(*(store._data.data_ptr() for store in stores))
    queries = (data.data_ptr(), *data.shape[1:], leaf)
    handle().hb_rows_answer(
        pointers, len(stores), rows, row_bytes, width, *queries, torch.get_num_threads(), out.data_ptr()
    )
    return out
