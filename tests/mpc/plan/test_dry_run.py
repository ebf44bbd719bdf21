"""A dry run's list of requests is what every party takes in a real run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird.bits import BitWindow
from hummingbird.errors import EnvironmentProblem, InputError
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.session import session as sessions
from tests.support.covering import every
from tests.support.nursery import Nursery


@pytest.mark.parametrize(("parties", "first", "step"), every(3, [(2, 1, 3), (2, 0, 1), (3, 0, 1)]))
def test_a_dry_run_is_what_a_run_takes(nursery: Nursery, dealer: str, parties: int, first: int, step: int) -> None:
    """The quick tier has two nets: one for gmw with private weights, one for masked with public ones."""
    run = nursery.start(["dry_runs", str(first), str(step)], parties, DEALER=dealer)
    for party in run:
        assert party.wait() == 0, party.err.read_text()
        assert "equal" in party.out.read_text()


def test_a_dry_run_leaves_no_trace() -> None:
    """No session, no weights turned into shares, CrypTen as it was."""
    torch.manual_seed(0)
    private = hummingbird.convert_model(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), BitWindow(20, 0), 0)
    before = {name: tensor.clone() for name, tensor in private.state_dict().items()}
    layers = copy.copy(private.plan)
    first, second = dry_run(private, (2, 4), 2), dry_run(private, (2, 4), 2)
    assert first == second and first.batch
    assert private.plan == layers and private._set_up_for is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in private.state_dict().items())
    assert not sessions.is_initialized()
    with pytest.raises(EnvironmentProblem, match="no session"):
        sessions.current()


def test_requests_follow_the_shape_and_the_number_of_parties() -> None:
    private = hummingbird.convert_model(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), BitWindow(20, 0), 0, "gmw")
    small, large, three = dry_run(private, (2, 4), 2), dry_run(private, (5, 4), 2), dry_run(private, (2, 4), 3)
    assert len({str(plan.batch) for plan in (small, large, three)}) == 3
    assert sum(r.correction_bits for r in large.batch) > sum(r.correction_bits for r in small.batch)


def test_a_net_whose_weights_are_shared_already_is_refused(alone: sessions.Session) -> None:
    private = hummingbird.convert_model(nn.Sequential(nn.Linear(4, 3)).eval(), weights=0)
    with pytest.raises(InputError, match="the weights are shared already"):
        dry_run(private, (2, 4), 1)
