"""Statistics of a training set's lookups: the most wanted rows, and rows wanted together.

Lam et al. (ASPLOS 2024, section 4) serve the hottest rows from a small table, and store with every row its most
frequent companions. Both are chosen once, from the accesses of the training set, and are public: the servers know them,
and they reveal something about the training set only. `accesses` has the wanted rows of each of its inferences, int64
(n,).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError

_PAIRS = 1 << 23  # pairs counted at a time, 64 MiB


def frequencies(accesses: Iterable[Tensor], rows: int) -> Tensor:
    """Count for each row the inferences that want it; returns int64 (rows,).

    accesses: for each inference, the numbers of the rows that it wants, int64 (n,). rows: number of rows in the table.
    """
    counts = torch.zeros(rows, dtype=torch.int64)
    for wanted in accesses:
        counts[wanted.unique()] += 1
    return counts


def hottest(counts: Tensor, share: float) -> Tensor:
    """Return the numbers of the rows with the highest counts, int64, the hottest first; equal counts are ordered by
    number.

    counts: one for each row of the table. share: how many rows to return, as a fraction of all rows, 0 to below 1.
    """
    if not 0 <= share < 1:
        raise InputError(f"a hot share of {share}", where="share", hint="from 0, no hot table, to less than 1")
    return counts.argsort(descending=True, stable=True)[: round(share * len(counts))]


def companions(accesses: Sequence[Tensor], rows: int, count: int) -> Tensor:
    """Find for each row the rows that are most often wanted in the same inference: its companions.

    accesses: for each inference, the numbers of the rows that it wants, int64 (n,). rows: number of rows in the table.
    count: number of companions of a row. Returns int64 (rows, count), the most frequent companion first; equally
    frequent ones are ordered by number, and -1 fills the place of missing ones. Time and memory grow with the number of
    different pairs.
    """
    pairs, weights = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    waiting: list[Tensor] = []
    size = 0
    for number, wanted in enumerate(accesses, 1):
        distinct = wanted.unique()
        apart = ~torch.eye(len(distinct), dtype=torch.bool)
        waiting.append((distinct[:, None] * rows + distinct)[apart])  # rows^2 < 2^63 for fewer than 2^31 rows
        size += len(waiting[-1])
        if size > _PAIRS or number == len(accesses):
            found, times = torch.cat(waiting).unique(return_counts=True)
            pairs, weights = _merged(pairs, weights, found, times)
            waiting, size = [], 0
    order = weights.argsort(descending=True, stable=True)  # pairs are sorted, so that ties come by number
    order = order[(pairs[order] // rows).argsort(stable=True)]
    first, second = pairs[order] // rows, pairs[order] % rows
    starts = torch.searchsorted(first, torch.arange(rows))
    place = torch.arange(len(first)) - starts[first]
    out = torch.full((rows, count), -1)
    kept = place < count
    out[first[kept], place[kept]] = second[kept]
    return out


def _merged(pairs: Tensor, weights: Tensor, found: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    together, place = torch.cat([pairs, found]).unique(return_inverse=True)
    return together, torch.zeros_like(together).index_add(0, place, torch.cat([weights, times]))
