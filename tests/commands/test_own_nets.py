"""The commands on a net and images of the user's own: what they take, what they print, and how they refuse."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hummingbird import hybrid, simulate
from hummingbird.__main__ import COMMANDS, main, parser
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.commands.sources import images_of
from hummingbird.commands.subject import evaluate, labels_of, predict
from hummingbird.errors import HummingbirdError, InputError
from hummingbird.hybrid import prices
from tests.support import own_net

NET = ["--model", "my_net:net", "--weights", "net.pt"]
OWN = ("infer", "find-bits", "frontier", "finetune", "validate")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder is the user's, with modules that no other test has imported."""
    torch.set_num_threads(1)
    own_net.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_net", "my_data"):
        sys.modules.pop(name, None)


def test_windows_are_found_used_trained_with_and_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find-bits", *NET, "--data", "my_data:images", "validation", "--out", "bits.json"]) == 0
    said = BitConfig.load("bits.json").provenance
    assert (said["model"], said["dataset"], said["samples"]) == ("my_net:net", "my_data:images validation", 48)
    assert said["command"].startswith("python -m hummingbird find-bits --model my_net:net --weights net.pt --data ")
    assert said["exact_accuracy"] == said["accuracy"] > 0.9
    text = capsys.readouterr().out
    assert "of 48 images of my_data:images validation, which chose the windows; 100.00 % of the answers" in text
    assert "saved bits.json" in text

    assert main(["find-bits", *NET, "--data", "my_data:images", "--budget", "4/64", "--out", "small.json"]) == 0
    assert 0 < BitConfig.load("small.json").provenance["cost"] <= 4 / 64

    training = ["--data", "my_data:images", "train", "--validation", "my_data:images", "validation"]
    words = [
        *training,
        "--test",
        "my_data:images",
        "test",
        "--bits",
        "small.json",
        "--out",
        "tuned.pt",
        "--epochs",
        "1",
    ]
    capsys.readouterr()
    assert main(["finetune", *NET, *words, "--rate", "0.001", "--batch", "16"]) == 0
    assert len(re.findall(r"^test accuracy .*: [\d.]+ %$", capsys.readouterr().out, re.MULTILINE)) == 3
    said = BitConfig.load("tuned.bits.json").provenance["finetuning"]
    assert said["dataset"] == "my_data:images train" and said["judged_by"] == "48 images of my_data:images validation"

    tuned = ["--model", "my_net:net", "width=4", "--weights", "tuned.pt", "--bits", "tuned.bits.json"]
    assert (
        main(["validate", *tuned, "--data", "my_data:images", "test", "12", "--repeat", "2", "--json", "v.json"]) == 0
    )
    (row,) = json.loads(Path("v.json").read_text())
    assert (row["model"], row["dataset"]) == ("my_net:net width=4", "my_data:images test 12")
    assert (row["images"], row["runs"], row["layer"]) == (12, 2, "1")
    other = ["--model", "my_net:net", "--bits", "tuned.bits.json"]  # with random weights
    assert main(["validate", *other, "--data", "my_data:images", "test"]) == 1
    assert "windows that were found for net" in capsys.readouterr().err


