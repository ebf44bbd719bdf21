"""`finetune`: trains a net for a few epochs with its windows in place, and saves weights and windows as a pair.

--clamp limits compared values to the window, in training only: the net then never sees wrong signs, which private
inference still produces for values beyond the window. The best epoch is chosen on validation images; test images choose
nothing.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hummingbird
from hummingbird import graph, ranks
from hummingbird.bits import BitConfig
from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.program import NOTES as RANKS
from hummingbird.commands.program import add_command, agree_on, command_of, end_ranked, without_folders
from hummingbird.commands.sources import add_images_argument, images_of, load_weights, weights_file
from hummingbird.commands.subject import Subject, add_subject_arguments, check_classes, evaluate, labels_of, subject_of
from hummingbird.commands.training import NOTES as DATA_PARALLEL
from hummingbird.commands.training import Dataset, Recipe, Training
from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from hummingbird.simulation.layers import traced
from hummingbird.version import VERSION
from hummingbird.window_search.images import fingerprint

# Fine-tuning: training with windows in place, the choice of an epoch, and the saved files ----------------------------
#
# The forward pass computes what private inference computes, y = bit z (mpc/protocols/law.py): small values become 0 at
# random, and values beyond the window have a wrong sign. The backward pass is dL/dv = bit dL/dy. So the net learns to
# tolerate both (Maeng and Suh, "HummingBird", 2023, finetuning).
#
# The accuracy of an epoch is that of its weights as they would be saved, with windows, on images held out from
# training; the best epoch is kept.


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch: its number, its accuracy on validation images, and its weights as a file's content."""

    number: int
    accuracy: float
    weights: bytes


class Judge:
    """Measures the accuracy of a net with given weights: with windows, in a simulation, or without windows.

    The net is a copy, in eval mode and float32. The provenance of the windows is ignored, as it names other weights.
    All simulations have the same seed, so that two accuracies differ by the weights alone.
    """

    def __init__(self, net: nn.Module, args: argparse.Namespace, example: Tensor | None = None) -> None:
        self._net, self._args, self._example = copy.deepcopy(net), args, example

    def accuracy(self, weights: bytes, bits: BitConfig | None, images: Tensor, labels: Tensor) -> float:
        """Return the accuracy, 0 to 1, of the net with these weights on images (N, C, H, W) with labels (N,).

        weights: the content of a file that `weights_file` made. bits: the windows, None for exact comparisons.
        """
        args = self._args
        self._load(weights)
        if bits is None:
            return evaluate(self._net, images, labels)
        twin = hummingbird.simulate(
            self._net, bits.windows, args.protocol, args.parties, seed=args.seed, example=self._example
        )
        return evaluate(twin, images, labels)

    def fingerprint(self, weights: bytes) -> str:
        """Return the fingerprint of the net with these weights, for the provenance of its windows.

        Windows with a fingerprint are refused for any other net. weights: the content of a file that `weights_file`
        made.
        """
        self._load(weights)
        return graph.fingerprint(traced(self._net, self._example))

    def _load(self, weights: bytes) -> None:
        load_weights(weights, self._net)


