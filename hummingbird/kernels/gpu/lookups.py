"""A table on a GPU: sums of the rows that ChaCha12 keys select.

Selection bits of a piece of the table at a time are expanded on the GPU and multiplied there; the pieces' sums add up
mod 2^width. XOR and AES have no kernel there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.kernels.gpu.dpf import expand
from hummingbird.kernels.gpu.rows import prepare, select_sum
from hummingbird.kernels.lookups.dpf import CHACHA12, LEAF_BYTES, LEAF_ROWS, NUMBER, leaves_of
from hummingbird.kernels.lookups.rows import WIDTHS, RowStore
from hummingbird.kernels.registry import implements

_MOST_BITS = 1 << 28  # bytes of selection bits at a time; nodes take a quarter as much again
_ROOM = 3 * _MOST_BITS  # bytes of a GPU for answering, besides the table


@implements(RowStore, "gpu")
class SignedRows(RowStore):
    """Rows of signed bytes on a device; keys, rows that come and answers that go are on the CPU."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        _check_room(rows * row_bytes + _ROOM, device)
        # Zeros, as `prepare` has them.
        self._data = torch.full((rows, row_bytes), -128, dtype=torch.int8, device=device)
        self.nbytes = self._data.numel()

    def write(self, start: int, data: Tensor) -> None:
        self._data[start : start + len(data)] = prepare(data.to(self._data.device))

    def replace(self, index: Tensor, rows: Tensor) -> None:
        last = {row: place for place, row in enumerate(index.tolist())}  # a GPU writes equal indices in any order
        where, places = torch.tensor([*last]), torch.tensor([*last.values()])
        self._data[where.to(self._data.device)] = prepare(rows[places].to(self._data.device))

    def accept(self, keys: Tensor, width: int) -> None:
        if not width or not (keys[:, NUMBER] == CHACHA12).all():
            hint = 'ask with decoder="sum" and prf="chacha12"'
            raise InputError("a table on a GPU answers sums to ChaCha12 keys only", hint=hint)

    def answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        with torch.cuda.device_of(self._data):  # Triton starts kernels on the thread's device
            return self._answer(keys, width, leaf)

    def _answer(self, keys: Tensor, width: int, leaf: int) -> Tensor:
        (rows, row_bytes), device = self._data.shape, self._data.device
        leaves, step = leaves_of(rows), max(1, _MOST_BITS // (len(keys) * LEAF_BYTES))
        total = torch.zeros((len(keys), 8 * row_bytes // width), dtype=WIDTHS[width], device=device)
        for first in range(0, leaves, step):
            bits = expand(keys, leaf + first, min(step, leaves - first), device)
            part = self._data[first * LEAF_ROWS : (first + step) * LEAF_ROWS]
            total += select_sum(bits, part, width).view(WIDTHS[width])  # wraps mod 2^width
        return total.view(torch.uint8).cpu()

    def select(self, bits: Tensor, width: int) -> Tensor:
        with torch.cuda.device_of(self._data):
            return select_sum(bits.to(self._data.device), self._data, width).cpu()


def _check_room(needed: int, device: torch.device) -> None:
    """EnvironmentProblem where a GPU has less memory left than this many bytes."""
    if device.type != "cuda":
        return  # a CPU, for Triton's interpreter
    left = torch.cuda.mem_get_info(device)[0]
    if needed > left:
        what = f"rows on {device} take {needed / 1e9:.2f} GB with room to answer, {left / 1e9:.2f} are left there"
        hint = "split the table over several GPUs (device cuda:0,cuda:1), or serve it from the CPU"
        raise EnvironmentProblem(what, where="kernels.rows.Table", hint=hint)
