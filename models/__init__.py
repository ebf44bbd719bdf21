"""Plain torch networks to try private inference on, by name; the nets know nothing of hummingbird.

net = get_model("resnet18", 10)                      # (B, 3, 32, 32) -> (B, 10)
net = get_model("resnet18", 200, image_size=64)      # (B, 3, 64, 64) -> (B, 200)
net = load_checkpoint("checkpoints/digits.pt", get_model("digits", 10)).eval()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from hummingbird.commands.sources import load_checkpoint
from models.cryptonets import cryptonets
from models.digits import digits
from models.impala import impala_cifar10, impala_mnist
from models.mobilenet import mobilenetv2
from models.one_square import one_square
from models.resnet import resnet18, resnet32, resnet34, resnet50
from models.vgg import vgg16
from models.vit import vit

__all__ = ["MODELS", "ModelSpec", "get_model", "load_checkpoint", "trained"]


class ModelSpec(NamedTuple):
    """A net by name.

    build: the function that builds it. input_shape: (C, H, W) of its images if it is built without options. sides: the
    other H = W that its option `image_size` takes.
    """

    build: Callable[..., nn.Module]
    input_shape: tuple[int, int, int]
    sides: tuple[int, ...] = ()

    def options_for(self, shape: tuple[int, ...]) -> dict[str, int] | None:
        """Return the options with which the net takes images of a shape (C, H, W); None if it takes no such images."""
        if shape == self.input_shape:
            return {}
        side = shape[-1]
        return {"image_size": side} if side in self.sides and shape == (self.input_shape[0], side, side) else None


MODELS: dict[str, ModelSpec] = {
    "digits": ModelSpec(digits, (1, 8, 8)),
    "cryptonets": ModelSpec(cryptonets, (1, 28, 28)),
    "resnet18": ModelSpec(resnet18, (3, 32, 32), (64,)),
    "resnet32": ModelSpec(resnet32, (3, 32, 32)),
    "resnet34": ModelSpec(resnet34, (3, 32, 32), (64,)),
    "resnet50": ModelSpec(resnet50, (3, 32, 32), (64,)),
    "vgg16": ModelSpec(vgg16, (3, 32, 32)),
    "impala-mnist": ModelSpec(impala_mnist, (1, 28, 28)),
    "impala-cifar10": ModelSpec(impala_cifar10, (3, 32, 32)),
    "mobilenetv2": ModelSpec(mobilenetv2, (3, 96, 96)),
    "vit": ModelSpec(vit, (3, 32, 32)),
    "one-square": ModelSpec(one_square, (1, 28, 28)),
}


def get_model(name: str, num_classes: int, **options: Any) -> nn.Module:
    """Build the net `name` with fresh weights; `options` are the keyword arguments of its builder.

    Raises ValueError for an unknown name or option value, TypeError for an option which that net does not have.
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}\nhint: the models are {', '.join(MODELS)}")
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; a classifier needs at least 1")
    return MODELS[name].build(num_classes, **options)


def trained(name: str, num_classes: int, path: str, **options: Any) -> nn.Module:
    """Build a net as `get_model`, with the weights in the file `path`, for inference.

    Raises ValueError for a file that is missing or does not fit.

    trained("cryptonets", 10, "checkpoints/cryptonets-relu.pt", activation="relu")
    """
    try:
        return load_checkpoint(path, get_model(name, num_classes, **options)).eval()
    except OSError as problem:
        raise ValueError(f"cannot read {path}: {problem.strerror}") from problem
