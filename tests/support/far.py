"""A far device: tensors that are not on the CPU for all that the code can see, and have values all the same.

They say that they are on torch's meta device, hold a tensor of the CPU, and every operation on them runs on that one.
What a GPU would refuse is refused: an operation on tensors here and there (a copy from one to the other is none), and
`numpy()`. So code for a GPU runs on a CPU from end to end, and its results are compared with the CPU's.

    with far():
        x = torch.ones(3).to(DEVICE)
        (x + x).cpu()                    # 2, 2, 2
        x + torch.ones(3)                # RuntimeError

One thread: torch keeps such modes for each. `torch.tensor(..., device=DEVICE)` makes a tensor without values: write
`torch.tensor(...).to(DEVICE)`, which copies once on a GPU too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, return_and_correct_aliasing
from torch.utils._pytree import tree_map

import hummingbird
from hummingbird import ring
from hummingbird.kernels.devices import put

DEVICE = "meta"
ROOMS = str(Path(hummingbird.__file__).parent)
_COPIES = {"copy_", "_to_copy"}


class _Far(Tensor):
    """A tensor of the far device."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> _Far:
        """Stand for a tensor of the CPU."""
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        out: _Far = Tensor._make_wrapper_subclass(cls, near.size(), device=DEVICE, **layout)
        out.near = near
        return out

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{operation} on the far device, outside of far()")


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from wrapping every call for torch.compile."""
        return False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        seen: list[Tensor] = []
        near_args, near_given = _near(args, seen), {key: _near(value, seen) for key, value in given.items()}
        some_far = any(isinstance(x, _Far) for x in seen)
        device, name = given.get("device"), operation.overloadpacket.__name__
        # A CPU tensor of one element counts as a number, on a GPU too.
        if name not in _COPIES and some_far and any(x.dim() and not isinstance(x, _Far) for x in seen):
            raise RuntimeError(f"{operation} of tensors here and on the far device")
        if device is not None:
            near_given["device"] = "cpu"
        out = operation(*near_args, **near_given)
        if name == "copy_":
            return args[0]
        if torch.device(device).type != DEVICE if device is not None else not some_far:
            return out
        out = tree_map(lambda x: _Far(x) if isinstance(x, Tensor) else x, out) if type(out) is not Tensor else _Far(out)
        return return_and_correct_aliasing(operation, args, given, out) if _aliases(operation) else out


def _near(value: Any, seen: list[Tensor]) -> Any:
    """An argument of an operation with the tensors of the CPU that stand behind it; notes all tensors in `seen`."""
    if isinstance(value, Tensor):
        seen.append(value)
        return value.near if isinstance(value, _Far) else value
    return type(value)(_near(part, seen) for part in value) if isinstance(value, (list, tuple)) else value


@cache
def _aliases(operation: Any) -> bool:
    """Whether a result of an operation of ATen may share memory with an argument."""
    return any(argument.alias_info is not None for argument in operation._schema.arguments)


@contextmanager
def far() -> Iterator[None]:
    """Have torch compute on the far device, in this thread."""
    with torch.no_grad(), _Mode():
        yield


def near(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, computed on the CPU at its speed; results for far tensors are far."""

    def run(*args: Any) -> Tensor:
        with _disable_current_modes():
            out = function(*tree_map(lambda x: x.near if isinstance(x, _Far) else x, args))
            return _Far(out) if any(isinstance(x, _Far) for x in args) else out

    return run


# Waiting --------------------------------------------------------------------------------------------------------------


class _Uploads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        if operation.overloadpacket.__name__ in _COPIES:
            target, source = (args[0], args[1]) if operation.overloadpacket.__name__ == "copy_" else (out, args[0])
            if target.is_meta and not source.is_meta:
                self.note()
        return out

    def note(self) -> None:
        """Note the line of this package that is at work, unless it is in `put`."""
        frame: FrameType | None = sys._getframe(1)
        place = "a test"
        while frame is not None and frame.f_code is not put.__code__:
            if place == "a test" and frame.f_code.co_filename.startswith(ROOMS):
                place = f"{frame.f_code.co_filename.removeprefix(ROOMS)}:{frame.f_lineno}"
            frame = frame.f_back
        if frame is None:
            self.found.append(place)


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Find the lines that put numbers on torch's meta device otherwise than by `devices.put`: with a GPU in its place
    they wait until it has done all that it was given before. A look at a value there is an error anyway.
    """
    mode = _Uploads()

    def watched(make: Any) -> Any:
        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            if device is not None and torch.device(device).type == DEVICE:
                mode.note()
            return make(*args, device=device, **kwargs)

        return made

    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, watched(getattr(torch, name)))
    encode = ring.encode

    def encoded(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.is_meta:  # else it looks at the largest
            mode.note()
        return encode(x, *args, **kwargs)

    monkeypatch.setattr(ring, "encode", encoded)
    with mode:
        yield mode.found
