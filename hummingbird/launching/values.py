"""Results on their way from a party to the process that has launched it: tensors and plain values, and nothing else.

`torch.save` writes them, and `torch.load(weights_only=True)` reads them without running what they say.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError

_PLAIN = (bool, int, float, str, bytes, type(None))


def plain(value: Any, where: str = "the result") -> Any:
    """The value itself, with detached tensors on the CPU; InputError for what is no tensor, number, text or None, or
    a tuple, list or dict of those.
    """
    if isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta":
        return value.detach().cpu().clone(memory_format=torch.contiguous_format).as_subclass(Tensor)
    if type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{where}[{number}]") for number, item in enumerate(value))
    if type(value) is dict and all(type(key) in _PLAIN for key in value):
        return {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    hint = "return tensors, numbers, text, None, and tuples, lists or dicts of them"
    what = f"a {type(value).__module__}.{type(value).__name__}"
    if isinstance(value, Tensor):
        what, hint = f"a tensor of layout {value.layout} on {value.device}", "return a dense tensor with values"
    raise InputError(f"{where} is {what}", where="launch", hint=hint)


def packed(value: Any) -> bytes:
    """Bytes of what `plain` has returned."""
    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()


def unpacked(content: bytes) -> Any:
    """The value that `packed` was given."""
    return torch.load(io.BytesIO(content), weights_only=True)
