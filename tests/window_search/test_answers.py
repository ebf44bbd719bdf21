"""Answers of nets, and searches for nets that are no classifiers: scores, regressions, pixels, several results."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hummingbird
from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.errors import ConfigError, HummingbirdError, InputError
from hummingbird.window_search.answers import KINDS, NEAR, Answers
from hummingbird.window_search.study import Study
from tests.support.covering import every

DROPPED = BitConfig(BitWindow(0, 0))


class Wake(nn.Module):
    """A wake word's net: one probability, which is nonsense without the ReLUs."""

    def __init__(self, last: nn.Module, width: int = 1) -> None:
        super().__init__()
        self.fc1, self.relu1, self.fc2, self.relu2 = nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU()
        self.fc3, self.last = nn.Linear(16, width), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.fc3(self.relu2(self.fc2(self.relu1(self.fc1(x))))))


def wake(last: nn.Module | None = None, width: int = 1) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(4)
    net, x = Wake(nn.Identity(), width).eval(), torch.randn(96, 8)
    with torch.no_grad():
        net.fc3.weight.mul_(12)
        net.fc3.bias -= net(x).median(0).values
    net.last = last or nn.Identity()
    return net, x


def kinds(outputs: Tensor, labels: Tensor | None = None, kind: str | None = None) -> list[str]:
    return Answers(outputs, [("result", outputs.shape[1:])], labels, kind=kind).kinds


def test_labels_and_outputs_choose_the_kind() -> None:
    torch.manual_seed(0)
    x, whole = torch.randn(20, 3), torch.arange(20)
    unit, many = nn.functional.normalize(x), torch.randn(20, 4, 5, 6)
    for outputs, labels, expected in (
        (x, None, "classes"),
        (x, whole % 3, "classes"),
        (x, nn.functional.one_hot(whole % 3), "classes"),
        (x, (x > 0).float(), "score"),
        (x, x + 0.1, "values"),
        (x.softmax(1), None, "classes"),
        (unit, None, "embedding"),
        (x[:, :1], None, "score"),
        (x[:, 0], whole % 2, "score"),
        (x[:, :1].sigmoid(), (whole % 2).float(), "score"),
        (x[:, :1] + 9, None, "values"),  # no decision differs
        (x[:, :1] + 9, whole + 0.5, "values"),
        (x[:, :1], whole[:, None], "values"),
        (x.argmax(1), None, "numbers"),
        (x.argmax(1), whole % 3, "numbers"),
        (many, None, "values"),
        (many, torch.randint(4, (20, 5, 6)), "classes"),
        (many, torch.randint(6, (20, 4, 5)), "classes"),
        (many, many, "values"),
        (many[:, :1], torch.randint(2, (20, 5, 6)), "score"),
    ):
        assert kinds(outputs, labels) == [expected], (outputs.shape, expected)
    for kind in KINDS:
        assert kinds(x, kind=kind) == [kind]
    assert kinds(x.abs() + torch.tensor([9.0, 0, 0])) == ["values"]  # one class for all of them


def test_distances_and_decisions_by_hand() -> None:
    scores = torch.tensor([[0.0], [1.0], [0.2], [0.8]])
    judge = Answers(scores, [("p", (1,))], torch.tensor([0, 1, 1, 1]))
    spread = float(scores.std(correction=0))
    assert "above 0.5 or not" in str(judge) and judge.accuracy(scores) == 0.75
    for by, kept in ((0.9 * NEAR, 4), (1.1 * NEAR, 3)):  # of the last score, which stays on its side
        moved = scores + torch.tensor([[0.0], [0], [0], [by * spread]])
        assert judge.kept(moved) == kept / 4 and judge.accuracy(moved) == 0.75
        assert judge.distance(moved) == pytest.approx(by / 2, rel=1e-4)
    assert judge.kept(torch.tensor([[0.0], [1.0], [0.2], [0.45]])) == 0.75
    assert judge.kept(scores - 86) == 0.0 and judge.judge(scores - 86, judge.references).moved.min() > 0.9
    assert "above 0 or not" in str(Answers(scores - 0.5, [("p", (1,))]))
    columns = torch.tensor([[1.0, 1000.0], [3.0, 5000.0]])  # each column has a spread of its own
    values = Answers(columns, [("y", (2,))], kind="values")
    assert values.distance(columns + torch.tensor([1.0, 0.0])) == pytest.approx(2**-0.5)
    assert values.distance(columns + torch.tensor([0.0, 2000.0])) == pytest.approx(2**-0.5)
    assert values.kept(columns * float("nan")) == 0.0
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    directions = Answers(rows, [("e", (2,))], kind="embedding")
    assert directions.kept(rows * 7) == 1.0 and directions.kept(rows.flip(1)) == 0.0
    both = Answers(torch.cat([scores, columns.repeat(2, 1)], 1), [("p", (1,)), ("y", (2,))])
    assert both.kinds == ["score", "values"] and both.kept(torch.cat([scores, columns.repeat(2, 1) * 2], 1)) == 0.0


