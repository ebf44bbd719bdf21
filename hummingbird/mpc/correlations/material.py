"""A party's shares for one request, and what they have cost it."""

from __future__ import annotations

from dataclasses import dataclass

from hummingbird.channel.staging import Ready
from hummingbird.kernels.shares.words import Words, anchor


@dataclass(frozen=True)
class Material:
    """This party's shares for one request, by the names of its fields, and what they have cost.

    offline_bits: corrections that the dealer made, without framing; received_bits: the same where they came to this
    party, else 0. waiting_seconds: for which this party has waited for the shares. expanding_seconds: spent on its own
    seed, in the background where that worked ahead. dealer_seconds: the dealer's own work, where it has told of it with
    this piece. ready: when the shares are on a GPU, for `take`; None where they are there.
    """

    shares: dict[str, Words]
    offline_bits: int = 0
    received_bits: int = 0
    waiting_seconds: float = 0.0
    expanding_seconds: float = 0.0
    dealer_seconds: float = 0.0
    ready: Ready | None = None

    def take(self) -> None:
        """Let what this thread computes from now on use the shares."""
        if self.ready is not None:
            self.ready.take([anchor(words) for words in self.shares.values()])
