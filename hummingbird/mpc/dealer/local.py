"""A stand-in for the dealer inside a party: for one party, and for tests.

Every party that holds it knows all parties' seeds, hence every mask: with more than one party it protects nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.mpc.correlations import Request, check, corrections, expand, received
from hummingbird.mpc.dealer.ahead import Account, OnDemand


class LocalDealer(Account):
    """`take` as `DealerClient` has it, from all parties' seeds in order of rank. Warns unless there is one party."""

    def __init__(self, rank: int, parties: int, seeds: Sequence[bytes], device: torch.device | str = "cpu") -> None:
        if len(seeds) != parties or not 0 <= rank < parties:
            raise InputError(f"rank {rank} of {parties} parties with {len(seeds)} seeds", where="LocalDealer")
        if parties > 1:
            warnings.warn(
                "LocalDealer offers NO privacy: this party knows every party's seed and can read all secrets. "
                "Use it in tests only.",
                stacklevel=2,
            )
        super().__init__()
        self.rank, self.parties = rank, parties
        self._seeds, self._device = list(seeds), torch.device(device)
        self._index = 0

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares: the free fields, then the derived ones. Sends nothing. DealerError for a bad request."""
        check(request)
        index, self._index = self._index, self._index + 1
        started = time.perf_counter()
        shares = expand(request, index, self._seeds[self.rank], self.rank, self._device)
        expanded = time.perf_counter()
        self.seconds_expanding += expanded - started
        if self.rank == 0:
            shares += received(request, corrections(request, index, self._seeds))
            self.dealer_seconds += time.perf_counter() - expanded
            self.offline_bits += request.correction_bits
        self.seconds_waiting += time.perf_counter() - started
        return shares

    def reserve(self, requests: Sequence[Request] | None) -> OnDemand:
        """The material of one slice, on demand."""
        return OnDemand(self.take)

    def bind(self, name: str, digest: bytes) -> None:
        """Nothing to keep: no run sees another run's masks."""

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Any net, of any shape."""

    def close(self) -> None:
        """Nothing to leave."""
