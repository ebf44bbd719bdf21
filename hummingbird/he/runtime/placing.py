"""Plans on a device: the same data, with its tensors there."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Data = TypeVar("Data")


def moved(data: Data, device: torch.device) -> Data:
    """Move all tensors of dataclasses, tuples and dictionaries to a device; what is there already is not copied."""
    out: Any = data
    if isinstance(data, Tensor):
        out = data.to(device)
    elif isinstance(data, tuple):
        out = tuple(moved(item, device) for item in data)
    elif isinstance(data, dict):
        out = {key: moved(value, device) for key, value in data.items()}
    elif is_dataclass(data) and not isinstance(data, type):
        out = replace(data, **{field.name: moved(getattr(data, field.name), device) for field in fields(data)})
    return out
