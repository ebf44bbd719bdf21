"""The window search on accuracies given as tables: brute force, prunings, eco, and what it refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.search import (
    ComparingLayer,
    Group,
    bit_budget,
    group_layers,
    search_bits,
)
from tests.search_cases import LOSSLESS, SUBSETS, Instance, Table, windows_of


@pytest.mark.parametrize("dominated", [False, True])
def test_the_search_equals_brute_force_with_and_without_each_pruning(dominated: bool) -> None:
    rest = frozenset({"dominated"} if dominated else ())
    solved, fewer = 0, 0
    for seed in range(50):
        instance = Instance(seed)
        expected = instance.brute(dominated)
        solved += expected is not None
        counts = {}
        for subset in SUBSETS:
            config = instance.search(subset | rest)
            assert windows_of(config) == expected, (seed, subset)
            counts[subset] = config.provenance["evaluations"] if config else 0
        fewer += counts[LOSSLESS] < counts[frozenset()]
    assert solved >= 25 and fewer >= 25  # the instances are neither hopeless nor trivial


def test_skipped_windows_cannot_win_when_losses_add_up() -> None:
    """Losses of a group: one that depends on m, one on k, none above the top; the optimum over all windows of all
    three groups is found though dominated windows, those above the top and those far below are never tried.
    """
    beaten = 0
    for seed in range(50):
        draw = random.Random(seed)
        layers = [ComparingLayer(f"relu{i}", draw.randint(1, 50), draw.randint(1, 7), 7) for i in range(3)]
        groups, reach = group_layers(layers, "layer"), 2
        losses: list[dict[BitWindow, int]] = []
        for group in groups:
            low = [0, *sorted(draw.randint(0, 40) for _ in range(7))]
            wrapped = [0, *(draw.randint(0, 30) for _ in range(reach)), *[600] * 7]
            shapes = [BitWindow(k, m) for k in range(2, 8) for m in range(k - 1)]
            losses.append({shape: low[shape.m] + wrapped[max(0, group.top - shape.k)] for shape in shapes})
            losses[-1][BitWindow(0, 0)] = draw.randint(50, 400)

        def accuracy(config: BitConfig, losses: list[dict[BitWindow, int]] = losses) -> float:
            parts = zip(losses, config.layers.values(), strict=True)
            return 1 - min(1024, sum(table.get(window, 0) for table, window in parts)) / 1024

        objective = bit_budget(layers)
        budget = Fraction(draw.randint(5, 60), 640)
        prices = [{w: objective.price(layer, w) for w in table} for layer, table in zip(layers, losses, strict=True)]
        best = min(
            sum(table[window] for table, window in zip(losses, windows, strict=True))
            for windows in itertools.product(*losses)
            if sum(table[window] for table, window in zip(prices, windows, strict=True)) <= budget
        )
        if best > 512:
            continue
        config = search_bits(groups, accuracy, budget, reach=reach, margin=0.5, thrifty=True)
        assert config.provenance["accuracy"] == 1 - best / 1024, seed
        assert config.provenance["cost"] <= budget
        beaten += best > 0
    assert beaten > 20


class Noted(Table):
    """A table that writes down floors and answers, for every prefix and price."""

    def __init__(self, seed: int, instance: Instance) -> None:
        super().__init__(seed)
        self.instance, self.told = instance, dict[Any, list[tuple[float, float]]]()

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        answers = super().accuracy(prefix, group, windows, floor)
        for window, answer in zip(windows, answers, strict=True):
            if window != EXACT:
                key = (*prefix.values(), self.instance.price(self.instance.groups.index(group), window))
                self.told.setdefault(key, []).append((floor, answer))
        return answers


def test_among_windows_of_one_price_the_floor_rises_to_the_best_one() -> None:
    raised = 0
    for seed in range(20):
        instance = Instance(seed)
        instance.table = table = Noted(seed, instance)
        instance.search()
        for told in table.told.values():
            for (floor, found), (later, _) in itertools.pairwise(told):
                assert later >= max(floor, found if found >= floor else 0)
                raised += later > floor
    assert raised > 20


def test_what_is_left_buys_wider_windows_that_lose_nothing() -> None:
    wider = 0
    for seed in range(50):
        instance = Instance(seed)
        found, spent = instance.search(), instance.search(thrifty=False)
        if found is None or spent is None:
            assert found is spent
            continue
        assert spent.provenance["cost"] <= float(instance.budget)
        windows, thrifty = windows_of(spent), windows_of(found)
        assert windows is not None and thrifty is not None
        score = min(instance.table.of(thrifty[:depth]) for depth in range(4))  # luck at the end does not count
        assert spent.provenance["accuracy"] >= score
        price = sum(instance.price(depth, window) for depth, window in enumerate(windows))
        assert spent.provenance["cost"] == float(price) and instance.accepts(spent)
        for depth, (window, own) in enumerate(zip(windows, thrifty, strict=True)):
            assert window.k >= own.k and window.m <= own.m and (window.w > 0) == (own.w > 0)
            assert window.k <= instance.groups[depth].top
        wider += windows != thrifty
    assert wider >= 5


def test_all_that_a_budget_pays_for_is_bought_when_nothing_loses() -> None:
    layers = [ComparingLayer("relu1", 64, 1000), ComparingLayer("relu2", 32, 1000), ComparingLayer("relu3", 32, 9)]

    def accuracy(config: BitConfig) -> float:
        return 1.0 if all(window.w > 1 for window in config.layers.values()) else 0.0

    for budget, expected in (
        (Fraction(2, 64), ["[12:10)", "[12:10)", "[6:4)"]),
        (Fraction(4, 64), ["[12:8)", "[12:8)", "[6:2)"]),
        (Fraction(19, 128), ["[12:1)", "[12:2)", "[6:0)"]),  # 11 x 64 + 10 x 32 + 6 x 32 of 64 x 128
        (Fraction(1), ["[12:0)", "[12:0)", "[6:0)"]),
    ):
        config = search_bits(group_layers(layers, "layer"), accuracy, budget)
        assert [str(window) for window in config.layers.values()] == expected, budget


def test_the_same_seed_repeats_and_progress_is_told() -> None:
    seen: list[Any] = []
    one, two = Instance(3).search(seed=7, progress=seen.append), Instance(3).search(seed=7)
    assert one is not None and two is not None and one.to_json() == two.to_json()
    assert seen[-1].evaluations == one.provenance["evaluations"] and seen[-1].nodes <= one.provenance["nodes"]
    assert [step.evaluations for step in seen] == sorted(step.evaluations for step in seen)
    scores = [step.accuracy for step in seen]
    assert scores[0] is None and scores[-1] is not None


def test_provenance_says_how_the_windows_were_found() -> None:
    instance = Instance(0)
    config = instance.search(seed=5, provenance={"net": "abc", "command": "find_bits"})
    assert config is not None
    told, chosen = config.provenance, windows_of(config)
    assert chosen is not None
    assert told["net"] == "abc" and told["how"] == "HummingBird-b" and told["seed"] == 5
    assert told["accuracy"] == instance.table.of(chosen) and told["exact_accuracy"] == instance.table.of(())
    assert told["cost"] == float(sum(instance.price(i, window) for i, window in enumerate(chosen)))
    assert told["budget"] == float(instance.budget) and told["objective"]["name"] == "bits"
    assert BitConfig.from_json(config.to_json()) == config


# Eco -----------------------------------------------------------------------------------------------------------------


def right_above(layers: Sequence[ComparingLayer]) -> Callable[[BitConfig], float]:
    """An accuracy that falls for each layer whose window does not cover its largest magnitude with m = 0."""

    def accuracy(config: BitConfig) -> float:
        covered = [
            config.layers[x.name] == EXACT
            or (config.layers[x.name].m == 0 and x.largest < 2 ** (config.layers[x.name].k - 1) - 1)
            for x in layers
        ]
        return sum(covered) / len(layers)

    return accuracy


def test_eco_takes_the_smallest_k_that_covers_each_layer_and_the_spare_bits() -> None:
    for spare in (0, 1, 3):
        for largest in [0, 1, 2, 3, 6, 7, 8, 2**19 - 2, 2**19 - 1, 2**19]:
            layers = [ComparingLayer("a.relu", 3, largest), ComparingLayer("a.relu#1", 5, 2 * largest)]
            config = search_bits(group_layers(layers, "stage"), right_above(layers), spare=spare)
            for layer in layers:
                window = config.layers[layer.name]
                smallest = next(k for k in range(2, 64) if layer.largest < 2 ** (k - 1) - 1)
                assert window == BitWindow(smallest + spare, 0)
            assert config.provenance["how"] == "HummingBird-eco" and config.provenance["evaluations"] == 2
            assert config.provenance["accuracy"] == config.provenance["exact_accuracy"] == 1.0


def test_eco_is_verified_by_running() -> None:
    layers = [ComparingLayer("relu1", 3, 1000), ComparingLayer("relu2", 3, 1000)]
    beyond = [ComparingLayer("relu1", 3, 1000), ComparingLayer("relu2", 3, 5000)]  # what the evaluation sees
    with pytest.raises(ConfigError, match=r"change the score from 1.0 to 0.5") as caught:
        search_bits(group_layers(layers), right_above(beyond))
    assert "spare more bits" in caught.value.hint
    assert search_bits(group_layers(layers), right_above(beyond), spare=4).layers["relu2"].k == 15
    with pytest.raises(ConfigError, match="takes k = 13, but the shares allow 12") as caught:
        search_bits([Group("g", (ComparingLayer("relu1", 3, 2000, 12),))], right_above(beyond))
    assert caught.value.where == "relu1"


# What is refused -----------------------------------------------------------------------------------------------------

ONE = [Group("g", (ComparingLayer("relu", 10, 100),))]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "what"),
    [
        (([], lambda c: 1.0), {}, InputError, "no comparing layers"),
        ((ONE * 2, lambda c: 1.0), {}, ConfigError, "group g occurs twice"),
        (([*ONE, Group("h", ONE[0].layers)], lambda c: 1.0), {}, ConfigError, "layer relu occurs twice"),
        ((ONE, lambda c: 1.0, -0.1), {}, ConfigError, "a budget of -0.1"),
        ((ONE, lambda c: 1.0, float("nan")), {}, ConfigError, "a budget of nan"),
        (
            (ONE, lambda c: 1.0, 1 / 64),
            {"widths": (4, 8)},
            ConfigError,
            r"meets a budget of 0.015625 .* least is 0.0625",
        ),
        ((ONE, lambda c: float(c.window("relu") == EXACT), 1.0), {}, ConfigError, "that keeps a score of 0.9500"),
        ((ONE, lambda c: 1.0, 1.0), {"margin": 5}, ConfigError, "accuracy margin of 5"),
        ((ONE, lambda c: 1.0, 1.0), {"prunings": frozenset({"worst"})}, ConfigError, "unknown prunings"),
        ((ONE, lambda c: 1.0, 1.0), {"state": "no/such/folder/state"}, ConfigError, "No such file or directory"),
        ((ONE, lambda c: 1.0, 1.0), {"reach": -1}, ConfigError, "reach is -1"),
        ((ONE, lambda c: 1.0, 1.0), {"widths": (65,)}, ConfigError, "window of 65 bits"),
        ((ONE, lambda c: 1.0, 1.0), {"widths": (30,)}, ConfigError, "none of the widths fits"),
        ((ONE, lambda c: 1.0), {"spare": -1}, ConfigError, "-1 bits to spare"),
        ((ONE, lambda c: 92.8, 1.0), {}, InputError, "accuracy of 92.8"),
        ((ONE, lambda c: float("nan"), 1.0), {}, InputError, "accuracy of nan"),
        ((ONE, lambda c: -0.1, 1.0), {}, InputError, "accuracy of -0.1"),
        ((ONE, lambda c: None, 1.0), {}, InputError, "accuracy of None"),
    ],
)
def test_what_cannot_be_is_refused(arguments: Any, options: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what) as caught:
        search_bits(*arguments, **options)
    assert caught.value.where and caught.value.hint  # type: ignore[attr-defined]


def test_an_evaluator_that_answers_too_little_is_refused() -> None:
    class Short:
        def accuracy(self, *question: Any) -> list[float]:
            return []

    with pytest.raises(InputError, match="expected 1 accuracies, got 0"):
        search_bits(ONE, Short())


@pytest.mark.parametrize("numbers", [(0, 5), (1.5, 5), (3, -1), (3, 2**63), (3, 1.0), (3, 5, 1), (3, 5, 65), (True, 5)])
def test_layers_that_cannot_be_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InputError) as caught:
        ComparingLayer("relu", *numbers)
    assert caught.value.where == "relu" and caught.value.hint
    with pytest.raises(ConfigError, match="empty group"):
        Group("g", ())