@pytest.mark.parametrize(
    ("last", "labels"),
    every(4, [*itertools.product((nn.Sigmoid(), nn.Identity(), nn.Flatten(0)), (None, "ints", "floats"))]),
)
def test_a_net_of_one_column_keeps_its_relus(last: nn.Module, labels: str | None) -> None:
    """Without them every argmax of one column is the same, and the answers are nonsense."""
    net, x = wake(last)
    with torch.no_grad():
        exact = net(x)
    sides = exact.flatten() > (0.5 if isinstance(last, nn.Sigmoid) else 0)
    told = None if labels is None else sides.long() if labels == "ints" else sides.float()
    study = Study(net, x, told, by="layer", runs=1)
    assert study.answers.kinds == ["score"]
    lost = study.evaluator.full(DROPPED)
    assert lost.answers < 0.5 and lost.fine < 0.7
    config = study.search("10/64", widths=(0, 8, 10, 12))
    assert all(config.layers[name].w for name in ("relu1", "relu2"))
    said = config.provenance
    assert said["agreement"] >= 0.95 and said["distance"] < NEAR and "scores" in said["answers"]
    assert said["accuracy"] == (None if labels is None else pytest.approx(1.0, abs=0.05))
    with torch.no_grad():
        got = hummingbird.simulate(net, config, seed=1)(x)
    assert float((got - exact).square().mean().sqrt() / exact.std()) < 2 * NEAR


def test_decisions_that_are_all_the_same_claim_nothing() -> None:
    net, x = wake()
    with torch.no_grad():
        net.fc3.bias += 1000
    study = Study(net, x, by="layer", runs=1)
    assert study.answers.kinds == ["values"] and study.evaluator.full(DROPPED).answers < 0.5
    with pytest.raises(InputError, match="every image the same answer") as caught:
        Study(net, x, torch.ones(96), criterion="accuracy")
    assert "agreement" in caught.value.hint


@pytest.mark.slow
def test_prepare_tells_accuracy_and_distance_of_scores() -> None:
    net, x = wake(nn.Sigmoid())
    with torch.no_grad():
        labels = (net(x)[:, 0] > 0.5).long()
    found = hummingbird.prepare(net, (x, labels), "10/64", by="layer")
    assert found.accuracy_plain == 1.0 and found.accuracy is not None and found.accuracy > 0.9
    assert "answers: scores, above 0.5 or not" in str(found) and found.choices[-1].distance < NEAR
    assert found.bits.layers["relu1"].w > 0


@pytest.mark.parametrize("labelled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_prepare_tells_accuracy_and_distance_of_regressions(labelled: bool) -> None:
    net, x = wake(nn.Sigmoid())
    given = (x, net(x).detach() + 40) if labelled else x  # far labels: no prediction is right; and none
    found = hummingbird.prepare(net, given, None)
    assert found.accuracy == (0.0 if labelled else None)
    assert found.choices[-1].changed == 0.0 and "plain net" in str(found)
    if not labelled:
        found.plot()


class Several(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.body, self.form = wake()[0], form
        self.boxes = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body.relu1(self.body.fc1(x))
        score, boxes = self.body.fc3(self.body.relu2(self.body.fc2(hidden))), self.boxes(hidden)
        return (score, [boxes]) if self.form == "tuple" else {"score": score, "boxes": boxes}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_several_results_are_judged_by_the_worst(form: str) -> None:
    net, x = Several(form).eval(), wake()[1]
    study = Study(net, x, (wake()[0](x)[:, 0] > 0).long(), by="layer", runs=1)
    assert study.answers.kinds == ["score", "values"] and study.accuracy(BitConfig()) == 1.0
    # A window of the second ReLU moves the score alone.
    one, both = (study.evaluator.outputs(c) for c in (BitConfig(layers={"body.relu2": BitWindow(0, 0)}), DROPPED))
    assert study.answers.kept(one) < 0.5 and study.answers.kept(both) < 0.1
    assert torch.equal(one[:, 1:], study.evaluator.outputs(BitConfig())[:, 1:])
    found = hummingbird.prepare(net, x, "10/64", by="layer")
    assert found.choices[-1].changed < 0.1 and "values, kept within" in str(found)
    with pytest.raises(InputError, match="labels from 0 to 3|labels are"):
        Study(net, x, torch.randn(96, 7))


def test_pixels_are_classes_with_labels_and_values_without() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1)).eval(),
        torch.randn(24, 1, 6, 6),
    )
    with torch.no_grad():
        exact = net(x)
    study = Study(net, x, exact.argmax(1), runs=1)
    assert study.answers.kinds == ["classes"] and study.accuracy(BitConfig()) == 1.0
    dropped = study.evaluator.outputs(DROPPED)
    kept = float((dropped.argmax(1) == exact.argmax(1)).double().mean())
    assert study.evaluator.full(DROPPED).answers == pytest.approx(kept) and kept < 0.9
    assert Study(net, x, runs=1).answers.kinds == ["values"]


