"""A net of `models` as the options of a program name it, or one error."""

from __future__ import annotations

import argparse

from torch import nn

from hummingbird.errors import InputError
from models import MODELS, get_model
from scripts.train.data import DATASETS

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
    """The net with fresh weights. InputError for images that it does not take, and for options that it has not."""
    dataset, spec = DATASETS[options.dataset], MODELS[options.model]
    if spec.input_shape != dataset.shape:
        fitting = [name for name, other in MODELS.items() if other.input_shape == dataset.shape]
        what = f"{options.model} takes {spec.input_shape} images, {options.dataset} has {dataset.shape}"
        raise InputError(what, where="--model", hint=f"for {options.dataset} take {', '.join(fitting)}")
    try:
        return get_model(options.model, dataset.classes, **dict(options.option))
    except (TypeError, ValueError) as problem:
        raise InputError(str(problem), where="--option") from problem


def _key_value(text: str) -> tuple[str, str | int]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, int(value) if value.isdigit() else value
