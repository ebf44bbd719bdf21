"""The meeting in a store: everybody gets the same roll, and none that the dead have left behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hummingbird.channel.handshake import listen
from hummingbird.errors import AgreementError, ConfigError, EnvironmentProblem, PeerError, TrustError
from hummingbird.mpc.session import listener, meeting, rendezvous
from hummingbird.mpc.session.lanes import LanePosition
from hummingbird.mpc.session.listener import Listener
from hummingbird.mpc.session.meeting import Card, Late, Meeting, attend, read_roll, run_store, serve_store
from hummingbird.mpc.session.shared_port import SharedPort
from hummingbird.rpc.signals import Flag, ends_waits
from tests.channel.test_channel import run
from tests.channel.test_one_port import needs_ipv6
from tests.support import python
from tests.support.parties import channels, together
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, until
from tests.support.ports import free_port


def arrive(store: dist.Store, rank: int, world: int, seconds: float = HANG, lanes: int = 1) -> tuple[Card, Meeting]:
    """One process at the meeting: its card, and what it gets."""
    card = Card(f"127.0.0.1:{7000 + rank}", lanes)
    return card, attend(store, rank, world, card, time.monotonic() + seconds, lambda: "unix:/dealer")


def arriving(store: dist.Store, ranks: list[int], world: int) -> list[Callable[[], Any]]:
    return [lambda rank=rank: arrive(store, rank, world) for rank in ranks]  # type: ignore[misc]


def test_all_get_the_same_roll() -> None:
    came = together(arriving(dist.HashStore(), [2, 0, 3, 1], 4))
    for _, met in came:
        assert met.cards == [came[place][0] for place in (1, 3, 0, 2)]
        assert (met.token, met.dealer) == (came[0][1].token, "unix:/dealer")
    assert came[0][0].endpoint == ("127.0.0.1", 7002)


def test_no_two_meetings_have_anything_in_common() -> None:
    """`init` again, in the same processes."""
    store = dist.HashStore()
    meetings = [together(arriving(store, [0, 1], 2))[0][1] for _ in range(2)]
    assert meetings[0].token != meetings[1].token
    meetings[0].store.set("note", "of the first")
    assert not meetings[1].store.check(["note"])


def test_who_comes_back_is_not_taken_in_by_the_meeting_of_the_dead() -> None:
    """Rank 1 has died after the meeting and is back before rank 0 has noticed: it waits for rank 0 to call again."""
    store = dist.HashStore()
    (_, dead), _ = together(arriving(store, [0, 1], 2))

    def rank_0() -> Any:
        until(lambda: json.loads(dead.store.get("card/1"))["nonce"] != dead.cards[1].nonce, "rank 1 to come back")
        return arrive(store, 0, 2)

    (card, first), (other, second) = together([lambda: arrive(store, 1, 2), rank_0])
    assert first.token == second.token != dead.token and first.cards == [other, card]


def test_a_card_of_the_dead_is_replaced() -> None:
    """Rank 1 has died, and is back, while rank 0 still waits for rank 2."""
    store = dist.HashStore()
    here = dist.PrefixStore("1", store)
    dead = Card("127.0.0.1:1", 1)

    def rank_1() -> Any:
        until(lambda: here.check(["card/0"]), "rank 0's call")
        here.set("card/1", json.dumps(asdict(dead)))
        return arrive(store, 1, 3)

    def rank_2() -> Any:
        until(lambda: here.check(["card/1"]) and json.loads(here.get("card/1"))["nonce"] != dead.nonce, "rank 1")
        return arrive(store, 2, 3)

    first, second, third = together([*arriving(store, [0], 3), rank_1, rank_2])
    assert first[1].cards == second[1].cards == third[1].cards == [first[0], second[0], third[0]]


def test_the_missing_are_named() -> None:
    store, seconds = dist.HashStore(), 0.2
    with pytest.raises(Late, match=r"\[0\]"):  # nobody has called
        arrive(store, 2, 4, seconds)
    dist.PrefixStore("1", store).set("card/2", json.dumps(CARD))
    for rank in (0, 2):
        with pytest.raises(Late) as caught:
            arrive(store, rank, 4, seconds)
        assert caught.value.missing == [1, 3]


CARD = asdict(Card("127.0.0.1:7000", 2))
ROLLS: dict[str, Any] = {
    "no JSON": "}",
    "no object": [],
    "too few": {"cards": [CARD], "token": "00" * 16, "dealer": ""},
    "a short token": {"cards": [CARD] * 2, "token": "00", "dealer": ""},
    "no port": {"cards": [CARD, CARD | {"address": "127.0.0.1"}], "token": "00" * 16, "dealer": ""},
    "a port above all": {"cards": [CARD, CARD | {"address": "127.0.0.1:65536"}], "token": "00" * 16, "dealer": ""},
    "no corridor": {"cards": [CARD, CARD | {"corridor": None}], "token": "00" * 16, "dealer": ""},
    "lanes in words": {"cards": [CARD, CARD | {"lanes": "2"}], "token": "00" * 16, "dealer": ""},
    "no dealer": {"cards": [CARD] * 2, "token": "00" * 16, "dealer": None},
}


@pytest.mark.parametrize("name", ROLLS)
def test_a_malformed_roll_is_refused(name: str) -> None:
    store, roll = dist.HashStore(), ROLLS[name]
    store.set("roll", roll if isinstance(roll, str) else json.dumps(roll))
    with pytest.raises(AgreementError, match="a list of 2 processes"):
        read_roll(store.get("roll"), store, 2)


def test_a_roll_is_read() -> None:
    store = dist.HashStore()
    store.set("roll", json.dumps({"cards": [CARD] * 2, "token": "00" * 16, "dealer": ""}))
    assert read_roll(store.get("roll"), store, 2).cards == [Card(**CARD)] * 2


# Who else can write into the store -----------------------------------------------------------------------------------


def reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=HANG).close()
    except OSError:
        return False
    return True


STORE = """
import sys, time
from hummingbird.mpc.session.meeting import run_store
store = run_store(0, 2, time.monotonic() + 60, 60.0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("master, others", [("127.0.0.1", ["127.0.0.2", "::1"]), ("::1", ["127.0.0.1"])])
def test_the_store_listens_at_the_address_of_MASTER_ADDR_alone(master: str, others: list[str]) -> None:
    if master == "::1" and needs_ipv6.args[0]:
        pytest.skip("this host has no IPv6 loopback")
    port = free_port()
    variables = {"MASTER_ADDR": master, "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STORE]
    with python.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert reached(master, port)
        assert [host for host in others if reached(host, port)] == []
        process.communicate()


def test_a_store_at_an_address_of_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # for documentation: no host has it
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(EnvironmentProblem, match="MASTER_ADDR=192.0.2.1 is no address of this host"):
        run_store(0, 2, time.monotonic() + HANG, HANG)


@pytest.mark.parametrize("closes", [True, False])
def test_a_store_that_takes_connections_and_does_not_answer_keeps_nobody_from_stopping(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Its host is dying, or suspended; once it is back, the party finds it."""
    server, told, links = listen("127.0.0.1"), Flag(), []
    port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))

    def dying() -> None:
        for _ in range(2):  # the first one only looks whether somebody listens
            link, _ = server.accept()
            link.close() if closes else links.append(link)
        told.set()

    def party() -> None:
        with ends_waits(told), pytest.raises(PeerError, match="told to stop"):
            run_store(1, 2, time.monotonic() + NEVER, NEVER)

    together([party, dying])
    for link in [server, *links]:
        link.close()
    host = serve_store("127.0.0.1", port, timedelta(seconds=HANG))
    assert run_store(1, 2, time.monotonic() + HANG, HANG).add("here", 1) == 1
    del host


SILENT = """
import os, threading, time
from hummingbird.channel.handshake import listen
from hummingbird.errors import PeerError
from hummingbird.mpc.session.meeting import run_store
from hummingbird.rpc.signals import Flag, ends_waits
server, told = listen("127.0.0.1"), Flag()
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(server.getsockname()[1]))
def dying():
    for _ in range(2):
        server.accept()[0].close()
    told.set()
threading.Thread(target=dying, daemon=True).start()
try:
    with ends_waits(told):
        run_store(1, 2, time.monotonic() + 600, 600.0)
except PeerError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_process_told_to_stop_ends_well_though_the_store_is_silent() -> None:
    """The store's host closes its connections only as the process ends: torch must not abort it."""
    done = subprocess.run(
        [sys.executable, "-c", SILENT], env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, timeout=HANG
    )
    assert done.returncode == 0 and "told to stop" in done.stdout


class Forged:
    """A store into which somebody else writes: what these keys hold is changed before it is read."""

    def __init__(self, store: dist.Store, key: str, change: Callable[[Any], Any]) -> None:
        self.store, self.key, self.change = store, key, change

    def get(self, key: str) -> bytes:
        value: bytes = self.store.get(key)
        return json.dumps(self.change(json.loads(value))).encode() if key == self.key else value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def forging(monkeypatch: pytest.MonkeyPatch, key: str, change: Callable[[Any], Any], who: Callable[[], bool]) -> None:
    """Have one of the parties' threads read a forged value."""
    real = meeting._at
    monkeypatch.setattr(meeting, "_at", lambda *at: Forged(real(*at), key, change) if who() else real(*at))


def renamed(roll: Any) -> Any:
    return roll | {"dealer": "unix:/tmp/mallory/dealer.sock"}


def moved(rank: int) -> Callable[[Any], Any]:
    def change(roll: Any) -> Any:
        roll["cards"][rank]["address"] = "192.0.2.1:7000"
        return roll

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (renamed, "the dealer that party 0 has started: party {} has unix:/"),
        (moved(0), "the address of party 0: party {} has "),
        (moved(2), "the address of party 2: party {} has "),
    ],
)
def test_parties_that_were_told_different_things_name_both_sides(change: Callable[[Any], Any], words: str) -> None:
    """One of three reads a forged roll. All others, and it, end with what both have."""
    true = together(arriving(dist.HashStore(), [0, 1, 2], 3))
    meetings = [came[1] for came in true]
    roll = {"cards": [asdict(c) for c in meetings[0].cards], "token": meetings[0].token.hex(), "dealer": "unix:/dealer"}
    store = dist.HashStore()
    store.set("roll", json.dumps(change(roll)))
    meetings[1] = read_roll(store.get("roll"), store, 3)
    pairs = channels(3)
    errors = run(
        [lambda r=r: rendezvous.agree_on_roll(pairs[r], meetings[r], LanePosition(r, 3, 0, 1)) for r in range(3)]  # type: ignore[misc]
    )
    for rank, error in enumerate(errors):
        assert isinstance(error, AgreementError), errors
        assert words.format(rank) in str(error) and "MASTER_PORT" in error.hint
        assert f"party {1 if rank != 1 else 0} has " in str(error)


