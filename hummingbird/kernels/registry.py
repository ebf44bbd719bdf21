"""The one place that chooses who computes.

An operation is declared once, in the module of its field (`shares`, `ciphertexts`,
`lookups`, `simulation`, `garble`, `cot`, `streams`), as a
function with its description and its checks. Its last line runs the best implementation for these tensors:

    return best(to_planes, x)(x, low, count)

Implementations register for it with `implements`, in each backend's module of that field:

    reference   plain torch, for every tensor: the definition
    cpu         C++, for contiguous tensors on the CPU, where the library is built (cpu/library.py)
    gpu         Triton, for tensors on a CUDA device

They get checked arguments: a wrong size would be a wrong memory access. A backend's module is imported when an
operation of its field first meets a tensor for it, so only who has a GPU needs Triton. What a backend does not have, or
does not take, runs the reference.

This table and not torch.library, for two reasons. A ReLU of 8,192 numbers, the smallest layer of ResNet-18, takes a
party 230 us and five operations. To choose here costs 0.7 us an operation; torch.library.custom_op adds 4 to 6 us, 12 %
of that ReLU, and Library.impl 2 us, 4 % (AMD EPYC, PyTorch 2.15). And some arguments have no place in its schemas:
rings, layouts of tables, strided buffers to write to.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hummingbird.kernels.cpu import library

_Any = Callable[..., Any]
_Function = TypeVar("_Function", bound=_Any)


class _Kernel(NamedTuple):
    run: _Any
    takes: Callable[..., bool] | None


_KERNELS: dict[tuple[_Any, str], _Kernel | None] = {}  # None: looked for, and there is none


def implements(
    operation: _Any, backend: str, takes: Callable[..., bool] | None = None
) -> Callable[[_Function], _Function]:
    """Register the function, or class, below as what computes `operation` on "reference", "cpu" or "gpu".

    takes: whether it can take these tensors, those that `best` is given; all of the backend's if there is no such test.
    """

    def register(function: _Function) -> _Function:
        _KERNELS[operation, backend] = _Kernel(function, takes)
        return function

    return register


def best(operation: _Any, *tensors: Tensor) -> _Any:
    """Find the fastest implementation of an operation that takes these tensors, all those that the choice hangs on."""
    if library.available() and all([x.is_cpu and x.is_contiguous() for x in tensors]):
        backend = "cpu"
    else:
        backend = "gpu" if all([x.is_cuda for x in tensors]) else "reference"
    return _find(operation, backend, tensors)


def best_on(operation: _Any, device: torch.device) -> _Any:
    """Find the fastest implementation on a device of an operation that takes no tensors."""
    names = {"cuda": "gpu", "cpu": "cpu" if library.available() else "reference"}
    return _find(operation, names.get(device.type, "reference"), ())


def _find(operation: _Any, backend: str, tensors: tuple[Tensor, ...]) -> _Any:
    for name in (backend, "reference"):
        kernel = _KERNELS[operation, name] if (operation, name) in _KERNELS else _load(operation, name)
        if kernel is not None and (kernel.takes is None or kernel.takes(*tensors)):
            return kernel.run
    raise AssertionError(f"{operation.__name__} has no definition in reference/")


def _load(operation: _Any, backend: str) -> _Kernel | None:
    """Import what the backend has for the operation's field, and look again."""
    field = operation.__module__.removeprefix(f"{__package__}.").partition(".")[0]
    name = f"{__package__}.{backend}.{field}"
    if importlib.util.find_spec(name):
        importlib.import_module(name)
    return _KERNELS.setdefault((operation, backend), None)
