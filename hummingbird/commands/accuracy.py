"""Predictions and accuracy of a classifier on images in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hummingbird import ranks
from hummingbird.errors import InputError
from hummingbird.simulation.simulate import FastSimulator
from hummingbird.window_search.answers import fitting


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 500) -> float:
    """Return the proportion, 0 to 1, of images (N, ...) whose largest logit is at their label, in labels (N,).

    The model computes in float32 on its own device. batch: images that it computes at once.
    """
    return int((predict(model, images, batch=batch) == labels).sum()) / len(labels)


def predict(model: nn.Module, images: Tensor, *, batch: int = 500) -> Tensor:
    """Return the indices of the largest logits, int64 (N,) on the CPU, for images (N, ...).

    batch: images that the model computes at once. Ranks divide the batches among them (hummingbird/ranks), and each
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
    """Return a function that ranks, which divide the batches among them, call with a batch's number before they run it.

    If the model is a simulation, it then draws for that batch the random numbers that a single process would draw
    (`FastSimulator.passes`); for any other model the function does nothing. image: any image, (1, ...).
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
