"""AES-128's key stream in C++ (csrc/dealing.cpp), by the processor's instructions for it."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.kernels import aes128 as declared
from hummingbird.kernels.cpu.library import aes, handle
from hummingbird.kernels.registry import implements


@implements(declared.aes128, "cpu", takes=lambda key: aes())
def aes128(key: Tensor, first: int, blocks: int) -> Tensor:
    """See `aes128.aes128`."""
    out = torch.empty(64 * blocks, dtype=torch.uint8)
    handle().hb_aes128(key.data_ptr(), first, blocks, out.data_ptr())
    return out
