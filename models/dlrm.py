"""A click predictor: dense features and many embedding tables, whose vectors meet in pairs.

The shape of Naumov et al., "Deep learning recommendation model for personalization and recommendation systems" (2019).
All that it looks up for one answer is in one call of `tables`, so that private tables can take their place
(`pir.EmbeddingTables`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


class Bags(nn.ModuleDict):
    """Bags of embeddings by their tables' names; a call sums the rows of each table."""

    def forward(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum rows. wanted: int64 (B, n) for each table. Returns (B, dim) for each."""
        return {name: bag(wanted[name]) for name, bag in self.items()}


class Dlrm(nn.Module):
    """A net that says whether a user clicks: logits (B,).

    dense: number of dense features. tables: number of rows of each embedding table, by its name. dim: of all vectors.

        net = Dlrm(4, {"shops": 50, "items": 900})
        logits = net(torch.randn(2, 4), {"shops": torch.tensor([[7], [8]]), "items": torch.tensor([[3, 1], [4, 1]])})
    """

    def __init__(self, dense: int, tables: Mapping[str, int], dim: int = 16) -> None:
        super().__init__()
        self.tables: nn.Module = Bags({name: nn.EmbeddingBag(rows, dim, mode="sum") for name, rows in tables.items()})
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        pairs = (len(tables) + 1) * len(tables) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, wanted: Mapping[str, Tensor]) -> Tensor:
        """Compute the logits of B samples.

        dense: float (B, dense). wanted: for each table the numbers of the rows whose sum is taken, int64 (B, n).
        """
        first = self.bottom(dense)
        vectors = torch.stack([first, *self.tables(wanted).values()], 1)
        above = torch.triu_indices(vectors.shape[1], vectors.shape[1], 1)
        products = functional.normalize(vectors, dim=2) @ functional.normalize(vectors, dim=2).mT
        return self.top(torch.cat([first, products[:, above[0], above[1]]], 1)).squeeze(1)
