"""Train a net for a few epochs with its windows in place, and save weights and windows as a pair.

The forward pass is what private inference computes, y = bit z (mpc/protocols/law.py): small values become 0 by
chance, and values beyond the window pass with a wrong sign. The backward pass goes where values passed,
dL/dv = bit dL/dy. So the net learns to live with both (Maeng and Suh, "HummingBird", 2023, finetuning).

--clamp cuts what is compared to the window, in training only: the net then never sees wrong signs, which private
inference still has where values leave the window.

The accuracy of an epoch is that of its weights as they would be saved, with windows, on images held out from training;
the best epoch is kept. The test images choose nothing.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import hummingbird
from hummingbird import graph
from hummingbird.bits import BitConfig
from hummingbird.errors import InputError
from hummingbird.twin.windows import traced
from hummingbird.version import VERSION
from scripts.data import DATASETS, load
from scripts.files import check_writable, write_together
from scripts.program import command_of, end
from scripts.training import Recipe, Training, evaluate, weights_file
from search.options import add_net_arguments, load_net_and_images

_EPILOG = """examples:
  windows that hurt the digits net, which holds no images out, so that epochs are judged by training images:
    python -m search.finetune --model digits --weights checkpoints/digits.pt --bits bits.json \\
        --dataset digits --split train --epochs 10 --test --out tuned.pt

  ResNet-18 on CIFAR-10, stored in half precision:
    python -m search.finetune --model resnet18 --weights resnet18.pt --bits 6-64.json --dataset cifar10 --data DATA \\
        --epochs 2 --rate 0.002 --half --test --out resnet18-6-64.pt

A rate that is too large shows in the first epoch, whose accuracy is then below that of epoch 0, the net as it came.

--out X.pt writes X.pt and X.bits.json: the same windows, and in `provenance` what they were trained with, the sha256 of
X.pt included. Ctrl-C saves the best epoch so far.
"""


@dataclass(frozen=True)
class Epoch:
    """An epoch's number, accuracy on the images that judge it, and weights as a file's content."""

    number: int
    accuracy: float
    weights: bytes


class Judge:
    """The accuracy of weights with windows (`bits`; None: exact), in a net of its own: in eval mode, in float32.

    Windows alone: the weights are no longer those that they were found for. The same seed for all: differences are
    those of the weights.
    """

    def __init__(self, net: nn.Module, args: argparse.Namespace) -> None:
        self._net, self._args = copy.deepcopy(net), args

    def accuracy(self, weights: bytes, bits: BitConfig | None, images: Tensor, labels: Tensor) -> float:
        """The share of images (N, C, H, W) that weights, the content of a file, put at labels (N,)."""
        args = self._args
        self._load(weights)
        if bits is None:
            return evaluate(self._net, images, labels)
        twin = hummingbird.simulate(self._net, bits.windows, args.protocol, args.parties, seed=args.seed)
        return evaluate(twin, images, labels)

    def fingerprint(self, weights: bytes) -> str:
        """Of the net with these weights, as `BitConfig.check_use` compares it."""
        self._load(weights)
        return graph.fingerprint(traced(self._net))

    def _load(self, weights: bytes) -> None:
        self._net.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))


class Tuning:
    """A net in training with its windows in place: epoch 0, the net as it was given, and the best epoch so far."""

    def __init__(
        self, net: nn.Module, config: BitConfig, args: argparse.Namespace, held: tuple[Tensor, Tensor]
    ) -> None:
        self.args, self.config, self.held, self._net = args, config, held, net
        self.judge = Judge(net, args)
        self.first = self.best = self._epoch(0)

    def _epoch(self, number: int) -> Epoch:
        weights = weights_file(self._net, half=self.args.half)
        return Epoch(number, self.judge.accuracy(weights, self.config, *self.held), weights)

    def run(self, training: Training) -> None:
        """All epochs of the recipe, or until --patience of them were no better than the best; a line for each."""
        print("epoch    loss  accuracy")
        _row(self.first, None)
        with tqdm(total=training.recipe.epochs * training.steps, desc="fine-tuning", unit="step", mininterval=1) as bar:
            while training.epoch < min(training.recipe.epochs, self.best.number + self.args.patience):
                loss = training.run_epoch(bar.update)
                epoch = self._epoch(training.epoch)
                if epoch.accuracy > self.best.accuracy:
                    self.best = epoch
                with bar.external_write_mode():
                    _row(epoch, loss)

    def save(self, recipe: Recipe, command: str) -> str:
        """Write the best epoch's weights and the windows that they were trained with; the line that says so."""
        args, best = self.args, self.best
        digest = hashlib.sha256(best.weights).hexdigest()
        finetuning: dict[str, Any] = {
            "from_net": self.config.provenance.get("net"),
            "from_weights_sha256": hashlib.sha256(args.weights.read_bytes()).hexdigest(),
            "weights_sha256": digest,
            "epochs": best.number,
            "rate": recipe.rate,
            "clamp": args.clamp,
            "dataset": args.dataset,
            "judged_by": f"{len(self.held[1])} images of the {args.split} split",
            "accuracy_before_percent": 100 * self.first.accuracy,
            "accuracy_after_percent": 100 * best.accuracy,
            "protocol": args.protocol,
            "parties": args.parties,
            "seed": args.seed,
            "command": command,
            "versions": {"hummingbird": VERSION, "torch": torch.__version__},
        }
        trained_with = {"net": self.judge.fingerprint(best.weights), "protocol": args.protocol, "parties": args.parties}
        provenance = {**self.config.provenance, **trained_with, "finetuning": finetuning}
        windows = BitConfig(self.config.default, self.config.layers, provenance, self.config.input_range)
        write_together({args.out: best.weights, windows_beside(args.out): windows.to_json().encode()})
        return f"saved epoch {best.number}: {args.out} sha256 {digest} and {windows_beside(args.out)}"


