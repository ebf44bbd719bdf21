"""A stand-in for the dealer inside a party: for one party, and for tests.

Every party that holds it knows all parties' seeds, hence every mask: with more than one party it protects nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.mpc.correlations import Request, check, corrections, expand


class LocalDealer:
    """`take` as `DealerClient` has it, from all parties' seeds in order of rank. Warns unless there is one party."""

    def __init__(self, rank: int, parties: int, seeds: Sequence[bytes]) -> None:
        if len(seeds) != parties or not 0 <= rank < parties:
            raise InputError(f"rank {rank} of {parties} parties with {len(seeds)} seeds", where="LocalDealer")
        if parties > 1:
            warnings.warn(
                "LocalDealer offers NO privacy: this party knows every party's seed and can read all secrets. "
                "Use it in tests only.",
                stacklevel=2,
            )
        self.rank, self.parties = rank, parties
        self.seconds_expanding = self.seconds_waiting = self.dealer_seconds = 0.0
        self.offline_bits = 0
        self._seeds = list(seeds)
        self._index = 0

    def take(self, request: Request) -> list[Tensor]:
        """This party's shares: the free fields, then the derived ones. Sends nothing. DealerError for a bad request."""
        check(request)
        index, self._index = self._index, self._index + 1
        started = time.perf_counter()
        shares = expand(request, index, self._seeds[self.rank], self.rank)
        expanded = time.perf_counter()
        self.seconds_expanding += expanded - started
        if self.rank == 0:
            shares += corrections(request, index, self._seeds)
            self.dealer_seconds += time.perf_counter() - expanded
            self.offline_bits += request.correction_bits
        return shares

    def close(self) -> None:
        """Nothing to leave."""
