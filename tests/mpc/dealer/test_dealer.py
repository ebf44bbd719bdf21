"""The dealer's refusals, in words: joins, indices, malformed requests, sizes."""

from __future__ import annotations

import itertools
import os
import random
import threading
import tracemalloc

import grpc
import pytest
import torch

from hummingbird import records
from hummingbird.errors import DealerError
from hummingbird.mpc.dealer import server as server_module
from hummingbird.mpc.dealer.server import CorrectRequest, Used
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.protocols.registry import from_json
from hummingbird.rpc import client as rpc_client
from hummingbird.version import VERSION
from tests.support.correlation_checks import CASES, take_and_check
from tests.support.dealers import SQUARE, raw, refusal
from tests.support.patience import HANG, until


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


def test_a_number_is_served_once(running):
    client = running.all(1)[0]
    client.correlation(SquarePair((2,)))
    fields = {"session": client._session.hex(), "token": client._token.hex(), "wait": 1, "requests": [SQUARE, SQUARE]}
    assert "number 0 has been served already" in refusal(running, "Correct", first=0, **fields)
    assert len(raw(running, "Correct", first=1, **fields)) == 2
    assert "number 2 has been served already" in refusal(running, "Correct", first=2, **fields)
    assert len(raw(running, "Correct", first=7, **fields)) == 2  # gaps do no harm
    assert "number 7 has been served already" in refusal(running, "Correct", first=6, **fields)
    assert len(raw(running, "Correct", first=3, **fields)) == 2  # and can be filled later
    assert running.dealer._sessions[client._session].members[0].used_numbers.spans == [(0, 5), (7, 9)]
    with pytest.raises(DealerError, match="number 1 has been served already"):
        client.correlation(SquarePair((2,)))
    with pytest.raises(DealerError, match="an earlier request failed"):
        client.correlation(SquarePair((2,)))


def test_used_numbers_against_a_set():
    """Random spans: refused exactly when one of the indices is in the set; the spans stay few and sorted."""
    random.seed(7)
    used, reference = Used(), set()
    for _ in range(3000):
        first, count = random.randrange(400), random.randrange(1, 6)
        wanted = set(range(first, first + count))
        if wanted & reference:
            with pytest.raises(DealerError, match="served already") as caught:
                used.mark(first, count)
            assert int(caught.value.what.split()[1]) in wanted & reference
        else:
            used.mark(first, count)
            reference |= wanted
        assert {index for start, end in used.spans for index in range(start, end)} == reference
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(used.spans))


def test_a_number_is_used_up_by_a_call_that_is_abandoned(running):
    client = running.all(1)[0]
    asked = CorrectRequest(client._session, client._token, 0, 0, (SquarePair((1 << 18,)),) * 20, 1.0)
    message = records.write(asked).encode()
    stream = rpc_client.stream(client._channel, "Correct", message, timeout=HANG)
    next(stream)
    stream.cancel()
    until(lambda: not running.dealer._sessions[client._session].busy, "the end of a cancelled call")
    with pytest.raises(DealerError, match="number 0 has been served already"):
        client.correlation(SquarePair((2,)))


def test_a_token_is_needed_and_says_whose_corrections_come(running):
    """No other party can ask for it: the same number is another piece of randomness."""
    clients = running.all(2)
    fields = {"session": clients[1]._session.hex(), "first": 0, "wait": 1, "requests": [SQUARE]}
    assert "token is not 16 bytes" in refusal(running, "Correct", token="", **fields)
    for guess in (clients[1].seed, clients[0].seed, bytes(16)):
        assert "only a party of a session" in refusal(running, "Correct", token=guess.hex(), **fields)
        assert "only a party of a session" in refusal(running, "Leave", token=guess.hex(), session=fields["session"])
    take_and_check(clients, CASES[:2])  # nothing was used up
    members = running.dealer._sessions[clients[0]._session].members
    assert [members[rank].used_numbers.spans for rank in range(2)] == [[(0, 1)], [(0, 1)]]
    fields = {**fields, "first": 7, "requests": [{"kind": "square", "params": {"shape": [1000], "bits": 64}}]}
    frames = [b"".join(raw(running, "Correct", token=client._token.hex(), **fields))[-8000:] for client in clients]
    assert sum(one == other for one, other in zip(*frames, strict=True)) < 1000  # of 8,000 bytes