class Tuning:
    """A net that is fine-tuned while a simulation applies its windows, with the first and the best epoch.

    first: epoch 0, the net before training. best: the epoch so far with the highest accuracy on the validation images;
    this accuracy is that of a simulation with the windows.
    """

    def __init__(self, subject: Subject, config: BitConfig, args: argparse.Namespace) -> None:
        self.args, self.config, self.source, self._net = args, config, subject.source, subject.net
        self.held = subject.images, subject.labelled
        self.judge = Judge(subject.net, args, subject.example)
        self.first = self.best = self._epoch(0)

    def _epoch(self, number: int) -> Epoch:
        weights = weights_file(self._net, torch.float16 if self.args.half else torch.float32)
        return Epoch(number, self.judge.accuracy(weights, self.config, *self.held), weights)

    def run(self, training: Training) -> None:
        """Train for the epochs of the training's recipe, and print a line with loss and accuracy for each.

        Stops earlier if --patience epochs in a row were no better than the best.
        """
        print("epoch    loss  accuracy")
        _row(self.first, None)
        with progress_line(total=training.recipe.epochs * training.steps, desc="fine-tuning", unit="step") as bar:
            while training.epoch < min(training.recipe.epochs, self.best.number + self.args.patience):
                loss = training.run_epoch(bar.update)
                epoch = self._epoch(training.epoch)
                if epoch.accuracy > self.best.accuracy:
                    self.best = epoch
                with bar.external_write_mode():
                    _row(epoch, loss)

    def save(self, recipe: Recipe, dataset: str, command: str) -> str:
        """Write the best epoch's weights to the file of --out, and their windows beside it; return a line of text that
        says so.

        recipe: the settings of the training. dataset: the origin of the training images. command: the command line. All
        three go into the provenance of the windows.
        """
        args, best = self.args, self.best
        digest = _digest(best.weights)
        finetuning: dict[str, Any] = {
            "from_net": self.config.provenance.get("net"),
            "from_weights_sha256": None if args.weights is None else _digest(args.weights.read_bytes()),
            "weights_sha256": digest,
            "epochs": best.number,
            "rate": recipe.rate,
            "clamp": args.clamp,
            "dataset": dataset,
            "judged_by": f"{len(self.held[1])} images of {self.source}",
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
        windows = replace(self.config, provenance=provenance)
        write_together({args.out: best.weights, windows_beside(args.out): windows.to_json().encode()})
        return f"saved epoch {best.number}: {args.out} sha256 {digest} and {windows_beside(args.out)}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def windows_beside(weights: Path) -> Path:
    """Return the path of the windows that belong to a file of weights: X.bits.json for X.pt."""
    return weights.with_suffix(".bits.json")


def _row(epoch: Epoch, loss: float | None) -> None:
    print(f"{epoch.number:5}  {'' if loss is None else f'{loss:.4f}':>6}  {100 * epoch.accuracy:6.2f} %", flush=True)


# The command ---------------------------------------------------------------------------------------------------------

HELP = "Train a net for a few epochs with its windows in place, and save weights and windows together."
_EPILOG = """example, with my_net.py and my_data.py in the current folder:
    python -m hummingbird finetune --model my_net:net --weights net.pt --bits bits.json --data my_data:images train \\
        --validation my_data:images validation --test my_data:images test --epochs 4 --out tuned.pt

my_net.net() returns the net; my_data.images("train") returns a pair of images (N, ...) and labels (N,), a data set, or
a DataLoader. Training images are not augmented.
"""
NOTES = (
    """
If the rate is too large, the accuracy of the first epoch is below that of epoch 0, the net before training.

--out X.pt writes X.pt and X.bits.json: the same windows, and in `provenance` the facts of the training, with the sha256
of X.pt. Ctrl-C saves the best epoch so far.
"""
    + RANKS
    + DATA_PARALLEL
)


def add_parser(commands: Any) -> None:
    """Add the command `finetune`, with its options, to the command line."""
    sub = add_command(commands, "finetune", HELP, HELP, _EPILOG + NOTES)
    add_arguments(sub)
    add_images_argument(sub, "--data", "training images, and their labels")
    add_images_argument(
        sub, "--test", "images to print accuracies on, before and after, and their labels", required=False
    )
    add_subject_arguments(
        sub, "--validation", "images on which the best epoch is chosen, none of them in training, and their labels"
    )
    sub.set_defaults(run=_run_command)


def _run_command(args: argparse.Namespace) -> int:
    command = command_of("hummingbird", args.words)
    return main(args, lambda: subject_of(args, "--validation"), lambda: lesson_of(args), command)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options of `finetune` but those that name the net and its images."""
    parser.add_argument("--bits", required=True, type=Path, metavar="FILE", help="the windows")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="file for the weights")
    parser.add_argument("--half", action="store_true", help="store float16 weights, half the size")
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=4, help="passes over the training images (default: %(default)s)")
    group.add_argument("--rate", type=float, default=0.02, help="largest learning rate (default: %(default)s)")
    group.add_argument("--batch", type=int, default=128, help="images per step (default: %(default)s)")
    group.add_argument("--clamp", action="store_true", help="limit compared values to the window while training")
    group.add_argument(
        "--patience",
        type=int,
        default=2,
        help="stop after this number of epochs without a better one (default: %(default)s)",
    )


@dataclass(frozen=True)
class Lesson:
    """The data of a fine-tuning: the training images and labels, and perhaps test images and labels.

    images, labels: for training, (N, ...) and (N,). dataset: the images' shape, number of classes and augmentation.
    name: the origin of the training images. test: images and labels for the final accuracies, or None.
    """

    images: Tensor
    labels: Tensor
    dataset: Dataset
    name: str
    test: tuple[Tensor, Tensor] | None


def lesson_of(args: argparse.Namespace) -> Lesson:
    """Return the training images and labels of --data, and the test images and labels of --test if the option is set.

    Training will not augment the images. Raises errors of `images_of`, and InputError for images without labels.
    """
    images, labels = images_of(args.data, "--data")
    labels = labels_of(labels, "--data")
    test = None
    if args.test is not None:
        shown, told = images_of(args.test, "--test")
        test = shown, labels_of(told, "--test")
    channels = images.shape[1]
    facts = Dataset(tuple(images.shape[1:]), int(labels.max()) + 1, (0.0,) * channels, (1.0,) * channels, 0, False)
    return Lesson(images, labels, facts, " ".join(without_folders(args.data)), test)


def run(
    args: argparse.Namespace,
    load: Callable[[], Subject],
    teach: Callable[[], Lesson],
    command: str,
    said: list[str],
) -> None:
    """Fine-tune the net, and save its weights and windows.

    load: returns the net, and validation images and labels, after the options are checked. teach: returns the training
    data. command: the command line, for the provenance. said: a list, whose last line is printed after an interrupt;
    lines are added as soon as something is saved.
    """
    recipe = Recipe(args.epochs, args.batch, rate=args.rate, seed=args.seed, schedule="cosine", label_smoothing=0.0)
    if args.patience < 1:
        raise InputError(f"a patience of {args.patience} epochs", where="--patience", hint="1 or more")
    agree_on(args)
    if ranks.first():
        check_writable(args.out, "--out")
    config = BitConfig.load(args.bits)
    subject = load()
    net, example = subject.net, subject.example
    # Raises at once if the windows are another net's.
    hummingbird.simulate(net, config, args.protocol, args.parties, example=example)
    twin = hummingbird.simulate(net, config.windows, args.protocol, args.parties, clamp=args.clamp, example=example)
    lesson = teach()
    ranks.agree(
        lambda: {**subject.facts(), "--bits": config, "training data": fingerprint(lesson.images, lesson.labels)}
    )
    check_classes(net, lesson.images, lesson.labels)
    tuning = Tuning(subject, config, args)
    torch.manual_seed(args.seed)
    training = Training(twin, lesson.images, lesson.labels, lesson.dataset, recipe)
    try:
        tuning.run(training)
    except KeyboardInterrupt:
        if tuning.best.number and ranks.first():
            said.append(f"interrupted: {tuning.save(recipe, lesson.name, command)}")
        raise
    if ranks.first():
        saved = tuning.save(recipe, lesson.name, command)
        said.append(f"interrupted: {saved}")
        print(saved)
    if lesson.test is not None:
        for what, weights, bits in (
            ("before, exact", tuning.first.weights, None),
            ("before, with windows", tuning.first.weights, config),
            ("after, with windows", tuning.best.weights, config),
        ):
            print(f"test accuracy {what}: {100 * tuning.judge.accuracy(weights, bits, *lesson.test):.2f} %")


def main(args: argparse.Namespace, load: Callable[[], Subject], teach: Callable[[], Lesson], command: str) -> int:
    """Run the command `finetune`; return the exit code: 0 on success, 1 after an `error:` line, 130 after Ctrl-C.

    load: returns the net, and validation images and labels. teach: returns the training data. command: the command
    line, for the provenance.
    """
    said = ["interrupted: nothing was saved, no epoch was better than the net given"]
    return end_ranked(lambda: run(args, load, teach, command, said), lambda: said[-1])
