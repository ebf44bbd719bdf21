"""Parties behind firewalls: one direction is enough, one port takes all connections, and addresses may be IPv6."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hummingbird.channel import connect as connecting
from hummingbird.channel.handshake import Hello, listen
from hummingbird.errors import PeerError
from hummingbird.prg import new_seed
from tests.channel.test_channel import run
from tests.channel.test_connect import Authority, authorities, meet, secured
from tests.support.covering import covering
from tests.support.patience import HANG, NEVER

__all__ = ["authorities"]  # a fixture


class Silent:
    """An address that takes connections and says nothing, as a wrong host's may."""

    def __enter__(self) -> tuple[str, int]:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=64)
        return self.server.getsockname()[:2]

    def __exit__(self, *_: object) -> None:
        self.server.close()


class Refusing(Silent):
    """An address where nobody listens."""

    def __enter__(self) -> tuple[str, int]:
        address = super().__enter__()
        self.server.close()
        return address


class Chatting(Silent):
    """Another program's, which says something else, and closes."""

    def __enter__(self) -> tuple[str, int]:
        address = super().__enter__()

        def chat() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = self.server.accept()
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian")
                    connection.close()

        threading.Thread(target=chat, daemon=True).start()
        return address


@covering("how, blocked, secure", [Silent, Refusing, Chatting], [0, 1], [False, True])
def test_one_direction_is_enough(
    authorities: tuple[Authority, Authority],
    monkeypatch: pytest.MonkeyPatch,
    how: type[Silent],
    blocked: int,
    secure: bool,
) -> None:
    """The address that the other party is told leads elsewhere; this one reaches it, and both send and receive."""
    monkeypatch.setattr(connecting, "loopback", lambda host: False)  # as on another host
    tls = secured(2, authorities[0]) if secure else None
    with how() as address:
        assert meet(2, tls=tls, told={blocked: address}) == [{1: 1}, {0: 0}]


@pytest.mark.parametrize("secure", [False, True])
def test_one_of_four_can_be_reached_by_nobody(authorities: tuple[Authority, Authority], secure: bool) -> None:
    everybody = range(4)
    tls = secured(4, authorities[0]) if secure else None
    with Silent() as address:
        results = meet(4, tls=tls, told={2: address})
    assert results == [{peer: peer for peer in everybody if peer != rank} for rank in everybody]


