"""The subject of a command: a net, images and labels, and options of the simulated protocol; the net's accuracy.

Accuracy is that of a classifier on images in memory. Ranks (hummingbird/ranks.py) divide the images among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hummingbird import ranks
from hummingbird.commands.program import without_folders
from hummingbird.commands.sources import (
    add_images_argument,
    add_model_arguments,
    default_device,
    images_of,
    net_of,
    place,
)
from hummingbird.errors import InputError
from hummingbird.graph.example_shapes import example_of, settled
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.mpc.protocols.registry import PROTOCOLS
from hummingbird.simulation.simulate import FastSimulator
from hummingbird.window_search.answers import fitting
from hummingbird.window_search.images import fingerprint

# Predictions and accuracy --------------------------------------------------------------------------------------------


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 500) -> float:
    """Return a model's accuracy, 0 to 1: for which proportion of images (N, ...) the largest logit is at the label.

    labels: classes, (N,). The model computes in float32 on its own device. batch: how many images it computes at once.
    """
    return int((predict(model, images, batch=batch) == labels).sum()) / len(labels)


def predict(model: nn.Module, images: Tensor, *, batch: int = 500) -> Tensor:
    """Return the indices of the largest logits, int64 (N,) on the CPU, for images (N, ...).

    batch: images that the model computes at once. Ranks divide the batches among them (hummingbird/ranks.py), and each
    gets all predictions. Leaves the model in eval mode. Raises InputError for a model that does not return one row of
    logits for each image.
    """
    device, parts = _device(model, images), images.split(batch)
    model.eval()
    go_to = _passes(model, images[:1].to(device))

    def run(number: int) -> Tensor:
        go_to(number)
        return _logits(model, parts[number].to(device)).argmax(1).cpu()

    found = ranks.joined(run, [len(part) for part in parts], torch.empty(0, dtype=torch.int64))
    go_to(len(parts))
    return found


@torch.inference_mode()
def _passes(model: nn.Module, image: Tensor) -> Callable[[int], None]:
    """Return a function that a rank calls with a batch's number before it runs this batch.

    Ranks divide the batches among them. If the model is a fast simulation, the function makes it draw for the batch the
    random numbers that a single process would draw; for any other model it does nothing. image: any image, (1, ...).
    """
    return model.passes(image) if isinstance(model, FastSimulator) else lambda number: None


def check_classes(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Raise InputError if labels (N,) of images (N, ...) are no classes of the model. Leaves the model in eval mode."""
    logits = _logits(model.eval(), images[:1].to(_device(model, images)))
    fitting([logits.shape[1:]], len(images), labels)


def _device(model: nn.Module, images: Tensor) -> torch.device:
    return next((weight.device for weight in model.parameters()), images.device)


@torch.inference_mode()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = model(x)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        what = f"the net gives {got} for {len(x)} images, expected ({len(x)}, classes)"
        hint = "use a classifier with two logits or more for each image; prepare and find-bits take other nets"
        raise InputError(what, where="output", hint=hint)
    return logits


# The subject ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A net in eval mode, and the images on which a command measures it.

    images: float32 (N, ...). labels: (N, ...) or None. names: the words of the command line that name the net ("model")
    and the images ("dataset"), for figures and provenance. source: the origin of the images, for sentences.
    """

    net: nn.Module
    images: Tensor
    labels: Tensor | None
    names: dict[str, str]
    source: str

    def facts(self) -> dict[str, str]:
        """Return fingerprints, by name, of the weights, images and labels, which must be the same at all ranks."""
        labels = () if self.labels is None else (self.labels,)
        return {"weights": fingerprint(*self.net.state_dict().values()), "data": fingerprint(self.images, *labels)}

    @property
    def example(self) -> Tensor | None:
        """One of the images, (1, ...), if the net can be traced only with an example of its input; else None.

        Raises ModelError if the net cannot be traced at all.
        """
        return example_of(self.net, self.images[:1], custom=tuple(CUSTOM))

    def settled(self) -> Subject:
        """Return a copy of the subject whose net can be traced without an example of its input.

        Numbers that forward() reads from shapes become constants, found with the first image. Raises errors of
        `graph.example_shapes.settled`.
        """
        return replace(self, net=settled(self.net, self.images[:1], custom=tuple(CUSTOM)))

    @property
    def labelled(self) -> Tensor:
        """The labels, which are classes (N,). Raises InputError without labels."""
        return labels_of(self.labels, self.source)


def labels_of(labels: Tensor | None, where: str) -> Tensor:
    """Return the labels if they are classes (N,); otherwise, and for None, raise InputError.

    where: their origin, for errors.
    """
    if labels is None:
        raise InputError("accuracy needs labels", where=where, hint="return a pair, (images, labels)")
    if labels.is_floating_point() or labels.dim() != 1:
        what = f"expected labels, whole numbers (N,), got {labels.dtype} {tuple(labels.shape)}"
        raise InputError(what, where=where, hint="one label for each image: its class, from 0")
    return labels


def add_subject_arguments(parser: argparse.ArgumentParser, data: str, what: str) -> None:
    """Add the options from --model to --seed, which `subject_of` reads.

    data: the name of the option for the images, such as "--data". what: a description of the images, for the help.
    """
    group = parser.add_argument_group("net and images")
    add_model_arguments(group)
    add_images_argument(group, data, what)
    group.add_argument("--samples", type=int, metavar="N", help="the first N of these images (default: all)")
    add_inference_arguments(parser)


def add_inference_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options --device, --protocol, --parties and --seed, which describe the simulated private inference."""
    group = parser.add_argument_group("private inference, simulated")
    group.add_argument("--device", default=default_device(), help="default: %(default)s")
    group.add_argument("--protocol", choices=tuple(PROTOCOLS), default="masked", help="default: %(default)s")
    group.add_argument("--parties", type=int, default=2, metavar="N", help="default: %(default)s")
    group.add_argument("--seed", type=int, default=0, help="seed of the windows' randomness (default: %(default)s)")


def check_numbers(args: argparse.Namespace) -> None:
    """Raise InputError if --samples, --parties or --seed is out of range."""
    if args.samples is not None and args.samples < 1:
        raise InputError(f"{args.samples} images", where="--samples", hint="1 or more")
    if args.parties < 2 or not 0 <= args.seed < 2**63:
        hint = "2 parties or more, and a seed from 0 to 2^63 - 1"
        raise InputError(f"--parties {args.parties} --seed {args.seed}", where="private inference", hint=hint)


def subject_of(args: argparse.Namespace, data: str = "--data") -> Subject:
    """Return the net, on the device of --device, with the first --samples images and their labels.

    data: the name of the option for the images. Raises errors of `net_of` and `images_of`, and InputError for numbers
    out of range.
    """
    check_numbers(args)
    net = place(net_of(args), args.device)
    words = getattr(args, data.removeprefix("--"))
    images, labels = images_of(words, data)
    names = {"model": " ".join(without_folders(args.model)), "dataset": " ".join(without_folders(words))}
    labels = None if labels is None else labels[: args.samples]
    return Subject(net, images[: args.samples], labels, names, names["dataset"])
