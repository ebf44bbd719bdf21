"""Nets whose forward() asks for shapes: the images at hand serve as the example.

A net that can be traced without an example is traced without, so that windows found for it earlier still fit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hummingbird.errors import InputError, ModelError, Problem
from hummingbird.graph.calls import packed_shape
from hummingbird.graph.example import given
from hummingbird.graph.saved import SavedNet
from hummingbird.graph.steps import Step, fingerprint
from hummingbird.graph.symbols import SHAPE_TEST
from hummingbird.graph.trace import problems, trace, unfolded
from hummingbird.graph.unwrap import unwrapped


def example_of(net: nn.Module, images: Tensor, *, custom: Collection[type[nn.Module]] = ()) -> Tensor | None:
    """Return `images` if the net can be traced only with an example, and None if it can be traced without.

    images: (B, ...); only the shape matters. custom: module types to keep whole. Raises ModelError if the net cannot be
    traced with the images either.
    """
    if not problems(net, custom=custom):
        return None
    if found := problems(net, custom=custom, example=images):
        raise ModelError(found, hint="replace these layers, or teach them with register_converter")
    return images


def settled(
    net: nn.Module,
    images: Tensor,
    *,
    any_batch: bool = True,
    custom: Collection[type[nn.Module]] = (),
    secret: bool = False,
) -> nn.Module:
    """Return a net that can be traced without an example: `net` itself, or the `SavedNet` of its trace with `images`.

    any_batch: whether to raise ModelError for a net that takes batches of len(images) only. custom, secret: arguments
    of `trace`. Raises the errors of `example_of` and of `saved`.
    """
    example = example_of(net, images, custom=custom)
    if example is None:
        return net
    found = saved(net, example, custom=custom, secret=secret)
    if any_batch:
        _check_batch(found.steps, images)
    return found


def saved(net: nn.Module, example: Any, *, custom: Collection[type[nn.Module]] = (), secret: bool = False) -> SavedNet:
    """Trace a net with this example, and return its steps as a `SavedNet`, which can be traced without an example.

    Arguments and errors are those of `trace`; also raises ModelError for a layer of register_converter.
    """
    steps = unfolded(net, custom=custom, example=example, secret=secret)
    if own := [step.name for step in steps if step.op == "custom"]:
        hint = "take the test of shapes out of its forward()"
        what = "a layer of register_converter in a net that asks for shapes"
        raise ModelError([Problem(name, what, hint) for name in own])
    return SavedNet(steps)


def batch_of(net: nn.Module, example: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape of the tensor into which an example's private inputs are packed, and all inputs as text.

    The text has the name and shape of each input, as in "x (2, 3, 8, 8), mask (2, 5)". Without private inputs the shape
    is (batch, 0). Raises InputError for an example that the net does not take.
    """
    call = given(unwrapped(net), example)
    words = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(call.names, call.leaves, strict=True))
    private = [tuple(x.shape) for x in call.private]
    return packed_shape(private) if private else (call.batch, 0), words


def alone(example: Any) -> bool:
    """Whether an example says no more than a shape: it is None, or a single tensor.

    A net that can be traced without an example has the same steps when it is traced with such an example.
    """
    return example is None or isinstance(example, Tensor) or (isinstance(example, (tuple, list)) and len(example) == 1)


def fingerprints(
    net: nn.Module, steps: Sequence[Step], example: Any, *, custom: Collection[type[nn.Module]] = ()
) -> list[str]:
    """List the fingerprints by which a file of windows may name this net.

    steps: the net, traced with `example`. custom: module types to keep whole. The list has the fingerprint of these
    steps. If the example gives no more than a shape (`alone`), and the net can be traced without one, the fingerprint
    of that trace follows, as windows found without an example fit too.
    """
    found = [fingerprint(steps)]
    if example is not None and alone(example) and not problems(net, custom=custom):
        found.append(fingerprint(trace(net, custom=custom)))
    return found


def traced(net: nn.Module, images: Tensor, *, elementwise: bool = False, secret: bool = False) -> list[Step]:
    """Trace a net and return its steps; `images` are the example if the net cannot be traced without one.

    elementwise, secret: as for `trace`: whether to accept all of torch's elementwise functions, and whether to refuse
        numbers that forward() reads from weights. Raises as `trace`, and ModelError for a net that can take the batch
        size of these images only.
    """
    try:
        return trace(net, elementwise=elementwise, secret=secret)
    except ModelError as error:
        asks = any(problem.hint == SHAPE_TEST for problem in error.problems)  # then the second error says more
        try:
            steps = trace(net, elementwise=elementwise, secret=secret, example=images)
        except (InputError, ModelError) as again:
            raise again if asks and isinstance(again, ModelError) else error from None
    _check_batch(steps, images)
    return [replace(steps[0], attrs={}), *steps[1:]]  # the caller decides on the input's shape


def _check_batch(steps: Sequence[Step], images: Tensor) -> None:
    """Raise ModelError if a traced net takes batches of one size only.

    steps: the net's steps. images: the batch with which it was traced; the error names its size.
    """
    if steps[0].attrs["shape"][0] is not None:
        what = f"forward() depends on how many images there are, and was traced with {len(images)}"
        raise ModelError([Problem("net", what, "write it for any number of images")])
