"""Parties with several lanes: right answers, each lane a session of its own, and failures that name party and lane."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from hummingbird.errors import ConfigError, DealerError, EnvironmentProblem
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.session.lanes import VARIABLE, LanePosition, environment
from tests.support.nursery import Nursery, Party, all_fail, error_of
from tests.support.parties import sessions
from tests.support.patience import NEVER, suspend
from tests.support.ports import free_port

LANES = 2


def finished(parties: list[Party]) -> list[dict[str, Any]]:
    """The output of every process, once all have ended well."""
    for party in parties:
        assert party.wait() == 0, party.err.read_text()
    return [json.loads(party.out.read_text()) for party in parties]


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_parties_with_two_lanes(nursery: Nursery, size: int):
    """Each lane its own rows, with a dealer that party 0 starts for all; results are gathered inside a party."""
    told = finished(nursery.start(["lanes"], size * LANES, **{VARIABLE: f"{LANES}"}))
    for rank, one in enumerate(told):
        party, lane = divmod(rank, LANES)
        assert one["place"] == [party, size, lane, LANES]
        assert one["names"] == [f"party {other}, lane {lane}" for other in range(size)]
        assert one["error"] < 2**-10  # 13 products of at most 2^-16 each
        assert one["gathered"] == (None if lane else [5 * LANES, True])
    assert len({one["seed"] for one in told}) == size * LANES, "two lanes have a seed of the dealer in common"


@pytest.mark.slow
def test_a_slow_lane_delays_no_other(nursery: Nursery, tmp_path: Path):
    """Two parties: lane 1 begins when lane 0 is done; the dealer, which lane 0 has started, is still there for it."""
    told = finished(nursery.start(["lanes", str(tmp_path)], 2 * LANES, **{VARIABLE: f"{LANES}"}))
    assert all(one["error"] < 2**-10 for one in told)


@pytest.mark.parametrize(("lanes", "near"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_lanes_of_a_party_on_several_hosts(nursery: Nursery, dealer: str, lanes: int, near: int):
    """Each host, here of `near` processes, has a port; lanes that share one get their connections from its first."""
    port, told = free_port(), []
    doors = [f"127.0.0.1:{free_port()}" for _ in range(2 * lanes // near)]
    for rank in range(2 * lanes):
        here = {"LOCAL_WORLD_SIZE": f"{near}", "LOCAL_RANK": f"{rank % near}", VARIABLE: f"{lanes}", "DEALER": dealer}
        told.append(nursery.fork(["lanes", "", doors[rank // near]], rank, 2 * lanes, port, **here))
    for rank, one in enumerate(finished(told)):
        party, lane = divmod(rank, lanes)
        assert one["place"] == [party, 2, lane, lanes] and one["error"] < 2**-10
        assert one["gathered"] == (None if lane else [5 * lanes, True])


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> dist.TCPStore:
    """A store that no party has with it when it dies, as torchrun's agent has one."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def under_way(nursery: Nursery, timeout: float, dealer: str, store: dist.TCPStore, spread: bool = False) -> list[Party]:
    """Two parties with two lanes in the middle of inference. spread: each lane is the only process of its host."""
    variables = {"DEALER": dealer, VARIABLE: f"{LANES}", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    variables |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"} if spread else {}
    doors = [[f"127.0.0.1:{free_port()}"] if spread else [] for _ in range(2 * LANES)]
    parties = [
        nursery.fork(["forever", f"{timeout:g}", *door], rank, 2 * LANES, store.port, **variables)
        for rank, door in enumerate(doors)
    ]
    for party in parties:
        party.until("running")
    return parties


def stop(parties: list[Party], what: str) -> list[str]:
    """Tell processes to stop, as torchrun does with those of a host where one has failed; their errors."""
    for party in parties:
        os.kill(party.pid, signal.SIGTERM)
    return all_fail(parties, what)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [False, True])
def test_a_killed_lane_is_named_by_all(nursery: Nursery, dealer: str, store: dist.TCPStore, spread: bool):
    parties = under_way(nursery, NEVER, dealer, store, spread)
    os.kill(parties[2].pid, signal.SIGKILL)
    cause = "party 1, lane 0 closed the connection: it ended or was killed (at party 0, lane 0"
    (first,) = all_fail(parties[:1], "the same lane of the other party")
    assert first.startswith(f"[party 0, lane 0] error: {cause}"), first
    (told,) = stop(parties[3:], "the other lane of the killed one's party")  # by its host's launcher
    assert f"[party 1, lane 1] error: this party was told to stop (SIGTERM), after a failure: {cause}" in told, told
    (last,) = all_fail([parties[1]], "the other lane of the other party")
    assert last.startswith("[party 0, lane 1] error: party 1, lane 1 stopped: ") and cause in last, last
    parties[2].wait()


