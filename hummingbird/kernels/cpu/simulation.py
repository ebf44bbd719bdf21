"""The comparison of a simulation in C++ (csrc/twin.cpp): one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import simulation
from hummingbird.kernels.cpu.library import handle
from hummingbird.kernels.registry import implements
from hummingbird.kernels.simulation import Cut


def _has_loop(v: Tensor) -> bool:
    return v.dtype in (torch.float32, torch.bfloat16)


@implements(simulation.twin_relu, "cpu", takes=_has_loop)
def twin_relu(v: Tensor, key: int, cut: Cut, both: bool) -> tuple[Tensor, Tensor | None]:
    """Implement `kernels.simulation.twin_relu` in C++: simulate private ReLUs."""
    y, z = torch.empty_like(v), torch.empty_like(v) if both and cut.wraps else None
    half, out = v.dtype == torch.bfloat16, None if z is None else z.data_ptr()
    handle().hb_twin_relu(v.data_ptr(), v.numel(), half, key, *cut, y.data_ptr(), out)
    return y, v if both and z is None else z
