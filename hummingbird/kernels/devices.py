"""Devices by name, "cpu", "cuda", and "cuda:1" for one card of several; and small tensors on their way to one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from hummingbird.errors import InputError

_Run = TypeVar("_Run", bound=Callable[..., Any])


def find_device(name: str, where: str) -> torch.device:
    """Find a device by its name; InputError for another name, and for a card that is not there.

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
    """Put a small tensor of the CPU on a device, without waiting for what a GPU is at; elsewhere as `tensor.to`.

    Kernels that this thread starts later find it there. A copy from memory that is not pinned would end when all
    kernels that were started before have ended.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    with torch.cuda.device(device):  # memory is pinned for a card: for the first one, where a thread has chosen none
        return tensor.pin_memory().to(device, non_blocking=True)  # torch reuses the pinned memory after the copy


def on_this_card(run: _Run) -> _Run:
    """The same function for another thread, which shall use the card that this one has chosen, if it uses any.

    torch keeps a choice for each thread. One without a choice takes the first card: it would start CUDA on it, half a
    gigabyte, and kernels of tensors on another card would fail there.
    """
    if not torch.cuda.is_initialized():
        return run
    card = torch.cuda.current_device()

    def there(*args: Any) -> Any:
        torch.cuda.set_device(card)
        return run(*args)

    return cast(_Run, there)


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
