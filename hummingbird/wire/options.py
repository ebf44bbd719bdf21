"""Options that programs of several packages have: numbers, certificates, a client's images.

A function `add_...` adds options, and the one beside it reads them; what argparse can check alone is a type.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.wire.service import Tls

# Numbers --------------------------------------------------------------------------------------------------------------


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def shape(text: str) -> tuple[int, ...]:
    """Sizes from 1, written as in 3x32x32."""
    try:
        sizes = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 3x32x32") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds a size below 1")
    return sizes


# Certificates ---------------------------------------------------------------------------------------------------------


def add_tls(
    parser: argparse._ActionsContainer,
    cert: str = "certificate of this side (PEM); a server's for its host name",
    ca: str = "certificate of the authority of all sides (PEM)",
) -> None:
    """--tls-cert, --tls-key and --tls-ca. cert, ca: whose they are, and for which name."""
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help=cert)
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key (PEM)")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help=ca)


def tls_of(args: argparse.Namespace) -> Tls | None:
    """The files that the options of `add_tls` name, None without; InputError for one or two of the three."""
    files = {f"--tls-{name}": getattr(args, f"tls_{name}") for name in ("cert", "key", "ca")}
    missing = [option for option, file in files.items() if file is None]
    if not missing:
        return Tls(*files.values())
    if len(missing) < len(files):
        what = f"TLS needs --tls-cert, --tls-key and --tls-ca; there is no {' and no '.join(missing)}"
        raise InputError(what, hint="give all three or none")
    return None


# A client's images ----------------------------------------------------------------------------------------------------


def add_images(parser: argparse._ActionsContainer, outputs: str) -> None:
    """--images, --labels and --out. outputs: the name of a net's results, as in "logits"."""
    parser.add_argument("--images", required=True, type=Path, metavar="FILE.npy", help="images (n, ...)")
    parser.add_argument("--labels", type=Path, metavar="FILE.npy", help="labels (n,): print the accuracy")
    parser.add_argument("--out", type=Path, metavar="FILE.npy", help=f"write the {outputs} (n, ...)")


def images_of(args: argparse.Namespace) -> tuple[Tensor, Tensor | None]:
    """Images float32 (n, ...) and labels (n,), None without, of the files that the options of `add_images` name.

    InputError for files that hold something else, and where --out has no folder.
    """
    images, labels = array_of(args.images, "--images").float(), None
    if args.labels is not None:
        labels = array_of(args.labels, "--labels")
        if labels.shape != images.shape[:1]:
            what = f"labels are {tuple(labels.shape)}, expected ({len(images)},)"
            raise InputError(what, where="--labels", hint="one for each image")
    if args.out is not None and not args.out.parent.is_dir():
        raise InputError(f"there is no folder {args.out.parent}", where="--out", hint="make it first")
    return images, labels


def accuracy(outputs: Tensor, labels: Tensor) -> str:
    """A line on outputs (n, ...): how many are largest at the label."""
    right = int((outputs.flatten(1).argmax(1) == labels).sum())
    return f"accuracy {100 * right / len(labels):.2f} %, {right} of {len(labels)}"


def array_of(path: Path, where: str) -> Tensor:
    """The numbers of a file of numpy.save, at least one, of their own type; InputError names the option `where`."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}", where=where, hint="a file of numpy.save") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim < 1 or not array.size:
        raise InputError(f"{path} holds no array of numbers", where=where, hint="a file of numpy.save")
    return torch.from_numpy(array)
