"""A substitute for the dealer inside a party's process: for one party, and for tests.

It knows all parties' seeds, hence every mask: with more than one party it protects nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from hummingbird.errors import InputError
from hummingbird.kernels.devices import put
from hummingbird.mpc.correlations.material import Material
from hummingbird.mpc.correlations.receiver_rotation import ReceiverRotation
from hummingbird.mpc.correlations.request import Request, corrections, expand, received
from hummingbird.mpc.dealer.supplies import OnDemand, Requests


class LocalDealer:
    """Dealer and its client in one object, within the party's own process: it knows the seeds of all parties by rank.

    With several parties it protects nothing, and warns of this: it is for tests, and for a session of one party.
    """

    slice_shape = None

    def __init__(self, rank: int, parties: int, seeds: Sequence[bytes], device: torch.device | str = "cpu") -> None:
        if len(seeds) != parties or not 0 <= rank < parties:
            raise InputError(f"rank {rank} of {parties} parties with {len(seeds)} seeds", where="LocalDealer")
        if parties > 1:
            warnings.warn(
                "LocalDealer offers NO privacy: this party knows every party's seed and can read all secrets. "
                "Use it in tests only.",
                stacklevel=2,
            )
        self.rank, self.parties = rank, parties
        self._seeds, self._device = list(seeds), torch.device(device)
        self._turns = ReceiverRotation(parties)

    def __repr__(self) -> str:
        return "dealer in this process"

    def correlation(self, request: Request[Any]) -> Material:
        """This party's shares for one request. Sends nothing."""
        (turn,), bits, got = self._turns.take([request]), request.correction_bits, 0
        started = time.perf_counter()
        shares = expand(request, turn, self._seeds[self.rank], self.rank, self._device)
        expanded = dealt = time.perf_counter()
        if self.rank == turn.receiver:
            found = [put(x, self._device) for x in corrections(request, turn, self._seeds, self._device)]
            shares |= received(request, found)
            got, dealt = bits, time.perf_counter()
        return Material(shares, bits, got, dealt - started, expanded - started, dealt - expanded)

    def reserve(self, requests: Requests | None) -> OnDemand:
        """Return the supply of one slice, whose material is made when the slice asks for it."""
        return OnDemand(self.correlation)

    def bind(self, name: str, digest: bytes) -> None:
        """Do nothing: new masks are drawn in every run, so no mask can hide two secrets."""

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Accept any net, of any shape: material is made for whatever is requested."""

    def stay(self) -> None:
        """Do nothing: there is no session that could be dropped."""

    def close(self) -> None:
        """Do nothing: there is no session to leave."""
