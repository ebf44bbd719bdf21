"""Messages of tensors on a GPU: copied to and from pinned memory on streams of their own, while the GPU goes on.

What goes out is copied when the kernels that make it are done; the thread that writes it waits for the copy, the one
that computes does not. What came in is copied when it is read; kernels started from then on wait for it on the GPU. The
two copies have a stream each, as the two directions of a GPU's bus work side by side.

Pinned memory and the GPU's are reused, and neither may be while a copy still uses it. torch's allocators see to both,
if told: a pinned tensor's memory is free when the tensor is gone and all copies by `copy_` from or to it have passed,
so a copy must be of that tensor itself, not of another one made of its memory (`torch.frombuffer`); a tensor of the GPU
is kept for other streams than its own by `record_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


class Staging:
    """Copies between one GPU and pinned memory. cuda: `torch.cuda`, or what stands in for it in a test."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda
        self._outgoing, self._incoming = cuda.Stream(device), cuda.Stream(device)

    def buffer(self, size: int) -> Tensor:
        """Pinned memory of so many bytes, uint8 (size,)."""
        if self.device.type != "cuda":
            return torch.empty(size, dtype=torch.uint8)
        with torch.cuda.device(self.device):  # else it is pinned for the first card too, where a thread has chosen none
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def fetch(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Begin to copy tensors to pinned memory: their bytes there, uint8 (bytes,) each, and the event of the copies.

        Nothing may look at the bytes before `event.synchronize()` has returned.
        """
        out = [self.buffer(tensor.numel() * tensor.element_size()) for tensor in tensors]
        self._outgoing.wait_stream(self._cuda.current_stream(self.device))
        with self._cuda.stream(self._outgoing):
            for octets, tensor in zip(out, tensors, strict=True):
                flat = tensor.detach().contiguous()
                # One element counts as contiguous whatever its stride is, and a view as bytes needs a stride of 1.
                self._copy(octets, flat.as_strided((flat.numel(),), (1,)).view(torch.uint8))
                self._keep(tensor, self._outgoing)
            return out, self._outgoing.record_event()

    def land(self, tensor: Tensor) -> Tensor:
        """Begin to copy a tensor of `buffer`, or of memory that is not pinned, to the GPU.

        Kernels of this thread's stream that start later wait for the copy; nothing may write to `tensor` any more.
        """
        with self._cuda.stream(self._incoming):
            out = torch.empty_like(tensor, device=self.device)
            self._copy(out, tensor)
            landed = self._incoming.record_event()
        current = self._cuda.current_stream(self.device)
        current.wait_event(landed)
        self._keep(out, current)
        return out

    @staticmethod
    def _copy(to: Tensor, x: Tensor) -> None:
        to.copy_(x, non_blocking=True)

    @staticmethod
    def _keep(tensor: Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


def staging_of(tensors: Iterable[Tensor]) -> Staging | None:
    """The staging for a message of these tensors; None where all are on the CPU."""
    for tensor in tensors:
        if tensor.is_cuda:
            return _on(tensor.device)
    return None


def landed(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU, of memory that is not pinned, on a device; copies to a GPU are `Staging.land`'s."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    stage = _on(device)
    return [stage.land(tensor) for tensor in tensors]


@lru_cache(maxsize=64)
def _on(device: torch.device) -> Staging:
    return Staging(device)