MALFORMED = [
    {},
    {"requests": "square"},
    {"requests": [["square", {}]]},
    {"requests": [{"kind": "square"}]},
    {"requests": [{"kind": 3, "params": {}}]},
    {"requests": [{"kind": "cube", "params": {}}]},
    {"requests": [{"kind": "square", "params": {"shape": [-1], "bits": 64}}]},
    {"requests": [{"kind": "square", "params": {"shape": ["x"], "bits": 64}}]},
    {"requests": [{"kind": "square", "params": {"shape": [1 << 40], "bits": 64}}]},
    {"requests": [{"kind": "square", "params": {"surprise": 1}}]},
    {"requests": [{"kind": "select", "params": {"count": 8, "shift": 63}}]},
    {"requests": [{"kind": "select", "params": {"count": [8], "shift": 3}}]},
    {"requests": [{"kind": "square", "params": {"shape": 8, "bits": 64}}]},
    {"requests": [{"kind": "square", "params": {"shape": [2], "bits": 65}}]},
    {"requests": [SQUARE] * 4097},
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
    client.correlation(SquarePair((2,)))  # the session goes on, and index 0 was not used up


MASKED = {"count": 1, "k": 20, "m": 0, "tables": 3, "ring": 64, "whole": 0}
CONV = {"op": "conv2d", "size0": [1, 1, 2, 2], "size1": [1, 1, 2, 2], "bits": 64}
HUGE = 1 << 27


@pytest.mark.parametrize(
    "kind, params",
    [
        *(("masked", {**MASKED, **more}) for more in ({"k": HUGE, "tables": HUGE // 8, "ring": HUGE}, {"k": 65})),
        *(("masked", {**MASKED, **more}) for more in ({"tables": 65}, {"ring": 65}, {"m": 65}, {"m": 21})),
        ("masked", {**MASKED, "whole": 2}),
        ("and_pair", {"planes": 1, "second": 2, "count": 8}),
        # margins of 2^28 that the dilation takes away again: the result has a few elements, its input 2^56
        ("additive", {**CONV, "kwargs": {"padding": HUGE, "dilation": 2 * HUGE}}),
        ("additive", {**CONV, "op": "conv_transpose2d", "kwargs": {"padding": HUGE, "dilation": 2 * HUGE}}),
        ("additive", {**CONV, "kwargs": {"groups": 0}}),
        ("additive", {**CONV, "kwargs": {"stride": []}}),
        ("additive", {**CONV, "op": "x" * 100_000, "kwargs": {}}),
    ],
)
def test_numbers_are_bounded_before_lists_are_built_from_them(kind, params):
    from_json({"kind": "masked", "params": MASKED})
    from_json({"kind": "additive", "params": {**CONV, "kwargs": {"padding": 1, "dilation": 2}}})
    tracemalloc.start()
    with pytest.raises(DealerError) as caught:
        from_json({"kind": kind, "params": params})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20 and len(str(caught.value)) < 1000


def test_malformed_joins_and_bytes_are_refused(running):
    good = {
        "session": os.urandom(16).hex(),
        "rank": 0,
        "parties": 2,
        "version": VERSION,
        "cipher": "aes-128-ctr",
    }
    for bad in (
        {"rank": 2},
        {"rank": -1},
        {"rank": "0"},
        {"parties": 0},
        {"parties": 1000},
        {"session": "ab"},
        {"version": 1},
        {"cipher": "des"},
        {"cipher": 1},
    ):
        assert "malformed" in refusal(running, "Join", **{**good, **bad})
    channel = rpc_client.connect(running.address, timeout=HANG)
    for data in (b"", b"\xff\xfe", b"[1]", b"[" * 100_000, b'{"session": '):
        for method in ("Join", "Leave"):
            with pytest.raises(grpc.RpcError) as caught:
                rpc_client.call(channel, method, data, timeout=HANG)
            assert caught.value.details().startswith("malformed request: it ")
    channel.close()


def test_bad_request_is_an_error_at_every_party(running):
    for client in running.all(2):
        with pytest.raises(DealerError, match="unknown kind"):
            client.correlation(from_json({"kind": "cube", "params": {}}))
        with pytest.raises(DealerError, match=r"shape \(1099511627776,\) is not at most 8 sizes in 0\.\.268435456"):
            client.reserve([SquarePair((1 << 40,))])
        with pytest.raises(DealerError, match="exceeds 268435456 elements"):
            client.reserve([SquarePair((1 << 15, 1 << 15))])


def test_a_fault_in_the_dealer_is_an_error_of_the_client(running, monkeypatch):
    def broken(*_):
        raise RuntimeError("boom")

    client = running.all(1)[0]
    monkeypatch.setattr(server_module, "corrections", broken)
    with pytest.raises(DealerError, match="the service failed: RuntimeError") as caught:
        client.correlation(SquarePair((2,)))
    assert "boom" not in str(caught.value)  # a foreign text may hold data


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
            client.correlation(SquarePair((2,)))


def test_missing_party_is_named(running):
    client = running.join(0, 3, os.urandom(16))
    client._timeout = 0.4  # from here on: joining is not to run into it
    with pytest.raises(DealerError, match=r"parties \[1, 2\] did not join"):
        client.correlation(SquarePair((2,)))


def test_waits_for_a_late_party(running):
    session = os.urandom(16)
    first = running.join(0, 2, session)
    late = []
    timer = threading.Timer(0.3, lambda: late.append(running.join(1, 2, session)))
    timer.start()
    mine = first.correlation(SquarePair((5,)))
    timer.join()
    theirs = late[0].correlation(SquarePair((5,)))
    r, squared = (mine.shares[name] + theirs.shares[name] for name in ("r", "square"))
    assert torch.equal(squared, r * r)
