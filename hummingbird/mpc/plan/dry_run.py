"""A net's requests to the dealer, from one run of its own layers on zeros, in a session where nobody answers.

The layers decide by shapes alone what they take and send. So a party that receives zeros takes what it would take in
earnest, and the list of its requests is the list of every party in every run on inputs of that shape.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.crypten import run as crypten_run
from hummingbird.errors import InputError
from hummingbird.graph import calls
from hummingbird.mpc.correlations.material import Material
from hummingbird.mpc.correlations.request import Request
from hummingbird.mpc.dealer.supplies import OnDemand, Requests
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.mpc.session.sharing import Shared


@dataclass(frozen=True)
class DryRun:
    """`setup`: the requests that a net makes once, to share private weights; `batch`: those of every slice."""

    setup: list[Request[Any]]
    batch: list[Request[Any]]


class _Silence(Channel):
    """A channel on which every other party says zeros, and agrees to everything."""

    def __init__(self, rank: int, parties: int) -> None:
        super().__init__(rank, parties, {}, {}, 0.0)

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        return {peer: self.receive(peer, tensors) for peer in self.others}

    def exchange_text(self, text: str) -> dict[int, str]:
        return dict.fromkeys(self.others, text)

    def send(self, peer: int, *tensors: Tensor) -> None:
        pass

    def receive(self, peer: int, like: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in like]


def zeros(request: Request[Any]) -> Material:
    """The material of a request, all of it zeros."""
    return Material({name: torch.zeros(item.shape, dtype=item.dtype) for name, item in request.parts.items()})


class Zeros:
    """A dealer of zeros that keeps what it was asked for."""

    def __init__(self, slice_shape: tuple[int, ...]) -> None:
        self.slice_shape: tuple[int, ...] | None = slice_shape
        self.requests: list[Request[Any]] = []

    def correlation(self, request: Request[Any]) -> Material:
        self.requests.append(request)
        return zeros(request)

    def reserve(self, requests: Requests | None) -> OnDemand:
        return OnDemand(self.correlation)

    def bind(self, name: str, digest: bytes) -> None:
        pass

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        pass

    def stay(self) -> None:
        pass

    def close(self) -> None:
        pass


def dry_run(net: PrivateNet, input_shape: Sequence[int], parties: int, rank: int = 0) -> DryRun:
    """The requests that party `rank` of `parties` makes when the net runs on one slice of `input_shape`.

    Needs no session, sends nothing, and works on a copy of the net: about the time and memory of one plain run.
    InputError for a net whose private weights are shared already: its setup is over.

        dry_run(hummingbird.convert_model(net), (8, 3, 32, 32), parties=2).batch
    """
    recorder = Zeros(tuple(input_shape))
    with alone(net, parties, rank, recorder) as twin:
        setup = recorder.requests
        for fill in (0, 1):  # public values that the net takes: rows of a table are there, and a mask shows something
            recorder.requests = []
            try:
                twin.run(input_shape, fill)
                break
            except InputError:
                if fill or len(calls.on_meta(net._graph, input_shape)) == 1:
                    raise
    return DryRun(setup, recorder.requests)


class Alone(NamedTuple):
    """A net that is set up in a session where every other party says zeros."""

    net: PrivateNet
    session: Session

    def run(self, input_shape: Sequence[int], fill: int = 0) -> None:
        """Run the net on one slice of zeros. fill: the values of public inputs."""
        public = [torch.full(x.shape, fill, dtype=x.dtype) for x in calls.on_meta(self.net._graph, input_shape)[1:]]
        self.net.forward(self.session, Shared(torch.zeros(tuple(input_shape), dtype=torch.int64)), public=public)


@contextlib.contextmanager
def alone(net: PrivateNet, parties: int, rank: int, dealer: Zeros) -> Iterator[Alone]:
    """A copy of the net, set up in a session where every other party says zeros, and the dealer is this one."""
    if net._set_up_for is not None and "private" in net.facts["weights"]:
        raise InputError("the weights are shared already", where="dry_run", hint="convert the net again")
    zeros = ZeroSharing.of_zeros()
    session = Session(rank, parties, _Silence(rank, parties), dealer, zeros=zeros)
    with meter.paused(), crypten_run.lent(session):
        twin = copy.deepcopy(net, {id(net._set_up_for): None})
        twin.set_up(session)
        yield Alone(twin, session)
