"""Branches: tensors of all of them in one frame, one round, each its own part of what comes back, in a fixed order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hummingbird.channel import meter
from hummingbird.channel.branches import Branches
from hummingbird.channel.channel import Channel
from hummingbird.channel.interleave import Interleave
from hummingbird.errors import AgreementError
from tests.support.parties import channels, together

HEADER = 20


def words(count: int, dtype: torch.dtype, value: int) -> Tensor:
    return torch.full((count,), value, dtype=dtype)


def talk(name: int, rounds: int, log: list[str]) -> Callable[[Channel], list[int]]:
    """A branch that sends its rank, and 8-bit numbers of an odd count before words, `rounds` times."""

    def function(channel: Channel) -> list[int]:
        found = []
        for number in range(rounds):
            log.append(f"{name}.{number}")
            mine = 10 * name + channel.rank
            got = channel.exchange(words(2 * name + 1, torch.uint8, mine), words(2, torch.int64, -mine))
            for octets, long in got.values():
                assert octets.shape == (2 * name + 1,) and long.tolist() == [-int(octets[0])] * 2
                found.append(int(octets[0]))
        return found

    return function


def run(channel: Channel, lengths: list[int], log: list[str]) -> list[Any]:
    results: list[Any] = [None] * len(lengths)
    with Branches(channel) as branches:
        for name, rounds in enumerate(lengths):
            done = lambda value, name=name: results.__setitem__(name, value)  # noqa: E731
            branches.begin(f"layer {name}", talk(name, rounds, log), done, leads=name == 1)
        while branches.at_work:
            branches.exchange()
    return results


@pytest.mark.parametrize("parties", [2, 3])
def test_every_branch_gets_its_own_and_the_rounds_are_those_of_the_longest(parties: int) -> None:
    made, logs, lengths = channels(parties), [list[str]() for _ in range(parties)], [1, 3, 0, 2]
    with meter.meter() as m:
        found = together([lambda c=c, log=log: run(c, lengths, log) for c, log in zip(made, logs, strict=True)])
    for rank, results in enumerate(found):
        others = [other for other in range(parties) if other != rank]
        assert results == [[10 * name + other for _ in range(n) for other in others] for name, n in enumerate(lengths)]
    assert all(log == ["0.0", "1.0", "3.0", "1.1", "3.1", "1.2"] for log in logs)
    own = [8 * (parties - 1) * parties * rounds * (2 * name + 1 + 16) for name, rounds in enumerate(lengths)]
    headers = 8 * (parties - 1) * parties * HEADER * 3
    bits = {row.layer: (row.bits_sent, row.rounds) for row in m.rows.values()}
    leader = (own[1] + headers, 3 * parties)
    assert bits == {"layer 0": (own[0], 0), "layer 1": leader, "layer 3": (own[3], 0)}


def test_without_a_leader_the_first_one_counts() -> None:
    made = channels(2)
    with meter.meter() as m:
        together([lambda c=c: run(c, [2], []) for c in made])
    assert m.rows["layer 0"].rounds == 4 and m.total.bits_sent == 2 * 2 * 8 * (HEADER + 17)


def test_the_slices_of_a_net_take_their_turns_at_every_exchange() -> None:
    made, logs = channels(2), [list[str](), list[str]()]

    def both(rank: int) -> list[Any]:
        return Interleave().run([lambda: run(made[rank], [2, 1], logs[rank])] * 2)

    assert together([lambda: both(0), lambda: both(1)]) == [[[[1, 1], [11]]] * 2, [[[0, 0], [10]]] * 2]
    assert logs[0] == logs[1] == ["0.0", "1.0"] * 2 + ["0.1"] * 2


def test_the_first_error_ends_all_branches_and_their_threads() -> None:
    made = channels(2)

    def fails(channel: Channel) -> None:
        channel.exchange(torch.zeros(1))
        raise ValueError("of this layer")

    def party(channel: Channel) -> None:
        with Branches(channel) as branches:
            branches.begin("a", talk(0, 5, []), lambda value: None)
            branches.begin("b", fails, lambda value: None)
            branches.begin("c", talk(2, 5, []), lambda value: None)
            while branches.at_work:
                branches.exchange()

    with pytest.raises(ValueError, match="of this layer"):
        together([lambda c=c: party(c) for c in made])
    assert not any(thread.name == "hummingbird-branch" for thread in threading.enumerate()), "threads of branches stay"


def test_a_layer_that_computes_when_a_signal_comes_ends_before_the_caller_goes_on() -> None:
    """The interpreter may end next, and a thread that holds tensors then would abort the process."""
    made = channels(2)

    def computes(channel: Channel) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.3)
        channel.exchange(torch.zeros(1))

    with pytest.raises(KeyboardInterrupt), Branches(made[0]) as branches:
        branches.begin("a", talk(0, 5, []), lambda value: None)
        branches.begin("b", computes, lambda value: None)
    assert not any(thread.name == "hummingbird-branch" for thread in threading.enumerate()), "threads of branches stay"
    for channel in made:
        channel.close()


def test_parties_whose_branches_differ_are_told_the_layer() -> None:
    made = channels(2)
    with pytest.raises(AgreementError, match="layer 'layer 1'"):
        together([lambda: run(made[0], [1, 1], []), lambda: run(made[1], [1, 1, 1], [])])
