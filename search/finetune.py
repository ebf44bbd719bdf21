"""Fine-tune a net of `models` with its windows in place, as `python -m hummingbird finetune` does.

The training images of the published data sets are shifted and mirrored; the validation split judges the epochs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hummingbird.commands import finetune
from hummingbird.commands.finetune import Lesson
from hummingbird.commands.program import command_of
from hummingbird.commands.subject import Subject
from hummingbird.errors import InputError
from scripts.train.data import DATASETS, load
from search.options import add_net_arguments, subject_of

_EPILOG = """examples:
  windows that hurt the digits net, which holds no images out, so that epochs are judged by training images:
    python -m search.finetune --model digits --weights checkpoints/digits.pt --bits bits.json \\
        --dataset digits --split train --epochs 10 --test --out tuned.pt

  ResNet-18 on CIFAR-10, stored in half precision:
    python -m search.finetune --model resnet18 --weights resnet18.pt --bits 6-64.json --dataset cifar10 --data DATA \\
        --epochs 2 --rate 0.002 --half --test --out resnet18-6-64.pt
"""


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m search.finetune",
        description=finetune.HELP,
        epilog=_EPILOG + finetune.NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    finetune.add_arguments(made)
    made.add_argument("--test", action="store_true", help="print accuracies on the test images, before and after")
    add_net_arguments(made)
    return made


def judged(args: argparse.Namespace) -> Subject:
    """Load the net, and the images that judge the epochs of its training.

    Raises InputError if these are test images, and the errors of `subject_of`.
    """
    if args.split == "test":
        hint = "validation, or train where none are held out; --test measures the result on the test images"
        raise InputError("the test images must not choose the epoch", where="--split", hint=hint)
    return subject_of(args)


def lesson(args: argparse.Namespace) -> Lesson:
    """Load the training images of --dataset and, with --test, its test images."""
    images, labels = load(args.dataset, "train", args.data)
    test = load(args.dataset, "test", args.data) if args.test else None
    return Lesson(images, labels, DATASETS[args.dataset], args.dataset, test)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(words)
    command = command_of("search.finetune", words)
    return finetune.main(args, lambda: judged(args), lambda: lesson(args), command)


if __name__ == "__main__":
    sys.exit(main())