def test_a_net_that_asks_for_shapes_is_traced_on_the_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no option: windows are those of the same net that asks for nothing, and so are prices."""
    found, asking = [], ["--model", "my_net:asking", "--weights", "net.pt"]
    for number, net in enumerate((NET, asking)):
        out = ["--data", "my_data:images", "validation", "--out", f"{number}.json"]
        assert main(["find-bits", *net, *out, "--budget", "4/64", "--samples", "12"]) == 0
        found.append(BitConfig.load(f"{number}.json").windows)
    assert found[0] == found[1]
    counting = ["--model", "my_net:counting", "--weights", "net.pt", "--data", "my_data:images"]
    assert main(["find-bits", *counting, "--out", "2.json"]) == 1
    assert "forward() depends on how many images there are" in capsys.readouterr().err


@pytest.mark.slow
def test_a_net_that_asks_for_shapes_goes_through_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    asking = ["--model", "my_net:asking", "--weights", "net.pt"]
    for name in ("0.json", "1.json"):
        BitConfig(BitWindow(20, 12)).save(name)
    given = [*asking, "--bits", "1.json"]
    assert main(["validate", *given, "--data", "my_data:images", "--json", "v.json"]) == 0
    data = ["--data", "my_data:images", "--validation", "my_data:images", "validation", "--epochs", "1"]
    capsys.readouterr()
    assert main(["finetune", *given, *data, "--out", "tuned.pt", "--rate", "0.001", "--batch", "16"]) == 0
    assert "saved epoch" in capsys.readouterr().out
    tables = []
    for net in (NET, asking):
        assert main(["estimate", *net, "--input", "2x1x6x6", "--bits", "0.json"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] and "total" in tables[0]
    assert main(["deal", *asking, "--input", "2x1x6x6", "--images", "2", "--out", "store"]) == 0
    plans = [hybrid.make_plan(net_of_folder(name), (1, 6, 6), BitWindow(20, 12)).plan for name in ("net", "asking")]
    assert [str(step) for step in plans[0].steps[1:]] == [str(step) for step in plans[1].steps[1:]]


def test_a_frontier(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--budgets", "exact", "eco", "4/64", "--out-folder", ".", "--json", "rows.json"]
    assert main(["frontier", *NET, "--data", "my_data:images", "validation", *words]) == 0
    rows = json.loads(Path("rows.json").read_text())
    assert [row["budget"] for row in rows] == ["exact", "eco", "4/64"]
    assert rows[0]["model"] == "my_net:net" and rows[0]["online_kilobytes_per_image"] > 0
    assert {"exact.json", "eco.json", "4-64.json"} <= {path.name for path in folder.iterdir()}
    assert "48 images of my_data:images validation" in capsys.readouterr().out


@pytest.mark.parametrize("data", [["my_data:bare"], ["my_data:loader"]])
def test_find_bits_needs_no_labels_and_takes_a_loader(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find-bits", *NET, "--data", *data, "--samples", "20", "--out", "bits.json"]) == 0
    said = BitConfig.load("bits.json").provenance
    assert said["samples"] == 20 and (said["accuracy"] is None) == (data == ["my_data:bare"])
    assert ("not known: no labels for these answers" in capsys.readouterr().out) == (data == ["my_data:bare"])


def test_find_bits_for_two_parties_without_a_dealer(capsys: pytest.CaptureFixture[str]) -> None:
    """Windows that gc-server takes, and the price of an image with them."""
    words = ["--data", "my_data:images", "--cut", "--budget", "10/64", "--widths", "8", "10", "--out", "bits.json"]
    assert main(["find-bits", *NET, *words]) == 0
    config, net = BitConfig.load("bits.json"), net_of_folder()
    plan = hybrid.make_plan(net, (1, 6, 6), config).plan
    assert [gate.width for gate in plan.gates.values()] in ([8], [10])
    assert config.provenance["protocol"] == "cut"
    sent = [sum(found(plan).values()) / 1e6 for found in (prices.online, prices.offline)]
    assert "{:,.2f} MB, offline {:,.2f} MB".format(*sent) in capsys.readouterr().out


def test_validate_for_two_parties_without_a_dealer(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures are those of the twin that cuts, of each seed."""
    words = ["--data", "my_data:images", "--cut", "--budget", "8/64", "--widths", "8", "--out", "bits.json"]
    assert main(["find-bits", *NET, *words]) == 0
    given = ["validate", *NET, "--bits", "bits.json", "--data", "my_data:images"]  # within the range of the windows
    assert main([*given, "--cut", "--repeat", "3", "--seed", "5", "--json", "rows.json"]) == 0
    (row,) = json.loads(Path("rows.json").read_text())
    config, net = BitConfig.load("bits.json"), net_of_folder()
    images, labels = importlib.import_module("my_data").images()
    plain = predict(net, images)
    runs = [predict(simulate(net, config, cut=True, seed=seed), images) for seed in (5, 6, 7)]
    assert row["accuracy"] == pytest.approx(sum(float((run == labels).double().mean()) for run in runs) / 3)
    assert row["changed"] == pytest.approx(sum(int((run != plain).sum()) for run in runs) / 3)
    assert (row["protocol"], row["layer"], row["k"] - row["m"]) == ("cut", "1", 8)
    largest = float(net[0](images).detach().abs().max())
    assert row["largest"] == pytest.approx(largest, abs=1e-3) and row["margin_bits"] < 2

    capsys.readouterr()
    for more, message in (
        (["--cut", "--protocol", "gmw"], "leave out protocol"),
        (["--cut", "--data", "my_data:bright"], "beyond"),
    ):
        assert main([*given, *more]) == 1
        assert message in capsys.readouterr().err


