"""Receiver rotation: the correction of the next request goes to the party that has received the fewest bits so far.

All parties make the same requests in the same order, and so does a dealer that deals in advance. So all of them know
the receiver without a message. What two parties have received differs by at most the bits of the largest request: the
receiver had the fewest bits, and gets those of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hummingbird.mpc.correlations.request import ReceiverTurn, Request


class ReceiverRotation:
    """Receiver rotation of a run of `parties` parties: it says who receives each request's correction. Not thread-safe.

    It counts from the run's first request on.
    """

    def __init__(self, parties: int) -> None:
        self._sent, self._served = [0] * parties, [0] * parties

    def take(self, requests: Sequence[Request[Any]]) -> list[ReceiverTurn]:
        """Return the receiver turns of the next requests, in order.

        A turn says which party receives the request's correction, and how many corrections that party received before.
        """
        return [self._next(request) for request in requests]

    def _next(self, request: Request[Any]) -> ReceiverTurn:
        receiver = self._sent.index(min(self._sent))
        turn = ReceiverTurn(receiver, self._served[receiver])
        self._sent[receiver] += request.correction_bits
        self._served[receiver] += 1
        return turn


def received_by(rank: int, parties: int, requests: Sequence[Request[Any]]) -> list[Request[Any]]:
    """Choose the requests of a run whose corrections go to party `rank`; return them in order.

    requests: all requests of the run, from the first one on.
    """
    turns = ReceiverRotation(parties).take(requests)
    return [request for request, turn in zip(requests, turns, strict=True) if turn.receiver == rank]
