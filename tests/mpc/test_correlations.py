"""Correlated randomness through a real dealer."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from hummingbird.errors import DealerError
from hummingbird.mpc.correlations import KINDS, Request
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.local import LocalDealer
from tests.support.correlation_checks import CASES, take_and_check


def test_every_kind_has_a_case():
    # A mask that outlives its request: tests/mpc/test_private_weights.py.
    assert {request.kind for request, _ in CASES} == set(KINDS) - {"fixed", "linear"}


def test_the_checks_can_fail():
    for request, verify in CASES:
        parts = [list(column) for column in zip(LocalDealer(0, 1, [bytes(16)]).take(request), strict=True)]
        parts[-1][0] = parts[-1][0] ^ 1
        with pytest.raises(AssertionError):
            verify(parts, **request.params)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_shares_satisfy_every_correlation(process, parties):
    session = os.urandom(16)
    clients = [DealerClient(process, session=session, rank=r, parties=parties) for r in range(parties)]
    take_and_check(clients)
    assert clients[0].offline_bits == sum(request.correction_bits for request, _ in CASES)
    assert all(client.offline_bits == 0 and client.dealer_seconds == 0 for client in clients[1:])
    assert 0 < clients[0].dealer_seconds < clients[0].seconds_waiting + 1
    assert all(0 < client.seconds_expanding < client.seconds_waiting for client in clients)  # all on demand
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


def test_reserved_equals_on_demand(running):
    seeds = [os.urandom(16) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = [LocalDealer(rank, 2, seeds) for rank in range(2)]
    clients = running.all(2)
    state = running.dealer._sessions[clients[0]._session]
    for client, seed in zip(clients, seeds, strict=True):  # the same seeds as the local stand-in: the same shares
        client.seed = state.seeds[client.rank] = seed
    requests = [request for request, _ in CASES]
    for client, stand_in in zip(clients, local, strict=True):
        supply = client.reserve(requests[2:9])
        with pytest.raises(DealerError, match="square.*but additive .*conv2d.*was reserved"):
            supply.take(Request("square", {"shape": [3, 5]}))
        assert client.offline_bits == 0  # counted when it is handed out
        later = client.reserve(None)
        takes = [supply.take] * 7 + [later.take] * 2 + [client.take] * (len(requests) - 9)
        for take, request in zip(takes, requests[2:9] + requests[:2] + requests[9:], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(take(request), stand_in.take(request), strict=True))
        assert client.offline_bits == (0 if client.rank else sum(request.correction_bits for request in requests))
        with pytest.raises(DealerError, match="but nothing more was reserved"):
            supply.take(requests[0])


def test_takes_are_independent(running):
    client = running.all(1)[0]
    request = Request("square", {"shape": [4]})
    supply = client.reserve([request, request])
    first, second, third = (take(request)[0] for take in (supply.take, client.take, supply.take))
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
