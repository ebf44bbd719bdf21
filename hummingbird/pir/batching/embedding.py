"""Embedding layers whose table is at two servers: one key for each position, or the batched queries of a plan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hummingbird.errors import AgreementError, ConfigError, InputError
from hummingbird.pir.batching.plan import Plan
from hummingbird.pir.client import Client
from hummingbird.pir.messages import keys_in_a_query
from hummingbird.pir.table import DTYPES, State
from hummingbird.pir.table_server import TableServer

# A key for each position ----------------------------------------------------------------------------------------------
#
# At inference the outputs equal those of torch's layers bit for bit. Every position is looked up, including padding,
# duplicates, and positions of weight 0, so the servers' view depends on the input's shape only. The returned rows
# form a small table, which torch's own functions reduce: a bag's sum has the same additions in the same order.

Servers = Client | Sequence["str | TableServer"]


class _Private(nn.Module):
    """Base class of `PrivateEmbedding` and `PrivateEmbeddingBag`.

    It has the client, and the size and type of the servers' table under the names of torch's attributes, such as
    num_embeddings.
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
        """Check `padding_idx`, the number of the row for padding, and return it as a number from 0 on; None: there is
        none.

        A negative number counts from the end, as in torch. Raises ConfigError for a number outside of the table.
        """
        if padding_idx is None:
            return None
        if not -self.num_embeddings <= padding_idx < self.num_embeddings:
            hint = f"rows are 0 to {self.num_embeddings - 1}"
            raise ConfigError(f"padding_idx is {padding_idx}", where=type(self).__name__, hint=hint)
        return padding_idx % self.num_embeddings

    def _check_same(self, module: nn.Embedding | nn.EmbeddingBag) -> None:
        """Raise AgreementError unless the weight of a torch layer has the size and type of the servers' table."""
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

    servers: a `Client`, or the two servers as `Client` takes them. options: with two servers, further arguments of
    `Client`, such as `tls`. padding_idx: as in torch, where it concerns gradients only. Calls take int32 or int64 of
    any shape (*), and return (*, embedding_dim) on the input's device. Raises the errors of `Client.rows`.

    >>> private = pir.PrivateEmbedding.from_torch(table, pir.local_servers(table))
    >>> words = torch.tensor([[3, 14], [15, 9]])
    >>> torch.equal(private(words), table(words))
    True
    """

    def __init__(self, servers: Servers, *, padding_idx: int | None = None, **options: Any) -> None:
        super().__init__(servers, options)
        self.padding_idx = self._check_padding(padding_idx)  # affects gradients only: lookups return that row

    @classmethod
    def from_torch(cls, embedding: nn.Embedding, servers: Servers, **options: Any) -> PrivateEmbedding:
        """Make the layer that replaces `embedding`, whose weights are not used; so it may be on the meta device.

        servers: as for PrivateEmbedding. options: further arguments of `Client`. Raises ConfigError for an embedding
        with max_norm, AgreementError if the servers' table is of another size or type.
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

    servers, options: as for PrivateEmbedding. mode: "sum", "mean" or "max". Calls take the same arguments as torch's:
    input (B, n), or (n,) with offsets (B,); with "sum" also per_sample_weights. They return (B, embedding_dim). Offsets
    and weights are not sent. Raises the errors of `Client.rows`.

    >>> bag = torch.nn.EmbeddingBag.from_pretrained(table.weight.detach(), mode="sum")
    >>> private = pir.PrivateEmbeddingBag.from_torch(bag, pir.local_servers(table))
    >>> private(torch.tensor([[3, 14, 15], [9, 2, 6]])).shape
    torch.Size([2, 16])
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
        """Make the layer that replaces `bag`, whose weights are not used; so it may be on the meta device.

        servers: as for PrivateEmbedding. options: further arguments of `Client`. Raises ConfigError for a bag with
        max_norm, AgreementError if the servers' table is of another size or type.
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
        """Raise InputError for arguments of a call that torch's EmbeddingBag would refuse; so nothing is sent for them.

        input, offsets: as in torch. weights: the call's per_sample_weights.
        """
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


# The queries of a plan ------------------------------------------------------------------------------------------------
#
# Two servers hold the plan's buckets (serving/bucket_server.py); the layer has one client for each of the plan's codes.

_TRIES = 5


class BatchedEmbedding(nn.Module):
    """A layer in place of nn.Embedding that looks up rows at two servers by a plan; without gradients.

    Every inference sends the same number of keys. plan: public; the servers must have the same. clients: one `Client`
    for each table of the plan (`Plan.codes`). padding_idx: a row number that is not looked up.
    Calls take int32 or int64 (N,) for one inference, or (B, N) for B, and return (N, dim) or (B, N, dim). A wanted row
    that no key brings is dropped: its embedding is zeros. The embedding of padding_idx is zeros too, and takes no key.
    `dropped` counts the positions of dropped rows in all calls; it is not sent. All rows of a call are of one version
    of the table. cache: number of rows that are kept from call to call, those used last; a row that is kept takes no
    key, so the others find one more often. The servers see the same number of keys. After an update of the table the
    kept rows are forgotten, and the call sends its keys once more, whichever rows it wants. `cached` counts the
    positions that kept rows served.
    Raises the errors of `Client.rows`, and AgreementError for servers of another plan.

    >>> plan = pir.Plan(pir.BatchCode.cuckoo(rows=1000, wanted=8))
    >>> zero, one = (pir.plan_servers(table, plan, party) for party in (0, 1))
    >>> private = pir.BatchedEmbedding.from_torch(table, plan, zero, one)
    >>> wanted = torch.tensor([3, 14, 15, 9, 2, 6, 5, 35])
    >>> bool((private(wanted) == table(wanted)).all()), private.dropped
    (True, 0)
    """

    def __init__(
        self, plan: Plan, clients: Sequence[Client], *, padding_idx: int | None = None, cache: int = 0
    ) -> None:
        super().__init__()
        if type(cache) is not int or cache < 0:
            raise ConfigError(f"a cache of {cache!r} rows", where="BatchedEmbedding", hint="a whole number from 0")
        self.cache, self.cached = cache, 0
        self._kept, self._kept_of = OrderedDict[int, Tensor](), list[State]()  # rows, of these states of the tables
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
        *,
        cache: int = 0,
        **options: Any,
    ) -> BatchedEmbedding:
        """Make the layer that replaces `embedding`: it has the same padding_idx; the weights are those of the servers.

        plan: public; the servers must have the same. zero, one: the servers of party 0 and of party 1, one for each
        code of the plan, as `Client` takes them. cache: number of rows that are kept from call to call. options:
        further arguments of `Client`. Raises AgreementError if the servers' table is of another size or type.
        """
        clients = [Client(pair, **options) for pair in zip(zero, one, strict=True)]
        private = cls(plan, clients, padding_idx=embedding.padding_idx, cache=cache)
        own, theirs = (*embedding.weight.shape, embedding.weight.dtype), (plan.full.rows, private.dim, private.dtype)
        if own != theirs:
            what, hint = f"the layer is {own}, the servers' table {theirs}", "lay this layer's weight out at both"
            raise AgreementError(what, where="BatchedEmbedding", hint=hint)
        return private

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        """Look up the embeddings of the rows `input`: (N, dim) or (B, N, dim).

        input: numbers of rows, int32 or int64, (N,) for one inference or (B, N) for B inferences.
        """
        if input.dim() not in (1, 2) or input.dtype not in (torch.int32, torch.int64):
            hint = "(N,) for one inference, (B, N) for B of them"
            raise InputError(f"indices {input.dtype} {tuple(input.shape)}", where="BatchedEmbedding", hint=hint)
        lines = torch.atleast_2d(input.detach().cpu().to(torch.int64))
        wanted = torch.ones_like(lines, dtype=torch.bool) if self.padding_idx is None else lines != self.padding_idx
        for _ in range(_TRIES):
            kept = torch.tensor([[row in self._kept for row in line] for line in lines.tolist()], dtype=torch.bool)
            kept = kept.view(lines.shape)
            asked = wanted & ~kept
            lookups = [self.plan.look_up(line[mask]) for line, mask in zip(lines, asked, strict=True)]
            states, records = self._records([lookup.inside for lookup in lookups])
            if not self.cache or not self._kept_of or states == self._kept_of:
                break
            self._kept.clear()
            self._kept_of = states
        else:
            raise _updated(_TRIES)
        out = torch.zeros(*lines.shape, self.dim, dtype=self.dtype)
        hits = wanted & kept
        self.cached += int(hits.sum())
        for number, place in hits.nonzero().tolist():
            out[number, place] = self._kept[int(lines[number, place])]
        for number, lookup in enumerate(lookups):
            found = lookup.key >= 0
            places = asked[number].nonzero().flatten()[found]
            out[number, places] = records[number][lookup.key[found], lookup.part[found]]
            self.dropped += int((~found).sum())
            if self.cache:
                self._keep(lines[number], hits[number].nonzero().flatten(), out[number])
                self._keep(lines[number], places, out[number])
        self._kept_of = states
        return out.view(*input.shape, self.dim).to(input.device)

    def _keep(self, line: Tensor, places: Tensor, rows: Tensor) -> None:
        """Keep rows for later calls, and forget those that were used longest ago.

        line: the wanted rows' numbers. places: where in it are those that were found. rows: (N, dim), the rows.
        """
        for place in places.tolist():
            row = int(line[place])
            self._kept.pop(row, None)
            self._kept[row] = rows[place].clone()
            if len(self._kept) > self.cache:
                self._kept.popitem(last=False)

    def _records(self, inside: Sequence[Tensor]) -> tuple[list[State], Tensor]:
        """Look up the records that the keys of B inferences select.

        inside: for each inference the position that every key selects in its bucket, int64 (keys,).
        Returns the states of the plan's tables, and the records (B, keys, parts, dim); a record holds `parts` rows.
        Raises AgreementError if the table is updated during every attempt.
        """
        if not inside:
            return [client.state for client in self.clients], torch.empty(0)
        parts = torch.stack(list(inside)).split([code.keys for code in self.plan.codes], 1)
        for _ in range(_TRIES):
            read = [self._read(number, asked) for number, asked in enumerate(parts)]
            if len({state.version for state, _ in read}) == 1:
                return [state for state, _ in read], torch.cat([rows for _, rows in read], 1)
        raise _updated(_TRIES)

    def _read(self, number: int, asked: Tensor) -> tuple[State, Tensor]:
        """Look up records in the buckets of one of the plan's tables, for B inferences.

        number: of the table, its index in `Plan.codes`.
        asked: int64 (B, keys), the position that each key selects in its bucket.
        Returns the state of the table, and the records (B, keys, parts, dim); a record holds `parts` rows.
        """
        code, client, signed = self.plan.codes[number], self.clients[number], self._signed[number]
        of_key = torch.arange(code.buckets).repeat_interleave(code.rounds)
        numbers = None if signed is None else signed[of_key, asked].flatten(0, 1)
        state, rows = client.read(asked.flatten(), numbers, together=code.keys)
        return state, rows.view(*asked.shape, self.plan.parts, self.dim)


def _updated(tries: int) -> AgreementError:
    what = f"the tables of the plan were updated during each of {tries} lookups"
    return AgreementError(what, where="BatchedEmbedding", hint="ask for fewer inferences at a time")
