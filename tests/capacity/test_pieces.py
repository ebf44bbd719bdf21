"""Long runs in pieces: bit for bit what one request after the other gives, in far fewer steps."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from hummingbird.capacity import recurrence
from hummingbird.capacity.arrivals import exponential, poisson
from hummingbird.capacity.recurrence import Singles
from hummingbird.capacity.system import Draws, Load, LoadOutcome, System
from hummingbird.errors import ConfigError
from tests.capacity.systems import random_case
from tests.capacity.test_recurrence import simpy_alike


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a dozen requests, where a thousand are worth it."""
    monkeypatch.setattr(recurrence, "_SHORTEST", 12)
    monkeypatch.setattr(recurrence, "_FEWEST", 2)


def same(got: LoadOutcome, wanted: LoadOutcome, where: str = "") -> None:
    """Every bit of two outcomes, refills and tokens, too."""
    for field in fields(LoadOutcome):
        np.testing.assert_array_equal(getattr(got, field.name), getattr(wanted, field.name), f"{field.name} of {where}")


def long_case(seed: int) -> tuple[System, Load, Draws] | None:
    """A random system whose runs may be cut, of 150 requests."""
    system, load, draws = random_case(seed, plain=True, requests=150)
    system, load = replace(system, queue=None), replace(load, patience=None)
    try:
        system.check_tokens(system.per_request * load.sizes())
        recurrence._check(system, load, draws)
    except ConfigError:
        return None
    return (system, load, draws) if recurrence.pieces_of(system, load) > 1 else None


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_pieces_give_every_bit_of_the_whole() -> None:
    seen = {"ahead": 0, "on demand": 0, "none": 0, "workers": 0, "slots": 0, "session": 0, "kept": 0, "sizes": 0}
    for case in filter(None, map(long_case, range(150))):
        system, load, draws = case
        need = system.per_request * load.sizes()
        same(recurrence.simulate(*case), Singles(system, load, draws, need).run(), f"{system}")
        marks = (system.store, system.tokens == 0, system.tokens is None, system.workers > 1, system.slots > 1)
        for name, there in zip(
            seen, (*marks, draws.session is not None, system.kept, load.size is not None), strict=True
        ):
            seen[name] += bool(there)
    assert min(seen.values()) >= 5, seen


@pytest.mark.usefixtures("small")
def test_pieces_agree_with_simpy() -> None:
    for number, case in enumerate(filter(None, map(long_case, range(500, 515)))):
        simpy_alike(recurrence.simulate(*case), *case, f"{number}: {case[0]}")


def counted(monkeypatch: pytest.MonkeyPatch, system: System, load: Load, draws: Draws) -> tuple[int, LoadOutcome]:
    """Numpy steps of a simulation, and its outcome."""
    steps, serve = 0, Singles._serve

    def served(self: Singles, *args: object) -> object:
        nonlocal steps
        steps += 1
        return serve(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Singles, "_serve", served)
        found = recurrence.simulate(system, load, draws)
    return steps, found


def steps_of(monkeypatch: pytest.MonkeyPatch, rate: float) -> tuple[int, LoadOutcome, LoadOutcome]:
    """Numpy steps of one run of 8,000 requests of 1 s, its outcome, and that of one request after the other."""
    load = poisson(rate).load(1, 8000, seed=1)
    system, draws = System(tokens=10, stored=10), Draws(exponential((1, 8000), 2, "online"), np.full((1, 1), 0.5))
    steps, found = counted(monkeypatch, system, load, draws)
    return steps, found, Singles(system, load, draws, load.sizes()).run()


def test_a_long_run_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, found, wanted = steps_of(monkeypatch, 0.7)
    same(found, wanted)
    assert steps <= 3 * 500


@pytest.mark.slow
def test_a_queue_that_never_empties_is_simulated_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "_ROUNDS", 4)
    steps, found, wanted = steps_of(monkeypatch, 1.3)
    same(found, wanted)
    assert steps == 4 * 500 + 8000


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "most"), [(1, 3 * 1000), (200, 5000)])
def test_a_million_requests_take_few_steps(monkeypatch: pytest.MonkeyPatch, runs: int, most: int) -> None:
    """Numpy steps over all rows at once: rounds of 1,000 for pieces of one run, the length of many runs."""
    requests = 10**6 // runs
    load = poisson(1.0).load(runs, requests, seed=1)
    draws = Draws(0.7 * exponential((runs, requests), 2, "online"), np.full((1, 1), 0.8))
    steps, _ = counted(monkeypatch, System(tokens=10, stored=10), load, draws)
    assert steps <= most
