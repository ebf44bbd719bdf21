"""Embedding layers whose table is at two servers; at inference their outputs equal those of torch's layers bit for bit.

Every position is looked up, including padding, duplicates, and positions of weight 0, so the servers' view depends on
the input's shape only. The returned rows form a small table, which torch's own functions reduce: a bag's sum has the
same additions in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.pir.client import Client
from hummingbird.pir.table import DTYPES
from hummingbird.pir.table_server import TableServer

Servers = Client | Sequence["str | TableServer"]


class _Private(nn.Module):
    """Base class of `PrivateEmbedding` and `PrivateEmbeddingBag`: the client, and the table's size under torch's
    attribute names.
    """

    def __init__(self, servers: Servers, options: dict[str, Any]) -> None:
        super().__init__()
        if isinstance(servers, Client) and options:
            hint = "give them to the client"
            raise ConfigError(f"options beside a client: {', '.join(options)}", where=type(self).__name__, hint=hint)
        self.client = servers if isinstance(servers, Client) else Client(servers, **options)
        facts = self.client.facts
        self.num_embeddings, self.embedding_dim, self.dtype = facts.rows, facts.dim, DTYPES[facts.dtype]

    def _check_padding(self, padding_idx: int | None) -> int | None:
        """Return the row number of the padding row, None for none. A negative index counts from the end, as in torch.

        Raises ConfigError for an index outside of the table.
        """
        if padding_idx is None:
            return None
        if not -self.num_embeddings <= padding_idx < self.num_embeddings:
            hint = f"rows are 0 to {self.num_embeddings - 1}"
            raise ConfigError(f"padding_idx is {padding_idx}", where=type(self).__name__, hint=hint)
        return padding_idx % self.num_embeddings

    def _check_same(self, module: nn.Embedding | nn.EmbeddingBag) -> None:
        """Raise AgreementError unless the torch layer and the servers' table have the same size and type."""
        own = tuple(module.weight.shape), module.weight.dtype
        theirs = (self.num_embeddings, self.embedding_dim), self.dtype
        if own != theirs:
            what = f"the layer has {own[0]} {own[1]}, the servers' table {theirs[0]} {theirs[1]}"
            raise AgreementError(what, where=type(self).__name__, hint="give both servers this layer's weight")

    def _fetch(self, positions: Tensor) -> Tensor:
        if not isinstance(positions, Tensor) or positions.layout != torch.strided or positions.is_meta:
            # The error has no index, because its text may appear in a log.
            got = f"a {positions.layout} tensor" if isinstance(positions, Tensor) else type(positions).__name__
            hint = "torch.tensor([3, 14, 15])"
            raise InputError(
                f"expected a dense tensor of indices that has data, got {got}", where=type(self).__name__, hint=hint
            )
        return self.client.rows(positions.reshape(-1))

    def extra_repr(self) -> str:
        """Return the text for `print`: size and type, as in torch, and the servers."""
        names = ", ".join(link.name for link in self.client.links)
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.dtype}, {names}"


def _check_module(module: nn.Module, kind: type[nn.Module], private: type[nn.Module]) -> None:
    """Raise InputError unless `module` is a torch layer of class `kind`, and ConfigError if it has `max_norm`.

    `max_norm` would change the table during lookups; `sparse` and `scale_grad_by_freq` are ignored, because they only
    concern gradients. private: the class that replaces the layer, named in the error.
    """
    where = f"{private.__name__}.from_torch"
    if not isinstance(module, kind):
        raise InputError(f"expected nn.{kind.__name__}, got {type(module).__name__}", where=where)
    if module.max_norm is not None:
        hint = "renormalise the table once (torch.renorm), and set max_norm to None"
        raise ConfigError("max_norm is not supported: a lookup would change the table", where=where, hint=hint)


