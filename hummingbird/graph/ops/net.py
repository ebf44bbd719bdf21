"""The input and output steps of a net, modules that are kept whole, and layers that do nothing at inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird.errors import InputError
from hummingbird.graph.build import StepBuilder, Unsupported
from hummingbird.graph.ops import batch_rules as batch
from hummingbird.graph.ops import dimension_rules as ranks
from hummingbird.graph.ops.op import Attrs, Op, Spelling
from hummingbird.graph.steps import Ref, Step


def dropout(b: StepBuilder, input: Any, p: float = 0.5, training: Any = True, inplace: bool = False) -> Ref:
    if training:
        raise Unsupported("dropout that stays active at inference", "pass training=self.training")
    return b.tensor(input)


def identity(b: StepBuilder, input: Any, memory_format: Any = None) -> Ref:
    return b.tensor(input)


def _input(a: Attrs, x: Tensor) -> Tensor:
    expected = a.get("shape")
    if expected is not None:
        fixed = expected[0] is not None
        if x.dim() != len(expected) or tuple(x.shape)[not fixed :] != expected[not fixed :]:
            hint = "convert the net again, with example= of this shape" + (
                ": its forward() depends on the batch's size" if fixed else ""
            )
            raise InputError(f"expected an input of shape {_shown(expected)}, got {tuple(x.shape)}", hint=hint)
    if a.get("rank") not in (None, x.dim()):
        raise InputError(
            f"this net was folded for inputs of rank {a['rank']}, (batch, features); got shape {tuple(x.shape)}",
            hint="a batch norm over rows of a larger tensor cannot be folded into the linear layer before it: "
            "start the net with a layer that fixes the rank (flatten, conv)",
        )
    return x


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("batch" if size is None else str(size) for size in shape) + ")"


def _pack(a: Attrs, x: Sequence[Tensor]) -> Tensor:
    """Return several results x of a net packed into one tensor (batch, values). a: the step's attributes."""
    batch = {part.shape[0] if part.dim() else None for part in x}
    if len(batch) != 1 or None in batch:
        what = f"the net returns tensors of shapes {', '.join(str(tuple(part.shape)) for part in x)}"
        raise InputError(what, hint="return tensors whose first dimension is the batch")
    return torch.cat([part.reshape(len(part), -1) for part in x], 1)


def _check_input(step: Step) -> None:
    a = step.attrs
    if len({"names" in a, "shapes" in a, "call" in a, "shape" in a}) > 1:
        raise ValueError("an input of a call has a shape, and names, shapes and a structure of its parts")


_NOTHING = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

OPS = [
    Op(
        "input",
        _input,
        ranks.of_input,
        inputs="",
        attrs="rank?=positive shape?=shape names?=words shapes?=shapes call?=structure",
        check=_check_input,
    ),
    Op("output", lambda a, x: x, ranks.same, attrs="structure?=structure", integers="kept"),
    Op("pack", _pack, lambda a, given: 2, inputs="xs", batch=batch.packed),
    Op("custom", lambda a, *x: a["module"](*x), ranks.unknown, attrs=None),
]
SPELLINGS = [
    Spelling(identity, "contiguous clone detach", dict.fromkeys(_NOTHING, "")),
    Spelling(dropout, "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"),
]
