"""A layer of several embedding tables at the same two servers: one request for all lookups of a batch of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hummingbird.errors import (
    AgreementError,
    ConfigError,
    InputError,
    OverloadError,
    UnavailableError,
)
from hummingbird.kernels import lookups as kernel
from hummingbird.pir.client import PAUSE, Client
from hummingbird.pir.messages import (
    MAX_KEYS,
    SIGNATURE_BYTES,
    STATE_BYTES,
    keys_in_a_query,
    pack_calls,
    pack_query,
    pack_results,
    unpack_results,
)
from hummingbird.pir.pair import malformed
from hummingbird.pir.table import DTYPES
from hummingbird.pir.table_server import TableServer, ask, connected, disconnect
from hummingbird.rpc.admission import MAX_MESSAGE
from hummingbird.rpc.client import Retry
from hummingbird.rpc.frame import pack_tensors
from hummingbird.rpc.service import Tls

_WHERE = "pir.EmbeddingTables"
_MODES = ("sum", "mean", "max")


class TableLink:
    """One table of a server of several: what `Client` and `Updater` take in place of a server of one table.

    link: the connection to the server. table: the table's name.

    >>> tables = {"items": torch.zeros(50, 2), "shops": torch.ones(9, 3)}
    >>> client = pir.Client([pir.TableLink(server, "shops") for server in pir.local_tables(tables)])
    >>> client.rows(torch.tensor([4]))
    tensor([[1., 1., 1.]])
    """

    def __init__(self, link: TableServer, table: str) -> None:
        self._link, self._table, self.name = link, table, f"{link.name}, table {table}"

    def begin(self, message: bytes, method: str = "Answer") -> Callable[[], bytes]:
        """Send a message to the table; return a function that waits for the answer and returns it."""
        finish = self._link.begin(pack_calls([(self._table, method, message)]), "Several")
        return lambda: _results(self._link, finish(), 1)[0]


def _results(link: TableServer, answer: bytes, count: int) -> list[bytes]:
    try:
        return unpack_results(answer, count)
    except InputError as error:
        raise malformed(link, error) from None


class EmbeddingTables(nn.Module):
    """A layer in place of several nn.EmbeddingBags whose tables are at the same two servers; without gradients.

    servers: party 0 and party 1, each as an address (`pir-server --tables`) or one of `local_tables`; they must not
    collude. lookups: for each table the number of rows that one sample looks up. A sample that gives fewer is filled up
    with dummies, so that what the servers see depends on the number of samples only. mode: "sum", "mean" or "max" for
    all tables, or for each by its name. tls, tokens, timeout: as for `Client`; options: its further arguments, such as
    `prf`.
    A call takes a dict with int32 or int64 (B, n) for each table, n at most its number of lookups, and returns a dict
    with (B, dim) for each; weights: for tables of mode "sum", (B, n) each. One round trip for a batch, or more where a
    message of 4 MiB does not hold it; all rows of a table in a request are of one version. Raises ConfigError for modes
    and names that do not fit, InputError for inputs that do not, before anything is sent, and the errors of `Client`.

    >>> tables = {"shops": torch.rand(50, 8), "items": torch.rand(900, 4)}
    >>> layer = pir.EmbeddingTables(pir.local_tables(tables), {"shops": 1, "items": 20})
    >>> out = layer({"shops": torch.tensor([[7], [8]]), "items": torch.tensor([[3, 14], [15, 9]])})
    >>> out["shops"].shape, torch.allclose(out["items"][0], tables["items"][3] + tables["items"][14])
    (torch.Size([2, 8]), True)
    """

    def __init__(
        self,
        servers: Sequence[str | TableServer],
        lookups: Mapping[str, int],
        *,
        mode: str | Mapping[str, str] = "sum",
        tls: Tls | None = None,
        tokens: Sequence[str] | None = None,
        timeout: float = 10.0,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, count in lookups.items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"{count!r} lookups in table {name!r}", where=_WHERE, hint="a whole number from 1")
        self.lookups = dict(lookups)
        self.modes = dict.fromkeys(lookups, mode) if isinstance(mode, str) else dict(mode)
        if not lookups or set(self.modes) != set(lookups) or not {*self.modes.values()} <= {*_MODES}:
            hint = f"one of {', '.join(_MODES)} for each table that is looked up"
            raise ConfigError(f"modes {self.modes} for tables {[*lookups]}", where=_WHERE, hint=hint)
        self._timeout = timeout
        self.links = connected(servers, tls, timeout, _WHERE, tokens)
        try:
            self.clients = {
                name: Client([TableLink(link, name) for link in self.links], timeout=timeout, **options)
                for name in lookups
            }
            for name, client in self.clients.items():
                if client.facts.keywords:
                    hint = "pir.KeywordClient([pir.TableLink(server, name) ...]) looks them up"
                    raise ConfigError(f"table {name!r} is by keyword", where=_WHERE, hint=hint)
                if not DTYPES[client.facts.dtype].is_floating_point:
                    raise ConfigError(f"table {name!r} of {client.facts.dtype}", where=_WHERE, hint="floating point")
            self._most = self._samples()
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_torch(
        cls,
        bags: Mapping[str, nn.EmbeddingBag],
        lookups: Mapping[str, int],
        servers: Sequence[str | TableServer],
        **options: Any,
    ) -> EmbeddingTables:
        """Make the layer that replaces bags, by their tables' names; it has their modes, and not their weights.

        Other arguments: as for the class. Raises ConfigError for a bag with max_norm or padding_idx, AgreementError for
        a table of another size or type at the servers.
        """
        for name, bag in bags.items():
            if not isinstance(bag, nn.EmbeddingBag) or bag.max_norm is not None or bag.padding_idx is not None:
                hint = "nn.EmbeddingBag without max_norm and padding_idx: give each sample its own rows"
                raise ConfigError(f"table {name!r} cannot be replaced", where=f"{_WHERE}.from_torch", hint=hint)
        layer = cls(servers, lookups, mode={name: bag.mode for name, bag in bags.items()}, **options)
        for name, bag in bags.items():
            own, facts = (*bag.weight.shape, bag.weight.dtype), layer.clients[name].facts
            if own != (facts.rows, facts.dim, DTYPES[facts.dtype]):
                layer.close()
                what = f"the layer's table {name!r} has {own}, the servers' {facts.text()}"
                raise AgreementError(what, where=_WHERE, hint="give both servers this layer's weights")
        return layer

    def traffic(self, samples: int) -> tuple[int, int]:
        """Return the size in bytes of the message to each server, and of its answer, for one request.

        samples: number of samples in the request.
        """
        up, down = list[tuple[str, str, bytes]](), list[bytes]()
        for name, client in self.clients.items():
            facts, count = client.facts, samples * self.lookups[name]
            keys = torch.empty((count, kernel.key_bytes(facts.domain)), dtype=torch.uint8)
            up.append((name, "Answer", pack_query("xor", keys)))
            parts = [(STATE_BYTES,), (count, facts.record_bytes), *([(SIGNATURE_BYTES,)] if any(client.signs) else [])]
            down.append(pack_tensors([torch.empty(shape, dtype=torch.uint8) for shape in parts]))
        return len(pack_calls(up)), len(pack_results(down))

    def _samples(self) -> int:
        """Return how many samples one request holds. Raises ConfigError if it does not hold one."""
        keys = [keys_in_a_query(client.facts) // self.lookups[name] for name, client in self.clients.items()]
        one, nine = self.traffic(1), self.traffic(9)  # parts of a message are filled up to 8 bytes
        if max(one) > MAX_MESSAGE or not min(keys):
            what = f"a sample's lookups take {max(one) / 1e6:.1f} MB"
            hint = f"a message has {MAX_MESSAGE >> 20} MiB, and {MAX_KEYS} lookups in each table: two layers"
            raise ConfigError(what, where=_WHERE, hint=hint)
        held = [1 + 8 * (MAX_MESSAGE - first) // (ninth - first) for first, ninth in zip(one, nine, strict=True)]
        most = min(*keys, *held)
        while max(self.traffic(most)) > MAX_MESSAGE:
            most -= 1
        return most

    @torch.no_grad()
    def forward(self, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        weights = weights or {}
        samples = self._checked(inputs, weights)
        found: dict[str, list[Tensor]] = {name: [] for name in self.clients}
        for start in range(0, samples, self._most):
            some = {name: x[start : start + self._most].detach().cpu().to(torch.int64) for name, x in inputs.items()}
            for name, rows in self._request(some).items():
                found[name].append(rows)
        out = {}
        for name, x in inputs.items():
            facts = self.clients[name].facts
            rows = torch.cat(found[name]) if found[name] else torch.empty(0, facts.dim, dtype=DTYPES[facts.dtype])
            # Position i of a sample is row i of its part of a small table, which torch's own function reduces.
            first = torch.arange(samples)[:, None] * self.lookups[name]
            places = first + torch.arange(x.shape[1])
            own = weights.get(name)
            own = None if own is None else own.detach().cpu()
            if x.shape[1] == 0:
                out[name] = rows.new_zeros(samples, facts.dim).to(x.device)
                continue
            reduced = functional.embedding_bag(places, rows, mode=self.modes[name], per_sample_weights=own)
            out[name] = reduced.to(x.device)
        return out

    def _checked(self, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> int:
        """Check the arguments of a call; return the number of samples. Errors name no index."""
        if set(inputs) != set(self.lookups):
            what = f"inputs for {sorted(inputs)}"
            raise InputError(what, where=_WHERE, hint=f"for each of {sorted(self.lookups)}; (B, 0) for no lookups")
        sizes = set()
        for name, x in inputs.items():
            most, rows = self.lookups[name], self.clients[name].facts.rows
            fits = isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) and x.dim() == 2
            if not fits or x.shape[1] > most:
                got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                hint = f"int32 or int64 (B, n), n up to {most}"
                raise InputError(f"expected indices, got {got}", where=f"{_WHERE}, table {name!r}", hint=hint)
            if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < rows:
                hint = f"this table's rows are 0 to {rows - 1}"
                raise InputError("an index is outside of the table", where=f"{_WHERE}, table {name!r}", hint=hint)
            sizes.add(len(x))
        if len(sizes) != 1:
            raise InputError(f"tables with {sorted(sizes)} samples", where=_WHERE, hint="as many for each table")
        for name, weight in weights.items():
            where = f"{_WHERE}, table {name!r}"
            if name not in inputs or not isinstance(weight, Tensor) or self.modes[name] != "sum":
                raise InputError("weights of no table of mode sum", where=where, hint="a tensor, for such a table")
            dtype = DTYPES[self.clients[name].facts.dtype]
            if weight.shape != inputs[name].shape or weight.dtype != dtype:
                what = f"weights {weight.dtype} {tuple(weight.shape)}"
                raise InputError(what, where=where, hint=f"{dtype} {tuple(inputs[name].shape)}")
        return sizes.pop()

    def _request(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Look up the rows of some samples by one message to each server: (samples * lookups, dim) for each table."""
        places = {}
        for name, x in inputs.items():
            padded = torch.zeros(len(x), self.lookups[name], dtype=torch.int64)
            padded[:, : x.shape[1]] = x
            places[name] = padded.flatten()
        retry = Retry(self._timeout, (PAUSE, PAUSE))
        settle = {name: client.settle() for name, client in self.clients.items()}
        while True:
            asked = {name: client.begin(places[name]) for name, client in self.clients.items()}
            calls = [[(name, "Answer", one.queries[party]) for name, one in asked.items()] for party in (0, 1)]
            try:
                both = ask(self.links, [pack_calls(each) for each in calls], "Several", _WHERE)
            except (OverloadError, UnavailableError) as error:
                time.sleep(retry.failed(error))
                continue
            results = [_results(link, answer, len(asked)) for link, answer in zip(self.links, both, strict=True)]
            out, differ = {}, None
            for (name, one), *answers in zip(asked.items(), *results, strict=True):
                states, records = self.clients[name].finish(one, answers, places[name][:, None])
                if records is None:
                    differ = name, states
                    break
                out[name] = self.clients[name].numbers([records])
            if differ is None:
                return out
            settle[differ[0]](differ[1])

    def close(self) -> None:
        """Disconnect from both servers; may be called twice."""
        disconnect(self.links)

    def extra_repr(self) -> str:
        """Return the text for `print`: for each table its lookups, and its size and type at the servers."""
        return ", ".join(f"{name}: {self.lookups[name]} of {c.facts.text()}" for name, c in self.clients.items())
