"""A party's lives without a run: which failures are waited for, which end the process, and what a signal does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from hummingbird.errors import AgreementError, DealerError, HummingbirdError, PeerError, StoreError, UnavailableError
from hummingbird.rpc.signals import Flag, check
from hummingbird.serving import serve as module
from hummingbird.serving.dispatcher import Counts, unavailable
from hummingbird.serving.party import Methods
from hummingbird.serving.serve import ReconnectLoop
from tests.support.patience import HANG, until


class Part:
    """A party's part of which nothing is asked; `run` calls this, then waits for `end` if it is to."""

    def __init__(self, during: Callable[[], object] = lambda: None, waits: bool = False) -> None:
        self.counts, self.stocked = Counts(1, 3, 0), True
        self._during, self._ended = during, threading.Event()
        if not waits:
            self._ended.set()

    def run(self) -> None:
        self._during()
        assert self._ended.wait(HANG)

    def end(self) -> None:
        self._ended.set()


def failing(error: HummingbirdError) -> Callable[[], Part]:
    def fail() -> Part:
        raise error

    return fail


def told() -> None:
    """SIGTERM to this process, as its handler has it when a system call returns."""
    os.kill(os.getpid(), signal.SIGTERM)


def stopping() -> Part:
    return Part(told, waits=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.0, 0.0))


def live(*begins: Callable[[], Part]) -> tuple[ReconnectLoop, list[bool]]:
    """Lives that begin like this, one after the other, to their end; and what health has said."""
    health: list[bool] = []
    beginnings, flag = iter(begins), Flag()
    methods, reasons = Methods(health.append), list[str]()
    lives = ReconnectLoop(methods, lambda: next(beginnings)(), flag, lambda: None, reasons.append)  # type: ignore[arg-type, return-value]
    before = signal.signal(signal.SIGTERM, lambda number, frame: flag.set())
    try:
        lives.run()
    finally:
        signal.signal(signal.SIGTERM, before)
        assert next(beginnings, None) is None
    assert all("\n" not in reason for reason in reasons)
    return lives, health


def test_others_and_the_dealer_are_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    lost = failing(PeerError("nothing was heard of party 1", hint="start it"))
    dead = failing(DealerError("nothing answers", where="dealer d"))
    torn = Part(failing(UnavailableError("party 1 was lost")))
    lives, health = live(lost, dead, lambda: torn, lost, Part, stopping)
    assert (lives.count, lives.counts) == (3, Counts(3, 9, 0))  # one was interrupted, one ended by another party
    assert [yes for yes, before in zip(health, [False, *health], strict=False) if yes != before] == [True, False] * 3
    said = capfd.readouterr().err
    assert said.count("interrupted: nothing was heard of party 1; meeting the others again\n") == 2
    assert "interrupted: nothing answers (at dealer d); meeting" in said and "interrupted: party 1 was lost;" in said


def test_what_waiting_does_not_mend_ends_the_process() -> None:
    for begin in (failing(StoreError("damaged")), lambda: Part(failing(StoreError("damaged")))):
        with pytest.raises(StoreError, match="damaged"):
            live(Part, begin)


def test_parties_that_do_not_agree_wait_for_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    other = failing(AgreementError("the parties disagree on net: party 0 has a, party 1 has b", where="net"))
    lives, _ = live(other, Part, lambda: Part(other), stopping)
    assert lives.count == 3
    assert capfd.readouterr().err.count("disagree on net: party 0 has a, party 1 has b (at net); meeting") == 2
    told_to_clients = unavailable(AgreementError("the parties disagree on dealer: party 0 has 10.0.0.9:9000"))
    assert "do not agree" in told_to_clients.what and "10.0.0.9" not in str(told_to_clients)


def test_a_signal_ends_a_party_that_waits_for_others_at_once() -> None:
    def waiting() -> Part:
        told()
        until(check, "a signal to be heard")
        raise AssertionError("the signal was not heard")

    lives, health = live(waiting)
    assert lives.count == 0 and True not in health


def test_a_failure_while_a_party_drains_ends_it_well() -> None:
    def drained_and_lost() -> None:
        told()
        raise PeerError("party 0 was lost")

    lives, _ = live(lambda: Part(drained_and_lost))
    assert lives.count == 1


def test_a_party_is_ready_while_it_has_material() -> None:
    health: list[bool] = []
    methods, part = Methods(health.append), Part()
    methods.open(part)  # type: ignore[arg-type]
    part.stocked = False
    methods.look()
    part.stocked = True
    methods.look()
    methods.drain()
    methods.look()
    assert health == [True, False, True, False, False]
