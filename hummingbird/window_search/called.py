"""Inputs of many calls as a search runs them: the net's one tensor, an image in each row, and its public inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph import calls, trace
from hummingbird.graph.example import is_private, is_public
from hummingbird.graph.example_shapes import alone, saved, settled
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.structure import flatten, rebuild
from hummingbird.window_search.images import gathered


class Called(NamedTuple):
    """A net that is traced without an example, its inputs (N, ...), public ones in order, and labels (N, ...)."""

    net: nn.Module
    images: Tensor
    public: list[Tensor]
    labels: Tensor | None


def called(net: nn.Module, images: Any, labels: Tensor | None, example: Any) -> Called:
    """The inputs of N calls; images: as `Study` takes them. example: as for `convert_model`, None: the images are.

    Raises InputError for inputs unlike the example's, ModelError as `settled`.
    """
    if alone(example):
        images, labels = gathered(images, labels)
        if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
            return Called(net, images, [], labels)  # which is refused
        return Called(settled(net, images[:1], custom=tuple(CUSTOM)), images, [], labels)
    if not isinstance(images, dict) and not (isinstance(images, (tuple, list)) and _tensors(images)):
        images, labels = gathered(images, labels)
        images = _in_place(example, images)
    net = saved(net, example, custom=tuple(CUSTOM))
    steps = trace(net, custom=tuple(CUSTOM))
    arguments, named = ((), images) if isinstance(images, dict) else (tuple(images), {})
    given = calls.inputs(steps, arguments, named, is_private)
    if steps[0].attrs["shape"][0] is not None:
        what = "forward() depends on how many images there are"
        raise ModelError([Problem("net", what, "write it for any number of images")])
    return Called(net, given.packed(), given.public, labels)


def _tensors(values: Any) -> bool:
    return all(isinstance(value, Tensor) or not is_private(value) for value in values) and len(values) > 1


def _in_place(example: Any, images: Tensor) -> Any:
    """The example's arguments with these images in the place of its one private tensor."""
    structure, leaves = flatten(example, is_private, is_public)
    if sum(map(is_private, leaves)) != 1:
        hint = "images=(x, y), or a dict by name: all inputs in the places that they have in the example"
        raise InputError("one tensor of images for a net of several private inputs", where="images", hint=hint)
    return rebuild(structure, iter([images if is_private(leaf) else leaf for leaf in leaves]))
