"""Ranges of the rows of softmaxes and norms on some inputs, for `BitConfig.rows`: their private forms then cost less.

For a row of a softmax: its values less their mean, and the mean of e^(x - mean). For a row of a norm: its variance plus
eps. The ranges are widened, values by `headroom` and variances by its square, as the result for a row beyond its range
is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hummingbird import graph
from hummingbird.bits import Rows
from hummingbird.errors import ConfigError, InputError
from hummingbird.graph import OPS, Step
from hummingbird.graph.example_shapes import settled
from hummingbird.graph.ops.norms import rows as rows_of
from hummingbird.mpc.plan.builders import CUSTOM
from hummingbird.simulation.folded import FoldedNet
from hummingbird.simulation.observe import check_images

HEADROOM = 0.25
_LEAST = 2.0**-10  # least width of a softmax's range on either side, for rows of equal values


class _Seen:
    """Notes the range of the rows that a softmax or norm has worked on so far, and the largest mean of e^(x - mean) in
    a softmax.
    """

    def __init__(self) -> None:
        self.least, self.most, self.sum = math.inf, -math.inf, 1.0

    def note(self, values: Tensor) -> None:
        least, most = (float(end) for end in torch.aminmax(values))
        self.least, self.most = min(self.least, least), max(self.most, most)


def find_rows(
    net: nn.Module,
    images: Tensor,
    *,
    headroom: float = HEADROOM,
    batch: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Rows]:
    """Find the ranges of all softmaxes and norms of a net on these inputs (N, ...), by name, for `BitConfig.rows`.

    headroom: by how much values may exceed the range seen, 0 or more; 0.25 is a quarter. progress: called with (inputs
    done, of all) after every batch. Cost: one pass over the inputs, in float32. Raises InputError for no inputs and
    values that are not finite, ModelError as `simulate` does, ConfigError for the other arguments.

        config = BitConfig.load("bits.json").with_rows(hummingbird.find_rows(net, images))
    """
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 0 <= headroom < math.inf:
        raise ConfigError(f"headroom={headroom!r}", where="headroom", hint="a finite number from 0")
    check_images(images, batch)
    net = settled(graph.unwrapped(net), images[:1], any_batch=False, custom=tuple(CUSTOM))
    folded, seen = FoldedNet(net, "masked"), dict[str, _Seen]()
    more = 1.0 + headroom

    def watched(step: Step) -> Callable[..., Any]:
        found = seen.setdefault(step.name, _Seen())

        def run(x: Tensor) -> Any:
            if not bool(x.isfinite().all()):
                raise InputError("rows of values that are not finite", where=step.name, hint="scale the weights down")
            if x.numel() and step.op == "softmax":
                centered = (x - x.mean(step.attrs["dim"], keepdim=True)).double() * more
                found.note(centered)
                found.sum = max(found.sum, float(centered.exp().mean(step.attrs["dim"]).max()))
            elif x.numel():
                values = rows_of(step.attrs, x).double()
                squares = values.var(-1, unbiased=False) if step.attrs["center"] else values.square().mean(-1)
                found.note(squares + step.attrs["eps"])
            return OPS[step.op](step.attrs, x)

        return run

    kinds = [(name, step) for name, step in folded.steps.items() if step.op in ("softmax", "norm")]
    instead = {name: watched(step) for name, step in kinds}
    done = 0
    with torch.inference_mode():
        for part in images.split(batch):
            folded.finish(folded.start(part), instead)
            done += len(part)
            if progress is not None:
                progress(done, len(images))
    return {name: _softmax(seen[name]) if step.op == "softmax" else _norm(seen[name], more) for name, step in kinds}


def _softmax(found: _Seen) -> Rows:
    return Rows(min(found.least, -_LEAST), max(found.most, _LEAST), found.sum)


def _norm(found: _Seen, more: float) -> Rows:
    return Rows(found.least / more**2 * (1 - 2.0**-20), found.most * more**2 * (1 + 2.0**-20))
