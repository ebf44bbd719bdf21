"""Checks of arguments that several operations share; each raises InputError with `where`, the argument's name."""

from __future__ import annotations

import torch
from torch import Tensor

from hummingbird.errors import InputError


def check_tensor(
    where: str,
    tensor: Tensor,
    dtype: torch.dtype,
    like: Tensor,
    size: int | None = None,
    rows: int | None = None,
) -> None:
    """Raise InputError unless a tensor has the type `dtype` and the given shape, on the device of the tensor `like`.

    The shape is (size,), or (rows, size) if `rows` is given; size None: of one dimension and any size. where: the
    argument's name.
    """
    if not isinstance(tensor, Tensor):
        raise InputError(f"expected a tensor, got {type(tensor).__name__}", where=where, hint="pass a torch.Tensor")
    if tensor.dtype != dtype:
        hint = "ring elements are torch.int64, packed and single bits torch.uint8"
        raise InputError(f"expected {dtype}, got {tensor.dtype}", where=where, hint=hint)
    shape = (tensor.numel() if size is None else size,) if rows is None else (rows, size)
    if tensor.shape != shape:
        expected = "(n,)" if size is None else shape
        hint = "flatten with .reshape(-1); n elements have ceil(n/8) packed bytes"
        raise InputError(f"expected shape {expected}, got {tuple(tensor.shape)}", where=where, hint=hint)
    if tensor.device != like.device:
        hint = "move all arguments to one device with .to()"
        raise InputError(f"expected device {like.device}, got {tensor.device}", where=where, hint=hint)


def check_range(where: str, value: int, least: int, most: int) -> None:
    """Raise InputError unless `value` is an int from `least` to `most`. where: the argument's name."""
    if not isinstance(value, int) or not least <= value <= most:
        hint = "see the function's description for what is allowed"
        raise InputError(f"expected a whole number from {least} to {most}, got {value}", where=where, hint=hint)
