"""Nets that begin with a private lookup: rows of a table, selected by row numbers that no party of a service learns.

    net = LookedUp(embedding, layers, bags=(1, 63))          # one row, and beside it the weighted sum of 63 rows
    logits = net(indices, weights)                           # in clear, to train and to compare

`hummingbird serve` takes such a net as any other. For every lookup the client sends each of the two parties a key
(pir/dpf.py), with which party b computes y_b from the table, where y_0 - y_1 = s * row mod 2^64: shares of s * row, for
a sign s = +1 or -1 that only the client knows. The client sends shares of s * weight, and one product of shares (Beaver
1991) is

    (s * weight) * (s * row) = weight * row,

so that the sign costs nothing more. This product, the sums of the bags and the layers after them are `LookedUp.after`,
which `convert_model` converts and prices as any net of two inputs.

TRUST: the two parties must not collude: both keys of a lookup together reveal its row number. Public are the table, the
layers unless their weights are private, and the number of positions of each bag (an unused position has weight 0, with
any row).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hummingbird.errors import ConfigError


class Weighted(nn.Module):
    """The part of a net with lookups that follows the lookup: a module whose inputs are the rows that were found.

    Inputs: rows (n, positions, dim) and weights (n, positions). It adds the weighted rows of each bag, a group of
    positions, and passes the sums to the net, concatenated: (n, bags * dim). |weight * row|, summed over a bag, must be
    below 2^30.
    """

    def __init__(self, net: nn.Module, bags: Sequence[int]) -> None:
        super().__init__()
        self.net, self.bags = net, tuple(bags)

    def forward(self, rows: Tensor, weights: Tensor) -> Tensor:
        parts = (rows * weights[..., None]).split(self.bags, 1)
        out: Tensor = self.net(torch.cat([part.sum(1) for part in parts], 1))
        return out


class LookedUp(nn.Module):
    """A net that begins with lookups: it looks up rows of a table, adds them with weights, and computes on the sums.

    Its inputs are row numbers, int64 (n, positions), and weights, floating point (n, positions). table: an
    nn.Embedding. net: the layers that take the weighted sums. bags: how many positions each bag has; with (1, 63) the
    net gets one row times its weight, and the weighted sum of 63 rows. Raises ConfigError for other arguments.

    >>> from hummingbird.lookup import LookedUp
    >>> net = LookedUp(table, torch.nn.Linear(32, 2), bags=(1, 7))  # a row, and the sum of 7 others
    >>> net(torch.randint(1000, (5, 8)), torch.ones(5, 8)).shape  # in clear
    torch.Size([5, 2])
    >>> hummingbird.validate_model(net.after, example=net.example())
    []
    """

    def __init__(self, table: nn.Embedding, net: nn.Module, bags: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(table, nn.Embedding) or table.max_norm is not None:
            hint = "an nn.Embedding without max_norm: its rows are served as they are"
            raise ConfigError(f"expected a table, got {table}", where="LookedUp(table)", hint=hint)
        sizes = list(bags) if isinstance(bags, Sequence) else []
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise ConfigError(
                f"bags of {bags} positions", where="LookedUp(bags)", hint="one bag or more, each of 1 or more"
            )
        self.table, self.after = table, Weighted(net, bags)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes, without the batch, of the two inputs of `after`, the part behind the lookup.

        They are (positions, dim) of the rows that were found, and (positions,) of their weights.
        """
        positions = sum(self.after.bags)
        return (positions, self.table.embedding_dim), (positions,)

    def example(self) -> tuple[Tensor, Tensor]:
        """Return example inputs for tracing `after`, the part behind the lookup: zeros as one image's rows and weights.

        Use: `convert_model(net.after, example=net.example())`.
        """
        rows, weights = (torch.zeros(1, *shape) for shape in self.shapes)
        return rows, weights

    def forward(self, indices: Tensor, weights: Tensor) -> Tensor:
        out: Tensor = self.after(self.table(indices), weights)
        return out
