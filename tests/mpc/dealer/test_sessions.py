"""The dealer's sessions and processes: they end, they are limited, and nobody hangs when one dies."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from hummingbird.errors import DealerError, OverloadError
from hummingbird.mpc.dealer import command as dealer_command
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.server import IDLE_SECONDS, MAX_BUSY, MAX_SESSIONS, DealerService
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.rpc.server import ServiceConfig
from hummingbird.version import VERSION
from tests.channel.test_connect import Authority
from tests.support import python
from tests.support.correlation_checks import CASES, take_and_check
from tests.support.dealers import Running
from tests.support.nursery import alive
from tests.support.parties import free_port, together
from tests.support.paths import ROOT
from tests.support.patience import HANG, NEVER, suspend, until
from tests.support.services import started


def test_leaving_frees_the_session_and_its_id_is_not_used_again(running):
    clients = running.all(2)
    session = clients[0]._session
    clients[0].close()
    assert session in running.dealer._sessions  # the other one may still need its corrections
    clients[1].correlation(SquarePair((2,)))
    clients[1].correlation(SquarePair((2,)))
    clients[1].close()
    clients[1].close()
    assert session not in running.dealer._sessions
    with pytest.raises(DealerError, match="the client is closed"):
        clients[0].correlation(SquarePair((2,)))
    with pytest.raises(DealerError, match="this session has ended"):
        running.join(0, 2, session)


@pytest.mark.parametrize("first", [0, 1])
def test_a_party_may_leave_before_the_others_come(first):
    dealer = DealerService()
    seed, token = dealer.join(b"s" * 16, first, 2, VERSION)
    dealer.leave(b"s" * 16, token)
    with pytest.raises(DealerError, match=f"party {first} has left"):
        next(dealer.correct(b"s" * 16, token, 0, [SquarePair((1,))], 0.0))
    other, another = dealer.join(b"s" * 16, 1 - first, 2, VERSION)
    assert other != seed and another != token and not dealer.ended
    next(dealer.correct(b"s" * 16, another, 0, [SquarePair((1,))], 0.0))
    dealer.leave(b"s" * 16, another)
    assert dealer.ended == 1


def test_parties_are_served_at_a_time_and_count_as_one_session():
    dealer = DealerService()
    tokens = [dealer.join(b"s" * 16, rank, 2, VERSION)[1] for rank in range(2)]
    others = []
    for number in range(MAX_BUSY - 1):
        _, token = dealer.join(number.to_bytes(16, "big"), 0, 1, VERSION)
        others.append(dealer.correct(number.to_bytes(16, "big"), token, 0, [SquarePair((1,))] * 2, 1.0))
        next(others[-1])
    calls = [dealer.correct(b"s" * 16, token, 0, [SquarePair((1,))] * 2, 1.0) for token in tokens]
    for call in calls * 2:
        assert len(next(call)) == 1


def test_the_number_of_sessions_is_limited():
    dealer = DealerService()
    tokens = []
    for number in range(MAX_SESSIONS):
        tokens.append(dealer.join(number.to_bytes(16, "big"), 0, 1, VERSION)[1])
    with pytest.raises(OverloadError, match=f"{MAX_SESSIONS} sessions are open, the most\nhint: sessions end when"):
        dealer.join(b"x" * 16, 0, 1, VERSION)
    request = [SquarePair((1,))]
    calls = [
        dealer.correct(number.to_bytes(16, "big"), token, 0, request, 1.0)
        for number, token in enumerate(tokens[: MAX_BUSY + 1])
    ]
    for frames in calls[:-1]:
        next(frames)
    with pytest.raises(OverloadError, match=f"{MAX_BUSY} sessions are served, the most\nhint: start more dealers"):
        next(calls[-1])
    calls[0].close()
    with pytest.raises(DealerError, match="number 0 has been served already"):
        next(dealer.correct(bytes(16), tokens[0], 0, request, 1.0))
    for first in (1, 2):  # its place is free again, also after a refusal, and after a call
        frames = dealer.correct(bytes(16), tokens[0], first, request, 1.0)
        next(frames)
        frames.close()


def test_no_name_takes_all_sessions():
    """A name that begins as many as it may leaves a quarter for others; what it gives back is free again."""
    dealer, few = DealerService(), "the room that is left is for callers with few"
    tokens = {}
    with pytest.raises(OverloadError, match=few):
        for number in range(MAX_SESSIONS):
            session = number.to_bytes(16, "big")
            tokens[session] = dealer.join(session, 1, 2, VERSION, "party-1")[1]
    assert len(tokens) == dealer.open == 3 * MAX_SESSIONS // 4
    for number in range(8):
        dealer.join(b"0" * 15 + bytes([number]), 0, 2, VERSION, "party-0")
    session, token = tokens.popitem()
    dealer.join(session, 0, 2, VERSION, "party-0")  # which party 1 has begun
    with pytest.raises(OverloadError, match=few):
        dealer.join(b"1" * 16, 1, 2, VERSION, "party-1")
    for session, token in list(tokens.items())[:100]:
        other = dealer.join(session, 0, 2, VERSION, "party-0")[1]
        dealer.leave(session, token), dealer.leave(session, other)
    dealer.join(b"1" * 16, 1, 2, VERSION, "party-1")


def test_no_name_is_served_in_all_places_and_who_waits_has_none():
    dealer, request, gone = DealerService(), [SquarePair((1,))] * 2, threading.Event()

    def call(session: bytes, rank: int, parties: int):
        token = dealer.join(session, rank, parties, VERSION, f"party-{rank}")[1]
        return dealer.correct(session, token, 0, request, HANG, lambda: not gone.is_set())

    def wait(number: int) -> None:
        with pytest.raises(DealerError, match="did not join"):
            next(call(bytes([1]) * 15 + bytes([number]), 1, 2))

    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(MAX_BUSY + 1)]
    for thread in waiting:
        thread.start()
    until(lambda: sum(state.busy for state in dealer._sessions.values()) == len(waiting), "calls to wait")
    served = []
    with pytest.raises(OverloadError, match="the room that is left is for callers with few"):
        for number in range(MAX_BUSY):
            made = call(bytes(15) + bytes([number]), 0, 1)
            next(made)
            served.append(made)
    assert len(served) == 3 * MAX_BUSY // 4
    calls = [call(b"both of them----", rank, 2) for rank in (1, 0)]  # party 1 has begun this one
    for made in calls:
        next(made)
    gone.set()
    for thread in waiting:
        thread.join(HANG)


def test_idle_sessions_are_dropped():
    dealer = DealerService(idle_seconds=0.05)
    _, token = dealer.join(b"a" * 16, 0, 1, VERSION)
    time.sleep(0.1)
    dealer.join(b"b" * 16, 0, 1, VERSION)
    with pytest.raises(DealerError, match="no such session"):
        dealer.leave(b"a" * 16, token)


def test_a_session_that_says_it_stays_is_not_dropped():
    dealer = DealerService(idle_seconds=NEVER)
    _, token = dealer.join(b"a" * 16, 0, 1, VERSION)
    before = dealer._sessions[b"a" * 16].used
    time.sleep(0.01)
    with pytest.raises(DealerError, match="only a party of a session"):
        dealer.stay(b"a" * 16, b"x" * 16)
    assert dealer._sessions[b"a" * 16].used == before
    dealer.stay(b"a" * 16, token)
    assert dealer._sessions[b"a" * 16].used > before
    dealer.leave(b"a" * 16, token)
    with pytest.raises(DealerError, match="no such session"):
        dealer.stay(b"a" * 16, token)


def test_a_client_that_stays_hears_of_a_dealer_that_has_gone(tmp_path):
    running = Running(tmp_path)  # of its own: it is stopped
    first, second = running.all(2)
    for client in (first, second):
        client.stay()
    running.server.stop(0).wait()
    second.stay()  # party 0 says it for all
    with pytest.raises(DealerError, match="connection is lost"):
        first.stay()
    for client in (first, second):
        client.close()


def test_one_call_at_a_time_and_time_is_counted():
    dealer = DealerService()
    _, token = dealer.join(b"a" * 16, 0, 1, VERSION)
    request = SquarePair((100_000,))
    frames = dealer.correct(b"a" * 16, token, 0, [request] * 2, 1.0)
    next(frames)
    seconds = dealer.seconds(b"a" * 16)
    with pytest.raises(DealerError, match="still being served"):
        next(dealer.correct(b"a" * 16, token, 5, [request], 1.0))
    next(frames)
    assert 0 < seconds < dealer.seconds(b"a" * 16)
    frames.close()
    next(dealer.correct(b"a" * 16, token, 5, [request], 1.0))


def test_concurrent_joins_give_one_seed_each():
    dealer, outcomes = DealerService(), []

    def attempt():
        try:
            outcomes.append(dealer.join(b"a" * 16, 1, 2, VERSION)[0])
        except DealerError:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 16 and sum(seed is not None for seed in outcomes) == 1


def test_a_dealer_for_another_number_of_parties():
    with pytest.raises(DealerError, match="there are 3 parties, this dealer is for 2"):
        DealerService(parties=2).join(b"a" * 16, 0, 3, VERSION)


@pytest.mark.slow
def test_dealer_starts_without_crypten():
    code = """
