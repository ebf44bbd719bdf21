"""The window search on accuracies given as tables: brute force, prunings, interruptions, and what it refuses."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hummingbird import cost
from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError, InputError
from hummingbird.search import (
    ComparingLayer,
    Group,
    Objective,
    bit_budget,
    group_layers,
    online_bytes,
    predicted_seconds,
    search_bits,
)
from hummingbird.search.tree import PRUNINGS

LOSSLESS = PRUNINGS - {"dominated"}
SUBSETS = [frozenset(names) for size in range(4) for names in itertools.combinations(sorted(LOSSLESS), size)]


def hashed(*what: object) -> random.Random:
    """Randomness that depends on the arguments alone, in every process."""
    return random.Random(hashlib.sha256(repr(what).encode()).digest())


class Table:
    """Accuracies in steps of 1/64, drawn for every prefix of windows: more bits help on the whole, but there is no
    order and no monotony, and there are many ties. 1 if exact.

    Below the floor it tells any lower number, as an evaluator may that stops early.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.calls = seed, 0

    def of(self, windows: Sequence[BitWindow]) -> float:
        used = [(window.k, window.m) for window in windows if window != EXACT]
        lost = 2 * sum(8 - k + m for k, m in used)
        return (64 - lost + hashed(self.seed, *used).randrange(min(9, lost))) / 64 if used else 1.0

    def accuracy(
        self, prefix: Mapping[str, BitWindow], group: Group, windows: Sequence[BitWindow], floor: float
    ) -> list[float]:
        self.calls += 1
        truths = [self.of([*prefix.values(), window]) for window in windows]
        return [truth if truth >= floor else hashed("below", truth, self.seed).random() * floor for truth in truths]


