"""A party or the dealer dies and comes back, between two launchers as on two hosts: clients are refused in words at
once, or wait, and nobody lifts a hand.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hummingbird.errors import PeerError, UnavailableError
from hummingbird.serving.client import Client
from tests.serving.test_serving import CLOSE, digits
from tests.support.nursery import alive
from tests.support.patience import suspend, until
from tests.support.rebirth import Hosts, hasty
from tests.support.serving import DIGITS


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    opened = Hosts(*DIGITS, "--window", "28:0", "--max-batch", "6")
    try:
        yield opened
    finally:
        opened.close()


def refused_at_once(client: Client, hosts: Hosts, words: str) -> None:
    """Requests end in an error, after a while in an UnavailableError with these words."""
    said: list[str] = []

    def look() -> bool:
        with pytest.raises(PeerError) as caught:
            client(digits(2)[0])
        said.append(str(caught.value))
        return isinstance(caught.value, UnavailableError) and re.search(words, said[-1]) is not None

    try:
        until(look, f"a refusal with the words {words}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[-1]}\n{hosts.said}") from None
    assert all("\nhint: " in text for text in said), said


@pytest.mark.parametrize(
    "dead, whole",
    [(1, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, False), (1, True), (0, True)))],
)
def test_a_party_dies_and_the_other_one_meets_it_again(hosts: Hosts, dead: int, whole: bool) -> None:
    """The dead one is seen in the refusal of the living one, which is the same process afterwards. A client that can
    wait gets the right answer to a request that it made while there was no service.

    whole: its launcher dies with it, which for party 0 is the store by which the parties meet.
    """
    images, expected = digits(14)
    with hosts.client() as patient, hasty(hosts.addresses) as impatient, ThreadPoolExecutor(1) as pool:
        assert (patient(images) - expected).abs().max() < CLOSE
        before, session = [hosts.party(rank) for rank in range(2)], patient.service.session
        if whole:
            hosts.kill_host(dead)
        else:
            suspend(hosts.launchers[dead].pid)
            hosts.kill_party(dead)
        refused_at_once(impatient, hosts, "connection is lost|interrupted: party")
        asked = pool.submit(patient, images)
        if whole:
            hosts.launchers[dead] = hosts.start_host(dead)
        else:
            os.kill(hosts.launchers[dead].pid, signal.SIGCONT)
        assert (asked.result() - expected).abs().max() < CLOSE
        now = [hosts.party(rank) for rank in range(2)]
        assert now[1 - dead] == before[1 - dead] and now[dead] != before[dead] and not alive(before[dead])
        assert patient.service.session != session


@pytest.mark.slow
def test_a_dealer_dies_and_both_parties_live_on(hosts: Hosts) -> None:
    """The parties find out though nobody asks anything of them, and join the next dealer in sessions of their own."""
    images, expected = digits(14)
    with hosts.client() as patient, hasty(hosts.addresses) as impatient, ThreadPoolExecutor(1) as pool:
        before = [hosts.party(rank) for rank in range(2)]
        hosts.dealer.kill()
        hosts.dealer.wait()
        until(lambda: "interrupted: the connection is lost" in hosts.said, "a party to notice")
        refused_at_once(impatient, hosts, "interrupted: .*(dealer|lost)")
        asked = pool.submit(patient, images)
        hosts.start_dealer()
        assert (asked.result() - expected).abs().max() < CLOSE
        assert [hosts.party(rank) for rank in range(2)] == before
