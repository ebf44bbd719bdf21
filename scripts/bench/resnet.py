"""ResNet inference end to end: CrypTen as shipped, `gmw` and `masked`, two processes on this host.

    python -m scripts.bench.resnet --batch 8 --json resnet.json
    python -m scripts.bench.resnet --batch 8 --weights trained --links loopback 10gbit 352mbit --plot resnet.png

The net is the paper's ResNet-18 for 32x32 images (average pooling after the stem, 188,416 ReLUs per image), with
random weights and with weights trained here on scikit-learn's digits (scaled to 32x32, in three channels), so that
nothing has to be downloaded. `--model resnet50_imagenet` is torchvision's for 224x224 images, with random weights and
images. A run is one batch, from its shares to the opened logits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from models import MODELS, get_model, load_checkpoint
from scripts.bench import common
from scripts.bench.contest import run_worker
from scripts.program import new_parser
from scripts.train.data import load

WINDOWS = ("64:0", "24:0", "20:12")
IMAGENET = "_imagenet"  # the end of torchvision's names here, as in scripts/bench/linear.py
SMALL = [name for name in sorted(MODELS) if name.startswith("resnet")]
LARGE = [f"resnet18{IMAGENET}", f"resnet50{IMAGENET}"]


def images(split: str) -> tuple[Tensor, Tensor]:
    """The digits as 3x32x32 images, normalised."""
    x, y = load("digits", split)
    return F.interpolate(x, size=32, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1).contiguous(), y


def train(name: str, epochs: int, path: Path) -> None:
    """A few epochs on the digits: trained weights with trained statistics, in well under a minute."""
    torch.manual_seed(0)
    net = get_model(name, 10)
    x, y = images("train")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(epochs):
        for index in progress_line(torch.randperm(len(x)).split(64), desc="training", unit="batch"):
            loss = F.cross_entropy(net(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(net.state_dict(), path)


def some_images(args: argparse.Namespace) -> Tensor:
    """A batch: the digits in turn, or random values of unit variance for torchvision's nets."""
    if args.model in LARGE:
        return torch.randn(args.batch, 3, args.size, args.size, generator=torch.Generator().manual_seed(0))
    x = images("test")[0]
    return x[torch.arange(args.batch) % len(x)]


def build(args: argparse.Namespace) -> torch.nn.Module:
    """The same net at every party; random weights get sensible batch-norm statistics from one pass over images."""
    torch.manual_seed(0)
    large = args.model in LARGE
    net = torchvision.models.get_model(args.model.removesuffix(IMAGENET)) if large else get_model(args.model, 10)
    if args.checkpoint:
        load_checkpoint(args.checkpoint, net)
    else:
        with torch.no_grad():
            net.train()(some_images(args)[:8] if large else images("train")[0][:32])
    return net.eval()


def work(args: argparse.Namespace) -> None:
    """One party."""

    def errors(opened: Tensor, plain: Tensor) -> dict[str, float]:
        return {
            "largest_logit_error_percent": 100 * float((opened - plain).abs().max() / plain.abs().max()),
            "agreement_percent": 100 * float((opened.argmax(1) == plain.argmax(1)).double().mean()),
        }

    run_worker(args, build(args), some_images(args), errors)


def contest(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, printed as one table for each kind of weights."""
    unit = common.Unit("image", args.batch, "seconds", "megabytes")
    errors = {"largest_logit_error_percent": ("error", "{:.3f} %"), "agreement_percent": ("agree", "{:.0f} %")}
    large, per_slice = args.model in LARGE, args.slice or args.batch
    side, words = 32, ["models:get_model", args.model, "10"]
    if large:
        side, words = args.size, [f"torchvision.models:{args.model.removesuffix(IMAGENET)}"]
        if args.weights != ["random"]:
            hint = "give --weights random"
            raise InputError(f"{args.model} has no weights trained here", where="--weights", hint=hint)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "trained.pt"
        if "trained" in args.weights:
            train(args.model, args.epochs, trained)
        for weights in args.weights:
            options = ["--model", args.model, "--batch", str(args.batch), "--size", str(args.size)]
            options += ["--checkpoint", str(trained)] if weights == "trained" else []
            labels = {"model": args.model, "batch": args.batch, "weights": weights}
            shape = (per_slice, 3, side, side)
            job = common.Work("scripts.bench.resnet", options, words, shape, -(-args.batch // per_slice))
            here = common.compare(args, job, unit, labels)
            common.show(f"{args.model}, batch {args.batch}, {weights} weights; per image and party", here, unit, errors)
            print("error: in percent of the largest logit; agree: images with the same answer as in plain torch\n")
            rows += here
    return rows


def main() -> None:
    p = new_parser(__doc__)
    p.add_argument("--model", choices=[*SMALL, *LARGE], default="resnet18")
    p.add_argument("--batch", type=int, default=8, help="images at once (default 8)")
    text = "images of a slice that is dealt in advance (default: the batch); slices take turns"
    p.add_argument("--slice", type=int, metavar="N", help=text)
    p.add_argument("--size", type=int, default=224, help="height and width for torchvision's nets (default 224)")
    p.add_argument("--weights", nargs="+", choices=("random", "trained"), default=["random", "trained"])
    p.add_argument("--epochs", type=int, default=2, help="of training on the digits (default 2)")
    p.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    common.add_arguments(p, WINDOWS, 3)
    p.set_defaults(opening=True)
    common.main(p.parse_args(), work, contest)


if __name__ == "__main__":
    main()
