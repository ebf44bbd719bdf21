"""Predicted peak memory of a run: registers at the server, plain values at the client, slices in transit.

The client's values are tracked as `client.ClientBatch` stores them, in float32 for a full batch; a view shares memory
with its base. When both roles run in one process, a turn has two candidates for the peak: the server has received
everything while the client still holds the values that it sent; or the server is at its peak while the client collects
the answer.
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

_GPU_ROOM = 2 << 30  # GPU bytes for CUDA itself, and for the kernels' workspace (1.2 GB; kernels/reference/ciphertexts)
_SHARING = VIEWS | {"output"}  # operations whose result shares the memory of their first input


@dataclass(frozen=True)
class Memory:
    """The predicted peak memory of a run in bytes: of a server in one turn, of a client, and of a process with both."""

    server: int
    client: int
    process: int


def predicted(plan: Plan) -> Memory:
    """Return a plan's predicted peak memory for full batches: of the server, the client, and both in one process."""
    degree, moving = plan.public.parameters.degree, _moving(plan.public)
    *moments, last = _moments(plan.public)
    most_server, most = 0, last[0]
    for program, (sending, receiving) in zip(plan.programs, moments, strict=True):
        server, received = program.memory(degree), program.received.bytes(degree)
        most_server = max(most_server, server + moving, received + moving)
        most = max(most, received + sending + moving, server + receiving + moving)
    return Memory(most_server, at_client(plan.public), most)


def at_client(public: Public) -> int:
    """Return the peak bytes of memory that a client is predicted to need for a full batch.

    public: the net's description from the server, which may be dishonest. So the client compares the result with the
    memory that it has before it starts.
    """
    *moments, last = _moments(public)
    return max([last[0], *(max(moment) + _moving(public) for moment in moments)])


def installed(device: torch.device | str = "cpu") -> int:
    """Return how many bytes of memory this machine has, or for a GPU how many bytes ciphertexts may take on it.

    Returns `sys.maxsize` if the system does not report its memory.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return max(0, int(torch.cuda.mem_get_info(device)[1]) - _GPU_ROOM)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def _moving(public: Public) -> int:
    """Return the bytes of a slice of ciphertexts in transit, with all tensors that encryption or decryption needs."""
    parameters = public.parameters
    return 4 * SLICE * parameters.degree * (4 * len(parameters.primes) + 4)


def _moments(public: Public) -> Iterator[tuple[int, int]]:
    """Predict the peak bytes of a client's values in each part of a run.

    Yields for each turn a pair: the bytes while the client sends, and the bytes while it receives. A last pair, of two
    equal numbers, is for the steps after the last turn.
    """
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
    """The values that a client holds at a point of a run, without numbers, and how many bytes each of them takes."""

    def __init__(self, public: Public) -> None:
        self.public, self.steps = public, client_steps(public)
        self.values = self.steps.start(torch.empty(1, *public.input_shape, device="meta"))
        self.storage: dict[int, int] = {}  # value: the value that owns its memory
        self.bytes: dict[int, int] = {}
        self.most = 0
        self._owns(0, self.values[0])

    def held(self, *made: int) -> int:
        """Count the bytes of all values that the client holds, together with new values that are not added yet.

        made: numbers of the steps whose values are new.
        """
        return sum(self.bytes[owner] for owner in {self.storage[index] for index in (*self.values, *made)})

    def copied(self, index: int) -> int:
        """Count the bytes of the copy of a value that is made before it is encrypted; 0 if none is made.

        In the copy the images are the last dimension. Only the net's input, or a view of it, needs one. index: number
        of the step whose value it is.
        """
        return self.bytes[self.storage[index]] if self.public.steps[self.storage[index]].op == "input" else 0

    def run(self, steps: Iterable[int]) -> None:
        self.most = 0
        self.steps.run(self.values, self._compute, steps)

    def _compute(self, index: int, step: Step, given: tuple[Any, ...]) -> Any:
        value = self.public.meta(step, given)
        shown = next(iter(step.inputs), None) if step.op in _SHARING else None
        if isinstance(shown, Ref):  # in a dishonest description it may be anything
            self.storage[index] = self.storage[shown.index]
        else:
            self._owns(index, value)
        self.most = max(self.most, self.held(index))
        return value

    def complete(self, turn: int) -> None:
        """Drop the values that are not needed after turn number `turn`."""
        self.steps.drop(self.values, len(self.public.steps) + turn)

    def returned(self, values: Iterable[int], shapes: Iterable[tuple[int, ...]]) -> None:
        """Add the values that the server returns in a turn.

        values: numbers of the steps whose values they are. shapes: of these values for one image.
        """
        for index, shape in zip(values, shapes, strict=True):
            self.values[index] = torch.empty(1, *shape, device="meta")
            self._owns(index, self.values[index])

    def _owns(self, index: int, value: Any) -> None:
        self.storage[index], self.bytes[index] = index, self._size(value)

    def _size(self, value: Any) -> int:
        if isinstance(value, tuple):
            return sum(self._size(part) for part in value)
        return 4 * math.prod(value.shape[1:]) * self.public.slots
