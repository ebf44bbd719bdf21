"""Whose turn it is to receive a request's correction: that of the party that has been sent the fewest bits so far.

Every party makes the same requests in the same order, and so does who deals in advance: all of them agree without a
message. At any time the parties have been sent the same bits, to within those of the largest request: who is served had
the fewest, and has at most one request more than these afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hummingbird.mpc.correlations.request import ReceiverTurn, Request


class ReceiverRotation:
    """The turns of `parties` parties, from the first request on. Not for several threads at a time."""

    def __init__(self, parties: int) -> None:
        self._sent, self._served = [0] * parties, [0] * parties

    def take(self, requests: Sequence[Request[Any]]) -> list[ReceiverTurn]:
        """The turns of the next requests, in their order."""
        return [self._next(request) for request in requests]

    def _next(self, request: Request[Any]) -> ReceiverTurn:
        receiver = self._sent.index(min(self._sent))
        turn = ReceiverTurn(receiver, self._served[receiver])
        self._sent[receiver] += request.correction_bits
        self._served[receiver] += 1
        return turn


def received_by(rank: int, parties: int, requests: Sequence[Request[Any]]) -> list[Request[Any]]:
    """Those of the first requests of all whose corrections go to party `rank`, in their order."""
    turns = ReceiverRotation(parties).take(requests)
    return [request for request, turn in zip(requests, turns, strict=True) if turn.receiver == rank]
