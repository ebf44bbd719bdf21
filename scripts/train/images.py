"""Train one of the networks of `models` and save its weights; hummingbird/commands/training.py has the recipe.

After every epoch the state of the training goes to OUT.state, so that it can be stopped and resumed: the weights are
those of a run that was not disturbed, on the same machine with the same number of threads.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hummingbird import ranks
from hummingbird.commands.output import check_writable, write_together
from hummingbird.commands.program import NOTES, agree_on, end_ranked
from hummingbird.commands.sources import load_weights, place, read_weights, weights_file
from hummingbird.commands.subject import evaluate
from hummingbird.commands.training import NOTES as DATA_PARALLEL
from hummingbird.commands.training import RATES, SCHEDULES, Recipe, Training
from hummingbird.errors import InputError
from hummingbird.progress import progress_line
from hummingbird.window_search.images import fingerprint
from models import MODELS, get_model, load_checkpoint
from scripts.train.data import DATASETS, load

_EPILOG = """examples:
  the digits checkpoint of this repository (ten seconds on one CPU core, no download):
    python -m scripts.train.images --model digits --dataset digits --epochs 60 --out checkpoints/digits.pt

  ResNet-18 on CIFAR-10 from a data folder, without the pooling after the stem, stored in half precision:
    python -m scripts.train.images --model resnet18 --option pool=none --dataset cifar10 --data DATA \\
        --epochs 30 --half --out resnet18.pt

  a trained net made better: the mean of the weights after each of 20 more epochs at a constant rate:
    python -m scripts.train.images --model resnet18 --dataset cifar10 --data DATA --start resnet18.pt --schedule
    constant \\
        --rate 0.03 --epochs 20 --average --half --out averaged.pt

  a trained net made sparse: nine of ten weights of each layer become zero:
    python -m scripts.train.images --model impala-cifar10 --dataset cifar10 --start impala-cifar10.pt --rate 0.05 \\
        --epochs 12 --sparsity 0.9 --half --out sparse.pt

The weights go to --out as a state dict; models.load_checkpoint reads them back. A training that was interrupted goes on
with the same command and --resume. The data folder is described in scripts/train/data.py; HUMMINGBIRD_DATA gives it
once for all programs.
"""
_FORMAT = "hummingbird-training"


WEIGHTS_HINT = "python -m scripts.train.images makes one"


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    """--model, --option, --dataset and --data; for a parser or a group of its options."""
    parser.add_argument("--model", required=True, choices=tuple(MODELS), help="the network")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="option of the network, such as pool=none or activation=relu; may be repeated",
    )
    parser.add_argument("--dataset", required=True, choices=tuple(DATASETS), help="the images")
    parser.add_argument("--data", metavar="FOLDER", help="data folder (default: HUMMINGBIRD_DATA, else a download)")


def build(options: argparse.Namespace) -> nn.Module:
    """The net with fresh weights, of the arguments of `add_model_arguments`. Raises the errors of `net_for`."""
    return net_for(options.model, options.dataset, **dict(options.option))


def net_for(model: str, name: str, **options: Any) -> nn.Module:
    """Build a net with fresh weights for the images of a data set.

    name: of the data set. options: of the net. Raises InputError for images that it does not take, and for options
    that it does not have.
    """
    dataset = DATASETS[name]
    fitted = MODELS[model].options_for(dataset.shape)
    if fitted is None:
        fitting = [other for other, spec in MODELS.items() if spec.options_for(dataset.shape) is not None]
        what = f"{model} takes {MODELS[model].input_shape} images, {name} has {dataset.shape}"
        raise InputError(what, where="--model", hint=f"for {name} take {', '.join(fitting)}")
    try:
        return get_model(model, dataset.classes, **{**fitted, **options})
    except (TypeError, ValueError) as problem:
        raise InputError(str(problem), where="--option") from problem


def _key_value(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, int(value) if value.isdigit() else value


def train(training: Training, state: Path, command: dict[str, Any]) -> None:
    """Train to the last epoch of the recipe, keeping the state of every other one, and of this `command`, in a file."""
    recipe = training.recipe
    done, total = training.epoch * training.steps, recipe.epochs * training.steps
    with progress_line(initial=done, total=total, desc=f"{recipe.epochs} epochs", unit="step") as progress:
        while training.epoch < recipe.epochs:
            loss = training.run_epoch(progress.update)
            progress.set_postfix(loss=f"{loss:.3f}")
            file = io.BytesIO()
            torch.save({"format": _FORMAT, "command": command, **training.state()}, file)
            if ranks.first():
                write_together({state: file.getvalue()})
    training.finish()


def read_state(path: Path, command: dict[str, Any]) -> dict[str, Any]:
    """The state that `train` has kept at rank 0, for all; InputError if there is none, or that of another command."""

    def content() -> bytes:
        if not path.is_file():
            hint = "leave out --resume: the training was not begun, or its first epoch not ended, or it is done"
            raise InputError("there is no training to resume", where=str(path), hint=hint)
        return path.read_bytes()

    kept = ranks.told(content)
    try:
        state = torch.load(io.BytesIO(kept), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        state = None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        hint = "remove it and start again without --resume"
        raise InputError("not the state of a training", where=str(path), hint=hint)
    theirs = state["command"]
    different = [
        f"{key} was {theirs.get(key)}, is {command.get(key)}"
        for key in {**theirs, **command}
        if theirs.get(key) != command.get(key)
    ]
    if different:
        hint = "give the same options as before, or another --out"
        raise InputError(f"the state of another training: {'; '.join(different)}", where=str(path), hint=hint)
    return state


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m scripts.train.images",
        description="Train a network on an image data set, print its test accuracy and save its weights.",
        epilog=_EPILOG + NOTES + DATA_PARALLEL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(made)
    made.add_argument("--out", required=True, type=Path, metavar="FILE", help="where to write the weights")
    made.add_argument("--start", type=Path, metavar="FILE", help="weights to start from (default: random ones)")
    made.add_argument("--epochs", type=int, default=30, help="passes over the training images (default: %(default)s)")
    made.add_argument("--batch", type=int, default=128, help="images per step (default: %(default)s)")
    made.add_argument("--optimizer", choices=tuple(RATES), default="sgd", help="default: %(default)s")
    made.add_argument("--schedule", choices=SCHEDULES, default="onecycle", help="default: %(default)s")
    made.add_argument("--rate", type=float, help="largest learning rate (default: 0.1 for sgd, 0.002 for adamw)")
    made.add_argument("--average", action="store_true", help="end with the mean of the weights after every epoch")
    made.add_argument("--weight-decay", type=float, default=5e-4, help="default: %(default)s")
    made.add_argument("--label-smoothing", type=float, default=0.1, help="default: %(default)s")
    made.add_argument("--cutmix", type=float, default=0.0, help="share of batches mixed by CutMix (default: 0)")
    text = "part of each layer's weights to prune while it trains, such as 0.9 (default: 0)"
    made.add_argument("--sparsity", type=float, default=0.0, help=text)
    made.add_argument(
        "--amp",
        choices=("auto", "on", "off"),
        default="auto",
        help="bfloat16 and channels-last: auto is on for a GPU and for three-channel images",
    )
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    made.add_argument("--half", action="store_true", help="store float16 weights, half the size")
    made.add_argument("--resume", action="store_true", help="go on from the last whole epoch of an interrupted run")
    made.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    return made


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe on the command line."""
    return Recipe(
        options.epochs,
        options.batch,
        options.optimizer,
        options.schedule,
        RATES[options.optimizer] if options.rate is None else options.rate,
        options.weight_decay,
        options.label_smoothing,
        options.amp,
        options.seed,
        options.average,
        options.cutmix,
        options.sparsity,
    )


