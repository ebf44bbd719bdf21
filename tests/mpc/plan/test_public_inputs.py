"""Public inputs of private nets: other values in every call, agreed on, at the predicted price."""

from __future__ import annotations

import json

import pytest
import torch

from hummingbird.convert import build
from hummingbird.errors import InputError
from hummingbird.mpc.layers.constants import Embedding, SharePublic
from hummingbird.mpc.plan.dry_run import dry_run
from hummingbird.mpc.session import session as sessions
from tests.jobs.public_inputs import Rows, Words, numbers
from tests.support.parties import succeed


@pytest.mark.slow
@pytest.mark.parametrize("nets", [2, 4])
def test_every_call_brings_its_own_and_parties_that_differ_are_told(nets: int) -> None:
    """With either party's weights and with public ones; in batches of other sizes, and in slices."""
    ended = succeed(["-m", "tests.jobs.public_inputs", str(nets)], 2)
    errors = json.loads(ended[0].out)
    assert len(errors) == nets
    for name, found in errors.items():
        # A softmax errs by 2^-7 of its weights, on rows whose norm is at most sqrt(8), through a head of 8 numbers.
        # A gate errs by 2^-13: three gates in each of four steps, five states together through 8 weights of 0.36.
        most = {"Words": 2.0**-4, "Rows": 2.0**-13, "Sequences": 4 * 3 * 2.0**-13 * 5 * 8 * 0.36}
        assert max(found) < most[name.partition(" ")[0]], errors


def test_what_a_net_asks_of_its_dealer_does_not_depend_on_public_values() -> None:
    private = build(Words().eval(), example=numbers(0, 2))
    assert private.rowwise((2, 8)) is False
    assert dry_run(private, (3, 8), 2).batch


def test_a_large_public_value_is_refused(alone: sessions.Session) -> None:
    layer = SharePublic()
    with pytest.raises(InputError, match="a public value of 3.*e.38"):
        layer(alone, torch.tensor([torch.finfo(torch.float32).max]), None)
    with pytest.raises(InputError, match="row -1 of a table of 4 rows"):
        Embedding(torch.randn(4, 2), None)(alone, torch.tensor([-1]), None)
    assert build(Rows().eval(), example=(torch.zeros(1, 6, dtype=torch.long),)).rowwise((4, 0))