def test_parties_that_were_told_the_same_agree() -> None:
    meetings = [came[1] for came in together(arriving(dist.HashStore(), [0, 1], 2))]
    pairs = channels(2)
    together(
        [lambda r=r: rendezvous.agree_on_roll(pairs[r], meetings[r], LanePosition(r, 2, 0, 1)) for r in range(2)]  # type: ignore[misc]
    )


def test_rank_0_believes_its_own_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what somebody has made of it: it would follow that to another dealer as the others do."""
    forging(monkeypatch, "roll", renamed, lambda: True)
    (_, first), (_, second) = together(arriving(dist.HashStore(), [0, 1], 2))
    assert (first.dealer, second.dealer) == ("unix:/dealer", "unix:/tmp/mallory/dealer.sock")


def test_a_process_notices_another_address_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    forging(monkeypatch, "roll", moved(1), lambda: True)
    first, second = run(arriving(dist.HashStore(), [0, 1], 2))
    assert isinstance(second, AgreementError), second
    assert "says 192.0.2.1:7000, lanes=1 of rank 1, which itself says 127.0.0.1:7001, lanes=1" in str(second)


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "unix:dealer", "unix:{folder}/dealer.sock"])
def test_a_dealer_that_another_has_named_is_refused(tmp_path: Path, address: str) -> None:
    """Party 0 starts one in a folder that nobody else can enter."""
    tmp_path.chmod(0o755)
    where = address.format(folder=tmp_path)
    with pytest.raises(TrustError):
        rendezvous._check_own_dealer(where, LanePosition(1, 2, 0, 1))
    tmp_path.chmod(0o700)
    rendezvous._check_own_dealer(f"unix:{tmp_path}/dealer.sock", LanePosition(1, 2, 0, 1))


# Doors ----------------------------------------------------------------------------------------------------------------


def test_what_a_party_listens_at_and_what_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    port = free_port()
    for listens, address, host, told in (
        (None, None, "127.0.0.1", "127.0.0.1:{}"),
        (f"127.0.0.2:{port}", None, "127.0.0.2", f"127.0.0.2:{port}"),
        (f"0.0.0.0:{port}", None, "0.0.0.0", f"127.0.0.1:{port}"),
        (f"0.0.0.0:{port}", "party.example:443", "0.0.0.0", "party.example:443"),
        (f"0.0.0.0:{port}", "[2001:db8::1]:443", "0.0.0.0", "[2001:db8::1]:443"),
    ):
        server, says = Listener.of(listens, address).open(2)
        with server:
            assert server.getsockname()[0] == host and says == told.format(server.getsockname()[1])


@needs_ipv6
def test_a_door_at_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "::1")
    assert listener.own_address(2) == "::1"
    port = free_port()
    for listens in (f"[::1]:{port}", f"[::]:{port}"):
        server, says = Listener.of(listens, None).open(2)
        with server:
            assert says == f"[::1]:{port}" and Card(says, 1).endpoint == ("::1", port)


def test_doors_that_cannot_be() -> None:
    for listens, address, words in (
        (None, "party.example:443", "peer_address='party.example:443' without peer_listen"),
        ("7000", None, "peer_listen='7000' is no address"),
        (7000, None, "peer_listen=7000 is no address"),
        ("0.0.0.0:7000", "::1:7000", "peer_address='::1:7000' is no address"),
    ):
        with pytest.raises(ConfigError, match=words):
            Listener.of(listens, address)
    with listen("127.0.0.1") as taken:
        with pytest.raises(EnvironmentProblem, match="cannot listen at 127.0.0.1:.*in use"):
            Listener.of(f"127.0.0.1:{taken.getsockname()[1]}", None).open(2)
    with pytest.raises(EnvironmentProblem, match="cannot listen at 192.0.2.1:7000"):
        Listener.of("192.0.2.1:7000", None).open(2)


# The lanes of a party -------------------------------------------------------------------------------------------------


def corridors(lanes: int, seconds: float) -> list[Any]:
    """Every lane's end, and what came of its joining."""
    ends = [SharedPort.open(LanePosition(0, 2, lane, lanes)) for lane in range(lanes)]
    deadline = time.monotonic() + seconds
    return [(end, lambda end=end: end.join(ends[0].path, deadline)) for end in ends]


