"""The window search on accuracies given as tables: brute force, uniform windows, levels, eco, and what it refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.window_search import ComparingLayer, Group, Score, bit_budget, group_layers, search_bits
from hummingbird.window_search.budgeted import holds
from tests.support.search_cases import EVERY, Instance, windows_of


@pytest.mark.parametrize("instances", [20, pytest.param(120, marks=pytest.mark.slow)])
def test_with_enough_trials_it_is_brute_force_over_all_assignments(instances: int) -> None:
    """Tables without any order. Level by level, the best of all assignments, if it is not behind the best uniform
    window; nothing is said of how the search goes about it.
    """
    solved = down = behind = 0
    for seed in range(instances):
        instance = Instance(seed)
        config = instance.search(trials=EVERY, thrifty=True)
        uniform = max((instance.table.of(windows) for windows in instance.uniforms()), default=None)
        least = 1 - instance.margin
        best, level = None, 0
        for level in range(instance.reach + 2):
            scores = [instance.table.of(windows) for windows in instance.within(level)]
            best = max(scores, default=None)
            if best is not None and best >= (least if uniform is None else max(least, uniform)):
                break
        else:
            best = max(score for score in (best, uniform) if score is not None)
            behind += 1
        if best < least:
            assert config is None, seed
            continue
        assert config is not None, seed
        windows = windows_of(config)
        assert windows is not None and instance.price(windows) <= instance.budget
        assert instance.table.of(windows) == best == config.provenance["accuracy"], seed
        assert windows in instance.within(level) or windows in instance.uniforms(), seed
        solved, down = solved + 1, down + (0 < level)
    assert solved > instances / 2 and down > instances / 24 and behind > instances / 120


@pytest.mark.slow
def test_with_few_trials_it_is_never_behind_a_uniform_window() -> None:
    solved = better = 0
    for seed in range(120):
        instance = Instance(seed)
        config, uniforms = instance.search(trials=2), instance.uniforms()
        if config is None or not uniforms:
            continue
        found, uniform = config.provenance["accuracy"], max(map(instance.table.of, uniforms))
        assert found == instance.table.of(windows_of(config) or ()) >= uniform, seed
        told = config.provenance["uniform"]
        assert (BitWindow(told["k"], told["m"]),) * 3 in uniforms and told["accuracy"] == uniform
        solved, better = solved + 1, better + (found > uniform)
    assert solved > 40 and better > 20


def test_losses_that_are_proportional_to_independent_errors_need_one_trial() -> None:
    """Errors of a group: one that grows with m, one that grows below the range. Their squares add up, to the square
    of what all lose: the least of all assignments is found with a single trial of each level.
    """
    beaten = 0
    for seed in range(20):
        draw = random.Random(seed)
        layers = [ComparingLayer(f"relu{i}", draw.randint(1, 50), draw.randint(1, 63), 7) for i in range(3)]
        low = [[0.0, *sorted(draw.random() / 4 for _ in range(7))] for _ in layers]
        wrapped = [[0.0, *sorted(draw.random() / 4 for _ in range(7))] for _ in layers]

        def lost(
            windows: Sequence[BitWindow],
            low: list[list[float]] = low,
            wrapped: list[list[float]] = wrapped,
            layers: list[ComparingLayer] = layers,
        ) -> float:
            total = 0.0
            for n, window in enumerate(windows):
                if window == BitWindow(0, 0):
                    total += 0.3
                elif window != EXACT:
                    below = max(0, layers[n].largest.bit_length() + 1 - window.k)
                    total += low[n][window.m] ** 2 + wrapped[n][below] ** 2
            return total

        def accuracy(config: BitConfig, lost: Callable[..., float] = lost) -> float:
            return 1 - min(1.0, lost(list(config.layers.values())) ** 0.5)

        objective = bit_budget(layers)
        budget = Fraction(draw.randint(5, 60), 640)
        own = [
            {BitWindow(0, 0)}
            | {
                BitWindow(k, m)
                for m in range(6)
                for k in range(max(m + 2, layer.largest.bit_length() + 1), layer.largest.bit_length() + 2)
                if k <= 7
            }
            for layer in layers
        ]
        every = [windows for windows in itertools.product(*own) if sum(map(objective.price, layers, windows)) <= budget]
        best = min(map(lost, every))
        options: dict[str, Any] = {"headroom": 0.0, "reach": 0, "margin": 1.0, "thrifty": True, "trials": 1}
        config = search_bits(group_layers(layers, "layer"), accuracy, budget, **options)
        found = lost(list(config.layers.values()))
        told = config.provenance["uniform"]
        uniform = 1.0 if told is None else (1 - told["accuracy"]) ** 2
        # Within the rounding of squares of differences of numbers near 1.
        assert found <= min(best, uniform) + 1e-12, seed
        beaten += told is not None and found < uniform
    assert beaten > 6


class Apart:
    """Answers and fine scores of their own: what ranks and decides is fine, what is kept are answers."""

    def __init__(self, answers: dict[int, float], fine: dict[int, float]) -> None:
        self.answers, self.fine, self.floors = answers, fine, list[float]()

    def coarse(self, config: BitConfig) -> float:
        return self.fine.get(config.window("relu").m, 1.0)

    def full(self, config: BitConfig, floor: float) -> Score:
        self.floors.append(floor)
        window = config.window("relu")
        answers = 1.0 if window == EXACT else self.answers[window.m]
        return Score(answers, self.fine.get(window.m, 1.0)) if answers >= floor else Score(answers / 2, 1.0)


def test_the_finest_of_those_that_keep_enough_answers_wins() -> None:
    layers = [ComparingLayer("relu", 10, 7)]  # k = 4
    fine = {0: 0.99, 1: 0.98, 2: 0.97}
    for answers, m in (({0: 1.0, 1: 1.0, 2: 1.0}, 0), ({0: 0.9, 1: 1.0, 2: 1.0}, 1), ({0: 0.9, 1: 0.94, 2: 1.0}, 2)):
        evaluator = Apart(answers, fine)
        options: dict[str, Any] = {"headroom": 0.0, "reach": 0, "widths": (2, 3, 4), "thrifty": True}
        config = search_bits(group_layers(layers), evaluator, 4 / 64, **options)
        assert config.layers["relu"] == BitWindow(4, m)
        assert (config.provenance["accuracy"], config.provenance["score"]) == (answers[m], fine[m])
        assert evaluator.floors[0] == 0.0 and evaluator.floors == sorted(evaluator.floors)


def test_what_is_nearly_as_fine_holds_and_what_is_behind_in_answers_does_not() -> None:
    best = Score(0.9, 0.8)
    for score, good in (
        (best, True),
        (Score(0.9, 0.79901), True),
        (Score(0.9, 0.79899), False),
        (Score(0.95, 0.7989), False),
        (Score(0.8999, 0.9), False),
        (Score(1.0, 0.8), True),
    ):
        assert holds(score, best) == good, score


def test_answers_that_hold_with_a_finer_score_behind_the_uniform_windows_are_not_taken() -> None:
    """Two layers of one k: windows that differ keep more answers, and are less fine."""
    layers = [ComparingLayer("relu1", 10, 7), ComparingLayer("relu2", 30, 7)]

    class Even:
        def __init__(self, lost: float) -> None:
            self.lost, self.floors = lost, list[float]()

        def coarse(self, config: BitConfig) -> float:
            one, other = (config.window(layer.name) for layer in layers)
            return 1.0 if one == other else 1.0 - self.lost

        def full(self, config: BitConfig, floor: float) -> Score:
            self.floors.append(floor)
            one, other = (config.window(layer.name) for layer in layers)
            return Score(0.96 if one == other != EXACT else 1.0, self.coarse(config))

    options: dict[str, Any] = {"headroom": 0.0, "reach": 0, "widths": (2, 3, 4), "thrifty": True}
    evaluator = Even(0.002)
    config = search_bits(group_layers(layers, "layer"), evaluator, 3 / 64, **options)
    assert len(set(config.layers.values())) == 1 and config.provenance["accuracy"] == 0.96
    # Nothing with fewer answers than the best uniform window, or than the margin allows, is scored to the end.
    assert set(evaluator.floors) == {0.0, 0.96}


def test_the_finest_wins_over_more_answers_where_both_hold() -> None:
    layers = [ComparingLayer("relu1", 10, 7), ComparingLayer("relu2", 10, 7)]

    class Traded:
        def coarse(self, config: BitConfig) -> float:
            return self.full(config, 0.0).fine

        def full(self, config: BitConfig, floor: float) -> Score:
            one, other = (config.window(layer.name) for layer in layers)
            if one == other:
                return Score(1.0, 1.0) if one == EXACT else Score(0.96, 0.9)
            return Score(1.0, 0.95) if one.m < other.m else Score(0.97, 0.99)

    options: dict[str, Any] = {"headroom": 0.0, "reach": 0, "widths": (2, 3, 4), "thrifty": True}
    config = search_bits(group_layers(layers, "layer"), Traded(), 3 / 64, **options)
    assert (config.provenance["accuracy"], config.provenance["score"]) == (0.97, 0.99)


def test_of_windows_that_lose_the_same_the_cheapest_are_taken_with_thrift() -> None:
    layers = [ComparingLayer("relu1", 10, 7), ComparingLayer("relu2", 30, 7)]
    config = search_bits(
        group_layers(layers, "layer"),
        lambda config: 1.0,
        4 / 64,
        widths=(2, 3, 4),
        headroom=0.0,
        thrifty=True,
        trials=1,
    )
    assert {window.w for window in config.layers.values()} == {2}


def test_k_holds_the_range_with_headroom_unless_the_budget_forces_it_down() -> None:
    """Two layers that see up to 100 and up to 120 (k = 8); a quarter of headroom takes k = 8 and 9."""
    layers = [ComparingLayer("relu1", 10, 100), ComparingLayer("relu2", 10, 120)]

    def accuracy(config: BitConfig) -> float:
        pruned = sum(2.0**window.m for window in config.layers.values() if window != EXACT)
        wrapped = sum(max(0, 8 - window.k) for window in config.layers.values())
        return max(0.0, 1 - pruned / 1000 - wrapped / 10)

    def found(budget: Fraction, **options: Any) -> list[str]:
        config = search_bits(group_layers(layers, "stage"), accuracy, budget, margin=1.0, **options)
        return [str(window) for window in config.layers.values()]

    # 17 bits hold everything. With fewer, m is larger than that of [8:m) for all layers: the budget forces k to 8.
    assert found(Fraction(17, 128)) == ["[8:0)", "[9:0)"]
    assert found(Fraction(16, 128)) == ["[8:0)", "[8:0)"] == found(Fraction(17, 128), headroom=0.0)
    # 100 < 127 * 0.9: one bit less is enough for those who ask for it.
    assert found(Fraction(14, 128), headroom=-0.3, widths=(5, 6, 7)) == ["[8:1)", "[8:1)"]


@pytest.mark.slow
def test_what_is_left_buys_wider_windows() -> None:
    wider = 0
    for seed in range(60):
        instance = Instance(seed)
        found, spent = instance.search(trials=1), instance.search(trials=1, thrifty=False)
        if found is None or spent is None:
            continue
        windows = windows_of(spent)
        assert windows is not None and instance.price(windows) <= instance.budget and instance.accepts(spent)
        assert spent.provenance["cost"] == float(instance.price(windows))
        assert spent.provenance["accuracy"] == instance.table.of(windows)
        wider += windows != windows_of(found)
    assert wider >= 5


def test_all_that_a_budget_pays_for_is_bought_when_nothing_loses() -> None:
    layers = [ComparingLayer("relu1", 64, 1000), ComparingLayer("relu2", 32, 1000), ComparingLayer("relu3", 32, 9)]

    def accuracy(config: BitConfig) -> float:
        return 1.0 if all(window.w > 1 for window in config.layers.values()) else 0.0

    for budget, expected in (
        (Fraction(2, 64), ["[12:10)", "[12:10)", "[5:3)"]),
        (Fraction(4, 64), ["[12:8)", "[12:8)", "[5:1)"]),
        (Fraction(37, 256), ["[12:1)", "[12:2)", "[5:0)"]),  # 11 x 64 + 10 x 32 + 5 x 32 of 64 x 128
        (Fraction(1), ["[12:0)", "[12:0)", "[5:0)"]),
    ):
        config = search_bits(group_layers(layers, "layer"), accuracy, budget)
        assert [str(window) for window in config.layers.values()] == expected, budget


def test_a_uniform_window_alone() -> None:
    for seed in range(8):
        instance = Instance(seed)
        if uniforms := instance.uniforms():
            config = instance.search(uniform=True)
            assert config is not None and config.provenance["how"] == "uniform"
            assert config.provenance["accuracy"] == max(map(instance.table.of, uniforms))
    with pytest.raises(ConfigError, match="no uniform window meets a budget of 0.01"):
        search_bits(ONE, lambda c: 1.0, 0.01, uniform=True)


def test_the_same_seed_repeats_and_progress_is_told() -> None:
    seen: list[Any] = []
    one, two = Instance(3).search(seed=7, progress=seen.append), Instance(3).search(seed=7)
    assert one is not None and two is not None
    assert one.layers == two.layers and one.provenance["evaluations"] == two.provenance["evaluations"]
    assert seen[-1].evaluations == one.provenance["evaluations"]
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
    assert told["cost"] == float(instance.price(chosen)) and told["seconds"] >= 0
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
        ((ONE, lambda c: 1.0, 8), {}, ConfigError, "a budget of 8 is more than all bits"),
        ((ONE, lambda c: 1.0, "8/64"), {}, ConfigError, "a budget of '8/64'"),
        ((ONE, lambda c: 1.0, 1.0), {"trials": 0}, ConfigError, "trials is 0"),
        ((ONE, lambda c: 1.0, 1.0), {"headroom": -1}, ConfigError, "a headroom of -1"),
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


@pytest.mark.parametrize("numbers", [(0, 5), (1.5, 5), (3, -1), (3, 2**63), (3, 1.0), (3, 5, 1), (3, 5, 65), (True, 5)])
def test_layers_that_cannot_be_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InputError) as caught:
        ComparingLayer("relu", *numbers)
    assert caught.value.where == "relu" and caught.value.hint
    with pytest.raises(ConfigError, match="empty group"):
        Group("g", ())
