"""The search for q: on tables of prices and losses, and of the digits net, whose bytes fall while its answers stay."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hummingbird
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.window_search import ComparingLayer, Group, search_bits
from hummingbird.window_search.rounding import without_q
from hummingbird.window_search.study import Study
from tests.window_search.test_study import IMAGES, LABELS, NET, digits

LAYERS = [ComparingLayer(f"relu{i}", 10 * (i + 1), 2**17 - 1) for i in range(3)]
GROUPS = [Group("first", tuple(LAYERS[:2])), Group("last", (LAYERS[2],))]
LARGEST = 20 - 2  # eco gives these layers k = 20


def q_of(config: BitConfig) -> dict[str, int]:
    """q of each group, which its layers have in common."""
    found = {group.name: {config.layers[layer.name].q for layer in group.layers} for group in GROUPS}
    assert all(len(each) == 1 for each in found.values())
    return {name: each.pop() for name, each in found.items()}


def bits(config: BitConfig) -> int:
    """A price that falls by the outputs of a layer with every q."""
    return sum(layer.outputs * (64 - config.window(layer.name).q) for layer in LAYERS)


def loses(most: Mapping[str, int]) -> Any:
    """An accuracy of 1 as long as the q of every group is at most this, and of less than what is held to beyond."""
    named = {layer.name: most[group.name] for group in GROUPS for layer in group.layers}
    return lambda config: 1.0 - 0.1 * any(config.window(name).q > q for name, q in named.items())


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 5), (0, 7), (9, 3), (16, 16), (16, 0)])
def test_each_group_goes_as_far_as_its_accuracy_holds(first: int, last: int) -> None:
    most = {"first": first, "last": last}
    config = search_bits(GROUPS, loses(most), in_all=bits)
    assert q_of(config) == most
    told = config.provenance["rounding"]
    assert told["q"] == most and 8 * told["bytes_in_all"] == bits(config) == bits(without_q(config)) - 30 * (
        first + last
    )
    assert told["bytes_in_all_without"] == 30 * 64 * 2 / 8 and config.provenance["accuracy"] == 1.0
    assert without_q(config).layers == search_bits(GROUPS, loses(most)).layers


def test_what_saves_nothing_or_costs_more_is_not_taken() -> None:
    """A price with bumps: q is only among the values that are cheaper than all lower ones."""

    def bumpy(config: BitConfig) -> int:
        return sum({0: 50, 3: 40, 7: 40, 9: 30}.get(config.window(layer.name).q, 60) for layer in LAYERS)

    assert q_of(search_bits(GROUPS, loses({"first": 8, "last": 16}), in_all=bumpy)) == {"first": 3, "last": 9}
    assert q_of(search_bits(GROUPS, lambda config: 1.0, in_all=lambda config: 1)) == {"first": 0, "last": 0}
    # What costs nothing to one group alone may cost the net: then q = 0 is left.
    paid = lambda config: 9 - any(w.q for w in config.layers.values()) + 5 * (sum(q_of(config).values()) > 16)  # noqa: E731
    config = search_bits(GROUPS, lambda config: 1.0, in_all=paid)
    assert paid(config) <= 9 and config.provenance["rounding"]["bytes_in_all"] == paid(config) / 8


def test_within_the_margin_it_is_as_far_as_the_best_common_q_and_no_group_can_go_further() -> None:
    """Losses that add up, by draw, in a net whose uniform windows are beyond the margin."""
    layers = [*LAYERS[:2], ComparingLayer("relu2", 30, 2**15 - 1)]
    groups = [Group("first", tuple(layers[:2])), Group("last", (layers[2],))]
    further = 0
    for seed in range(40):
        draw = random.Random(seed)
        each = {group.name: 10 ** draw.uniform(-6, -3) for group in groups}
        margin = draw.choice([1e-3, 1e-2])

        def lost(q: Mapping[str, int], each: Mapping[str, float] = each) -> float:
            return sum(lost * (2 ** q[name] - 1) for name, lost in each.items())

        def accuracy(config: BitConfig) -> float:
            windows = [(config.window(layer.name).k, config.window(layer.name).m) for layer in layers]
            uniform = 0.3 * (windows[0] == windows[2] != (64, 0))
            return 1 - min(0.5, uniform + lost(q_of(config)))  # noqa: B023

        config = search_bits(groups, accuracy, 1.0, margin=margin, in_all=bits, widths=(17, 19))
        found, widest = q_of(config), {group.name: config.layers[group.layers[0].name].k - 2 for group in groups}
        assert lost(found) <= margin + 1e-12
        for name, q in found.items():
            assert q == min(16, widest[name]) or lost({**found, name: q + 1}) > margin - 1e-12
        reach = {q: {name: min(q, most) for name, most in widest.items()} for q in range(17)}
        common = max((q for q in reach if lost(reach[q]) <= margin), default=0)
        assert all(q >= reach[common][name] for name, q in found.items())
        further += found != reach[common]
    assert further > 10


@pytest.fixture(scope="module", params=["masked", pytest.param("gmw", marks=pytest.mark.slow)])
def study(request: pytest.FixtureRequest) -> Study:
    return Study(NET, IMAGES, LABELS, by="layer", protocol=request.param, runs=1)


def moved(config: BitConfig, protocol: str) -> float:
    """Bytes of both parties and the dealer for an image, by `estimate`."""
    found = hummingbird.estimate(NET, (1, 1, 8, 8), config, protocol=protocol, aim="throughput")
    return 2 * found.online_bytes + found.offline_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "widths"),
    [
        *(pytest.param(budget, None, marks=pytest.mark.slow) for budget in (None, "12/64")),
        ("12/64", (8, 12)),
    ],
)
def test_bytes_of_digits_fall_and_its_answers_stay(
    study: Study, budget: str | None, widths: tuple[int, ...] | None
) -> None:
    plain, config = study.search(budget, widths=widths), study.search(budget, widths=widths, knobs="q")
    told = config.provenance["rounding"]
    assert without_q(config).layers == plain.layers and max(told["q"].values()) > 0
    assert told["bytes_in_all"] == moved(config, study.protocol) < moved(plain, study.protocol)
    assert told["bytes_in_all_without"] == moved(plain, study.protocol)
    assert config.provenance["agreement"] == study.evaluator.full(config).answers
    assert told["kept_without"] == plain.provenance["agreement"]
    assert config.provenance["agreement"] >= (plain.provenance.get("uniform") or {"accuracy": 1.0})["accuracy"]
    assert BitConfig.from_json(config.to_json()) == config and '"version": 3' in config.to_json()
    # Other images, other noise, another seed: of 256 answers of 80 %, 2 in 100 are less than one standard error.
    _, images, labels = digits(seed=7)
    right = []
    for each in (plain, config):
        with torch.no_grad():
            got = hummingbird.simulate(NET, each, study.protocol, seed=11)(images).argmax(1)
        right.append(float((got == labels).double().mean()))
    assert right[1] > right[0] - 0.02


def test_the_cut_of_gmw_is_paid_by_bits_of_the_window_alone() -> None:
    """Below m q saves nothing: windows from bit 15 on keep q = 0, at a word of the price's, whatever is accurate."""
    study = Study(NET, IMAGES, LABELS, by="layer", protocol="gmw", runs=1)
    names = study.searched.names
    prices = [sum(study.searched.in_all(BitConfig(BitWindow(20, 15, q)), 2).values()) for q in range(17)]
    assert prices[0] <= min(prices[1:16]) and prices[16] < prices[0]
    narrow = lambda config: 1.0 - 0.5 * any(config.window(name).q == 16 for name in names)  # noqa: E731
    config = search_bits(
        study.groups,
        narrow,
        5 / 64,
        widths=(5,),
        uniform=True,
        accepts=lambda c: study.accepts(c) and all(w.m in (0, 15) for w in c.layers.values()),
        in_all=lambda c: sum(study.searched.in_all(c, 2).values()),
    )
    assert {(w.m, w.q) for w in config.layers.values()} == {(15, 0)}
    assert config.provenance["rounding"]["bytes_in_all"] == config.provenance["rounding"]["bytes_in_all_without"]


