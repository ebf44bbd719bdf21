"""A table on a GPU: sums of the rows that ChaCha12 keys select, by the kernels of `triton_dpf`.

Selection bits of a piece of the table at a time are expanded on the GPU and multiplied there; the pieces' sums add up
mod 2^width. XOR and AES have no kernel there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels import dpf, triton_dpf
from hummingbird.kernels.prf import CHACHA12, LEAF_BYTES
from hummingbird.kernels.rows import WIDTHS, Table

_MOST_BITS = 1 << 28  # bytes of selection bits at a time; nodes and leaves take as much again


class GpuTable(Table):
    """As `Table`, on a device; row_bytes bytes a row there. Keys, rows and answers stay on the CPU."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        self._device = device
        super().__init__(rows, row_bytes)

    def accept(self, keys: Tensor, width: int) -> None:
        if not width or not (keys[:, dpf.NUMBER] == CHACHA12).all():
            hint = 'ask with decoder="sum", or for shares, and prf="chacha12"'
            raise InputError("a table on a GPU answers sums to ChaCha12 keys only", hint=hint)

    def _room(self) -> Tensor:
        try:
            return triton_dpf.prepare(torch.zeros((self.rows, self.row_bytes), dtype=torch.uint8, device=self._device))
        except torch.OutOfMemoryError as error:
            message, hint = f"no memory on the GPU for the table: {error}", "serve it from the CPU"
            raise EnvironmentProblem(message, where="kernels.gpu_rows.GpuTable", hint=hint) from None

    def _write(self, start: int, data: Tensor) -> None:
        self._store[start : start + len(data)] = triton_dpf.prepare(data.to(self._device))

    def _replace(self, index: Tensor, rows: Tensor) -> None:
        last = {row: place for place, row in enumerate(index.tolist())}  # a GPU writes equal indices in any order
        where, places = torch.tensor([*last]), torch.tensor([*last.values()])
        self._store[where.to(self._device)] = triton_dpf.prepare(rows[places].to(self._device))

    def _selected(self, keys: Tensor, width: int, leaf: int, leaves: int) -> Tensor:
        step = max(1, _MOST_BITS // (len(keys) * LEAF_BYTES))
        total = torch.zeros((len(keys), 8 * self.row_bytes // width), dtype=WIDTHS[width], device=self._device)
        for first in range(0, leaves, step):
            bits = triton_dpf.expand(keys, leaf + first, min(step, leaves - first), self._device)
            part = self._store[first * dpf.LEAF_ROWS : (first + step) * dpf.LEAF_ROWS]
            total += triton_dpf.select_sum(bits, part, width).view(WIDTHS[width])  # wraps mod 2^width
        return total.view(torch.uint8).cpu()
