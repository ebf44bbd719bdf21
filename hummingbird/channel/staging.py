"""Messages of tensors on a GPU: copies to and from pinned memory on separate CUDA streams, while the GPU computes.

Outgoing tensors are copied once the kernels that compute them are done; the thread that writes the message waits for
the copy, the computing thread does not. Incoming tensors are copied once they are read; kernels started after that wait
for the copy on the GPU. Each direction has a stream of its own, as both directions of a GPU's bus work at once.

Material is made ahead of its use, on a third stream (`aside`): kernels of a slice, and messages, never wait for the
material of a later slice, but only for the material that they take (`take`). Material comes from files and from the
dealer's messages, in memory that is not pinned, and passes through a ring of pinned buffers: one is filled while others
are copied.

Pinned memory and GPU memory are reused, but never while a copy still uses them. torch's allocators ensure both if they
know of the copy. A pinned tensor's memory is free once the tensor is gone and all its copies by `copy_` have passed, so
the copy must use that tensor itself, not another one of the same memory (`torch.frombuffer`). A GPU tensor is kept for
other streams than its own by `record_stream`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SLOTS, SLOT_BYTES = 4, 8 << 20  # buffers of the ring, and bytes of each


class Staging:
    """Copies tensors between one GPU and pinned CPU memory, on CUDA streams beside that of the computation.

    device: the GPU. cuda: `torch.cuda`, or a test's substitute.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda
        self._outgoing, self._incoming, self._aside = (cuda.Stream(device) for _ in range(3))
        self._filling = threading.Lock()
        self._ring: list[tuple[Tensor, Any]] = []  # buffers and the events of their last copies, the oldest first

    def buffer(self, size: int) -> Tensor:
        """Return new pinned CPU memory of `size` bytes, as a tensor uint8 (size,)."""
        if self.device.type != "cuda":
            return torch.empty(size, dtype=torch.uint8)
        with torch.cuda.device(self.device):  # otherwise a thread without a current card pins it for the first one too
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def fetch(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Start to copy GPU tensors to pinned CPU memory; return a list of the copies, and a CUDA event.

        A copy is the tensor's bytes, uint8 (bytes,). The bytes may be read once `event.synchronize()` has returned.
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
        """Return a context in which this thread's kernels and copies go to the CUDA stream on which material is made.

        This stream waits for no other stream.
        """
        with self._cuda.stream(self._aside):
            yield

    def event(self) -> Any:
        """Return a CUDA event that is done once all work of `aside` blocks so far is done. Pass it to `take`."""
        return self._aside.record_event()

    def take(self, event: Any, tensors: Iterable[Tensor]) -> None:
        """Make kernels that this thread starts later on the GPU wait until a CUDA event is done.

        event: as `event()` has returned it. tensors: material that was made before the event, and that these kernels
        use; its memory is kept until they have run.
        """
        current = self._cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            self._keep(tensor, current)

    def bring(self, tensor: Tensor) -> Tensor:
        """Start to copy a CPU tensor to the GPU through pinned buffers; return the GPU tensor.

        The tensor's memory need not be pinned. It may be reused after this call, which returns once the last part of
        the tensor is in a pinned buffer; the copy to the GPU may still run then. Called in an `aside` block.
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
                memory[: piece.numel()].copy_(piece)  # other threads run meanwhile
                self._copy(target[start : start + SLOT_BYTES], memory[: piece.numel()])
                self._ring.append((memory, self._aside.record_event()))
        return out

    def land(self, tensor: Tensor) -> Tensor:
        """Start to copy a tensor from pinned CPU memory to the GPU; return the GPU tensor.

        tensor: in memory that `buffer` has returned; the caller must not write to it any more. Kernels that this thread
        starts later wait for the copy.
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
    """Return the `Staging` object of the GPU on which one of the tensors is; None if all tensors are on the CPU."""
    for tensor in tensors:
        if tensor.is_cuda:
            return _on(tensor.device)
    return None


class Aside:
    """A `with` block in which material is made or copied to `device`, beside the computations that run there.

    On a GPU the work of the block runs on a CUDA stream of its own. After the block, `ready` is the `Ready` by which
    computations wait for this work; it is None on a CPU.

    with Aside(device) as aside:
        tensors = aside.bring(corrections)
    Material(tensors, ready=aside.ready)  # `Material.take` waits for it
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stage = device, _on(device) if device.type == "cuda" else None
        self._block = contextlib.ExitStack()
        self.ready: Ready | None = None  # after the block, on a GPU

    def __enter__(self) -> Aside:
        if self._stage is not None:
            self._block.enter_context(self._stage.aside())
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()
        if self._stage is not None:
            self.ready = Ready(self._stage, self._stage.event())

    def bring(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return copies of CPU tensors on this block's device, as a list.

        On a GPU the copies may still be under way: who uses them waits for `ready`.
        """
        if self._stage is None:
            return [tensor.to(self._device) for tensor in tensors]
        return [self._stage.bring(tensor) for tensor in tensors]


class Ready:
    """The moment at which material that was made in an `Aside` block is complete on the GPU, as a CUDA event.

    stage: the GPU's `Staging`. event: the CUDA event. Who uses the material calls `take` first.
    """

    def __init__(self, stage: Staging, event: Any) -> None:
        self._stage, self._event = stage, event

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Make kernels that this thread starts later on the GPU wait until the material is complete there.

        tensors: the material's tensors that these kernels use. Their memory is kept until the kernels have run. Does
        not wait itself.
        """
        self._stage.take(self._event, tensors)

    def wait(self) -> None:
        """Wait on the CPU until the material is complete on the GPU."""
        self._event.synchronize()


@lru_cache(maxsize=64)
def _on(device: torch.device) -> Staging:
    return Staging(device)