def test_an_offer_in_vain_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both connections of a pair are called for by both parties."""
    monkeypatch.setattr(connecting, "_HEAD_START", 0.0)
    for _ in range(10):
        assert meet(3) == [{1: 1, 2: 2}, {0: 0, 2: 2}, {0: 0, 1: 1}]


def test_parties_that_cannot_reach_each_other_name_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with Silent() as one, Silent() as other:
        errors = meet(2, 1.0, told={0: one, 1: other})
    for rank, error in enumerate(errors):
        assert isinstance(error, PeerError) and error.where == f"party {rank}"
        assert f"parties [{1 - rank}] did not connect within 1 s" in str(error)
        assert f"127.0.0.1:{one[1]}" in str(error) and f"127.0.0.1:{other[1]}" in str(error)
    monkeypatch.setattr(connecting, "loopback", lambda host: False)
    monkeypatch.setattr(connecting, "_PATIENCE", 1.0)
    with Refusing() as one, Refusing() as other:  # given up before the timeout
        errors = meet(2, told={0: one, 1: other})
    told = [str(error) for error in errors]
    assert all(isinstance(error, PeerError) for error in errors), errors
    assert any(f"127.0.0.1:{one[1]}" in text and f"127.0.0.1:{other[1]}" in text for text in told), told
    assert any("cannot connect to party" in text and "nor has it connected to party" in text for text in told), told


def has_ipv6() -> bool:
    try:
        listen("::1").close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback")


@needs_ipv6
@pytest.mark.parametrize("secure", [False, True])
def test_parties_meet_over_ipv6(authorities: tuple[Authority, Authority], secure: bool) -> None:
    tls = secured(2, authorities[0]) if secure else None
    assert meet(2, tls=tls, host="::1") == [{1: 1}, {0: 0}]


@needs_ipv6
def test_a_port_of_all_addresses_takes_both_families() -> None:
    with listen("::") as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.getsockname()[1]), timeout=HANG).close()
    with pytest.raises(PeerError, match=r"cannot connect to party 1 at \[::1\]:9: "):
        connecting.connect(0, [("::1", 7), ("::1", 9)], listen("::1"), new_seed(), NEVER)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("parties, blocked", [(2, ()), (3, ()), (2, (1,))])
def test_all_lanes_of_a_party_share_its_port(
    authorities: tuple[Authority, Authority], parties: int, blocked: Sequence[int], secure: bool
) -> None:
    """Three lanes of each party: lane 0 has the port, the others are given their connections."""
    lanes, tokens = range(3), [new_seed() for _ in range(3)]
    servers = [listen("127.0.0.1") for _ in range(parties)]
    tls = secured(parties, authorities[0]) if secure else [None] * parties
    pairs = {(party, lane): socket.socketpair() for party in range(parties) for lane in lanes[1:]}

    with Silent() as nowhere:
        addresses = [nowhere if party in blocked else s.getsockname()[:2] for party, s in enumerate(servers)]

        def join(party: int, lane: int) -> Any:
            if lane == 0:
                server, links = servers[party], {other: (tokens[other], pairs[party, other][0]) for other in lanes[1:]}
            else:
                server, links = None, {0: (tokens[0], pairs[party, lane][1])}
            made = connecting.connect(party, addresses, server, tokens[lane], HANG, tls[party], lane, links)
            try:
                got = made.exchange(torch.tensor([party, lane]))
                return {peer: said.tolist() for peer, (said,) in got.items()}
            finally:
                made.close()

        places = [(party, lane) for party in range(parties) for lane in lanes]
        results = run([lambda p=p, g=g: join(p, g) for p, g in places])
    for (party, lane), got in zip(places, results, strict=True):
        assert got == {peer: [peer, lane] for peer in range(parties) if peer != party}
    assert all(end.fileno() == -1 for pair in pairs.values() for end in pair)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_lane_that_dies_while_they_meet_is_named_by_the_other(dies: int) -> None:
    ours, theirs = socket.socketpair()
    address = ("127.0.0.1", 9)
    with Silent() as other:
        theirs.close()
        server = None if dies == 0 else listen("127.0.0.1")
        links = {dies: (new_seed(), ours)}
        with pytest.raises(PeerError, match=f"^party 0, lane {dies} ended while the parties met"):
            connecting.connect(0, [address, other], server, new_seed(), NEVER, None, 1 - dies, links)


# Lane 0 of a party and its other lanes --------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_lanes_are_connected_with_lane_0(authorities: tuple[Authority, Authority], secure: bool) -> None:
    """All have certificates of one party; the other lanes listen nowhere."""
    names = [f"party 1, lane {lane}" for lane in range(3)]
    server, token = listen("127.0.0.1"), new_seed()
    address = server.getsockname()[:2]
    contexts = [authorities[0].issue("party-1").contexts() if secure else None for _ in names]

    def join(lane: int) -> Any:
        tls = contexts[lane]
        own = server if lane == 0 else None
        made = connecting.star(lane, names, address, own, token, HANG, "party-1", tls)
        try:
            assert made.names == names
            if lane:
                made.send(0, torch.tensor([lane]))
                return made.receive(0, [torch.zeros(2)])[0].tolist()
            heard = [int(made.receive(other, [torch.tensor([0])])[0]) for other in (1, 2)]
            for other in (1, 2):
                made.send(other, torch.full((2,), float(other)))
            return heard
        finally:
            made.close()

    assert run([lambda lane=lane: join(lane) for lane in range(3)]) == [[1, 2], [1.0, 1.0], [2.0, 2.0]]


def test_a_process_of_another_party_is_no_lane(authorities: tuple[Authority, Authority]) -> None:
    names, token = ["party 1, lane 0", "party 1, lane 1"], new_seed()
    server = listen("127.0.0.1")
    address = server.getsockname()[:2]
    contexts = [authorities[0].issue(f"party-{1 - lane}").contexts() for lane in range(2)]

    def join(lane: int) -> None:
        tls, own = contexts[lane], None if lane else server
        connecting.star(lane, names, address, own, token, NEVER if lane else 2.0, "party-1", tls)

    first, second = run([lambda: join(0), lambda: join(1)])
    assert isinstance(first, PeerError) and isinstance(second, PeerError)
    assert str(first).startswith("party 1, lane 1 did not connect within 2 s: lane 0 listens at 127.0.0.1:")
    assert "the last connection refused was one from 127.0.0.1" in str(first), first
    assert "party 1, lane 0 closed the connection" in str(second), second


def test_a_lane_that_leaves_after_the_answer_may_call_again() -> None:
    """Lane 0 cannot call it back: it waits for it, and names it at the end."""
    names, token = ["party 0, lane 0", "party 0, lane 1"], new_seed()
    server = listen("127.0.0.1")
    address = server.getsockname()[:2]

    def leaves() -> None:
        call = Hello(1, 0, True)
        with socket.create_connection(address, timeout=HANG) as connection:
            connection.sendall(call.hello(token))
            assert connection.recv(16) == call.answer(token)

    first, second = run([lambda: connecting.star(0, names, address, server, token, 2.0, "party-0"), leaves])
    assert second is None and isinstance(first, PeerError)
    assert str(first).startswith("party 0, lane 1 did not connect within 2 s: lane 0 listens at 127.0.0.1:"), first
