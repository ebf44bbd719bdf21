"""A table and plans of it, and updates that follow from their version, so that every version's rows are known."""

from __future__ import annotations

import torch

from hummingbird.pir import BatchCode, Owner, Plan

OWNER = Owner()
ROWS, DIM = 300, 4
TABLE = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
HOT = torch.arange(0, ROWS, 10)
BESIDE = torch.stack([(torch.arange(ROWS) + 1) % ROWS, torch.where(torch.arange(ROWS) % 3 == 0, -1, 7)], 1)
PLANS = {
    "cuckoo": Plan(BatchCode.cuckoo(ROWS, 12)),
    "bins": Plan(BatchCode(ROWS, 4, 1, 2)),
    "hot and companions": Plan(BatchCode.cuckoo(ROWS, 12), BatchCode.cuckoo(len(HOT), 6), HOT, BESIDE),
}


def change(version: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """The update of this version to the next: indices and rows, the same whenever it is made."""
    generator = torch.Generator().manual_seed(version)
    indices = torch.randperm(rows, generator=generator)[: 1 + version % 20]
    return indices, torch.randn(len(indices), DIM, generator=generator)


def table_at(version: int) -> torch.Tensor:
    """The rows after all updates up to a version."""
    rows = TABLE.clone()
    for number in range(version):
        indices, new = change(number)
        rows[indices] = new
    return rows
