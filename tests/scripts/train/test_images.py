"""Data loading, augmentation and the training program."""

from __future__ import annotations

import io
import itertools
import lzma
import os
import sys
import zipfile
from argparse import Namespace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as image
from torch import nn

from hummingbird.commands.sources import weights_file
from hummingbird.commands.subject import evaluate
from hummingbird.commands.training import Recipe, Training, augment
from hummingbird.errors import InputError
from models import get_model, load_checkpoint
from scripts.train.data import DATASETS, Dataset, load
from scripts.train.images import build, main, parser, recipe_of
from tests.support import python
from tests.support.covering import every
from tests.support.data import data_folder
from tests.support.paths import ROOT
from tests.support.patience import PROGRAM


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _pixels(images: torch.Tensor, name: str) -> torch.Tensor:
    """Undo the normalisation: uint8 (N, C, H, W). The float32 error, about 255 * 2^-22, is far below one half."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (DATASETS[name].mean, DATASETS[name].std))
    return images.mul(std).add_(mean).mul_(255).round_().to(torch.uint8)


def test_digits_split_is_fixed_complete_and_disjoint() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    (train_images, train_labels), (test_images, test_labels) = load("digits", "train"), load("digits", "test")
    assert train_images.shape == (1297, 1, 8, 8) and test_images.shape == (500, 1, 8, 8)
    assert train_images.dtype == torch.float32 and train_labels.dtype == torch.int64
    mean, std = DATASETS["digits"].mean[0], DATASETS["digits"].std[0]
    pixels = ((torch.cat([train_images, test_images]) * std + mean) * 16).round().to(torch.uint8).flatten(1)
    bunch = datasets.load_digits()
    rows = zip(pixels.tolist(), torch.cat([train_labels, test_labels]).tolist(), strict=True)
    expected = zip(bunch.data.astype(int).tolist(), bunch.target.tolist(), strict=True)
    assert sorted(rows) == sorted(expected)
    # The shuffle is numpy's legacy stream, which never changes; the first labels pin it.
    order = np.random.RandomState(0).permutation(1797)
    assert test_labels.tolist() == bunch.target[order[1297:]].tolist()
    # Stated to four decimals, so the normalised pixels miss 0 and 1 by at most 0.00005 / std.
    assert abs(train_images.mean().item()) < 2e-4 and abs(train_images.std().item() - 1) < 2e-4


def test_mnist_test_split() -> None:
    images, labels = load("mnist", "test", data_folder("mnist"))
    assert images.shape == (10000, 1, 28, 28) and images.dtype == torch.float32
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # The idx file of LeCun's page, without its header of 16 bytes, begins with the image of a 7.
    assert _pixels(images, "mnist")[0, 0, 7, 6:10].tolist() == [84, 185, 159, 151]


@pytest.mark.slow
def test_cifar10_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMINGBIRD_DATA", str(data_folder("cifar10")))
    images, labels = load("cifar10", "test")
    assert images.shape == (10000, 3, 32, 32) and labels.bincount().tolist() == [1000] * 10
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    # Stated beside the files for the decoded array: the difference coding is undone exactly.
    digest = sha256(_pixels(images, "cifar10").numpy().tobytes()).hexdigest()
    assert digest == "1fe46ff47f5fb6c1b24f0b5448654cac0e0d3e1e0c16f9cbac842307814b553a"


def _write_cifar(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Write a cifar10 folder with one training file; the coding is done here the slow way, pixel by pixel."""
    red, green, blue = (pixels[:, channel].astype(int) for channel in range(3))
    planes = np.stack([red - green, green, blue - green])
    coded = planes.copy()
    for axis in (3, 2):
        coded = np.diff(coded, axis=axis, prepend=0)
    (folder / "cifar10").mkdir(parents=True)
    buffer = io.BytesIO()
    np.save(buffer, (coded % 256).astype(np.uint8))
    (folder / "cifar10" / "train_1.npy.xz").write_bytes(lzma.compress(buffer.getvalue()))
    np.savez(folder / "cifar10" / "labels.npz", train=labels.astype(np.uint8))


