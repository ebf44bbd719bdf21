"""A party or a dealer that is missing, killed, told to stop, or silent: every living process says so, and ends.

Real processes over real sockets, killed at random moments; nothing stays behind, neither the dealer that party 0 has
started nor the directory of its socket.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from hummingbird.channel import connect
from hummingbird.channel.handshake import listen
from hummingbird.errors import PeerError
from tests.jobs.failures import SECRET
from tests.support import python
from tests.support.covering import every
from tests.support.nursery import Nursery, Party, alive, all_fail
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import NEVER, PROGRAM, suspend, until
from tests.support.ports import free_port

# Parties that are not there ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_missing_parties(nursery: Nursery, dealer: str):
    """Only one of two, with and without the one that is the meeting point; two of three."""
    runs: list[tuple[int, tuple[int, ...]]] = [(2, (0,)), (2, (1,)), (3, (0, 2))]
    seconds = 4.0
    started = time.monotonic()
    parties = []
    for size, present in runs:
        port = free_port()
        command = ["meet", str(seconds)]
        parties.append([nursery.fork(command, rank, size, port, DEALER=dealer) for rank in present])
    for (size, present), run in zip(runs, parties, strict=True):
        for text in all_fail(run, f"{present} of {size}"):
            assert f"the {size} parties did not meet within {seconds:g} s" in text
            assert "MASTER_ADDR" in text
    assert time.monotonic() - started > seconds


@pytest.mark.slow
def test_unreachable_dealer(nursery: Nursery):
    parties = nursery.start(["meet", "10"], 2, DEALER=f"unix:{nursery.folder}/nobody")
    for text in all_fail(parties, "unreachable dealer"):
        assert "nothing answers" in text and f"unix:{nursery.folder}/nobody" in text


@contextlib.contextmanager
def dealing(nursery: Nursery, version: str = "") -> Iterator[Party]:
    """A dealer of its own, which a test may end."""
    address = f"unix:{nursery.folder}/d{nursery.count}"
    party = nursery.fork(["deal", version], 0, 1, 1, DEALER=address)
    party.until("listening")
    yield party
    if alive(party.pid):
        os.kill(party.pid, signal.SIGKILL)
    party.wait()


def test_dealer_of_another_version(nursery: Nursery):
    with dealing(nursery, "0.0.1") as other:
        parties = nursery.start(["meet", f"{NEVER:g}"], 2, DEALER=other.variables["DEALER"])
        for text in all_fail(parties, "dealer of another version"):
            assert re.search(r"party \d runs version \S+, the dealer runs version 0.0.1", text), text


# Processes that die in the middle -------------------------------------------------------------------------------------


def under_way(nursery: Nursery, size: int, timeout: float = NEVER, **variables: str) -> list[Party]:
    """Parties in the middle of inference."""
    parties = nursery.start(["forever", f"{timeout}"], size, **variables)
    for party in parties:
        party.until("running")
    time.sleep(random.random() / 2)
    return parties


class LocalDealer:
    """The dealer that party 0 has started, and its directory."""

    def __init__(self, nursery: Nursery, parties: Sequence[Party]) -> None:
        (self.pid,) = parties[0].children()
        (self.folder,) = nursery.folder.glob("hummingbird-*")
        assert alive(self.pid)

    def check_that_nothing_is_left(self) -> None:
        until(lambda: not alive(self.pid), "the dealer to end with its parties")
        assert not self.folder.exists()


@pytest.mark.parametrize("size, victim", every(3, [(2, 0), (2, 1), (3, 2)]))
def test_killed_party_and_the_dealer_of_party_0(nursery: Nursery, size: int, victim: int):
    parties = under_way(nursery, size)
    dealer = LocalDealer(nursery, parties)
    os.kill(parties[victim].pid, signal.SIGKILL)
    living = [party for rank, party in enumerate(parties) if rank != victim]
    for text in all_fail(living, f"kill -9 of party {victim} of {size}"):
        assert f"party {victim} closed the connection: it ended or was killed" in text, text
    assert parties[victim].wait() == -signal.SIGKILL
    dealer.check_that_nothing_is_left()


@pytest.mark.parametrize("size, victim", every(4, [(3, 1), (2, 0), (2, 1), (3, 0)]))
def test_killed_party(nursery: Nursery, dealer: str, size: int, victim: int):
    """At random moments."""
    parties = under_way(nursery, size, DEALER=dealer)
    os.kill(parties[victim].pid, signal.SIGKILL)
    living = [party for rank, party in enumerate(parties) if rank != victim]
    for text in all_fail(living, f"kill -9 of party {victim} of {size}"):
        assert f"party {victim} closed the connection: it ended or was killed" in text, text
    parties[victim].wait()


def test_party_killed_while_it_joins(nursery: Nursery, dealer: str):
    """At any moment of init: the other ends with an error, at the latest after the timeouts of meeting."""
    seconds = 4.0
    for number in range(2):
        parties = nursery.start(["forever", f"{seconds}"], 2, DEALER=dealer)
        time.sleep(0.05 + random.random() / 2)
        victim = number % 2
        os.kill(parties[victim].pid, signal.SIGKILL)
        all_fail([parties[1 - victim]], f"kill -9 of party {victim} in init")
        parties[victim].wait()


def terminate(parties: Sequence[Party], victim: int) -> None:
    """SIGTERM, which is what launchers send."""
    os.kill(parties[victim].pid, signal.SIGTERM)
    for text in all_fail(parties, f"SIGTERM to party {victim} of {len(parties)}"):
        assert "this party was told to stop (SIGTERM)" in text, text
        assert "when another party has failed" in text


def test_terminated_party_and_its_dealer(nursery: Nursery):
    parties = under_way(nursery, 2)
    dealer = LocalDealer(nursery, parties)
    terminate(parties, 0)
    dealer.check_that_nothing_is_left()


@pytest.mark.slow  # one of two parties: above
def test_terminated_party(nursery: Nursery, dealer: str):
    terminate(under_way(nursery, 3, DEALER=dealer), 1)


@pytest.mark.parametrize("seed, count", [(0, 1), *(pytest.param(seed, 25, marks=pytest.mark.slow) for seed in (1, 2))])
def test_stops_under_load(seed: int, count: int):
    """At any moment, also while threads start: one error in two lines and code 1, of each party, whatever it does."""
    command = [sys.executable, "-m", "tests.jobs.stops", str(count), str(seed), "run"]
    ended = python.run(
        command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM * count
    )
    assert f"{2 * count} of {2 * count} parties stopped in an orderly way" in ended.stdout, ended.stdout + ended.stderr


def test_an_error_is_said_though_a_signal_comes(nursery: Nursery, dealer: str):
    """SIGTERM while a party prints its error: one error and code 1, and no traceback of a second one."""
    for text in all_fail(nursery.start(["told"], 2, DEALER=dealer), "told to stop"):
        assert "the first reason" in text and "SIGTERM" not in text and "Traceback" not in text, text


def test_killed_dealer(nursery: Nursery):
    with dealing(nursery) as dealer:
        parties = under_way(nursery, 2, DEALER=dealer.variables["DEALER"])
        os.kill(dealer.pid, signal.SIGKILL)
        texts = all_fail(parties, "kill -9 of the dealer")
    # Each asks the dealer in its turn: a party names the dealer, or the other party, which has told it.
    assert all("the connection is lost" in text for text in texts), texts
    assert any("(at dealer unix:" in text for text in texts), texts
    assert all("(at dealer unix:" in text or f"party {1 - rank} stopped" in text for rank, text in enumerate(texts)), (
        texts
    )


@pytest.mark.slow
def test_silent_processes(nursery: Nursery, dealer: str):
    """A dealer or a party that hangs is one that is gone, after the timeout."""
    timeout = 10.0  # which no party that is well runs into
    with dealing(nursery) as stopped:
        first = under_way(nursery, 2, timeout, DEALER=stopped.variables["DEALER"])
        second = under_way(nursery, 3, timeout, DEALER=dealer)
        suspend(stopped.pid)
        suspend(second[1].pid)
        texts = all_fail([second[0], second[2]], "a party that hangs")
        assert all(f"party 1 sent or took nothing for {timeout:g} s" in text for text in texts), texts
        texts = all_fail(first, "a dealer that hangs")
        # Each asks the dealer in its turn: who waits for it names it, who waits for the other party names that one.
        assert any("no answer in time (at dealer" in text for text in texts), texts
        other = f"sent or took nothing for {timeout:g} s"
        assert all(other in text or "no answer in time" in text for text in texts), texts
    os.kill(second[1].pid, signal.SIGCONT)
    all_fail([second[1]], "a party that hung, when it comes back")


def test_a_party_ends_though_another_reads_nothing(nursery: Nursery, dealer: str):
    """A thread that is sending does not keep a process alive that has called sys.exit."""
    parties = nursery.start(["blocked"], 2, DEALER=dealer)
    parties[0].until("sending")
    assert parties[0].wait() == 3
    os.kill(parties[1].pid, signal.SIGCONT)
    assert "party 0 closed the connection" in all_fail([parties[1]], "and the other party")[0]


def test_a_script_of_its_own(nursery: Nursery, dealer: str):
    """A program that does not use run_party: its own traceback at home, only the type's name elsewhere."""
    parties = nursery.start(["script"], 2, DEALER=dealer)
    assert [party.wait() for party in parties] == [1, 1]
    first, second = (party.err.read_text() for party in parties)
    assert first.count("Traceback") == 1 and first.endswith(f"ZeroDivisionError: {SECRET} / 0\n")
    assert "PeerError: party 0 stopped: ZeroDivisionError (at party 1)\nhint: " in second and SECRET not in second


def test_a_party_that_is_gone_is_not_waited_for():
    """Nobody listens at its address any more: an error at once, not after the timeout."""
    server, gone_already = listen("127.0.0.1"), listen("127.0.0.1")
    addresses = [server.getsockname(), gone_already.getsockname()]
    gone_already.close()
    with pytest.raises(PeerError, match="cannot connect to party 1 at 127.0.0.1"):
        connect.connect(0, addresses, server, bytes(16), NEVER)