class Instance:
    """A random problem of three layers; `kind` of objective by turns."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.layers = [ComparingLayer(f"relu{i}", draw.randint(1, 99), draw.randint(2, 15), 8) for i in range(3)]
        self.groups = group_layers(self.layers, "layer")
        self.table, self.reach, self.margin = Table(seed), draw.randint(0, 2), draw.choice([0.4, 0.6, 0.75])
        self.objective = [
            bit_budget(self.layers),
            online_bytes("masked", 2),
            predicted_seconds("gmw", 3, bandwidth=1e5, rtt=0.01),
        ][seed % 3]
        self.widths = (2, 3, 4) if seed % 5 == 0 else None  # without 0 every group costs something
        self.windows = [group.windows(self.widths, self.reach, self.objective.least_width) for group in self.groups]
        prices = [[self.price(depth, window) for window in found] for depth, found in enumerate(self.windows)]
        least, most = sum(map(min, prices)), sum(map(max, prices))
        self.budget = least + (most - least) * Fraction(draw.randint(1, 9), 10)
        refused = {self.windows[1][-1], self.windows[2][1]} if seed % 4 == 0 else set()
        self.accepts: Callable[[BitConfig], bool] = lambda config: not refused & set(config.layers.values())
        self.refused = refused

    def price(self, depth: int, window: BitWindow) -> Fraction:
        return self.objective.price(self.layers[depth], window)

    def search(self, prunings: frozenset[str] = PRUNINGS, **options: Any) -> BitConfig | None:
        fixed = {"objective": self.objective, "margin": self.margin, "reach": self.reach}
        fixed |= {"widths": self.widths, "accepts": self.accepts, "thrifty": True}
        try:
            return search_bits(self.groups, self.table, self.budget, prunings=prunings, **(fixed | options))
        except ConfigError as error:
            if "keeps an accuracy of" not in error.what:
                raise
            return None

    def brute(self, dominated: bool) -> tuple[BitWindow, ...] | None:
        """Every assignment of prices, with the windows that its prefixes fix; the best by the rules of tree.py."""
        exact = self.table.of(())
        dearest = [max(self.price(depth, window) for window in found) for depth, found in enumerate(self.windows)]
        found = []

        def walk(chosen: tuple[BitWindow, ...], score: float, spent: Fraction, order: tuple[Any, ...]) -> None:
            depth = len(chosen)
            if depth == 3:
                if spent <= self.budget and score >= exact - self.margin:
                    found.append((-score, order, chosen))
                return
            share = (self.budget - spent) * dearest[depth] / sum(dearest[depth:])
            children: dict[Fraction, tuple[float, int, int]] = {}
            for window in self.windows[depth]:
                if window not in self.refused:
                    entry = (self.table.of((*chosen, window)), window.k, -window.m)
                    price = self.price(depth, window)
                    children[price] = max(entry, children.get(price, entry))
            for price, (accuracy, k, minus_m) in children.items():
                cheaper = [other[0] for other_price, other in children.items() if other_price < price]
                if dominated and any(other >= min(accuracy, score) for other in cheaper):
                    continue
                step = (abs(price - share), price)
                walk((*chosen, BitWindow(k, -minus_m)), min(score, accuracy), spent + price, (*order, step))

        walk((), exact, Fraction(0), ())
        return min(found)[2] if found else None


def windows_of(config: BitConfig | None) -> tuple[BitWindow, ...] | None:
    return None if config is None else tuple(config.layers.values())


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


def test_what_is_left_buys_wider_windows_that_lose_nothing() -> None:
    wider = 0
    for seed in range(50):
        instance = Instance(seed)
        found, spent = instance.search(), instance.search(thrifty=False)
        if found is None or spent is None:
            assert found is spent
            continue
        assert spent.provenance["accuracy"] >= found.provenance["accuracy"]
        assert spent.provenance["cost"] <= float(instance.budget)
        windows, thrifty = windows_of(spent), windows_of(found)
        assert windows is not None and thrifty is not None
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


# Interruptions -------------------------------------------------------------------------------------------------------


class Stopped(Table):
    """A table that is interrupted at its n-th question."""

    def __init__(self, seed: int, last: int) -> None:
        super().__init__(seed)
        self.last = last

    def accuracy(self, *question: Any) -> list[float]:
        if self.calls == self.last:
            raise KeyboardInterrupt
        return super().accuracy(*question)


def test_interrupted_anywhere_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    whole = Instance(3)
    expected = whole.search(thrifty=False)
    assert expected is not None and whole.table.calls > 10
    for last in range(whole.table.calls):
        state, first, second = tmp_path / f"{last}.state", Instance(3), Instance(3)
        first.table = Stopped(3, last)
        with pytest.raises(KeyboardInterrupt):
            first.search(thrifty=False, state=state)
        config = second.search(thrifty=False, state=state)
        assert config is not None and config.to_json() == expected.to_json()
        assert second.table.calls == whole.table.calls - last  # what was answered is not asked again


def test_a_state_cut_anywhere_is_resumed(tmp_path: Path) -> None:
    state, whole = tmp_path / "state", Instance(3)
    expected = whole.search(state=state)
    assert expected is not None
    data = state.read_bytes()
    for end in range(data.index(b"\n") + 1, len(data), 37):
        state.write_bytes(data[:end])
        config = Instance(3).search(state=state)
        assert config is not None and config.to_json() == expected.to_json()
        assert state.read_bytes() == data


_KILLED = """
import os, signal, sys
from tests.test_search import Instance, Stopped
class Killed(Stopped):
    def accuracy(self, *question):
        if self.calls == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().accuracy(*question)