def windows_beside(weights: Path) -> Path:
    """X.bits.json for X.pt."""
    return weights.with_suffix(".bits.json")


def _row(epoch: Epoch, loss: float | None) -> None:
    print(f"{epoch.number:5}  {'' if loss is None else f'{loss:.4f}':>6}  {100 * epoch.accuracy:6.2f} %", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.finetune",
        description="Train a net for a few epochs with its windows in place, and save weights and windows together.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--bits", required=True, type=Path, metavar="FILE", help="the windows")
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights")
    made.add_argument("--half", action="store_true", help="store float16 weights, half the size")
    made.add_argument("--test", action="store_true", help="print accuracies on the test images, before and after")
    group = made.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=4, help="passes over the training images (default: %(default)s)")
    group.add_argument("--rate", type=float, default=0.02, help="largest learning rate (default: %(default)s)")
    group.add_argument("--batch", type=int, default=128, help="images per step (default: %(default)s)")
    group.add_argument("--clamp", action="store_true", help="cut what is compared to the window while training")
    group.add_argument(
        "--patience", type=int, default=2, help="stop after so many epochs without a better one (default: %(default)s)"
    )
    add_net_arguments(made)
    return made


def run(args: argparse.Namespace, command: str, said: list[str]) -> None:
    """Fine-tune and save; `said`: what became of it, should it be interrupted."""
    recipe = Recipe(args.epochs, args.batch, rate=args.rate, seed=args.seed, schedule="cosine", label_smoothing=0.0)
    if args.patience < 1:
        raise InputError(f"a patience of {args.patience} epochs", where="--patience", hint="1 or more")
    if args.split == "test":
        hint = "validation, or train where none are held out; --test measures the result on the test images"
        raise InputError("the test images must not choose the epoch", where="--split", hint=hint)
    check_writable(args.out, "--out")
    config = BitConfig.load(args.bits)
    net, *held = load_net_and_images(args)
    hummingbird.simulate(net, config, args.protocol, args.parties)  # says at once if the windows are another net's
    twin = hummingbird.simulate(net, config.windows, args.protocol, args.parties, clamp=args.clamp)
    images, labels = load(args.dataset, "train", args.data)
    test = load(args.dataset, "test", args.data) if args.test else None
    tuning = Tuning(net, config, args, (held[0], held[1]))
    torch.manual_seed(args.seed)
    training = Training(twin, images, labels, DATASETS[args.dataset], recipe)
    try:
        tuning.run(training)
    except KeyboardInterrupt:
        if tuning.best.number:
            said.append(f"interrupted: {tuning.save(recipe, command)}")
        raise
    saved = tuning.save(recipe, command)
    said.append(f"interrupted: {saved}")
    print(saved)
    if test is not None:
        for what, weights, bits in (
            ("before, exact", tuning.first.weights, None),
            ("before, with windows", tuning.first.weights, config),
            ("after, with windows", tuning.best.weights, config),
        ):
            print(f"test accuracy {what}: {100 * tuning.judge.accuracy(weights, bits, *test):.2f} %")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args, said = parser().parse_args(words), ["interrupted: nothing was saved, no epoch was better than the net given"]
    return end(lambda: run(args, command_of("search.finetune", words), said), lambda: said[-1])


if __name__ == "__main__":
    sys.exit(main())
