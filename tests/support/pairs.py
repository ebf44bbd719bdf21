"""Two parties that make their material, for tests: as threads with sockets, and step by step in one thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.request import Material, Request
from hummingbird.mpc.pair.lockstep import Rounds
from hummingbird.mpc.pair.material import PairMaterial
from hummingbird.mpc.pair.price import DEFAULT
from hummingbird.mpc.pair.transfers import ReceivedRot, SentRot, Side, Transfers
from hummingbird.mpc.protocols.step_tables import TransferKind
from tests.support.parties import channels, together
from tests.support.patience import HANG


def pair(transfers: TransferKind = DEFAULT) -> list[PairMaterial]:
    """Both parties, over sockets, after their set-up. transfers: how these are made."""
    return together([lambda c=c: PairMaterial(c, transfers) for c in channels(2)])


def made(parties: Sequence[PairMaterial], requests: Sequence[Request[Any]]) -> list[list[Material]]:
    """Both parties' material for some requests, made in one call."""
    return together([lambda p=p: p.make(requests) for p in parties])


def columns(request: Request[Any], materials: Sequence[Material]) -> dict[str, list[Tensor]]:
    """Both parties' share of each field, in whole words."""
    for material in materials:
        assert list(material.shares) == list(request.parts)
    return {name: [plain(material.shares[name]) for material in materials] for name in request.parts}


def low(x: Tensor, width: int) -> Tensor:
    """The low bits of ring elements."""
    return x & ((1 << width) - 1) if width < 64 else x


def values(request: Request[Any], shares: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """The value of each field, of both parties' shares in the form of the request."""
    out = {}
    for name, item in request.parts.items():
        first, second = shares[name]
        assert first.shape == second.shape == item.shape, name
        out[name] = low(first.long() + second.long(), item.width) if item.kind == "ring" else first ^ second
    return out


def wrong(request: Request[Any], shares: dict[str, list[Tensor]]) -> list[str]:
    """The derived fields that differ from what the request's definition says."""
    found = values(request, shares)
    free = {name: shares[name] if item.apart else found[name] for name, item in request.free.items()}
    bad = []
    for name, expected in request.derive(**free).items():
        item = request.derived[name]
        expected = low(expected.long(), item.width) if item.kind == "ring" else expected.to(found[name].dtype)
        if not torch.equal(found[name], expected):
            bad.append(name)
    return bad


# In one thread, with every message seen -------------------------------------------------------------------------------


def _wires() -> list[Callable[[Tensor, int], Tensor]]:
    ways: list[queue.Queue[Tensor]] = [queue.Queue(), queue.Queue()]

    def exchange(rank: int, message: Tensor, size: int) -> Tensor:
        ways[rank].put(message)
        found = ways[1 - rank].get(timeout=HANG)
        assert found.numel() == size
        return found

    return [lambda message, size, rank=rank: exchange(rank, message, size) for rank in range(2)]


@cache
def linked() -> list[Transfers]:
    """Both ends of one set-up of transfers."""
    return linked_by(DEFAULT)


def linked_by(kind: TransferKind) -> list[Transfers]:
    """Both ends of a new set-up of transfers, which are made in this way."""
    return together([lambda wire=wire: Transfers(wire, kind) for wire in _wires()])


@dataclass
class Seen:
    """Results of both parties, and what each of them sent: for each round one tensor of bytes, and all messages."""

    results: list[Any]
    sent: list[list[Tensor]] = field(default_factory=lambda: [[], []])
    messages: list[list[Tensor]] = field(default_factory=lambda: [[], []])


def stepwise(protocols: Sequence[Rounds[Any]]) -> Seen:
    """Run both parties' protocols round by round."""
    seen, received, ended = Seen([None, None]), [None, None], [False, False]
    while True:
        rounds: list[Any] = [None, None]
        for rank, protocol in enumerate(protocols):
            try:
                rounds[rank] = next(protocol) if received[rank] is None else protocol.send(received[rank])
            except StopIteration as end:
                seen.results[rank], ended[rank] = end.value, True
        if all(ended):
            return seen
        assert not any(ended), "one party goes on"
        for rank in range(2):
            seen.messages[rank] += rounds[rank][0]
            seen.sent[rank].append(torch.cat([m.reshape(-1) for m in rounds[rank][0]] or [torch.empty(0).byte()]))
        for rank in range(2):
            message, sizes = seen.sent[1 - rank][-1], list(rounds[rank][1])
            assert message.numel() == sum(sizes), "one party expects other messages than are sent"
            received[rank] = list(message.split(sizes)) if sizes else []


def drawn(sent: int, received: int) -> tuple[tuple[SentRot, ReceivedRot], tuple[SentRot, ReceivedRot]]:
    """Fresh transfers: party 0's and party 1's; party 0 sends `sent` of them, and receives `received`."""
    first, second = linked()
    return tuple(stepwise([first.draw(sent, received), second.draw(received, sent)]).results)


def sides(n: int, main: int, back: int = 0) -> list[Side]:
    """Both parties of a protocol on n values; party 0 sends the main transfers."""
    (out0, in0), (out1, in1) = drawn(main * n, back * n)
    return [Side(n, 0, True, out0, in0), Side(n, 1, False, in1, out1)]


def bits_of(plane: Tensor) -> Tensor:
    """Packed bits as numbers 0 and 1, int64 (..., n)."""
    return (plane[..., None].long() >> torch.arange(8) & 1).flatten(-2)


def packed(bits: Tensor) -> Tensor:
    """Numbers 0 and 1 as packed bits, uint8 (..., n/8)."""
    return (bits.view(*bits.shape[:-1], -1, 8) << torch.arange(8)).sum(-1).byte()
