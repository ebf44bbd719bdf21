"""Devices: lookup by name ("cpu", "cuda", "cuda:1"), copies of small tensors to a GPU, a thread's current GPU;
processors and memory of this process.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from hummingbird.errors import InputError

_Run = TypeVar("_Run", bound=Callable[..., Any])


def find_device(name: str, where: str) -> torch.device:
    """Return torch's device for a name such as "cuda:1"; InputError for an unknown name, and for a GPU that is not
    there.

    find_device("cuda:1", where="--device")
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "meta"):  # meta: no values, for tests
        raise InputError(f"there is no device {name!r}", where=where, hint='"cpu", "cuda", or "cuda:1" for one of many')
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no GPU that PyTorch can use", where=where, hint='leave device="cpu"')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        what = f"{name} of {torch.cuda.device_count()} GPUs"
        raise InputError(what, where=where, hint=f"they are cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return device


def put(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor from the CPU to a device, without waiting for the kernels that the GPU runs at this time.

    Kernels that this thread starts later see the copy. (A plain copy, from memory that is not pinned, would wait for
    all kernels that were started before.) For a device that is no GPU this is `tensor.to`.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    with torch.cuda.device(device):  # memory is pinned for the thread's current GPU, by default the first one
        return tensor.pin_memory().to(device, non_blocking=True)  # torch reuses the pinned memory after the copy


def on_this_card(run: _Run) -> _Run:
    """Wrap a function for another thread, so that it runs there with the GPU that is this thread's current one.

    In torch every thread has its own current GPU, and a new thread begins with GPU 0: there, CUDA would take half a
    gigabyte, and kernels on tensors of another GPU would fail. If CUDA is not in use, the function is returned
    unchanged.
    """
    if not torch.cuda.is_initialized():
        return run
    card = torch.cuda.current_device()

    def there(*args: Any) -> Any:
        torch.cuda.set_device(card)
        return run(*args)

    return cast(_Run, there)


def processors() -> int:
    """Count the processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Memory: freed blocks are used again for large tensors ----------------------------------------------------------------
#
# glibc maps every block above its threshold, 32 MiB at most, anew, and returns it to the system when it is freed; so
# each large share or column matrix of a layer costs a page fault per 4 KiB. Measured (AMD EPYC, family 26, in a virtual
# machine), `a + 1` on 64 MiB: 2.8 GB/s of result into fresh pages, 18 GB/s into reused ones; 0.4 GB/s if the host must
# provide the pages too. With a higher threshold such blocks come from the heap, which keeps them for the next layer.
# The process gets smaller by `return_freed_memory` alone.

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # M_TRIM_THRESHOLD and so on, of malloc.h
_LARGEST = 1 << 30  # blocks above it are still mapped: a heap full of holes of this size would be worse than the faults


def keep_freed_memory() -> bool:
    """Make this process reuse freed blocks of memory of up to 1 GiB, instead of returning them to the system.

    Returns False, and changes nothing, if the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Both are ints. glibc before 2.35 refuses thresholds above 32 MiB, its own upper limit for adapting them.
    kept = bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) or bool(mallopt(_MMAP_THRESHOLD, 32 << 20))
    # One heap for all threads: a heap of another thread cannot hold blocks above 64 MiB, and would map them.
    return bool(mallopt(_ARENA_MAX, 1)) and kept and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def return_freed_memory() -> None:
    """Return the pages of freed blocks to the system; do nothing if the C library is not glibc.

    It is for the end of work that needs more memory than the work after it, such as a net's conversion.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
