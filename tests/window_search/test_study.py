"""A study of the digits net: eco, budgets, interruption, provenance, and what is refused."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hummingbird
from hummingbird.bits import BitConfig
from hummingbird.errors import ConfigError, InputError, ModelError
from hummingbird.simulation.observe import magnitudes
from hummingbird.window_search.study import Study
from models import get_model, load_checkpoint
from scripts.train.data import load
from tests.support.covering import every
from tests.support.paths import ROOT

NOISE = 0.9  # images that are harder to read, so that windows cost accuracy


def digits(seed: int = 1) -> tuple[nn.Module, Tensor, Tensor]:
    images, labels = load("digits", "test")
    noise = torch.randn(len(images), 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    net = load_checkpoint(ROOT / "checkpoints/digits.pt", get_model("digits", 10)).eval()
    return net, (images + NOISE * noise)[:256], labels[:256]


NET, IMAGES, LABELS = digits()


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(NET, IMAGES, LABELS, by="layer", runs=2)


def same(config: BitConfig) -> str:
    """All of a config but the time it took."""
    told = {key: value for key, value in config.provenance.items() if key != "seconds"}
    return BitConfig(config.default, config.layers, told).to_json()


def test_it_knows_its_net(study: Study) -> None:
    assert [group.name for group in study.groups] == [layer.name for layer in study.layers] == study.searched.names
    assert {layer.name: layer.largest for layer in study.layers} == magnitudes(NET, IMAGES)
    assert [layer.outputs for layer in study.layers] == [1024, 512, 1024]
    assert [group.name for group in Study(NET, IMAGES, LABELS, by={"all": ["relu*"]}).groups] == ["all"]


def test_eco_changes_no_prediction(study: Study) -> None:
    config = study.search()
    told = config.provenance
    assert told["how"] == "HummingBird-eco" and told["accuracy"] == told["exact_accuracy"] < 1
    assert told["samples"] == 256 and told["protocol"] == "masked" and told["parties"] == 2
    with torch.no_grad():
        expected, got = NET(IMAGES), hummingbird.simulate(NET, config)(IMAGES)
    assert torch.equal(got.argmax(1), expected.argmax(1))
    assert told["exact_accuracy"] == float((expected.argmax(1) == LABELS).double().mean())
    for layer in study.layers:
        window, seen = config.layers[layer.name], told["layers"][layer.name]
        assert window.m == 0 and seen["largest"] == layer.largest
        assert layer.largest * 2 ** seen["margin_bits"] == pytest.approx(2 ** (window.k - 1), rel=1e-3)
        assert 1 <= seen["margin_bits"] < 2 + 1e-3  # one bit to spare, and what is left of the last one
    assert BitConfig.from_json(config.to_json()) == config


@pytest.mark.slow
def test_a_budget_is_kept_and_the_accuracy_is_that_of_the_twin(study: Study) -> None:
    costs = []
    for budget, name in ((Fraction(8, 64), "bits"), (Fraction(4, 64), "bits"), (7000, "bytes"), (1e-5, "seconds")):
        objective = study.objective(name)
        config = study.search(budget, objective=objective, margin=0.5, widths=(0, 3, 4, 6, 8, 10))
        price = sum(objective.price(layer, config.layers[layer.name]) for layer in study.layers)
        assert config.provenance["cost"] == float(price) <= budget
        assert (config.provenance["agreement"], config.provenance["score"]) == study.evaluator.full(config)
        assert config.provenance["agreement"] >= max(0.5, config.provenance["uniform"]["accuracy"])
        assert config.provenance["accuracy"] == study.accuracy(config)
        costs.append((name, price))
    assert costs[1][1] < costs[0][1]
    private = hummingbird.convert_model(
        NET, study.search(7000, margin=0.2, objective=study.objective("bytes"), widths=(4, 8))
    )
    assert sum(step.cost.bits for step in private.costs((1, 1, 8, 8), 2) if "relu" in step.name) <= 8 * 7000


@pytest.mark.slow
def test_by_accuracy_as_published_and_by_agreement_without_labels(study: Study) -> None:
    options: dict[str, Any] = {"margin": 0.3, "widths": (0, 2, 3, 4, 6)}
    published = Study(NET, IMAGES, LABELS, by="layer", criterion="accuracy", runs=2)
    told = published.search(4 / 64, **options).provenance
    assert told["criterion"] == "accuracy" and "agreement" not in told
    assert told["exact_accuracy"] == published.accuracy(BitConfig()) == study.accuracy(BitConfig()) < 1
    unlabelled, labelled = (
        Study(NET, IMAGES, by="layer", runs=2).search(4 / 64, **options),
        study.search(4 / 64, **options),
    )
    assert unlabelled.layers == labelled.layers and unlabelled.provenance["accuracy"] is None
    assert labelled.provenance["agreement"] == unlabelled.provenance["agreement"] < 1
    with torch.no_grad():
        own, got = NET(IMAGES).argmax(1), study.evaluator.outputs(labelled).argmax(1)
    assert abs(float((got == own).double().mean()) - labelled.provenance["agreement"]) < 0.1  # one of two runs
    assert torch.equal(study.evaluator.outputs(BitConfig()).argmax(1), own)
    with pytest.raises(InputError, match="no labels to be accurate to"):
        Study(NET, IMAGES, criterion="accuracy")
    with pytest.raises(ConfigError, match="unknown criterion"):
        Study(NET, IMAGES, LABELS, criterion="loss")


@pytest.mark.slow
def test_the_same_seed_repeats_and_another_search_in_between_changes_nothing(study: Study) -> None:
    options: dict[str, Any] = {"margin": 0.3, "widths": (0, 2, 3, 4, 5, 6), "provenance": {"command": "find"}}
    first = study.search(4 / 64, **options)
    study.search(3 / 64, margin=0.5, widths=(0, 2, 3, 4))
    again = Study(NET, IMAGES, LABELS, by="layer", runs=2).search(4 / 64, **options)
    assert same(first) == same(again) == same(study.search(4 / 64, **options))
    assert first.provenance["command"] == "find" and first.provenance["seconds"] >= 0


# At which parts of the search: in its middle, or behind the first answer, there, and before the last but one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("widths", "parts"),
    [((0, 4), (0.5,)), *(pytest.param(w, (0, 0.5, 1), marks=pytest.mark.slow) for w in ((0, 4), (0, 2, 3, 4, 5, 6)))],
)
def test_interrupted_and_resumed_is_undisturbed(
    study: Study, tmp_path: Path, widths: tuple[int, ...], parts: tuple[float, ...]
) -> None:
    options: dict[str, Any] = {"margin": 0.3, "widths": widths}
    told: list[Any] = []
    expected = study.search(4 / 64, progress=told.append, **options)
    for last in (1 + int(part * (len(told) - 3)) for part in parts):
        state, steps = tmp_path / f"{last}.state", []

        def stop(progress: Any, steps: list[Any] = steps, last: int = last) -> None:
            steps.append(progress)
            if len(steps) == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Study(NET, IMAGES, LABELS, by="layer", runs=2).search(4 / 64, state=state, progress=stop, **options)
        assert len(state.read_text().splitlines()) > last
        fresh = Study(NET, IMAGES, LABELS, by="layer", runs=2)
        assert same(fresh.search(4 / 64, state=state, **options)) == same(expected)


def test_the_state_of_another_net_or_other_data_is_refused(study: Study, tmp_path: Path) -> None:
    state, other = tmp_path / "state", get_model("digits", 10).eval()
    options: dict[str, Any] = {"margin": 1, "widths": (4,), "state": state}
    study.search(4 / 64, **options)
    other.load_state_dict(NET.state_dict())
    with torch.no_grad():
        other.fc.bias[0] += 1e-4  # what is compared is the same
    changed = LABELS.clone()
    changed[0] = (changed[0] + 1) % 10
    for net, labels, seed in ((other, LABELS, 0), (NET, changed, 0), (NET, LABELS, 1)):
        with pytest.raises(ConfigError, match="the state of another search") as caught:
            Study(net, IMAGES, labels, by="layer", runs=2, seed=seed).search(4 / 64, **options)
        assert caught.value.where == str(state) and "same net, data" in caught.value.hint


def test_provenance_is_plain_json_and_names_no_machine(study: Study) -> None:
    told = study.search(8 / 64, widths=(8,)).provenance
    assert BitConfig.from_json(BitConfig(provenance=told).to_json()).provenance == told and json.dumps(told)
    assert {"net", "data", "samples", "groups", "layers", "seconds", "versions", "seed"} <= set(told)
    assert told["net"] == study.searched.fingerprint and len(told["data"]) == 64
    assert told["groups"] == {name: (name,) for name in study.searched.names}


def test_budgets_as_text(study: Study) -> None:
    options: dict[str, Any] = {"margin": 0.5, "widths": (4,)}
    assert same(study.search("4/64", **options)) == same(study.search(Fraction(4, 64), **options))
    for budget, what in ((8, "a budget of 8 is more than all bits"), ("8", "a budget of 8 bits"), ("x", "no budget")):
        with pytest.raises(ConfigError, match=what) as caught:
            study.search(budget)  # type: ignore[arg-type]
        assert caught.value.where == "budget" and "8/64" in caught.value.hint


BATCHES = [(IMAGES[:100], LABELS[:100]), (IMAGES[100:], LABELS[100:])]
DATA = TensorDataset(IMAGES, LABELS)


@pytest.mark.parametrize(
    "make", every(4, [lambda: DataLoader(DATA, batch_size=50), lambda: DATA, lambda: BATCHES, lambda: iter(BATCHES)])
)
def test_images_come_as_they_are_at_hand(study: Study, make: Callable[[], Any]) -> None:
    other = Study(NET, make(), by="layer", runs=2)
    assert other._facts == study._facts and other.input_range == study.input_range


def test_images_without_labels_and_apart_from_them(study: Study) -> None:
    unlabelled = Study(NET, (part for part in IMAGES.split(100)), by="layer", runs=2)
    assert unlabelled.accuracy(BitConfig()) is None and unlabelled._facts["samples"] == 256
    given = Study(NET, [IMAGES[:100], IMAGES[100:]], LABELS, by="layer", runs=2)
    assert given._facts == study._facts
    for images, labels, what in (
        ([], None, "no images in an empty iterable"),
        (3, None, "expected images, got int"),
        ("images", None, "expected images, got str"),
        ([[1, 2, 3]], None, "batch 0 is a list of int, int, int"),
        ([{"x": IMAGES}], None, "batch 0 is dict"),
        ([(IMAGES, LABELS[:3])], None, "256 images and 3 labels"),
        ([(IMAGES, LABELS)], LABELS, "labels beside them"),
        ([(IMAGES, LABELS), IMAGES], None, "some have none"),
        ([IMAGES, IMAGES[:, :, :4]], None, "do not fit each other"),
    ):
        with pytest.raises(InputError, match=what) as caught:
            Study(NET, images, labels)  # type: ignore[arg-type]
        assert caught.value.hint


def test_the_range_of_the_images_goes_with_the_windows(study: Study) -> None:
    most = float(IMAGES.abs().max())
    config = study.search()
    assert study.input_range == config.input_range == most
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            hummingbird.simulate(NET, config)(IMAGES)
    with pytest.warns(UserWarning, match=r"beyond .*, the range that the windows were made for"), torch.no_grad():
        hummingbird.simulate(NET, config)(2 * IMAGES)


def test_k_below_what_was_seen_is_told() -> None:
    study = Study(NET, IMAGES, LABELS, by="stage", runs=1)
    wide, narrow = study.search("16/64", widths=(16,)), study.search("3/64", margin=1.0, widths=(3,))
    assert wide.provenance["below_range"] == () and all(
        room["margin_bits"] >= math.log2(1.25) - 1e-3 for room in wide.provenance["layers"].values()
    )
    below = [name for name, room in narrow.provenance["layers"].items() if (room["margin_bits"] or 0) < 0]
    assert list(narrow.provenance["below_range"]) == below != []


def test_what_cannot_be_studied_is_refused() -> None:
    with pytest.raises(InputError, match="no comparing layers"):
        Study(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), IMAGES, LABELS)
    with pytest.raises(ModelError, match="LocalResponseNorm"):
        Study(nn.Sequential(nn.LocalResponseNorm(2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)), IMAGES, LABELS)
    with pytest.raises(InputError, match="no images"):
        Study(NET, IMAGES[:0], LABELS[:0])
    with pytest.raises(InputError, match="256 images and 255 labels"):
        Study(NET, IMAGES, LABELS[1:])
    with pytest.raises(ConfigError, match="unknown protocol"):
        Study(NET, IMAGES, LABELS, protocol="bgw")
    with pytest.raises(ConfigError, match="unknown grouping"):
        Study(NET, IMAGES, LABELS, by="stages")
    with pytest.raises(ConfigError, match="unknown objective 'rounds'") as caught:
        Study(NET, IMAGES, LABELS).objective("rounds")
    assert "bytes" in caught.value.hint
