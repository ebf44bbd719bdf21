"""Every operation, privately between real parties, against torch within the error that fixed point allows."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from torch import nn

import hummingbird
from tests.support.covering import covering, every
from tests.support.parties import succeed


@pytest.mark.parametrize(
    ("parties", "weights", "protocol", "first", "step"),
    [
        (2, "public", "masked", 0, 2),  # every second operation here,
        pytest.param(2, "1", "gmw", 1, 2, marks=pytest.mark.slow),  # and the others here
        *(
            pytest.param(parties, owner, protocol, 0, 1, marks=pytest.mark.slow)
            for (parties, owner), protocol in product(
                [(2, "public"), (2, "1"), (3, "public"), (3, "0")], ("masked", "gmw")
            )
        ),
    ],
)
def test_operations_match_torch_and_send_what_was_predicted(
    parties: int, weights: str, protocol: str, first: int, step: int
) -> None:
    ended = succeed(["-m", "tests.jobs.programs", "operations", weights, protocol, str(first), str(step)], parties)
    results = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(results) > 50 // step
    wrong = {name: pair for name, pair in results.items() if not pair[0] <= pair[1]}
    assert not wrong, f"error above bound: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "windows", "step"), every(3, [(2, 2, 3), (2, 5, 1), (3, 5, 1)]))
def test_smooth_activations_under_windows_are_within_their_tables_errors(parties: int, windows: int, step: int) -> None:
    """Two windows: one whose tables end where it does, and one with clamps."""
    ended = succeed(["-m", "tests.jobs.programs", "smooth", str(windows), str(step)], parties)
    results = json.loads(ended[0].out.strip().splitlines()[-1])
    assert len(results) == windows * (4 if step == 1 else 2)
    wrong = {name: pair for name, pair in results.items() if not pair[1] / 30 < pair[0] <= pair[1]}
    assert not wrong, f"error above bound, or far below: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "weights"), [(2, "public"), (3, "public"), (2, "1")])
def test_resnet_agrees_with_torch_for_every_number_of_parties_and_owner(parties: int, weights: str) -> None:
    """Each of 17 layers rounds to 2^-16, and batch norm keeps values, and errors, from growing on their way."""
    ended = succeed(["-m", "tests.jobs.programs", "resnet", weights], parties)
    result = json.loads(ended[0].out.strip().splitlines()[-1])
    assert result["error"] <= 17 * 2.0**-16 < 0.01 * result["largest"], result


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "k", "m"), [("public", 64, 0), ("1", 64, 0), ("public", 20, 12)])
def test_a_unet_on_volumes_agrees_with_torch(weights: str, k: int, m: int) -> None:
    """With exact windows each of 20 layers rounds to 2^-16, and batch norms keep errors from growing on their way."""
    ended = succeed(["-m", "tests.jobs.programs", "unet3d", weights, str(k), str(m)], 2)
    result = json.loads(ended[0].out.strip().splitlines()[-1])
    assert result["error"] <= (20 * 2.0**-16 if k == 64 else 0.05 * result["largest"]), result
    # Of 32,768 places, those may change whose two largest results differ by less than twice the error.
    assert result["kept"] >= (0.999 if k == 64 else 0.98), result


POOLS = [
    (nn.AdaptiveAvgPool2d((3, 4)), (2, 3, 7, 10)),
    (nn.AdaptiveAvgPool2d((5, 6)), (2, 3, 4, 6)),  # more windows than places
    (nn.AdaptiveAvgPool1d(4), (2, 3, 9)),
    (nn.AdaptiveMaxPool2d((3, 4)), (2, 3, 7, 10)),
    (nn.AdaptiveMaxPool2d((6, 5)), (2, 3, 6, 4)),
    (nn.AdaptiveMaxPool1d(4), (2, 3, 9)),
    (nn.AdaptiveAvgPool3d((2, 3, 4)), (2, 3, 5, 4, 3)),
    (nn.AdaptiveMaxPool3d((3, 2, 4)), (2, 3, 4, 5, 3)),
]


@covering("pool, shape, protocol", POOLS, ["masked", "gmw"], ids=str)
def test_adaptive_pooling_that_does_not_divide(pool: nn.Module, shape: tuple[int, ...], protocol: str) -> None:
    """Windows of lengths that differ by one, as torch has them; behind a layer that leaves few integer bits, too."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    before = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 3](3, 3, 1)
    for net in (pool, nn.Sequential(before, nn.SiLU(), pool, nn.ReLU())):
        for mode in ("exact", "fast"):
            with torch.no_grad():
                out = hummingbird.simulate(net.eval(), protocol=protocol, mode=mode, seed=1)(x)
                assert float((out - net(x)).abs().max()) < 2.0**-12, mode
