"""A net's requests to the dealer, found by one run of its layers on zeros, in a session without other parties.

Requests and messages of layers depend on shapes alone. So a party that receives only zeros makes the same requests as
in a real run, and every party makes these requests in every run on inputs of that shape.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.channel.channel import Channel
from hummingbird.crypten import run as crypten_run
from hummingbird.errors import InputError
from hummingbird.graph import calls
from hummingbird.mpc.correlations.request import Material, Request
from hummingbird.mpc.dealer.supplies import OnDemand, Requests, StepSupplies
from hummingbird.mpc.plan.net import PrivateNet
from hummingbird.mpc.session.session import Session, ZeroSharing
from hummingbird.mpc.session.sharing import Shared


@dataclass(frozen=True)
class DryRun:
    """The requests of a net, in order.

    setup: the requests that it makes once, to share private weights.
    batch: the requests of every slice.
    layers: the name of the layer that makes each request of a slice; empty if not known.
    """

    setup: list[Request[Any]]
    batch: list[Request[Any]]
    layers: list[str] = field(default_factory=list)


class _Silence(Channel):
    """Channel without messages: every other party seems to send zeros, and the same texts as this party."""

    def __init__(self, rank: int, parties: int) -> None:
        super().__init__(rank, parties, {}, {}, 0.0)

    def exchange(self, *tensors: Tensor) -> dict[int, list[Tensor]]:
        return {peer: self.receive(peer, tensors) for peer in self.others}

    def swap(self, peer: int, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        return self.receive(peer, like)

    def exchange_text(self, text: str) -> dict[int, str]:
        return dict.fromkeys(self.others, text)

    def send(self, peer: int, *tensors: Tensor) -> None:
        pass

    def receive(self, peer: int, like: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in like]


def zeros(request: Request[Any]) -> Material:
    """Make the material for a request with zero for every share, and return it.

    It is for runs that only record requests.
    """
    return Material({name: torch.zeros(item.shape, dtype=item.dtype) for name, item in request.parts.items()})


class Zeros:
    """A dealer for a run that only records requests: it deals zeros, and keeps the requests and their layers' names.

    slice_shape: the shape of the one slice that runs.
    """

    aim = "latency"

    def __init__(self, slice_shape: tuple[int, ...]) -> None:
        self.slice_shape: tuple[int, ...] | None = slice_shape
        self.requests: list[Request[Any]] = []
        self.layers: list[str] = []

    def correlation(self, request: Request[Any]) -> Material:
        self.requests.append(request)
        self.layers.append(meter.current_layer())
        return zeros(request)

    def reserve(self, requests: Requests | None) -> OnDemand:
        return OnDemand(self.correlation)

    def converse(self, facts: dict[str, str], steps: Sequence[Requests] | None) -> StepSupplies:
        return StepSupplies(lambda step: OnDemand(self.correlation), None)

    def bind(self, name: str, digest: bytes) -> None:
        pass

    def own(self, key: int, weight: Tensor) -> None:
        pass

    def admit(self, facts: dict[str, str], shapes: Sequence[tuple[int, ...]]) -> None:
        pass

    def stay(self) -> None:
        pass

    def close(self) -> None:
        pass


def dry_run(net: PrivateNet, input_shape: Sequence[int], parties: int, rank: int = 0) -> DryRun:
    """Return the requests that party `rank` of `parties` makes when the net runs on one slice of `input_shape`.

    Needs no session, sends nothing, and runs a copy of the net: about the time and memory of one plain run. Raises
    InputError for a net whose private weights are shared already, since its setup is over.

        dry_run(hummingbird.convert_model(net), (8, 3, 32, 32), parties=2).batch
    """
    recorder = Zeros(tuple(input_shape))
    with alone(net, parties, rank, recorder) as twin:
        setup = recorder.requests
        for fill in (0, 1):  # values for public inputs: 1 if the net refuses 0, as a mask that hides everything
            recorder.requests, recorder.layers = [], []
            try:
                twin.run(input_shape, fill)
                break
            except InputError:
                if fill or len(calls.on_meta(net._graph, input_shape)) == 1:
                    raise
    return DryRun(setup, recorder.requests, recorder.layers)


def requests_of(net: PrivateNet, input_shape: tuple[int, ...], parties: int) -> list[tuple[str, Request[Any]]]:
    """Return the requests of a slice and the layer that makes each, for `PrivateNet.requests_of`; as `dry_run`."""
    found = dry_run(net, input_shape, parties)
    return list(zip(found.layers, found.batch, strict=True))


def silent(parties: int, rank: int, dealer: Zeros) -> Session:
    """Make a session of party `rank` of `parties` in which all other parties send zeros, and nothing is secret.

    dealer: records the requests that are made.
    """
    return Session(rank, parties, _Silence(rank, parties), dealer, zeros=ZeroSharing.of_zeros())


class Alone(NamedTuple):
    """A net of one party that is set up in a session in which all other parties send zeros; `alone` makes it.

    It serves to find the net's requests to a dealer.
    """

    net: PrivateNet
    session: Session

    def run(self, input_shape: Sequence[int], fill: int = 0) -> None:
        """Run the net on one slice of zeros, so that the session's dealer records the net's requests.

        input_shape: of the private input, with the batch first.
        fill: the value of all elements of public inputs.
        """
        public = [torch.full(x.shape, fill, dtype=x.dtype) for x in calls.on_meta(self.net._graph, input_shape)[1:]]
        self.net.forward(self.session, Shared(torch.zeros(tuple(input_shape), dtype=torch.int64)), public=public)


@contextlib.contextmanager
def alone(net: PrivateNet, parties: int, rank: int, dealer: Zeros) -> Iterator[Alone]:
    """Make a context with a copy of the net, set up in a session in which all other parties send zeros (`Alone`).

    parties, rank: the session's number of parties, and this party's rank.
    dealer: records the requests that the net makes.
    Raises InputError if the net's private weights are shared already.
    """
    ready = net._set_up_for is not None
    if ready and net.fixed_weights:
        raise InputError("the weights are shared already", where="dry_run", hint="convert the net again")
    session = silent(parties, rank, dealer)
    with meter.paused(), crypten_run.lent(session):
        twin = copy.deepcopy(net, {id(net._set_up_for): None})
        twin.requests_of = None
        if ready:  # its private constants are shares, and its private weights have their numbers
            twin._set_up_for = session.run
            twin.to(session.device)
        twin.set_up(session)
        yield Alone(twin, session)
