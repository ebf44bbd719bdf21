"""The dealer over real gRPC: correct shares, single use, refusals in words, TLS, and no hang when it dies."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import grpc
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hummingbird.errors import DealerError, EnvironmentProblem, InputError, PeerError, TrustError
from hummingbird.mpc.correlations import KINDS, Request
from hummingbird.mpc.dealer import server as server_module
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.command import spawn_local
from hummingbird.mpc.dealer.local import LocalDealer
from hummingbird.mpc.dealer.server import MAX_BUSY, MAX_SESSIONS, Dealer, handlers
from hummingbird.version import VERSION
from hummingbird.wire import service
from hummingbird.wire.service import Tls

M64 = (1 << 64) - 1


class Running:
    """A dealer served from this process on a unix socket, and clients that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.dealer = Dealer()
        self.address = f"unix:{folder}/d.sock"
        self.server = service.serve(handlers(self.dealer), self.address)
        self.clients: list[DealerClient] = []

    def join(self, rank: int, parties: int, session: bytes, timeout: float = 20.0) -> DealerClient:
        client = DealerClient(self.address, session=session, rank=rank, parties=parties, timeout=timeout)
        self.clients.append(client)
        return client

    def all(self, parties: int) -> list[DealerClient]:
        session = os.urandom(16)
        return [self.join(rank, parties, session) for rank in range(parties)]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    here = Running(tmp_path_factory.mktemp("dealer"))
    yield here
    for client in here.clients:
        client.close()
    here.server.stop(0).wait()


@pytest.fixture(scope="module")
def process():
    """One dealer in a process of its own, without --once, for several tests."""
    folder = Path(tempfile.mkdtemp())  # pytest's own may be too long for a socket's path
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen", f"unix:{folder}/d.sock"]
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert child.stdout is not None
    assert child.stdout.readline() == f"dealer listening on unix:{folder}/d.sock\n"
    yield f"unix:{folder}/d.sock", time.monotonic() - started
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    child.stdout.close()
    assert not (folder / "d.sock").exists()
    folder.rmdir()


# Correct shares -------------------------------------------------------------------------------------------------------
# Everything below works on Python integers: numbers mod 2^64, sums and xors of them, bits counted one by one.


def total(shares: list[torch.Tensor]) -> list[int]:
    return [sum(column) & M64 for column in zip(*(s.flatten().tolist() for s in shares), strict=True)]


def xored(shares: list[torch.Tensor]) -> list[int]:
    out = [0] * shares[0].numel()
    for share in shares:
        out = [a ^ (b & M64) for a, b in zip(out, share.flatten().tolist(), strict=True)]
    return out


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def products(a: torch.Tensor, b: torch.Tensor, pairs: list[tuple[int, int, int]], size: int) -> list[int]:
    """Sums of a[i] * b[j] into place o for all (o, i, j)."""
    out = [0] * size
    for o, i, j in pairs:
        out[o] = (out[o] + a[i] * b[j]) & M64
    return out


def conv2d_pairs() -> list[tuple[int, int, int]]:
    """x (2, 2, 4, 3) with kernel (3, 2, 3, 3), stride 2, padding 1: out (2, 3, 2, 2)."""
    pairs = []
    for n in range(2):
        for o in range(3):
            for y in range(2):
                for x in range(2):
                    for c in range(2):
                        for i in range(3):
                            for j in range(3):
                                r, s = 2 * y + i - 1, 2 * x + j - 1
                                if 0 <= r < 4 and 0 <= s < 3:
                                    place = ((n * 3 + o) * 2 + y) * 2 + x
                                    pairs.append((place, ((n * 2 + c) * 4 + r) * 3 + s, ((o * 2 + c) * 3 + i) * 3 + j))
    return pairs


MATMUL_PAIRS = [(i * 5 + j, i * 4 + k, k * 5 + j) for i in range(3) for j in range(5) for k in range(4)]
COUNT = 13  # not a multiple of 8: the last byte of a plane has spare bits


