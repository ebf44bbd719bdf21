"""`prepare` on the digits net: the command's windows, figures that others compute too, and what is refused at once."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hummingbird
from hummingbird.__main__ import main
from hummingbird.bits import BitConfig, BitWindow
from hummingbird.convert import build
from hummingbird.errors import ConfigError, HummingbirdError, InputError, ModelError
from hummingbird.window_search import prepare as module
from hummingbird.window_search.images import fingerprint
from hummingbird.window_search.prepare import Prepared
from models import get_model, load_checkpoint
from scripts.train.data import load
from tests.support import asking
from tests.support.html import agree
from tests.support.paths import ROOT

NET = load_checkpoint(ROOT / "checkpoints/digits.pt", get_model("digits", 10)).eval()
IMAGES, LABELS = (part[:200] for part in load("digits", "test"))
OTHERS = IMAGES[1::2] + 0.6 * torch.randn(100, 1, 8, 8, generator=torch.Generator().manual_seed(1)), LABELS[1::2]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """On images of which many are hard to read, so that accuracies differ from 1 and windows cost some."""
    return hummingbird.prepare(NET, (IMAGES[::2], LABELS[::2]), "6/64", test=OTHERS)


@pytest.mark.slow
def test_its_windows_are_those_of_find_bits(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chosen.py").write_text(
        "from scripts.train.data import load\n\n\ndef images():\n"
        "    images, labels = load('digits', 'test')\n    return images[:200:2], labels[:200:2]\n"
    )
    monkeypatch.chdir(tmp_path)
    net = ["--model", "models:get_model", "digits", "10", "--weights", str(ROOT / "checkpoints/digits.pt")]
    options = ["--data", "chosen:images", "--budget", "6/64", "--out", "bits.json", "--device", "cpu"]
    assert main(["find-bits", *net, *options]) == 0
    found = BitConfig.load("bits.json")
    assert found.windows == prepared.bits.windows and found.input_range == prepared.bits.input_range
    telling = {"seconds", "command", "model", "dataset", "held_out"}
    same = [{key: told for key, told in c.provenance.items() if key not in telling} for c in (found, prepared.bits)]
    assert same[0] == same[1]
    table = str(prepared).split("\n\n")[1]
    assert table in capsys.readouterr().out  # one table of layers


def test_its_accuracy_is_of_other_images(prepared: Prepared) -> None:
    images, labels = OTHERS
    with torch.no_grad():
        plain = NET(images).argmax(1)
    assert prepared.images == (100, 100)
    assert prepared.accuracy_plain == float((plain == labels).double().mean()) < 1
    eco = next(choice for choice in prepared.choices if choice.name == "eco")
    with torch.no_grad(), pytest.warns(UserWarning, match="beyond"):
        twin = hummingbird.simulate(NET, eco.bits)(images).argmax(1)  # no low bits dropped: nothing is chance
    assert eco.accuracy == float((twin == labels).double().mean())
    assert eco.changed == float((twin != plain).double().mean())
    with torch.no_grad():
        twins = [hummingbird.simulate(NET, prepared.bits.windows, seed=seed)(images).argmax(1) for seed in range(8)]
    rates = [float((found == labels).double().mean()) for found in twins]
    assert min(rates) - 0.05 <= prepared.accuracy <= max(rates) + 0.05
    told = prepared.bits.provenance["held_out"]
    assert (
        told["accuracy"] == prepared.accuracy
        and told["images"] == 100
        and told["data"] != (prepared.bits.provenance["data"])
    )


def test_its_costs_are_those_of_the_private_net(prepared: Prepared) -> None:
    for choice in prepared.choices:
        private = hummingbird.convert_model(NET, bits=choice.bits.windows)
        steps = private.costs((1, 1, 8, 8), 2)
        assert list(choice.costs.layers) == steps
        assert choice.costs.online_bytes == sum(step.cost.bits for step in steps) / 8
        assert choice.costs.rounds == sum(step.cost.rounds for step in steps)
        assert choice.costs.seconds == pytest.approx(choice.costs.rounds * 1e-4 + 8 * choice.costs.online_bytes / 1e10)
    sizes = [choice.costs.online_bytes for choice in prepared.choices]
    assert sizes[0] > sizes[1] > sizes[-1] == prepared.costs.online_bytes


def test_table_file_and_plot(prepared: Prepared, tmp_path: Path) -> None:
    text = str(prepared)
    assert repr(prepared) == text
    for choice in prepared.choices:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{choice.name}  ")]
        assert f"{100 * choice.accuracy:.2f}" in line and f"{choice.costs.online_bytes / 1e3:,.1f}" in line
    assert "100 images chose the windows; accuracy is of 100 others" in text
    prepared.save(tmp_path / "bits.json")
    private = hummingbird.convert_model(NET, bits=tmp_path / "bits.json")
    assert private.facts == hummingbird.convert_model(NET, bits=prepared.bits).facts
    with pytest.raises(ConfigError, match="got Prepared") as caught:
        hummingbird.convert_model(NET, bits=prepared)  # type: ignore[arg-type]
    assert ".bits" in caught.value.hint
    figure, file = prepared.plot(), io.BytesIO()
    kept, sent = (
        [tuple(float(end[0]) for end in mark.lines[0].get_data()) for mark in axes.containers] for axes in figure.axes
    )
    assert sent == [(choice.costs.online_bytes / 1e3, 100 * choice.accuracy) for choice in prepared.choices]
    bits = [prepared.bits_kept(choice) for choice in prepared.choices]
    assert kept == [(found, 100 * choice.accuracy) for found, choice in zip(bits, prepared.choices, strict=True)]
    outputs = [layer.outputs for layer in prepared.layers]
    widths = [prepared.bits.window(layer.name).w for layer in prepared.layers]
    weighted = sum(width * count for width, count in zip(widths, outputs, strict=True)) / sum(outputs)
    assert bits[0] == 64 and bits[-1] == pytest.approx(weighted) and bits[-1] <= 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "plain net",
        *(choice.name for choice in prepared.choices),
    ]
    agree(prepared, text)
    figure.savefig(file, format="svg")
    assert file.getvalue().startswith(b"<?xml")


def test_loaders_of_every_kind_and_no_more_read_than_needed() -> None:
    data = TensorDataset(IMAGES[:60], LABELS[:60])
    numbers: list[int] = []

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        for number in itertools.count():
            numbers.append(number)
            yield IMAGES[10 * number : 10 * number + 10], LABELS[10 * number : 10 * number + 10].int()

    for loader in ((IMAGES, LABELS), data, DataLoader(data, batch_size=7), endless()):
        for first, (images, labels) in enumerate(module._divided(loader, None, 30)):  # choose, measure
            assert torch.equal(images, IMAGES[first:60:2]) and torch.equal(labels, LABELS[first:60:2])
            assert labels.dtype == torch.int64
    assert numbers == [0, 1, 2, 3, 4, 5]


def test_a_net_that_asks_for_shapes_is_traced_on_the_images() -> None:
    net, (images, labels) = asking.net(), asking.images()
    with pytest.raises(ModelError):
        hummingbird.convert_model(net)
    found = hummingbird.prepare(net, (images, labels), None, samples=12)
    assert found.accuracy_plain == 1.0 and found.choices[-1].accuracy == 1.0
    build(net, found.bits, example=images[:1])  # its windows are known to be this net's
    with pytest.raises(ModelError, match="Hardshrink is not in the vocabulary"):
        hummingbird.prepare(nn.Sequential(net, nn.Hardshrink()), (images, labels), None)


def test_images_of_half_precision_have_a_fingerprint() -> None:
    x = torch.rand(3, 4)
    assert len({fingerprint(x), fingerprint(x.half()), fingerprint(x.bfloat16())}) == 3
    assert fingerprint(x.bfloat16()) == fingerprint(x.bfloat16().clone())


def test_the_net_is_left_as_it_is() -> None:
    net = get_model("digits", 10)
    net.load_state_dict(NET.state_dict())
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = hummingbird.prepare(nn.DataParallel(net), (IMAGES, LABELS), None, samples=10)
    same = hummingbird.prepare(NET, DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8), None, samples=10)
    assert found.bits.windows == same.bits.windows and str(found) == str(same) and found.images == (10, 10)
    assert found.choices[-1].name == "eco"
    assert net.training and all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_net_on_a_gpu_takes_images_of_the_cpu() -> None:
    net = get_model("digits", 10)
    net.load_state_dict(NET.state_dict())
    found = hummingbird.prepare(net.eval().cuda(), (IMAGES, LABELS), None, samples=30)
    assert found.bits.windows == hummingbird.prepare(NET, (IMAGES, LABELS), None, samples=30).bits.windows


class _Ragged(Dataset[tuple[Tensor, int]]):
    """Images of different sizes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.rand(1, 8, 8 + place % 2), 0