def test_lanes_of_a_host_join_their_first() -> None:
    found = corridors(3, HANG)
    together([join for _, join in found])
    assert sorted(found[0][0].links) == [1, 2] and list(found[2][0].links) == [0]
    assert not Path(found[0][0].path).parent.exists()
    for end, _ in found:
        end.close()


def test_lanes_of_a_host_join_the_first_one_there() -> None:
    """Six lanes of party 1 on three hosts: lanes 2 and 3 share the second one, and lane 2 listens."""
    places = [LanePosition(1, 2, lane, 6, 2) for lane in range(6)]
    assert [place.first for place in places] == [0, 0, 2, 2, 4, 4] and all(place.spread for place in places)
    assert [*places[3].here] == [2, 3] and places[3].rank == 9
    first, second = (SharedPort.open(places[lane]) for lane in (2, 3))
    together([lambda: first.join(first.path, time.monotonic() + HANG), lambda: second.join(first.path, HANG + 1e9)])
    assert [*first.links] == [3] and [*second.links] == [2]
    alone = SharedPort.open(LanePosition(1, 2, 3, 4, 1))
    alone.join("", time.monotonic())  # no other lane is here
    for end in (first, second, alone):
        end.close()


@pytest.mark.parametrize("spread", [False, True])
def test_lane_0_listens_for_its_party_s_lanes_where_they_are(spread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback, or at the address of `peer_listen`; without that, not on loopback if lanes are on other hosts."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2" if spread else "8")
    place = LanePosition(0, 2, 0, 4, 2 if spread else 0)
    server, address = Listener.of("127.0.0.2:7000", None).open_star(place)
    server.close()
    assert address.startswith("127.0.0.2:" if spread else "127.0.0.1:")
    if spread:
        with pytest.raises(EnvironmentProblem, match="loopback"):
            Listener().open_star(place)
    else:
        Listener().open_star(place)[0].close()