def test_a_net_that_ends_in_argmax_is_judged_by_its_numbers() -> None:
    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = wake(width=4)[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).argmax(1)

    net, x = Largest().eval(), wake()[1]
    study = Study(net, x, runs=1)
    assert study.answers.kinds == ["numbers"]
    config = BitConfig(layers={"body.relu1": BitWindow(0, 0)})
    changed = study.evaluator.outputs(config) == net(x)
    assert study.evaluator.full(config).answers == float(changed.double().mean()) < 1


def test_the_kind_can_be_given_and_wrong_ones_are_refused() -> None:
    net, x = wake(width=5)
    assert Study(net, x).answers.kinds == ["classes"] and Study(net, x, answers="values").answers.kinds == ["values"]
    with pytest.raises(ConfigError, match="unknown kind of answers 'faces'") as caught:
        Study(net, x, answers="faces")
    assert "embedding" in caught.value.hint

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).transpose(0, 1)

    with pytest.raises(HummingbirdError, match="expected \\(1, \\.\\.\\.\\)|batch"):
        Study(Turned(), x)


def test_find_bits_prints_how_answers_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wake_word.py").write_text(
        "from tests.window_search.test_answers import nn, wake\n\n\ndef net():\n    return wake(nn.Sigmoid())[0]\n\n\n"
        "def sounds():\n    net, x = wake(nn.Sigmoid())\n    return x, (net(x)[:, 0] > 0.5).float()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--model", "wake_word:net", "--data", "wake_word:sounds", "--device", "cpu", "--out", "bits.json"]
    assert main(["find-bits", *words, "--budget", "10/64", "--widths", "0", "8", "10"]) == 0
    said = capsys.readouterr().out
    assert "answers   scores, above 0.5 or not" in said and "distance  " in said and "exact 100.00 %" in said
    assert all(window.w for window in BitConfig.load("bits.json").layers.values())
    assert main(["validate", *words[:-2], "--bits", "bits.json"]) == 1
    assert "labels" in (error := capsys.readouterr().err) or "classifiers" in error


class Gated(nn.Module):
    """A net of two private inputs, a public mask for each and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.body = wake()[0]

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None, shift: bool = False) -> Tensor:
        if y is not None:
            x = x + y
        if mask is not None:
            x = x * mask
        return self.body(x + 1 if shift else x)


def test_a_study_with_an_example_searches_the_net_as_it_is_called() -> None:
    net, x = Gated().eval(), wake()[1]
    mask = (torch.arange(96 * 8) % 7 > 0).long().view(96, 8)
    call: dict[str, Any] = {"x": x[:, :], "y": x.flip(0), "mask": mask, "shift": True}
    example = {key: value[:2] if isinstance(value, Tensor) else value for key, value in call.items()}
    study = Study(net, call, example=example, by="layer", runs=1, batch=40)
    with torch.no_grad():
        expected = net(**call)
    assert torch.allclose(study.evaluator.outputs(BitConfig()), expected, atol=1e-4)
    config = study.search("10/64", widths=(8, 10, 12))
    twin = hummingbird.simulate(net, config, example=example, seed=0)
    with torch.no_grad():
        assert study.answers.kept(twin(**call)) > 0.9
    with pytest.raises(ConfigError, match="found for net"):  # the net without these inputs is another one
        hummingbird.simulate(net, config)
    single = Study(net, x, example={"x": x[:1], "shift": True}, runs=1)
    with torch.no_grad():
        assert torch.allclose(single.evaluator.outputs(BitConfig()), net(x, shift=True), atol=1e-4)
    with pytest.raises(InputError, match="several private inputs"):
        Study(net, x, example=example)


@pytest.mark.slow
def test_windows_found_without_an_example_fit_the_net_with_one(tmp_path: Path) -> None:
    net, x = wake()
    found = Study(net, x, runs=1).search()
    same = Study(net, x, example=x[:1], runs=1).search()
    assert found.provenance["net"] == same.provenance["net"]
    for example in (x[:1], (x,)):
        assert hummingbird.convert_model(net, found, example=example).comparing_layers == ["relu1", "relu2"]
        hummingbird.simulate(net, example=example).set_bits(found)
    hummingbird.save(net, tmp_path / "saved", found, example=x)
    assert hummingbird.load(tmp_path / "saved").input_range == found.input_range
    other, _ = wake()
    with torch.no_grad():
        other.fc1.bias += 1e-3
    with pytest.raises(ConfigError, match="found for net"):
        hummingbird.convert_model(other, found, example=x)
