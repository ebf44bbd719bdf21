"""Train one of the networks of `models` and save its weights.

The recipe is the usual one for small images: SGD with Nesterov momentum (He et al., CVPR 2016, section 4.2) or AdamW,
one learning-rate cycle (Smith and Topin, "Super-Convergence", 2018) or a cosine, label smoothing, shifted and mirrored
images. On a GPU, and on a CPU for three-channel nets, forward and backward run in bfloat16 with channels-last memory;
bfloat16 has the exponent range of float32, so that no loss scaling is needed. Weights stay float32.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from hummingbird.errors import HummingbirdError, InputError
from models import MODELS, get_model, load_checkpoint
from scripts.data import DATASETS, Dataset, load

_EPILOG = """examples:
  the digits checkpoint of this repository (ten seconds on one CPU core, no download):
    python -m scripts.train --model digits --dataset digits --epochs 60 --out checkpoints/digits.pt

  ResNet-18 on CIFAR-10 from a data folder, without the pooling after the stem, stored in half precision:
    python -m scripts.train --model resnet18 --option pool=none --dataset cifar10 --data DATA \\
        --epochs 30 --half --out resnet18.pt

The weights go to --out as a state dict; models.load_checkpoint reads them back. The data folder is described in
scripts/data.py; HUMMINGBIRD_DATA gives it once for all programs.
"""
_RATES = {"sgd": 0.1, "adamw": 2e-3}


def augment(images: torch.Tensor, dataset: Dataset, generator: torch.Generator) -> torch.Tensor:
    """Shift each image by up to `dataset.shift` pixels each way, filling with black, and mirror half where allowed.

    images: (B, C, H, W), normalised, on any device; the result has the same shape.
    """
    count, _, height, width = images.shape
    shift, device = dataset.shift, images.device
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    black = -mean / std
    padded = F.pad(images - black, (shift,) * 4) + black
    top, left = torch.randint(2 * shift + 1, (2, count, 1), generator=generator)
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    if dataset.flip:
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    index = torch.arange(count, device=device)[:, None, None]
    return padded[index, :, rows.to(device)[:, :, None], columns.to(device)[:, None, :]].permute(0, 3, 1, 2)


def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, batch: int = 500) -> float:
    """The share of images (N, C, H, W) whose largest logit is at labels (N,), in float32 on the model's device."""
    device = next(model.parameters()).device
    model.eval()
    with torch.inference_mode():
        hits = sum(
            int((model(x.to(device)).argmax(1) == y.to(device)).sum())
            for x, y in zip(images.split(batch), labels.split(batch), strict=True)
        )
    return hits / len(labels)


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, dataset: Dataset, options: argparse.Namespace
) -> None:
    """Train `model` in place on images (N, C, H, W) and labels (N,); `options` are those of `parser`.

    Raises InputError after the first epoch that leaves the loss or a weight not finite.
    """
    device = next(model.parameters()).device
    half = options.amp == "on" or (options.amp == "auto" and (device.type == "cuda" or images.shape[1] == 3))
    layout = torch.channels_last if half else torch.contiguous_format
    model.to(memory_format=layout).train()
    rate = options.rate if options.rate is not None else _RATES[options.optimizer]
    optimizer: torch.optim.Optimizer
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=options.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=options.weight_decay)
    batch = min(options.batch, len(labels))
    steps = options.epochs * (len(labels) // batch)  # the last, smaller batch of each shuffle is left out
    schedule: torch.optim.lr_scheduler.LRScheduler
    if options.schedule == "onecycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
    generator = torch.Generator().manual_seed(options.seed)
    images, labels = images.to(device), labels.to(device)
    with tqdm(total=steps, desc=f"{options.epochs} epochs", unit="step", mininterval=1) as progress:
        for _ in range(options.epochs):
            order = torch.randperm(len(labels), generator=generator).to(device)
            for chosen in order[: len(labels) // batch * batch].split(batch):
                x = augment(images[chosen], dataset, generator).contiguous(memory_format=layout)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = criterion(model(x), labels[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.update()
            progress.set_postfix(loss=f"{loss.item():.3f}")
            if not all(torch.isfinite(value).all() for value in (loss, *model.state_dict().values())):
                hint = f"try less than {rate}, or --optimizer adamw"
                raise InputError("training diverged: the loss or a weight is not finite", where="--rate", hint=hint)


def save(model: nn.Module, path: Path, *, half: bool) -> None:
    """Write the state dict of `model` to `path`, floating-point values as float16 when `half`, else float32."""
    kind = torch.float16 if half else torch.float32
    state = {
        key: (value.to(kind) if value.is_floating_point() else value).cpu().contiguous()
        for key, value in model.state_dict().items()
    }
    large = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if large:
        raise InputError("a value is above 65504, the largest float16", where=large[0], hint="save without --half")
    # Through a file object: given a path, torch.save writes the file's name into the archive and so into its hash.
    with path.open("wb") as file:
        torch.save(state, file)


def _option(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, int(value) if value.isdigit() else value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m scripts.train",
        description="Train a network on an image data set, print its test accuracy and save its weights.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--model", required=True, choices=tuple(MODELS), help="the network")
    made.add_argument(
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="KEY=VALUE",
        help="option of the network, such as pool=none or activation=relu; may be repeated",
    )
    made.add_argument("--dataset", required=True, choices=tuple(DATASETS), help="the images")
    made.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights")
    made.add_argument("--epochs", type=int, default=30, help="passes over the training images (default: %(default)s)")
    made.add_argument("--batch", type=int, default=128, help="images per step (default: %(default)s)")
    made.add_argument("--optimizer", choices=tuple(_RATES), default="sgd", help="default: %(default)s")
    made.add_argument("--schedule", choices=("onecycle", "cosine"), default="onecycle", help="default: %(default)s")
    made.add_argument("--rate", type=float, help="largest learning rate (default: 0.1 for sgd, 0.002 for adamw)")
    made.add_argument("--weight-decay", type=float, default=5e-4, help="default: %(default)s")
    made.add_argument("--label-smoothing", type=float, default=0.1, help="default: %(default)s")
    made.add_argument(
        "--amp",
        choices=("auto", "on", "off"),
        default="auto",
        help="bfloat16 and channels-last: auto is on for a GPU and for three-channel images",
    )
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    made.add_argument("--half", action="store_true", help="store float16 weights, half the size")
    made.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    return made


def run(options: argparse.Namespace) -> None:
    """Train, save, and report the accuracy of the file that was saved."""
    dataset, spec = DATASETS[options.dataset], MODELS[options.model]
    if spec.input_shape != dataset.shape:
        fitting = [name for name, other in MODELS.items() if other.input_shape == dataset.shape]
        raise InputError(
            f"{options.model} takes {spec.input_shape} images, {options.dataset} has {dataset.shape}",
            where="--model",
            hint=f"for {options.dataset} take {', '.join(fitting)}",
        )
    if options.epochs < 1 or options.batch < 1:
        raise InputError("--epochs and --batch are at least 1", where=f"{options.epochs}, {options.batch}")
    if not options.out.parent.is_dir():
        raise InputError(f"there is no folder {options.out.parent}", where="--out", hint="make it first")
    torch.manual_seed(options.seed)
    try:
        model = get_model(options.model, dataset.classes, **dict(options.option))
    except (TypeError, ValueError) as problem:
        raise InputError(str(problem), where="--option") from problem
    train_images, train_labels = load(options.dataset, "train", options.data)
    test_images, test_labels = load(options.dataset, "test", options.data)
    train(model.to(options.device), train_images, train_labels, dataset, options)
    save(model, options.out, half=options.half)
    accuracy = evaluate(load_checkpoint(options.out, model), test_images, test_labels)
    print(f"test accuracy {100 * accuracy:.2f} % of {len(test_labels)} images")
    print(f"saved {options.out} sha256 {hashlib.sha256(options.out.read_bytes()).hexdigest()}")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line."""
    try:
        run(parser().parse_args(arguments))
    except HummingbirdError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