def test_difference_coding_is_undone(tmp_path: Path) -> None:
    pixels = np.random.RandomState(1).randint(0, 256, (5, 3, 32, 32))
    _write_cifar(tmp_path, pixels, np.array([0, 9, 3, 3, 1]))
    parts = [load("cifar10", split, tmp_path) for split in ("validation", "train")]
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    assert labels.tolist() == [0, 9, 3, 3, 1]
    assert torch.equal(_pixels(images, "cifar10"), torch.from_numpy(pixels).to(torch.uint8))


def _jpeg(level: int, mode: str = "RGB", side: int = 64) -> bytes:
    """A picture of one colour, (level, 0, 0), or grey."""
    file = io.BytesIO()
    colour = level if mode == "L" else (level, 0, 0)
    image.new(mode, (side, side), colour).save(file, "JPEG", quality=100)
    return file.getvalue()


def test_tiny_imagenet_as_its_authors_have_it(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    for name, levels in (("n01", range(0, 110, 10)), ("n02", (200, 220))):
        (folder / f"train/{name}/images").mkdir(parents=True)
        for number, level in enumerate(levels):
            (folder / f"train/{name}/images/{name}_{number:02}.JPEG").write_bytes(_jpeg(level))
    (folder / "val/images/val_0.JPEG").write_bytes(_jpeg(90))
    (folder / "val/images/val_1.JPEG").write_bytes(_jpeg(40, "L"))
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t1\t1\nval_1.JPEG\tn02\t0\t0\t1\t1\n")
    images, labels = load("tiny-imagenet", "train", tmp_path)
    assert images.shape == (11, 3, 64, 64) and labels.tolist() == [0, *[1] * 10]  # 13, of which 0 and 10 are held out
    assert load("tiny-imagenet", "validation", tmp_path)[1].tolist() == [0, 1]
    images, labels = load("tiny-imagenet", "test", tmp_path)
    assert labels.tolist() == [1, 0]
    pixels = _pixels(images, "tiny-imagenet").int()
    assert (pixels[0, 0] - 90).abs().max() <= 2 and pixels[0, 1:].max() <= 2
    assert (pixels[1] - 40).abs().max() <= 2, "grey"
    for content, words in ((b"no picture", ""), (_jpeg(1, side=32), "32 x 32 pixels, expected 64")):
        (folder / "val/images/val_1.JPEG").write_bytes(content)
        with pytest.raises(InputError, match=f"tiny-imagenet is damaged: .*{words}"):
            load("tiny-imagenet", "test", tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(InputError, match="tiny-imagenet is damaged"):
        load("tiny-imagenet", "test", tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_1.JPEG\tn02\t0\t0\t1\t1\n")
    (folder / "val/images/val_1.JPEG").unlink()
    with pytest.raises(InputError, match="there is no val_1.JPEG"):
        load("tiny-imagenet", "test", tmp_path)


def test_tiny_imagenets_validation_images_are_split_by_class(tmp_path: Path) -> None:
    names = [f"n{number % 2}" for number in range(100)]
    (tmp_path / "tiny-imagenet-val").mkdir()
    path = tmp_path / "tiny-imagenet-val/tiny-imagenet-val.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("wnids.txt", "n0\nn1")
        file.writestr("val_annotations.txt", "".join(f"val_{n}.JPEG\t{name}\n" for n, name in enumerate(names)))
        for number in range(100):
            file.writestr(f"images/val_{number}.JPEG", _jpeg(2 * number))
    images, labels = load("tiny-imagenet", "test", tmp_path)
    levels = _pixels(images, "tiny-imagenet")[:, 0].double().mean((1, 2)).round().int()
    assert labels.tolist() == [0, 1] * 10
    assert (levels - torch.arange(160, 200, 2)).abs().max() <= 2, "the last ten of each class"
    assert (
        len(load("tiny-imagenet", "train", tmp_path)[1]) == 72
        and len(load("tiny-imagenet", "validation", tmp_path)[1]) == 8
    )
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="tiny-imagenet is damaged"):
        load("tiny-imagenet", "test", tmp_path)


def test_nets_take_the_images_of_a_data_set_or_say_which_do() -> None:
    chosen = {"dataset": "tiny-imagenet", "option": [], "model": "resnet18"}
    assert build(Namespace(**chosen))(torch.zeros(1, 3, 64, 64)).shape == (1, 200)
    with pytest.raises(InputError, match="vgg16 takes") as caught:
        build(Namespace(**{**chosen, "model": "vgg16"}))
    assert "resnet18, resnet34, resnet50" in caught.value.hint


def test_one_training_image_in_25_is_held_out(tmp_path: Path) -> None:
    pixels = np.arange(76, dtype=np.uint8).repeat(3 * 32 * 32).reshape(76, 3, 32, 32)
    _write_cifar(tmp_path, pixels, np.arange(76) % 10)
    rows = {}
    for split in ("train", "validation"):
        images, labels = load("cifar10", split, tmp_path)
        rows[split] = _pixels(images, "cifar10")[:, 0, 0, 0].tolist()
        assert labels.tolist() == [row % 10 for row in rows[split]]
    assert rows["validation"] == [0, 25, 50, 75]
    assert rows["train"] == [row for row in range(76) if row % 25]


def test_digits_hold_nothing_out() -> None:
    with pytest.raises(InputError, match="digits holds no images out for validation"):
        load("digits", "validation")


def test_missing_files_say_where_and_how(tmp_path: Path) -> None:
    for name, file in (("mnist", "t10k-images-idx3-ubyte.xz"), ("cifar10", "test.npy.xz")):
        with pytest.raises(InputError) as caught:
            load(name, "test", tmp_path)
        assert caught.value.what == f"there is no file {file}" and caught.value.where == str(tmp_path / name)
        assert "--data or HUMMINGBIRD_DATA" in caught.value.hint
    with pytest.raises(InputError, match="there is no tiny-imagenet-val.zip") as caught:
        load("tiny-imagenet", "test", tmp_path)
    assert "unpack cs231n.stanford.edu/tiny-imagenet-200.zip" in caught.value.hint
    _write_cifar(tmp_path, np.zeros((2, 3, 32, 32)), np.zeros(2))
    (tmp_path / "cifar10" / "labels.npz").unlink()
    with pytest.raises(InputError, match="there is no file labels.npz"):
        load("cifar10", "train", tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    _write_cifar(tmp_path, np.zeros((3, 3, 32, 32)), np.zeros(2))
    with pytest.raises(InputError, match=r"images \(3, 3, 32, 32\) and labels \(2,\)"):
        load("cifar10", "train", tmp_path)
    np.savez(tmp_path / "cifar10" / "labels.npz", train=np.full(3, 10))
    with pytest.raises(InputError, match="has a label 10, expected below 10"):
        load("cifar10", "train", tmp_path)
    for content in (b"no labels", b""):
        (tmp_path / "cifar10" / "labels.npz").write_bytes(content)
        with pytest.raises(InputError, match="labels.npz is damaged"):
            load("cifar10", "train", tmp_path)
    coded = tmp_path / "cifar10" / "train_1.npy.xz"
    for content in (coded.read_bytes()[:-20], b"no xz file", lzma.compress(b"no array"), lzma.compress(b"")):
        coded.write_bytes(content)
        with pytest.raises(InputError, match="train_1.npy.xz is damaged"):
            load("cifar10", "train", tmp_path)
    (tmp_path / "mnist").mkdir()
    short = b"\0\0\x08\x03" + np.array([2, 28, 28], ">u4").tobytes() + bytes(2 * 784 - 1)
    for content in (short, b"", bytes(16)):
        (tmp_path / "mnist" / "t10k-images-idx3-ubyte.xz").write_bytes(lzma.compress(content))
        with pytest.raises(InputError, match="is no idx file of 3 dimension"):
            load("mnist", "test", tmp_path)


def test_unknown_data_sets_and_splits_are_named() -> None:
    with pytest.raises(InputError, match="the data sets are digits, mnist, cifar10, cifar100, tiny-imagenet"):
        load("imagenet", "test")
    with pytest.raises(InputError, match="the splits are train, validation, test"):
        load("digits", "valid")


@pytest.mark.parametrize("flip", [False, True])
def test_augmentation_shifts_mirrors_and_fills_with_black(flip: bool) -> None:
    dataset = Dataset((2, 4, 5), 2, (0.25, 0.5), (0.5, 0.25), shift=1, flip=flip)
    black = torch.tensor([-0.5, -2.0]).view(2, 1, 1)
    image = torch.arange(40, dtype=torch.float32).view(2, 4, 5) + 1
    framed = black.expand(2, 6, 7).clone()
    framed[:, 1:5, 1:6] = image
    allowed = [framed[:, y : y + 4, x : x + 5] for y in range(3) for x in range(3)]
    allowed += [moved.flip(2) for moved in allowed] if flip else []
    out = augment(image.expand(600, -1, -1, -1), dataset, torch.Generator().manual_seed(0))
    assert out.shape == (600, 2, 4, 5)
    seen = {next(index for index, want in enumerate(allowed) if torch.equal(want, got)) for got in out}
    # Each of the 9 or 18 outcomes is missed by 600 draws with probability (17/18)^600 < 2e-15.
    assert seen == set(range(len(allowed)))


def _options(*extra: str) -> Namespace:
    return parser().parse_args(["--model", "digits", "--dataset", "digits", "--out", "unused", "--epochs", "1", *extra])


@pytest.mark.parametrize(
    ("optimizer", "schedule", "amp"),
    every(7, [*itertools.product(["sgd", "adamw"], ["onecycle", "cosine"], ["on", "off"])]),
)
def test_every_recipe_learns_one_epoch(optimizer: str, schedule: str, amp: str) -> None:
    pytest.importorskip("sklearn")
    images, labels = load("digits", "train")
    torch.manual_seed(0)
    net = get_model("digits", 10)
    options = _options("--optimizer", optimizer, "--schedule", schedule, "--amp", amp)
    Training(net, images, labels, DATASETS["digits"], recipe_of(options)).run_epoch()
    assert all(value.dtype in (torch.float32, torch.int64) for value in net.state_dict().values())
    # Chance is 10 %; six standard deviations of 500 draws are 8 %.
    assert evaluate(net, *load("digits", "test")) > 0.18


def test_three_channel_nets_train_in_bfloat16_and_channels_last() -> None:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    net, seen = nn.Sequential(*layers), list[tuple[torch.dtype, bool]]()
    net[0].register_forward_hook(
        lambda _module, _inputs, output: seen.append(
            (output.dtype, output.is_contiguous(memory_format=torch.channels_last))
        )
    )
    Training(net, torch.randn(8, 3, 32, 32), torch.arange(8), DATASETS["cifar10"], Recipe(1, batch=4)).run_epoch()
    assert seen == [(torch.bfloat16, True)] * 2


def test_averaging_ends_with_the_mean_over_epochs_and_its_own_batch_norms() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    recipe = Recipe(3, batch=16, rate=0.05, schedule="constant", average=True)
    training = Training(net, torch.randn(64, 1, 8, 8), torch.arange(64) % 10, DATASETS["digits"], recipe)
    epochs = []
    while training.epoch < recipe.epochs:
        training.run_epoch()
        epochs.append([parameter.detach().clone() for parameter in net.parameters()])
        assert training.optimizer.param_groups[0]["lr"] == 0.05
    training.finish()
    for parameter, *values in zip(net.parameters(), *epochs, strict=True):
        # A running mean of three float32 numbers: a few units in the last place.
        torch.testing.assert_close(parameter.detach(), torch.stack(values).mean(0), rtol=1e-5, atol=1e-6)
        assert not torch.equal(values[0], values[2])
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.num_batches_tracked == 4  # of one pass, by the averaged weights
    assert norm.momentum == 0.1 and bool(norm.running_var.isfinite().all())  # type: ignore[union-attr]


@pytest.mark.parametrize(("share", "mixed"), [(0.0, 0), (0.5, 16), (1.0, 32)])
def test_cutmix_pastes_patches_and_mixes_labels(share: float, mixed: int) -> None:
    torch.manual_seed(0)
    labels = torch.arange(64) % 10
    images = (labels - 4.5).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()  # an image of one value tells its label
    net, seen = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), []
    fixed = Dataset((1, 8, 8), 10, (0.0,), (1.0,), shift=0, flip=False)
    training = Training(net, images, labels, fixed, Recipe(8, batch=16, rate=1e-6, cutmix=share))
    net.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    criterion, targets = training.criterion, []

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        targets.append(target)
        return criterion(logits, target)

    training.criterion = loss  # type: ignore[assignment]
    for _ in range(8):
        training.run_epoch()
    soft = 0
    for x, target in zip(seen, targets, strict=True):
        if target.dim() == 2:  # the share of a label is the share of its pixels
            soft += 1
            shares = torch.stack([(x == value - 4.5).float().mean((1, 2, 3)) for value in range(10)], 1)
            torch.testing.assert_close(target, shares, rtol=0, atol=1e-5)
    # 32 batches: at a share of one half, 5 sigma are 5 * sqrt(32) / 2 = 14.2.
    assert len(seen) == 32 and (soft == mixed if share in (0, 1) else abs(soft - mixed) <= 14 and soft)


def test_training_starts_from_given_weights(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    given, out = ROOT / "checkpoints/digits.pt", tmp_path / "net.pt"
    command = ["--model", "digits", "--dataset", "digits", "--epochs", "1", "--rate", "1e-12"]
    assert main([*command, "--start", str(given), "--out", str(out)]) == 0
    before, after = (torch.load(path, weights_only=True) for path in (given, out))
    for key in dict(get_model("digits", 10).named_parameters()):  # batch norms' statistics move on
        torch.testing.assert_close(after[key], before[key], rtol=1e-6, atol=1e-7)


def test_evaluate_counts_the_last_smaller_batch() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 3, bias=False))
    torch.nn.init.eye_(net[1].weight)  # type: ignore[arg-type]
    images = torch.eye(3)[torch.arange(7) % 3].view(7, 3, 1, 1)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 1])
    assert evaluate(net, images, labels, batch=3) == 6 / 7


