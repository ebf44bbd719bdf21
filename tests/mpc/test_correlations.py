"""Correlated randomness through a real dealer."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import warnings

import pytest
import torch

from hummingbird.errors import DealerError, PeerError
from hummingbird.kernels.shares.packing import plain
from hummingbird.mpc.correlations.provider import SharedBit, Wraps
from hummingbird.mpc.correlations.request import (
    Material,
    ReceiverRotation,
    ReceiverTurn,
    corrections,
    expand,
    layout,
    received,
    received_by,
)
from hummingbird.mpc.dealer.client import DealerClient, LocalDealer
from hummingbird.mpc.protocols.beaver import SquarePair
from hummingbird.mpc.protocols.boolean import And
from hummingbird.mpc.protocols.registry import KINDS, from_json
from hummingbird.mpc.protocols.truncation import Selection, Truncation
from hummingbird.rpc.frame import frame_bytes
from tests.support.chance import DEVIATIONS
from tests.support.correlation_checks import CASES, columns, take_and_check
from tests.support.covering import every
from tests.support.patience import NEVER


def test_every_kind_has_a_case():
    # Masks that outlive their request: test_private_weights.py, test_cached_rows.py.
    assert {request.kind for request, _ in CASES} == set(KINDS) - {"fixed", "linear", "cached_rows", "cached_matmul"}


def test_a_signal_while_a_request_is_checked_is_not_the_requests_fault(monkeypatch):
    def check(request: And) -> None:
        raise PeerError("this party was told to stop")  # as the handler of SIGTERM does, wherever a party is

    monkeypatch.setattr(And, "check", check)
    with pytest.raises(PeerError, match="^this party was told to stop$"):
        And(planes=2, count=3)


def test_shares_are_named_as_the_fields_are():
    for request, _ in CASES:
        material = LocalDealer(0, 1, [bytes(16)]).correlation(request)
        shares = request.shares(**material.shares)
        for name, tensor in material.shares.items():
            if name == "flag_mask":  # without a shift the mask is its own quotient
                assert shares.flag_unsigned is shares.flag_signed is tensor and shares.unsigned is shares.mask
            elif name.startswith("table_"):
                assert shares.tables[int(name.removeprefix("table_"))] is tensor
            elif name.startswith("power_"):
                assert shares.coefficients[int(name.removeprefix("power_"))] is tensor
            else:
                assert getattr(shares, name) is tensor


def test_a_request_is_the_same_after_a_journey():
    for request, _ in CASES:
        again = from_json(json.loads(json.dumps(request.to_json())))
        assert again == request and str(again) == str(request)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_checked(kind):
    good = {
        **{name: 2 for name in ("planes", "second", "count", "knots", "shift", "m", "tables", "key", "divisor")},
        **{"name": "silu(x)", "fraction": 2, "w": 2, "degree": 2, "scale": 2, "gain": 2, "stretch": 2},
        **{"value": 6, "factor": 6, "sums": 9, "product": 9, "cut": 0},
        **{
            "k": 6,
            "ring": 9,
            "bits": 9,
            "squares": 1,
            "values": 1,
            "whole": 1,
            "shape": [2],
            "size0": [2],
            "size1": [2],
            "op": "mul",
        },
        "kwargs": {},
    }
    if kind == "lifted_matmul":
        good |= {"size0": [2, 2], "size1": [2, 2]}
    if kind in ("cached_rows", "cached_matmul"):
        good |= {"size0": [2, 2], "rows": [2, 2], "turned": 1, "factor": 9}
    params = {field.name: good[field.name] for field in dataclasses.fields(KINDS[kind])}
    from_json({"kind": kind, "params": params})
    wrong = [None, True, -1, 0.5, "2", "__class__", 1 << 40, [-1], [True], ["2"], [[2]], [1 << 40], [1] * 9, {"a": 1}]
    wrong += [{}] if "kwargs" not in params else [{"stride": "2"}, {"stride": [[1]]}, {"out": 1}]
    for name in params:
        for value in wrong:
            with pytest.raises(DealerError, match="malformed request"):
                from_json({"kind": kind, "params": {**params, name: value}})
        with pytest.raises(DealerError, match="its parameters are"):
            from_json({"kind": kind, "params": {key: value for key, value in params.items() if key != name}})
    with pytest.raises(DealerError, match="its parameters are"):
        from_json({"kind": kind, "params": {**params, "more": 1}})


def test_the_checks_can_fail():
    for request, verify in CASES:
        parts = columns(request, [LocalDealer(0, 1, [bytes(16)]).correlation(request)])
        parts[-1][0] = parts[-1][0] ^ 1
        with pytest.raises(AssertionError):
            verify(parts, **request.params)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_shares_satisfy_every_correlation(process, parties):
    session = os.urandom(16)
    clients = [DealerClient(process, session=session, rank=r, parties=parties) for r in range(parties)]
    taken, bits = take_and_check(clients), [request.correction_bits for request, _ in CASES]
    for rank, materials in enumerate(taken):
        assert [material.offline_bits for material in materials] == bits
        mine = [turn.receiver == rank for turn in ReceiverRotation(parties).take([request for request, _ in CASES])]
        assert any(mine) and [material.received_bits for material in materials] == [
            size if here else 0 for size, here in zip(bits, mine, strict=True)
        ]
        for material, here in zip(materials, mine, strict=True):
            assert (0 < material.dealer_seconds < NEVER) if here else material.dealer_seconds == 0
    for materials in taken:  # all on demand
        expanding = sum(material.expanding_seconds for material in materials)
        assert 0 < expanding < sum(material.waiting_seconds for material in materials)
    for client in clients:
        client.close()


def test_bits_of_large_requests(running):
    """A correction of several messages, of a size that is no multiple of a message."""
    request = Truncation(150_001, shift=16)
    mine, theirs = (client.correlation(request) for client in running.all(2))
    assert (mine.received_bits, theirs.received_bits) == (2 * 150_001 * 64, 0)
    assert mine.offline_bits == theirs.offline_bits == 2 * 150_001 * 64
    value, unsigned, signed = (mine.shares[name] + theirs.shares[name] for name in request.parts)
    assert torch.equal(signed, value >> 16)
    assert torch.equal(unsigned, (value >> 16) & ((1 << 48) - 1))


def test_exact_offline_bits_of_select(running):
    client = running.all(1)[0]
    assert client.correlation(Selection(10, shift=16)).offline_bits == 5 * 10 * 64


def test_reserved_equals_on_demand(running):
    seeds = [os.urandom(16) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = [LocalDealer(rank, 2, seeds) for rank in range(2)]
    clients = running.all(2)
    state = running.dealer._sessions[clients[0]._session]
    for client, seed in zip(clients, seeds, strict=True):  # the same seeds as the local stand-in: the same shares
        client.seed = state.members[client.rank].seed = seed
    requests = [request for request, _ in CASES]
    for client, stand_in in zip(clients, local, strict=True):
        supply = client.reserve(requests[2:9])
        with pytest.raises(DealerError, match="square.*but additive .*conv2d.*was reserved"):
            supply.correlation(SquarePair((3, 5)))
        sources = [supply] * 7 + [client.reserve(None)] * 2 + [client] * (len(requests) - 9)
        for source, request in zip(sources, requests[2:9] + requests[:2] + requests[9:], strict=True):
            material, expected = source.correlation(request), stand_in.correlation(request)
            assert list(material.shares) == list(expected.shares)
            assert all(
                torch.equal(plain(share), plain(expected.shares[name])) for name, share in material.shares.items()
            )
            assert material.offline_bits == expected.offline_bits == request.correction_bits
            assert material.received_bits == expected.received_bits
        with pytest.raises(DealerError, match="but nothing more was reserved"):
            supply.correlation(requests[0])


def test_correlations_are_independent(running):
    client = running.all(1)[0]
    request = SquarePair((4,))
    supply = client.reserve([request, request])
    first, second, third = (source.correlation(request).shares["r"] for source in (supply, client, supply))
    assert not (first == second).any() and not (first == third).any() and not (second == third).any()


@pytest.mark.parametrize("parties", [2, 3])
def test_a_correction_alone_is_balanced_whoever_receives_it(running, parties):
    """A correction alone is uniform: of n bits, half are ones, within what chance allows."""
    clients = running.all(parties)
    requests = [
        (SquarePair((4000,)), 64),
        (SharedBit((4000,)), 64),
        (Wraps((4000,)), 64),
        (And(planes=4, count=32_000), 8),
        (Selection(4000, shift=16), 64),
        (Truncation(4000, shift=16), 64),
    ]
    for request, width in requests:
        (material,) = (part for client in clients if (part := client.correlation(request)).received_bits)
        shares = material.shares
        for name in request.derived:
            words = shares[name].flatten()
            for bit in range(width):  # every position by itself: a constant top bit would drown in the sum
                ones, n = int((words >> bit & 1).sum()), words.numel()
                assert abs(ones - n / 2) < DEVIATIONS * n**0.5 / 2, (request.kind, bit)


def test_corrections_need_the_other_parties_seeds(running):
    """A party's shares of derived fields say nothing without the others': they differ from the values everywhere."""
    for client in running.all(2):
        for _ in range(2):  # whoever receives the corrections
            shares = client.correlation(SquarePair((1000,))).shares
            assert not (shares["square"] == shares["r"] * shares["r"]).any()


@pytest.mark.parametrize("receiver", [0, 1, 2])
def test_every_kind_can_be_received_by_every_party(receiver):
    """As dealt, to any of three parties: independent code recomputes what the shares stand for."""
    seeds = [os.urandom(16) for _ in range(3)]
    for number, (request, verify) in enumerate(CASES):
        turn = ReceiverTurn(receiver, number)
        shares = [expand(request, turn, seed, rank) for rank, seed in enumerate(seeds)]
        shares[receiver] |= received(request, corrections(request, turn, seeds))
        verify(columns(request, [Material(mine) for mine in shares]), **request.params)


def test_turns_are_even_at_any_time():
    """To within the largest request so far, whatever the sizes are; each party's numbers go up by one."""
    random.seed(3)
    for parties in (1, 2, 3, 5):
        turns, sent, numbers, largest = ReceiverRotation(parties), [0] * parties, [0] * parties, 0
        for _ in range(300):
            request = SquarePair((random.choice([0, 1, 7, 50, random.randrange(1000)]),))
            (turn,) = turns.take([request])
            assert turn.number == numbers[turn.receiver]
            numbers[turn.receiver] += 1
            sent[turn.receiver] += request.correction_bits
            largest = max(largest, request.correction_bits)
            assert max(sent) - min(sent) <= largest
        assert min(numbers) > 0


