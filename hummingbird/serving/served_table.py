"""A party's table, from which the keys of clients select rows (hummingbird/lookup.py).

One pass over the table serves the keys of all requests of a batch: a pass reads every row, for one key as for hundreds.
Its result is this party's share of s * row, which never leaves the party.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird import ring
from hummingbird.errors import ConfigError
from hummingbird.mpc.session.session import Session
from hummingbird.pir.serving.server import Server
from hummingbird.pir.table import Source
from hummingbird.serving.description import ServiceDescription
from hummingbird.serving.message import Request


class ServedTable:
    """The table of a service with lookups, at one of its two parties: it gives shares of the rows that clients' keys
    select.

    table: floating point (rows, dim), held in memory with 8 bytes for each number. Raises ConfigError unless the
    session has two parties and no store; InputError for numbers beyond the ring's range.
    """

    def __init__(self, table: Tensor, session: Session) -> None:
        if session.parties != 2:
            hint = "start two parties: a lookup has two keys"
            raise ConfigError(
                f"private lookups need two parties, this session has {session.parties}", where="serve", hint=hint
            )
        if session.dealer.slice_shape is not None:
            hint = "use a dealer: stores are dealt for nets without lookups"
            raise ConfigError("a net of lookups cannot use a store", where="--store", hint=hint)
        units = ring.encode(table.detach().cpu(), where="table")
        self._server, self._rank = Server(Source.of(units), session.rank), session.rank
        self.count, self.dim = units.shape

    @property
    def digest(self) -> str:
        """The fingerprint of the rows, hexadecimal."""
        return self._server.state.digest.hex()

    def close(self) -> None:
        """Release the table; may be called twice."""
        self._server.close()

    def inputs(self, requests: Sequence[Request], service: ServiceDescription) -> list[Tensor]:
        """Return this party's shares of the net's inputs for each request, int64 (images, values).

        An image's values are shares of the rows that its keys select, and then the client's shares. Some keys give a
        row times -1, which the client has taken into account in its weights.
        """
        _, sums = self._server.answer(torch.cat([request.keys(service) for request in requests]), "sum")
        words = sums.view(torch.int64)
        words = -words if self._rank else words  # party 1 subtracts
        rows = words.view(-1, service.lookups * self.dim).split([request.images for request in requests])
        return [
            torch.cat([own, request.words(service, self._rank).view(request.images, -1)], 1)
            for own, request in zip(rows, requests, strict=True)
        ]