def state_of(out: Path) -> Path:
    """Where the state of a training to `out` is kept."""
    return out.with_name(f"{out.name}.state")


def interrupted(out: Path) -> str:
    """The hint after Ctrl-C in a training to `out`."""
    kept = state_of(out).is_file()
    return f"interrupted: {'go on with the same command and --resume' if kept else 'nothing was saved yet'}"


def run(options: argparse.Namespace) -> None:
    """Train, save, and report the accuracy of the file that was saved."""
    recipe = recipe_of(options)
    torch.manual_seed(options.seed)
    model = build(options)
    agree_on(options)
    state = state_of(options.out)
    if ranks.first():
        check_writable(options.out, "--out")
        if state.exists() and not options.resume:
            hint = "go on with it by --resume, or remove it"
            raise InputError("there is the state of an interrupted training", where=str(state), hint=hint)
    chosen = {"model": options.model, "options": dict(options.option), "dataset": options.dataset}
    command = {**chosen, **asdict(recipe), "device": options.device, "start": str(options.start)}
    kept = read_state(state, command) if options.resume else None
    if options.start is not None:
        read_weights(model, options.start, "--start", WEIGHTS_HINT)
    place(model, options.device)
    train_images, train_labels = load(options.dataset, "train", options.data)
    test_images, test_labels = load(options.dataset, "test", options.data)
    ranks.agree(
        lambda: {
            "weights": fingerprint(*model.state_dict().values()),
            "data": fingerprint(train_images, train_labels, test_images, test_labels),
        }
    )
    training = Training(model, train_images, train_labels, DATASETS[options.dataset], recipe)
    if kept is not None:
        training.restore(kept)
    train(training, state, command)
    content = weights_file(model, torch.float16 if options.half else torch.float32)
    if ranks.first():
        write_together({options.out: content})
        state.unlink(missing_ok=True)
        load_checkpoint(options.out, model)
    else:
        load_weights(content, model)
    accuracy = evaluate(model, test_images, test_labels)
    if not ranks.first():
        return
    print(f"test accuracy {100 * accuracy:.2f} % of {len(test_labels)} images")
    print(f"saved {options.out} sha256 {hashlib.sha256(options.out.read_bytes()).hexdigest()}")


def main(arguments: list[str] | None = None) -> int:
    """Run the program; 0 on success, 1 after an `error:` line, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    return end_ranked(lambda: run(options), lambda: interrupted(options.out))


if __name__ == "__main__":
    sys.exit(main())
