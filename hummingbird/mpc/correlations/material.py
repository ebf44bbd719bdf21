"""One party's shares for one request, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

from hummingbird.channel.staging import Ready
from hummingbird.kernels.shares.packing import Words, anchor


@dataclass(frozen=True)
class Material:
    """This party's shares for one request, by field name, and their cost.

    offline_bits: size of the corrections that the dealer made, without framing.
    received_bits: the same if this party received them, else 0.
    waiting_seconds: how long this party waited for the shares.
    expanding_seconds: time spent on expanding this party's seed, in the background if shares are made ahead.
    dealer_seconds: the dealer's own work, if the dealer reported it with these shares, else 0.
    ready: the event after which the shares are on the GPU, for `take`; None if they are there already.
    """

    shares: dict[str, Words]
    offline_bits: int = 0
    received_bits: int = 0
    waiting_seconds: float = 0.0
    expanding_seconds: float = 0.0
    dealer_seconds: float = 0.0
    ready: Ready | None = None

    def take(self) -> None:
        """Make what this thread computes on the GPU from now on wait until the shares are there."""
        if self.ready is not None:
            self.ready.take([anchor(words) for words in self.shares.values()])