instance = Instance(3)
instance.table = Killed(3, 9)
instance.search(state=sys.argv[1])
"""


def test_killed_and_resumed_is_undisturbed(tmp_path: Path) -> None:
    state, root = tmp_path / "state", Path(__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(state)], cwd=root, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(state.read_text().splitlines()) == 1 + 9
    config, expected = Instance(3).search(state=state), Instance(3).search()
    assert config is not None and expected is not None and config.to_json() == expected.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"identity": "another net"},
        {"margin": 0.25},
        {"reach": 3},
        {"widths": (0, 4)},
        {"thrifty": False},
        {"objective": online_bytes("masked", 3)},
    ],
)
def test_the_state_of_another_search_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    instance, state = Instance(1), tmp_path / "state"
    instance.search(state=state)
    kept = state.read_bytes()
    fixed = {"objective": instance.objective, "margin": instance.margin, "reach": instance.reach}
    fixed |= {"thrifty": True}
    with pytest.raises(ConfigError, match="state of another search") as caught:
        search_bits(instance.groups, instance.table, instance.budget, state=state, **(fixed | change))
    assert str(state) in str(caught.value) and "hint: resume with the same net" in str(caught.value)
    assert state.read_bytes() == kept


def test_the_state_of_another_net_is_refused(tmp_path: Path) -> None:
    layers = [ComparingLayer("relu1", 10, 100), ComparingLayer("relu2", 10, 100)]
    search_bits(group_layers(layers, "layer"), lambda config: 0.5, 1 / 8, state=tmp_path / "state")
    for other in (
        [layers[0]],
        [layers[0], ComparingLayer("relu3", 10, 100)],
        [layers[0], ComparingLayer("relu2", 11, 100)],
        [layers[0], ComparingLayer("relu2", 10, 1000)],
    ):
        with pytest.raises(ConfigError, match="another search"):
            search_bits(group_layers(other, "layer"), lambda config: 0.5, 1 / 8, state=tmp_path / "state")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a line"),
        ("{", "not a line"),
        ("[]\n", "not a line"),
        ('{"format": "hummingbird-bits", "version": 1}\n', "not a hummingbird-search file"),
        ('{"format": "hummingbird-search", "version": 2}\n', "state of version 2, this release reads version 1"),
        ('{"format": "hummingbird-search", "version": 1, "problem": "x"}\n', "another search"),
    ],
)
def test_files_that_are_no_state_are_refused(tmp_path: Path, text: str, what: str) -> None:
    state = tmp_path / "state"
    state.write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        search_bits(Instance(1).groups, lambda config: 0.5, 1 / 8, state=state)
    assert str(state) in str(caught.value) and state.read_text() == text


def test_answers_to_other_questions_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    instance = Instance(3)
    instance.search(state=state)
    lines = state.read_text().splitlines()
    for change, what in (({"floor": 0.123}, "answer 3 is to another question"), ({"accuracy": [2.0]}, "accurac")):
        changed = [*lines[:3], json.dumps(json.loads(lines[3]) | change), *lines[4:]]
        state.write_text("\n".join(changed) + "\n")
        with pytest.raises((ConfigError, InputError), match=what):
            search_bits(
                instance.groups,
                instance.table,
                instance.budget,
                objective=instance.objective,
                margin=instance.margin,
                reach=instance.reach,
                thrifty=True,
                state=state,
            )
    with pytest.raises(ConfigError, match="cannot keep the search's state"):
        instance.search(state=tmp_path)


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
    with pytest.raises(ConfigError, match=r"change the accuracy from 1.0 to 0.5") as caught:
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
        ((ONE, lambda c: float(c.window("relu") == EXACT), 1.0), {}, ConfigError, "that keeps an accuracy of 0.9500"),
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


# Groups, windows, prices ---------------------------------------------------------------------------------------------

RESNET = ["relu1", *(f"layer{i}.{j}.relu{r}" for i in (1, 2, 3, 4) for j in (0, 1) for r in (1, 2))]


def layers_named(names: Sequence[str]) -> list[ComparingLayer]:
    return [ComparingLayer(name, 10, 1000) for name in names]


def test_a_resnet_has_the_papers_five_stages() -> None:
    layers = layers_named(RESNET)
    stages, blocks, single = (group_layers(layers, by) for by in ("stage", "block", "layer"))
    assert [group.name for group in stages] == ["stem", "layer1", "layer2", "layer3", "layer4"]
    assert [len(group.layers) for group in stages] == [1, 4, 4, 4, 4]
    assert [group.name for group in blocks][:4] == ["stem", "layer1.0", "layer1.1", "layer2.0"] and len(blocks) == 9
    assert [group.name for group in single] == RESNET
    for groups in (stages, blocks, single):
        assert [layer for group in groups for layer in group.layers] == layers


def test_second_calls_and_patterns() -> None:
    layers = layers_named(["relu", "relu#1", "block.relu", "block.relu#1"])
    assert [group.name for group in group_layers(layers, "block")] == ["stem", "block"]
    groups = group_layers(layers, {"late": ["*#1"], "first": ["relu", "block.relu"]})
    assert [(group.name, [layer.name for layer in group.layers]) for group in groups] == [
        ("first", ["relu", "block.relu"]),
        ("late", ["relu#1", "block.relu#1"]),
    ]


@pytest.mark.parametrize(
    ("by", "what"),
    [
        ("stages", "unknown grouping 'stages'"),
        ({"a": ["relu1", "layer*"], "b": ["conv*"]}, r"pattern 'conv\*' matches no layer"),
        ({"a": ["relu1"]}, "layer layer1.0.relu1 is in no group"),
        ({"a": ["*"], "b": ["relu1"]}, "layer relu1 is taken by groups a, b"),
        ({"a": "relu1"}, "'relu1' is not a list of patterns"),
        ({"a": ["*"], "b": []}, "a group without patterns"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(by: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        group_layers(layers_named(RESNET), by)
    assert caught.value.where and caught.value.hint


def test_the_second_call_of_a_module_is_exact_until_its_turn() -> None:
    seen: list[BitConfig] = []

    def accuracy(config: BitConfig) -> float:
        seen.append(config)
        return 0.5

    layers = layers_named(["relu", "relu#1"])
    search_bits(group_layers(layers, "layer"), accuracy, 1.0, widths=(8,))
    assert {config.window("relu#1") for config in seen if config.window("relu") == EXACT} == {EXACT}
    tried = [config for config in seen if config.window("relu") != EXACT]
    assert tried[0].window("relu#1") == EXACT != tried[-1].window("relu#1")


def test_windows_are_those_around_the_largest_magnitude() -> None:
    group = Group("g", (ComparingLayer("a", 1, 1000), ComparingLayer("b", 1, 4095, 13)))
    assert group.top == 13  # 4095 < 2^12 takes [13:m), and one more where the shares had room
    assert group.windows((8,), 2, 2) == [BitWindow(13, 5), BitWindow(12, 4), BitWindow(11, 3)]
    every = group.windows(None, 3, 2)
    assert {window.w for window in every} == {0, *range(2, 14)} and len(every) == len(set(every))
    assert all(window.w == 0 or window.k >= 10 for window in every)
    assert BitWindow(13, 0) in every and 1 in {window.w for window in group.windows(None, 3, 1)}


def test_prices_are_the_closed_forms() -> None:
    layers = [ComparingLayer("a", 100, 1000), ComparingLayer("b", 28, 1000)]
    window = BitWindow(20, 9)
    both = bit_budget(layers).total(layers, window)
    assert both == Fraction(11, 64) and bit_budget(layers).total(layers[:1], window) == Fraction(1100, 64 * 128)
    masked, gmw = cost.masked_relu(500, 20, 9, 64, 3), cost.relu(500, 11, 16, 3)
    for protocol, price in (("masked", masked), ("gmw", gmw)):
        sent = online_bytes(protocol, 3, images=5).price(layers[0], window)
        assert sent == Fraction(price.bits, 40)
        wire = predicted_seconds(protocol, 3, bandwidth=1e6, rtt=0.02, images=5).price(layers[0], window)
        assert wire == Fraction(price.seconds(1e6, 0.02))
        assert online_bytes(protocol, 3).price(layers[0], BitWindow(0, 0)) == 0
    online: Objective = online_bytes("masked", 2)
    assert online.price(layers[0], BitWindow(20, 12)) == online.price(layers[0], BitWindow(20, 14))  # k pays, not w
    assert online.price(layers[0], BitWindow(18, 12)) < online.price(layers[0], BitWindow(20, 14))
    assert (online.least_width, online_bytes("gmw", 2).least_width) == (2, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: online_bytes("other", 2),
        lambda: online_bytes("gmw", 1),
        lambda: online_bytes("gmw", 2, images=0),
        lambda: predicted_seconds("gmw", 2, bandwidth=0, rtt=0.1),
        lambda: predicted_seconds("gmw", 2, bandwidth=1e9, rtt=-1),
        lambda: predicted_seconds("gmw", 2, bandwidth=1e9, rtt=float("nan")),
        lambda: bit_budget([], "other"),
    ],
)
def test_objectives_that_cannot_be_are_refused(build: Callable[[], Objective]) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.where and caught.value.hint