def net_of_folder(name: str = "net") -> torch.nn.Module:
    """my_net.net(), or another net there, with the weights of net.pt."""
    net: torch.nn.Module = getattr(importlib.import_module("my_net"), name)()
    net.load_state_dict(torch.load("net.pt", weights_only=True))
    return net.eval()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("find-bits --data my_data:bare --cut --out x", "weights are rounded (at budget)"),
        (
            "find-bits --data nothing:images --out x",
            "cannot import 'nothing:images': No module named 'nothing' (at --d",
        ),
        ("find-bits --data my_data:missing --out x", "has no attribute 'missing' (at --data)"),
        ("find-bits --data my_data --out x", "cannot import 'my_data'"),
        ("find-bits --data my_data:images testing --out x", "my_data:images gives no images: 'testing' is not in list"),
        ("find-bits --data my_data:images speed=3 --out x", "unexpected keyword argument 'speed' (at --data)"),
        ("find-bits --data my_net:net --out x", "batch 0 is Conv2d (at images)\nhint: a tensor (N, ...)"),
        ("find-bits --data my_data:bare --criterion accuracy --out x", "no labels to be accurate to"),
        ("find-bits --data my_data:bare --out absent/x", "there is no folder absent (at --out)"),
        ("frontier --data my_data:bare --out-folder .", "accuracy needs labels (at my_data:bare)"),
        ("validate --data my_data:bare --bits b.json", "accuracy needs labels (at my_data:bare)"),
        (
            "finetune --data my_data:bare --validation my_data:images --bits b.json --out x.pt",
            "accuracy needs labels (at --data)\nhint: return a pair, (images, labels)",
        ),
        (
            "finetune --data my_data:images --validation my_data:bare --bits b.json --out x.pt",
            "accuracy needs labels (at my_data:bare)",
        ),
        (
            "finetune --data my_data:four --validation my_data:images --bits b.json --out x.pt",
            "labels from 0 to 3, but the net has 3 classes",
        ),
        ("estimate --input 1x1x6x6 --weights my_net.py", "my_net.py is no weights-only checkpoint"),
        ("estimate --input 1x1x6x6 --weights absent.pt", "cannot read absent.pt: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_an_error(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    BitConfig().save("b.json")
    name, *rest = words.split()
    assert main([name, *NET, *rest]) == 1
    error = capsys.readouterr().err
    assert "error: " in error and message in error and "Traceback" not in error, error


def test_images_of_every_kind() -> None:
    images, labels = images_of(["my_data:images", "count=5"], "--data")
    assert images.shape == (5, 1, 6, 6) and labels is not None and labels.dtype == torch.int64
    images, labels = images_of(["my_data:loader"], "--data")
    assert images.shape == (48, 1, 6, 6) and labels is not None and labels.tolist() == [0, 1, 2] * 16
    Path("more_data.py").write_text(
        "import torch\n"
        "def doubles(): return torch.ones(3, 2, dtype=torch.float64)\n"
        "def none(): return torch.ones(0, 2)\n"
        "def few(): return torch.ones(3, 2), torch.zeros(2, dtype=torch.int64)\n"
        "def real(): return torch.ones(3, 2), torch.zeros(3, 2)\n"
        "def secret(): raise PermissionError(13, 'Permission denied', 'images.npy')\n"
    )
    assert images_of(["more_data:doubles"], "--data")[0].dtype == torch.float32
    _, labels = images_of(["more_data:real"], "--data")
    assert labels is not None and labels.dtype == torch.float32
    for name, message in (
        ("none", r"expected images, got \(0, 2\)"),
        ("few", r"expected labels \(3, \.\.\.\), got torch.int64 \(2,\)"),
        ("secret", "gives no images: .*Permission denied"),
    ):
        with pytest.raises(HummingbirdError, match=message):
            images_of([f"more_data:{name}"], "--data")


def test_accuracy_is_of_classifiers() -> None:
    images = torch.eye(3).repeat(4, 1)
    assert predict(torch.nn.Identity(), images, batch=5).tolist() == [0, 1, 2] * 4
    assert evaluate(torch.nn.Identity(), images, torch.tensor([0, 1, 1] * 4)) == 8 / 12
    with pytest.raises(InputError, match=r"gives \(12, 1, 3\) for 12 images, expected \(12, classes\)"):
        predict(torch.nn.Unflatten(1, (1, 3)), images)
    with pytest.raises(InputError, match=r"gives \(12, 1\) for 12 images") as caught:  # its largest is always the first
        predict(torch.nn.Linear(3, 1), images)
    assert "two logits or more" in caught.value.hint
    for labels in (None, torch.ones(12, 1), torch.rand(12)):
        with pytest.raises(InputError, match="labels"):
            labels_of(labels, "--data")


@pytest.mark.parametrize("name", OWN)
def test_the_examples_in_the_help_are_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = re.sub(r" \\\n +", " ", capsys.readouterr().out)
    shown = re.findall(rf"^ +python(?: .*)? -m hummingbird ({name} .*)$", text, re.MULTILINE)
    assert shown and "in the current folder" in text and "my_net.net() returns the net" in text
    for line in shown:
        read = parser([name]).parse_args(shlex.split(line))
        assert read.model == ["my_net:net"] or (read.model is None and read.saved == "saved")


def test_every_command_is_the_module_of_its_name() -> None:
    subparsers = next(action for action in parser()._actions if action.dest == "command")
    assert tuple(subparsers.choices or ()) == COMMANDS and set(OWN) < set(COMMANDS)