def bits(plane: list[int], count: int) -> list[int]:
    return [plane[i // 8] >> (i % 8) & 1 for i in range(count)]


def check_additive(parts, *, op, size0, size1, kwargs):
    a, b, c = (total(column) for column in parts)
    if op == "mul":
        assert c == [x * y & M64 for x, y in zip(a, b, strict=True)]
    elif op == "matmul":
        assert c == products(a, b, MATMUL_PAIRS, 15)
    else:
        assert kwargs == {"stride": 2, "padding": 1} and c == products(a, b, conv2d_pairs(), 24)


def check_square(parts, *, shape):
    r, squared = (total(column) for column in parts)
    assert squared == [x * x & M64 for x in r]


def check_binary(parts, *, size0, size1):
    a, b, c = (xored(column) for column in parts)
    b = b * (len(a) // len(b))  # broadcast of the leading dimension
    assert c == [x & y for x, y in zip(a, b, strict=True)]


def check_b2a(parts, *, shape):
    assert all(set(share.flatten().tolist()) <= {0, 1} for share in parts[0])
    assert xored(parts[0]) == total(parts[1])


def check_wraps(parts, *, shape):
    values = zip(*(share.flatten().tolist() for share in parts[0]), strict=True)
    for shares, wraps in zip(values, total(parts[1]), strict=True):
        # The exact integer sum of the signed shares is the value mod 2^64 plus 2^64 for every wrap.
        assert sum(shares) - signed(sum(shares) & M64) == signed(wraps) << 64


def check_and(parts, *, planes, count):
    a, b, c = (xored(column) for column in parts)
    assert c == [x & y for x, y in zip(a, b, strict=True)]


def check_and_private(parts, *, planes, count):
    check_and(parts, planes=planes, count=count)
    for owner in (0, 1):
        others = [share for rank, share in enumerate(parts[owner]) if rank != owner]
        assert all(not share.any() for share in others)


def check_and_pair(parts, *, planes, count):
    p, g, q, pg, pq = (xored(column) for column in parts)
    size = len(p) // planes
    assert pg == [x & y for x, y in zip(p, g, strict=True)]
    assert pq == [x & y for x, y in zip(p[size:], q, strict=True)]


def check_select(parts, *, count, shift):
    b = bits(xored(parts[0]), count)
    rest = [total(column) for column in parts[1:]]
    r, plain = rest[0], rest[1]
    assert plain == b
    if not shift:
        assert rest[2] == [x * y for x, y in zip(b, r, strict=True)]
        return
    assert rest[2] == [x >> shift for x in r]
    assert [signed(x) for x in rest[3]] == [signed(x) >> shift for x in r]
    assert rest[4] == [x * y for x, y in zip(b, rest[2], strict=True)]
    assert rest[5] == [x * y for x, y in zip(b, rest[3], strict=True)]


def check_truncate(parts, *, count, shift):
    r, logical, arithmetic = (total(column) for column in parts)
    assert logical == [x >> shift for x in r]
    assert [signed(x) for x in arithmetic] == [signed(x) >> shift for x in r]


CONV = {"size0": [2, 2, 4, 3], "size1": [3, 2, 3, 3], "op": "conv2d", "kwargs": {"stride": 2, "padding": 1}}
CASES = [
    (Request("additive", {"size0": [3, 4], "size1": [4, 5], "op": "matmul", "kwargs": {}}), check_additive),
    (Request("additive", {"size0": [17], "size1": [17], "op": "mul", "kwargs": {}}), check_additive),
    (Request("additive", CONV), check_additive),
    (Request("square", {"shape": [3, 5]}), check_square),
    (Request("binary", {"size0": [2, 3, 4], "size1": [3, 4]}), check_binary),
    (Request("b2a", {"shape": [40]}), check_b2a),
    (Request("wraps", {"shape": [200]}), check_wraps),
    (Request("and_private", {"planes": 2, "count": COUNT}), check_and_private),
    (Request("and", {"planes": 3, "count": COUNT}), check_and),
    (Request("and_pair", {"planes": 3, "count": COUNT}), check_and_pair),
    (Request("select", {"count": COUNT, "shift": 0}), check_select),
    (Request("select", {"count": COUNT, "shift": 16}), check_select),
    (Request("truncate", {"count": COUNT, "shift": 9}), check_truncate),
]


def take_and_check(takers, cases=CASES):
    for request, verify in cases:
        parts = list(zip(*(taker.take(request) for taker in takers), strict=True))
        assert len(parts) == len(request.free) + len(request.derived)
        verify(parts, **request.params)


def test_every_kind_has_a_case():
    assert {request.kind for request, _ in CASES} == set(KINDS)


def test_the_checks_can_fail():
    for request, verify in CASES:
        parts = [list(column) for column in zip(LocalDealer(0, 1, [bytes(16)]).take(request), strict=True)]
        parts[-1][0] = parts[-1][0] ^ 1
        with pytest.raises(AssertionError):
            verify(parts, **request.params)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_shares_satisfy_every_correlation(process, parties):
    address, _ = process
    session = os.urandom(16)
    clients = [DealerClient(address, session=session, rank=r, parties=parties) for r in range(parties)]
    take_and_check(clients)
    assert clients[0].offline_bits == sum(request.correction_bits for request, _ in CASES)
    assert all(client.offline_bits == 0 and client.seconds_waiting == 0 for client in clients[1:])
    assert 0 < clients[0].dealer_seconds < clients[0].seconds_waiting + clients[0].seconds_expanding + 1
    for client in clients:
        client.close()


def test_bits_of_large_requests(running):
    """A correction of several messages, of a size that is no multiple of a message."""
    request = Request("truncate", {"count": 150_001, "shift": 16})
    clients = running.all(2)
    mine, theirs = (client.take(request) for client in clients)
    assert clients[0].offline_bits == 2 * 150_001 * 64
    value, logical, arithmetic = (a + b for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(arithmetic, value >> 16)
    assert torch.equal(logical, (value >> 16) & ((1 << 48) - 1))


def test_exact_offline_bits_of_select(running):
    client = running.all(1)[0]
    client.take(Request("select", {"count": 10, "shift": 16}))
    assert client.offline_bits == 5 * 10 * 64


def test_prefetch_equals_on_demand(running):
    seeds = [os.urandom(16) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = [LocalDealer(rank, 2, seeds) for rank in range(2)]
    clients = running.all(2)
    state = running.dealer._sessions[clients[0]._session]
    for client, seed in zip(clients, seeds, strict=True):  # the same seeds as the local stand-in: the same shares
        client.seed = state.seeds[client.rank] = seed
    requests = [request for request, _ in CASES]
    for client in clients:
        client.prefetch(requests[2:9])
        with pytest.raises(DealerError, match="square.*but additive .*conv2d.*was prefetched"):
            client.take(Request("square", {"shape": [3, 5]}))
        assert client.offline_bits == (0 if client.rank else sum(request.correction_bits for request in requests[2:9]))
    for a, b in zip(clients, local, strict=True):
        b._index = 0
        for request in requests[2:9] + requests[:2] + requests[9:]:  # the last ones are on demand
            assert all(torch.equal(x, y) for x, y in zip(a.take(request), b.take(request), strict=True))


def test_takes_are_independent(running):
    client = running.all(1)[0]
    request = Request("square", {"shape": [4]})
    client.prefetch([request, request])
    first, second, third = (client.take(request)[0] for _ in range(3))
    assert not (first == second).any() and not (first == third).any() and not (second == third).any()


def test_what_party_0_receives_is_balanced(running):
    """A correction alone is uniform: of n bits, half are ones within six standard deviations of sqrt(n) / 2.

    About 650 positions are looked at: five would let one in 2700 runs fail by chance, six one in 800,000.
    """
    client = running.all(2)[0]
    requests = [
        (Request("square", {"shape": [4000]}), 1, 64),
        (Request("b2a", {"shape": [4000]}), 1, 64),
        (Request("wraps", {"shape": [4000]}), 1, 64),
        (Request("and", {"planes": 4, "count": 32_000}), 2, 8),
        (Request("select", {"count": 4000, "shift": 16}), 2, 64),
        (Request("truncate", {"count": 4000, "shift": 16}), 1, 64),
    ]
    for request, free, width in requests:
        for correction in client.take(request)[free:]:
            words = correction.flatten()
            for bit in range(width):  # every position by itself: a constant top bit would drown in the sum
                ones, n = int((words >> bit & 1).sum()), words.numel()
                assert abs(ones - n / 2) < 6 * n**0.5 / 2, (request.kind, bit)


def test_corrections_need_the_other_parties_seeds(running):
    """Party 0's shares of derived fields say nothing without the others': they differ from the values everywhere."""
    client = running.all(2)[0]
    r, squared = client.take(Request("square", {"shape": [1000]}))
    assert not (squared == r * r).any()


# Refusals -------------------------------------------------------------------------------------------------------------


def test_second_join_is_refused(running):
    session = os.urandom(16)
    running.join(1, 2, session)
    with pytest.raises(DealerError, match="party 1 of this session has joined already") as caught:
        running.join(1, 2, session)
    assert running.address in str(caught.value) and "session id of its own" in caught.value.hint


def test_parties_and_version_mismatch_name_both_sides(running, monkeypatch):
    session = os.urandom(16)
    running.join(1, 2, session)
    with pytest.raises(DealerError, match="party 0 says there are 3 parties, party 1 says 2"):
        running.join(0, 3, session)
    monkeypatch.setattr("hummingbird.mpc.dealer.client.VERSION", "0.0.1")
    with pytest.raises(DealerError, match=f"party 0 runs version 0.0.1, the dealer runs version {VERSION}"):
        running.join(0, 2, session)


def raw(running: Running, method: str, **fields) -> list[bytes]:
    """What a program of somebody else's could send."""
    channel = service.connect(running.address, timeout=5)
    data = json.dumps(fields).encode()
    try:
        if method == "Correct":
            return list(service.stream(channel, method, data, timeout=5))
        return [service.call(channel, method, data, timeout=5)]
    finally:
        channel.close()


def refusal(running: Running, method: str, **fields) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        raw(running, method, **fields)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION, caught.value
    return caught.value.details()


SQUARE = {"kind": "square", "params": {"shape": [2]}}


def test_an_index_is_served_once(running):
    client = running.all(1)[0]
    client.take(Request("square", {"shape": [2]}))
    fields = {"session": client._session.hex(), "token": client._token.hex(), "wait": 1, "requests": [SQUARE, SQUARE]}
    assert "index 0 has been served already, the next one is 1" in refusal(running, "Correct", first=0, **fields)
    assert len(raw(running, "Correct", first=1, **fields)) == 2
    assert "index 2 has been served already, the next one is 3" in refusal(running, "Correct", first=2, **fields)
    assert len(raw(running, "Correct", first=7, **fields)) == 2  # gaps do no harm
    with pytest.raises(DealerError, match="index 1 has been served already, the next one is 9"):
        client.take(Request("square", {"shape": [2]}))
    with pytest.raises(DealerError, match="an earlier request failed"):
        client.take(Request("square", {"shape": [2]}))


def test_an_index_is_used_up_by_a_call_that_is_abandoned(running):
    client = running.all(1)[0]
    item = {"kind": "square", "params": {"shape": [1 << 18]}}
    message = client._message(first=0, requests=[item] * 20, wait=1)
    stream = service.stream(client._channel, "Correct", message, timeout=20)
    next(stream)
    stream.cancel()
    deadline = time.monotonic() + 10
    while running.dealer._sessions[client._session].busy:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(DealerError, match="index 0 has been served already, the next one is 20"):
        client.take(Request("square", {"shape": [2]}))


def test_party_1_gets_no_corrections(running):
    clients = running.all(2)
    assert clients[1]._token == b""
    fields = {"session": clients[1]._session.hex(), "first": 0, "wait": 1, "requests": [SQUARE]}
    assert "token is not 16 bytes" in refusal(running, "Correct", token="", **fields)
    for guess in (clients[1].seed, clients[0].seed, bytes(16)):
        assert "only party 0" in refusal(running, "Correct", token=guess.hex(), **fields)
        assert "only party 0" in refusal(running, "Leave", token=guess.hex(), **fields)
    take_and_check(clients, CASES[:2])  # nothing was used up


MALFORMED = [
    {},
    {"requests": "square"},
    {"requests": [["square", {}]]},
    {"requests": [{"kind": "square"}]},
    {"requests": [{"kind": 3, "params": {}}]},
    {"requests": [{"kind": "cube", "params": {}}]},
    {"requests": [{"kind": "square", "params": {"shape": [-1]}}]},
    {"requests": [{"kind": "square", "params": {"shape": ["x"]}}]},
    {"requests": [{"kind": "square", "params": {"shape": [1 << 40]}}]},
    {"requests": [{"kind": "square", "params": {"surprise": 1}}]},
    {"requests": [{"kind": "select", "params": {"count": 8, "shift": 63}}]},
    {"requests": [SQUARE], "first": -1},
    {"requests": [SQUARE], "first": 1 << 70},
    {"requests": [SQUARE], "first": 0.5},
    {"requests": [SQUARE], "first": True},
    {"requests": [SQUARE], "wait": float("nan")},
    {"requests": [SQUARE], "wait": "long"},
    {"requests": [SQUARE], "session": "zz"},
    {"requests": [SQUARE], "token": None},
]


@pytest.mark.parametrize("fields", MALFORMED)
def test_malformed_requests_are_refused(running, fields):
    client = running.all(1)[0]
    good = {"session": client._session.hex(), "token": client._token.hex(), "first": 0, "wait": 1}
    assert refusal(running, "Correct", **{**good, **fields})
    client.take(Request("square", {"shape": [2]}))  # the session goes on, and index 0 was not used up


def test_malformed_joins_and_bytes_are_refused(running):
    good = {"session": os.urandom(16).hex(), "rank": 0, "parties": 2, "version": VERSION}
    for bad in (
        {"rank": 2},
        {"rank": -1},
        {"rank": "0"},
        {"parties": 0},
        {"parties": 1000},
        {"session": "ab"},
        {"version": 1},
    ):
        assert "malformed" in refusal(running, "Join", **{**good, **bad})
    channel = service.connect(running.address, timeout=5)
    for data in (b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"session": '):
        for method in ("Join", "Leave"):
            with pytest.raises(grpc.RpcError) as caught:
                service.call(channel, method, data, timeout=5)
            assert "expected a JSON object" in caught.value.details()
    channel.close()


def test_bad_request_is_an_error_at_every_party(running):
    for client in running.all(2):
        with pytest.raises(DealerError, match="unknown kind"):
            client.take(Request("cube", {}))
        with pytest.raises(DealerError, match="exceeds"):
            client.prefetch([Request("square", {"shape": [1 << 40]})])


def test_a_fault_in_the_dealer_is_an_error_of_the_client(running, monkeypatch):
    def broken(*_):
        raise RuntimeError("boom")

    client = running.all(1)[0]
    monkeypatch.setattr(server_module, "corrections", broken)
    with pytest.raises(DealerError, match="the service failed: RuntimeError: boom"):
        client.take(Request("square", {"shape": [2]}))


def test_client_believes_no_sizes(running, monkeypatch):
    for wrong in (
        [torch.zeros(3, dtype=torch.int64)],
        [torch.zeros(1, dtype=torch.int64)],
        [torch.zeros(2).float()],
        [],
    ):
        client = running.all(1)[0]
        monkeypatch.setattr(server_module, "corrections", lambda *_, wrong=wrong: wrong)
        with pytest.raises(DealerError, match="malformed corrections for square"):
            client.take(Request("square", {"shape": [2]}))


def test_missing_party_is_named(running):
    client = running.join(0, 3, os.urandom(16), timeout=0.4)
    started = time.monotonic()
    with pytest.raises(DealerError, match=r"parties \[1, 2\] did not join"):
        client.take(Request("square", {"shape": [2]}))
    assert time.monotonic() - started < 3


def test_waits_for_a_late_party(running):
    session = os.urandom(16)
    first = running.join(0, 2, session)
    late = []
    timer = threading.Timer(0.3, lambda: late.append(running.join(1, 2, session)))
    timer.start()
    mine = first.take(Request("square", {"shape": [5]}))
    timer.join()
    r, squared = (a + b for a, b in zip(mine, late[0].take(Request("square", {"shape": [5]})), strict=True))
    assert torch.equal(squared, r * r)


# Sessions end ---------------------------------------------------------------------------------------------------------


def test_leaving_frees_the_session_and_its_id_is_not_used_again(running):
    clients = running.all(2)
    session = clients[0]._session
    clients[1].close()
    assert session in running.dealer._sessions  # only party 0 ends a session
    clients[0].close()
    clients[0].close()
    assert session not in running.dealer._sessions
    with pytest.raises(DealerError, match="the client is closed"):
        clients[0].take(Request("square", {"shape": [2]}))
    with pytest.raises(DealerError, match="this session has ended"):
        running.join(0, 2, session)


def test_party_0_may_leave_before_the_others_come():
    dealer = Dealer()
    seed, token = dealer.join(b"s" * 16, 0, 2, VERSION)
    dealer.leave(b"s" * 16, token)
    with pytest.raises(DealerError, match="party 0 has left"):
        next(dealer.correct(b"s" * 16, token, 0, [Request("square", {"shape": [1]})], 0.0))
    assert not dealer.ended.is_set()
    other, empty = dealer.join(b"s" * 16, 1, 2, VERSION)
    assert other != seed and empty == b"" and dealer.ended.is_set()


def test_the_number_of_sessions_is_limited():
    dealer = Dealer()
    tokens = []
    for number in range(MAX_SESSIONS):
        tokens.append(dealer.join(number.to_bytes(16, "big"), 0, 1, VERSION)[1])
    with pytest.raises(DealerError, match=f"keeps {MAX_SESSIONS} sessions already"):
        dealer.join(b"x" * 16, 0, 1, VERSION)
    request = [Request("square", {"shape": [1]})]
    calls = [
        dealer.correct(number.to_bytes(16, "big"), token, 0, request, 1.0)
        for number, token in enumerate(tokens[: MAX_BUSY + 1])
    ]
    for frames in calls[:-1]:
        next(frames)
    with pytest.raises(DealerError, match=f"serves {MAX_BUSY} sessions at this moment"):
        next(calls[-1])


def test_idle_sessions_are_dropped():
    dealer = Dealer(idle_seconds=0.05)
    _, token = dealer.join(b"a" * 16, 0, 1, VERSION)
    time.sleep(0.1)
    dealer.join(b"b" * 16, 0, 1, VERSION)
    with pytest.raises(DealerError, match="no such session"):
        dealer.leave(b"a" * 16, token)


def test_one_call_at_a_time_and_time_is_counted():
    dealer = Dealer()
    _, token = dealer.join(b"a" * 16, 0, 1, VERSION)
    request = Request("square", {"shape": [100_000]})
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
    dealer, outcomes = Dealer(), []

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
        Dealer(parties=2).join(b"a" * 16, 0, 3, VERSION)


# Processes ------------------------------------------------------------------------------------------------------------


def test_dealer_starts_without_crypten():
    code = """
import sys
sys.modules["crypten"] = None  # an import of it would raise
import hummingbird.mpc.dealer.command, hummingbird.mpc.dealer.client, hummingbird.mpc.dealer.local
assert "torchvision" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=60)


def test_spawned_dealer_ends_with_its_session():
    address, process = spawn_local(2, 60)
    folder = Path(address.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "dealer.sock").stat().st_mode & 0o077 == 0
    assert os.getpgid(process.pid) != os.getpgid(0)
    session = os.urandom(16)
    clients = [DealerClient(address, session=session, rank=rank, parties=2) for rank in range(2)]
    take_and_check(clients, CASES[:4])
    for client in clients:
        client.close()
    assert process.wait(10) == 0


def test_killed_dealer_is_an_error_within_the_timeout():
    address, process = spawn_local(1, 60)
    client = DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=10)
    client.take(Request("square", {"shape": [2]}))
    threading.Timer(0.5, process.kill).start()
    started = time.monotonic()
    with pytest.raises(DealerError, match="connection is lost") as caught:
        client.prefetch([Request("square", {"shape": [1 << 20]})] * 2000)  # 16 GB: killed in the middle
    assert time.monotonic() - started < 10
    assert address in str(caught.value) and caught.value.hint
    with pytest.raises(DealerError, match="an earlier request failed"):
        client.take(Request("square", {"shape": [2]}))
    client.close()
    process.wait(10)
    with pytest.raises(DealerError, match="nothing answers") as caught:
        DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=0.5)
    assert "is the service running" in caught.value.hint


def test_stopped_dealer_is_an_error_within_the_timeout():
    address, process = spawn_local(1, 60)
    client = DealerClient(address, session=os.urandom(16), rank=0, parties=1, timeout=0.5)
    os.kill(process.pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(DealerError, match="no answer in time"):
            client.take(Request("square", {"shape": [2]}))
        client.close()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert time.monotonic() - started < 8
    process.stdin.close()
    assert process.wait(10) == 0  # a closed stdin ends it, though party 0 could not say that it leaves


def test_dealer_ends_with_its_parent():
    code = """
import os, sys
from hummingbird.mpc.dealer.command import spawn_local
address, process = spawn_local(2, 60)
print(process.pid, address, flush=True)
os._exit(9)  # no atexit handler runs
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root, timeout=60)
    pid, address = done.stdout.split()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    socket_file = Path(address.removeprefix("unix:"))
    assert not socket_file.exists()
    socket_file.parent.rmdir()


def test_startup_time(process):
    assert process[1] < 15  # about 1 s alone on a core; other processes share the machine


def test_command_errors():
    command = [sys.executable, "-m", "hummingbird.mpc.dealer.command", "--listen"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, "0.0.0.0:4000"], capture_output=True, text=True, cwd=root, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("error: plain text is for unix sockets")
    assert "\nhint: " in done.stderr and "Traceback" not in done.stderr


# Addresses and TLS ----------------------------------------------------------------------------------------------------


def test_local_stand_in():
    with pytest.warns(UserWarning, match="NO privacy"):
        LocalDealer(0, 2, [bytes(16), bytes(16)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = LocalDealer(0, 1, [os.urandom(16)])
    take_and_check([alone])
    assert alone.offline_bits == sum(request.correction_bits for request, _ in CASES)
    with pytest.raises(InputError):
        LocalDealer(2, 2, [bytes(16), bytes(16)])


@pytest.mark.parametrize(
    "address", ["0.0.0.0:5000", "192.0.2.1:5000", "example.org:5000", "[::]:5000", "unix.example:1"]
)
def test_plain_text_stays_on_this_host(address):
    for function in (lambda: service.serve({}, address), lambda: service.connect(address, timeout=1)):
        with pytest.raises(TrustError, match="plain text") as caught:
            function()
        assert "mutual TLS" in caught.value.hint


@pytest.mark.parametrize(
    "address", ["", "5000", "localhost", "localhost:", ":5000", "::1:5000", "host:0", "host:x", "unix:"]
)
def test_malformed_addresses(address):
    with pytest.raises(InputError):
        service.connect(address, timeout=1)
    with pytest.raises(InputError, match="107 bytes"):
        service.serve({}, "unix:/" + "x" * 107)


def test_an_address_in_use_is_not_taken_over(running, tmp_path):
    with pytest.raises(EnvironmentProblem, match="in use"):
        service.serve({}, running.address)
    with socket.socket(socket.AF_UNIX) as killed:  # what a killed server leaves behind
        killed.bind(str(tmp_path / "s"))
    service.serve({}, f"unix:{tmp_path}/s").stop(0).wait()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    first = service.serve({}, address)
    with pytest.raises(EnvironmentProblem, match="cannot listen"):
        service.serve({}, address)
    first.stop(0).wait()


def test_unreachable_address():
    with pytest.raises(PeerError, match="nothing answers.*refused"):
        service.connect("127.0.0.1:1", timeout=0.3)


class Authority:
    """A certificate authority that issues into a folder."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, label)])
        self.path = folder / f"{label}.pem"
        self.path.write_bytes(self._sign(self.name, self.key, ca=True))

    def _sign(self, subject, key, *, ca=False, names=()):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if names:
            entries = [x509.DNSName(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(entries), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, *names: str) -> Tls:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        stem = self.folder / f"{self.label}-{common_name}"
        stem.with_suffix(".crt").write_bytes(self._sign(subject, key, names=names or (common_name,)))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        stem.with_suffix(".key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return Tls(stem.with_suffix(".crt"), stem.with_suffix(".key"), self.path)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A dealer with mutual TLS on loopback, its authority, and another authority."""
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    certificate = ours.issue("dealer", "localhost")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"localhost:{probe.getsockname()[1]}"
    server = service.serve(handlers(Dealer()), address, certificate)
    yield address, ours, theirs
    server.stop(0).wait()


def joined(
    address: str, rank: int, tls: Tls | None, session: bytes | None = None, timeout: float = 10.0
) -> DealerClient:
    return DealerClient(address, session=session or os.urandom(16), rank=rank, parties=2, tls=tls, timeout=timeout)


def test_mutual_tls_works(secure):
    address, ours, _ = secure
    session = os.urandom(16)
    clients = [joined(address, rank, ours.issue(f"party-{rank}"), session) for rank in range(2)]
    take_and_check(clients, CASES[:4])
    for client in clients:
        client.close()


def test_tls_over_a_unix_socket(secure, tmp_path):
    _, ours, _ = secure
    server = service.serve({}, f"unix:{tmp_path}/s", ours.issue("dealer", "localhost"))
    service.connect(f"unix:{tmp_path}/s", ours.issue("party-0"), timeout=5).close()
    server.stop(0).wait()


def test_certificate_of_another_party_is_refused(secure):
    address, ours, _ = secure
    with pytest.raises(DealerError, match="certificate of party 0 is for 'party-1', expected 'party-0'"):
        joined(address, 0, ours.issue("party-1"))


def test_certificate_of_another_authority_is_refused(secure):
    address, ours, theirs = secure
    stranger = theirs.issue("party-0")
    started = time.monotonic()
    with pytest.raises(DealerError, match="connection is refused") as caught:  # the dealer dislikes ours
        joined(address, 0, Tls(stranger.cert, stranger.key, ours.path))
    assert "another authority" in caught.value.hint and address in str(caught.value)
    with pytest.raises(DealerError, match="TLS failed.*CERTIFICATE_VERIFY_FAILED"):  # we dislike the dealer's
        joined(address, 0, stranger)
    assert time.monotonic() - started < 8  # long before the timeouts


def test_service_of_another_name_is_refused(secure):
    address, ours, _ = secure
    with pytest.raises(DealerError, match="TLS failed.*Hostname"):
        joined(address.replace("localhost", "127.0.0.1"), 0, ours.issue("party-0"))


def test_client_without_a_certificate_is_refused(secure):
    address, ours, _ = secure
    with pytest.raises(DealerError, match="connection is refused"):  # plain text
        joined(address, 0, None)
    channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ours.path.read_bytes()))
    with pytest.raises(grpc.RpcError) as caught:
        service.call(channel, "Ping", b"", timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    channel.close()


def test_plain_service_is_no_match_for_a_tls_client(running, secure):
    _, ours, _ = secure
    with pytest.raises(DealerError, match="TLS failed|connection is refused"):
        joined(running.address, 0, ours.issue("party-0"), timeout=5)


def test_unusable_certificate_files(secure, tmp_path):
    address, ours, _ = secure
    good, other = ours.issue("party-0"), ours.issue("party-1")
    missing, rubbish = tmp_path / "missing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    cases = [
        (Tls(missing, good.key, good.ca), missing, "cannot read a TLS file: No such file"),
        (Tls(good.cert, rubbish, good.ca), rubbish, "not a usable TLS file"),
        (Tls(good.cert, good.key, rubbish), rubbish, "not a usable TLS file"),
        (Tls(good.cert, other.key, good.ca), other.key, "the key does not belong to the certificate"),
    ]
    for tls, path, message in cases:
        for use in (lambda tls=tls: joined(address, 0, tls), lambda tls=tls: service.serve({}, "127.0.0.1:9", tls)):
            with pytest.raises(EnvironmentProblem, match=message) as caught:
                use()
            assert caught.value.where == str(path)
        with pytest.raises(EnvironmentProblem, match=message):
            tls.contexts()


def test_contexts_for_plain_sockets(secure):
    """The pair that the parties' channel uses: both sides must show a certificate of the authority."""
    _, ours, theirs = secure

    def meet(client: Tls, server: Tls) -> str:
        left, right = socket.socketpair()
        names = []

        def accept():
            try:
                with server.contexts()[1].wrap_socket(right, server_side=True) as end:
                    end.sendall(b"x")
                    names.append(dict(entry[0] for entry in end.getpeercert()["subject"])["commonName"])
            except OSError:
                right.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with client.contexts()[0].wrap_socket(left, server_hostname="party-1") as end:
                assert end.recv(1) in (b"x", b"")
        finally:
            left.close()
            thread.join()
        return names[0] if names else ""

    one, two = ours.issue("party-0"), ours.issue("party-1")
    assert meet(one, two) == "party-0"
    with pytest.raises(OSError, match="[Hh]ostname"):
        meet(two, one)
    with pytest.raises(OSError, match="CERTIFICATE|certificate|alert"):
        meet(theirs.issue("party-0"), two)
