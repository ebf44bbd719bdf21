"""Devices: lookup by name ("cpu", "cuda", "cuda:1"), copies of small tensors to a GPU, and a thread's current GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from hummingbird.errors import InputError

_Run = TypeVar("_Run", bound=Callable[..., Any])


def find_device(name: str, where: str) -> torch.device:
    """Return the device of a name; InputError for an unknown name, and for a GPU that is not there.

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
    """Copy a small tensor from the CPU to a device, without waiting for the GPU's running kernels.

    Kernels that this thread starts later see the copy. A copy from memory that is not pinned would wait for all kernels
    that were started before. For other devices this is `tensor.to`.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    with torch.cuda.device(device):  # memory is pinned for the thread's current GPU, by default the first one
        return tensor.pin_memory().to(device, non_blocking=True)  # torch reuses the pinned memory after the copy


def on_this_card(run: _Run) -> _Run:
    """Wrap a function that another thread will run, so that it runs there with this thread's current GPU.

    In torch every thread has its own current GPU, and a new thread begins with the first one: there, CUDA would take
    half a gigabyte, and kernels on tensors of another GPU would fail. If CUDA is not in use, the function is returned
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
