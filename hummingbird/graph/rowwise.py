"""Whether a net computes the images of a batch independently, so that parts of a batch can run separately.

The rules of `ops/batch_rules.py` follow the batch's dimension from step to step. If an operation has no rule, or its
rule cannot tell, the net is not rowwise.

Layouts are found for a batch of three images; for other batch sizes all values must have the same sizes, but for the
batch. This excludes a size that is three by coincidence, and values that depend on the number of images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hummingbird.errors import InputError
from hummingbird.graph.calls import on_meta
from hummingbird.graph.interpreter import run_all
from hummingbird.graph.ops.batch_rules import PROBE, BatchLayout, Mixed, Shape, Where
from hummingbird.graph.ops.vocabulary import OPERATIONS
from hummingbird.graph.properties import is_size
from hummingbird.graph.steps import Ref, Step, map_refs

_OTHERS = (1, 2, 5)  # other batch sizes


class _Known(NamedTuple):
    layout: Any
    value: Any


def rowwise(steps: Sequence[Step], shape: Sequence[int]) -> bool:
    """Whether it is proven that the net computes the images of a batch independently of each other.

    shape: of the net's input, with the batch first.
    """
    probed = _values(steps, shape, PROBE)
    others = {images: _values(steps, shape, images) for images in {*_OTHERS, shape[0]}}
    if probed is None:
        return False
    try:
        layouts = _layouts(steps, probed)
        for images, values in others.items():
            if values is None:
                return False
            for layout, value, probe in zip(layouts, values, probed, strict=True):
                _same(layout, value, probe, images)
    except Mixed:
        return False
    return True


def _values(steps: Sequence[Step], shape: Sequence[int], images: int) -> list[Any] | None:
    """Return every step's value for a batch of `images`, on the meta device; None if the net cannot take such a batch.

    shape: of the net's input; its first size is replaced by `images`.
    """
    try:
        return run_all(steps, *on_meta(steps, (images, *shape[1:])))
    except (InputError, RuntimeError, IndexError, ValueError, TypeError):
        return None


def _layouts(steps: Sequence[Step], values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for number, step in enumerate(steps):
        given = list(_tensors(map_refs(step.inputs, lambda ref: _Known(found[ref.index], values[ref.index]))))
        where, shapes = [known.layout for known in given], [tuple(known.value.shape) for known in given]
        found.append(_layout(step, where, shapes, values[number], found, values))
    return found


def _layout(
    step: Step, where: list[Where], shapes: list[Shape], value: Any, found: Sequence[Any], values: Sequence[Any]
) -> Any:
    if step.op == "input":
        return BatchLayout(0)
    if step.op == "public":
        return BatchLayout(0) if step.attrs["shape"][:1] == (None,) else None
    if not isinstance(value, (Tensor, tuple, list)) or is_size(step):
        return None
    if step.op == "getitem" and isinstance(values[step.inputs[0].index], (tuple, list)):
        return found[step.inputs[0].index][step.attrs["index"]]
    if step.op == "output":
        if any(layout != BatchLayout(0) for layout in where):
            raise Mixed(step.name)
        return where[0]
    if step.op == "expand" and where == [None]:
        return _repeated(step, values)
    if all(layout is None for layout in where):
        return [None] * len(value) if isinstance(value, (tuple, list)) else None
    rule = OPERATIONS[step.op].batch
    if rule is None:
        raise Mixed(step.name)
    parts = value if isinstance(value, (tuple, list)) else [value]
    layouts = [rule(step.attrs, where, shapes, tuple(part.shape)) for part in parts]
    return layouts if isinstance(value, (tuple, list)) else layouts[0]


def _repeated(step: Step, values: Sequence[Any]) -> Where:
    """Return where the batch is in the result of a step that expands a constant, a `BatchLayout`.

    It is the dimension whose new size is the batch's; None is returned if there is no such dimension. values: each
    step's value for the batch of 3 images with which the net is examined.
    """
    read = [values[size.index] if isinstance(size, Ref) else 0 for size in step.inputs[1:]]
    sizes = [size for part in read for size in (part if isinstance(part, tuple) else (part,))]
    return BatchLayout(sizes.index(PROBE)) if PROBE in sizes else None


def _tensors(inputs: Any) -> Iterator[_Known]:
    """Yield the tensors among a step's inputs, each with the position of the batch in it (`_Known`).

    inputs: `_Known` pairs, also in nested tuples; those whose value is no tensor are left out.
    """
    if isinstance(inputs, _Known):
        if isinstance(inputs.value, Tensor):
            yield inputs
    elif isinstance(inputs, tuple):
        for item in inputs:
            yield from _tensors(item)


def _same(layout: Any, value: Any, probe: Any, images: int) -> None:
    """Raise Mixed unless a step's value grows with the batch in the batch's dimension alone.

    value: the step's value for a batch of `images` images. probe: its value for a batch of three images. layout: where
    the value has the batch, a `BatchLayout`, or None; a list of these for a tuple of values.
    """
    if isinstance(value, Tensor):
        sizes = list(probe.shape)
        if layout is not None:
            sizes[layout.axis] = sizes[layout.axis] // PROBE * images
        if list(value.shape) != sizes:
            raise Mixed
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size) and isinstance(layout, list):
        if len(value) != len(probe):
            raise Mixed
        for part in zip(layout, value, probe, strict=True):
            _same(*part, images)
    else:
        numbers, before = (list(item) if isinstance(item, (tuple, list)) else [item] for item in (value, probe))
        proportional = [now * PROBE == then * images or now == then for now, then in zip(numbers, before, strict=True)]
        if not all(proportional):
            raise Mixed
