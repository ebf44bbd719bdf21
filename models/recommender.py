"""A recommender over a table of items: sum-pooled history beside a candidate, and an MLP of 64-200-80-2.

The net by which Lam et al. (ASPLOS 2024, section 5) measure private embedding lookup on MovieLens. All that it looks up
for one answer are the candidate and the history, in one call of `items`, so that a private table can take its place.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PADDING = 0  # the item that stands where a history has ended


class Recommender(nn.Module):
    """A net that says whether a user likes an item: logits (B, 2), for "dislikes" and for "likes".

    items: how many items there are; they are numbered from 1.

        net = Recommender(9742)
        logits = net(torch.tensor([[7, 3, 12, 0]]), torch.tensor([[1.0, -0.5, 0.0]]))  # candidate 7; history 3, 12
    """

    def __init__(self, items: int, dim: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, dim, padding_idx=PADDING)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, 200),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(200, 80),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(80, 2),
        )
        nn.init.normal_(self.items.weight, std=0.05)
        with torch.no_grad():
            self.items.weight[PADDING].zero_()

    def forward(self, wanted: Tensor, weights: Tensor) -> Tensor:
        """Compute the logits of a candidate for each of B users.

        wanted: int64 (B, 1 + H), the numbers of the candidate and then of the user's history, with zeros at its end.
        weights: float (B, H), by which the vectors of the history's items are multiplied before they are added, such as
        centred ratings.
        """
        vectors = self.items(wanted)
        history = (vectors[:, 1:] * weights[..., None]).sum(1)
        return self.mlp(torch.cat([vectors[:, 0], history], 1))
