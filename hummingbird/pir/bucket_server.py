"""The lookups of a whole inference by one plan: servers that hold a plan's buckets, and the layer that asks them.

Each code of a plan is a table of its own to `server` and `client`: its facts are those of one bucket, and a query holds
the keys of whole inferences, which `Buckets` hands to the buckets. So batching windows, signed answers, states and
errors are the same as for one table. Traffic follows from the plan and the number of inferences alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.kernels.lookups import rows as kernel
from hummingbird.pir.batch import BatchCode
from hummingbird.pir.client import Client, Link
from hummingbird.pir.messages import keys_in_a_query
from hummingbird.pir.plan import Plan
from hummingbird.pir.server import Answer, Server
from hummingbird.pir.table import DTYPES, Facts, Source, State, leaf_digests


class Buckets:
    """The buckets of a code, made ready for queries: a `shards.Shard` whose queries are of whole inferences.

    records: uint8 (buckets, bucket_rows, record_bytes).
    """

    def __init__(self, code: BatchCode, records: Tensor) -> None:
        self._code = code
        self._tables = [kernel.Table(*part.shape) for part in records]
        self.digests: list[bytes] = []
        for table, part in zip(self._tables, records, strict=True):
            self.digests += leaf_digests(part.numpy())
            table.fill(0, part)

    def accept(self, keys: Tensor, width: int) -> None:
        """All are taken."""

    def answer(self, keys: Tensor, width: int) -> Tensor:
        """Of whole inferences' keys, in their order (`BucketServer` has checked that)."""
        code = self._code
        by_bucket = keys.view(-1, code.buckets, code.rounds, keys.shape[1]).transpose(0, 1)
        records = kernel.answer_each(self._tables, by_bucket.flatten(1, 2), width)
        return records.view(code.buckets, -1, code.rounds, records.shape[2]).transpose(0, 1).reshape(len(keys), -1)

    def write(self, indices: Tensor, records: Tensor) -> None:
        """Always InputError: rows of a plan are in several buckets, whose places an update does not name."""
        raise InputError("a table served by a plan takes no updates", hint="lay it out anew, at both servers")

    def check(self) -> None:
        """Nothing here can end by itself."""

    def close(self) -> None:
        """Nothing to let go of."""


class BucketServer(Server):
    """A server of a code's buckets. A query that is not of whole inferences is refused before it waits with others.

    table: facts of one bucket; options: of `Server`.
    """

    def __init__(self, table: Source, party: int, code: BatchCode, records: Tensor, **options: Any) -> None:
        super().__init__(table, party, shard=Buckets(code, records), **options)
        self._code = code

    def handle(self, query: bytes, answer: Answer | None = None) -> bytes:
        """As `Server.handle`; InputError unless every bucket and round gets a key, equally often."""

        def whole(keys: Tensor, decoder: str) -> tuple[State, Tensor]:
            if len(keys) % self._code.keys:
                hint = "client and servers need the same plan"
                raise InputError(f"an inference has {self._code.keys} keys here, the query {len(keys)}", hint=hint)
            return (answer or self.answer)(keys, decoder)

        return super().handle(query, whole)


def plan_servers(
    table: Source | Tensor | nn.Module, plan: Plan, party: int, *, identity: bytes | None = None
) -> list[Server]:
    """One server of party 0 or 1 for each of the plan's codes, in their order; put them on the wire as any other.

    table: a Source of plain rows, a tensor (rows, dim), or an nn.Embedding or nn.EmbeddingBag. Memory: 3 times the
    table for a cuckoo code, and that times 1 + C with C companions. InputError for signed rows and rows for shares,
    and for a table of another number of rows than the plan's.
    """
    source = table if isinstance(table, Source) else Source.of(table)
    if source.facts.table_id or source.facts.shares:
        hint = "lay plain rows out"
        raise InputError(f"{source.facts.text()}: a plan is of plain rows", where="pir.plan_servers", hint=hint)
    if source.facts.rows != plan.full.rows:
        what = f"the table has {source.facts.rows} rows, the plan {plan.full.rows}"
        raise InputError(what, where="pir.plan_servers", hint="make the plan for this table")
    # Place -1, an empty one, is the zeros behind the last row.
    rows = torch.from_numpy(np.concatenate([source.records, np.zeros_like(source.records[:1])]))
    servers: list[Server] = []
    for code, places in zip(plan.codes, plan.layouts(), strict=True):
        records = rows[places].flatten(2)  # (buckets, bucket_rows, parts * row_bytes)
        facts = _facts(plan, code, source.facts.dim, source.facts.dtype)
        whole = Source(facts, source.version, np.empty((0, facts.record_bytes), np.uint8))
        servers.append(BucketServer(whole, party, code, records, identity=identity))
    return servers


def _facts(plan: Plan, code: BatchCode, dim: int, dtype: str) -> Facts:
    return Facts(code.bucket_rows, plan.parts * dim, dtype)


class BatchedEmbedding(nn.Module):
    """nn.Embedding over a table at two servers, with the same keys for every inference; without gradients.

    plan: public, the servers' own. clients: one for each of its codes. Calls take int32 or int64 (N,), one inference,
    or (B, N), B of them, and return (N, dim) or (B, N, dim). A row that finds no key is zeros, and so are positions of
    padding_idx, which need none. `dropped` counts the positions that were dropped, so far; it stays here.
    Raises what `Client.rows` raises, and AgreementError for servers of another plan.

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
        self.dim, self.dtype = first.dim // plan.parts, DTYPES[first.dtype]
        self._together = []  # inferences in one query of each code
        for code, client in zip(plan.codes, clients, strict=True):
            if client.facts != _facts(plan, code, self.dim, first.dtype):
                hint = "client and servers need the same plan"
                raise AgreementError(f"servers of {client.facts.text()}, not of {code}", where="plan", hint=hint)
            fit = keys_in_a_query(client.facts) // code.keys
            if not fit:
                raise ConfigError(f"{code.keys} keys are too many for a message", where="plan", hint="fewer buckets")
            self._together.append(fit)

    @classmethod
    def from_torch(
        cls, embedding: nn.Embedding, plan: Plan, zero: Sequence[str | Link], one: Sequence[str | Link], **options: Any
    ) -> BatchedEmbedding:
        """In place of `embedding`, whose data are not used. zero, one: the servers of party 0 and of party 1, for each
        of the plan's codes, as `Client` takes them; options: of `Client`.
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
        """Embeddings (*, dim) of rows int32 or int64 (N,) or (B, N)."""
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
        """What the keys of every inference bring: (B, keys, parts, dim)."""
        if not inside:
            return torch.empty(0)
        parts = torch.stack(list(inside)).split([code.keys for code in self.plan.codes], 1)
        brought = []
        for client, together, asked in zip(self.clients, self._together, parts, strict=True):
            rows = [client.rows(some.flatten()) for some in asked.split(together)]
            brought.append(torch.cat(rows).view(*asked.shape, self.plan.parts, self.dim))
        return torch.cat(brought, 1)
