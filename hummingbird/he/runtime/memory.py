"""The most memory a run takes, predicted: registers at the server, plain values at the client, slices on their way.

The client's values are followed as `client.Batch` keeps them, float32 for every image of a full batch; a view shares
the memory of what it shows. Both roles in one process need, in each turn, the larger of two moments: all received while
the client still holds what it sends, and the server at its largest while the client collects the answer.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hummingbird.graph import Ref, Step
from hummingbird.graph.alias import VIEWS
from hummingbird.he.runtime.client_spec import Public, client_steps
from hummingbird.he.runtime.program import Plan
from hummingbird.he.runtime.rounds import SLICE

_GPU_ROOM = 2 << 30  # bytes of a GPU: CUDA's own, and what kernels work in (1.2 GB; kernels/reference/ciphertexts)
_SHARING = VIEWS | {"output"}  # whose result shares the memory of their first input


@dataclass(frozen=True)
class Memory:
    """Bytes: at a server for one turn, at a client, and for both in one process."""

    server: int
    client: int
    process: int


def predicted(plan: Plan) -> Memory:
    """The most memory that a plan takes at each role, for full batches."""
    degree, moving = plan.public.parameters.degree, _moving(plan.public)
    *moments, last = _moments(plan.public)
    most_server, most = 0, last[0]
    for program, (sending, receiving) in zip(plan.programs, moments, strict=True):
        server, received = program.memory(degree), program.received.bytes(degree)
        most_server = max(most_server, server + moving, received + moving)
        most = max(most, received + sending + moving, server + receiving + moving)
    return Memory(most_server, at_client(plan.public), most)


def at_client(public: Public) -> int:
    """Bytes at a client, for a full batch: by what a server has told, which need not be honest."""
    *moments, last = _moments(public)
    return max([last[0], *(max(moment) + _moving(public) for moment in moments)])


def installed(device: torch.device | str = "cpu") -> int:
    """Bytes of memory that this machine has, or a GPU for ciphertexts; all that can be counted where none tells."""
    device = torch.device(device)
    if device.type == "cuda":
        return max(0, int(torch.cuda.mem_get_info(device)[1]) - _GPU_ROOM)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def _moving(public: Public) -> int:
    """Bytes of a slice and of all that is made from it: message, error, a, c0, c1, and room to work."""
    parameters = public.parameters
    return 4 * SLICE * parameters.degree * (4 * len(parameters.primes) + 4)


def _moments(public: Public) -> Iterator[tuple[int, int]]:
    """Bytes of a client's values in each turn: while it sends, while it receives; and after the last, at most."""
    client = _Client(public)
    for number, turn in enumerate(public.turns):
        client.run(turn.steps)
        sending = client.held() + sum(client.copied(send.value) for send in turn.sends)
        client.returned([back.value for back in turn.returns], [back.shape for back in turn.returns])
        yield sending, max(client.held(), client.most)
        client.complete(number)
    client.run(public.last)
    yield client.most, client.most


class _Client:
    """Live values of a client and the bytes behind them."""

    def __init__(self, public: Public) -> None:
        self.public, self.steps = public, client_steps(public)
        self.values = self.steps.start(torch.empty(1, *public.input_shape, device="meta"))
        self.storage: dict[int, int] = {}  # of a value, the value that owns its memory
        self.bytes: dict[int, int] = {}
        self.most = 0
        self._owns(0, self.values[0])

    def held(self, *made: int) -> int:
        """Bytes of all live values, and of values just made."""
        return sum(self.bytes[owner] for owner in {self.storage[index] for index in (*self.values, *made)})

    def copied(self, index: int) -> int:
        """Bytes of the copy that puts the images of a value last; only the net's input is not kept that way."""
        return self.bytes[self.storage[index]] if self.public.steps[self.storage[index]].op == "input" else 0

    def run(self, steps: Iterable[int]) -> None:
        self.most = 0
        self.steps.run(self.values, self._compute, steps)

    def _compute(self, index: int, step: Step, given: tuple[Any, ...]) -> Any:
        value = self.public.meta(step, given)
        shown = next(iter(step.inputs), None) if step.op in _SHARING else None
        if isinstance(shown, Ref):  # of a dishonest description it may be anything
            self.storage[index] = self.storage[shown.index]
        else:
            self._owns(index, value)
        self.most = max(self.most, self.held(index))
        return value

    def complete(self, turn: int) -> None:
        """Drop what is not needed once a turn is complete."""
        self.steps.drop(self.values, len(self.public.steps) + turn)

    def returned(self, values: Iterable[int], shapes: Iterable[tuple[int, ...]]) -> None:
        """Make room for the values that come back."""
        for index, shape in zip(values, shapes, strict=True):
            self.values[index] = torch.empty(1, *shape, device="meta")
            self._owns(index, self.values[index])

    def _owns(self, index: int, value: Any) -> None:
        self.storage[index], self.bytes[index] = index, self._size(value)

    def _size(self, value: Any) -> int:
        if isinstance(value, tuple):
            return sum(self._size(part) for part in value)
        return 4 * math.prod(value.shape[1:]) * self.public.slots