@pytest.mark.slow
def test_a_silent_lane_is_named_by_all(nursery: Nursery, dealer: str, store: dist.TCPStore):
    seconds = 8.0  # which no lane that is well runs into
    parties = under_way(nursery, seconds, dealer, store)
    suspend(parties[2].pid)
    cause = f"party 1, lane 0 sent or took nothing for {seconds:g} s (at party 0, lane 0"
    (first,) = all_fail(parties[:1], "the same lane of the other party")
    assert cause in first
    assert all(cause in text for text in stop([parties[1], parties[3]], "the other lanes"))
    os.kill(parties[2].pid, signal.SIGCONT)
    assert error_of(parties[2], parties[2].wait())


def test_parties_that_disagree_on_lanes(nursery: Nursery, dealer: str):
    """One host gives 2, the other 1, in a world of 4; all hear of it, with both sides."""
    job, port = ["meet", f"{NEVER:g}"], free_port()
    lanes = ["2", "2", "1", "1"]
    parties = [nursery.fork(job, rank, 4, port, DEALER=dealer, **{VARIABLE: lanes[rank]}) for rank in range(4)]
    for rank, text in enumerate(all_fail(parties, "two numbers of lanes")):
        mine, other, theirs = (2, 2, 1) if rank < 2 else (1, 0, 2)
        assert f"disagree on lanes: rank {rank} has {mine}, rank {other} has {theirs}" in text, text
        assert VARIABLE in text


# The environment ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Variables of rank 3 of 6, all on one host."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(VARIABLE, raising=False)
    return monkeypatch


def test_a_place(torchrun: pytest.MonkeyPatch):
    assert environment() == LanePosition(3, 6, 0, 1) and environment().name == "party 3"
    assert environment(2) == LanePosition(1, 3, 1, 2) and environment(2).name == "party 1, lane 1"
    torchrun.setenv(VARIABLE, "3")
    assert environment() == LanePosition(1, 2, 0, 3)
    assert environment(2) == LanePosition(1, 3, 1, 2), "an argument goes before the variable"
    assert environment(2).rank == 3 and environment(2).world == 6


@pytest.mark.parametrize("lanes", [0, -1, "x", "2", 2.0, True])
def test_lanes_that_are_no_number(torchrun: pytest.MonkeyPatch, lanes: Any):
    with pytest.raises(ConfigError, match=r"lanes=.* \(at lanes\)\nhint: "):
        environment(lanes)


@pytest.mark.parametrize("value", ["abc", "0", "-2", "", "2.5"])
def test_a_variable_that_is_no_number(torchrun: pytest.MonkeyPatch, value: str):
    torchrun.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match=rf"lanes=.* \(at {VARIABLE}\)\nhint: "):
        environment()


def test_a_world_that_lanes_do_not_divide(torchrun: pytest.MonkeyPatch):
    with pytest.raises(
        ConfigError, match=r"WORLD_SIZE=6 is no multiple of lanes=4 \(at lanes\)\nhint: .* 8 for two parties"
    ):
        environment(4)
    torchrun.setenv("LOCAL_WORLD_SIZE", "3")
    assert environment(3) == LanePosition(1, 2, 0, 3)
    with pytest.raises(EnvironmentProblem, match="LOCAL_WORLD_SIZE=3 is neither a multiple of lanes=2 nor a divisor"):
        environment(2)
    assert environment(6) == LanePosition(0, 1, 3, 6, 3) and environment(6).first == 3 and environment(6).spread
    torchrun.setenv("LOCAL_WORLD_SIZE", "1")
    assert environment(2) == LanePosition(1, 3, 1, 2, 1) and environment(2).first == 1
    assert environment(1) == LanePosition(3, 6, 0, 1)
    torchrun.delenv("RANK")
    torchrun.delenv("WORLD_SIZE")
    torchrun.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(ConfigError, match="WORLD_SIZE=1 is no multiple"):
        environment(2)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_variables_that_are_no_numbers(torchrun: pytest.MonkeyPatch, name: str):
    torchrun.setenv(name, "many")
    with pytest.raises(EnvironmentProblem, match=f"{name} is many, and not a number"):
        environment()


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (None, "the connection is lost"),
        ("the connection is lost (at dealer unix:d)", "the connection is lost"),
        ("party 1 was killed", "the connection is lost, after a failure: party 1 was killed"),
    ],
)
def test_a_dealer_that_another_lane_took_with_it(noted: str | None, expected: str) -> None:
    """Its end is heard of before the failure that caused it; both are named."""

    class Gone:
        def correlation(self, request: object) -> None:
            raise DealerError("the connection is lost", where="dealer unix:d", hint="did it end?")

    session = sessions(1)[0]
    session.dealer, session.failure = cast("Any", Gone()), lambda: noted
    with pytest.raises(DealerError) as caught:
        session.correlation(And(1, 8))
    assert (caught.value.what, caught.value.where) == (expected, "dealer unix:d")
