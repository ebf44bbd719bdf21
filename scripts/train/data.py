"""Image data sets by name, as normalised float tensors: (x / 255 - mean) / std per channel (x / 16 for digits).

digits comes with scikit-learn. The others are read from a folder, given as an argument or by the
environment variable HUMMINGBIRD_DATA; without one, torchvision downloads mnist, cifar10 and cifar100 to
~/.cache/hummingbird. The folder:

    mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.xz            the original idx files, xz
    cifar10/train_{1..5}.npy.xz, test.npy.xz, labels.npz             cifar100/train_{1,2}.npy.xz, ...
    tiny-imagenet-200/{wnids.txt, train/*/images/*.JPEG, val/}       as its authors' archive unpacks

tiny-imagenet is not downloaded. Its test images have no labels: the split "test" is its folder val. Without
tiny-imagenet-200, tiny-imagenet-val/tiny-imagenet-val.zip may hold the validation images alone: the first 40 of each
class are then "train", the last 10 "test". Compare accuracies on such a split only with each other.

A *.npy.xz holds uint8 (3, N, 32, 32): planes R-G, G, B-G, then horizontal and vertical differences, all modulo 256;
labels.npz holds `train` and `test`. A cifar100 folder may hold a split of its own: compare accuracies within it only.
Other data sets are texts in the folder (`read_text`).
"""

from __future__ import annotations

import gzip
import io
import lzma
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from hummingbird.commands.training import Dataset
from hummingbird.errors import EnvironmentProblem, InputError

SPLITS = ("train", "validation", "test")
_CACHE = Path("~/.cache/hummingbird")
_DIGITS_TRAIN = 1297  # of 1797 images; the other 500 are the test split


DATASETS: dict[str, Dataset] = {
    "digits": Dataset((1, 8, 8), 10, (0.3056,), (0.3758,), shift=1, flip=False),
    "mnist": Dataset((1, 28, 28), 10, (0.1307,), (0.3081,), shift=2, flip=False, held_out=25),
    "cifar10": Dataset(
        (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), shift=4, flip=True, held_out=25
    ),
    "cifar100": Dataset(
        (3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), shift=4, flip=True, held_out=10
    ),
    "tiny-imagenet": Dataset(
        (3, 64, 64), 200, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), shift=8, flip=True, held_out=10
    ),
}


