"""Devices by name: "cpu", "cuda", and "cuda:1" for one card of several."""

from __future__ import annotations

import os

import torch

from hummingbird.errors import InputError


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


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
