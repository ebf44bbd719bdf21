"""Messages of tensors on a GPU: copied to and from pinned memory on streams of their own, while the GPU goes on.

What goes out is copied when the kernels that make it are done; the thread that writes it waits for the copy, the one
that computes does not. What came in is copied when it is read; kernels started from then on wait for it on the GPU. The
two copies have a stream each, as the two directions of a GPU's bus work side by side.

Material is made ahead of its use, on a third stream (`aside`): kernels of a slice, and messages, never wait for what a
later one needs, but only for what they take (`take`). It comes from files and from the dealer's messages, in memory
that is not pinned, and goes through a ring of pinned buffers: one is filled while others are copied.

Pinned memory and the GPU's are reused, and neither may be while a copy still uses it. torch's allocators see to both,
if told: a pinned tensor's memory is free when the tensor is gone and all copies by `copy_` from or to it have passed,
so a copy must be of that tensor itself, not of another one made of its memory (`torch.frombuffer`); a tensor of the GPU
is kept for other streams than its own by `record_stream`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SLOTS, SLOT_BYTES = 4, 8 << 20  # of the ring


class Staging:
    """Copies between one GPU and pinned memory. cuda: `torch.cuda`, or what stands in for it in a test."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda
        self._outgoing, self._incoming, self._aside = (cuda.Stream(device) for _ in range(3))
        self._filling = threading.Lock()
        self._ring: list[tuple[Tensor, Any]] = []  # buffers and the events of their last copies, the oldest first

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

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """In this block this thread's kernels and copies go to the stream of material, which waits for no other."""
        with self._cuda.stream(self._aside):
            yield

    def event(self) -> Any:
        """The event of what `aside` was given so far, for `take`."""
        return self._aside.record_event()

    def take(self, event: Any, tensors: Iterable[Tensor]) -> None:
        """Let kernels of this thread's stream that start later wait for an event of material, and use its tensors."""
        current = self._cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            self._keep(tensor, current)

    def bring(self, tensor: Tensor) -> Tensor:
        """Begin to copy a tensor of memory that is not pinned to the GPU, in an `aside` block, through the ring.

        Its memory is free when this returns, after a wait for all of it but what fits in the ring.
        """
        out = torch.empty_like(tensor, device=self.device)
        source, target = (x.view(-1).view(torch.uint8) for x in (tensor.contiguous(), out))
        with self._filling:
            for start in range(0, source.numel(), SLOT_BYTES):
                piece = source[start : start + SLOT_BYTES]
                if len(self._ring) < SLOTS:
                    memory = self.buffer(SLOT_BYTES)
                else:
                    memory, copied = self._ring[0]
                    copied.synchronize()
                    del self._ring[0]
                memory[: piece.numel()].copy_(piece)  # other threads go on meanwhile
                self._copy(target[start : start + SLOT_BYTES], memory[: piece.numel()])
                self._ring.append((memory, self._aside.record_event()))
        return out

    def land(self, tensor: Tensor) -> Tensor:
        """Begin to copy a tensor of `buffer` to the GPU.

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


class Aside:
    """Making of material on a device: on a GPU, in the block, beside the kernels of computations.

    with Aside(device) as aside:
        tensors = aside.bring(corrections)
    Material(tensors, ready=aside.ready)  # to be taken by `Material.take`
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stage = device, _on(device) if device.type == "cuda" else None
        self._block = contextlib.ExitStack()
        self.ready: Ready | None = None  # where there is something to wait for

    def __enter__(self) -> Aside:
        if self._stage is not None:
            self._block.enter_context(self._stage.aside())
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()
        if self._stage is not None:
            self.ready = Ready(self._stage, self._stage.event())

    def bring(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the CPU on the device."""
        if self._stage is None:
            return [tensor.to(self._device) for tensor in tensors]
        return [self._stage.bring(tensor) for tensor in tensors]


class Ready:
    """When material is there: an event of a GPU."""

    def __init__(self, stage: Staging, event: Any) -> None:
        self._stage, self._event = stage, event

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Let this thread's kernels that start later use the tensors (`Staging.take`)."""
        self._stage.take(self._event, tensors)

    def wait(self) -> None:
        """Return when they are on the card."""
        self._event.synchronize()


@lru_cache(maxsize=64)
def _on(device: torch.device) -> Staging:
    return Staging(device)