import sys
sys.modules["crypten"] = None  # an import of it would raise
import hummingbird.mpc.dealer.command, hummingbird.mpc.dealer.client
import hummingbird.mpc.dealer.deal, hummingbird.mpc.dealer.store
from hummingbird.__main__ import parser
parser(["dealer"]).parse_args(["dealer", "--listen", "unix:x"])
assert "torchvision" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=HANG)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dealer that this process spawns is forked."""
    monkeypatch.setattr(subprocess, "Popen", python.Popen)


def test_spawned_dealer_ends_with_its_session(forked):
    address, process = spawn_local(2, HANG)
    folder = Path(address.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "dealer.sock").stat().st_mode & 0o077 == 0
    assert os.getpgid(process.pid) != os.getpgid(0)
    session = os.urandom(16)
    clients = [DealerClient(address, session=session, rank=rank, parties=2, timeout=HANG) for rank in range(2)]
    take_and_check(clients, CASES[:4])
    for client in clients:
        client.close()
    assert process.wait(HANG) == 0


def test_killed_dealer_is_an_error_before_the_timeout(forked):
    address, process = spawn_local(1, HANG)
    client = DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=NEVER)
    client.correlation(SquarePair((2,)))
    supply = client.reserve([SquarePair((1 << 20,))] * 2000)  # 16 GB: killed in the middle
    supply.correlation(SquarePair((1 << 20,)))
    process.kill()
    with pytest.raises(DealerError, match="connection is lost") as caught:  # noqa: PT012
        for _ in range(1999):
            supply.correlation(SquarePair((1 << 20,)))
    assert address in str(caught.value) and caught.value.hint
    with pytest.raises(DealerError, match="an earlier request failed"):
        client.correlation(SquarePair((2,)))
    client.close()
    process.wait(HANG)
    with pytest.raises(DealerError, match="nothing answers") as caught:
        DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=0.5)
    assert "is the service running" in caught.value.hint


def test_stopped_dealer_is_an_error_after_the_timeout(forked):
    address, process = spawn_local(1, HANG)
    client = DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=HANG)
    client._timeout = 0.5  # from here on: joining is not to run into it
    suspend(process.pid)
    try:
        with pytest.raises(DealerError, match="no answer in time"):
            client.correlation(SquarePair((2,)))
        client.close()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    process.stdin.close()
    assert process.wait(HANG) == 0  # a closed stdin ends it, though party 0 could not say that it leaves


def test_dealer_ends_with_its_parent():
    code = """
