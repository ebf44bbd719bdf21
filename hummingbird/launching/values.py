"""Results of a party, sent to the launching process: tensors and plain values only.

`torch.save` writes them, and `torch.load(weights_only=True)` reads them without running any code in them.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from hummingbird.errors import InputError

_PLAIN = (bool, int, float, str, bytes, type(None))


def plain(value: Any, where: str = "the result") -> Any:
    """Copy the result of a party so that it can be sent: tensors are detached, and on the CPU.

    Raises InputError unless it consists of tensors, numbers, text and None, in tuples, lists and dicts.
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
    """Pack a result, which `plain` has returned, into bytes."""
    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()


def unpacked(content: bytes) -> Any:
    """Unpack the result that `packed` has packed; no code in it is run."""
    return torch.load(io.BytesIO(content), weights_only=True)