def load(name: str, split: str, data: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Load the "train", "validation" or "test" split: images float32 (N, C, H, W), normalised, and labels int64 (N,).

    data: folder laid out as above; by default HUMMINGBIRD_DATA, else a download. Digits ignores it.
    Raises InputError for an unknown name or split and for a missing or damaged file, EnvironmentProblem when
    scikit-learn (digits) or torchvision (download) is not installed.

        images, labels = load("digits", "test")              # (500, 1, 8, 8), (500,)
    """
    if name not in DATASETS:
        raise InputError(
            f"there is no data set {name!r}", where="name", hint=f"the data sets are {', '.join(DATASETS)}"
        )
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r}", where="split", hint=f"the splits are {', '.join(SPLITS)}")
    dataset, wanted = DATASETS[name], split
    if wanted == "validation":
        if not dataset.held_out:
            raise InputError(f"{name} holds no images out for validation", where="split", hint="take train or test")
        split = "train"
    folder = data if data is not None else os.environ.get("HUMMINGBIRD_DATA") or None
    if name == "digits":
        pixels, labels, top = *_digits(split), 16.0
    elif name == "tiny-imagenet":
        pixels, labels, top = *_tiny_imagenet(folder, split), 255.0
    elif folder is None:
        pixels, labels, top = *_download(name, split), 255.0
    elif name == "mnist":
        pixels, labels, top = *_mnist(Path(folder) / name, split), 255.0
    else:
        pixels, labels, top = *_cifar(Path(folder) / name, split), 255.0
    if pixels.shape[1:] != dataset.shape or labels.shape != (len(pixels),) or len(labels) == 0:
        raise InputError(
            f"{name} {split} has images {pixels.shape} and labels {labels.shape}",
            where=str(folder),
            hint=f"expected images (N, *{dataset.shape}) and as many labels; is a file missing?",
        )
    if int(labels.max()) >= dataset.classes:
        raise InputError(
            f"{name} {split} has a label {labels.max()}, expected below {dataset.classes}", where=str(folder)
        )
    if split == "train" and dataset.held_out:
        apart = np.arange(len(labels)) % dataset.held_out == 0
        kept = apart if wanted == "validation" else ~apart
        pixels, labels = pixels[kept], labels[kept]
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    images = torch.from_numpy(np.array(pixels, dtype=np.float32))
    return images.div_(top).sub_(mean).div_(std), torch.from_numpy(labels.astype(np.int64))


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as problem:
        raise EnvironmentProblem("digits needs scikit-learn", hint="pip install scikit-learn") from problem
    bunch = load_digits()
    # RandomState's stream is frozen by numpy's compatibility policy, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(bunch.target))
    chosen = order[:_DIGITS_TRAIN] if split == "train" else order[_DIGITS_TRAIN:]
    return bunch.images[chosen][:, None], bunch.target[chosen]


def _read(path: Path) -> bytes:
    """The decompressed bytes of an xz file."""
    try:
        with lzma.open(path) as file:
            return file.read()
    except FileNotFoundError as problem:
        raise _missing(path) from problem
    except (lzma.LZMAError, EOFError) as problem:
        raise InputError(f"{path.name} is damaged: {problem}", where=str(path.parent)) from problem


def _missing(path: Path) -> InputError:
    return InputError(
        f"there is no file {path.name}",
        where=str(path.parent),
        hint=f"give the folder that holds {path.parent.name}/ with --data or HUMMINGBIRD_DATA, or neither to download",
    )


def _mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    stem = "train" if split == "train" else "t10k"
    arrays = []
    # An idx file is a big-endian header (magic with the number of dimensions in its last byte, sizes), then the bytes.
    for name, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
        path = folder / f"{stem}-{name}-ubyte.xz"
        raw = _read(path)
        size = 4 + 4 * dimensions
        header = np.frombuffer(raw[:size].ljust(size, b"\0"), ">u4")
        shape = tuple(int(size) for size in header[1:])
        if header[0] != 0x0800 + dimensions or len(raw) != size + math.prod(shape):
            raise InputError(f"{path.name} is no idx file of {dimensions} dimension(s)", where=str(folder))
        arrays.append(np.frombuffer(raw, np.uint8, offset=size).reshape(shape))
    return arrays[0][:, None], arrays[1]


def _cifar(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    if split == "test":
        paths = [folder / "test.npy.xz"]
    else:
        paths = sorted(folder.glob("train_*.npy.xz")) or [folder / "train_1.npy.xz"]
    images = np.concatenate([_differences(path) for path in paths])
    labels = folder / "labels.npz"
    try:
        with np.load(labels) as file:
            return images, file[split]
    except FileNotFoundError as problem:
        raise _missing(labels) from problem
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        raise InputError(f"labels.npz is damaged: {problem}", where=str(folder)) from problem


def _differences(path: Path) -> np.ndarray:
    """Undo the difference coding: a *.npy.xz to uint8 (N, 3, 32, 32)."""
    try:
        planes = np.load(io.BytesIO(_read(path)))
    except (ValueError, EOFError) as problem:
        raise InputError(f"{path.name} is damaged: {problem}", where=str(path.parent)) from problem
    if planes.dtype != np.uint8 or planes.ndim != 4 or len(planes) != 3:
        raise InputError(
            f"{path.name} is {planes.dtype} {planes.shape}, expected uint8 (3, N, H, W)", where=str(path.parent)
        )
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return planes.transpose(1, 0, 2, 3)


_TINY = "tiny-imagenet-200"
_TRAINED_ON = 40  # of a class's 50 validation images, where there are no others


def _tiny_imagenet(folder: str | Path | None, split: str) -> tuple[np.ndarray, np.ndarray]:
    where = Path(folder or ".")
    whole, part = where / _TINY, where / "tiny-imagenet-val/tiny-imagenet-val.zip"
    try:
        found = list(_of_folder(whole, split) if whole.is_dir() else _of_zip(part, split))
        images, labels = zip(*found, strict=True) if found else ((), ())
        return np.stack(images) if images else np.zeros((0, 3, 64, 64), np.uint8), np.array(labels, np.int64)
    except FileNotFoundError as problem:
        hint = f"unpack cs231n.stanford.edu/{_TINY}.zip, and give the folder that holds {_TINY}/ with --data or "
        name = Path(problem.filename or part).name
        raise InputError(f"there is no {name}", where=str(where), hint=f"{hint}HUMMINGBIRD_DATA") from problem
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as problem:
        raise InputError(f"tiny-imagenet is damaged: {problem}", where=str(where)) from problem


def _of_folder(folder: Path, split: str) -> Iterator[tuple[np.ndarray, int]]:
    """Read the authors' archive: pictures and classes."""
    classes = (folder / "wnids.txt").read_text().split()
    if split == "train":
        for label, name in enumerate(classes):
            for path in sorted((folder / "train" / name / "images").glob("*.JPEG")):
                yield _picture(path.read_bytes()), label
        return
    for line in (folder / "val/val_annotations.txt").read_text().splitlines():
        file, name = line.split()[:2]
        yield _picture((folder / "val/images" / file).read_bytes()), classes.index(name)


def _of_zip(path: Path, split: str) -> Iterator[tuple[np.ndarray, int]]:
    """Read the validation images alone: pictures and classes."""
    with zipfile.ZipFile(path) as file:
        classes = file.read("wnids.txt").decode().split()
        seen: Counter[str] = Counter()
        for line in file.read("val_annotations.txt").decode().splitlines():
            picture, name = line.split()[:2]
            seen[name] += 1
            if (seen[name] <= _TRAINED_ON) == (split == "train"):
                yield _picture(file.read(f"images/{picture}")), classes.index(name)


def _picture(jpeg: bytes) -> np.ndarray:
    """Decode a JPEG to uint8 (3, H, W); grey ones get three equal planes."""
    from PIL import Image  # torchvision brings it

    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as opened:
        if opened.size != (64, 64):  # before anything is decoded
            raise ValueError("a picture of {} x {} pixels, expected 64 x 64".format(*opened.size))
        return np.asarray(opened.convert("RGB")).transpose(2, 0, 1)


def _download(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    hint = f"give a folder that holds {name}/ with --data or HUMMINGBIRD_DATA"
    try:
        from torchvision import datasets
    except ImportError as problem:
        raise EnvironmentProblem(
            "downloading data needs torchvision", hint=f"pip install torchvision, or {hint}"
        ) from problem
    kind = {"mnist": datasets.MNIST, "cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    cache = _CACHE.expanduser()
    try:
        found = kind(str(cache), train=split == "train", download=True)
    except (OSError, RuntimeError) as problem:
        raise InputError(f"{name} could not be downloaded: {problem}", where=str(cache), hint=hint) from problem
    pixels, labels = np.asarray(found.data), np.asarray(found.targets)
    return (pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)), labels


_OPEN = {".gz": gzip.open, ".xz": lzma.open}


def read_text(name: str, data: str | Path | None = None) -> str:
    """The text of a file such as wikitext-2/train.txt.xz below the data folder; .xz and .gz are decompressed.

    data: the folder; by default HUMMINGBIRD_DATA. Raises InputError without one, and for a missing or damaged file.
    """
    folder = data if data is not None else os.environ.get("HUMMINGBIRD_DATA")
    if not folder:
        hint = f"give the folder that holds {name} with --data or HUMMINGBIRD_DATA"
        raise InputError("this data set is read from a folder and none is given", where="--data", hint=hint)
    path = Path(folder) / name
    try:
        with _OPEN.get(path.suffix, open)(path, "rb") as file:
            return file.read().decode()
    except FileNotFoundError as problem:
        hint = "give the folder that holds it with --data or HUMMINGBIRD_DATA"
        raise InputError(f"there is no file {name}", where=str(folder), hint=hint) from problem
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as problem:
        raise InputError(f"{path.name} is damaged: {problem}", where=str(path.parent)) from problem
