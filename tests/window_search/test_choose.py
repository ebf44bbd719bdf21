"""The knapsack of the search against plain brute force: every assignment, summed and sorted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from hummingbird.window_search.budgeted import Item, _Relaxed, least_sums

Tables = Sequence[Sequence[Item]]


def drawn(seed: int) -> tuple[Tables, Fraction, int]:
    """Random tables with ties, free choices and losses without any order, a budget, and how many are wanted."""
    draw = random.Random(seed)
    tables = [
        [
            Item(
                Fraction(draw.randint(0, 9), draw.randint(1, 5)),
                draw.choice([0.0, draw.random(), draw.randint(0, 4) / 4]),
            )
            for _ in range(draw.randint(1, 6))
        ]
        for _ in range(draw.randint(1, 4))
    ]
    return tables, Fraction(draw.randint(0, 40), draw.randint(1, 4)), draw.randint(1, 6)


def every(tables: Tables, budget: Fraction) -> dict[tuple[int, ...], float]:
    """The sum of every assignment within the budget."""
    found = {}
    for places in itertools.product(*(range(len(table)) for table in tables)):
        items = [table[place] for table, place in zip(tables, places, strict=True)]
        if sum(item.price for item in items) <= budget:
            found[places] = sum(item.loss for item in items)
    return found


@pytest.mark.parametrize("refusing", [False, True])
def test_it_is_brute_force(refusing: bool) -> None:
    some = cut = 0
    for seed in range(200):
        tables, budget, count = drawn(seed)

        def accepts(places: tuple[int, ...]) -> bool:
            return not refusing or sum(places) % 3 != 1

        true = {places: loss for places, loss in every(tables, budget).items() if accepts(places)}
        got = least_sums(tables, budget, count, accepts)
        assert len(got) == len(set(got)) == min(count, len(true)), seed
        # Sums in another order differ by a few roundings of numbers below 4.
        assert [true[places] for places in got] == pytest.approx(sorted(true.values())[: len(got)], abs=1e-14), seed
        some += len(got) > 1
        cut += len(true) > count
    assert some > 80 and cut > 40  # neither hopeless nor trivial


def test_no_completion_loses_less_than_the_relaxation() -> None:
    met = 0
    for seed in range(300):
        tables, _, _ = drawn(seed)
        relaxed = _Relaxed(tables)
        for places, loss in every(tables, Fraction(1000)).items():
            paid = sum(table[place].price for table, place in zip(tables, places, strict=True))
            least = relaxed.least(paid)
            assert least <= loss + 1e-12, (seed, places)
            met += least > loss - 1e-12
    assert met > 300  # the bound is reached


def test_a_large_instance_takes_no_time() -> None:
    """30 groups of 40 choices, 10^48 assignments; a greedy exchange finds no better one."""
    draw = random.Random(0)
    tables = []
    for _ in range(30):
        size, noise = draw.randint(1, 64), draw.random()
        tables.append(
            [Item(Fraction(size * bits), noise * 9.0 ** (-bits) * draw.uniform(0.8, 1.2)) for bits in range(40)]
        )
    budget = Fraction(sum(table[6].price for table in tables))
    (best,) = least_sums(tables, budget, 1)
    spent = sum(table[place].price for table, place in zip(tables, best, strict=True))
    assert spent <= budget
    for one, other in itertools.permutations(range(30), 2):
        for up, down in itertools.product((1, 2), repeat=2):
            there, back = best[one] + up, best[other] - down
            if there < 40 and back >= 0:
                change = tables[one][there].price - tables[one][best[one]].price
                change += tables[other][back].price - tables[other][best[other]].price
                gain = tables[one][there].loss - tables[one][best[one]].loss
                gain += tables[other][back].loss - tables[other][best[other]].loss
                assert spent + change > budget or gain >= 0


def test_nothing_within_the_budget_is_nothing() -> None:
    assert least_sums([[Item(Fraction(2), 0.0)], [Item(Fraction(1), 0.0)]], Fraction(2), 3) == []