def test_lanes_on_several_hosts_need_certificates() -> None:
    """Results would cross the party's own network in clear."""
    cards = [Card("192.0.2.1:7000", 2, star="192.0.2.1:7001"), Card("192.0.2.2:7000", 2)] * 2
    met = Meeting(dist.HashStore(), cards, bytes(16), "")
    with pytest.raises(TrustError, match="the lanes of party 1 are on several hosts, and there are no certificates"):
        rendezvous._link_lanes(met, None, LanePosition(1, 2, 1, 2, 1), None, NEVER)


def test_hosts_with_unequal_parts_of_a_party_are_named() -> None:
    cards = [Card("192.0.2.1:7000", 6, near=3), *[Card("", 6, near=3)] * 2, *[Card("192.0.2.2:7000", 6, near=2)] * 3]
    met = Meeting(dist.HashStore(), cards * 2, bytes(16), "")
    with pytest.raises(AgreementError, match="rank 7 is one of 3 lanes on its host, rank 9 one of 2"):
        rendezvous._agree_on_lanes(met, LanePosition(1, 2, 1, 6, 3))


def test_a_lane_that_does_not_come_is_named() -> None:
    (first, join), (second, _), (third, other) = corridors(3, 1.0)
    error, _ = run([join, other])
    assert isinstance(error, PeerError) and str(error).startswith("party 0, lane 1 did not join"), error
    for end in (first, second, third):
        end.close()


def test_a_corridor_of_somebody_else_is_not_entered(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(TrustError, match="is not a folder of this user alone"):
        SharedPort(LanePosition(0, 2, 1, 2)).join(f"{tmp_path}/lanes", time.monotonic() + HANG)
