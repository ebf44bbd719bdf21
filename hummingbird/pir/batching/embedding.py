"""The embedding layer of a plan: the same number of keys for every inference, for any wanted rows.

Two servers hold the plan's buckets (serving/bucket_server.py); the layer has one client for each of the plan's codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.client import Client
from hummingbird.pir.messages import keys_in_a_query
from hummingbird.pir.table import DTYPES, State
from hummingbird.pir.table_server import TableServer

_TRIES = 5


class BatchedEmbedding(nn.Module):
    """A layer in place of nn.Embedding that looks up rows at two servers by a plan; without gradients.

    Every inference sends the same number of keys. plan: public, the same as the servers'. clients: one `Client` for
    each of the plan's codes.
    Calls take int32 or int64 (N,) for one inference, or (B, N) for B, and return (N, dim) or (B, N, dim). A wanted row
    that gets no key is dropped: its embedding is zeros. Positions of padding_idx are zeros too, and need no key.
    `dropped` counts the dropped positions of all calls; it is not sent. All rows of a call are of one version of the
    table. Raises the errors of `Client.rows`, and AgreementError for servers of another plan.

        servers = [plan_servers(embedding, plan, party) for party in (0, 1)]
        net.items = BatchedEmbedding.from_torch(net.items, plan, *servers)
    """

    def __init__(self, plan: Plan, clients: Sequence[Client], *, padding_idx: int | None = None) -> None:
        super().__init__()
        if len(clients) != len(plan.codes):
            what, hint = f"{len(clients)} clients, {len(plan.codes)} tables", "the hot table's, then the full table's"
            raise ConfigError(what, where="BatchedEmbedding", hint=hint)
        self.plan, self.clients, self.padding_idx, self.dropped = plan, list(clients), padding_idx, 0
        first = clients[0].facts
        table = plan.table(first)
        self.dim, self.dtype = table.dim, DTYPES[table.dtype]
        for code, client in zip(plan.codes, clients, strict=True):
            if client.facts != plan.facts(code, table):
                hint = "client and servers need the same plan"
                raise AgreementError(f"servers of {client.facts.text()}, not of {code}", where="plan", hint=hint)
            if code.keys > keys_in_a_query(client.facts):
                raise ConfigError(f"{code.keys} keys are too many for a message", where="plan", hint="fewer buckets")
        owned = any(client.owned for client in clients)
        self._signed = plan.layouts() if owned else [None] * len(clients)  # row numbers at every position

    @classmethod
    def from_torch(
        cls,
        embedding: nn.Embedding,
        plan: Plan,
        zero: Sequence[str | TableServer],
        one: Sequence[str | TableServer],
        **options: Any,
    ) -> BatchedEmbedding:
        """Make the layer that replaces `embedding`; the embedding's weights are not used.

        zero, one: the servers of party 0 and of party 1, one for each of the plan's codes, as `Client` takes them.
        options: further arguments of `Client`.
        """
        clients = [Client(pair, **options) for pair in zip(zero, one, strict=True)]
        private = cls(plan, clients, padding_idx=embedding.padding_idx)
        own, theirs = (*embedding.weight.shape, embedding.weight.dtype), (plan.full.rows, private.dim, private.dtype)
        if own != theirs:
            what, hint = f"the layer is {own}, the servers' table {theirs}", "lay this layer's weight out at both"
            raise AgreementError(what, where="BatchedEmbedding", hint=hint)
        return private

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        """Look up the embeddings (*, dim) of row numbers, int32 or int64 (N,) or (B, N)."""
        if input.dim() not in (1, 2) or input.dtype not in (torch.int32, torch.int64):
            hint = "(N,) for one inference, (B, N) for B of them"
            raise InputError(f"indices {input.dtype} {tuple(input.shape)}", where="BatchedEmbedding", hint=hint)
        lines = torch.atleast_2d(input.detach().cpu().to(torch.int64))
        wanted = torch.ones_like(lines, dtype=torch.bool) if self.padding_idx is None else lines != self.padding_idx
        lookups = [self.plan.look_up(line[mask]) for line, mask in zip(lines, wanted, strict=True)]
        out = torch.zeros(*lines.shape, self.dim, dtype=self.dtype)
        for number, records in enumerate(self._records([lookup.inside for lookup in lookups])):
            found = lookups[number].key >= 0
            places = wanted[number].nonzero().flatten()[found]
            out[number, places] = records[lookups[number].key[found], lookups[number].part[found]]
            self.dropped += int((~found).sum())
        return out.view(*input.shape, self.dim).to(input.device)

    def _records(self, inside: Sequence[Tensor]) -> Tensor:
        """Look up the records for the keys of all inferences: (B, keys, parts, dim), with `parts` rows in a record.

        inside: for each inference the position that every key selects in its bucket.
        """
        if not inside:
            return torch.empty(0)
        parts = torch.stack(list(inside)).split([code.keys for code in self.plan.codes], 1)
        for _ in range(_TRIES):
            read = [self._read(number, asked) for number, asked in enumerate(parts)]
            if len({state.version for state, _ in read}) == 1:
                return torch.cat([rows for _, rows in read], 1)
        what = f"the tables of the plan were updated during each of {_TRIES} lookups"
        raise AgreementError(what, where="BatchedEmbedding", hint="ask for fewer inferences at a time")

    def _read(self, number: int, asked: Tensor) -> tuple[State, Tensor]:
        """Look up the records that the keys of B inferences select in the buckets of one of the plan's codes.

        number: which of the plan's codes. asked: int64 (B, keys), the position that each key selects in its bucket.
        Returns the state of the table, and the records (B, keys, parts, dim); a record holds `parts` rows.
        """
        code, client, signed = self.plan.codes[number], self.clients[number], self._signed[number]
        of_key = torch.arange(code.buckets).repeat_interleave(code.rounds)
        numbers = None if signed is None else signed[of_key, asked].flatten(0, 1)
        state, rows = client.read(asked.flatten(), numbers, together=code.keys)
        return state, rows.view(*asked.shape, self.plan.parts, self.dim)
