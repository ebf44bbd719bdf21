"""A cube in one round, an operation of a protocol in two files: its module, and its name in the registry."""

from __future__ import annotations

import pytest
import torch

from hummingbird.channel import meter
from hummingbird.mpc.protocols.cube import Cube, Cubes
from hummingbird.mpc.protocols.registry import KINDS, from_json
from tests.mpc.protocols.test_beaver import make_sessions, run, share


@pytest.mark.parametrize("parties", [2, 3])
def test_cubes_are_right_and_cost_what_is_said(parties: int) -> None:
    x = torch.randint(-(2**63), 2**63 - 1, (3, 40))
    with meter.meter() as counted:
        got = run(make_sessions(parties), Cube().run, 64, share(x, parties))
    assert torch.equal(got, Cube().plain(x))
    price = Cube().price(parties, x)
    assert (counted.total.rounds, counted.total.bits_sent) == (parties * price.rounds, parties * price.bits)
    assert counted.total.received_bits == price.offline_bits


def test_a_dealer_knows_the_kind() -> None:
    request = Cubes((3, 40))
    assert KINDS["cube"] is Cubes and from_json(request.to_json()) == request
