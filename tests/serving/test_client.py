"""Clients: what they ask again, and what they never do; parties here are servers of this process that run no net."""

from __future__ import annotations

import asyncio
import math
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch

from hummingbird.errors import (
    AgreementError,
    ConfigError,
    HummingbirdError,
    InputError,
    OverloadError,
    PeerError,
    UnavailableError,
)
from hummingbird.rpc import service as wire
from hummingbird.serving.client import Client
from hummingbird.serving.description import LOAD, ServiceDescription, TensorSpec
from hummingbird.serving.message import Request, pack_answer
from tests.serving.test_message import SERVICE as OTHER
from tests.support import python
from tests.support.patience import HANG, NEVER

# A service that gives back what it gets.
SERVICE = replace(
    OTHER, inputs=(TensorSpec("x", (3,)),), outputs=(TensorSpec("y", (3,)),), bits=40, result_bits=40, parties=2
)
X = torch.tensor([[1.0, -0.5, 0.25], [0.0, 1.5, -1.0]])


@dataclass
class Party:
    """One party: answers with its own share. refusals: errors for the next requests."""

    rank: int
    service: ServiceDescription
    refusals: list[HummingbirdError] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    handle: Callable[[bytes, grpc.ServicerContext], bytes] | None = None  # in place of `ask`
    ahead: float = 0.0  # seconds of its clock
    load: int = 0  # that it reports
    describe_load: int | None = None  # in its description; None: the same
    described: int = 0  # how often it was asked for the description
    wait: threading.Event | None = None  # it describes nothing before
    hold: threading.Event | None = None  # it answers nothing before

    def describe(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        if self.wait is not None:
            self.wait.wait(NEVER)
        self.described += 1
        load = self.load if self.describe_load is None else self.describe_load
        return self.service.answer(self.rank, time.time() + self.ahead, load)

    def asked(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        return (self.handle or self.ask)(message, context)

    def ask(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        request = Request.read(message, self.service, self.rank)
        self.requests.append(request)
        context.set_trailing_metadata(((LOAD, str(self.load)),))
        if self.refusals:
            raise self.refusals.pop(0)
        if self.hold is not None:
            self.hold.wait(NEVER)
        return pack_answer(request.words(self.service, self.rank), self.service.result_bits)


@dataclass
class Group:
    """Two parties that listen."""

    folder: Path
    parties: list[Party]
    servers: list[grpc.Server]

    @property
    def addresses(self) -> list[str]:
        return [f"unix:{self.folder}/{party.rank}" for party in self.parties]


@contextmanager
def group_of(number: int) -> Iterator[Group]:
    """A group of two parties, with a session of its own."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        service = replace(SERVICE, group=number, session=f"{number:032x}")
        parties = [Party(rank, service) for rank in range(2)]
        servers = [
            wire.serve({"Describe": party.describe, "Ask": party.asked}, f"unix:{folder}/{party.rank}")
            for party in parties
        ]
        for server in servers:
            stack.callback(lambda server=server: server.stop(0).wait(HANG))
        yield Group(Path(folder), parties, servers)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    """Two groups of parties that serve the same."""
    with group_of(0) as first, group_of(1) as second:
        yield [first, second]


def test_each_party_hears_of_the_deadline_by_its_own_clock(groups: list[Group]) -> None:
    """Whatever the order of the addresses."""
    group, began = groups[0], time.time()
    for party, ahead in zip(group.parties, (-50_000.0, 1e6), strict=True):
        party.ahead = ahead
    with Client(group.addresses[::-1], timeout=HANG) as client:
        client(X)
    for party in group.parties:
        assert began < party.requests[0].deadline / 1e3 - party.ahead < time.time() + 2 * HANG


LOST = UnavailableError("party 1 was lost", hint="try again in a few seconds")


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_unavailable_is_asked_again_with_another_id_and_other_shares(groups: list[Group], rank: int) -> None:
    group = groups[0]
    group.parties[rank].refusals = [LOST, LOST]
    with Client(group.addresses, timeout=HANG) as client:
        assert torch.equal(client(X), X)
    for party in group.parties:
        sent = party.requests
        assert len({request.id for request in sent}) == len({request.body for request in sent}) == len(sent) >= 1
    assert len(group.parties[rank].requests) == 3


def test_parties_that_have_met_anew_are_asked_what_they_serve(groups: list[Group]) -> None:
    """Their service has another name, under which the old requests are refused."""
    group = groups[0]
    with Client(group.addresses, timeout=HANG) as client:
        assert client.service.session == f"{0:032x}"
        for party in group.parties:
            party.service = replace(SERVICE, session="cc" * 16)
        assert torch.equal(client(X), X) and client.service.session == "cc" * 16


def test_answers_of_one_call_are_of_one_net(groups: list[Group]) -> None:
    group = groups[0]
    with Client(group.addresses, timeout=HANG) as client:
        service = client.service
        for party in group.parties:
            party.service = replace(SERVICE, net="cd" * 32, session="cc" * 16)
        with pytest.raises(AgreementError, match="the service has changed since this call began: net abab"):
            client(X)
        assert torch.equal(client(X), X) and client.service.net != service.net


def test_a_value_that_no_net_takes_is_refused_before_anything_is_sent(groups: list[Group]) -> None:
    """Beyond 2^20 private inference is not right, also where the parties name no range of their own."""
    group = groups[0]
    for party in group.parties:
        party.service = replace(party.service, limit=None)
    with Client(group.addresses, timeout=HANG) as client:
        for value in (2.0**20 + 1, -(2.0**21), math.inf, math.nan):
            with pytest.raises(InputError):
                client(torch.tensor([[1.0, value, 0.0]]))
        assert not any(party.requests for party in group.parties)
        assert float(client(torch.tensor([[1.0, 2.0**20 - 1, 0.0]]))[0, 1]) == 2.0**20 - 1


def test_other_refusals_are_raised_at_once(groups: list[Group]) -> None:
    refusal = PeerError("party 1 never got its part", hint="send it")
    groups[0].parties[0].refusals = [refusal]
    with Client(groups[0].addresses, timeout=HANG) as client:
        with pytest.raises(PeerError, match=refusal.what):
            client(X)
        assert len(groups[0].parties[0].requests) == 1
        assert torch.equal(client(X), X)


def test_a_refusal_for_lack_of_room_is_waited_for_as_it_says(groups: list[Group]) -> None:
    party = groups[0].parties[0]
    party.refusals = [OverloadError("64 requests are waiting", retry_after=0.5) for _ in range(2)]
    with Client(groups[0].addresses, timeout=HANG) as client:
        began = time.monotonic()
        assert torch.equal(client(X), X) and time.monotonic() - began >= 1.0
    assert len(party.requests) == len({request.id for request in party.requests}) == 3


def test_a_refusal_for_lack_of_room_that_takes_longer_than_there_is_time_is_raised_at_once(groups: list[Group]) -> None:
    groups[0].parties[0].refusals = [OverloadError("no material", retry_after=2 * HANG)]
    with Client(groups[0].addresses, timeout=HANG) as client:
        with pytest.raises(OverloadError, match="no material") as caught:
            client(X)
        assert caught.value.retry_after == 2 * HANG and torch.equal(client(X), X)


@pytest.mark.slow
def test_the_last_attempt_s_lack_of_time_hides_no_reason(groups: list[Group]) -> None:
    party, over = groups[0].parties[0], threading.Event()

    def refuse(message: bytes, context: grpc.ServicerContext) -> bytes:
        if len(party.requests) == 0:
            party.requests.append(Request.read(message, party.service, 0))
            raise OverloadError("no material", retry_after=0.1)
        over.wait(HANG)
        raise OverloadError("its deadline passed while it waited")

    with Client(groups[0].addresses, timeout=HANG) as client:
        party.handle = refuse
        client._groups.timeout = 5.0  # enough for the first answer, and the second never comes
        with pytest.raises(OverloadError, match="no material"):
            client(X)
        over.set()


def test_who_has_little_time_gets_the_reason(groups: list[Group]) -> None:
    groups[0].parties[0].refusals = [LOST] * 10_000
    with Client(groups[0].addresses, timeout=HANG) as client:
        client._groups.timeout = 3.0  # enough for a refusal
        with pytest.raises(UnavailableError, match="party 1 was lost"):
            client(X)


def test_images_that_are_computed_together_do_not_go_in_several(groups: list[Group]) -> None:
    for party in groups[0].parties:
        party.service = replace(party.service, rowwise=False)
    with Client(groups[0].addresses, timeout=HANG) as client:
        with pytest.raises(InputError, match="9 images, .* computes images together, of which a request holds 8"):
            client(torch.zeros(9, 3))
        assert not client.sent_bytes and client(torch.zeros(8, 3)).shape == (8, 3)


def test_one_loop_asks_much_at_once(groups: list[Group]) -> None:
    """All requests are under way before the first is answered: each waits for the last one."""
    together = threading.Barrier(40)

    def ask(party: Party, message: bytes, context: grpc.ServicerContext) -> bytes:
        if party.rank == 0:
            together.wait(HANG)
        return Party.ask(party, message, context)

    for party in groups[0].parties:
        party.handle = partial(ask, party)

    async def all_of_them() -> list[torch.Tensor]:
        with Client(groups[0].addresses, timeout=HANG) as client:
            return await asyncio.gather(*(client.ask(X * (number / 64)) for number in range(40)))

    found = asyncio.run(all_of_them())
    assert all(torch.equal(result, X * (number / 64)) for number, result in enumerate(found))


def test_the_first_failure_ends_a_request(groups: list[Group]) -> None:
    """Another party that would never answer keeps nobody waiting, and its call is cancelled."""
    first, second = groups[0].parties
    began, cancelled = threading.Event(), threading.Event()

    def never(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(cancelled.set)
        began.set()
        cancelled.wait(NEVER)
        return b""

    def refuse(message: bytes, context: grpc.ServicerContext) -> bytes:
        began.wait(HANG)
        raise PeerError("party 0 never got its part")

    first.handle, second.handle = never, refuse
    with Client(groups[0].addresses, timeout=NEVER) as client:
        with pytest.raises(PeerError, match=r"never got its part \(at unix:.*/1\)"):
            client(X)
        assert cancelled.wait(HANG)


def test_who_asks_while_the_client_is_closed_is_told(groups: list[Group]) -> None:
    first, began = groups[0].parties[0], threading.Event()

    def ask(message: bytes, context: grpc.ServicerContext) -> bytes:
        over = threading.Event()
        context.add_callback(over.set)
        began.set()
        over.wait(HANG)
        return b""

    first.handle = ask
    client = Client(groups[0].addresses, timeout=NEVER)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client, X)
        assert began.wait(HANG)
        client.close()
        with pytest.raises(InputError, match="this client is closed"):
            asked.result(HANG)
    client.close()
    for ask_again in (lambda: client(X), lambda: asyncio.run(client.ask(X)), lambda: client.service):
        with pytest.raises(InputError, match="this client is closed"):
            ask_again()


def test_who_connects_while_the_client_is_closed_is_told(groups: list[Group]) -> None:
    """A loop that has not asked before connects anew, here to a socket where nobody answers any more."""
    addresses = groups[0].addresses
    client = Client(addresses, timeout=NEVER)
    for server in groups[0].servers:
        server.stop(0).wait(HANG)
    with socket.socket(socket.AF_UNIX) as silent, ThreadPoolExecutor(1) as pool:
        silent.settimeout(HANG)
        silent.bind(addresses[0].removeprefix("unix:"))
        silent.listen()
        asked = pool.submit(asyncio.run, client.ask(X))
        caller, _ = silent.accept()
        with caller:
            client.close()
            with pytest.raises(InputError, match="this client is closed"):
                asked.result(HANG)


def test_a_client_of_several_loops_and_none(groups: list[Group]) -> None:
    with Client(groups[0].addresses, timeout=HANG) as client:
        for _ in range(3):
            assert torch.equal(asyncio.run(client.ask(X)), X) and torch.equal(client(X), X)
        with pytest.raises(InputError, match="on the event loop that must answer it"):
            client(X, progress=lambda count: client(X))


@pytest.mark.slow
def test_a_program_that_closes_no_client_ends_in_silence(groups: list[Group]) -> None:
    program = f"""
import asyncio, torch
from hummingbird import Client
x = torch.zeros(1, 3)
client = Client({groups[0].addresses!r})
assert torch.equal(client(x), x) and torch.equal(asyncio.run(client.ask(x)), x)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_fork_of_a_process_that_has_asked_is_told(groups: list[Group]) -> None:
    program = f"""
import os, sys, torch
from hummingbird import Client
x = torch.zeros(1, 3)
with Client({groups[0].addresses!r}) as client:
    client(x)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    Client({groups[0].addresses!r})
except Exception as error:
    print(error)
"""
    done = python.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert done.stdout.startswith("gRPC's channels do not outlive a fork") and "hint: " in done.stdout
    assert "Traceback" not in done.stderr and done.returncode == 0  # gRPC logs a line on the fork itself


@pytest.mark.parametrize("parties", ["a:1", [], ["a:1"], [["a:1", "b:1"], ["c:1"]], [["a:1", "b:1"], "c:1"], 3])
def test_addresses_are_lists_or_lists_of_lists(parties: object) -> None:
    with pytest.raises(ConfigError, match="parties=|address"):
        Client(parties)  # type: ignore[arg-type]