def test_training_that_diverges_is_an_error() -> None:
    images, labels = torch.randn(256, 1, 28, 28), torch.arange(256) % 10
    net, recipe = get_model("cryptonets", 10), Recipe(1, rate=1e6, schedule="cosine")
    with pytest.raises(InputError, match="training diverged"):
        Training(net, images, labels, DATASETS["mnist"], recipe).run_epoch()


def test_half_refuses_what_float16_cannot_hold(tmp_path: Path) -> None:
    net = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(net.weight, 65536.0)
    with pytest.raises(InputError, match="save without --half"):
        weights_file(net, torch.float16)
    (tmp_path / "net.pt").write_bytes(weights_file(net, torch.float32))
    assert load_checkpoint(tmp_path / "net.pt", torch.nn.Linear(1, 1)).weight.item() == 65536.0


def test_wrong_arguments_are_one_error_and_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "net.pt")
    for arguments, message in (
        ("--model resnet18 --dataset digits", "hint: for digits take digits"),
        ("--model cryptonets --dataset mnist --option activation=gelu", "activation is 'gelu'"),
        ("--model digits --dataset digits --option pool=avg", "unexpected keyword argument 'pool'"),
        ("--model digits --dataset digits --epochs 0", "0 epochs of batches of 128 (at --epochs, --batch)"),
        ("--model digits --dataset digits --rate -1", "a learning rate of -1.0 (at --rate)"),
        ("--model digits --dataset digits --device abacus", "(at --device abacus)"),
        (f"--model digits --dataset digits --start {tmp_path / 'absent.pt'}", "absent.pt: No such file"),
        (f"--model digits --dataset digits --start {ROOT / 'README.md'}", "(at --start)"),
        ("--model digits --dataset digits --resume", "there is no training to resume"),
        (f"--model cryptonets --dataset mnist --data {tmp_path}", f"(at {tmp_path / 'mnist'})"),
    ):
        assert main([*arguments.split(), "--out", out]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error
    assert main(["--model", "digits", "--dataset", "digits", "--out", str(tmp_path / "absent" / "net.pt")]) == 1
    assert "hint: make it first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_program_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "digits.pt"
    command = [
        sys.executable,
        "-m",
        "scripts.train.images",
        "--model",
        "digits",
        "--dataset",
        "digits",
        "--epochs",
        "1",
    ]
    finished = python.run(
        [*command, "--half", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROGRAM,
    )
    assert finished.returncode == 0, finished.stderr
    first, second = finished.stdout.splitlines()
    net = load_checkpoint(out, get_model("digits", 10))
    assert first == f"test accuracy {100 * evaluate(net, *load('digits', 'test')):.2f} % of 500 images"
    assert second == f"saved {out} sha256 {sha256(out.read_bytes()).hexdigest()}"
    assert torch.load(out, weights_only=True)["fc.weight"].dtype == torch.float16


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert text.count("    python -m scripts.train.images --model") == 4 and "models.load_checkpoint" in text
