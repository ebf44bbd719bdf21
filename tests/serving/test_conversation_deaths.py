"""Parties die within conversations: the client hears that they are over, new ones work, and no mask serves twice.

HUMMINGBIRD_KILLS: how many at random moments (default 12).
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from hummingbird import convert
from hummingbird.errors import DealerError, InputError, OverloadError, PeerError
from hummingbird.mpc.dealer.store import StoreDealer
from hummingbird.serving.client import Client
from tests.serving.test_conversations import MODEL, PLACES, PROMPT, SERVE, WIDTH, WORDS, net, right, vectors
from tests.serving.test_reconnect import again
from tests.support import python
from tests.support.parties import environment
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM, until
from tests.support.rebirth import Hosts
from tests.support.serving import Service

KILLS = int(os.environ.get("HUMMINGBIRD_KILLS", "12"))


def dealt(folder: Path, conversations: int, *options: str) -> Path:
    """Deal a store with material for some conversations with the service's net; return its folder."""
    store = folder / "store"
    deal = [*MODEL, "--input", f"1x{PLACES}x{WIDTH}", "--prompt", str(PROMPT), "--images", str(conversations)]
    command = [sys.executable, "-m", "hummingbird", "deal", *deal, "--out", str(store), *options]
    ended = python.run(command, cwd=ROOT, env=environment(0, 1, 1), text=True, capture_output=True, timeout=PROGRAM)
    assert ended.returncode == 0, ended.stderr
    assert f"{conversations} conversations for 2 parties" in ended.stdout
    return store


@pytest.mark.slow
def test_the_command_deals_stores_of_conversations(tmp_path: Path) -> None:
    store = StoreDealer(dealt(tmp_path, 1), rank=0, parties=2)
    decoder = convert.convert_decoder(net(), torch.zeros(1, PLACES, WIDTH), PROMPT)
    order, kinds = decoder.dry_run(2)[1], decoder.requests(2)
    steps = [kinds[kind] for kind in order]
    assert len(steps) == 1 + PLACES - PROMPT
    store.converse(decoder.facts, steps).close()
    with pytest.raises(DealerError, match="0 more"):
        store.converse(decoder.facts, steps)
    store.close()


@pytest.mark.slow
def test_a_store_serves_as_many_conversations_as_were_dealt(tmp_path: Path) -> None:
    store = str(dealt(tmp_path, 2))
    with Service(*SERVE, "--store", store, "--idle", "5") as service, service.client(30.0) as client:
        with client.conversation() as talk:
            right(talk(vectors(7, 3)), 7, 3)
            with client.conversation() as other:
                right(other(vectors(9)), 9)
                right(talk(vectors(5)), 7, 3, 5)
            with client.conversation() as third, pytest.raises(OverloadError, match="too little material is left"):
                third(vectors(1))
            right(talk(vectors(6)), 7, 3, 5, 6)
            time.sleep(15)  # it is idle for long
            with pytest.raises(PeerError, match="no such conversation: it has ended.*; this conversation is over"):
                talk(vectors(6))


@pytest.mark.slow
def test_a_party_that_dies_between_steps_ends_its_conversations() -> None:
    with Service(*SERVE) as service, service.client() as client:
        for rank in range(2):
            with client.conversation() as talk:
                right(talk(vectors(7, 3)), 7, 3)
                service.processes[rank] = again(service.processes[rank])
                with pytest.raises(PeerError, match="met again since .*; this conversation is over"):
                    talk(vectors(5))
                with pytest.raises(InputError, match="over: a step has failed"):
                    talk(vectors(5))
            with client.conversation() as talk:
                right(talk(vectors(7, 3)), 7, 3)
                right(talk(vectors(5)), 7, 3, 5)


@pytest.mark.slow
def test_conversations_stay_on_their_lanes() -> None:
    with Service(*SERVE, lanes=2) as service, service.client() as client:
        texts = [[1, 2, 3], [9]]
        with client.conversation() as one, client.conversation() as other:
            for words, talk in zip(texts, (one, other), strict=True):
                right(talk(vectors(*words)), *words)
            for word in range(4):
                for words, talk in zip(texts, (one, other), strict=True):
                    words.append((5 * word + len(words)) % WORDS)
                    right(talk(vectors(words[-1])), *words)


class Talks:
    """A thread that talks with a service until it is told to end, and counts how its conversations ended."""

    def __init__(self, addresses: list[str], seed: int) -> None:
        self._addresses, self._random = addresses, random.Random(seed)
        self._over = threading.Event()
        self.ended, self.wrong, self.texts = 0, list[str](), 0
        self.talking = False  # whether a conversation has had its first answer, and is not over
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client: Client | None = None
        while not self._over.is_set():
            try:
                client = client or Client(self._addresses, timeout=HANG)
                self._talk(client)
                self.texts += 1
            except PeerError as error:
                self.ended += 1
                if "\nhint: " not in str(error):
                    self.wrong.append(repr(error))
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.wrong.append(repr(error))
            self.talking = False
        if client is not None:
            client.close()

    def _talk(self, client: Client) -> None:
        text = [self._random.randrange(WORDS) for _ in range(self._random.randint(1, PROMPT))]
        with client.conversation() as talk:
            right(talk(vectors(*text)), *text)
            self.talking = True
            while talk.left and not self._over.is_set():
                text.append(self._random.randrange(WORDS))
                right(talk(vectors(text[-1])), *text)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PROGRAM)
        assert not self._thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dealer", "store"])
def test_kills_at_random_moments_spoil_no_answer(tmp_path: Path, source: str) -> None:
    random.seed(seed := int(os.environ.get("HUMMINGBIRD_KILLS_SEED", time.time_ns() % 10**6)))
    print(f"HUMMINGBIRD_KILLS_SEED={seed}")
    store = dealt(tmp_path, 40 + 10 * KILLS) if source == "store" else None
    hosts = Hosts(*SERVE, store=store)
    with Client(hosts.addresses, timeout=HANG) as client:  # the parties are there
        client.service  # noqa: B018
    talks = [Talks(hosts.addresses, seed + place) for place in range(2)]
    try:
        until(lambda: all(each.texts for each in talks), "texts to their end, on a machine however busy")
        for number in range(KILLS):
            time.sleep(random.choice((0.3, 3.0, 10.0)) * random.random())
            if number % 2:  # first steps are repeated: on a busy machine all kills could hit these
                until(lambda: any(each.talking for each in talks), "a conversation behind its first step")
            hosts.kill_party(random.randrange(2))
        with Client(hosts.addresses, timeout=HANG) as client, client.conversation() as talk:
            right(talk(vectors(7, 3)), 7, 3)
            right(talk(vectors(5)), 7, 3, 5)
    finally:
        for each in talks:
            each.stop()
        said = hosts.said
        hosts.close()
    ended, texts = sum(each.ended for each in talks), sum(each.texts for each in talks)
    print(f"{KILLS} kills, {texts} texts to their end, {ended} conversations cut off")
    assert not [wrong for each in talks for wrong in each.wrong]
    assert texts and ended
    for rank in range(2) if store else ():
        slots = re.findall(rf"party {rank}, lane 0 uses slot (\d+)", said)
        assert slots and len(slots) == len(set(slots))