def test_a_uniform_window_has_one_q_and_a_layer_without_bits_none(study: Study) -> None:
    config = study.search("8/64", uniform=True, knobs="q")
    assert len(set(config.layers.values())) == 1 and list(config.provenance["rounding"]["q"]) == ["all"]
    dropped = search_bits(GROUPS, lambda config: 1.0, 1e-9, widths=(0,), in_all=bits)
    assert set(dropped.layers.values()) == {BitWindow(0, 0)}


@pytest.mark.slow
def test_interrupted_and_resumed_is_undisturbed(study: Study, tmp_path: Path) -> None:
    expected, told = study.search("12/64", knobs="q"), []
    study.search("12/64", progress=told.append)
    before = len(told)
    study.search("12/64", progress=told.append, knobs="q")
    last, state, steps = before + (len(told) - 2 * before) // 2, tmp_path / "state", itertools.count(1)

    def stop(_: Any) -> None:
        if next(steps) == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.search("12/64", state=state, progress=stop, knobs="q")
    asked = [json.loads(line)["windows"] for line in state.read_text().splitlines()[1:]]
    assert any(len(window) == 3 for windows in asked for window in windows)
    fresh = Study(NET, IMAGES, LABELS, by="layer", protocol=study.protocol, runs=1)
    with pytest.raises(ConfigError, match="the state of another search"):
        fresh.search("12/64", state=state)
    got = fresh.search("12/64", state=state, knobs="q")
    assert got.layers == expected.layers and got.provenance["rounding"] == expected.provenance["rounding"]


def test_other_knobs_are_refused() -> None:
    study = Study(NET, IMAGES[:8], LABELS[:8])
    for knob in ("x", "k", "", True):
        with pytest.raises(ConfigError, match="unknown knob") as caught:
            study.search(knobs=knob)  # type: ignore[arg-type]
        assert caught.value.where == "knobs" and 'knobs="q"' in caught.value.hint
    with pytest.raises(ConfigError, match="q with cut=True"):
        Study(NET, IMAGES[:8], LABELS[:8], cut=True).search("9/64", knobs="q")
