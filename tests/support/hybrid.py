"""A small net for two parties, served in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hummingbird.hybrid.plan import Model
from hummingbird.hybrid.service import Service
from hummingbird.rpc import service
from hummingbird.rpc.admission import Admission
from hummingbird.rpc.service import Tls
from tests.hybrid.test_arithmetic import small


def model(garbler: str = "data") -> Model:
    """A convolution, a ReLU and a linear layer."""
    made = small()
    return replace(made, plan=replace(made.plan, garbler=garbler))


@contextmanager
def serving(
    made: Model, folder: Path, tls: Tls | None = None, gate: Admission | None = None, **options: Any
) -> Iterator[tuple[str, Service]]:
    """The address of a service of this model, and the service."""
    with tempfile.TemporaryDirectory() as place:  # a unix socket's path is short
        address = f"unix:{place}/gc.sock"
        offered = Service(made, folder, **options)
        server = service.serve(offered.handlers(), address, tls, gate=gate)
        try:
            yield address, offered
        finally:
            server.stop(0).wait()
            offered.close()


def close(got: Tensor, made: Model, x: Tensor) -> bool:
    """Whether logits are those of the plan's whole numbers, as far as the cut lets them vary.

    The cut's result is the floor or the ceiling of v / 16: within 1 of each other; weights of 4 bits are at most 8.
    """
    plan, found = made.plan, made.parameters
    values = plan.encode(x)
    conv, fc = found[1], found[5]
    v = torch.conv2d(values, conv.weight, conv.bias, padding=1)
    low, high = (v.div(16, rounding_mode="floor") + up for up in (0, 1))
    weight = fc.weight[:, :, 0, 0].T
    middle = low.clamp(min=0).flatten(1) @ weight + fc.bias
    spread = (high.clamp(min=0) - low.clamp(min=0)).flatten(1) @ weight.abs()
    return bool(((got.double() * 4096 - middle).abs() <= spread).all())
