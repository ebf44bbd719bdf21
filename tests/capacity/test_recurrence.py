"""The recurrence against the same service in simpy, a batch server written as a loop, and a store of floats."""

from __future__ import annotations

import numpy as np
import pytest

from hummingbird.capacity import recurrence
from tests.capacity.simpy_model import Model
from tests.capacity.systems import random_case


def near(got: np.ndarray, wanted: np.ndarray, where: str = "") -> None:
    """Alike to 1e-9, NaN where NaN is wanted."""
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=where)


@pytest.mark.parametrize("hundred", range(3))
def test_it_agrees_with_simpy_on_300_random_systems(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        system, load, draws = random_case(seed)
        got = recurrence.simulate(system, load, draws)
        for run in range(load.shape[0]):
            rows = Model(system, load, draws, run).simulate()
            assert (rows[:, 4] == got.fate[run]).all(), (seed, system)
            for column, times in enumerate((got.arrived, got.began, got.went, got.left)):
                np.testing.assert_allclose(
                    times[run], rows[:, column], rtol=1e-9, atol=1e-9, err_msg=f"{seed} {system}"
                )