def _nan() -> Tensor:
    images = IMAGES.clone()
    images[7, 0, 3, 3] = float("nan")
    return images


BAD: dict[str, tuple[Callable[[], dict[str, Any]], type[HummingbirdError], str, str]] = {
    "no images": (lambda: {"loader": []}, InputError, "loader", "no images"),
    "no images in a data set": (
        lambda: {"loader": DataLoader(TensorDataset(IMAGES[:0], LABELS[:0]))},
        InputError,
        "loader",
        "no images",
    ),
    "one image": (lambda: {"loader": (IMAGES[:1], LABELS[:1])}, InputError, "loader", "a single image"),
    "no pairs": (lambda: {"loader": [{"x": IMAGES}]}, InputError, "loader", "batch 0 is dict"),
    "no iterable": (lambda: {"loader": 3}, InputError, "loader", "expected images, got int"),
    "shapes of batches": (
        lambda: {"loader": [(IMAGES[:4], LABELS[:4]), (IMAGES[:4, :, :4], LABELS[:4])]},
        InputError,
        "loader",
        "do not fit each other",
    ),
    "shapes in a data set": (lambda: {"loader": _Ragged()}, InputError, "loader", "differ in shape"),
    "a shape for another net": (
        lambda: {"loader": (IMAGES[:, :, :4], LABELS)},
        InputError,
        "input",
        "cannot take an input of shape",
    ),
    "other images of another shape": (
        lambda: {"test": (IMAGES[:, :, :4], LABELS)},
        InputError,
        "test",
        r"\(1, 4, 8\), those of the loader have \(1, 8, 8\)",
    ),
    "fewer labels": (lambda: {"loader": (IMAGES, LABELS[1:])}, InputError, "loader", "199 labels"),
    "fewer labels in a batch": (lambda: {"loader": [(IMAGES, LABELS[1:])]}, InputError, "loader", "199 labels"),
    "labels of another shape": (
        lambda: {"loader": (IMAGES, nn.functional.one_hot(LABELS)[:, :9])},
        InputError,
        "loader",
        r"labels are torch.int64 \(100, 9\), and the net gives \(N, 10\)",
    ),
    "labels that are no numbers": (lambda: {"loader": (IMAGES, ["7"] * 200)}, InputError, "loader", "labels are list"),
    "real labels": (lambda: {"loader": (IMAGES, LABELS / 2)}, InputError, "loader", "labels are torch.float32"),
    "an unknown kind": (lambda: {"answers": "boxes"}, ConfigError, "answers", "unknown kind of answers 'boxes'"),
    "labels beyond the classes": (
        lambda: {"loader": (IMAGES, LABELS + 1)},
        InputError,
        "loader",
        "labels from 1 to 10, but the net has 10 classes",
    ),
    "labels of other images beyond the classes": (
        lambda: {"test": (IMAGES / 2, LABELS - 1)},
        InputError,
        "test",
        "labels from -1 to 8",
    ),
    "the same images": (lambda: {"test": (IMAGES, LABELS)}, InputError, "test", "cannot measure them"),
    "a part of the same images": (
        lambda: {"test": (IMAGES[:9], LABELS[:9])},
        InputError,
        "test",
        "cannot measure them",
    ),
    "NaN": (lambda: {"loader": (_nan(), LABELS)}, InputError, "loader", "NaN or infinity"),
    "NaN in other images": (lambda: {"test": (_nan(), LABELS)}, InputError, "test", "NaN or infinity"),
    "bytes": (lambda: {"loader": (IMAGES.byte(), LABELS)}, InputError, "loader", "got torch.uint8"),
    "images without values": (lambda: {"loader": (IMAGES.to("meta"), LABELS)}, InputError, "loader", "meta device"),
    "a budget above all bits": (lambda: {"budget": "65/64"}, ConfigError, "budget", "a budget of 65/64 bits"),
    "no budget at all": (lambda: {"budget": "0/64"}, ConfigError, "budget", "a budget of 0/64 bits"),
    "no number": (lambda: {"budget": "eight"}, ConfigError, "budget", "'eight' is no budget of bits"),
    "a fraction": (lambda: {"budget": 8 / 64}, ConfigError, "budget", "a budget is text, got 0.125"),
    "a window": (lambda: {"budget": BitWindow(20, 12)}, ConfigError, "budget", "a budget is text, got BitWindow"),
    "bytes where bits are meant": (lambda: {"budget": "500kB"}, ConfigError, "budget", "no budget of bits"),
    "a fraction where bytes are meant": (
        lambda: {"budget": "8/64", "objective": "bytes"},
        ConfigError,
        "budget",
        "'8/64' is no budget of bytes",
    ),
    "more than all bits": (lambda: {"budget": "3/2"}, ConfigError, "budget", "a budget of 3/2 bits"),
    "a margin above one": (lambda: {"margin": 2}, ConfigError, "margin", "an accuracy margin of 2"),
    "a margin in words": (lambda: {"margin": "5%"}, ConfigError, "margin", "an accuracy margin of '5%'"),
    "an unknown objective": (lambda: {"objective": "rounds"}, ConfigError, "objective", "unknown objective"),
    "no samples": (lambda: {"samples": 0}, ConfigError, "samples", "0 samples"),
    "an unknown protocol": (lambda: {"protocol": "bgw"}, ConfigError, "protocol", "unknown protocol"),
    "one party": (lambda: {"parties": 1}, ConfigError, "parties", "1 parties"),
    "no bandwidth": (lambda: {"bandwidth": 0}, ConfigError, "bandwidth", "bandwidth of 0"),
    "time that runs back": (lambda: {"rtt": -1.0}, ConfigError, "rtt", "rtt of -1.0"),
    "a function": (lambda: {"net": lambda x: x}, InputError, "net", "expected a torch.nn.Module, got function"),
    "a class": (lambda: {"net": nn.ReLU}, InputError, "net", "expected a torch.nn.Module, got type"),
    "nothing to compare": (
        lambda: {"net": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))},
        InputError,
        "net",
        "no comparing layers",
    ),
    "no classifier": (lambda: {"net": nn.Conv2d(1, 4, 3)}, InputError, "net", "no comparing layers"),
    "no row of logits": (
        lambda: {"net": nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())},
        InputError,
        "loader",
        r"the net gives \(N, 4, 6, 6\)",
    ),
    "a net without values": (
        lambda: {"net": get_model("digits", 10).to("meta")},
        ModelError,
        "",
        "weights are on the meta device",
    ),
    "a net that does not convert": (
        lambda: {"net": nn.Sequential(nn.LocalResponseNorm(2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))},
        ModelError,
        "",
        "LocalResponseNorm",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_before_anything_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_: Any, **__: Any) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(module, "open_study", ran)
    make, kind, where, what = BAD[case]
    with pytest.raises(kind, match=what) as caught:
        hummingbird.prepare(**{"net": NET, "loader": (IMAGES, LABELS), **make()})
    assert caught.value.where == where and caught.value.hint


def test_a_budget_that_no_windows_meet_is_told() -> None:
    with pytest.raises(ConfigError, match="no assignment within 0.015625 of 64 bits") as caught:
        hummingbird.prepare(NET, (IMAGES, LABELS), "1/64", samples=30)
    assert caught.value.where == "budget" and caught.value.hint
