"""The search for windows of two parties without a dealer: scores of its whole numbers, and windows that it converts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hummingbird
from hummingbird import hybrid
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError
from hummingbird.hybrid.ideal import Plain
from hummingbird.simulation.cut import seeded, uniform_low
from hummingbird.window_search.cached import layer_seed
from hummingbird.window_search.study import Study
from tests.support.hybrid_nets import images

SHAPE = (1, 6, 6)


def net() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).eval()


@pytest.mark.slow
def test_a_search_finds_windows_that_keep_answers_within_a_budget() -> None:
    plain, x = net(), images(SHAPE, 96)
    study = Study(plain, x, by="layer", batch=32, runs=1, cut=True)
    # The max pooling's window follows from its ReLU's.
    assert [layer.name for layer in study.layers] == ["1", "5"]
    config = study.search("8/64", margin=0.2, trials=2, widths=[6, 8, 9])
    assert config.provenance["protocol"] == "cut" and config.provenance["agreement"] >= 0.8
    assert config.provenance["cost"] <= 8 / 64
    twin = hummingbird.simulate(plain, config, seed=0, cut=True)
    kept = (twin(x).argmax(1) == plain(x).argmax(1)).double().mean()
    assert kept >= 0.8
    assert [gate.width for gate in hybrid.make_plan(plain, SHAPE, config).plan.gates.values()][-1] in (6, 8, 9)
    with pytest.raises(ConfigError, match="another net|found for net"):
        hybrid.make_plan(nn.Sequential(*list(net().children())[:-1], nn.Linear(8, 3)), SHAPE, config)


def test_scores_are_those_of_the_whole_numbers() -> None:
    plain, x = net(), images(SHAPE, 40)
    evaluator = Study(plain, x, by="layer", batch=64, runs=1, cut=True).evaluator
    config = BitConfig(layers={"1": BitWindow(16, 9), "5": BitWindow(16, 9)}, input_range=1.0)
    model = hybrid.make_plan(plain, SHAPE, config)
    order = evaluator._order
    low = uniform_low(model.plan, 40, seeded(layer_seed(0, "shares", 0)))
    values = Plain(model)(model.plan.encode(x[order]), low)
    answers = torch.empty(40, dtype=torch.int64)
    answers[order] = model.plan.decode(values).argmax(1)
    assert torch.equal(evaluator.outputs(config.windows).argmax(1), answers)
    # Exact windows are the net itself.
    assert torch.equal(evaluator.outputs(BitConfig()).argmax(1), plain(x).argmax(1))


def test_a_search_without_a_budget_or_for_another_objective_is_refused() -> None:
    study = Study(net(), images(SHAPE, 16), by="layer", runs=1, cut=True)
    with pytest.raises(ConfigError, match="change nothing"):
        study.search()
    with pytest.raises(ConfigError, match="'bytes'"):
        study.objective("bytes")
    with pytest.raises(ConfigError, match="protocol"):
        Study(net(), images(SHAPE, 16), protocol="gmw", cut=True)


def test_windows_of_cut_nets_have_headroom_and_layers_left_exact_twice_their_range() -> None:
    study = Study(net(), images(SHAPE, 48), by="layer", runs=1, cut=True)
    config = study.search("14/64", margin=0.5, trials=1, widths=[9, 10, 11, 12])
    for layer in study.layers:
        assert 2 ** (config.layers[layer.name].k - 1) > 1.25 * layer.largest, layer.name
        assert 2 ** (study.evaluator._wide[layer.name].k - 1) >= 2 * layer.largest, layer.name  # type: ignore[attr-defined]
    assert config.provenance["below_range"] == ()
    # One layer with a window, the other exact: what is added to its values wraps none of them.
    far = BitConfig(layers={"1": config.layers["1"]})
    assert study.answers.distance(study.evaluator.outputs(far)) < 0.2
