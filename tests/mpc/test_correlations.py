"""Correlated randomness through a real dealer."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings

import pytest
import torch

from hummingbird.errors import DealerError
from hummingbird.kernels.shares.words import plain
from hummingbird.mpc.correlations.bits import And
from hummingbird.mpc.correlations.products import SquarePair
from hummingbird.mpc.correlations.provider import SharedBit, Wraps
from hummingbird.mpc.correlations.registry import KINDS, from_json
from hummingbird.mpc.correlations.truncation import Selection, Truncation
from hummingbird.mpc.dealer.client import DealerClient
from hummingbird.mpc.dealer.local import LocalDealer
from tests.support.correlation_checks import CASES, columns, take_and_check


def test_every_kind_has_a_case():
    # A mask that outlives its request: tests/mpc/test_private_weights.py.
    assert {request.kind for request, _ in CASES} == set(KINDS) - {"fixed", "linear"}


def test_shares_are_named_as_the_fields_are():
    for request, _ in CASES:
        material = LocalDealer(0, 1, [bytes(16)]).correlation(request)
        shares = request.shares(**material.shares)
        for name, tensor in material.shares.items():
            if name == "flag_mask":  # without a shift the mask is its own quotient
                assert shares.flag_unsigned is shares.flag_signed is tensor and shares.unsigned is shares.mask
            elif name.startswith("table_"):
                assert shares.tables[int(name.removeprefix("table_"))] is tensor
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
        **{"k": 6, "ring": 9, "squares": 1, "shape": [2], "size0": [2], "size1": [2], "op": "mul", "kwargs": {}},
    }
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
    first, *others = taken = take_and_check(clients)
    assert [material.offline_bits for material in first] == [request.correction_bits for request, _ in CASES]
    for material in first:
        assert 0 < material.dealer_seconds < material.waiting_seconds + 1
    for materials in others:
        assert all(material.offline_bits == 0 and material.dealer_seconds == 0 for material in materials)
    for materials in taken:  # all on demand
        expanding = sum(material.expanding_seconds for material in materials)
        assert 0 < expanding < sum(material.waiting_seconds for material in materials)
    for client in clients:
        client.close()


def test_bits_of_large_requests(running):
    """A correction of several messages, of a size that is no multiple of a message."""
    request = Truncation(150_001, shift=16)
    mine, theirs = (client.correlation(request) for client in running.all(2))
    assert mine.offline_bits == 2 * 150_001 * 64
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
        client.seed = state.seeds[client.rank] = seed
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
            assert material.offline_bits == expected.offline_bits == (0 if client.rank else request.correction_bits)
        with pytest.raises(DealerError, match="but nothing more was reserved"):
            supply.correlation(requests[0])


def test_correlations_are_independent(running):
    client = running.all(1)[0]
    request = SquarePair((4,))
    supply = client.reserve([request, request])
    first, second, third = (source.correlation(request).shares["r"] for source in (supply, client, supply))
    assert not (first == second).any() and not (first == third).any() and not (second == third).any()


def test_what_party_0_receives_is_balanced(running):
    """A correction alone is uniform: of n bits, half are ones within six standard deviations of sqrt(n) / 2.

    About 650 positions are looked at: five would let one in 2700 runs fail by chance, six one in 800,000.
    """
    client = running.all(2)[0]
    requests = [
        (SquarePair((4000,)), 64),
        (SharedBit((4000,)), 64),
        (Wraps((4000,)), 64),
        (And(planes=4, count=32_000), 8),
        (Selection(4000, shift=16), 64),
        (Truncation(4000, shift=16), 64),
    ]
    for request, width in requests:
        shares = client.correlation(request).shares
        for name in request.derived:
            words = shares[name].flatten()
            for bit in range(width):  # every position by itself: a constant top bit would drown in the sum
                ones, n = int((words >> bit & 1).sum()), words.numel()
                assert abs(ones - n / 2) < 6 * n**0.5 / 2, (request.kind, bit)


def test_corrections_need_the_other_parties_seeds(running):
    """Party 0's shares of derived fields say nothing without the others': they differ from the values everywhere."""
    client = running.all(2)[0]
    shares = client.correlation(SquarePair((1000,))).shares
    assert not (shares["square"] == shares["r"] * shares["r"]).any()
