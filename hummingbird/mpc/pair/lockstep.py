"""Protocols between two parties as generators, which run in lock-step: their messages of one round are one frame.

A protocol yields messages for the other party, and the sizes of those that it expects; it is resumed with these. The
protocols of both parties yield equally often, and in each round one expects exactly what the other one sends.

    def ask(plane):                                  def answer(table):
        (found,) = yield [plane], [64]                   (plane,) = yield [], [8]
        return found                                     yield [look_up(table, plane)], []

`together` makes one protocol of several. Two sides that wait for each other's choices in ten rounds take ten rounds for
any number of values and of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Round = tuple[Sequence[Tensor], Sequence[int]]  # messages, uint8; bytes of each message that the other party sends
Result = TypeVar("Result")
Rounds = Generator[Round, list[Tensor], Result]
Exchange = Callable[[Tensor, int], Tensor]  # (message to send, length in bytes of the reply) -> reply


def together(*protocols: Rounds[Any]) -> Rounds[list[Any]]:
    """Run protocols at the same time; return their results, in order. It takes the rounds of the longest one."""
    results: list[Any] = [None] * len(protocols)
    waiting: dict[int, Round] = {}

    def resume(number: int, received: list[Tensor] | None) -> None:
        try:
            waiting[number] = next(protocols[number]) if received is None else protocols[number].send(received)
        except StopIteration as end:
            waiting.pop(number, None)
            results[number] = end.value

    for number in range(len(protocols)):
        resume(number, None)
    while waiting:
        now = dict(waiting)
        received = yield [m for sent, _ in now.values() for m in sent], [n for _, sizes in now.values() for n in sizes]
        at = 0
        for number, (_, sizes) in now.items():
            resume(number, received[at : at + len(sizes)])
            at += len(sizes)
    return results


def finished(result: Result) -> Rounds[Result]:
    """Make a protocol without messages that has this result."""
    return result
    yield


def run(protocol: Rounds[Result], exchange: Exchange) -> Result:
    """Run a party's protocol to its end, one exchange of messages a round; return its result.

    exchange: sends a message, uint8 (n,), to the other party, and returns the message of so many bytes that the other
        party sends at the same time.
    """
    received: list[Tensor] | None = None
    while True:
        try:
            messages, sizes = next(protocol) if received is None else protocol.send(received)
        except StopIteration as end:
            return end.value
        flat = [message.reshape(-1) for message in messages]
        sent = torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)
        found = exchange(sent, sum(sizes))
        received = list(found.split(list(sizes))) if sizes else []
