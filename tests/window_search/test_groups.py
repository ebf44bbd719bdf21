"""Groups by name, the windows worth a trial, and prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from hummingbird.bits import EXACT, BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.mpc.protocols import gmw, masked
from hummingbird.window_search import (
    ComparingLayer,
    Group,
    Objective,
    bit_budget,
    group_layers,
    online_bytes,
    predicted_seconds,
    search_bits,
)

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
        (3, "unknown grouping 3"),
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


def test_all_layers_are_named_so_that_a_second_call_is_not_the_first_ones() -> None:
    seen: list[BitConfig] = []

    def accuracy(config: BitConfig) -> float:
        seen.append(config)
        return 0.5

    layers = layers_named(["relu", "relu#1"])
    search_bits(group_layers(layers, "layer"), accuracy, 1.0, widths=(8,))
    assert all(set(config.layers) == {"relu", "relu#1"} for config in seen)
    alone = [config for config in seen if config.window("relu#1") == EXACT]
    assert {config.window("relu").w for config in alone} >= {8, 64}


def test_windows_are_those_around_the_largest_magnitude() -> None:
    """Every layer has its own k, from its range with headroom downwards; m is the group's."""
    group = Group("g", (ComparingLayer("a", 1, 1000), ComparingLayer("b", 1, 4000, 13)))
    found = group.choices((8,), 0.25, 1, 2)
    # 1.25 x 4000 takes k = 14, but the shares allow 13; 1.25 x 1000 takes 12, and 1000 itself 11.
    assert [(choice.level, choice.m, *map(str, choice.windows)) for choice in found] == [
        (0, 5, "[12:5)", "[13:5)"),
        (1, 5, "[11:5)", "[13:5)"),
        (2, 4, "[10:4)", "[12:4)"),
        (2, 4, "[12:4)", "[12:4)"),  # one k for both, a bit below what 4000 takes
    ]
    every = group.choices(None, 0.0, 2, 2)
    assert len({choice.windows for choice in every}) == len(every) and every[0].windows[0] == BitWindow(0, 0)
    narrow = next(choice for choice in every if choice.m == 10)
    assert [str(window) for window in narrow.windows] == ["[12:10)", "[13:10)"]  # two bits at least
    assert max(choice.level for choice in every) == 3
    assert 1 in {window.w for choice in group.choices(None, 0.0, 0, 1) for window in choice.windows}
    for largest, headroom, k in ((0, 0.25, 1), (1, 0.0, 2), (3, 0.0, 3), (3, 0.34, 4), (4, -0.25, 3), (4, 0.0, 4)):
        layer = ComparingLayer("c", 1, largest)
        assert layer.upper(0, headroom) == k and 2 ** (k - 1) > largest * (1 + headroom)


def test_prices_are_the_closed_forms() -> None:
    layers = [ComparingLayer("a", 100, 1000), ComparingLayer("b", 28, 1000)]
    window = BitWindow(20, 9)
    both = bit_budget(layers).total(layers, [window] * 2)
    assert both == Fraction(11, 64) and bit_budget(layers).total(layers[:1], [window]) == Fraction(1100, 64 * 128)
    prices = {"masked": masked.relu_price(500, 20, 9, 64, 3), "gmw": gmw.relu_price(500, 11, 16, 3)}
    for protocol, price in prices.items():
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