def test_requests_in_one_list_have_the_turns_that_they_have_one_by_one():
    requests = [request for request, _ in CASES]
    one_by_one = ReceiverRotation(3)
    assert ReceiverRotation(3).take(requests) == [turn for request in requests for turn in one_by_one.take([request])]
    parts = [received_by(rank, 3, requests) for rank in range(3)]
    bits = [sum(request.correction_bits for request in part) for part in parts]
    assert sum(map(len, parts)) == len(requests)
    assert max(bits) - min(bits) <= max(request.correction_bits for request in requests)


@pytest.mark.parametrize("parties", every(2, [3, 2]))
def test_bytes_that_reach_every_party_are_those_of_its_turns(running, parties, monkeypatch):
    """Counted where frames arrive, two slices in turns and requests on demand: to the byte, and even."""
    arrived = [0] * parties

    def counted(self, messages, request, receive=DealerClient._receive):
        def counting():
            for message in messages:
                arrived[self.rank] += len(message)
                yield message

        return receive(self, counting(), request)

    monkeypatch.setattr(DealerClient, "_receive", counted)
    requests, clients = [request for request, _ in CASES], running.all(parties)
    for client in clients:
        supplies = [client.reserve(requests) for _ in range(2)]
        for request in requests:
            for supply in supplies[::-1]:
                supply.correlation(request)
        client.correlation(requests[0])
    asked = [*requests, *requests, requests[0]]
    expected = [received_by(rank, parties, asked) for rank in range(parties)]
    assert arrived == [sum(frame_bytes(layout(request)) for request in own) for own in expected]
    bits = [sum(request.correction_bits for request in own) for own in expected]
    assert max(bits) - min(bits) <= max(request.correction_bits for request in requests)
