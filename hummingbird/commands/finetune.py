"""`finetune`: a few epochs of training with a net's windows in place, and weights and windows saved as a pair.

--clamp cuts what is compared to the window, in training only: the net then never sees wrong signs, which private
inference still has where values leave the window. Validation images judge the epochs; test images choose nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hummingbird
from hummingbird import ranks
from hummingbird.bits import BitConfig
from hummingbird.commands.accuracy import check_classes
from hummingbird.commands.data_parallel import NOTES as DATA_PARALLEL
from hummingbird.commands.files import check_writable
from hummingbird.commands.program import add_command, command_of, without_folders
from hummingbird.commands.ranked import NOTES as RANKS
from hummingbird.commands.ranked import agree_on, end_ranked
from hummingbird.commands.sources import add_images_argument, images_of
from hummingbird.commands.subject import Subject, add_subject_arguments, labels_of, subject_of
from hummingbird.commands.training import Dataset, Recipe, Training
from hummingbird.commands.tuning import Tuning
from hummingbird.errors import InputError
from hummingbird.window_search.images import fingerprint

HELP = "Train a net for a few epochs with its windows in place, and save weights and windows together."
_EPILOG = """example, with my_net.py and my_data.py in the current folder:
    python -m hummingbird finetune --model my_net:net --weights net.pt --bits bits.json --data my_data:images train \\
        --validation my_data:images validation --test my_data:images test --epochs 4 --out tuned.pt

my_net.net() returns the net, my_data.images("train") a pair of images (N, ...) and labels (N,); a data set or a
DataLoader will do. Training images are taken as they are, not moved or mirrored.
"""
NOTES = (
    """
A rate that is too large shows in the first epoch, whose accuracy is then below that of epoch 0, the net as it came.

--out X.pt writes X.pt and X.bits.json: the same windows, and in `provenance` what they were trained with, the sha256 of
X.pt included. Ctrl-C saves the best epoch so far.
"""
    + RANKS
    + DATA_PARALLEL
)


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    sub = add_command(commands, "finetune", HELP, HELP, _EPILOG + NOTES)
    add_arguments(sub)
    add_images_argument(sub, "--data", "training images, and their labels")
    add_images_argument(
        sub, "--test", "images to print accuracies on, before and after, and their labels", required=False
    )
    add_subject_arguments(
        sub, "--validation", "images that judge the epochs, none of them in training, and their labels"
    )
    sub.set_defaults(run=_run_command)


def _run_command(args: argparse.Namespace) -> int:
    command = command_of("hummingbird", args.words)
    return main(args, lambda: subject_of(args, "--validation"), lambda: lesson_of(args), command)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options but those of the net and its images."""
    parser.add_argument("--bits", required=True, type=Path, metavar="FILE", help="the windows")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights")
    parser.add_argument("--half", action="store_true", help="store float16 weights, half the size")
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=4, help="passes over the training images (default: %(default)s)")
    group.add_argument("--rate", type=float, default=0.02, help="largest learning rate (default: %(default)s)")
    group.add_argument("--batch", type=int, default=128, help="images per step (default: %(default)s)")
    group.add_argument("--clamp", action="store_true", help="cut what is compared to the window while training")
    group.add_argument(
        "--patience", type=int, default=2, help="stop after so many epochs without a better one (default: %(default)s)"
    )


@dataclass(frozen=True)
class Lesson:
    """Training images (N, ...) and labels (N,), the facts of their data set, and test images and labels, or None."""

    images: Tensor
    labels: Tensor
    dataset: Dataset
    name: str
    test: tuple[Tensor, Tensor] | None


def lesson_of(args: argparse.Namespace) -> Lesson:
    """The images of --data, which are not moved, and of --test; errors of `images_of`, InputError without labels."""
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
    """Fine-tune and save.

    load: gives the net, and the images and labels that judge it, once the options are checked; teach: what it learns
    from. said: gets what became of it, should it be interrupted.
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
    # Says at once if the windows are another net's.
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
    """`run`, to its exit code: 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    said = ["interrupted: nothing was saved, no epoch was better than the net given"]
    return end_ranked(lambda: run(args, load, teach, command, said), lambda: said[-1])