class PrivateEmbedding(_Private):
    """A layer in place of nn.Embedding whose table is at two servers, which must not collude; without gradients.

    servers: a Client, or two servers as in `Client`, with its options (`tls`, `decoder`, ...). Calls take int32 or
    int64 of any shape (*), and return (*, embedding_dim) on the input's device. Raises the errors of `Client.rows`.

        private = PrivateEmbedding.from_torch(embedding, ("pir0.example:7000", "pir1.example:7000"), tls=tls)
        private(torch.tensor([[3, 14], [15, 9]]))                  # equals embedding(...), shape (2, 2, dim)
    """

    def __init__(self, servers: Servers, *, padding_idx: int | None = None, **options: Any) -> None:
        super().__init__(servers, options)
        self.padding_idx = self._check_padding(padding_idx)  # affects gradients only: lookups return that row

    @classmethod
    def from_torch(cls, embedding: nn.Embedding, servers: Servers, **options: Any) -> PrivateEmbedding:
        """Make the layer that replaces `embedding`; its weights are not used, so that it may be on the meta device.

        options: further arguments of `Client`. Raises ConfigError for max_norm, AgreementError if the servers' table is
        of another size or type.
        """
        _check_module(embedding, nn.Embedding, cls)
        private = cls(servers, padding_idx=embedding.padding_idx, **options)
        private._check_same(embedding)
        return private

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        return self._fetch(input).view(*input.shape, self.embedding_dim)


class PrivateEmbeddingBag(_Private):
    """A layer in place of nn.EmbeddingBag whose table is at two servers, which must not collude; without gradients.

    servers: as for PrivateEmbedding. mode: sum, mean or max. Calls take the same arguments as torch's: input (B, n), or
    (n,) with offsets (B,); per_sample_weights with `sum`. They return (B, embedding_dim). Offsets and weights are not
    sent.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        mode: str = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(servers, options)
        if mode not in ("sum", "mean", "max") or not self.dtype.is_floating_point:
            what = f"mode {mode!r} on a table of {self.dtype}"
            hint = "modes are sum, mean and max, of floating-point tables, as torch has them"
            raise ConfigError(what, where="PrivateEmbeddingBag", hint=hint)
        self.mode, self.include_last_offset = mode, include_last_offset
        self.padding_idx = self._check_padding(padding_idx)

    @classmethod
    def from_torch(cls, bag: nn.EmbeddingBag, servers: Servers, **options: Any) -> PrivateEmbeddingBag:
        """Make the layer that replaces `bag`; its weights are not used, so that it may be on the meta device.

        options: further arguments of `Client`. Raises ConfigError for max_norm, AgreementError if the servers' table is
        of another size or type.
        """
        _check_module(bag, nn.EmbeddingBag, cls)
        settings: dict[str, Any] = {"padding_idx": bag.padding_idx, "include_last_offset": bag.include_last_offset}
        private = cls(servers, mode=bag.mode, **settings, **options)
        private._check_same(bag)
        return private

    @torch.no_grad()
    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        self._check_call(input, offsets, per_sample_weights)
        rows = self._fetch(input)
        # Position i is row i of the small table; padding is its last row, which the reduction skips.
        places = torch.arange(input.numel(), device=input.device).view(input.shape)
        if self.padding_idx is not None:
            places = torch.where(input == self.padding_idx, input.numel(), places)
        table = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])
        out: Tensor = functional.embedding_bag(
            places,
            table,
            None if offsets is None else offsets.to(torch.int64),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if self.padding_idx is None else input.numel(),
        )
        return out

    def _check_call(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> None:
        """Raise InputError, before anything is sent, for arguments of a call that torch's EmbeddingBag would refuse."""
        where = "PrivateEmbeddingBag"
        if input.dim() not in (1, 2) or (input.dim() == 2) != (offsets is None):
            raise InputError("input is (B, n) without offsets, or (n,) with offsets", where=where)
        if offsets is not None:
            whole = offsets.dtype in (torch.int32, torch.int64) and offsets.dim() == 1 and len(offsets) > 0
            if not whole or int(offsets[0]) != 0 or int(offsets.max()) > len(input) or bool((offsets.diff() < 0).any()):
                hint = "int32 or int64 (B,), from 0, not falling, up to the length of the input"
                raise InputError("these are not offsets of bags", where=where, hint=hint)
        if weights is not None and (self.mode != "sum" or weights.shape != input.shape or weights.dtype != self.dtype):
            hint = f"mode sum, shape {tuple(input.shape)}, {self.dtype}"
            raise InputError("these per_sample_weights do not fit", where=where, hint=hint)
