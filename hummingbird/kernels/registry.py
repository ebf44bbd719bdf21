"""The choice among an operation's implementations.

An operation is declared once, in the module of its field (`shares`, `ciphertexts`, `lookups`, `simulation`, `garble`,
`cot`, `streams`), as a function with its description and its checks. Its last line runs the fastest implementation for
these tensors:

    return best(to_planes, x)(x, low, count)

Implementations register with `implements`, in each backend's module of the same field:

    reference   plain torch, for every tensor: the definition
    cpu         C++, for contiguous tensors on the CPU, where the library is built (cpu/library.py)
    gpu         Triton, for tensors on a CUDA device

They receive checked arguments: a wrong size would be an access out of bounds. A backend's module is imported at the
first call of its field with a tensor for it, so only GPU users need Triton. If a backend lacks an operation, or does
not take these tensors, the reference runs.

torch.library is not used, for two reasons. A ReLU of 8,192 numbers, the smallest layer of ResNet-18, takes a party
230 us and five operations. The choice here costs 0.7 us an operation; torch.library.custom_op adds 4 to 6 us, 12 % of
that ReLU, and Library.impl 2 us, 4 % (AMD EPYC, PyTorch 2.15). And its schemas have no form for some arguments: rings,
layouts of tables, strided buffers to write to.
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


_KERNELS: dict[tuple[_Any, str], _Kernel | None] = {}  # None: searched for and not found


def implements(
    operation: _Any, backend: str, takes: Callable[..., bool] | None = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that registers a function or class as an implementation of `operation`.

    backend: "reference", "cpu" or "gpu". takes: a function that is called with the tensors that `best` receives, and
    returns whether the implementation accepts them; None: it accepts all tensors of its backend.
    """

    def register(function: _Function) -> _Function:
        _KERNELS[operation, backend] = _Kernel(function, takes)
        return function

    return register


def best(operation: _Any, *tensors: Tensor) -> _Any:
    """Return the fastest implementation of an operation that accepts these tensors.

    It is a function that is called in place of the operation. The choice depends on the tensors' device and layout.
    """
    if library.available() and all([x.is_cpu and x.is_contiguous() for x in tensors]):
        backend = "cpu"
    else:
        backend = "gpu" if all([x.is_cuda for x in tensors]) else "reference"
    return _find(operation, backend, tensors)


def best_on(operation: _Any, device: torch.device) -> _Any:
    """Return the fastest implementation on a device of an operation that takes no tensors."""
    names = {"cuda": "gpu", "cpu": "cpu" if library.available() else "reference"}
    return _find(operation, names.get(device.type, "reference"), ())


def _find(operation: _Any, backend: str, tensors: tuple[Tensor, ...]) -> _Any:
    for name in (backend, "reference"):
        kernel = _KERNELS[operation, name] if (operation, name) in _KERNELS else _load(operation, name)
        if kernel is not None and (kernel.takes is None or kernel.takes(*tensors)):
            return kernel.run
    raise AssertionError(f"{operation.__name__} has no definition in reference/")


def _load(operation: _Any, backend: str) -> _Kernel | None:
    """Import the module in which `backend` may implement an operation, and return the implementation.

    Returns None if there is none. An operation of `kernels.shares`, or of a module below it, is implemented in the
    module `kernels.<backend>.shares`.
    """
    field = operation.__module__.removeprefix(f"{__package__}.").partition(".")[0]
    name = f"{__package__}.{backend}.{field}"
    if importlib.util.find_spec(name):
        importlib.import_module(name)
    return _KERNELS.setdefault((operation, backend), None)