import os, sys
from hummingbird.mpc.dealer.command import spawn_local
address, process = spawn_local(2, 300)
print(process.pid, address, flush=True)
os._exit(9)  # no atexit handler runs
"""
    done = python.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=HANG)
    pid, address = done.stdout.split()
    until(lambda: not alive(int(pid)), "the dealer to end with its parent")
    socket_file = Path(address.removeprefix("unix:"))
    assert not socket_file.parent.exists()


def test_command_errors():
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen"]
    done = python.run([*command, "0.0.0.0:4000"], capture_output=True, text=True, cwd=ROOT, timeout=HANG)
    assert done.returncode == 1 and done.stderr.startswith("error: plain text is for unix sockets")
    assert "\nhint: " in done.stderr and "Traceback" not in done.stderr


def test_figures_and_calls_of_a_dealer_are_those_of_its_sessions(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path, "ca"), free_port()
    files = authority.issue("localhost")
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    command = [sys.executable, "-m", "hummingbird", "dealer", "--listen", address, "--metrics", str(port), "--log"]
    command += [str(log)]
    command += [f"--tls-{name}={getattr(files, name)}" for name in ("cert", "key", "ca")]

    def figures() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as page:
            lines = page.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    with started(command):
        where, session = address.replace("127.0.0.1", "localhost"), bytes(16)
        parties = [
            DealerClient(where, session=session, rank=r, parties=2, tls=authority.issue(f"party-{r}"), timeout=HANG)
            for r in range(2)
        ]
        for _ in parties:  # in turns: the first correction goes to party 0, the second to party 1
            together([lambda party=party: party.correlation(SquarePair((2,))) for party in parties])
        found = figures()
        assert found["hummingbird_dealer_sessions_open"] == 1
        assert found["hummingbird_dealer_busy_seconds_total"] > 0 == found["hummingbird_dealer_sessions_total"]
        assert found['hummingbird_requests_total{method="Join",outcome="OK"}'] == 2
        for party in parties:
            party.close()
        until(lambda: figures()["hummingbird_dealer_sessions_total"] == 1, "the session to end")
        assert figures()["hummingbird_dealer_sessions_open"] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = {(line["method"], line["client"], line["outcome"]) for line in lines if line["event"] == "call"}
    assert {("Join", "party-0", "OK"), ("Correct", "party-1", "OK"), ("Leave", "party-0", "OK")} <= calls


def test_an_unread_stream_of_a_dealer_is_not_cut_off_before_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other services end a call that stands still for two minutes; a party may wait for its next request for longer."""
    found: list[ServiceConfig] = []

    class Seen(BaseException):
        pass

    def run(name: str, config: ServiceConfig, parts: object) -> None:
        found.append(config)
        raise Seen

    monkeypatch.setattr(dealer_command, "run_service", run)
    monkeypatch.setattr(dealer_command, "deal_on", lambda threads: None)
    parser = argparse.ArgumentParser()
    dealer_command.add_arguments(parser)
    with pytest.raises(Seen):
        dealer_command.main(parser.parse_args(["--listen", "unix:d.sock"]))
    assert found[0].limits.stall == IDLE_SECONDS and found[0].grace == 1.0
    with pytest.raises(SystemExit):
        parser.parse_args(["--listen", "unix:d.sock", "--tokens", "file"])  # a party's name is its certificate's
